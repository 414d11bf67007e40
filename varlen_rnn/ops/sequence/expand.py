"""Repeat sequences, or rows, as often as the sequences of another variable have entries."""

from typing import NamedTuple

import numpy as np

from varlen_rnn.errors import LoDError, OutOfRangeError, ShapeError
from varlen_rnn.kernels.copies import full
from varlen_rnn.kernels.moves import repeat_sequences
from varlen_rnn.kernels.pool import pool_sum, sum_copies
from varlen_rnn.ops.cost import nothing
from varlen_rnn.ops.examples import TROUBLES, rows
from varlen_rnn.ops.indices import evenly
from varlen_rnn.ops.sequence.movement import check_moved, flat, unflat
from varlen_rnn.rows.lod import NO_LOD, LoD, LoDTensor, levels_of, remember, remember_last, take_sequences
from varlen_rnn.runtime.device import empty
from varlen_rnn.tape.checks import check_has_rows, check_lod_level, check_tensor
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import spec_of_tensor


def _check_entries(x, y, ref_level):
    """Raise unless `x` has as many sequences, or rows, as the level of `y` has sequences."""
    lod, offsets = x.structure, levels_of(y.structure)[ref_level]
    entries = len(levels_of(lod)[0]) - 1 if lod.num_levels else len(x.data)
    if entries != len(offsets) - 1:
        what = "sequences" if lod.num_levels else "rows"
        expected = f"{len(offsets) - 1} {what}, as many as level {ref_level} of y has sequences"
        raise LoDError("sequence_expand, x", expected=expected, got=entries)


class _Copies(NamedTuple):
    """How often sequences (or rows) are repeated, read from another LoD, which caches this record.

    lod: the LoD of the copies
    num_rows: the number of rows of all copies
    offsets: (sequences + 1,) int64, the rows at which each sequence (or row) begins, and the end
    times: (sequences,) int64, how often each sequence (or row) is repeated
    """

    lod: LoD
    num_rows: int
    offsets: np.ndarray
    times: np.ndarray


def _copies(x, y, ref_level):
    _check_entries(x, y, ref_level)
    lod, other = x.structure, y.structure
    if not lod.num_levels:
        return _copies_of_rows(other, ref_level)
    return remember_last(other, ("expanded", ref_level), lod, lambda: _copies_of(lod, levels_of(other)[ref_level]))


def _copies_of(lod, offsets):
    times = np.diff(offsets)
    lod_of_copies, _ = take_sequences(lod, np.repeat(np.arange(len(times)), times))
    # The offsets are copied, because Numba would compile the kernels again for a read-only array.
    return _Copies(lod_of_copies, lod_of_copies.num_rows, lod.rows_of_level(0).copy(), times)


def _copies_of_rows(lod, level):
    return remember(lod, ("copies of rows", level), _of_rows, lod, level)


def _of_rows(lod, level):
    below, offsets = levels_of(lod)[level:], levels_of(lod)[level]
    count = lod.num_rows if len(below) == 1 else len(below[1]) - 1
    return _Copies(NO_LOD, count, evenly(len(offsets), offsets), offsets[1:] - offsets[:-1])


def _repeated(x, copies, lod):
    rows = flat(x.data)
    out = empty((copies.num_rows, rows.shape[1]), rows)
    repeat_sequences(rows, copies.offsets, copies.times, out)
    return LoDTensor.wrap(unflat(out, x.data), lod)


@operator(cost=nothing, rows="batch")
def sequence_expand(x, y, ref_level: int = -1):
    """Repeat each sequence of `x`, or each row if it has no LoD, as often as its sequence of `y` has entries.

    Parameters
    ----------
    x : Variable or LoDTensor
        Rows of any data type, with one sequence of level 0, or one row, for each sequence of `y` at `ref_level`.
    y : Variable or LoDTensor
        Only its LoD is read.
    ref_level : int
        The level of `y` whose sequences are used; -1 is the last.

    Returns
    -------
    Variable, with the levels of `x`
        Copies of a sequence follow each other; if a sequence of `y` is empty, the sequence of `x` is dropped.

    Examples
    --------
    >>> x = LoDTensor(np.array([1, 2, 3, 4]), [[0, 2, 4]])
    >>> y = LoDTensor(np.zeros(8), [[0, 2, 4], [0, 3, 6, 7, 8]])
    >>> out = sequence_expand(x, y, ref_level=0)
    >>> np.asarray(out), out.lod()
    (array([1, 2, 1, 2, 3, 4, 3, 4]), [[0, 2, 4, 6, 8]])

    Source: the operator `sequence_expand` of PaddlePaddle Fluid, which takes `x` of at most one level.
    """
    copies = _copies(x, y, ref_level)
    return _repeated(x, copies, copies.lod)


