"""Sums and means of all elements, or over an axis; the LoD stays where the rows stay."""

import numpy as np

from varlen_rnn.errors import ShapeError
from varlen_rnn.lod import NO_LOD, LoDTensor
from varlen_rnn.ops.checks import check_float, check_like
from varlen_rnn.tape.operator import Op, register
from varlen_rnn.tape.spec import TensorSpec
from varlen_rnn.tape.variable import apply


def _infer_reduce(x, axis, keepdims, of_nothing=None):
    check_float("reduce", x=x)
    if axis is not None and not (isinstance(axis, int) and -len(x.shape) <= axis < len(x.shape)):
        raise ShapeError("reduce, axis", expected=f"an axis of shape {x.shape}, or None", got=axis)
    return [_describe_reduced(x, axis, keepdims)]


def _infer_reduce_grad(x, d, axis, keepdims, scale):
    check_like("reduce_grad", "d_y", d, *_infer_reduce(x, axis, keepdims))
    return [x]


def _describe_reduced(x, axis, keepdims):
    if axis is None:
        return TensorSpec((1,) * len(x.shape) if keepdims else (), x.dtype)
    axis %= len(x.shape)
    shape = x.shape[:axis] + ((1,) if keepdims else ()) + x.shape[axis + 1 :]
    return TensorSpec(shape, x.dtype, x.lod_level if axis else 0)


def _lod_after(x, axis):
    return NO_LOD if axis is None or axis % x.data.ndim == 0 else x.structure


def _reduce_sum(x, axis, keepdims):
    return [LoDTensor.wrap(np.asarray(x.data.sum(axis=axis, keepdims=keepdims)), _lod_after(x, axis))]


def _reduce_mean(x, axis, keepdims, of_nothing=None):
    count = x.data.size if axis is None else x.data.shape[axis]
    if count or of_nothing is None:
        with np.errstate(invalid="ignore"):
            data = x.data.sum(axis=axis, keepdims=keepdims) / x.dtype.type(count)
    else:
        data = np.full_like(x.data.sum(axis=axis, keepdims=keepdims), of_nothing)
    return [LoDTensor.wrap(np.asarray(data), _lod_after(x, axis))]


def _spread(x, d, axis, keepdims, scale):
    data = d.data if keepdims or axis is None else np.expand_dims(d.data, axis)
    factor = x.dtype.type(1 / max(1, x.data.size if axis is None else x.data.shape[axis])) if scale else None
    spread = np.broadcast_to(data if factor is None else data * factor, x.shape)
    return [x.like(np.array(spread, order="C"))]  # a copy: what NumPy broadcasts is read-only


def _reduce_grad(scale):
    def grad(inputs, outputs, d_outputs, axis, keepdims, of_nothing=None):
        return [apply("reduce_grad", inputs[0], d_outputs[0], axis=axis, keepdims=keepdims, scale=scale)]

    return grad


_REDUCED = {"axis": "int?", "keepdims": "bool"}
register(Op("reduce_sum", ("x",), _infer_reduce, _reduce_sum, _reduce_grad(False), attrs=_REDUCED))
# `of_nothing` is the mean of no elements: by default NaN, as in NumPy.
register(
    Op(
        "reduce_mean",
        ("x",),
        _infer_reduce,
        _reduce_mean,
        _reduce_grad(True),
        attrs=_REDUCED | {"of_nothing": "float?"},
    )
)
register(Op("reduce_grad", ("x", "d_y"), _infer_reduce_grad, _spread, attrs=_REDUCED | {"scale": "bool"}))
