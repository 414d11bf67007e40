"""The functions that operators compute; in float32, they are more accurate than the functions of cells, and slower.

Loops over them vectorise, and have the same bits on any processor.  Their largest errors, in units in the last place:

| function | float32 | NumPy's or SciPy's on AVX-512 | float64 | NumPy's or SciPy's on AVX-512 |
|---|---|---|---|---|
| `exp` | 0.75 | 2.37 | 0.75 | 0.71 |
| `tanh` | 1.26 | 1.36 | 1.4 | 1.2 |
| `sigmoid` | 1.42 | 2.39 | 1.5 | 2.0 |
| `expm1` | 1.40 | 2.48 | 1.6 | 0.6 |
| `log1p` | 1.30 | 1.89 | 1.2 | 0.7 |
| `log` | 0.77 | 3.33 | 0.9 | 0.7 |
| `power` | 0.51 | | 1.3 | |

Sources: Cephes, `expf`, `tanhf`, `tanh` and `ndtr`; fdlibm, `log` and the halves of numbers in `pow`; Kahan, for the
digits that `log1p` loses when it rounds 1 + x.
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

DENSITY = 1 / math.sqrt(2 * math.pi)  # the probability density of a standard normal number at 0
FAR = 40.0  # beyond, the distribution function of a standard normal number is exactly 0 or 1

_LOG2_E_64, _ROUND_64 = 1.4426950408889634, 6755399441055744.0  # adding 1.5 * 2**52 rounds to an integer
_ROUND_BITS, _BIAS_64 = np.int64(np.float64(_ROUND_64).view(np.int64)), np.int64(1023)
_LN2_HIGH_64, _LN2_LOW_64 = 6.93147180369123816490e-1, 1.90821492927058770002e-10
_LOWEST_64, _HIGHEST_64 = -746.0, 710.0  # e**x is 0 below the first, infinite above the second
_R2, _R3, _R4, _R5, _R6, _R7 = (1 / math.factorial(k) for k in range(2, 8))  # of the Taylor series of e**r
_R8, _R9, _R10, _R11, _R12, _R13 = (1 / math.factorial(k) for k in range(8, 14))

_SMALLEST_NORMAL_64, _TWO_54 = 2.2250738585072014e-308, 18014398509481984.0
_SQRT_HALF_BITS_64 = np.int64(np.float64(math.sqrt(0.5)).view(np.int64))
_L1, _L3, _L5, _L7 = (
    6.666666666666735130e-01,
    2.857142874366239149e-01,
    1.818357216161805012e-01,
    1.479819860511658591e-01,
)
_L2, _L4, _L6 = 3.999999999940941908e-01, 2.222219843214978396e-01, 1.531383769920937332e-01
_TINY_64, _TANH_EDGE_64, _TANH_FAR_64 = 1e-16, 0.625, 20.0
_HEAD = np.int64(-(2**27))  # the bits of a number's first half, 26 digits: products of two halves are exact
_LN2_64, _LN2_HEAD, _LN2_TAIL = math.log(2), 0.6931471675634384, 1.2996506893889889e-08
_TO_LOG2, _TO_LOG2_HEAD, _TO_LOG2_TAIL = 0.9617966939259756, 0.9617966860532761, 7.872699542894897e-09  # 2 / (3 ln 2)
_LOWEST_2, _HIGHEST_2 = -1080.0, 1026.0  # 2**x is 0 below the first, infinite above the second
_ATANH = tuple(3 / (2 * k + 5) for k in reversed(range(10)))  # of the Taylor series of 3 atanh(s) / s - 3 - s^2, by s^4
_HUGE_EXPONENT = 1e30  # a power of any other number than 0, 1 and -1 is infinite or 0
_P0, _P1, _P2 = -9.64399179425052238628e-1, -9.92877231001918586564e1, -1.61468768441708447952e3
_Q0, _Q1, _Q2 = 1.12811678491632931402e2, 2.23548839060100448583e3, 4.84406305325125486048e3

# The error function: near 0, x T(x^2) / U(x^2); its complement is e**-x^2 P(x) / Q(x), or R(x) / S(x) from 8 on.
_T = 9.60497373987051638749e0, 9.00260197203842689217e1, 2.23200534594684319226e3
_T += 7.00332514112805075473e3, 5.55923013010394962768e4
_U = 1.0, 3.35617141647503099647e1, 5.21357949780152679795e2, 4.59432382970980127987e3
_U += 2.26290000613890934246e4, 4.92673942608635921086e4
_P = 2.46196981473530512524e-10, 5.64189564831068821977e-1, 7.46321056442269912687e0, 4.86371970985681366614e1
_P += 1.96520832956077098242e2, 5.26445194995477358631e2, 9.34528527171957607540e2, 1.02755188689515710272e3
_P += (5.57535335369399327526e2,)
_Q = 1.0, 1.32281951154744992508e1, 8.67072140885989742329e1, 3.54937778887819891062e2, 9.75708501743205489753e2
_Q += 1.82390916687909736289e3, 2.24633760818710981792e3, 1.65666309194161350182e3, 5.57535340817727675546e2
_R = 5.64189583547755073984e-1, 1.27536670759978104416e0, 5.01905042251180477414e0, 6.16021097993053585195e0
_R += 7.40974269950448939160e0, 2.97886665372100240670e0
_S = 1.0, 2.26052863220117276590e0, 9.39603524938001434673e0, 1.20489539808096656605e1, 1.70814450747565897222e1
_S += 9.60896809063285878198e0, 3.36907645100081516050e0
_SQRT_HALF = math.sqrt(0.5)


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


# The same functions of float64.


@body
def _power_of_two_64(exponent):
    return np.int64((exponent + _BIAS_64) << np.int64(52)).view(np.float64)


@body
def _curve_64(r):
    tail = _R8 + r * (_R9 + r * (_R10 + r * (_R11 + r * (_R12 + r * _R13))))
    return (r * r) * (_R2 + r * (_R3 + r * (_R4 + r * (_R5 + r * (_R6 + r * (_R7 + r * tail))))))


@body
def _split_64(x):
    x = _HIGHEST_64 if x > _HIGHEST_64 else x
    x = _LOWEST_64 if x < _LOWEST_64 else x
    rounded = np.float64(x * _LOG2_E_64 + _ROUND_64)
    number = rounded - _ROUND_64
    high = x - number * _LN2_HIGH_64
    r = high - number * _LN2_LOW_64
    power = np.int64(rounded.view(np.int64) - _ROUND_BITS)
    half = np.int64(power >> np.int64(1))
    return r, (high - r) - number * _LN2_LOW_64, half, np.int64(power - half)


@body
def exp_float64(x):
    """Return e**x; NaN stays NaN, an overflow gives infinity, and subnormal results are not rounded to 0."""
    r, lost, m, n = _split_64(x)
    e = 1.0 + r
    return (e + (_curve_64(r) + ((r - (e - 1.0)) + lost))) * _power_of_two_64(m) * _power_of_two_64(n)


@body
def expm1_float64(x):
    """Return e**x - 1; no digits are lost near 0."""
    r, lost, m, n = _split_64(x)
    e, first = r + (_curve_64(r) + lost), _power_of_two_64(m)
    return math.copysign((e * first + (first - _power_of_two_64(-n))) * _power_of_two_64(n), x)


@body
def log_float64(x):
    """Return the natural logarithm; minus infinity if x is 0, NaN if x is negative."""
    tiny = x < _SMALLEST_NORMAL_64
    scaled = np.float64(x * (_TWO_54 if tiny else 1.0))  # is not subnormal, even if x is
    bits = np.int64(scaled.view(np.int64))
    # Choose a mantissa between sqrt(1/2) and sqrt(2), so that the logarithm is near 0 on both sides of 1.
    exponent = np.int64(np.int64(bits - _SQRT_HALF_BITS_64) >> np.int64(52))
    m = np.int64(bits - np.int64(exponent << np.int64(52))).view(np.float64) - 1.0
    n = np.float64(exponent) - (54.0 if tiny else 0.0)
    s, half = m / (2.0 + m), 0.5 * m * m
    z = s * s
    w = z * z
    y = z * (_L1 + w * (_L3 + w * (_L5 + w * _L7))) + w * (_L2 + w * (_L4 + w * _L6))
    y = n * _LN2_HIGH_64 - ((half - (s * (half + y) + n * _LN2_LOW_64)) - m)
    y = x if x == math.inf else y
    y = -math.inf if x == 0.0 else y
    return y if x >= 0.0 else math.nan


@body
def log1p_float64(x):
    """Return log(1 + x); no digits are lost near 0; -infinity if x is -1, NaN if x is less."""
    near = np.float64(1.0 + x)
    lost = (x - (near - 1.0)) / (near if near > 0.0 else 1.0)
    y = log_float64(near) + lost
    y = x if abs(x) < _TINY_64 else y
    return x if x == math.inf else y


@body
def sigmoid_float64(x):
    """Return 1 / (1 + e**-x), computed as `sigmoid_float32` computes it."""
    e = exp_float64(-abs(x))
    part, total = e if x < 0.0 else 1.0, 1.0 + e
    y = part / total
    left = (part - y * total) - y * (e - (total - 1.0))
    return y + left * (1.0 - 0.5 * e)


@body
def tanh_float64(x):
    """Return the hyperbolic tangent: a rational function near 0, elsewhere 1 - 2 / (e**2x + 1)."""
    a, s = abs(x), x * x
    b = _TANH_FAR_64 if a > _TANH_FAR_64 else a
    far = 1.0 - 2.0 / (exp_float64(b + b) + 1.0)
    near = a + a * (s * (((_P0 * s + _P1) * s + _P2) / (((s + _Q0) * s + _Q1) * s + _Q2)))
    return math.copysign(near if a < _TANH_EDGE_64 else far, x)


@body
def _polynomial(x, coefficients):
    total = coefficients[0]
    for k in range(1, len(coefficients)):
        total = total * x + coefficients[k]
    return total


@body
def _head(x):
    """Return a number of the first 26 digits of a float64."""
    return np.int64(np.float64(x).view(np.int64) & _HEAD).view(np.float64)


@body
def _log2_64(a):
    """Return the logarithm to base 2 of a positive number, as a sum of a number of 26 digits and a small number.

    It is the exponent, plus log2(m) = 2 atanh(s) / ln 2 with s = (m - 1) / (m + 1).
    """
    tiny = a < _SMALLEST_NORMAL_64
    bits = np.int64(np.float64(a * (_TWO_54 if tiny else 1.0)).view(np.int64))
    exponent = np.int64(np.int64(bits - _SQRT_HALF_BITS_64) >> np.int64(52))
    f = np.int64(bits - np.int64(exponent << np.int64(52))).view(np.float64) - 1.0
    n = np.float64(exponent) - (54.0 if tiny else 0.0)
    d = 2.0 + f
    s, d_head = f / d, _head(d)
    s_head = _head(s)
    s_tail = ((f - s_head * d_head) - s_head * (f - (d_head - 2.0))) / d
    z, square = s * s, s_head * s_head
    r = z * z * _polynomial(z, _ATANH) + s_tail * (s_head + s)
    t_head = _head(3.0 + square + r)
    t_tail = r - ((t_head - 3.0) - square)
    high, low = s_head * t_head, s_tail * t_head + t_tail * s  # 3 atanh(s)
    head = _head(high + low)
    high, low = _TO_LOG2_HEAD * head, _TO_LOG2_TAIL * head + (low - (head - high)) * _TO_LOG2
    head = _head(n + (high + low))
    return head, low - ((head - n) - high)


@body
def _two_to_64(high, low):
    """Return 2**(high + low), where `high` has at most 52 digits and `low` is small."""
    total = high + low
    high, low = (_HIGHEST_2, 0.0) if total > _HIGHEST_2 else (high, low)
    high, low = (_LOWEST_2, 0.0) if total < _LOWEST_2 else (high, low)
    rounded = np.float64((high + low) + _ROUND_64)
    rest = high - (rounded - _ROUND_64)
    head = _head(rest + low)
    first, second = head * _LN2_HEAD, head * _LN2_TAIL + (low - (head - rest)) * _LN2_64
    r = first + second
    e, power = 1.0 + r, np.int64(rounded.view(np.int64) - _ROUND_BITS)
    lost, half = (r - (e - 1.0)) + (second - (r - first)), np.int64(power >> np.int64(1))
    return (e + (_curve_64(r) + lost)) * _power_of_two_64(half) * _power_of_two_64(np.int64(power - half))


@body
def _at_the_edges(x, y, found):
    """Return x**y, given abs(x)**y, with the signs, infinities and NaN of C's `pow`."""
    a, whole = abs(x), np.floor(y) == y
    ends = math.inf if (a == math.inf) == (y > 0.0) else 0.0
    found = ends if a == 0.0 or a == math.inf else 1.0 if a == 1.0 else found
    found = math.copysign(found, x) if whole and np.floor(0.5 * y) != 0.5 * y else found
    found = math.nan if x != x or y != y or (x < 0.0 and a != math.inf and not whole) else found
    return 1.0 if x == 1.0 or y == 0.0 else found


