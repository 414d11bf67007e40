"""Add the updates of sequence i to row i of a batch, at the positions in sequence i of an index."""

import math

import numpy as np

from varlen_rnn.errors import LoDError, ShapeError
from varlen_rnn.kernels.copies import copied
from varlen_rnn.kernels.rows import scatter_add_rows
from varlen_rnn.ops.cost import size
from varlen_rnn.ops.examples import LOD, TROUBLES, rows
from varlen_rnn.ops.indices import indices, rows_at
from varlen_rnn.rows.lod import LoDTensor, levels_of
from varlen_rnn.runtime.device import as_operand
from varlen_rnn.tape.checks import check_float, check_integer, check_lod_level, shared_lod
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import sizes_fit


def _places(op, x, index, updates):
    """Return the flat position in `x`, counted over all rows, at which each update is added."""
    shared_lod(op, index, updates, names=("index", "updates"))
    offsets = levels_of(index.structure)[-1]
    if len(x.data) != len(offsets) - 1:
        raise LoDError(f"{op}, x", expected=f"{len(offsets) - 1} rows, as index has sequences", got=len(x.data))
    if len(updates.data) != offsets[-1]:
        raise ShapeError(f"{op}, updates", expected=f"{offsets[-1]} rows, as index", got=f"shape {updates.shape}")
    positions = indices(f"{op}, index", index, x.shape[1], "position")
    return positions + np.repeat(np.arange(len(x.data)) * x.shape[1], np.diff(offsets))


def _by_position(data):
    """Return a batch as one row per position, as an operand of kernels."""
    return as_operand(data).reshape(data.shape[0] * data.shape[1], math.prod(data.shape[2:]))


def _added(inputs, outputs):
    """1 operation per element of the updates."""
    return size(inputs[2])


@operator(cost=_added, rows="batch")
def sequence_scatter(x, index, updates):
    """Return `x` with the updates of sequence i added to row i, at the positions in sequence i of `index`.

    Parameters
    ----------
    x : Variable or array, shape `(sequences, positions, ...)`
    index : Variable or LoDTensor of integers, shape `(rows,)` or `(rows, 1)`
        With at least one level; the sequences are taken from the last level.  Positions may repeat: all updates are
        added.
    updates : Variable or LoDTensor, shape `(rows, ...)`, the data type of `x`
        With the LoD of `index`, or without a LoD.  Updates of single numbers may have the shape `(rows, 1)`.

    Returns
    -------
    Variable of the shape of `x`

    Raises
    ------
    OutOfRangeError
        If `x` does not have a position.

    Examples
    --------
    >>> index = LoDTensor(np.array([2, 2, 0]), [[0, 2, 3]])
    >>> np.asarray(sequence_scatter(np.zeros((2, 3)), index, np.array([1.0, 2.0, 4.0])))
    array([[0., 0., 3.],
           [4., 0., 0.]])

    Source: the operator `sequence_scatter` of PaddlePaddle Fluid, which takes one level and does not check positions.
    """
    places = _places("sequence_scatter", x, index, updates)
    out = copied(x.data)
    added = as_operand(updates.data).reshape(len(places), math.prod(x.shape[2:]))
    scatter_add_rows(added, places, _by_position(out))
    return x.like(out)


@sequence_scatter.infer
def _infer(x, index, updates):
    check_float("sequence_scatter", x=x, updates=updates)
    check_integer("sequence_scatter", index=index)
    check_lod_level("sequence_scatter", "index", index)
    if len(x.shape) < 2:
        raise ShapeError("sequence_scatter, x", expected="(sequences, positions, ...)", got=f"shape {x.shape}")
    if index.shape[1:] not in ((), (1,)):
        raise ShapeError("sequence_scatter, index", expected="one position per row", got=f"shape {index.shape}")
    element = x.shape[2:]
    if not updates.shape or not any(sizes_fit(updates.shape[1:], one) for one in (element, element or (1,))):
        expected = f"rows of {element}, as positions of x"
        raise ShapeError("sequence_scatter, updates", expected=expected, got=f"shape {updates.shape}")
    return x


@sequence_scatter.backward("x", "updates")
def _backward(x, index, updates, d_out):
    places = _places("sequence_scatter_grad", x, index, updates)
    d_updates = rows_at(_by_position(d_out.data), places)
    return x.like(d_out.data), updates.like(d_updates.reshape(updates.shape))


@sequence_scatter.examples
def _examples(rng):
    index = LoDTensor(np.array([1, 1, 0, 2, 2, 1], np.int32), LOD)
    yield [rng.standard_normal((4, 3)), index, rows(rng)], {}
    yield [rng.standard_normal((4, 3, 2)), index, rng.standard_normal((6, 2))], {}
    yield [rng.standard_normal((4, 3)), index.like(index.data[:, None]), rows(rng, 1)], {}
    for lod in TROUBLES:
        index = LoDTensor(rng.integers(0, 3, lod.num_rows), lod)
        yield [rng.standard_normal((len(lod.levels[-1]) - 1, 3)), index, rows(rng, lod=lod)], {}
