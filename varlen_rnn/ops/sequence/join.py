"""Cut a slice of neighbouring rows out of every sequence, and join sequences along their steps."""

import numpy as np

from varlen_rnn.errors import DTypeError, LoDError, OutOfRangeError, ShapeError
from varlen_rnn.kernels.rows import copy_runs, place_slices
from varlen_rnn.ops.cost import nothing
from varlen_rnn.ops.examples import rows
from varlen_rnn.ops.sequence.movement import check_moved, flat, unflat
from varlen_rnn.ops.sequence.taken import runs_placed, runs_taken
from varlen_rnn.rows.checks import read_only
from varlen_rnn.rows.lod import LoD, LoDTensor, levels_of, lod_of, same_offsets
from varlen_rnn.runtime.device import as_operand, empty, host_numbers
from varlen_rnn.tape.checks import check_integer, check_lod_level
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import spec_of_tensor
from varlen_rnn.tape.variable import Variable, apply_list


def _placed(x, offset, length):
    """Return the first row of each slice in `x`, the offsets of the result, and the length of each slice."""
    offsets = levels_of(x.structure)[-1]
    count = len(offsets) - 1
    begins, lengths = _numbers("offset", offset, count), _numbers("length", length, count)
    starts, new_offsets = np.empty(count, np.int64), np.empty(count + 1, np.int64)
    if (i := place_slices(offsets, begins, lengths, starts, new_offsets)) >= 0:
        expected = f"a slice inside of its {offsets[i + 1] - offsets[i]} rows"
        got = f"offset {begins[i]} and length {lengths[i]}"
        raise OutOfRangeError(f"sequence_slice, sequence {i}", expected=expected, got=got)
    return starts, new_offsets, lengths


def _numbers(name, given, count):
    """Return one number per sequence, as a copy, because a kernel will trust the checked numbers."""
    if given.shape not in ((count,), (count, 1)):
        expected = f"a number for each of {count} sequences"
        raise ShapeError(f"sequence_slice, {name}", expected=expected, got=f"shape {given.shape}")
    return host_numbers(given.data).reshape(-1).astype(np.int64)


@operator(cost=nothing, rows="batch")
def sequence_slice(x, offset, length):
    """Return the `length[i]` rows of each sequence i of the last level that begin with its row `offset[i]`.

    Parameters
    ----------
    x : Variable or LoDTensor
        Rows of any data type with at least one level.
    offset, length : integers, shape `(sequences,)` or `(sequences, 1)`
        A length may be 0.

    Returns
    -------
    Variable whose last level has the given lengths; the levels above stay

    Raises
    ------
    OutOfRangeError
        If a slice has rows outside of its sequence.

    Examples
    --------
    >>> out = sequence_slice(LoDTensor(np.arange(5), [[0, 2, 5]]), np.array([1, 0]), np.array([1, 2]))
    >>> np.asarray(out), out.lod()
    (array([1, 2, 3]), [[0, 1, 3]])

    Source: the operator `sequence_slice` of PaddlePaddle Fluid, which takes one level.
    """
    (starts, new_offsets, lengths), rows = _placed(x, offset, length), flat(x.data)
    out = empty((int(new_offsets[-1]), rows.shape[1]), rows)
    copy_runs(rows, starts, new_offsets, lengths, out)
    lod = LoD.trusted([*levels_of(x.structure)[:-1], read_only(new_offsets)])
    return LoDTensor.wrap(unflat(out, x.data), lod.at_positions_of(x.structure))


@sequence_slice.infer
def _infer_slice(x, offset, length):
    check_moved("sequence_slice", "x", x)
    check_lod_level("sequence_slice", "x", x)
    check_integer("sequence_slice", offset=offset, length=length)
    return spec_of_tensor((-1, *x.shape[1:]), x.dtype, x.lod_level)


@sequence_slice.backward("x")
def _backward(x, offset, length, d_out):
    starts, new_offsets, _ = _placed(x, offset, length)
    if not d_out.shape or len(d_out.data) != new_offsets[-1]:
        raise ShapeError("sequence_slice_grad, d_out", expected=f"{new_offsets[-1]} rows", got=f"shape {d_out.shape}")
    return x.like(runs_placed(d_out.data, starts, new_offsets, len(x.data)))


@sequence_slice.examples
def _slice_examples(rng):
    yield [rows(rng, 3), np.array([1, 0, 0, 0]), np.array([1, 0, 2, 1])], {}
    yield [rows(rng), np.zeros((4, 1), np.int32), np.zeros((4, 1), np.int32)], {}
    yield [LoDTensor(np.zeros((0, 2)), [[0]]), np.zeros(0, np.int64), np.zeros(0, np.int64)], {}
    two = LoD.from_lengths([[2, 0, 1], [2, 0, 3]])
    yield [rows(rng, 2, lod=two), np.array([1, 0, 1]), np.array([1, 0, 2])], {}


def _joined(inputs):
    """Return the offsets of the result, and for each input its offsets, and where its sequences begin in the result."""
    levels = [levels_of(x.structure)[-1] for x in inputs]
    offsets = sum(levels[1:], start=levels[0])
    places = [offsets[:-1]]
    for level in levels[:-1]:
        places.append(places[-1] + (level[1:] - level[:-1]))
    return offsets, list(zip(levels, places, strict=True))


