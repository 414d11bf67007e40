"""Functions along the last axis: the logarithm of the softmax, and two normalisations.  The result keeps the LoD.

Other files compute the softmax, and losses over classes, from this logarithm.
"""

import math

from varlen_rnn.errors import OutOfRangeError, ShapeError, over_last_axis
from varlen_rnn.kernels import norms, softmax
from varlen_rnn.kernels.arithmetic import multiply
from varlen_rnn.kernels.copies import full
from varlen_rnn.kernels.reductions import sum_over
from varlen_rnn.ops.examples import TROUBLES, rows
from varlen_rnn.ops.traits import of_vectors
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.runtime.device import as_operand, empty
from varlen_rnn.tape.checks import check_float, check_like, check_shape
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.variable import apply


@operator(rows=of_vectors, onnx="LogSoftmax")
def log_softmax(x):
    """Return the logarithm of the softmax over the last axis."""
    return x.like(softmax.log_softmax(x.data))


log_softmax.examples(lambda rng: [([rows(rng, 3)], {})])


@log_softmax.infer
def _infer_log_softmax(x):
    check_float("log_softmax", x=x)
    if not x.shape or x.shape[-1] == 0:
        raise ShapeError("log_softmax, x", expected="at least one class", got=f"shape {x.shape}")
    return x


@log_softmax.backward("x", aliases={"y": "out", "d_y": "d_out"})
def _log_softmax_grad(x, y, d_y):
    total = sum_over(d_y.data, d_y.data.ndim - 1).reshape(*x.shape[:-1], 1)
    return x.like(softmax.log_softmax_grad(y.data, d_y.data, total))


log_softmax = over_last_axis(log_softmax)


@operator(rows=of_vectors)
def layer_norm(x, weight=None, bias=None, eps: float = 1e-5):
    """Return `(x - mean) / sqrt(variance + eps) * weight + bias`, with the mean and variance over the last axis.

    Parameters
    ----------
    x : Variable or array, shape `(..., features)`
        float32 or float64, with at least one feature.
    weight, bias : Variable or array, shape `(features,)`, optional
    eps : float
        At least 0.

    Returns
    -------
    Variable like `x`, with its LoD

    Examples
    --------
    >>> np.asarray(layer_norm(np.array([[1.0, 3.0]]), eps=0.0))
    array([[-1.,  1.]])

    Source: Ba, Kiros and Hinton (2016), "Layer normalization"; as `torch.nn.functional.layer_norm`.
    """
    return x.like(_normalised(x.data, weight, bias, eps, True).reshape(x.shape))


layer_norm.infer(lambda x, weight, bias, eps: _checked("layer_norm", x, eps, weight=weight, bias=bias))


def _rows(data):
    return as_operand(data).reshape(math.prod(data.shape[:-1]), data.shape[-1])


def _normalised(data, weight, bias, eps, centres):
    """Return the normalised rows times the weight (1 if it is None) plus the bias (0 if it is None)."""
    flat = _rows(data)
    weight = full(flat.shape[1:], 1, flat) if weight is None else as_operand(weight.data)
    bias = full(flat.shape[1:], 0, flat) if bias is None else as_operand(bias.data)
    out = empty(flat.shape, flat)
    norms.layer_norm(flat, weight, bias, eps, centres, out)
    return out


def _checked(op, x, eps, **vectors):
    """Return `x`; raise unless it can be normalised and the vectors have one number per feature."""
    check_float(op, x=x, **{name: spec for name, spec in vectors.items() if spec})
    if not x.shape or x.shape[-1] == 0:
        raise ShapeError(f"{op}, x", expected="at least one feature", got=f"shape {x.shape}")
    if not 0 <= eps < math.inf:
        raise OutOfRangeError(f"{op}, eps", expected="at least 0, and finite", got=eps)
    for name, spec in vectors.items():
        if spec:
            check_shape(op, name, spec, x.shape[-1:])
    return x


