"""Operators that reshape an array or exchange two of its axes; they keep the LoD if they keep the rows."""

import math

import numpy as np

from varlen_rnn.errors import ShapeError
from varlen_rnn.kernels.copies import exchanged
from varlen_rnn.ops.cost import nothing
from varlen_rnn.ops.examples import rows
from varlen_rnn.rows.lod import NO_LOD, LoDTensor
from varlen_rnn.tape.checks import check_tensor
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import TensorSpec


def _rows(specs, axes, shape):
    """Return how `reshape` treats rows: "each", ("batch", the axis of the result that runs over rows), or None.

    An axis runs over rows if the product of the sizes before it is the same as before the axis of rows in `x`.  "each"
    means that each row stays one entry.  "batch" means that it becomes several entries, or `shape` fixes their number.
    """
    old, axis = specs[0].shape, axes[0]
    if axis is None:
        return "each"
    before, count, behind = math.prod(old[:axis]), old[axis], math.prod(old[axis + 1 :])
    exact, several = None, None
    for new, size in enumerate(shape):
        if math.prod(shape[:new]) == before:
            after = math.prod(shape[new + 1 :])
            if size == -1 and (behind == after or (after and behind % after == 0)):
                return "each" if behind == after else ("batch", new)
            if size == count != -1:
                exact = exact or ("batch", new)
            elif size > 0 < count and size % count == 0:
                several = several or ("batch", new)
    return exact or several


@operator(cost=nothing, rows=_rows, shares=True)
def reshape(x, shape: tuple[int, ...]):
    """Return the elements in another shape, in which one size may be -1."""
    try:
        data = x.data.reshape(shape)
    except (ValueError, TypeError) as error:
        raise ShapeError("reshape", expected=f"a shape of {x.data.size} elements", got=shape) from error
    return LoDTensor.wrap(
        data, x.structure if x.structure is not NO_LOD and _keeps_rows_of_reshape(x.shape, shape) else NO_LOD
    )


def _keeps_rows_of_reshape(old, new):
    """Return whether a new shape keeps the number of rows and the number of elements of a row."""
    same_size = len(new) > 0 and -1 not in (*old[1:], *new[1:]) and math.prod(old[1:]) == math.prod(new[1:])
    return same_size and new[0] in (-1, old[0])


@reshape.infer
def _infer_reshape(x, shape):
    check_tensor("reshape", "x", x)
    if any(
        isinstance(size, bool) or not isinstance(size, (int, np.integer)) or (size != -1 and size < -1)
        for size in shape
    ):
        raise ShapeError("reshape", expected="sizes of at least 0, and at most one -1", got=shape)
    if list(shape).count(-1) > 1 and _keeps_rows_of_reshape(x.shape, shape) is False:
        raise ShapeError("reshape", expected="at most one -1", got=shape)
    if (
        x.lod_level
        and x.shape[0] == -1
        and shape
        and shape[0] != -1
        and _keeps_rows_of_reshape(x.shape, (-1, *shape[1:]))
    ):
        hint = "give -1 for the rows, because their number is known only in a run"
        raise ShapeError("reshape", expected="-1 first, for rows with a LoD", got=tuple(shape), hint=hint)
    keeps = len(x.shape) > 0 and _keeps_rows_of_reshape(x.shape, shape)
    shape = list(map(int, shape))
    if -1 in shape and (keeps or -1 not in x.shape):
        shape[shape.index(-1)] = x.shape[0] if keeps else math.prod(x.shape) // max(1, -math.prod(shape))
    if -1 not in (*x.shape, *shape) and math.prod(shape) != math.prod(x.shape):
        raise ShapeError("reshape", expected=f"a shape of {math.prod(x.shape)} elements", got=shape)
    return TensorSpec(tuple(shape), x.dtype, x.lod_level if keeps else 0)


@reshape.backward("x", aliases={"d_y": "d_out"}, cost=nothing)
def _reshape_grad(x, d_y, shape):
    return x.like(d_y.data.reshape(x.shape))


@reshape.examples
def _reshape_examples(rng):
    yield [rows(rng, 3)], {"shape": (3, 6)}
    yield [rows(rng, 4)], {"shape": (-1, 2, 2)}


@operator(cost=nothing, rows="each")
def transpose(x, axis0: int, axis1: int):
    """Return `x` with two axes exchanged."""
    return LoDTensor.wrap(exchanged(x.data, axis0, axis1), _lod_after(x, axis0, axis1))


def _lod_after(x, axis0, axis1):
    lod, moved = x.structure, {axis0 % len(x.shape), axis1 % len(x.shape)}
    if len(moved) == 1 or lod.axis not in moved:
        return lod
    return lod.along(1 - lod.axis) if not lod.num_levels and moved == {0, 1} else NO_LOD


def _keeps_first(x, axis0, axis1):
    rank = len(x.shape)
    return axis0 % rank == axis1 % rank or (axis0 % rank > 0 and axis1 % rank > 0)


@transpose.infer
def _infer(x, axis0, axis1):
    check_tensor("transpose", "x", x)
    for name, axis in (("axis0", axis0), ("axis1", axis1)):
        if not -len(x.shape) <= axis < len(x.shape):
            raise ShapeError(f"transpose, {name}", expected=f"an axis of shape {x.shape}", got=axis)
    shape = list(x.shape)
    shape[axis0], shape[axis1] = shape[axis1], shape[axis0]
    return TensorSpec(tuple(shape), x.dtype, x.lod_level if _keeps_first(x, axis0, axis1) else 0)


@transpose.backward("x", aliases={"d_y": "d_out"}, cost=nothing)
def _transpose_grad(x, d_y, axis0, axis1):
    return x.like(exchanged(d_y.data, axis0, axis1))


@transpose.examples
def _transpose_examples(rng):
    yield [rows(rng, 2, 3)], {"axis0": 1, "axis1": -1}
    yield [rows(rng, 3)], {"axis0": 0, "axis1": 1}
    yield [rng.standard_normal((2, 3, 4))], {"axis0": -1, "axis1": 0}