@body
def power_float32(x, y):
    """Return x**y, computed in float64."""
    x, y = np.float64(x), np.float64(y)
    return np.float32(_at_the_edges(x, y, exp_float64(y * log_float64(abs(x)))))


@body
def power_float64(x, y):
    """Return x**y, from a logarithm of 64 digits, because large exponents multiply its error."""
    exponent = _HUGE_EXPONENT if y > _HUGE_EXPONENT else y
    exponent = -_HUGE_EXPONENT if exponent < -_HUGE_EXPONENT else exponent
    (head, tail), first = _log2_64(abs(x)), _head(exponent)
    return _at_the_edges(x, y, _two_to_64(first * head, (exponent - first) * head + exponent * tail))


@body
def normal_float64(x):
    """Return the probability that a standard normal number is less than `x`; NaN if `x` is infinite."""
    z = abs(x) * _SQRT_HALF
    square = z * z
    near = z * _polynomial(square, _T) / _polynomial(square, _U)
    is_far = z >= 8.0
    above = _polynomial(z, _R) if is_far else _polynomial(z, _P)
    below = _polynomial(z, _S) if is_far else _polynomial(z, _Q)
    tail = 0.5 * (exp_float64(-square) * above / below)
    tail = 0.5 - 0.5 * near if z < 1.0 else tail
    return 1.0 - tail if x > 0.0 else tail


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


