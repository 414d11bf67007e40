"""Means of the largest numbers in the rows of matrices, whose sizes differ from sequence to sequence."""

import numpy as np

from varlen_rnn.errors import LoDError, OutOfRangeError, ShapeError
from varlen_rnn.kernels.arithmetic import divide
from varlen_rnn.kernels.largest import largest
from varlen_rnn.kernels.segment import init_memories_grad
from varlen_rnn.kernels.windows import cumsum
from varlen_rnn.ops.cost import per_input_element
from varlen_rnn.ops.examples import LOD, TROUBLES, rows
from varlen_rnn.ops.sequence.taken import rows_taken, rows_taken_grad
from varlen_rnn.rows.lod import LoD, levels_of
from varlen_rnn.runtime.device import as_operand, empty, zeros
from varlen_rnn.tape.checks import check_float, check_lod_level, check_tensor
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import TensorSpec

# The most columns of a result; without a limit, a program of a few bytes could request any amount of memory.
_MOST_COLUMNS = 2**20
_LARGEST_K = 2**31 - 1


def _sizes(op, x, row, col, channel_num):
    """Return the number of rows and of columns of the matrices of each sequence."""
    heights, widths, numbers = (np.diff(levels_of(one.structure)[-1]) for one in (row, col, x))
    for name, sizes in (("col", widths), ("x", numbers)):
        if len(sizes) != len(heights):
            raise LoDError(f"{op}, {name}", expected=f"{len(heights)} sequences, as row", got=len(sizes))
    wrong = np.flatnonzero(numbers != float(channel_num) * heights * widths)  # floats, because integers overflow
    if len(wrong):
        i = wrong[0]
        expected = f"{channel_num} x {heights[i]} x {widths[i]} numbers, channels, rows and columns"
        raise ShapeError(f"{op}, x, sequence {i}", expected=expected, got=numbers[i])
    return heights, widths


def _selected(x, heights, widths, topks, channel_num):
    """Return where each matrix row's largest numbers are, the offsets of the rows, and the last number of each sum.

    The last ones have the shape `(rows, channels, topks)`; they are -1 if a row has no numbers.
    """
    columns = np.repeat(widths, channel_num * heights)  # the columns of each row of all matrices, in the order of x
    limits = np.append(0, np.cumsum(np.minimum(columns, max(topks))))
    numbers = as_operand(x.data).reshape(-1)
    found = empty((int(limits[-1]),), numbers, np.dtype(np.int64))
    largest(numbers, np.append(0, np.cumsum(columns)), limits, found)
    # Number the matrix rows: all channels of earlier sequences come first, and earlier channels of the same sequence.
    before = np.repeat((channel_num - 1) * (np.cumsum(heights) - heights), heights)
    first = (np.arange(heights.sum()) + before)[:, None]
    matrix_rows = first + np.arange(channel_num) * np.repeat(heights, heights)[:, None]
    counts = np.minimum(topks, np.repeat(widths, heights)[:, None])[:, None, :]
    return found, limits, np.where(counts > 0, limits[matrix_rows][:, :, None] + counts - 1, -1)


