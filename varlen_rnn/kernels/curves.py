"""Activations and losses of single elements, and their gradients.

On the host they are computed by NumPy and SciPy, on CUDA from the functions of `kernels.activations`.
"""

import math

import numpy as np

from varlen_rnn.kernels import activations
from varlen_rnn.kernels.elementwise import elementwise, quiet


def _expit(x):
    from scipy import special  # imported here because it takes as long to import as this whole package

    return special.expit(x)


@elementwise(np.tanh)
def tanh(x):
    """Return the hyperbolic tangent of `x`."""
    return activations.tanh(x)


@elementwise(lambda y, d_y: d_y * (1 - y * y))
def tanh_grad(y, d_y):
    """Return the gradient of `tanh` from its result."""
    return d_y * (type(y)(1) - y * y)


@elementwise(_expit)
def sigmoid(x):
    """Return 1 / (1 + exp(-x))."""
    return activations.sigmoid(x)


@elementwise(lambda y, d_y: d_y * y * (1 - y))
def sigmoid_grad(y, d_y):
    """Return the gradient of `sigmoid` from its result."""
    return d_y * y * (type(y)(1) - y)


@elementwise(lambda x: np.maximum(x, 0))
def relu(x):
    """Return `x` if it is positive, otherwise 0; NaN stays NaN."""
    return activations.relu(x)


@elementwise(lambda x, d_y: d_y * (x > 0))
def relu_grad(x, d_y):
    """Return the gradient of `relu`."""
    zero = type(x)(0)
    return d_y if x > zero else d_y * zero


@elementwise(quiet(lambda x: x * _expit(x)))  # minus infinity times 0 is NaN
def silu(x):
    """Return `x * sigmoid(x)`."""
    return x * activations.sigmoid(x)


def _silu_grad(x, y, d_y):
    gate = _expit(x)
    return d_y * (gate + y * (1 - gate))


@elementwise(_silu_grad)
def silu_grad(x, y, d_y):
    """Return the gradient of `silu`, from its operand and its result."""
    gate = activations.sigmoid(x)
    return d_y * (gate + y * (type(x)(1) - gate))


@elementwise(lambda x, alpha: np.where(x > 0, x, x * x.dtype.type(alpha)), numbers=1)
def leaky_relu(x, alpha):
    """Return `x` if it is positive, otherwise `alpha * x`."""
    return x if x > type(x)(0) else x * alpha


@elementwise(lambda x, d_y, alpha: np.where(x > 0, d_y, d_y * x.dtype.type(alpha)), numbers=1)
def leaky_relu_grad(x, d_y, alpha):
    """Return the gradient of `leaky_relu`."""
    return d_y if x > type(x)(0) else d_y * alpha


@elementwise(lambda x, alpha: np.where(x > 0, x, np.expm1(np.minimum(x, 0)) * x.dtype.type(alpha)), numbers=1)
def elu(x, alpha):
    """Return `x` if it is positive, otherwise `alpha (e**x - 1)`."""
    return x if x > type(x)(0) else math.expm1(x) * alpha


def _elu_grad(x, d_y, alpha):
    slope = np.exp(np.minimum(x, 0)) * x.dtype.type(alpha)
    return np.where(x > 0, d_y, d_y * slope)


@elementwise(_elu_grad, numbers=1)
def elu_grad(x, d_y, alpha):
    """Return the gradient of `elu`."""
    return d_y if x > type(x)(0) else d_y * (activations.exp(x) * alpha)


def _softplus(x, beta, threshold):
    z = x * x.dtype.type(beta)
    return np.where(z > threshold, x, np.logaddexp(z, 0, dtype=x.dtype) / x.dtype.type(beta))


@elementwise(_softplus, numbers=2)
def softplus(x, beta, threshold):
    """Return `log(1 + exp(beta x)) / beta`, or `x` where `beta x` exceeds the threshold."""
    zero, z = type(x)(0), x * beta
    return x if z > threshold else ((z if z > zero else zero) + math.log1p(activations.exp(-abs(z)))) / beta


def _softplus_grad(x, y, d_y, beta, threshold):
    beta = x.dtype.type(beta)
    return np.where(x * beta > threshold, d_y, d_y * -np.expm1(-y * beta))


@elementwise(_softplus_grad, numbers=2)
def softplus_grad(x, y, d_y, beta, threshold):
    """Return the gradient of `softplus`, from its operand and its result."""
    return d_y if x * beta > threshold else d_y * -math.expm1(-y * beta)


_ROOT_HALF = math.sqrt(0.5)
_DENSITY = 1 / math.sqrt(2 * math.pi)  # the probability density of a standard normal number at 0
_STEEPNESS, _CUBIC = math.sqrt(2 / math.pi), 0.044715
# `gelu` clips numbers to -40 and 40: beyond, the normal distribution function is exactly 0 or 1, and `x**3` in the
# tanh approximation might overflow.
_FAR = 40.0