@_by_type(expm1_float32, expm1_float64)
@traceable
def expm1(x):
    """Return e**x - 1, which keeps its digits near 0."""
    return math.expm1(x)


@_by_type(log1p_float32, log1p_float64)
@traceable
def log1p(x):
    """Return log(1 + x), which keeps its digits near 0."""
    return math.log1p(x)


@_by_type(activations.log_float32, log_float64)
def log(x):
    """Return the natural logarithm; minus infinity if x is 0, NaN if x is negative."""


@_by_type(sigmoid_float32, sigmoid_float64)
def sigmoid(x):
    """Return 1 / (1 + e**-x)."""


@_by_type(tanh_float32, tanh_float64)
def tanh(x):
    """Return the hyperbolic tangent of x."""


def power(x, exponent):
    """Return `x` to the power of a number."""


@overload(power)
def _power(x, exponent):
    if x == types.float32:
        return lambda x, exponent: power_float32(x, exponent)
    return lambda x, exponent: power_float64(x, exponent)


@body
def _near(x):
    wide = np.float64(x)
    return FAR if wide > FAR else -FAR if wide < -FAR else wide


def gelu_by_float64(x):
    """Return `x` times the probability, computed in float64, that a standard normal number is less than `x`."""
    return x * type(x)(normal_float64(_near(x)))


def gelu_grad_by_float64(x, d_y):
    """Return the gradient of `gelu_by_float64`."""
    near = _near(x)
    slope = normal_float64(near) + near * (exp_float64(-0.5 * (near * near)) * DENSITY)
    return d_y * type(x)(slope)
