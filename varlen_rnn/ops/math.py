"""Arithmetic, activations and products of Variables; row-wise operators hand the LoD on.

Elementwise work is NumPy's and SciPy's; products run on the register tile, so that a row of a result does not depend
on the rows beside it, nor on the number of threads.
"""

import math
from types import MappingProxyType

import numpy as np

from varlen_rnn.device import as_operand, empty
from varlen_rnn.errors import DTypeError, ShapeError
from varlen_rnn.kernels.pool import sum_over
from varlen_rnn.lod import NO_LOD, LoDTensor
from varlen_rnn.ops.checks import broadcast, check_float, check_like, check_rank, check_shape, shared_lod
from varlen_rnn.products.gemm import product
from varlen_rnn.products.row_sums import row_product
from varlen_rnn.program.block import apply
from varlen_rnn.program.registry import Op, register
from varlen_rnn.program.spec import LOD_TENSOR, SELECTED_ROWS, Symbol, TensorSpec
from varlen_rnn.selected_rows import SelectedRows


def tensor_like(data, x):
    """Return rows with the LoD of the tensor `x`."""
    return LoDTensor.wrap(data, x.structure)


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
    if added:
        data = sum_over(data.reshape(math.prod(data.shape[:added]), *data.shape[added:]), 0)
    for axis, size in enumerate(like.shape):
        if data.shape[axis] != size:
            data = np.expand_dims(sum_over(data, axis), axis)
    return [tensor_like(data, like)]


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
        return [tensor_like(np.asarray(function(x.data, **attrs)), x)]

    def grad(inputs, outputs, d_outputs, **attrs):
        return [apply(f"{name}_grad", inputs[0], outputs[0], d_outputs[0], **attrs)]

    def grad_forward(x, y, d, **attrs):
        return [tensor_like(np.asarray(gradient(x.data, y.data, d.data, **attrs)), x)]

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
    x = x if x.flags.c_contiguous else np.ascontiguousarray(x)  # else NumPy adds one class after another
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
    lambda x, y, d: d - np.exp(y) * np.expand_dims(sum_over(d, d.ndim - 1), -1),
    infer=_infer_log_softmax,
)


# Sum of gradients: dense, SelectedRows, or both; the one place where sparse meets dense.


def _infer_sum(*descs):
    for number, desc in enumerate(descs):
        if desc.kind not in (LOD_TENSOR, SELECTED_ROWS):
            raise DTypeError(f"sum, x[{number}]", expected="rows", got=desc.kind.name)
        if desc.dtype != descs[0].dtype:
            raise DTypeError(f"sum, x[{number}]", expected=descs[0].dtype, got=desc.dtype)
        check_shape("sum", f"x[{number}]", desc, descs[0].shape)
    dense = [desc for desc in descs if desc.kind == LOD_TENSOR]
    shape = tuple(max(sizes) for sizes in zip(*(desc.shape for desc in descs), strict=True))  # -1 is the unknown size
    if not dense:
        return [descs[0]._replace(shape=shape)]
    return [dense[0]._replace(shape=shape, lod_level=max(desc.lod_level for desc in dense))]


def sum_values(*values):
    """Return the sum of gradients in the order given, as a list of one value; sparse ones alone stay sparse."""
    dense = [value for value in values if isinstance(value, LoDTensor)]
    sparse = [value for value in values if isinstance(value, SelectedRows)]
    if not dense:
        total = sparse[0]
        for value in sparse[1:]:
            total = total + value
        return [total]
    data = dense[0].data
    for value in dense[1:]:
        data = data + value.data
    for value in sparse:
        data = value + data
    lods = [value.structure for value in dense if value.num_levels]
    return [LoDTensor.wrap(np.asarray(data), lods[0] if lods else NO_LOD)]


register(Op("sum", ("*x",), _infer_sum, sum_values))


# Products: `x @ weight + bias`, with `weight` (inputs, outputs), or (outputs, inputs) when transposed.


