"""The functions that operators compute; in float32, they are more accurate than the functions of cells, and slower.

| function | largest error in float32, in units in the last place | NumPy's or SciPy's on AVX-512 |
|---|---|---|
| `exp` | 0.75 | 2.37 |
| `tanh` | 1.26 | 1.36 |
| `sigmoid` | 1.42 | 2.39 |
| `expm1` | 1.40 | 2.48 |
| `log1p` | 1.30 | 1.89 |
| `log` of `activations` | 0.77 | 3.33 |

Sources: Cephes, `expf` and `tanhf`; Kahan, for the digits that `log1p` loses when it rounds 1 + x.
"""

import math

import numpy as np
from numba import types
from numba.extending import overload

from varlen_rnn.kernels import activations
from varlen_rnn.kernels.symbol import traceable
from varlen_rnn.runtime.jit import body

_ZERO, _HALF, _ONE, _TWO = np.float32(0), np.float32(0.5), np.float32(1), np.float32(2)
_LOG2_E, _LN2 = np.float32(1.44269504088896341), np.float32(0.693147180559945309)
_TANH_EDGE, _TANH_FAR = np.float32(0.625), np.float32(9.1)  # tanh is a polynomial below the first, 1 above the second
_T0, _T1, _T2 = np.float32(-5.70498872745e-3), np.float32(2.06390887954e-2), np.float32(-5.37397155531e-2)
_T3, _T4 = np.float32(1.33314422036e-1), np.float32(-3.33332819422e-1)
_TINY = np.float32(1e-7)

_LOG2_E_64, _ROUND_64 = 1.4426950408889634, 6755399441055744.0  # adding 1.5 * 2**52 rounds to an integer
_ROUND_BITS, _BIAS_64 = np.int64(np.float64(_ROUND_64).view(np.int64)), np.int64(1023)
_LN2_HIGH_64, _LN2_LOW_64 = 6.93147180369123816490e-1, 1.90821492927058770002e-10
_LOWEST_64, _HIGHEST_64 = -746.0, 710.0  # e**x is 0 below the first, infinite above the second
_R2, _R3, _R4, _R5, _R6, _R7 = (1 / math.factorial(k) for k in range(2, 8))  # of the Taylor series of e**r
_R8, _R9, _R10, _R11, _R12, _R13 = (1 / math.factorial(k) for k in range(8, 14))


@body
def _power_of_two(exponent):
    return np.int32((exponent + activations._BIAS) << np.int32(23)).view(np.float32)


@body
def _curve(r):
    """Return e**r - 1 - r of a float32 between -0.35 and 0.35."""
    a = activations
    return (r * r) * (a._E5 + r * (a._E4 + r * (a._E3 + r * (a._E2 + r * (a._E1 + r * a._E0)))))


@body
def _split(x):
    """Return r, its rounding error, m and n, with e**x = e**r 2**m 2**n; a single power of two could overflow."""
    x = activations._EXP_HIGHEST if x > activations._EXP_HIGHEST else x
    x = activations._EXP_LOWEST if x < activations._EXP_LOWEST else x
    rounded = np.float32(x * _LOG2_E + activations._ROUND_EVEN)
    number = rounded - activations._ROUND_EVEN
    high = x - number * activations._LN2_HIGH
    r = high - number * activations._LN2_LOW
    power = np.int32(rounded.view(np.int32) - activations._ROUND_EVEN_BITS)
    half = np.int32(power >> np.int32(1))
    return r, (high - r) - number * activations._LN2_LOW, half, np.int32(power - half)


@body
def exp_float32(x):
    """Return e**x; NaN stays NaN, an overflow gives infinity, and subnormal results are not rounded to 0."""
    r, lost, m, n = _split(x)
    e = _ONE + r
    return (e + (_curve(r) + ((r - (e - _ONE)) + lost))) * _power_of_two(m) * _power_of_two(n)


