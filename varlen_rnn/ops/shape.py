"""Reductions, and what changes the shape of a value: reshape, indexing, concatenation.

The LoD stays where the rows stay.
"""

import math

import numpy as np

from varlen_rnn.device import as_operand
from varlen_rnn.errors import ShapeError, check_int
from varlen_rnn.kernels.pool import sum_over
from varlen_rnn.kernels.rows import scatter_add_rows
from varlen_rnn.lod import NO_LOD, LoDTensor
from varlen_rnn.ops.checks import FLOATS, check_float, check_like, check_shape, check_tensor, shared_lod
from varlen_rnn.ops.math import tensor_like
from varlen_rnn.program.attrs import BASIC_INDEX
from varlen_rnn.program.block import apply
from varlen_rnn.program.registry import Op, register
from varlen_rnn.program.spec import LOD_TENSOR, TensorSpec, sizes_fit


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


def _sum(x, axis, keepdims):
    total = sum_over(x.data, axis if axis is None else axis % x.data.ndim)
    return total.reshape(_describe_reduced(x, axis, True).shape) if keepdims else total


def _reduce_sum(x, axis, keepdims):
    return [LoDTensor.wrap(_sum(x, axis, keepdims), _lod_after(x, axis))]


def _reduce_mean(x, axis, keepdims, of_nothing=None):
    count = x.data.size if axis is None else x.data.shape[axis]
    if count or of_nothing is None:
        with np.errstate(invalid="ignore"):
            data = _sum(x, axis, keepdims) / x.dtype.type(count)
    else:
        data = np.full_like(_sum(x, axis, keepdims), of_nothing)
    return [LoDTensor.wrap(np.asarray(data), _lod_after(x, axis))]


def _spread(x, d, axis, keepdims, scale):
    data = d.data if keepdims or axis is None else np.expand_dims(d.data, axis)
    factor = x.dtype.type(1 / max(1, x.data.size if axis is None else x.data.shape[axis])) if scale else None
    spread = np.broadcast_to(data if factor is None else data * factor, x.shape)
    return [tensor_like(np.array(spread, order="C"), x)]  # a copy: what NumPy broadcasts is read-only


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


def _reshape(x, shape):
    try:
        data = x.data.reshape(shape)
    except (ValueError, TypeError) as error:
        raise ShapeError("reshape", expected=f"a shape of {x.data.size} elements", got=shape) from error
    return [LoDTensor.wrap(data, x.structure if x.num_levels and _keeps_rows(x.shape, shape) else NO_LOD)]


def _keeps_rows(old, new):
    """Return whether a new shape has the rows of the old one, each with its elements in another shape."""
    same_size = len(new) > 0 and -1 not in (*old[1:], *new[1:]) and math.prod(old[1:]) == math.prod(new[1:])
    return same_size and new[0] in (-1, old[0])


def _infer_reshape(x, shape):
    check_tensor("reshape", "x", x)
    if any(isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < -1 for size in shape):
        raise ShapeError("reshape", expected="sizes, one of them -1 at most", got=shape)
    if list(shape).count(-1) > 1 and _keeps_rows(x.shape, shape) is False:
        raise ShapeError("reshape", expected="one -1 at most", got=shape)
    if x.lod_level and x.shape[0] == -1 and shape and shape[0] != -1 and _keeps_rows(x.shape, (-1, *shape[1:])):
        hint = "give -1 for the rows: a run tells how many there are"
        raise ShapeError("reshape", expected="-1 first, for rows with a LoD", got=tuple(shape), hint=hint)
    keeps = len(x.shape) > 0 and _keeps_rows(x.shape, shape)
    shape = list(map(int, shape))
    if -1 in shape and (keeps or -1 not in x.shape):
        shape[shape.index(-1)] = x.shape[0] if keeps else math.prod(x.shape) // max(1, -math.prod(shape))
    if -1 not in (*x.shape, *shape) and math.prod(shape) != math.prod(x.shape):
        raise ShapeError("reshape", expected=f"a shape of {math.prod(x.shape)} elements", got=shape)
    return [TensorSpec(tuple(shape), x.dtype, x.lod_level if keeps else 0)]


def _like_grad(op):
    def grad(inputs, outputs, d_outputs, **attrs):
        return [apply(op, inputs[0], d_outputs[0], **attrs)]

    return grad


def _infer_reshape_grad(x, d, shape):
    check_like("reshape_grad", "d_y", d, *_infer_reshape(x, shape))
    return [x]


def _reshape_grad(x, d, shape):
    return [tensor_like(d.data.reshape(x.shape), x)]


_SHAPE = {"shape": "ints"}
register(Op("reshape", ("x",), _infer_reshape, _reshape, _like_grad("reshape_grad"), attrs=_SHAPE))
register(Op("reshape_grad", ("x", "d_y"), _infer_reshape_grad, _reshape_grad, attrs=_SHAPE))


def _infer_getitem(x, index):
    check_tensor("getitem", "x", x)
    try:
        shape = _indexed(x.shape, index)
    except (IndexError, TypeError, ValueError) as error:
        raise ShapeError("getitem", expected=f"an index of shape {x.shape}", got=index) from error
    keeps = x.lod_level and _keeps_rows_first(x.shape, index, shape)
    return [TensorSpec(shape, x.dtype, x.lod_level if keeps else 0)]


