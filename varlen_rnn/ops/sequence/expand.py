"""Sequences, or rows, once more for each entry of another variable's sequences."""

import numpy as np

from varlen_rnn.errors import LoDError, OutOfRangeError, ShapeError
from varlen_rnn.lod import NO_LOD, LoD, LoDTensor, levels_of, remember, take_sequences
from varlen_rnn.ops.cost import nothing
from varlen_rnn.ops.examples import TROUBLES, rows
from varlen_rnn.ops.sequence.movement import check_moved
from varlen_rnn.ops.sequence.taken import rows_taken, rows_taken_grad
from varlen_rnn.tape.checks import check_lod_level, check_tensor
from varlen_rnn.tape.declare import operator


def _expanded(x, y, ref_level):
    """Return the LoD of the result, and the row of `x` that each of its rows is."""
    times = np.diff(levels_of(y.structure)[ref_level])
    entries = x.num_elements(0) if x.num_levels else len(x.data)
    if entries != len(times):
        what = "sequences" if x.num_levels else "rows"
        expected = f"{len(times)} {what}, as level {ref_level} of y has sequences"
        raise LoDError("sequence_expand, x", expected=expected, got=entries)
    indices = np.repeat(np.arange(len(times)), times)
    return take_sequences(x.structure, indices) if x.num_levels else (NO_LOD, indices)


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
    _, index = _expanded(x, y, ref_level)
    return x.like(rows_taken_grad(_of_rows(d_out, len(index), "sequence_expand_grad"), index, len(x.data)))


def _of_rows(d_out, count, name):
    if not d_out.shape or len(d_out.data) != count:
        raise ShapeError(f"{name}, d_out", expected=f"{count} rows", got=f"shape {d_out.shape}")
    return d_out.data


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
    return LoDTensor.wrap(rows_taken(x.data, _row_of_sequence(x, y)), y.structure)


def _row_of_sequence(x, y):
    times = np.diff(levels_of(y.structure)[-1])
    if len(x.data) != len(times):
        expected = f"{len(times)} rows, as y has sequences"
        raise ShapeError("sequence_expand_as, x", expected=expected, got=f"shape {x.shape}")
    return remember(y.structure, "row of sequence", np.repeat, np.arange(len(times)), times)


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
    index = _row_of_sequence(x, y)
    return x.like(rows_taken_grad(_of_rows(d_out, len(index), "sequence_expand_as_grad"), index, len(x.data)))


@sequence_expand_as.examples
def _examples_as(rng):
    yield [rng.standard_normal((4, 2)), rows(rng, 3)], {}
    for lod in TROUBLES:
        yield [rng.standard_normal((len(lod.levels[-1]) - 1, 2)), rows(rng, lod=lod)], {}
