"""Move rows by the offsets of sequences, without lists of rows: take first or last rows, reverse or repeat sequences.

Sequence i has rows `offsets[i]` to `offsets[i + 1]`.
Kernels trust their offsets, and check no bounds: see `varlen_rnn.kernels`.
"""

import numpy as np

from varlen_rnn.kernels.pool import on_copies
from varlen_rnn.kernels.twins import columns_of_sequences, elements_of_first, twins
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.jit import cpu_kernel, cuda_kernel

_AT_ONCE = np.uint64(1024)  # this many numbers stay in the first-level cache while they are copied


@cpu_kernel
def pick_ends_cpu(x, offsets, last, out):
    """`out[i]` = the last or first row of sequence i, or 0 if it is empty."""
    for i in range(out.shape[0]):
        first, end = offsets[i], offsets[i + 1]
        row = np.uint64(end - 1 if last else first)
        for j in range(out.shape[1]):
            out[i, j] = x[row, j] if first < end else out.dtype.type(0)


@cuda_kernel
def pick_ends_cuda(x, offsets, last, out):
    """Twin of `pick_ends_cpu`."""
    thread = cuda.grid(1)
    if thread < out.size:
        i, j = thread // out.shape[1], thread % out.shape[1]
        first, end = offsets[i], offsets[i + 1]
        row = end - 1 if last else first
        out[i, j] = x[row, j] if first < end else out.dtype.type(0)


@twins(pick_ends_cpu, pick_ends_cuda)
def pick_ends(x, offsets, last, out):
    """Compute the first row of each sequence, or the last one, and 0 for an empty sequence.

    The gradient is `pick_ends_grad`.

    Parameters
    ----------
    x : (rows, features) C-contiguous, any data type
    offsets : (num_sequences + 1,) int64, in rows
    last : bool
    out : (num_sequences, features) C-contiguous, the data type of `x`; written

    Examples
    --------
    >>> out = np.empty((2, 1)); pick_ends(np.array([[1.0], [3.0], [5.0]]), np.array([0, 2, 3]), True, out); out.ravel()
    array([3., 5.])
    """


@cpu_kernel
def pick_ends_grad_cpu(d_out, offsets, last, d_x):
    """`d_x` = `d_out[i]` in the last or first row of sequence i, 0 in all other rows."""
    width, written = np.uint64(d_x.shape[1]), d_x.reshape(d_x.size)
    for i in range(d_out.shape[0]):
        first, end = offsets[i], offsets[i + 1]
        if first < end:
            for k in range(np.uint64(first) * width, np.uint64(end) * width):
                written[k] = 0
            row = np.uint64(end - 1 if last else first)
            for j in range(d_x.shape[1]):
                d_x[row, j] = d_out[i, j]


@cuda_kernel
def pick_ends_grad_cuda(d_out, offsets, last, d_x):
    """Twin of `pick_ends_grad_cpu`; one thread per column of a sequence."""
    thread = cuda.grid(1)
    if thread < d_out.size:
        i, j = thread // d_out.shape[1], thread % d_out.shape[1]
        first, end = offsets[i], offsets[i + 1]
        for row in range(first, end):
            d_x[row, j] = 0
        if first < end:
            d_x[end - 1 if last else first, j] = d_out[i, j]


@twins(pick_ends_grad_cpu, pick_ends_grad_cuda, elements_of_first)
def pick_ends_grad(d_out, offsets, last, d_x):
    """Compute the gradient of `pick_ends`: the picked rows get the rows of `d_out`, all other rows get 0.

    Parameters
    ----------
    d_out : (num_sequences, features) C-contiguous
    offsets : (num_sequences + 1,) int64, in rows
    last : bool
    d_x : (rows, features) C-contiguous, the data type of `d_out`; written, every row that `offsets` covers

    Examples
    --------
    >>> d_x = np.empty((3, 1)); pick_ends_grad(np.array([[7.0], [8.0]]), np.array([0, 2, 3]), False, d_x); d_x.ravel()
    array([7., 0., 8.])
    """