@operator(name="sequence_concat", cost=nothing, rows="sequence")
def _join(*x):
    """Concatenate sequence i of all inputs, for each i."""
    first = levels_of(x[0].structure)
    for number, other in enumerate(x[1:], 1):
        levels = levels_of(other.structure)
        if len(levels[-1]) != len(first[-1]):
            expected = f"{len(first[-1]) - 1} sequences, as many as the first input has"
            raise LoDError(f"sequence_concat, x_{number}", expected=expected, got=len(levels[-1]) - 1)
        if not all(map(same_offsets, levels[:-1], first[:-1])):
            expected = "the same levels above the last as in the first input"
            raise LoDError(f"sequence_concat, x_{number}", expected=expected, got="other levels")
    offsets, runs = _joined(x)
    inputs = [flat(one.data) for one in x]
    out = empty((sum(map(len, inputs)), inputs[0].shape[1]), inputs[0])
    for rows_of_one, (level, places) in zip(inputs, runs, strict=True):
        copy_runs(rows_of_one, as_operand(level), as_operand(places), level[1:] - level[:-1], out)
    lod = lod_of([*first[:-1], offsets], len(out))
    return LoDTensor.wrap(out.reshape(len(out), *x[0].shape[1:]), lod.at_positions_of(x[0].structure))


_join.grad(lambda inputs, outputs, d_outputs: apply_list("sequence_split", d_outputs[0], *inputs))


@_join.infer
def _infer_join(*x):
    if not x:
        raise ShapeError("sequence_concat", expected="at least one input", got="none")
    for number, one in enumerate(x):
        check_moved("sequence_concat", f"x_{number}", one)
        check_lod_level("sequence_concat", f"x_{number}", one)
        if one.dtype != x[0].dtype:
            raise DTypeError(f"sequence_concat, x_{number}", expected=x[0].dtype, got=one.dtype)
        if one.shape[1:] != x[0].shape[1:] or one.lod_level != x[0].lod_level:
            expected, got = (f"rows of shape {spec.shape[1:]} and {spec.lod_level} levels" for spec in (x[0], one))
            raise ShapeError(f"sequence_concat, x_{number}", expected=expected, got=got)
    return x[0]._replace(shape=(-1, *x[0].shape[1:]))


@_join.examples
def _join_examples(rng):
    other = LoD.from_lengths([[1, 2, 0, 0]])
    yield [rows(rng, 2), rows(rng, 2, lod=other), rows(rng, 2)], {}
    two = LoD.from_lengths([[2, 0, 1], [2, 0, 3]])
    yield [rows(rng, lod=two), rows(rng, lod=two)], {}
    yield [LoDTensor(np.zeros((0, 2)), [[0]])] * 2, {}


@operator(name="sequence_split", outputs=("*out",), cost=nothing)
def _split(joined, *like):
    """Split the result of `sequence_concat`, or its gradient, into the rows of each input."""
    _, runs = _joined(like)
    count = sum(len(x.data) for x in like)
    if count != len(joined.data):
        expected = f"{count} rows, as many as all inputs have"
        raise ShapeError("sequence_split, joined", expected=expected, got=len(joined.data))
    pairs = zip(like, runs, strict=True)
    return tuple(x.like(runs_taken(joined.data, places, level, len(x.data))) for x, (level, places) in pairs)


@_split.infer
def _infer_split(joined, *like):
    whole = _infer_join(*like)
    check_moved("sequence_split", "joined", joined)
    if joined.dtype != whole.dtype or joined.shape[1:] != whole.shape[1:]:
        expected = f"rows of {whole.shape[1:]} {whole.dtype}"
        raise ShapeError("sequence_split, joined", expected=expected, got=joined.shape)
    return list(like)


@_split.examples
def _examples_split(rng):
    other = LoD.from_lengths([[1, 2, 0, 0]])
    yield [rng.integers(0, 9, (9, 2)), LoDTensor(np.zeros((6, 2), np.int64), [[0, 2, 2, 5, 6]]),
           LoDTensor(np.zeros((3, 2), np.int64), other)], {}  # fmt: skip


def sequence_concat(inputs: list) -> Variable:
    """Concatenate sequence i of all inputs along its steps, for each i.

    Parameters
    ----------
    inputs : list of Variable or LoDTensor
        Rows of one data type and element shape, with the same number of sequences of the last level, and equal
        levels above.

    Examples
    --------
    >>> x, y = LoDTensor(np.array([1, 2, 3]), [[0, 1, 3]]), LoDTensor(np.array([7, 8]), [[0, 2, 2]])
    >>> out = sequence_concat([x, y])
    >>> np.asarray(out), out.lod()
    (array([1, 7, 8, 2, 3]), [[0, 3, 5]])

    Source: the operator `sequence_concat` of PaddlePaddle Fluid, which takes one level.
    """
    if not isinstance(inputs, (list, tuple)):
        raise DTypeError("sequence_concat, inputs", expected="a list", got=type(inputs).__name__)
    return _join(*inputs)
