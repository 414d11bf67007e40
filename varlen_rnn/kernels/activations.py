"""The functions that equations call.  They are inlined into CPU loops, where they vectorise, and into CUDA kernels.

For float32, the exponential is a polynomial and the hyperbolic tangent a rational function: they vectorise, and are
right to a few units in the last place.  For float64, the C library computes both, because accuracy matters more.

Sources: the exponential splits -x = n ln 2 - r and evaluates a minimax polynomial in r (Cephes, `expf`); the logarithm
sums the logarithms of the power of two and of the mantissa, the latter by a minimax polynomial (Cephes, `logf`); the
hyperbolic tangent is the rational minimax approximation on [-7.9, 7.9] that Eigen uses (`generic_fast_tanh_float`).
"""

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from varlen_rnn.kernels.symbol import traceable
from varlen_rnn.runtime.jit import body

_LOWEST, _HIGHEST = np.float32(-88.72283), np.float32(87.33654)
_MINUS_LOG2_E = np.float32(-1.44269504088896341)
# Adding 1.5 * 2**23, then subtracting it, rounds to an integer n; with 127 more, the sum's low bits are the exponent of
# 2**n.
_ROUND = np.float32(12582912 + 127)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_E0, _E1, _E2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
_E3, _E4, _E5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
_ONE = np.float32(1)

_EXP_LOWEST, _EXP_HIGHEST = np.float32(-104.5), np.float32(89)  # e**x is 0 below the first, infinite above the second
_ROUND_EVEN, _BIAS = np.float32(12582912), np.int32(127)
_ROUND_EVEN_BITS = np.int32(_ROUND_EVEN.view(np.int32))

_SMALLEST_NORMAL, _TWO_23, _TWENTY_THREE = np.float32(1.17549435e-38), np.float32(8388608), np.float32(23)
_SQRT_HALF_BITS = np.int32(np.float32(0.707106781186547524).view(np.int32))
_INFINITY, _NAN = np.float32(np.inf), np.float32(np.nan)
_L0, _L1, _L2 = np.float32(7.0376836292e-2), np.float32(-1.1514610310e-1), np.float32(1.1676998740e-1)
_L3, _L4, _L5 = np.float32(-1.2420140846e-1), np.float32(1.4249322787e-1), np.float32(-1.6668057665e-1)
_L6, _L7, _L8 = np.float32(2.0000714765e-1), np.float32(-2.4999993993e-1), np.float32(3.3333331174e-1)

_TANH_EDGE = np.float32(7.90531110763549805**2)  # the end of the approximation, squared, where tanh is just below 1
_T0, _T1, _T2 = np.float32(-2.76076847742355e-16), np.float32(2.00018790482477e-13), np.float32(-8.60467152213735e-11)
_T3, _T4, _T5 = np.float32(5.12229709037114e-08), np.float32(1.48572235717979e-05), np.float32(6.37261928875436e-04)
_T6, _Q0, _Q1 = np.float32(4.89352455891786e-03), np.float32(1.19825839466702e-06), np.float32(1.18534705686654e-04)
_Q2, _Q3 = np.float32(2.26843463243900e-03), np.float32(4.89352518554385e-03)


@body
def sigmoid_float32(x):
    """Return 1 / (1 + e**-x) of a float32, within 4 units in the last place; NaN stays NaN.

    It is 0 below -88.376, where it would be subnormal, and 1 from 16.64 on.  As x grows, it never falls by more than 2
    units.
    """
    x = _HIGHEST if x > _HIGHEST else x
    x = _LOWEST if x < _LOWEST else x
    rounded = np.float32(x * _MINUS_LOG2_E + _ROUND)
    n = rounded - _ROUND
    r = n * _LN2_LOW + (n * _LN2_HIGH + x)
    q = r * r
    e = (_ONE - r) + q * ((_E5 - _E4 * r) + q * ((_E3 - _E2 * r) + q * (_E1 - _E0 * r)))
    power = np.int32(rounded.view(np.int32) << np.int32(23)).view(np.float32)
    return _ONE / (_ONE + e * power)


@body
def tanh_float32(x):
    """Return tanh of a float32, within 6 units in the last place, and 1 or -1 beyond 7.91; NaN stays NaN.

    For numbers below 2.4e-36 it is right to 4e-43 instead.  As x grows, the result never falls by more than 8 units,
    and never at all beyond 7.90532.
    """
    s = x * x
    s = _TANH_EDGE if s > _TANH_EDGE else s
    q = s * s
    p = (_T6 + _T5 * s) + q * ((_T4 + _T3 * s) + q * ((_T2 + _T1 * s) + q * _T0))
    y = x * p / ((_Q3 + _Q2 * s) + q * (_Q1 + _Q0 * s))
    # Beyond the edge, y grows in proportion to x and soon exceeds 1, so comparing y with 1 is enough.
    y = _ONE if y > _ONE else y
    return -_ONE if y < -_ONE else y


@body
def exp_float32(x):
    """Return e**x of a float32, within 2 units in the last place; NaN stays NaN, and an overflow is infinite."""
    x = _EXP_HIGHEST if x > _EXP_HIGHEST else x
    x = _EXP_LOWEST if x < _EXP_LOWEST else x
    rounded = np.float32(x * -_MINUS_LOG2_E + _ROUND_EVEN)
    n = rounded - _ROUND_EVEN
    r = x - n * _LN2_HIGH
    r = r - n * _LN2_LOW
    e = (_ONE + r) + (r * r) * (_E5 + r * (_E4 + r * (_E3 + r * (_E2 + r * (_E1 + r * _E0)))))
    # Multiply by two powers of two, because a single power would overflow or underflow before e**x does.
    power = np.int32(rounded.view(np.int32) - _ROUND_EVEN_BITS)
    half = np.int32(power >> np.int32(1))
    first = np.int32((half + _BIAS) << np.int32(23)).view(np.float32)
    second = np.int32((power - half + _BIAS) << np.int32(23)).view(np.float32)
    return e * first * second


