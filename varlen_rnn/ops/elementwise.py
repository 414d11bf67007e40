"""Elementwise arithmetic and activations; row-wise operators hand the LoD on.  The work is NumPy's and SciPy's."""

from types import MappingProxyType

import numpy as np

from varlen_rnn.errors import ShapeError
from varlen_rnn.lod import LoDTensor
from varlen_rnn.ops.checks import broadcast, check_float, check_like, check_shape, shared_lod
from varlen_rnn.selected_rows import SelectedRows
from varlen_rnn.tape.kinds import SELECTED_ROWS
from varlen_rnn.tape.operator import Op, register
from varlen_rnn.tape.spec import Symbol
from varlen_rnn.tape.variable import apply

# Elementwise, two operands: broadcast as NumPy does; the result has the LoD of the operand that has one.


def _binary(name, function, grad):
    def forward(x, y):
        lod = shared_lod(name, x, y, names="xy")
        data = np.asarray(function(x.data, y.data))
        if len(lod) and (data.ndim == 0 or len(data) != lod.num_rows):
            got = f"shapes {x.shape} and {y.shape}"
            raise ShapeError(name, expected=f"a result of {lod.num_rows} rows, as the LoD has", got=got)
        return [LoDTensor.wrap(data, lod)]

    register(Op(name, ("x", "y"), lambda x, y: [broadcast(name, x, y)], forward, grad))


def grad_like(gradient, variable):
    """Return the gradient of an operand: summed to its shape where it was broadcast, with its LoD or none."""
    return gradient if _is_like(gradient.value, variable.value) else apply("sum_to", gradient, variable)


def _is_like(gradient, value):
    if gradient.shape != value.shape:
        return False
    if isinstance(gradient, Symbol):  # of unknown sizes, only the values tell
        return gradient.spec.kind == SELECTED_ROWS or (-1 not in value.shape and gradient.spec == value.spec)
    return isinstance(gradient, SelectedRows) or gradient.structure == value.structure


def _add_grad(inputs, outputs, d_outputs):
    return [grad_like(d_outputs[0], variable) for variable in inputs]


def _sub_grad(inputs, outputs, d_outputs):
    d = d_outputs[0]
    return [grad_like(d, inputs[0]), grad_like(-d, inputs[1]) if inputs[1].requires_grad else None]


def _mul_grad(inputs, outputs, d_outputs):
    (x, y), d = inputs, d_outputs[0]
    return [grad_like(d * y, x) if x.requires_grad else None, grad_like(d * x, y) if y.requires_grad else None]


def _div_grad(inputs, outputs, d_outputs):
    (x, y), d = inputs, d_outputs[0]
    d_x = d / y
    d_y = grad_like(-(d_x * outputs[0]), y) if y.requires_grad else None
    return [grad_like(d_x, x) if x.requires_grad else None, d_y]


def _quiet_divide(x, y):
    with np.errstate(divide="ignore", invalid="ignore"):
        return x / y


_binary("add", np.add, _add_grad)
_binary("sub", np.subtract, _sub_grad)
_binary("mul", np.multiply, _mul_grad)
_binary("div", _quiet_divide, _div_grad)


def _sum_to(x, like):
    data, added = x.data, x.data.ndim - len(like.shape)
    stretched = [added + axis for axis, size in enumerate(like.shape) if size == 1 and data.shape[added + axis] != 1]
    axes = (*range(added), *stretched)
    return [like.like(data.sum(axis=axes, keepdims=True).reshape(like.shape) if axes else data)]


def _infer_sum_to(x, like):
    check_float("sum_to", x=x, like=like)
    broadcast_shape = broadcast("sum_to", x, like).shape
    check_shape("sum_to", "x", x, broadcast_shape)
    return [like]


register(Op("sum_to", ("x", "like"), _infer_sum_to, _sum_to))


# Elementwise, one operand: `grad(x, y, d)` in terms of the input, the output and the gradient of the output.


def _same(op):
    def infer(x, **attrs):
        check_float(op, x=x)
        return [x]

    return infer


def _infer_log_softmax(x):
    check_float("log_softmax", x=x)
    if not x.shape or x.shape[-1] == 0:
        raise ShapeError("log_softmax, x", expected="at least one class", got=f"shape {x.shape}")
    return [x]


def _unary(name, function, gradient, attrs=MappingProxyType({}), infer=None):
    def forward(x, **attrs):
        return [x.like(np.asarray(function(x.data, **attrs)))]

    def grad(inputs, outputs, d_outputs, **attrs):
        return [apply(f"{name}_grad", inputs[0], outputs[0], d_outputs[0], **attrs)]

    def grad_forward(x, y, d, **attrs):
        return [x.like(np.asarray(gradient(x.data, y.data, d.data, **attrs)))]

    def infer_grad(x, y, d, **attrs):
        check_float(f"{name}_grad", x=x)
        check_like(f"{name}_grad", "y", y, x)
        check_like(f"{name}_grad", "d_y", d, x)
        return [x]

    register(Op(name, ("x",), infer or _same(name), forward, grad, attrs=attrs))
    register(Op(f"{name}_grad", ("x", "y", "d_y"), infer_grad, grad_forward, attrs=attrs))


def _log(x):
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(x)


def _log_grad(x, y, d):
    with np.errstate(divide="ignore", invalid="ignore"):
        return d / x


def _sigmoid(x):
    from scipy import special  # here, for it takes as long to import as all of ours

    return special.expit(x)


def log_softmax(x):
    """Return the logarithm of the softmax over the last axis of an array: SciPy's formula, to the bit."""
    highest = np.maximum.reduce(x, -1, keepdims=True)
    finite = np.isfinite(highest)
    if np.count_nonzero(finite) == finite.size:
        return _log_softmax(x, highest)
    with np.errstate(divide="ignore"):  # of rows that are -inf
        return _log_softmax(x, np.where(finite, highest, 0))


def _log_softmax(x, highest):
    shifted = x - highest
    shifted -= np.log(np.add.reduce(np.exp(shifted), -1, keepdims=True))
    return shifted


def _pow(x, exponent):
    with np.errstate(divide="ignore", invalid="ignore"):
        return x**exponent


def _pow_grad(x, y, d, exponent):
    if exponent == 0:  # not 0 times an infinite power of 0
        return np.zeros_like(d)
    with np.errstate(divide="ignore", invalid="ignore"):
        return d * x.dtype.type(exponent) * x ** (exponent - 1)


_unary("neg", np.negative, lambda x, y, d: -d)
_unary("tanh", np.tanh, lambda x, y, d: d * (1 - y * y))
_unary("sigmoid", _sigmoid, lambda x, y, d: d * y * (1 - y))
_unary("relu", lambda x: np.maximum(x, 0), lambda x, y, d: d * (x > 0))
_unary("exp", np.exp, lambda x, y, d: d * y)
_unary("log", _log, _log_grad)
_unary("pow", _pow, _pow_grad, {"exponent": "float"})
_unary(
    "log_softmax",
    log_softmax,
    lambda x, y, d: d - np.exp(y) * d.sum(axis=-1, keepdims=True),
    infer=_infer_log_softmax,
)
