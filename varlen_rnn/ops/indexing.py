"""The operator `getitem`, for `x[index]`.  The result keeps the LoD if its first axis holds all rows in order."""

import math

import numpy as np

from varlen_rnn.errors import OutOfRangeError, ShapeError
from varlen_rnn.kernels.copies import assign
from varlen_rnn.kernels.rows import scatter_add_rows
from varlen_rnn.ops.cost import nothing
from varlen_rnn.ops.examples import rows
from varlen_rnn.ops.indices import rows_at
from varlen_rnn.rows.lod import NO_LOD, LoDTensor
from varlen_rnn.runtime.device import as_operand, on_device, zeros
from varlen_rnn.tape.checks import FLOATS, check_tensor
from varlen_rnn.tape.constants import Index
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.index import BASIC_INDEX
from varlen_rnn.tape.spec import TensorSpec
from varlen_rnn.tape.variable import Variable


def _rows(specs, axes, index):
    """Return the trait "each" if an index takes all rows in order, "batch" if an array chooses some, otherwise None."""
    items = [item for item in (index if isinstance(index, tuple) else (index,)) if item is not None]
    if axes[0] is None:
        return "each"
    if not BASIC_INDEX.issuperset(map(type, items)):
        return "batch"
    if Ellipsis in items:
        at = items.index(Ellipsis)
        items[at : at + 1] = [slice(None)] * (len(specs[0].shape) - len(items) + 1)
    taken = items[axes[0]] if axes[0] < len(items) else slice(None)
    return "each" if taken == slice(None) else None


@operator(cost=nothing, rows=_rows, shares=True)
def getitem(x, index: Index):
    """Return `x[index]` as NumPy does; in a program, an index may have only numbers, slices, `...` and None."""
    data = _taken(x.data, index)
    return LoDTensor.wrap(data, NO_LOD if x.structure is NO_LOD else _lod_after(x, index, data.shape))


def _taken(data, index):
    """Return `data[index]`; on a device, this is a contiguous copy."""
    items = index if isinstance(index, tuple) else (index,)
    if not on_device(data):
        # With an ellipsis, NumPy returns an array also for a single number.
        return data[index if any(item is Ellipsis for item in items) else (*items, Ellipsis)]
    if BASIC_INDEX.issuperset(map(type, items)):
        return as_operand(data[index])
    taken, height, width = _rows_taken(data.shape, index, items)
    rows = rows_at(as_operand(data).reshape((height, width)), np.ascontiguousarray(taken).reshape(-1))
    return rows.reshape(_indexed(data.shape, index))


def _lod_after(x, index, shape):
    lod = x.structure
    if lod.axis:  # the last states of layers: a number takes one layer, one entry per sequence; a slice takes several
        is_number = isinstance(index, (int, np.integer)) and not isinstance(index, bool)
        return lod.along(0) if is_number else lod if isinstance(index, slice) else NO_LOD
    return lod if _keeps_rows_first(x.shape, index, shape) else NO_LOD


@getitem.infer
def _infer_getitem(x, index):
    check_tensor("getitem", "x", x)
    try:
        shape = _indexed(x.shape, index)
    except (IndexError, TypeError, ValueError) as error:
        _check_bounds(x.shape, index)
        several = isinstance(index, tuple) and any(isinstance(item, Variable) for item in index)
        hint = "in a program, a Variable must be the whole index: x.transpose(0, 1)[index]" if several else None
        raise ShapeError("getitem", expected=f"an index into shape {x.shape}", got=index, hint=hint) from error
    keeps = x.lod_level and _keeps_rows_first(x.shape, index, shape)
    return TensorSpec(shape, x.dtype, x.lod_level if keeps else 0)


def _check_bounds(shape, index):
    """Raise OutOfRangeError if an index has a number that is outside of its axis."""
    items, axis = index if isinstance(index, tuple) else (index,), 0
    for item in items:
        if item is Ellipsis:
            axis += len(shape) - sum(_axes_of(other) for other in items if other is not Ellipsis)
            continue
        numbers = np.asarray(item if isinstance(item, (int, np.integer, np.ndarray)) else 0.0)
        if numbers.dtype.kind in "iu" and 0 <= axis < len(shape) and (size := shape[axis]) >= 0:
            outside = numbers[(numbers < -size) | (numbers >= size)]
            if len(outside):
                expected, got = f"-{size} <= index < {size}", int(outside[0])
                raise OutOfRangeError(f"getitem, axis {axis}", expected=expected, got=got)
        axis += _axes_of(item)


@getitem.backward("x", aliases={"d_y": "d_out"}, cost=nothing)
def _getitem_grad(x, d_y, index):
    data, items = zeros(x.shape, x.data), index if isinstance(index, tuple) else (index,)
    if BASIC_INDEX.issuperset(map(type, items)):  # such an index takes no element twice
        if on_device(data):
            assign(d_y.data, data[index])
        else:
            data[index] += d_y.data
    elif x.dtype in FLOATS:
        _add_where_taken(data, index, items, d_y.data)
    else:
        np.add.at(data, index, d_y.data)
    return x.like(data)


def _add_where_taken(data, index, items, d):
    """Add `d` to the elements of `data` that an index took; the index can take an element several times."""
    taken, height, width = _rows_taken(data.shape, index, items)
    rows = as_operand(d).reshape(taken.size, width)
    scatter_add_rows(rows, np.ascontiguousarray(taken).reshape(-1), data.reshape(height, width))


def _rows_taken(shape, index, items):
    """Return (positions that an index takes, number of positions, width): each position has `width` elements.

    The axes that the index names, flattened to one axis, have the positions; the axes behind them have the elements.
    """
    rank = len(shape) if any(item is Ellipsis for item in items) else sum(map(_axes_of, items))
    height, width = math.prod(shape[:rank]), math.prod(shape[rank:])
    return np.arange(height).reshape(shape[:rank])[index], height, width


def _axes_of(item):
    """Return how many axes of the array an item of an index applies to."""
    if item is None or item is True or item is False:
        return 0
    return item.ndim if isinstance(item, np.ndarray) and item.dtype == np.bool_ else 1


@getitem.examples
def _examples(rng):
    yield [rng.standard_normal((5, 3))], {"index": slice(1, 4)}
    yield [rows(rng, 3)], {"index": slice(None)}
    yield [rows(rng, 3)], {"index": (slice(None), slice(None, None, -2))}
    yield [rows(rng, 3)], {"index": (Ellipsis, None, 1)}


def _indexed(shape, index):
    """Return the shape of `array[index]`; a slice of an axis of unknown size has an unknown size."""
    if -1 not in shape:
        # NumPy indexes an array of one element in memory, by strides of 0; `np.broadcast_to` takes ten times as long.
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
    """Return whether the first axis of `array[index]`, which has the shape `indexed`, holds all rows.

    If slices separate several arrays of indices, NumPy puts the axes of these arrays before the rows.
    """
    items = index if isinstance(index, tuple) else (index,)
    if not items or not isinstance(items[0], slice) or items[0] != slice(None):
        return False
    if BASIC_INDEX.issuperset(map(type, items)):
        return True
    if sum(not (item is None or item is Ellipsis or isinstance(item, slice)) for item in items) == 1:
        return True  # a single number or array keeps its place among the axes
    # To apply NumPy's rules, index an array with one more row, too: the axis of the result that grows runs over rows.
    more = _indexed((shape[0] + 1, *shape[1:]), index)
    return (indexed[0], more[0]) == (shape[0], shape[0] + 1)