@operator(cost=per_input_element, rows="batch")
def sequence_topk_avg_pooling(x, row, col, topks: tuple[int, ...], channel_num: int):
    """Return the mean of the k largest numbers of each row of a matrix, for each channel and each k.

    Parameters
    ----------
    x : Variable or LoDTensor, shape `(numbers,)` or `(numbers, 1)`
        float32 or float64.  A sequence of its last level is `channel_num` matrices, one after another, row by row.
    row, col : Variable or LoDTensor
        Only the last levels of their LoDs are read: they give the rows and columns of each sequence's matrices.
    topks : tuple of int
        Each at least 1.  If a row has fewer than k columns, the sum of all is divided by k.
    channel_num : int
        At least 1.

    Returns
    -------
    Variable of shape `(rows, channel_num * len(topks))`, with the LoD of `row`
        All means of channel 0 come first.

    Raises
    ------
    ShapeError
        If a sequence of `x` does not have as many numbers as its matrices.

    Examples
    --------
    >>> x = vr.LoDTensor(np.array([1.0, 3.0, 2.0, 4.0, 0.0, 5.0]), [[0, 6]])  # a matrix of 2 rows and 3 columns
    >>> row, col = vr.LoDTensor(np.zeros(2), [[0, 2]]), vr.LoDTensor(np.zeros(3), [[0, 3]])
    >>> np.asarray(sequence_topk_avg_pooling(x, row, col, topks=(1, 2), channel_num=1))
    array([[3. , 2.5],
           [5. , 4.5]])

    Source: the operator `sequence_topk_avg_pooling` of PaddlePaddle Fluid, for one level and ascending `topks`.
    """
    heights, widths = _sizes("sequence_topk_avg_pooling", x, row, col, channel_num)
    found, limits, ends = _selected(x, heights, widths, topks, channel_num)
    values = rows_taken(as_operand(x.data).reshape(-1, 1), found)
    sums = empty(values.shape, values)
    cumsum(values, limits, 1, sums)
    out = divide(rows_taken(sums, ends.ravel()).reshape(ends.shape), np.array(topks, x.dtype))
    return row.like(out.reshape(len(out), channel_num * len(topks)))


@sequence_topk_avg_pooling.infer
def _infer(x, row, col, topks, channel_num):
    name = "sequence_topk_avg_pooling"
    check_float(name, x=x)
    for place, spec in (("x", x), ("row", row), ("col", col)):
        check_tensor(name, place, spec)
        check_lod_level(name, place, spec)
    if x.shape[1:] not in ((), (1,)):
        raise ShapeError(f"{name}, x", expected="one number per row", got=f"shape {x.shape}")
    if not topks or not all(1 <= k <= _LARGEST_K for k in topks):
        raise OutOfRangeError(f"{name}, topks", expected=f"numbers from 1 to {_LARGEST_K}", got=topks)
    if not 1 <= channel_num * len(topks) <= _MOST_COLUMNS:
        expected = f"at least 1, and at most {_MOST_COLUMNS} columns of the result"
        raise OutOfRangeError(f"{name}, channel_num", expected=expected, got=channel_num)
    return TensorSpec((row.shape[0], channel_num * len(topks)), x.dtype, row.lod_level)


@sequence_topk_avg_pooling.backward("x")
def _backward(x, row, col, d_out, topks, channel_num):
    heights, widths = _sizes("sequence_topk_avg_pooling_grad", x, row, col, channel_num)
    found, limits, ends = _selected(x, heights, widths, topks, channel_num)
    d_ends = divide(as_operand(d_out.data).reshape(ends.shape), np.array(topks, x.dtype))
    d_sums = rows_taken_grad(d_ends.reshape(-1, 1), ends.ravel(), len(found))
    d_values = empty(d_sums.shape, d_sums)
    cumsum(d_sums, limits, -1, d_values)
    d_x = zeros((len(x.data), 1), d_values)
    init_memories_grad(d_values, found, d_x)  # no number was found twice
    return x.like(d_x.reshape(x.shape))


@sequence_topk_avg_pooling.examples
def _examples(rng):
    for channel_num in (1, 2):
        for row, col in ((LOD, LOD), (TROUBLES[0], LoD.from_lengths([[1, 0, 3, 2, 2]])), *((t, t) for t in TROUBLES)):
            numbers = channel_num * np.diff(row.levels[-1]) * np.diff(col.levels[-1])
            x = rows(rng, *[1] * (channel_num - 1), lod=LoD.from_lengths([numbers]))
            yield [x, rows(rng, 2, lod=row), rows(rng, lod=col)], {"topks": (2, 1, 5), "channel_num": channel_num}
