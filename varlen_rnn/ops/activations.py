"""Activations, declared by their equations.  They are elementwise, so the result keeps the LoD."""

import math

import numpy as np

from varlen_rnn.errors import IN_PLACE, OutOfRangeError, check_choice, hinting
from varlen_rnn.kernels import arithmetic, functions
from varlen_rnn.kernels.arithmetic import exp, expm1, log1p, maximum, minimum, where
from varlen_rnn.kernels.elementwise import elementwise, loop_over, quiet
from varlen_rnn.ops.elementwise import unary, unary_backward
from varlen_rnn.ops.equations import forward
from varlen_rnn.ops.examples import rows
from varlen_rnn.tape.checks import check_float
from varlen_rnn.tape.declare import operator


@unary(arithmetic.tanh, ufunc=np.tanh, onnx="Tanh")
def tanh(x):
    """Return the hyperbolic tangent of every element."""


@unary(arithmetic.sigmoid, onnx="Sigmoid")
def sigmoid(x):
    """Return 1 / (1 + exp(-x)) of every element."""


@unary(arithmetic.relu, derive=False, onnx="Relu")
def relu(x):
    """Return every element if it is positive, otherwise 0."""


@unary_backward(relu, host=lambda x, y, d_y: d_y * (x > 0))
def _relu_grad(x, y, d_y):
    return where(x > 0, d_y, d_y * 0)


@unary(derive=False)
@quiet  # minus infinity times 0 is NaN
def silu(x):
    """Return `x * sigmoid(x)` of every element; this function is also called swish."""
    return x * arithmetic.sigmoid(x)


@unary_backward(silu)
def _silu_grad(x, y, d_y):
    gate = arithmetic.sigmoid(x)
    return d_y * (gate + y * (1 - gate))


@unary(derive=False, onnx="LeakyRelu")
def leaky_relu(x, alpha: float):
    """Return every element if it is positive, otherwise `alpha` times the element."""
    return where(x > 0, x, alpha * x)


@unary_backward(leaky_relu)
def _leaky_relu_grad(x, y, d_y, alpha: float):
    return where(x > 0, d_y, d_y * alpha)


@unary(derive=False, onnx="Elu")
def elu(x, alpha: float = 1.0):
    """Return every element if it is positive, otherwise `alpha (e**x - 1)`.

    Source: Clevert, Unterthiner and Hochreiter (2016), in the form of `torch.nn.functional.elu`.

    Examples
    --------
    >>> elu([-1.0, 2.0]).numpy().round(4)
    array([-0.6321,  2.    ])
    """
    return where(x > 0, x, expm1(minimum(x, 0)) * alpha)  # at 0, the gradient of this minimum goes to x


@unary_backward(elu)
def _elu_grad(x, y, d_y, alpha: float):
    return where(x > 0, d_y, d_y * (exp(minimum(0, x)) * alpha))


@unary(derive=False, loop=True)
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
    z = x * beta
    curve = (maximum(z, 0) + log1p(exp(-abs(z)))) / beta
    return curve if isinstance(threshold, float) and threshold == math.inf else where(z > threshold, x, curve)


@unary_backward(softplus)
def _softplus_grad(x, y, d_y, beta: float, threshold: float):
    slope = d_y * -expm1(-y * beta)
    return slope if isinstance(threshold, float) and threshold == math.inf else where(x * beta > threshold, d_y, slope)


@softplus.infer
def _infer_softplus(x, beta, threshold):
    check_float("softplus", x=x)
    if not 0 < beta < math.inf or math.isnan(threshold):
        got = f"beta={beta}, threshold={threshold}"
        raise OutOfRangeError("softplus", expected="a finite beta above 0, and a threshold that is not NaN", got=got)
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


_ROOT_HALF = math.sqrt(0.5)
_STEEPNESS, _CUBIC = math.sqrt(2 / math.pi), 0.044715
_FAR = functions.FAR  # beyond, `x**3` in the approximation with tanh might overflow, too


def _near(x):
    return maximum(-_FAR, minimum(_FAR, x))


@elementwise(loop_over("exact_gelu", ("x",), lambda: functions.gelu_by_float64))
def exact_gelu(x):
    """Return `x` times the probability that a standard normal number is less than `x`."""
    return x * (type(x)(0.5) * math.erfc(-x * type(x)(_ROOT_HALF)))


@elementwise(loop_over("exact_gelu_grad", ("x", "d_y"), lambda: functions.gelu_grad_by_float64))
def exact_gelu_grad(x, d_y):
    """Return the gradient of `exact_gelu`."""
    half, far = type(x)(0.5), type(x)(_FAR)
    near = far if x > far else -far if x < -far else x
    probability = half * math.erfc(-near * type(x)(_ROOT_HALF))
    return d_y * (probability + near * (functions.exp(-half * (near * near)) * type(x)(functions.DENSITY)))


def _nearly_normal(x):
    # It equals (1 + tanh u) / 2, but loses no digits if tanh u is almost -1.
    return arithmetic.sigmoid(2 * _STEEPNESS * (x + _CUBIC * (x * x * x)))


@forward
@quiet
def tanh_gelu(x):
    """Return `gelu` of `x` by its approximation with tanh."""
    return x * _nearly_normal(_near(x))


@forward
def tanh_gelu_grad(x, d_y):
    """Return the gradient of `tanh_gelu`."""
    near = _near(x)
    probability, square = _nearly_normal(near), near * near
    slope = 2 * probability * (1 - probability) * (_STEEPNESS * (1 + 3 * _CUBIC * square))
    return d_y * (probability + near * slope)


@operator(rows="each")
def gelu(x, approximate: str = "none"):
    """Return x times the probability that a standard normal number is less than x, exactly or by a tanh formula.

    Source: Hendrycks and Gimpel (2016).  `approximate` takes the same values as in `torch.nn.functional.gelu`.
    """
    return x.like((tanh_gelu if approximate == "tanh" else exact_gelu)(x.data))


@gelu.infer
def _infer_gelu(x, approximate):
    check_float("gelu", x=x)
    check_choice(approximate, "gelu, approximate", "none", "tanh")
    return x


@gelu.backward("x", aliases={"d_y": "d_out"})
def _gelu_grad(x, d_y, approximate):
    return x.like((tanh_gelu_grad if approximate == "tanh" else exact_gelu_grad)(x.data, d_y.data))


@gelu.examples
def _examples_of_gelu(rng):
    for approximate in ("none", "tanh"):
        yield [rows(rng, 3)], {"approximate": approximate}


relu = hinting(inplace=IN_PLACE)(relu)
silu = hinting(inplace=IN_PLACE)(silu)
elu = hinting(inplace=IN_PLACE)(elu)