@body
def log_float32(x):
    """Return the natural logarithm of a float32, within 2 units in the last place; NaN if x is negative."""
    tiny = x < _SMALLEST_NORMAL
    scaled = np.float32(x * (_TWO_23 if tiny else _ONE))  # is not subnormal, even if x is
    bits = np.int32(scaled.view(np.int32))
    # Choose a mantissa between sqrt(1/2) and sqrt(2), so that the logarithm is near 0 on both sides of 1.
    exponent = np.int32(np.int32(bits - _SQRT_HALF_BITS) >> np.int32(23))
    m = np.int32(bits - np.int32(exponent << np.int32(23))).view(np.float32) - _ONE
    n = np.float32(exponent) - (_TWENTY_THREE if tiny else np.float32(0))
    q = m * m
    y = ((_L0 * m + _L1) * m + _L2) * m + _L3
    y = ((((y * m + _L4) * m + _L5) * m + _L6) * m + _L7) * m + _L8
    y = m * q * y + n * _LN2_LOW
    y = m + (y - np.float32(0.5) * q) + n * _LN2_HIGH
    y = x if x == _INFINITY else y
    y = -_INFINITY if x == np.float32(0) else y
    return y if x >= np.float32(0) else _NAN


@traceable
def sigmoid(x: Any) -> Any:
    """Return 1 / (1 + e**-x).  It is not computed by tanh, which would lose all relative accuracy below -5.

    float64 is right to 3 units in the last place, or 0 below -709.78, where the power overflows.
    """
    return sigmoid_float32(x) if isinstance(x, np.float32) else 1 / (1 + _exp(-x))


@traceable
def tanh(x: Any) -> Any:
    """Return the hyperbolic tangent of x; float32 takes the rational approximation."""
    return tanh_float32(x) if isinstance(x, np.float32) else math.tanh(x)


@traceable
def exp(x: Any) -> Any:
    """Return e**x."""
    return exp_float32(x) if isinstance(x, np.float32) else _exp(x)


@traceable
def log(x: Any) -> Any:
    """Return the natural logarithm of x; -infinity if x is 0, NaN if x is negative."""
    if isinstance(x, np.float32):
        return log_float32(x)
    return math.log(x) if x > 0 else -math.inf if x == 0 else math.nan


@traceable
def sqrt(x: Any) -> Any:
    """Return the square root of x; NaN if x is negative."""
    return type(x)(math.sqrt(x)) if x >= 0 else type(x)(math.nan)


@traceable
def relu(x: Any) -> Any:
    """Return x if it is positive, else 0; NaN stays NaN, and -0 stays -0."""
    return _relu_body(x)


@traceable
def minimum(a: Any, b: Any) -> Any:
    """Return the smaller of two numbers."""
    return a if a <= b else b


@traceable
def maximum(a: Any, b: Any) -> Any:
    """Return the larger of two numbers."""
    return a if a >= b else b


@traceable
def where(condition: Any, a: Any, b: Any) -> Any:
    """Return `a` if the condition holds, otherwise `b`."""
    return a if condition else b


def clip(x: Any, low: float, high: float) -> Any:
    """Return x, or the bound that it exceeds; beyond the bounds, the gradient is 0."""
    return minimum(maximum(x, low), high)


@traceable
def constant(x: Any) -> Any:
    """Return x, through which no gradient passes."""
    return x


@traceable
def multiply_add(a: Any, b: Any, c: Any) -> Any:
    """Return a b + c, rounded once if the machine can, so that the compiler does not choose whether to round a b."""
    return a * b + c


def _exp(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:  # only Python's math.exp raises; compiled code returns infinity
        return math.inf


def _relu_body(x):
    zero = type(x)(0)
    return zero if x < zero else x


def _of_type(for_float32, otherwise):
    """Return a function of an argument's type, which returns `for_float32` for float32, otherwise `otherwise`."""
    return lambda x: for_float32 if x == types.float32 else otherwise


@intrinsic
def _multiply_add_scalars(typing, a, b, c):
    def codegen(context, builder, signature, arguments):
        kind = arguments[0].type
        name = f"llvm.fmuladd.f{signature.return_type.bitwidth}"
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind] * 3), name)
        return builder.call(function, arguments)

    return a(a, a, a), codegen


overload(sigmoid)(_of_type(lambda x: sigmoid_float32(x), lambda x: 1 / (1 + math.exp(-x))))
overload(tanh)(_of_type(lambda x: tanh_float32(x), lambda x: math.tanh(x)))
overload(exp)(_of_type(lambda x: exp_float32(x), lambda x: math.exp(x)))
overload(log)(_of_type(lambda x: log_float32(x), lambda x: math.log(x)))
overload(sqrt)(lambda x: lambda x: math.sqrt(x))
overload(relu)(lambda x: _relu_body)
overload(minimum)(lambda a, b: lambda a, b: a if a <= b else b)
overload(maximum)(lambda a, b: lambda a, b: a if a >= b else b)
overload(where)(lambda condition, a, b: lambda condition, a, b: a if condition else b)
overload(clip)(lambda x, low, high: clip)
overload(constant)(lambda x: lambda x: x)
overload(multiply_add)(lambda a, b, c: lambda a, b, c: _multiply_add_scalars(a, b, c))
