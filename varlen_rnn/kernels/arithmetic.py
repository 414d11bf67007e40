"""Arithmetic, comparisons and choices, element by element; operands broadcast as in NumPy."""

import math

import numpy as np

from varlen_rnn.kernels import activations
from varlen_rnn.kernels.elementwise import elementwise, quiet
from varlen_rnn.runtime.jit import body


@elementwise(np.add)
def add(x, y):
    """Return `x + y`."""
    return x + y


@elementwise(np.subtract)
def subtract(x, y):
    """Return `x - y`."""
    return x - y


@elementwise(np.multiply)
def multiply(x, y):
    """Return `x * y`."""
    return x * y


def _divide(x, y):
    with np.errstate(divide="ignore", invalid="ignore"):
        return x / y


@elementwise(_divide)
def divide(x, y):
    """Return `x / y`; a division by 0 gives infinity or NaN, without a warning."""
    return x / y


@elementwise(np.negative)
def negative(x):
    """Return `-x`."""
    return -x


@elementwise(np.abs)
def absolute(x):
    """Return the absolute value of `x`."""
    return abs(x)


@elementwise(lambda x, d_y: d_y * np.sign(x))
def absolute_grad(x, d_y):
    """Return the gradient of `absolute`, 0 where `x` is 0."""
    zero = type(x)(0)
    return d_y if x > zero else -d_y if x < zero else d_y * x


@elementwise(quiet(np.sqrt))
def sqrt(x):
    """Return the square root of `x`, or NaN if it is negative."""
    return math.sqrt(x)


@elementwise(quiet(lambda y, d_y: d_y / (y + y)))
def sqrt_grad(y, d_y):
    """Return the gradient of `sqrt` from its result."""
    return d_y / (y + y)


@elementwise(np.exp)
def exp(x):
    """Return e to the power of `x`."""
    return activations.exp(x)


@elementwise(quiet(np.log))
def log(x):
    """Return the natural logarithm of `x`: minus infinity of 0, NaN of a negative number."""
    return activations.log(x)


@body
def _power(x, exponent):
    """Return `x` to the power of a number; of 0.5 its root, as NumPy does, which differs for -inf and -0."""
    return math.sqrt(x) if exponent == type(x)(0.5) else math.pow(x, exponent)


@elementwise(quiet(lambda x, exponent: x**exponent), numbers=1)
def power(x, exponent):
    """Return `x` to the power of a number."""
    return _power(x, exponent)


@quiet
def _power_grad(x, d_y, exponent):
    if exponent == 0:  # the formula below would multiply 0 by infinity for an element of 0
        return np.zeros_like(d_y)
    return d_y * x.dtype.type(exponent) * x ** (exponent - 1)


@elementwise(_power_grad, numbers=1)
def power_grad(x, d_y, exponent):
    """Return the gradient of `power`."""
    zero, one = type(x)(0), type(x)(1)
    return zero if exponent == zero else d_y * exponent * _power(x, exponent - one)


# Comparisons.


@elementwise(np.less, dtype=np.bool_)
def less(x, y):
    """Return whether `x < y`."""
    return x < y


@elementwise(np.less_equal, dtype=np.bool_)
def less_equal(x, y):
    """Return whether `x <= y`."""
    return x <= y


@elementwise(np.greater, dtype=np.bool_)
def greater(x, y):
    """Return whether `x > y`."""
    return x > y


@elementwise(np.greater_equal, dtype=np.bool_)
def greater_equal(x, y):
    """Return whether `x >= y`."""
    return x >= y


@elementwise(np.equal, dtype=np.bool_)
def equal(x, y):
    """Return whether `x == y`."""
    return x == y


@elementwise(np.not_equal, dtype=np.bool_)
def not_equal(x, y):
    """Return whether `x != y`."""
    return x != y


@elementwise(np.logical_and)
def logical_and(x, y):
    """Return whether two bools are both true."""
    return x and y


@elementwise(np.logical_or)
def logical_or(x, y):
    """Return whether one of two bools is true, or both."""
    return x or y


@elementwise(np.logical_not)
def logical_not(x):
    """Return whether a bool is false."""
    return not x


# Choices.


@elementwise(np.where)
def where(condition, x, y):
    """Return `x` where the condition is true, otherwise `y`."""
    return x if condition else y


@elementwise(np.maximum)
def maximum(x, y):
    """Return the larger of two elements, or NaN if one is NaN."""
    return x if x > y or x != x else y


@elementwise(np.minimum)
def minimum(x, y):
    """Return the smaller of two elements, or NaN if one is NaN."""
    return x if x < y or x != x else y


# Gradients that several operators share.


@elementwise(lambda x, y, share: (x == y) * share)
def share_of_equal(x, y, share):
    """Return the share where two elements are equal, otherwise 0 times the share."""
    return share if x == y else type(share)(0) * share


@elementwise(lambda gradient, param, decay: gradient + decay * param, numbers=1)
def decayed(gradient, param, decay):
    """Return a gradient plus the weight decay times the parameter."""
    return gradient + decay * param
