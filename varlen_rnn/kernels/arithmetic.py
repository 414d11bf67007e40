"""Elementwise functions of arrays, whose operands broadcast as in NumPy.  `functions` says how accurate they are."""

import math

import numpy as np

from varlen_rnn.kernels import activations, functions
from varlen_rnn.kernels.elementwise import elementwise, loop_over, quiet
from varlen_rnn.runtime.device import zeros
from varlen_rnn.runtime.jit import body

add = elementwise(np.add)(lambda x, y: x + y)
subtract = elementwise(np.subtract)(lambda x, y: x - y)
multiply = elementwise(np.multiply)(lambda x, y: x * y)
divide = elementwise(quiet(np.divide))(lambda x, y: x / y)  # a division by 0 gives infinity or NaN
negative = elementwise(np.negative)(lambda x: -x)
absolute = elementwise(np.absolute)(lambda x: abs(x))
sqrt = elementwise(quiet(np.sqrt))(lambda x: math.sqrt(x))
exp = elementwise(np.exp, loop=True)(lambda x: functions.exp(x))
sign = elementwise(np.sign)(lambda x: type(x)((x > 0) - (x < 0)) if x == x else x)
log = elementwise(quiet(np.log), loop=True)(lambda x: functions.log(x))
tanh = elementwise(np.tanh, loop=True)(lambda x: functions.tanh(x))
expm1 = elementwise(np.expm1, loop=True)(lambda x: functions.expm1(x))
log1p = elementwise(np.log1p, loop=True)(lambda x: functions.log1p(x))


def _expit(x):
    from scipy import special  # imported here because it takes as long to import as this whole package

    return special.expit(x)


@elementwise(_expit, loop=True)
def sigmoid(x):
    """Return 1 / (1 + exp(-x))."""
    return functions.sigmoid(x)


@elementwise(lambda x: np.maximum(x, 0))
def relu(x):
    """Return `x` if it is positive, otherwise 0; NaN stays NaN."""
    return activations.relu(x)


@body
def _power(x, exponent):
    """Return `x` to the power of a number; for 0.5, the square root, as in NumPy: `pow` differs at -inf and -0."""
    return math.sqrt(x) if exponent == type(x)(0.5) else math.pow(x, exponent)


_any_power = loop_over("any_power", ("x", "y"), lambda: lambda x, y: functions.power(x, y), 1, np.power)
_BY_NUMPY = (0.5, 1, 2, -1)  # exponents at which NumPy calls functions whose bits IEEE 754 fixes


@quiet
def _power_on_host(x, exponent):
    """Compute a power; small whole ones are products."""
    if exponent in (3, 4):
        square = x * x
        return square * x if exponent == 3 else square * square
    return x**exponent if exponent in _BY_NUMPY else _any_power(x, exponent)


@elementwise(_power_on_host, numbers=1)
def power(x, exponent):
    """Return `x` to the power of a number."""
    return _power(x, exponent)


@quiet
def _power_grad(x, d_y, exponent):
    if exponent == 0:  # the formula below would multiply 0 by infinity for an element of 0
        return zeros(d_y.shape, d_y)
    return d_y * x.dtype.type(exponent) * _power_on_host(x, exponent - 1)


@elementwise(_power_grad, numbers=1)
def power_grad(x, d_y, exponent):
    """Return the gradient of `power`."""
    zero, one = type(x)(0), type(x)(1)
    return zero if exponent == zero else d_y * exponent * _power(x, exponent - one)


less = elementwise(np.less, dtype=np.bool_)(lambda x, y: x < y)
less_equal = elementwise(np.less_equal, dtype=np.bool_)(lambda x, y: x <= y)
greater = elementwise(np.greater, dtype=np.bool_)(lambda x, y: x > y)
greater_equal = elementwise(np.greater_equal, dtype=np.bool_)(lambda x, y: x >= y)
equal = elementwise(np.equal, dtype=np.bool_)(lambda x, y: x == y)
not_equal = elementwise(np.not_equal, dtype=np.bool_)(lambda x, y: x != y)
logical_and = elementwise(np.logical_and)(lambda x, y: x and y)
logical_or = elementwise(np.logical_or)(lambda x, y: x or y)
logical_not = elementwise(np.logical_not)(lambda x: not x)
where = elementwise(np.where)(lambda condition, x, y: x if condition else y)
# `maximum` and `minimum` return NaN if one of the two elements is NaN.
maximum = elementwise(np.maximum)(lambda x, y: x if x > y or x != x else y)
minimum = elementwise(np.minimum)(lambda x, y: x if x < y or x != x else y)


@elementwise(lambda x, y, share: (x == y) * share)
def share_of_equal(x, y, share):
    """Return the share if two elements are equal, otherwise 0 * share: 0, or NaN if the share is not finite."""
    return share if x == y else type(share)(0) * share


@elementwise(lambda gradient, param, decay: gradient + decay * param, numbers=1)
def decayed(gradient, param, decay):
    """Return a gradient plus the weight decay times the parameter."""
    return gradient + decay * param