@sequence_expand.infer
def _infer(x, y, ref_level):
    check_moved("sequence_expand", "x", x)
    check_tensor("sequence_expand", "y", y)
    check_lod_level("sequence_expand", "y", y)
    check_has_rows("sequence_expand", "x", x)
    if not -y.lod_level <= ref_level < y.lod_level:
        expected = f"{-y.lod_level} <= ref_level < {y.lod_level}, a level of y"
        raise OutOfRangeError("sequence_expand, ref_level", expected=expected, got=ref_level)
    return spec_of_tensor((-1, *x.shape[1:]), x.dtype, x.lod_level)


@sequence_expand.backward("x")
def _backward(x, y, d_out, ref_level):
    copies = _copies(x, y, ref_level)
    d_rows = _rows_of("sequence_expand_grad", d_out, copies.num_rows)
    d_x = empty((len(x.data), d_rows.shape[1]), d_rows)
    sum_copies(d_rows, copies.offsets, copies.times, d_x)
    return x.like(d_x.reshape(x.shape))


def _rows_of(op, d_out, count):
    """Return the rows of a gradient as an operand of kernels; raise unless there are `count` rows."""
    if not d_out.shape or len(d_out.data) != count:
        raise ShapeError(f"{op}, d_out", expected=f"{count} rows", got=f"shape {d_out.shape}")
    return flat(d_out.data)


@sequence_expand.examples
def _examples(rng):
    yield [rows(rng, 2), rows(rng, 1)], {"ref_level": 0}
    yield [rng.standard_normal((4, 2)), rows(rng)], {"ref_level": -1}
    for lod in TROUBLES:
        count = len(lod.levels[0]) - 1
        x = LoDTensor(rng.standard_normal((count, 2)), LoD.from_lengths([[1] * count]))
        yield [x, rows(rng, lod=lod)], {"ref_level": 0}


@operator(cost=nothing, rows="batch")
def sequence_expand_as(x, y):
    """Repeat each row i of `x` once for each row of sequence i of `y`.

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
    _check_rows(x, y)
    lod = y.structure
    return _repeated(x, _copies_of_rows(lod, -1), lod)


def _check_rows(x, y):
    """Raise unless `x` has a row for each sequence of the last level of `y`."""
    count = len(levels_of(y.structure)[-1]) - 1
    if len(x.data) != count:
        expected = f"{count} rows, as many as y has sequences"
        raise ShapeError("sequence_expand_as, x", expected=expected, got=f"shape {x.shape}")


@sequence_expand_as.infer
def _infer_as(x, y):
    check_moved("sequence_expand_as", "x", x)
    check_tensor("sequence_expand_as", "y", y)
    check_lod_level("sequence_expand_as", "y", y)
    if not x.shape or not y.shape:
        raise ShapeError("sequence_expand_as", expected="x and y with rows", got=f"shapes {x.shape} and {y.shape}")
    return spec_of_tensor((y.shape[0], *x.shape[1:]), x.dtype, y.lod_level)


@sequence_expand_as.backward("x")
def _backward_as(x, y, d_out):
    _check_rows(x, y)
    d_rows = _rows_of("sequence_expand_as_grad", d_out, y.structure.num_rows)
    d_x = empty((len(x.data), d_rows.shape[1]), d_rows)
    pool_sum(d_rows, levels_of(y.structure)[-1], full((len(d_x),), 1, d_x), d_x)
    return x.like(d_x.reshape(x.shape))


@sequence_expand_as.examples
def _examples_as(rng):
    yield [rng.standard_normal((4, 2)), rows(rng, 3)], {}
    for lod in TROUBLES:
        yield [rng.standard_normal((len(lod.levels[-1]) - 1, 2)), rows(rng, lod=lod)], {}