@layer_norm.grad
def _grad(inputs, outputs, d_outputs, eps):
    (x, weight, bias), (d,) = inputs, d_outputs
    of_bias = apply("row_sum", d) if bias is not None and bias.requires_grad else None
    return [*_gradients(x, weight, d, eps, True), of_bias]


def _gradients(x, weight, d, eps, centres):
    """Return the gradients of rows and of a weight; None if they need none."""
    of_weight = weight is not None and weight.requires_grad
    return [
        apply("layer_norm_grad", x, d, weight, eps=eps, centres=centres) if x.requires_grad else None,
        apply("layer_norm_weight_grad", x, d, eps=eps, centres=centres) if of_weight else None,
    ]


@operator(rows=of_vectors)
def layer_norm_grad(x, d, weight=None, *, eps: float, centres: bool = True):
    """Return the gradient of the input `x` of `layer_norm`, or of `rms_norm` unless `centres`."""
    flat = _rows(x.data)
    weight = full(flat.shape[1:], 1, flat) if weight is None else as_operand(weight.data)
    d_x = empty(flat.shape, flat)
    norms.layer_norm_grad(flat, weight, _rows(d.data), eps, centres, d_x)
    return x.like(d_x.reshape(x.shape))


@layer_norm_grad.infer
def _infer_grad(x, d, weight, eps, centres):
    check_like("layer_norm_grad", "d", d, x)
    return _checked("layer_norm_grad", x, eps, weight=weight)


@operator(rows="sum")
def layer_norm_weight_grad(x, d, eps: float, centres: bool = True):
    """Return the gradient of the weight of `layer_norm`, or of `rms_norm` unless `centres`."""
    return LoDTensor.wrap(sum_over(multiply(_normalised(x.data, None, None, eps, centres), _rows(d.data)), 0))


@layer_norm_weight_grad.infer
def _infer_weight_grad(x, d, eps, centres):
    check_like("layer_norm_weight_grad", "d", d, x)
    return _checked("layer_norm_weight_grad", x, eps)._replace(shape=x.shape[-1:], lod_level=0)


@layer_norm.examples
def _examples(rng):
    weight, bias = rng.standard_normal(5), rng.standard_normal(5)
    yield [rows(rng, 5), weight, bias], {"eps": 1e-5}
    yield [rows(rng, 2, 5), weight, None], {"eps": 0.5}
    yield [rows(rng, 17), None, None], {"eps": 1e-5}
    yield [rng.standard_normal(5), None, bias], {"eps": 1e-5}
    for lod in TROUBLES:
        yield [rows(rng, 5, lod=lod), weight, bias], {"eps": 1e-5}


@operator(rows=of_vectors)
def rms_norm(x, weight=None, eps: float = 1e-6):
    """Return `x / sqrt(mean of x^2 + eps) * weight`, with the mean over the last axis.

    Parameters
    ----------
    x : Variable or array, shape `(..., features)`
        float32 or float64, with at least one feature.
    weight : Variable or array, shape `(features,)`, optional
    eps : float
        At least 0.

    Returns
    -------
    Variable like `x`, with its LoD

    Examples
    --------
    >>> np.asarray(rms_norm(np.array([[1.0, 7.0]]), eps=0.0))
    array([[0.2, 1.4]])

    Source: Zhang and Sennrich (2019), "Root mean square layer normalization"; as `torch.nn.functional.rms_norm`, whose
    `eps` is the smallest step of the data type by default.
    """
    return x.like(_normalised(x.data, weight, None, eps, False).reshape(x.shape))


rms_norm.infer(lambda x, weight, eps: _checked("rms_norm", x, eps, weight=weight))


@rms_norm.grad
def _grad_of_rms(inputs, outputs, d_outputs, eps):
    x, weight = inputs
    return _gradients(x, weight, d_outputs[0], eps, False)


@rms_norm.examples
def _examples_of_rms(rng):
    weight = rng.standard_normal(5)
    yield [rows(rng, 5), weight], {"eps": 1e-6}
    yield [rows(rng, 2, 17), None], {"eps": 0.5}
    for lod in TROUBLES:
        yield [rows(rng, 5, lod=lod), weight], {"eps": 1e-6}
