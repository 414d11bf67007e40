"""Causal convolution along each sequence, for each channel: a weighted sum of a row and of the rows before it.

A sequence continues a window, the `taps - 1` rows before its first row.  With weights of 1, 10 and 100 and a window of
[7, 8], the rows [1, 2] become [7 + 80 + 100, 8 + 10 + 200], and the next window is [1, 2].

Sums run in the order of rows, so the results of a sequence have the same bits if it is cut anywhere.
Kernels trust their indices, and check no bounds: see `varlen_rnn.kernels`.
"""

from varlen_rnn.kernels.sums import BLOCK, add_block, end_of_block, settled
from varlen_rnn.kernels.twins import columns_of_sequences, elements, twins
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.device import empty
from varlen_rnn.runtime.jit import body, cpu_kernel, cuda_kernel
from varlen_rnn.runtime.threads import count_shards, for_each_shard


@cpu_kernel
def causal_conv_cpu(shard, num_shards, x, offsets, weight, bias, state, out):
    """`out[row, j] = bias[j]` + the sum over k of `weight[k, j]` times the row `taps - 1 - k` rows before."""
    before, width = state.shape[1], out.shape[1]
    for i in range(shard, state.shape[0], num_shards):
        for row in range(offsets[i], offsets[i + 1]):
            for j in range(width):
                out[row, j] = bias[j]
            for k in range(before + 1):
                t = row - offsets[i] + k
                source = state[i, t] if t < before else x[row + k - before]
                for j in range(width):
                    out[row, j] += weight[k, j] * source[j]


@cuda_kernel
def causal_conv_cuda(x, offsets, weight, bias, state, out):
    """Twin of `causal_conv_cpu`; one thread per column of a sequence."""
    thread, before, width = cuda.grid(1), state.shape[1], out.shape[1]
    if thread < state.shape[0] * width:
        i, j = thread // width, thread % width
        for row in range(offsets[i], offsets[i + 1]):
            total = bias[j]
            for k in range(before + 1):
                t = row - offsets[i] + k
                total += weight[k, j] * (state[i, t, j] if t < before else x[row + k - before, j])
            out[row, j] = total


def _work(x, offsets, weight, *rest):
    return 2 * x.size * weight.shape[0]


@twins(causal_conv_cpu, causal_conv_cuda, columns_of_sequences, _work)
def causal_conv(x, offsets, weight, bias, state, out):
    """Compute a weighted sum of each row and of the rows before it, channel by channel.

    Parameters
    ----------
    x : (rows, channels) C-contiguous
    offsets : (num_sequences + 1,) int64, in rows
    weight : (taps, channels) C-contiguous, the data type of `x`; at least one row
        The last row is the weight of the row itself, the first one of the row `taps - 1` rows before it.
    bias : (channels,) the data type of `x`
    state : (num_sequences, taps - 1, channels) C-contiguous, the data type of `x`
        The rows before each sequence.
    out : (rows, channels) C-contiguous, the data type of `x`; written, every row that `offsets` covers

    Examples
    --------
    >>> x, weight, state = np.array([[1.0], [2.0]]), np.array([[1.0], [10.0]]), np.array([[[7.0]]])
    >>> out = np.empty((2, 1))
    >>> causal_conv(x, np.array([0, 2]), weight, np.zeros(1), state, out); out.ravel()
    array([17., 21.])
    """


@body
def window_row(k, length, before):
    """Return which row of its sequence is row k of the last window; less than 0 if it is in the window before."""
    return length - before + k


@cpu_kernel
def next_window_cpu(x, offsets, state, out):
    """`out[i]` = the last rows of the window `state[i]` and sequence i together."""
    before = out.shape[1]
    for i in range(out.shape[0]):
        for k in range(before):
            t = window_row(k, offsets[i + 1] - offsets[i], before)
            source = state[i, before + t] if t < 0 else x[offsets[i] + t]
            for j in range(out.shape[2]):
                out[i, k, j] = source[j]


@cuda_kernel
def next_window_cuda(x, offsets, state, out):
    """Twin of `next_window_cpu`; one thread per element."""
    thread, before, width = cuda.grid(1), out.shape[1], out.shape[2]
    if thread < out.size:
        i, k, j = thread // (before * width), thread // width % before, thread % width
        t = window_row(k, offsets[i + 1] - offsets[i], before)
        out[i, k, j] = state[i, before + t, j] if t < 0 else x[offsets[i] + t, j]


@twins(next_window_cpu, next_window_cuda, elements)
def next_window(x, offsets, state, out):
    """Copy the last rows of each window and its sequence together.

    Parameters
    ----------
    x : (rows, channels) C-contiguous
    offsets : (num_sequences + 1,) int64, in rows
    state : (num_sequences, before, channels) C-contiguous, the data type of `x`
    out : as `state`; written

    Examples
    --------
    >>> out = np.empty((1, 2, 1))
    >>> next_window(np.array([[9.0]]), np.array([0, 1]), np.array([[[7.0], [8.0]]]), out); out.ravel()
    array([8., 9.])
    """


@cpu_kernel
def causal_conv_grad_cpu(shard, num_shards, d_out, offsets, weight, d_last, d_state, d_x):
    """Write the gradient of each row, and of each row of the window before a sequence."""
    before, width = d_state.shape[1], d_x.shape[1]
    for i in range(shard, d_state.shape[0], num_shards):
        length = offsets[i + 1] - offsets[i]
        for t in range(before + length):  # row t of the window and the sequence together
            to = d_state[i, t] if t < before else d_x[offsets[i] + t - before]
            for j in range(width):
                to[j] = d_last[i, t - length, j] if t >= length else d_x.dtype.type(0)
            for k in range(max(0, t + 1 - length), min(before, t) + 1):
                d = d_out[offsets[i] + t - k]
                for j in range(width):
                    to[j] += weight[k, j] * d[j]