def _near(x):
    return np.clip(x, -_FAR, _FAR)


def _normal(x):
    from scipy import special

    return special.ndtr(x)


def _nearly_normal(x):
    # It equals (1 + tanh u) / 2, but loses no digits if tanh u is almost -1.
    return _expit(2 * _STEEPNESS * (x + _CUBIC * (x * x * x)))


def _gelu_grad(x, d_y):
    near = _near(x)
    return d_y * (_normal(near) + near * (np.exp(-0.5 * (near * near)) * _DENSITY))


def _nearly_gelu_grad(x, d_y):
    near = _near(x)
    probability, square = _nearly_normal(near), near * near
    slope = 2 * probability * (1 - probability) * (_STEEPNESS * (1 + 3 * _CUBIC * square))
    return d_y * (probability + near * slope)


@elementwise(quiet(lambda x: x * _normal(_near(x))))  # minus infinity times 0 is NaN
def gelu(x):
    """Return `x` times the probability that a standard normal number is less than `x`."""
    return x * (type(x)(0.5) * math.erfc(-x * type(x)(_ROOT_HALF)))


@elementwise(_gelu_grad)
def gelu_grad(x, d_y):
    """Return the gradient of `gelu`."""
    half, far = type(x)(0.5), type(x)(_FAR)
    near = far if x > far else -far if x < -far else x
    probability = half * math.erfc(-near * type(x)(_ROOT_HALF))
    return d_y * (probability + near * (activations.exp(-half * (near * near)) * type(x)(_DENSITY)))


@elementwise(quiet(lambda x: x * _nearly_normal(_near(x))))
def tanh_gelu(x):
    """Return `gelu` of `x` by its approximation with tanh."""
    far = type(x)(_FAR)
    near = far if x > far else -far if x < -far else x
    return x * activations.sigmoid(type(x)(2 * _STEEPNESS) * (near + type(x)(_CUBIC) * (near * near * near)))


@elementwise(_nearly_gelu_grad)
def tanh_gelu_grad(x, d_y):
    """Return the gradient of `tanh_gelu`."""
    one, two, far = type(x)(1), type(x)(2), type(x)(_FAR)
    near = far if x > far else -far if x < -far else x
    square = near * near
    probability = activations.sigmoid(type(x)(2 * _STEEPNESS) * (near + type(x)(_CUBIC) * (square * near)))
    slope = two * probability * (one - probability) * (type(x)(_STEEPNESS) * (one + type(x)(3 * _CUBIC) * square))
    return d_y * (probability + near * slope)


# Losses.


@elementwise(lambda loss, gamma: (-np.expm1(-loss)) ** loss.dtype.type(gamma) * loss, numbers=1)
def focal(loss, gamma):
    """Return a cross entropy times `(1 - p) ** gamma`, where `p = exp(-loss)`."""
    return math.pow(-math.expm1(-loss), gamma) * loss


def _focal_grad(x, d_y, gamma):
    power = x.dtype.type(gamma)
    wrong = -np.expm1(-x)  # 1 - p, the probability of a wrong class
    with np.errstate(divide="ignore", invalid="ignore"):
        inner = np.where(wrong > 0, wrong ** (power - 1), 0) if gamma else np.zeros_like(x)
    return d_y * (wrong**power + power * inner * np.exp(-x) * x)


@elementwise(_focal_grad, numbers=1)
def focal_grad(x, d_y, gamma):
    """Return the gradient of `focal`."""
    zero, one, wrong = type(x)(0), type(x)(1), -math.expm1(-x)
    inner = math.pow(wrong, gamma - one) if wrong > zero and gamma != zero else zero
    return d_y * (math.pow(wrong, gamma) + gamma * inner * activations.exp(-x) * x)


# The form log(1 + exp(-|x|)) + max(x, 0) - x y never takes the exponential of a large number.
@elementwise(lambda x, y: np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0) - x * y)
def binary_cross_entropy(x, y):
    """Return the binary cross entropy of the logit `x` and the target `y`."""
    return math.log1p(activations.exp(-abs(x))) + activations.relu(x) - x * y


def _squared_error(x, target):
    difference = np.asarray(x - target)
    return difference * difference


@elementwise(_squared_error)
def squared_error(x, target):
    """Return the squared difference."""
    return (x - target) * (x - target)


def _huber(x, target, delta):
    distance = np.abs(x - target)
    near = np.minimum(distance, delta)
    return near * (distance - 0.5 * near)


@elementwise(_huber, numbers=1)
def huber(x, target, delta):
    """Return half the squared difference, which continues as a straight line beyond `delta`."""
    distance = abs(x - target)
    near = delta if distance > delta else distance
    return near * (distance - type(x)(0.5) * near)
