"""sigmoid, tanh and relu as bodies: they inline into CPU loops, where they vectorise, and into CUDA kernels.

float32 takes a polynomial exponential and a rational tangent, which vectorise and are right to a few units in the last
place; float64 takes the C library's, for there accuracy is the point.

Sources: the exponential splits -x = n ln 2 - r and evaluates a minimax polynomial in r (Cephes, `expf`); the
hyperbolic tangent is the rational minimax approximation on [-7.9, 7.9] that Eigen uses (`generic_fast_tanh_float`).
"""

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from varlen_rnn.jit import body

_LOWEST, _HIGHEST = np.float32(-88.72283), np.float32(87.33654)
_MINUS_LOG2_E = np.float32(-1.44269504088896341)
# 1.5 * 2**23: adding and subtracting it rounds to an integer.  127 more: the sum's low bits are the exponent of 2**n.
_ROUND = np.float32(12582912 + 127)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_E0, _E1, _E2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
_E3, _E4, _E5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
_ONE = np.float32(1)

_TANH_EDGE = np.float32(7.90531110763549805**2)  # the square of where the approximation ends, just below 1
_T0, _T1, _T2 = np.float32(-2.76076847742355e-16), np.float32(2.00018790482477e-13), np.float32(-8.60467152213735e-11)
_T3, _T4, _T5 = np.float32(5.12229709037114e-08), np.float32(1.48572235717979e-05), np.float32(6.37261928875436e-04)
_T6, _Q0, _Q1 = np.float32(4.89352455891786e-03), np.float32(1.19825839466702e-06), np.float32(1.18534705686654e-04)
_Q2, _Q3 = np.float32(2.26843463243900e-03), np.float32(4.89352518554385e-03)


@body
def sigmoid_float32(x):
    """Return 1 / (1 + e**-x) of a float32, within 4 units in the last place; NaN stays NaN.

    It is 0 below -88.376, where it would be subnormal, and 1 from 16.64 on.  As x grows, it falls nowhere by more than
    2 units.
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

    Of numbers below 2.4e-36 it is right to 4e-43 instead.  As x grows, it falls nowhere by more than 8 units, and
    nowhere at all beyond 7.90532.
    """
    s = x * x
    s = _TANH_EDGE if s > _TANH_EDGE else s
    q = s * s
    p = (_T6 + _T5 * s) + q * ((_T4 + _T3 * s) + q * ((_T2 + _T1 * s) + q * _T0))
    y = x * p / ((_Q3 + _Q2 * s) + q * (_Q1 + _Q0 * s))
    # Beyond the edge, y grows with x alone, so that it passes 1 at once: that takes no comparison with x.
    y = _ONE if y > _ONE else y
    return -_ONE if y < -_ONE else y


def sigmoid(x: Any) -> Any:
    """Return 1 / (1 + e**-x): not through tanh, which loses all relative accuracy below -5.

    float64 is right to 3 units in the last place, or 0 below -709.78, where the power overflows.
    """
    return sigmoid_float32(x) if isinstance(x, np.float32) else 1 / (1 + math.exp(-x))


def tanh(x: Any) -> Any:
    """Return the hyperbolic tangent of x; float32 takes the rational approximation."""
    return tanh_float32(x) if isinstance(x, np.float32) else math.tanh(x)


@overload(sigmoid)
def _sigmoid(x):
    return (lambda x: sigmoid_float32(x)) if x == types.float32 else (lambda x: 1 / (1 + math.exp(-x)))


@overload(tanh)
def _tanh(x):
    return (lambda x: tanh_float32(x)) if x == types.float32 else (lambda x: math.tanh(x))


def relu(x: Any) -> Any:
    """Return x where it is positive, else 0; NaN and -0 stay what they are."""
    zero = type(x)(0)
    return zero if x < zero else x


@overload(relu)
def _relu(x: Any) -> Any:
    return relu


def multiply_add(a: Any, b: Any, c: Any) -> Any:
    """Return a b + c, rounded once where the machine can: of two products, the compiler would choose which to round."""
    return a * b + c


@intrinsic
def _multiply_add_scalars(typing, a, b, c):
    def codegen(context, builder, signature, arguments):
        kind = arguments[0].type
        name = f"llvm.fmuladd.f{signature.return_type.bitwidth}"
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind] * 3), name)
        return builder.call(function, arguments)

    return a(a, a, a), codegen


@overload(multiply_add)
def _multiply_add(a, b, c):
    return lambda a, b, c: _multiply_add_scalars(a, b, c)
