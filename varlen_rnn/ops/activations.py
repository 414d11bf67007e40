"""Activations (`kernels.curves`).  They are row-wise, so the result keeps the LoD."""

import math

import numpy as np

from varlen_rnn.errors import IN_PLACE, OutOfRangeError, check_choice, hinting
from varlen_rnn.kernels import activations as kernels
from varlen_rnn.kernels import curves
from varlen_rnn.ops.elementwise import unary, unary_backward
from varlen_rnn.ops.examples import rows
from varlen_rnn.tape.checks import check_float
from varlen_rnn.tape.declare import operator


@unary(scalar=np.tanh, ufunc=np.tanh, onnx="Tanh")
def tanh(x):
    """Return the hyperbolic tangent of every element."""
    return x.like(curves.tanh(x.data))


@unary_backward(tanh)
def _tanh_grad(x, y, d_y):
    return x.like(curves.tanh_grad(y.data, d_y.data))


@unary(scalar=kernels.sigmoid, onnx="Sigmoid")
def sigmoid(x):
    """Return 1 / (1 + exp(-x)) of every element."""
    return x.like(curves.sigmoid(x.data))


@unary_backward(sigmoid)
def _sigmoid_grad(x, y, d_y):
    return x.like(curves.sigmoid_grad(y.data, d_y.data))


@unary(scalar=kernels.relu, onnx="Relu")
def relu(x):
    """Return every element if it is positive, otherwise 0."""
    return x.like(curves.relu(x.data))


@unary_backward(relu)
def _relu_grad(x, y, d_y):
    return x.like(curves.relu_grad(x.data, d_y.data))


@unary(scalar=lambda x: x * kernels.sigmoid(x))
def silu(x):
    """Return `x * sigmoid(x)` of every element; this function is also called swish."""
    return x.like(curves.silu(x.data))


@unary_backward(silu)
def _silu_grad(x, y, d_y):
    return x.like(curves.silu_grad(x.data, y.data, d_y.data))


# Operators with constants.  They are declared by `operator`, because `unary` tries one example without constants.


@operator(rows="each", scalar=lambda x, alpha: kernels.where(x > 0, x, alpha * x), onnx="LeakyRelu")
def leaky_relu(x, alpha: float):
    """Return every element if it is positive, otherwise `alpha` times the element."""
    return x.like(curves.leaky_relu(x.data, alpha))


@leaky_relu.backward("x", aliases={"d_y": "d_out"})
def _leaky_relu_grad(x, d_y, alpha):
    return x.like(curves.leaky_relu_grad(x.data, d_y.data, alpha))


_NEAR = 1 / 64  # of smaller numbers, e**x - 1 and log(1 + x) would lose digits: series of ten terms have them all


def _exp_less_one(x):
    """Return `e**x - 1` of a scalar of at most 0."""
    series = 1.0
    for k in range(10, 1, -1):
        series = series * x / k + 1.0
    return kernels.where(x > -_NEAR, x * series, kernels.exp(x) - 1)


def _log_one_more(x):
    """Return `log(1 + x)` of a scalar of at least 0."""
    series = 0.1
    for k in range(9, 0, -1):
        series = 1 / k - series * x
    return kernels.where(x < _NEAR, x * series, kernels.log(1 + x))


def _elu(x, alpha):
    return kernels.where(x > 0, x, alpha * _exp_less_one(kernels.minimum(x, 0)))


@operator(rows="each", scalar=_elu, onnx="Elu")
def elu(x, alpha: float = 1.0):
    """Return every element if it is positive, otherwise `alpha (e**x - 1)`.

    Source: Clevert, Unterthiner and Hochreiter (2016), in the form of `torch.nn.functional.elu`.

    Examples
    --------
    >>> elu([-1.0, 2.0]).numpy().round(4)
    array([-0.6321,  2.    ])
    """
    return x.like(curves.elu(x.data, alpha))


@elu.backward("x", aliases={"d_y": "d_out"})
def _elu_grad(x, d_y, alpha):
    return x.like(curves.elu_grad(x.data, d_y.data, alpha))


def _softplus(x, beta, threshold):
    z = beta * x
    curve = kernels.maximum(z, 0) + _log_one_more(kernels.exp(-abs(z)))
    return curve / beta if threshold == math.inf else kernels.where(z > threshold, x, curve / beta)


@operator(rows="each", scalar=_softplus)
def softplus(x, beta: float = 1.0, threshold: float = 20.0):
    """Return `log(1 + exp(beta x)) / beta` of every element, or the element where `beta x` exceeds `threshold`.

    Parameters
    ----------
    x : Variable or array
        float32 or float64.
    beta : float
        More than 0.
    threshold : float

    Examples
    --------
    >>> softplus([0.0, 30.0]).numpy().round(4)
    array([ 0.6931, 30.    ])

    Source: the function and the defaults of `torch.nn.functional.softplus`.
    """
    return x.like(curves.softplus(x.data, beta, threshold))


@softplus.backward("x", aliases={"y": "out", "d_y": "d_out"})
def _softplus_grad(x, y, d_y, beta, threshold):
    return x.like(curves.softplus_grad(x.data, y.data, d_y.data, beta, threshold))


@leaky_relu.infer
@elu.infer
def _infer_with_alpha(x, alpha):
    check_float("an activation", x=x)
    return x


@softplus.infer
def _infer_softplus(x, beta, threshold):
    check_float("softplus", x=x)
    if not 0 < beta < math.inf or math.isnan(threshold):
        got = f"beta={beta}, threshold={threshold}"
        raise OutOfRangeError("softplus", expected="a finite beta above 0, and a threshold", got=got)
    return x


@leaky_relu.examples
@elu.examples
def _examples_with_alpha(rng):
    yield [rows(rng, 3)], {"alpha": 0.3}
    yield [rows(rng, 3)], {"alpha": -0.5}


@softplus.examples
def _examples_of_softplus(rng):
    yield [rows(rng, 3)], {"beta": 1.0, "threshold": 20.0}
    yield [rows(rng, 3)], {"beta": 2.5, "threshold": 1.0}
    yield [rows(rng, 3)], {"beta": 1.0, "threshold": math.inf}


@operator(rows="each")
def gelu(x, approximate: str = "none"):
    """Return x times the probability that a standard normal number is less than x, exactly or by a tanh formula.

    Source: Hendrycks and Gimpel (2016).  `approximate` takes the same values as in `torch.nn.functional.gelu`.
    """
    return x.like((curves.tanh_gelu if approximate == "tanh" else curves.gelu)(x.data))


@gelu.infer
def _infer_gelu(x, approximate):
    check_float("gelu", x=x)
    check_choice(approximate, "gelu, approximate", "none", "tanh")
    return x


@gelu.backward("x", aliases={"d_y": "d_out"})
def _gelu_grad(x, d_y, approximate):
    return x.like((curves.tanh_gelu_grad if approximate == "tanh" else curves.gelu_grad)(x.data, d_y.data))


@gelu.examples
def _examples_of_gelu(rng):
    for approximate in ("none", "tanh"):
        yield [rows(rng, 3)], {"approximate": approximate}


relu = hinting(inplace=IN_PLACE)(relu)
silu = hinting(inplace=IN_PLACE)(silu)
elu = hinting(inplace=IN_PLACE)(elu)
