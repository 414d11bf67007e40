"""Reductions, and what changes the shape of a value: reshape, indexing, concatenation.

The LoD stays where the rows stay.
"""

import numpy as np

from varlen_rnn.errors import ShapeError, check_int
from varlen_rnn.lod import NO_LOD, LoDTensor
from varlen_rnn.ops.checks import check_float, check_shape, shared_lod
from varlen_rnn.ops.math import tensor_like
from varlen_rnn.program.block import apply
from varlen_rnn.program.registry import Op, register


def _infer_reduce(x, axis, keepdims):
    check_float("reduce", x=x)
    if axis is not None and not (isinstance(axis, int) and -len(x.shape) <= axis < len(x.shape)):
        raise ShapeError("reduce, axis", expected=f"an axis of shape {x.shape}, or None", got=axis)
    return [_describe_reduced(x, axis, keepdims)]


def _describe_reduced(x, axis, keepdims):
    if axis is None:
        return x._replace(shape=(1,) * len(x.shape) if keepdims else (), lod_level=0)
    axis %= len(x.shape)
    shape = x.shape[:axis] + ((1,) if keepdims else ()) + x.shape[axis + 1 :]
    return x._replace(shape=shape, lod_level=x.lod_level if axis else 0)


def _lod_after(x, axis):
    return NO_LOD if axis is None or axis % x.data.ndim == 0 else x.structure


def _reduce_sum(x, axis, keepdims):
    return [LoDTensor.wrap(np.asarray(x.data.sum(axis=axis, keepdims=keepdims)), _lod_after(x, axis))]


def _reduce_mean(x, axis, keepdims):
    count = x.data.size if axis is None else x.data.shape[axis]
    with np.errstate(invalid="ignore"):
        data = x.data.sum(axis=axis, keepdims=keepdims) / x.dtype.type(count)
    return [LoDTensor.wrap(np.asarray(data), _lod_after(x, axis))]


def _spread(x, d, axis, keepdims, scale):
    data = d.data if keepdims or axis is None else np.expand_dims(d.data, axis)
    factor = x.dtype.type(1 / max(1, x.data.size if axis is None else x.data.shape[axis])) if scale else None
    spread = np.broadcast_to(data if factor is None else data * factor, x.shape)
    return [tensor_like(np.array(spread, order="C"), x)]  # a copy: what NumPy broadcasts is read-only


def _reduce_grad(scale):
    def grad(inputs, outputs, d_outputs, **attrs):
        return [apply("reduce_grad", inputs[0], d_outputs[0], scale=scale, **attrs)]

    return grad


register(Op("reduce_sum", ("x",), _infer_reduce, _reduce_sum, _reduce_grad(False)))
register(Op("reduce_mean", ("x",), _infer_reduce, _reduce_mean, _reduce_grad(True)))
register(Op("reduce_grad", ("x", "d_y"), lambda x, d, **attrs: [x], _spread))


def _reshape(x, shape):
    try:
        data = x.data.reshape(shape)
    except (ValueError, TypeError) as error:
        raise ShapeError("reshape", expected=f"a shape of {x.data.size} elements", got=shape) from error
    keeps = x.num_levels and data.ndim and len(data) == len(x.data)
    return [LoDTensor.wrap(data, x.structure if keeps else NO_LOD)]


def _infer_reshape(x, shape):
    known = [size for size in shape if size != -1]
    keeps = len(shape) > 0 and shape[0] in (-1, x.shape[0]) and len(known) < len(shape) + 1
    return [x._replace(shape=tuple(shape), lod_level=x.lod_level if keeps else 0)]


def _like_grad(op):
    def grad(inputs, outputs, d_outputs, **attrs):
        return [apply(op, inputs[0], d_outputs[0], **attrs)]

    return grad


register(Op("reshape", ("x",), _infer_reshape, _reshape, _like_grad("reshape_grad")))
register(
    Op(
        "reshape_grad",
        ("x", "d_y"),
        lambda x, d, shape: [x],
        lambda x, d, shape: [tensor_like(d.data.reshape(x.shape), x)],
    )
)


def _check_index(x, index):
    try:
        return np.empty(x.shape, np.bool_)[index]
    except (IndexError, TypeError, ValueError) as error:
        raise ShapeError("getitem", expected=f"an index of shape {x.shape}", got=index) from error


def _getitem(x, index):
    _check_index(x, index)
    of_rows = index[0] if isinstance(index, tuple) and index else index
    keeps = isinstance(of_rows, slice) and of_rows == slice(None)
    return [LoDTensor.wrap(np.asarray(x.data[index]), x.structure if keeps else NO_LOD)]


def _getitem_grad(x, d, index):
    data = np.zeros_like(x.data)
    np.add.at(data, index, d.data)
    return [tensor_like(data, x)]


register(Op("getitem", ("x",), lambda x, index: [x], _getitem, _like_grad("getitem_grad")))
register(Op("getitem_grad", ("x", "d_y"), lambda x, d, index: [x], _getitem_grad))


def _infer_concat(*descs, axis):
    check_float("concat", **{f"x[{number}]": desc for number, desc in enumerate(descs)})
    axis, rank = check_int(axis, "concat, axis"), len(descs[0].shape)
    if not -rank <= axis < rank:
        raise ShapeError("concat, axis", expected=f"an axis of shape {descs[0].shape}", got=axis)
    axis %= rank
    for number, desc in enumerate(descs):
        shape = list(descs[0].shape)
        shape[axis] = -1
        check_shape("concat", f"x[{number}]", desc, shape)
    return [descs[0]._replace(lod_level=max(desc.lod_level for desc in descs) if axis else 0)]


def _concat(*tensors, axis):
    named = [(f"x[{number}]", tensor) for number, tensor in enumerate(tensors)]
    lod = shared_lod("concat", *named) if axis % tensors[0].data.ndim else NO_LOD
    return [LoDTensor.wrap(np.concatenate([tensor.data for tensor in tensors], axis=axis), lod)]


def _concat_grad(inputs, outputs, d_outputs, axis):
    return apply_list("split_like", d_outputs[0], *inputs, axis=axis)


def _split_like(d, *like, axis):
    cuts = np.cumsum([tensor.shape[axis] for tensor in like])[:-1]
    parts = np.split(d.data, cuts, axis=axis)
    return [tensor_like(np.ascontiguousarray(part), tensor) for part, tensor in zip(parts, like, strict=True)]


def apply_list(op, *inputs, **attrs):
    """Return the outputs of an operator as a list, also when there is one."""
    outputs = apply(op, *inputs, **attrs)
    return outputs if isinstance(outputs, list) else [outputs]


register(Op("concat", ("*x",), _infer_concat, _concat, _concat_grad))
register(Op("split_like", ("d", "*like"), lambda d, *like, axis: list(like), _split_like))
