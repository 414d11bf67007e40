"""Exchange of two axes.  The LoD is kept if the rows remain the first axis."""

from varlen_rnn.errors import ShapeError
from varlen_rnn.kernels.copies import exchanged
from varlen_rnn.ops.cost import nothing
from varlen_rnn.ops.examples import rows
from varlen_rnn.rows.lod import NO_LOD, LoDTensor
from varlen_rnn.tape.checks import check_tensor
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import TensorSpec


@operator(cost=nothing, rows="each")
def transpose(x, axis0: int, axis1: int):
    """Return `x` with two axes exchanged."""
    return LoDTensor.wrap(exchanged(x.data, axis0, axis1), _lod_after(x, axis0, axis1))


def _lod_after(x, axis0, axis1):
    lod, moved = x.structure, {axis0 % len(x.shape), axis1 % len(x.shape)}
    if len(moved) == 1 or lod.axis not in moved:
        return lod
    return lod.along(1 - lod.axis) if not lod.num_levels and moved == {0, 1} else NO_LOD


def _keeps_rows(x, axis0, axis1):
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
    return TensorSpec(tuple(shape), x.dtype, x.lod_level if _keeps_rows(x, axis0, axis1) else 0)


@transpose.backward("x", aliases={"d_y": "d_out"}, cost=nothing)
def _transpose_grad(x, d_y, axis0, axis1):
    return x.like(exchanged(d_y.data, axis0, axis1))


@transpose.examples
def _examples(rng):
    yield [rows(rng, 2, 3)], {"axis0": 1, "axis1": -1}
    yield [rows(rng, 3)], {"axis0": 0, "axis1": 1}
    yield [rng.standard_normal((2, 3, 4))], {"axis0": -1, "axis1": 0}
