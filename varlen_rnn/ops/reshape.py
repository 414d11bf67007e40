"""Reshape.  The LoD is kept if the first axis still holds the rows."""

import math

import numpy as np

from varlen_rnn.errors import ShapeError
from varlen_rnn.ops.cost import nothing
from varlen_rnn.ops.examples import rows
from varlen_rnn.rows.lod import NO_LOD, LoDTensor
from varlen_rnn.tape.checks import check_tensor
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import TensorSpec


def _rows(specs, axes, shape):
    """Return the trait "each" if the number of elements before and after the axis of rows stays, otherwise None."""
    old, axis = specs[0].shape, axes[0]
    if axis is None:
        return "each"
    new = shape.index(-1) if -1 in shape else len(shape)
    before, behind = (
        (math.prod(old[:axis]), math.prod(old[axis + 1 :])),
        (math.prod(shape[:new]), math.prod(shape[new + 1 :])),
    )
    return "each" if before == behind else None


@operator(cost=nothing, rows=_rows)
def reshape(x, shape: tuple[int, ...]):
    """Return the elements in another shape, in which one size may be -1."""
    try:
        data = x.data.reshape(shape)
    except (ValueError, TypeError) as error:
        raise ShapeError("reshape", expected=f"a shape of {x.data.size} elements", got=shape) from error
    return LoDTensor.wrap(data, x.structure if x.structure is not NO_LOD and _keeps_rows(x.shape, shape) else NO_LOD)


def _keeps_rows(old, new):
    """Return whether a new shape keeps the number of rows and the number of elements of a row."""
    same_size = len(new) > 0 and -1 not in (*old[1:], *new[1:]) and math.prod(old[1:]) == math.prod(new[1:])
    return same_size and new[0] in (-1, old[0])


@reshape.infer
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
    return TensorSpec(tuple(shape), x.dtype, x.lod_level if keeps else 0)


@reshape.backward("x", aliases={"d_y": "d_out"}, cost=nothing)
def _reshape_grad(x, d_y, shape):
    return x.like(d_y.data.reshape(x.shape))


@reshape.examples
def _examples(rng):
    yield [rows(rng, 3)], {"shape": (3, 6)}
    yield [rows(rng, 4)], {"shape": (-1, 2, 2)}