def _indexed(shape, index):
    """Return the shape of `array[index]`, in which a slice of an unknown size has an unknown size."""
    if -1 not in shape:
        # One element in memory, seen at every index: `np.broadcast_to` takes ten times as long.
        return np.ndarray(shape, np.bool_, b"\0", strides=(0,) * len(shape))[index].shape
    if isinstance(index, slice):
        return _size_of_slice(shape[0], index), *shape[1:]
    items = list(index) if isinstance(index, tuple) else [index]
    given = sum([item is not None and item is not Ellipsis for item in items])
    if given > len(shape) or any([isinstance(item, (list, np.ndarray)) for item in items]):
        raise IndexError("too many, or arrays of indices into an unknown size")
    if Ellipsis not in items:
        items.append(Ellipsis)
    at = items.index(Ellipsis)
    items[at : at + 1] = [slice(None)] * (len(shape) - given)
    out, sizes = [], iter(shape)
    for item in items:
        if item is None:
            out.append(1)
        elif isinstance(item, slice):
            out.append(_size_of_slice(next(sizes), item))
        elif not -(size := next(sizes)) <= item < size and size != -1:
            raise IndexError(f"{item} of {size}")
    return tuple(out)


def _size_of_slice(size, part):
    return -1 if size == -1 else len(range(*part.indices(size)))


def _keeps_rows_first(shape, index, indexed):
    """Return whether `array[index]`, of shape `indexed`, has all rows, in front.

    Arrays of indices that stand apart, between slices, move before the rows.
    """
    items = index if isinstance(index, tuple) else (index,)
    if not items or not isinstance(items[0], slice) or items[0] != slice(None):
        return False
    if BASIC_INDEX.issuperset(map(type, items)):
        return True
    if sum(not (item is None or item is Ellipsis or isinstance(item, slice)) for item in items) == 1:
        return True  # one stands apart from nothing
    # What NumPy does, not its rules: of all axes, the one that grows with the number of rows is theirs.
    more = _indexed((shape[0] + 1, *shape[1:]), index)
    return (indexed[0], more[0]) == (shape[0], shape[0] + 1)


def _getitem(x, index):
    data = np.asarray(x.data[index])
    keeps = x.num_levels and _keeps_rows_first(x.shape, index, data.shape)
    return [LoDTensor.wrap(data, x.structure if keeps else NO_LOD)]


def _infer_getitem_grad(x, d, index):
    check_like("getitem_grad", "d_y", d, *_infer_getitem(x, index))
    return [x]


def _getitem_grad(x, d, index):
    data, items = np.zeros(x.shape, x.dtype), index if isinstance(index, tuple) else (index,)
    if BASIC_INDEX.issuperset(map(type, items)):  # takes nothing twice
        data[index] += d.data
    elif x.dtype in FLOATS:
        _add_where_taken(data, index, items, d.data)
    else:
        np.add.at(data, index, d.data)
    return [tensor_like(data, x)]


def _add_where_taken(data, index, items, d):
    """Add `d` where an index has taken the elements of `data`: what repeats is a row of the axes that it looks at."""
    rank = data.ndim if any(item is Ellipsis for item in items) else sum(map(_axes_of, items))
    height, width = math.prod(data.shape[:rank]), math.prod(data.shape[rank:])
    taken = np.arange(height).reshape(data.shape[:rank])[index]
    rows = as_operand(d).reshape(taken.size, width)
    scatter_add_rows(rows, np.ascontiguousarray(taken).reshape(-1), data.reshape(height, width))


def _axes_of(item):
    """Return how many axes an item of an index looks at."""
    if item is None or item is True or item is False:
        return 0
    return item.ndim if isinstance(item, np.ndarray) and item.dtype == np.bool_ else 1


_INDEX = {"index": "index"}
register(Op("getitem", ("x",), _infer_getitem, _getitem, _like_grad("getitem_grad"), attrs=_INDEX))
register(Op("getitem_grad", ("x", "d_y"), _infer_getitem_grad, _getitem_grad, attrs=_INDEX))


def _infer_concat(*descs, axis):
    dtype = descs[0].dtype
    check_float("concat", **{"x[0]": descs[0]})
    for number, desc in enumerate(descs):
        if desc.dtype is not dtype or desc.kind is not LOD_TENSOR:  # a name costs more than the comparison
            check_float("concat", **{"x[0]": descs[0], f"x[{number}]": desc})
    axis, rank = check_int(axis, "concat, axis"), len(descs[0].shape)
    if not -rank <= axis < rank:
        raise ShapeError("concat, axis", expected=f"an axis of shape {descs[0].shape}", got=axis)
    axis %= rank
    before, after = descs[0].shape[:axis], descs[0].shape[axis + 1 :]
    shape = *before, -1, *after
    for number, desc in enumerate(descs):
        if not sizes_fit(desc.shape, shape):
            check_shape("concat", f"x[{number}]", desc, shape)
    sizes = [desc.shape[axis] for desc in descs]
    size = -1 if -1 in sizes else sum(sizes)
    lod_level = max([desc.lod_level for desc in descs]) if axis else 0
    return [TensorSpec((*before, size, *after), descs[0].dtype, lod_level)]


def _infer_split_like(d, *like, axis):
    check_like("split_like", "d", d, *_infer_concat(*like, axis=axis))
    return list(like)


def _concat(*tensors, axis):
    lod = shared_lod("concat", *tensors) if axis % tensors[0].data.ndim else NO_LOD
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


register(Op("concat", ("*x",), _infer_concat, _concat, _concat_grad, attrs={"axis": "int"}))
register(Op("split_like", ("d", "*like"), _infer_split_like, _split_like, outputs=("*out",), attrs={"axis": "int"}))