def _infer_matmul(x, weight, bias, transposed):
    check_float("matmul", x=x, weight=weight)
    if bias:
        check_float("matmul", x=x, bias=bias)
    check_rank("matmul", "weight", weight, 2)
    columns, depth = weight.shape if transposed else weight.shape[::-1]
    if not x.shape or (x.shape[-1] != depth and -1 not in (x.shape[-1], depth)):
        raise ShapeError("matmul, x", expected=f"{depth} features, as the weight", got=f"shape {x.shape}")
    if bias:
        check_shape("matmul", "bias", bias, (columns,))
    # Of one dimension, the features are the rows, and those of the result are others.
    return [TensorSpec((*x.shape[:-1], columns), x.dtype, x.lod_level if len(x.shape) > 1 else 0)]


def _matmul(x, weight, bias, transposed):
    columns = weight.shape[0 if transposed else 1]
    rows = _rows(x.data)
    out = empty((len(rows), columns), rows)
    bias = None if bias is None else as_operand(bias.data)
    product(rows, as_operand(weight.data), out, transposed=transposed, bias=bias)
    lod = x.structure if x.data.ndim > 1 else NO_LOD
    return [LoDTensor.wrap(out.reshape(*x.shape[:-1], columns), lod)]


def _matmul_grad(inputs, outputs, d_outputs, transposed):
    x, weight, bias = inputs
    (d,) = d_outputs
    d_x = apply("matmul", d, weight, None, transposed=not transposed) if x.requires_grad else None
    d_weight = None
    if weight.requires_grad:
        d_weight = apply("row_product", d, x) if transposed else apply("row_product", x, d)
    return [d_x, d_weight, apply("row_sum", d) if bias is not None and bias.requires_grad else None]


def _rows(data):
    return as_operand(data).reshape(math.prod(data.shape[:-1]), data.shape[-1])


def _row_product(a, b):
    return [LoDTensor.wrap(row_product(_rows(a.data), _rows(b.data)))]


def _infer_row_product(a, b):
    check_float("row_product", a=a, b=b)
    _check_has_rows("row_product", "a", a)
    check_shape("row_product", "b", b, (*a.shape[:-1], -1))
    return [a._replace(shape=(a.shape[-1], b.shape[-1]), lod_level=0)]


def _infer_row_sum(a):
    check_float("row_sum", a=a)
    _check_has_rows("row_sum", "a", a)
    return [a._replace(shape=a.shape[-1:], lod_level=0)]


def _check_has_rows(op, name, desc):
    if not desc.shape:
        raise ShapeError(f"{op}, {name}", expected="rows", got="a single number")


register(Op("matmul", ("x", "weight", "bias?"), _infer_matmul, _matmul, _matmul_grad, attrs={"transposed": "bool"}))
register(Op("row_product", ("a", "b"), _infer_row_product, _row_product))
register(Op("row_sum", ("a",), _infer_row_sum, lambda a: [LoDTensor.wrap(sum_over(_rows(a.data), 0))]))


# What only programs need: a number that the code brought along, and a second name.


def _infer_fill(shape, value, dtype):
    if dtype not in ("float32", "float64") or any(size < 0 for size in shape):
        raise ShapeError("fill_constant", expected="known sizes, float32 or float64", got=f"{shape} {dtype}")
    if math.prod(shape) > _MOST_FILLED:
        raise ShapeError("fill_constant, shape", expected=f"at most {_MOST_FILLED} elements", got=shape)
    return [TensorSpec(tuple(shape), np.dtype(dtype))]


def _fill(shape, value, dtype):
    return [LoDTensor.wrap(np.full(shape, value, dtype))]


_MOST_FILLED = 2**20  # a description of a few bytes cannot ask for more memory
_FILL_ATTRS = {"shape": "ints", "value": "float", "dtype": "str"}
register(Op("fill_constant", (), _infer_fill, _fill, attrs=_FILL_ATTRS))
register(Op("assign", ("x",), lambda x: [x], lambda x: [x]))
