"""Pooling: the last level becomes one row per sequence; the level above it, if any, then counts those rows."""

import math

import numpy as np

from varlen_rnn.device import as_operand, empty
from varlen_rnn.errors import OutOfRangeError, ShapeError
from varlen_rnn.kernels import pool
from varlen_rnn.lod import NO_LOD, LoD, LoDTensor, levels_of, remember
from varlen_rnn.ops.cost import per_input_element
from varlen_rnn.ops.examples import rows
from varlen_rnn.ops.sequence.movement import flat
from varlen_rnn.tape.checks import check_float, check_lod_level
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import TensorSpec

POOL_TYPES = ("sum", "mean", "sqrt", "max", "first", "last")
_PICKED = TensorSpec((-1, -1), np.dtype(np.int64))  # the row that each element of a maximum comes from


@operator(outputs=("out", "index"), intermediate=("index",), cost=per_input_element)
def sequence_pool(x, pool_type: str):
    """Return one row per sequence: the sum, mean, sum over the square root of the length, maximum, first or last row.

    Parameters
    ----------
    x : Variable or LoDTensor
        Rows with at least one level; the last level is pooled.
    pool_type : {"sum", "mean", "sqrt", "max", "first", "last"}

    Returns
    -------
    Variable of shape `(sequences, ...)`; zeros for an empty sequence.  With more levels, it keeps those above.

    Examples
    --------
    >>> x = LoDTensor(np.array([1.0, 3.0, 2.0, 4.0, 6.0]), [[0, 2, 5]])
    >>> np.asarray(sequence_pool(x, "mean")), np.asarray(sequence_pool(x, "max"))
    (array([2., 4.]), array([3., 6.]))

    Source: the operator `sequence_pool` of PaddlePaddle Fluid.
    """
    offsets, rows = levels_of(x.structure)[-1], flat(x.data)
    out = np.empty((len(offsets) - 1, rows.shape[1]), x.dtype)
    index = np.empty((0, rows.shape[1]), np.int64)
    if pool_type == "max":
        index = np.empty(out.shape, np.int64)
        pool.pool_max(rows, offsets, out, index)
    elif pool_type in ("first", "last"):
        index = _ends(offsets, pool_type, rows.shape[1])
        pool.pick_rows(rows, index, out)
    else:
        pool.pool_sum(rows, offsets, _scale(x, pool_type), out)
    lod = LoD(levels_of(x.structure)[:-1]) if x.num_levels > 1 else NO_LOD
    return LoDTensor.wrap(out.reshape(len(out), *x.shape[1:]), lod), LoDTensor.wrap(index)


def _scale(x, pool_type):
    """Return the factor of each sum; kept with the LoD, for the gradient."""
    return remember(x.structure, ("scale", pool_type, x.dtype), _scale_of, x, pool_type)


def _scale_of(x, pool_type):
    offsets = x.structure.levels[-1]
    if pool_type == "sum":
        return np.ones(len(offsets) - 1, x.dtype)
    lengths = np.maximum(1, offsets[1:] - offsets[:-1])
    return (1 / (lengths if pool_type == "mean" else np.sqrt(lengths))).astype(x.dtype)


def _ends(offsets, pool_type, width):
    """Return the row of the first or last step of each sequence, -1 of an empty one; once per feature."""
    begin, end = offsets[:-1], offsets[1:]
    rows = np.where(begin == end, -1, begin if pool_type == "first" else end - 1)
    return np.repeat(rows[:, None], width, axis=1)


@sequence_pool.infer
def _infer(x, pool_type):
    check_float("sequence_pool", x=x)
    check_lod_level("sequence_pool", "x", x)
    if pool_type not in POOL_TYPES:
        raise ShapeError("sequence_pool, pool_type", expected=f"one of {POOL_TYPES}", got=repr(pool_type))
    return TensorSpec((-1, *x.shape[1:]), x.dtype, x.lod_level - 1), _PICKED


@sequence_pool.backward("x")
def _pool_grad(x, index, d_out, pool_type):
    offsets, d_rows = x.structure.levels[-1], flat(d_out.data)
    d_x = empty((len(x.data), math.prod(x.shape[1:])), x.data)
    if len(d_rows) != len(offsets) - 1:
        raise ShapeError("sequence_pool_grad, d_out", expected=f"{len(offsets) - 1} sequences", got=len(d_rows))
    if pool_type in ("max", "first", "last"):
        _check_picked(index.data, d_rows, len(d_x))
        pool.pick_rows_grad(d_rows, as_operand(index.data), d_x)
    else:
        pool.pool_sum_grad(d_rows, offsets, _scale(x, pool_type), d_x)
    return x.like(d_x.reshape(x.shape))


def _check_picked(index, d_rows, num_rows):
    """Raise unless the index is one row of `x`, or -1, for each element; kernels use it unchecked."""
    if index.shape != d_rows.shape or (index.size and not -1 <= index.min() <= index.max() < num_rows):
        expected = f"rows of x, -1 to {num_rows - 1}, for shape {d_rows.shape}"
        raise OutOfRangeError("sequence_pool_grad, index", expected=expected, got=f"shape {index.shape}")


@sequence_pool.examples
def _examples(rng):
    for pool_type in POOL_TYPES:
        yield [rows(rng, 3)], {"pool_type": pool_type}
    yield [rows(rng, 2, 2)], {"pool_type": "sqrt"}
    for pool_type, *element in (("sum", 2, 0), ("max", 0)):  # nothing
        yield [rows(rng, *element)], {"pool_type": pool_type}
