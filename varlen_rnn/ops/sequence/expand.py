"""Sequences, or rows, once more for each entry of another variable's sequences."""

import numpy as np

from varlen_rnn.device import empty
from varlen_rnn.errors import LoDError, OutOfRangeError, ShapeError
from varlen_rnn.kernels.pool import sum_copies
from varlen_rnn.lod import NO_LOD, LoD, LoDTensor, levels_of, remember, remember_last, take_sequences
from varlen_rnn.ops.cost import nothing
from varlen_rnn.ops.examples import TROUBLES, rows
from varlen_rnn.ops.sequence.movement import check_moved, flat
from varlen_rnn.ops.sequence.taken import rows_taken
from varlen_rnn.tape.checks import check_lod_level, check_tensor
from varlen_rnn.tape.declare import operator


def _times(x, y, ref_level):
    """Return how often each sequence, or row, of `x` stands in the result."""
    offsets = levels_of(y.structure)[ref_level]
    times = offsets[1:] - offsets[:-1]
    entries = x.num_elements(0) if x.num_levels else len(x.data)
    if entries != len(times):
        what = "sequences" if x.num_levels else "rows"
        expected = f"{len(times)} {what}, as level {ref_level} of y has sequences"
        raise LoDError("sequence_expand, x", expected=expected, got=entries)
    return times


def _expanded(x, y, ref_level):
    """Return the LoD of the result, and the row of `x` that each of its rows is."""
    times = _times(x, y, ref_level)
    return remember_last(y.structure, ("expanded", ref_level), x.structure, lambda: _copies(x.structure, times))


def _copies(lod, times):
    """Return the LoD of sequences, or rows, that stand so many times behind each other, and the row that each is."""
    indices = np.repeat(np.arange(len(times)), times)
    return take_sequences(lod, indices) if lod.num_levels else (NO_LOD, indices)


def _sum_of_copies(like, lod, d_out, times, name):
    """Return the gradient of rows, of whose sequences, or rows where they have no LoD, `d_out` has copies."""
    offsets = lod.rows_of_level(0) if lod.num_levels else np.arange(len(times) + 1)
    count = int(np.dot(np.diff(offsets), times))
    if not d_out.shape or len(d_out.data) != count:
        raise ShapeError(f"{name}, d_out", expected=f"{count} rows", got=f"shape {d_out.shape}")
    d_rows = flat(d_out.data)
    d_x = empty((len(like.data), d_rows.shape[1]), d_rows)
    sum_copies(d_rows, offsets, times, d_x)
    return like.like(d_x.reshape(like.shape))


@operator(cost=nothing)
def sequence_expand(x, y, ref_level: int = -1):
    """Return each sequence of `x`, or each row where it has no LoD, as often as the sequence of `y` has entries.

    Parameters
    ----------
    x : Variable or LoDTensor
        Rows of any data type, with as many sequences of level 0, or rows, as the level of `y` has sequences.
    y : Variable or LoDTensor
        Only its LoD is read.
    ref_level : int
        The level of `y` that counts; -1 is the last.

    Returns
    -------
    Variable, with the levels of `x`
        Copies of a sequence stand behind each other; a sequence of `y` without entries drops that of `x`.

    Examples
    --------
    >>> x = LoDTensor(np.array([1, 2, 3, 4]), [[0, 2, 4]])
    >>> y = LoDTensor(np.zeros(8), [[0, 2, 4], [0, 3, 6, 7, 8]])
    >>> out = sequence_expand(x, y, ref_level=0)
    >>> np.asarray(out), out.lod()
    (array([1, 2, 1, 2, 3, 4, 3, 4]), [[0, 2, 4, 6, 8]])

    Source: the operator `sequence_expand` of PaddlePaddle Fluid, which takes `x` of at most one level.
    """
    lod, index = _expanded(x, y, ref_level)
    return LoDTensor.wrap(rows_taken(x.data, index), lod)


@sequence_expand.infer
def _infer(x, y, ref_level):
    check_moved("sequence_expand", "x", x)
    check_tensor("sequence_expand", "y", y)
    check_lod_level("sequence_expand", "y", y)
    if not x.shape:
        raise ShapeError("sequence_expand, x", expected="rows", got="a single number")
    if not -y.lod_level <= ref_level < y.lod_level:
        expected = f"{-y.lod_level} <= ref_level < {y.lod_level}, a level of y"
        raise OutOfRangeError("sequence_expand, ref_level", expected=expected, got=ref_level)
    return x._replace(shape=(-1, *x.shape[1:]))


@sequence_expand.backward("x")
def _backward(x, y, d_out, ref_level):
    return _sum_of_copies(x, x.structure, d_out, _times(x, y, ref_level), "sequence_expand_grad")


@sequence_expand.examples
def _examples(rng):
    yield [rows(rng, 2), rows(rng, 1)], {"ref_level": 0}
    yield [rng.standard_normal((4, 2)), rows(rng)], {"ref_level": -1}
    for lod in TROUBLES:
        count = len(lod.levels[0]) - 1
        x = LoDTensor(rng.standard_normal((count, 2)), LoD.from_lengths([[1] * count]))
        yield [x, rows(rng, lod=lod)], {"ref_level": 0}


@operator(cost=nothing)
def sequence_expand_as(x, y):
    """Return each row of `x` once for each row of the sequence of `y` that it stands for.

    Parameters
    ----------
    x : Variable or LoDTensor
        Rows of any data type, one for each sequence of the last level of `y`.
    y : Variable or LoDTensor
        Only its LoD is read.

    Returns
    -------
    Variable, with the LoD of `y`

    Examples
    --------
    >>> out = sequence_expand_as(np.array([1, 2, 3]), LoDTensor(np.zeros(5), [[0, 2, 2, 5]]))
    >>> np.asarray(out), out.lod()
    (array([1, 1, 3, 3, 3]), [[0, 2, 2, 5]])

    Source: the operator `sequence_expand_as` of PaddlePaddle Fluid, which takes `y` of one level.
    """
    index = remember(y.structure, "row of sequence", _row_of_sequence, _lengths(x, y))
    return LoDTensor.wrap(rows_taken(x.data, index), y.structure)


def _lengths(x, y):
    """Return how often each row of `x` stands in the result."""
    offsets = levels_of(y.structure)[-1]
    times = offsets[1:] - offsets[:-1]
    if len(x.data) != len(times):
        expected = f"{len(times)} rows, as y has sequences"
        raise ShapeError("sequence_expand_as, x", expected=expected, got=f"shape {x.shape}")
    return times


def _row_of_sequence(times):
    return np.repeat(np.arange(len(times)), times)


@sequence_expand_as.infer
def _infer_as(x, y):
    check_moved("sequence_expand_as", "x", x)
    check_tensor("sequence_expand_as", "y", y)
    check_lod_level("sequence_expand_as", "y", y)
    if not x.shape or not y.shape:
        raise ShapeError("sequence_expand_as", expected="rows", got=[x.shape, y.shape])
    return x._replace(shape=(y.shape[0], *x.shape[1:]), lod_level=y.lod_level)


@sequence_expand_as.backward("x")
def _backward_as(x, y, d_out):
    return _sum_of_copies(x, NO_LOD, d_out, _lengths(x, y), "sequence_expand_as_grad")


@sequence_expand_as.examples
def _examples_as(rng):
    yield [rng.standard_normal((4, 2)), rows(rng, 3)], {}
    for lod in TROUBLES:
        yield [rng.standard_normal((len(lod.levels[-1]) - 1, 2)), rows(rng, lod=lod)], {}
