"""Convolutions of sequences with nine taps, and the share of a sequence's rows at which they exceed thresholds.

At row t, a convolution multiplies the nine rows `t - 4 d, t - 3 d, ..., t + 4 d` by the weights of its taps, where d is
the dilation.  Three taps, which `table` names, have the weight 2, the other six have -1.  So a constant that is added
to a sequence changes nothing.  Rows outside of the sequence count as 0.

With d = 1 and the taps 0, 1 and 2, row 5 of `[..., x1, x2, ..., x9, ...]` becomes `2 (x1 + x2 + x3) - (x4 + ... + x9)`.

Products with 2 and -1 are exact, and sums run in the order of channels and taps, so both twins compute the same bits.
Kernels trust their indices, and check no bounds: see `varlen_rnn.kernels`.

Source: Dempster, Schmidt and Webb (2021), "MiniRocket", arXiv 2012.08791, whose series have one length.
"""

import numpy as np

from varlen_rnn.kernels.twins import twins
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.jit import body, cpu_inlined, cpu_kernel, cuda_kernel

TAPS = 9
# The columns of `table`: the three taps of weight 2; the dilation in rows; 1 if every row of a sequence counts, 0 if
# only rows count whose nine taps lie inside of the sequence.
DILATION, EVERY_ROW = 3, 4
COLUMNS = 5


@body
def weight_of(tap, table, k, one):
    """Return the weight of a tap of convolution k, in the type of `one`."""
    heavy = (tap == table[k, 0]) | (tap == table[k, 1]) | (tap == table[k, 2])
    return one + one if heavy else -one


@body
def rows_left_out(table, k, length):
    """Return how many rows at each end of a sequence do not count; 0 if no row has all its taps inside."""
    outside = (TAPS // 2) * table[k, DILATION]
    return 0 if table[k, EVERY_ROW] or length <= 2 * outside else outside


@cpu_inlined
def _convolve(columns, length, table, channels, k, out):
    """`out[t]` = convolution k at row t; `columns` has the rows of one sequence, transposed."""
    one = out.dtype.type(1)
    for t in range(length):
        out[t] = 0
    for c in range(channels.shape[1]):
        channel = channels[k, c]
        if channel < 0:
            break
        for tap in range(TAPS):
            weight, shift = weight_of(tap, table, k, one), (tap - TAPS // 2) * table[k, DILATION]
            for t in range(max(0, -shift), min(length, length - shift)):
                out[t] += weight * columns[channel, t + shift]


@cpu_kernel
def convolve(x, table, channels, k, out):
    """Compute convolution k at every row of one sequence.

    Parameters
    ----------
    x : (rows, features) C-contiguous, on the host
        The rows of one sequence.
    table : (convolutions, 5) int64
    channels : (convolutions, most) int64
        The features that each convolution sums over; -1 after the last.
    k : int, the number of the convolution
    out : (rows,) the data type of `x`; written

    Examples
    --------
    >>> x, out = np.arange(1.0, 12.0).reshape(11, 1), np.empty(11)
    >>> convolve(x, np.array([[0, 1, 2, 1, 1]]), np.array([[0]]), 0, out); out[5]
    np.float64(-27.0)
    """
    columns = np.empty((x.shape[1], x.shape[0]), out.dtype)
    for t in range(x.shape[0]):
        for c in range(x.shape[1]):
            columns[c, t] = x[t, c]
    _convolve(columns, x.shape[0], table, channels, k, out)


@cpu_kernel
def shares_above_cpu(shard, num_shards, x, offsets, table, channels, thresholds, out):
    """Compute the shares of every `num_shards`-th sequence, beginning with sequence `shard`."""
    longest = 0
    for i in range(shard, out.shape[0], num_shards):
        longest = max(longest, offsets[i + 1] - offsets[i])
    columns, y, count = np.empty((x.shape[1], longest), x.dtype), np.empty(longest, x.dtype), thresholds.shape[1]
    for i in range(shard, out.shape[0], num_shards):
        first, length = offsets[i], offsets[i + 1] - offsets[i]
        for t in range(length):
            for c in range(x.shape[1]):
                columns[c, t] = x[first + t, c]
        for k in range(table.shape[0]):
            _convolve(columns, length, table, channels, k, y)
            left_out = rows_left_out(table, k, length)
            counted = length - 2 * left_out if length > 0 else 1
            for j in range(count):
                above = 0
                for t in range(left_out, length - left_out):
                    above += 1 if y[t] > thresholds[k, j] else 0
                out[i, k * count + j] = out.dtype.type(above) / out.dtype.type(counted)


@cuda_kernel
def shares_above_cuda(x, offsets, table, channels, thresholds, out):
    """Twin of `shares_above_cpu`; one thread per convolution of a sequence."""
    thread, count = cuda.grid(1), thresholds.shape[1]
    if thread < out.shape[0] * table.shape[0]:
        i, k = thread // table.shape[0], thread % table.shape[0]
        number, one = out.dtype.type, x.dtype.type(1)
        first, length = offsets[i], offsets[i + 1] - offsets[i]
        left_out = rows_left_out(table, k, length)
        for j in range(count):
            out[i, k * count + j] = number(0)
        for t in range(left_out, length - left_out):
            value = x.dtype.type(0)
            for c in range(channels.shape[1]):
                channel = channels[k, c]
                if channel < 0:
                    break
                for tap in range(TAPS):
                    row = t + (tap - TAPS // 2) * table[k, DILATION]
                    if 0 <= row < length:
                        value += weight_of(tap, table, k, one) * x[first + row, channel]
            for j in range(count):
                if value > thresholds[k, j]:
                    out[i, k * count + j] += number(1)
        counted = length - 2 * left_out if length > 0 else 1
        for j in range(count):
            out[i, k * count + j] /= number(counted)


def _work(x, offsets, table, channels, thresholds, out):
    return int(offsets[-1]) * table.shape[0] * (TAPS * channels.shape[1] + thresholds.shape[1])


@twins(shares_above_cpu, shares_above_cuda, lambda x, offsets, table, *_: (offsets.size - 1) * len(table), _work)
def shares_above(x, offsets, table, channels, thresholds, out):
    """Compute the share of each sequence's rows at which each convolution exceeds each of its thresholds.

    Sequences without rows have shares of 0.  A row of `out` depends on its sequence only.

    Parameters
    ----------
    x : (rows, features) C-contiguous
    offsets : (num_sequences + 1,) int64, in rows
    table : (convolutions, 5) int64
        For each convolution its three taps of weight 2, from 0 to 8; the dilation in rows; and 1 if every row of a
        sequence counts, or 0 if only rows count whose nine taps lie inside of the sequence.  If there are no such rows,
        every row counts.
    channels : (convolutions, most) int64
        The features that each convolution sums over; -1 after the last.
    thresholds : (convolutions, thresholds) the data type of `x`
    out : (num_sequences, convolutions * thresholds) C-contiguous, the data type of `x`; written

    Examples
    --------
    >>> x, out = np.arange(1.0, 12.0).reshape(11, 1), np.empty((1, 2))
    >>> table, thresholds = np.array([[0, 1, 2, 1, 0]]), np.array([[-30.0, 0.0]])
    >>> shares_above(x, np.array([0, 11]), table, np.array([[0]]), thresholds, out); out
    array([[1., 0.]])
    """