@body
def exp_float64(x):
    """Return e**x, within 0.75 units in the last place; NaN stays NaN, an overflow is infinite.

    It is a polynomial because the loops over it then vectorise, unlike loops that call the C library.
    """
    x = _HIGHEST_64 if x > _HIGHEST_64 else x
    x = _LOWEST_64 if x < _LOWEST_64 else x
    rounded = np.float64(x * _LOG2_E_64 + _ROUND_64)
    number = rounded - _ROUND_64
    high = x - number * _LN2_HIGH_64
    r = high - number * _LN2_LOW_64
    lost = (high - r) - number * _LN2_LOW_64
    tail = _R8 + r * (_R9 + r * (_R10 + r * (_R11 + r * (_R12 + r * _R13))))
    curve = (r * r) * (_R2 + r * (_R3 + r * (_R4 + r * (_R5 + r * (_R6 + r * (_R7 + r * tail))))))
    e = 1.0 + r
    power = np.int64(rounded.view(np.int64) - _ROUND_BITS)
    half = np.int64(power >> np.int64(1))
    first = np.int64((half + _BIAS_64) << np.int64(52)).view(np.float64)
    second = np.int64((power - half + _BIAS_64) << np.int64(52)).view(np.float64)
    return (e + (curve + ((r - (e - 1.0)) + lost))) * first * second


@body
def expm1_float32(x):
    """Return e**x - 1; no digits are lost near 0."""
    r, lost, m, n = _split(x)
    e, first = r + (_curve(r) + lost), _power_of_two(m)
    return math.copysign((e * first + (first - _power_of_two(-n))) * _power_of_two(n), x)


@body
def log1p_float32(x):
    """Return log(1 + x); no digits are lost near 0; -infinity if x is -1, NaN if x is less."""
    near = np.float32(_ONE + x)
    lost = (x - (near - _ONE)) / (near if near > _ZERO else _ONE)
    y = activations.log_float32(near) + lost
    y = x if abs(x) < _TINY else y
    return x if x == activations._INFINITY else y


@body
def sigmoid_float32(x):
    """Return 1 / (1 + e**-x), computed from e**-abs(x), which is at most 1, so that small results keep their digits."""
    e = exp_float32(-abs(x))
    part, total = e if x < _ZERO else _ONE, _ONE + e
    y = part / total
    left = (part - y * total) - y * (e - (total - _ONE))  # the last term undoes the rounding of `total`
    return y + left * (_ONE - _HALF * e)  # adds about left / total


@body
def tanh_float32(x):
    """Return the hyperbolic tangent: a polynomial near 0, elsewhere 1 - 2 / (e**2x + 1)."""
    a = abs(x)
    b = _TANH_FAR if a > _TANH_FAR else a
    rounded = np.float32(b * (_LOG2_E * _TWO) + activations._ROUND_EVEN)
    r = (b + b) - (rounded - activations._ROUND_EVEN) * _LN2
    e = np.float32(_ONE + (r + _curve(r)))
    power = np.int32(e.view(np.int32) + np.int32(rounded.view(np.int32) << np.int32(23))).view(np.float32)
    far, s = _ONE - _TWO / (power + _ONE), x * x
    near = a + (a * s) * (_T4 + s * (_T3 + s * (_T2 + s * (_T1 + s * _T0))))
    return math.copysign(near if a < _TANH_EDGE else far, x)


def _by_type(float32, otherwise):
    """Return a decorator for a function that equations call.

    For float32 arguments, the function is compiled from `float32`; for other types, it is compiled from `otherwise`.
    """

    def declare(function):
        overload(function)(lambda x: (lambda x: float32(x)) if x == types.float32 else (lambda x: otherwise(x)))
        return function

    return declare


@_by_type(exp_float32, exp_float64)
def exp(x):
    """Return e**x."""


@_by_type(expm1_float32, math.expm1)
@traceable
def expm1(x):
    """Return e**x - 1, which keeps its digits near 0."""
    return math.expm1(x)


@_by_type(log1p_float32, math.log1p)
@traceable
def log1p(x):
    """Return log(1 + x), which keeps its digits near 0."""
    return math.log1p(x)


@_by_type(sigmoid_float32, activations.sigmoid)
def sigmoid(x):
    """Return 1 / (1 + e**-x)."""


@_by_type(tanh_float32, activations.tanh)
def tanh(x):
    """Return the hyperbolic tangent of x."""
