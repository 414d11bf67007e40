"""Take a slice of neighbouring rows of every sequence."""

import numpy as np

from varlen_rnn.errors import OutOfRangeError, ShapeError
from varlen_rnn.kernels.rows import copy_runs, place_slices
from varlen_rnn.ops.cost import nothing
from varlen_rnn.ops.examples import rows
from varlen_rnn.ops.sequence.movement import check_moved, flat, unflat
from varlen_rnn.ops.sequence.taken import runs_placed
from varlen_rnn.rows.checks import read_only
from varlen_rnn.rows.lod import LoD, LoDTensor, levels_of
from varlen_rnn.runtime.device import empty, host_numbers
from varlen_rnn.tape.checks import check_integer, check_lod_level
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import spec_of_tensor


def _placed(x, offset, length):
    """Return the first row of each slice, the offsets of the result, and the length of each slice."""
    offsets = levels_of(x.structure)[-1]
    count = len(offsets) - 1
    begins, lengths = _numbers("offset", offset, count), _numbers("length", length, count)
    starts, new_offsets = np.empty(count, np.int64), np.empty(count + 1, np.int64)
    if (i := place_slices(offsets, begins, lengths, starts, new_offsets)) >= 0:
        expected = f"rows 0 to {offsets[i + 1] - offsets[i]}"
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
def _infer(x, offset, length):
    check_moved("sequence_slice", "x", x)
    check_lod_level("sequence_slice", "x", x)
    check_integer("sequence_slice", offset=offset, length=length)
    return spec_of_tensor((-1, *x.shape[1:]), x.dtype, x.lod_level)


@sequence_slice.backward("x")
def _backward(x, offset, length, d_out):
    starts, new_offsets, lengths = _placed(x, offset, length)
    if not d_out.shape or len(d_out.data) != new_offsets[-1]:
        raise ShapeError("sequence_slice_grad, d_out", expected=f"{new_offsets[-1]} rows", got=f"shape {d_out.shape}")
    return x.like(runs_placed(d_out.data, starts, lengths, len(x.data)))


@sequence_slice.examples
def _examples(rng):
    yield [rows(rng, 3), np.array([1, 0, 0, 0]), np.array([1, 0, 2, 1])], {}
    yield [rows(rng), np.zeros((4, 1), np.int32), np.zeros((4, 1), np.int32)], {}
    yield [LoDTensor(np.zeros((0, 2)), [[0]]), np.zeros(0, np.int64), np.zeros(0, np.int64)], {}
    two = LoD.from_lengths([[2, 0, 1], [2, 0, 3]])
    yield [rows(rng, 2, lod=two), np.array([1, 0, 1]), np.array([1, 0, 2])], {}