@cpu_kernel
def reverse_rows_cpu(x, offsets, out):
    """`out` = the rows of every sequence from the last to the first."""
    row = 0
    for i in range(offsets.shape[0] - 1):
        origin = offsets[i + 1]
        for _ in range(offsets[i], offsets[i + 1]):
            origin -= 1
            # Always true: LLVM then drops the check for negative indices.  Unsigned indices would take twice as long.
            if origin >= 0:
                for j in range(out.shape[1]):
                    out[row, j] = x[origin, j]
            row += 1


@cuda_kernel
def reverse_rows_cuda(x, offsets, out):
    """Twin of `reverse_rows_cpu`; one thread per column of a sequence."""
    thread, width = cuda.grid(1), out.shape[1]
    if thread < (offsets.shape[0] - 1) * width:
        i, j = thread // width, thread % width
        first, end = offsets[i], offsets[i + 1]
        for row in range(first, end):
            out[row, j] = x[first + end - 1 - row, j]


@twins(reverse_rows_cpu, reverse_rows_cuda, columns_of_sequences)
def reverse_rows(x, offsets, out):
    """Reverse the rows of every sequence, from the last to the first.  The gradient is reversed in the same way.

    Parameters
    ----------
    x : (rows, features) C-contiguous, any data type
    offsets : (num_sequences + 1,) int64, in rows
    out : (rows, features) C-contiguous, the data type of `x`; written, every row that `offsets` covers

    Examples
    --------
    >>> out = np.empty((3, 1)); reverse_rows(np.array([[1.0], [2.0], [3.0]]), np.array([0, 2, 3]), out); out.ravel()
    array([2., 1., 3.])
    """


@cpu_kernel
def repeat_sequences_cpu(x, offsets, times, out):
    """`out` = `times[i]` copies of each sequence i, one after another."""
    width, numbers, written = np.uint64(out.shape[1]), x.reshape(x.size), out.reshape(out.size)
    place = np.uint64(0)
    for i in range(times.shape[0]):
        first, size = np.uint64(offsets[i]) * width, np.uint64(offsets[i + 1] - offsets[i]) * width
        total = np.uint64(times[i]) * size
        if total == 0:
            continue
        for k in range(size):
            written[place + np.uint64(k)] = numbers[first + np.uint64(k)]
        # Copy all earlier copies at once, because starting a loop over few numbers takes longer than the loop itself.
        done, most = size, max(np.uint64(1), _AT_ONCE // size) * size
        while done < total:
            count = min(done, most, total - done)
            for k in range(count):
                written[place + done + np.uint64(k)] = written[place + np.uint64(k)]
            done += count
        place += total


@cuda_kernel
def repeat_sequences_cuda(x, offsets, times, places, out):
    """Twin of `repeat_sequences_cpu`; copies begin at rows `places`.  One thread per column of a sequence."""
    thread, width = cuda.grid(1), out.shape[1]
    if thread < times.shape[0] * width:
        i, j = thread // width, thread % width
        first, length = offsets[i], offsets[i + 1] - offsets[i]
        for row in range(length):
            value = x[first + row, j]
            for copy in range(times[i]):
                out[places[i] + copy * length + row, j] = value


@twins(repeat_sequences_cpu, on_copies(repeat_sequences_cuda), size=None)
def repeat_sequences(x, offsets, times, out):
    """Compute `times[i]` copies of rows `offsets[i]` to `offsets[i + 1]`, one after another, for each i in turn.

    The gradient is `varlen_rnn.kernels.pool.sum_copies`.

    Parameters
    ----------
    x : (rows, features) C-contiguous, any data type
    offsets : (num_sequences + 1,) int64, on the host, in rows of `x`
    times : (num_sequences,) int64, on the host
    out : (rows of all copies, features) C-contiguous, the data type of `x`; written

    Examples
    --------
    >>> out = np.empty((5, 1))
    >>> repeat_sequences(np.array([[1.0], [2.0], [3.0]]), np.array([0, 2, 3]), np.array([2, 1]), out); out.ravel()
    array([1., 2., 1., 2., 3.])
    """