@cuda_kernel
def causal_conv_grad_cuda(d_out, offsets, weight, d_last, d_state, d_x):
    """Twin of `causal_conv_grad_cpu`; one thread per column of a sequence."""
    thread, before, width = cuda.grid(1), d_state.shape[1], d_x.shape[1]
    if thread < d_state.shape[0] * width:
        i, j = thread // width, thread % width
        length = offsets[i + 1] - offsets[i]
        for t in range(before + length):
            total = d_last[i, t - length, j] if t >= length else d_x.dtype.type(0)
            for k in range(max(0, t + 1 - length), min(before, t) + 1):
                total += weight[k, j] * d_out[offsets[i] + t - k, j]
            if t < before:
                d_state[i, t, j] = total
            else:
                d_x[offsets[i] + t - before, j] = total


@twins(causal_conv_grad_cpu, causal_conv_grad_cuda, columns_of_sequences, _work)
def causal_conv_grad(d_out, offsets, weight, d_last, d_state, d_x):
    """Compute the gradients of rows and of first windows of `causal_conv`.

    Parameters
    ----------
    d_out : (rows, channels) C-contiguous
    offsets, weight
        As in `causal_conv`.
    d_last : (num_sequences, taps - 1, channels) C-contiguous
        The gradient of the result of `next_window`.
    d_state : as `d_last`; written
    d_x : as `d_out`; written, every row that `offsets` covers

    Examples
    --------
    >>> d_state, d_x, weight = np.empty((1, 1, 1)), np.empty((2, 1)), np.array([[1.0], [10.0]])
    >>> causal_conv_grad(np.array([[1.0], [2.0]]), np.array([0, 2]), weight, np.array([[[5.0]]]), d_state, d_x)
    >>> d_state.ravel(), d_x.ravel()
    (array([1.]), array([12., 25.]))
    """


@cpu_kernel
def causal_conv_weight_grad_cpu(shard, num_shards, d_out, x, offsets, state, memory, out):
    """`out[k]` = the sum over rows of `d_out[row]` times the row `taps - 1 - k` rows before.

    `memory` is (num_shards, 3, taps, columns of the widest shard).
    """
    taps, before, width = out.shape[0], state.shape[1], out.shape[1]
    first, end = width * shard // num_shards, width * (shard + 1) // num_shards
    total, lost, part = memory[shard, 0], memory[shard, 1], memory[shard, 2]
    total[:] = lost[:] = 0
    i = 0
    for start in range(0, x.shape[0], BLOCK):
        part[:] = 0
        for row in range(start, end_of_block(start, x.shape[0])):
            while offsets[i + 1] <= row:
                i += 1
            for k in range(taps):
                t = row - offsets[i] + k
                source = state[i, t, first:end] if t < before else x[row + k - before, first:end]
                of_weight, d = part[k], d_out[row, first:end]
                for j in range(end - first):
                    of_weight[j] += d[j] * source[j]
        for k in range(taps):
            for j in range(end - first):
                total[k, j], lost[k, j] = add_block(total[k, j], lost[k, j], part[k, j])
    for k in range(taps):
        for j in range(end - first):
            out[k, first + j] = settled(total[k, j], lost[k, j])


@cuda_kernel
def causal_conv_weight_grad_cuda(d_out, x, offsets, state, out):
    """Twin of `causal_conv_weight_grad_cpu`; one thread per weight."""
    thread, before, width = cuda.grid(1), state.shape[1], out.shape[1]
    if thread < out.size:
        k, j = thread // width, thread % width
        total = lost = out.dtype.type(0)
        i = 0
        for start in range(0, x.shape[0], BLOCK):
            part = out.dtype.type(0)
            for row in range(start, end_of_block(start, x.shape[0])):
                while offsets[i + 1] <= row:
                    i += 1
                t = row - offsets[i] + k
                part += d_out[row, j] * (state[i, t, j] if t < before else x[row + k - before, j])
            total, lost = add_block(total, lost, part)
        out[k, j] = settled(total, lost)


def _weight_grad_on_host(*arguments):
    *given, out = arguments
    taps, width = out.shape
    shards = count_shards(2 * given[0].size * taps, max(1, width))
    memory = empty((shards, 3, taps, -(-width // shards)), out)
    for_each_shard(causal_conv_weight_grad_cpu, *given, memory, out, num_shards=shards)


@twins(_weight_grad_on_host, causal_conv_weight_grad_cuda)
def causal_conv_weight_grad(d_out, x, offsets, state, out):
    """Compute the gradient of the weight of `causal_conv`; rows are summed as in `kernels.sums`.

    Parameters
    ----------
    d_out, x : (rows, channels) C-contiguous
    offsets : (num_sequences + 1,) int64, in rows
    state : (num_sequences, taps - 1, channels) C-contiguous
    out : (taps, channels) C-contiguous; written

    Examples
    --------
    >>> x, d, state, out = np.array([[1.0], [2.0]]), np.ones((2, 1)), np.array([[[7.0]]]), np.empty((2, 1))
    >>> causal_conv_weight_grad(d, x, np.array([0, 2]), state, out); out.ravel()
    array([8., 3.])
    """
