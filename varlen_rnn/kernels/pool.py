"""Reduce each sequence to one row: scaled sums (sum, average, sqrt pooling), maxima, and picked rows (first, last).

Sequence i has rows `offsets[i]` to `offsets[i + 1]`.  Sums are computed as in `kernels.sums`, with the same bits on
every device.  A reduction over an axis calls them for sequences of equal lengths.
Kernels trust their indices, and check no bounds: see `varlen_rnn.kernels`.

Source of the pooling types: Fluid's `sequence_pool`.
"""

import math

import numpy as np

from varlen_rnn.kernels.stack import FIRST, STRIP, strip_on_stack, width_of_strip
from varlen_rnn.kernels.sums import BLOCK, add_block, end_of_block, settled
from varlen_rnn.kernels.twins import elements_of_first, launch_beside, twins
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.jit import body, cpu_inlined, cpu_kernel, cuda_kernel


@cpu_inlined
def _sum_rows(x, first, end, begin, width, out):
    """`out[j]` = the sum of `x[row, begin + j]` over rows first..end, for each j below `width`; these two are uint64.

    Four rows are added at once, so that sums are loaded and stored less often.
    """
    zero = x.dtype.type(0)
    for j in range(width):
        out[j] = zero + x[first, begin + j] if first < end else zero
    row = first + 1
    while row + 4 <= end:
        for j in range(width):
            at = begin + j
            out[j] = (((out[j] + x[row, at]) + x[row + 1, at]) + x[row + 2, at]) + x[row + 3, at]
        row += 4
    while row < end:
        for j in range(width):
            out[j] += x[row, begin + j]
        row += 1


@cpu_kernel
def _add_blocks(x, first, end, begin, width, out):
    """`out[j] +=` the sum of `x[row, begin + j]` over rows first..end; `out` has the sums of the block before them."""
    part, lost = strip_on_stack(x.dtype.type(0)), strip_on_stack(x.dtype.type(0))
    for low in range(FIRST, width, STRIP):
        size = width_of_strip(low, width)
        for j in range(size):
            lost[j] = 0
        for start in range(first, end, BLOCK):
            _sum_rows(x, start, end_of_block(start, end), begin + low, size, part)
            for j in range(size):
                out[low + j], lost[j] = add_block(out[low + j], lost[j], part[j])
        for j in range(size):
            out[low + j] = settled(out[low + j], lost[j])


@cpu_inlined
def sum_columns(x, first, end, begin, width, out):
    """`out[j]` = the sum of `x[row, begin + j]` over rows first..end, any number, for each j below `width`."""
    _sum_rows(x, first, end_of_block(first, end), begin, width, out)
    if end - first > BLOCK:
        _add_blocks(x, first + BLOCK, end, begin, width, out)


@cpu_inlined
def sum_sequence(x, first, end, out):
    """`out` = the sum of rows first..end, any number."""
    sum_columns(x, first, end, FIRST, np.uint64(x.shape[1]), out)


@cpu_kernel
def pool_sum_cpu(x, offsets, scale, out):
    """`out[i] = scale[i] * sum of rows offsets[i]..offsets[i + 1]`; the inner loop, over features, vectorises."""
    for i in range(out.shape[0]):
        sum_sequence(x, offsets[i], offsets[i + 1], out[i])
        for j in range(out.shape[1]):
            out[i, j] *= scale[i]


@cpu_kernel
def inverse_lengths(offsets, of_root, out):
    """`out[i]` = 1 / the length of sequence i, or 1 / its root; 1 for an empty sequence.  Computed in float64."""
    for i in range(out.shape[0]):
        length = np.float64(max(1, offsets[i + 1] - offsets[i]))
        out[i] = 1 / (math.sqrt(length) if of_root else length)


@cpu_kernel
def fill_empty_sequences(offsets, number, out):
    """Set `out[i]` to a number for each empty sequence i."""
    for i in range(out.shape[0]):
        for j in range(out.shape[1] if offsets[i] == offsets[i + 1] else 0):
            out[i, j] = number


@cpu_kernel
def sum_copies_cpu(x, offsets, times, out):
    """`out` = for each sequence i, the sum of its `times[i]` copies in `x`."""
    place = 0
    for i in range(times.shape[0]):
        begin, length = offsets[i], offsets[i + 1] - offsets[i]
        copies = x[place : place + length * times[i]].reshape(times[i], length * x.shape[1])
        sum_sequence(copies, 0, times[i], out[begin : begin + length].reshape(length * x.shape[1]))
        place += length * times[i]


@cuda_kernel
def sum_copies_cuda(x, offsets, times, places, out):
    """Twin of `sum_copies_cpu`; copies begin at rows `places` of `x`.  One thread per column of a sequence."""
    thread, width = cuda.grid(1), out.shape[1]
    if thread < times.shape[0] * width:
        i, j = thread // width, thread % width
        length = offsets[i + 1] - offsets[i]
        for row in range(length):
            total = lost = out.dtype.type(0)
            for start in range(0, times[i], BLOCK):
                part = out.dtype.type(0)
                for copy in range(start, end_of_block(start, times[i])):
                    part += x[places[i] + copy * length + row, j]
                total, lost = add_block(total, lost, part)
            out[offsets[i] + row, j] = settled(total, lost)


def on_copies(kernel):
    """Return a function that launches a kernel on copies of sequences, with one thread per column of a sequence.

    It also passes `places` to the kernel: the first row of each sequence's copies, which follow one another.
    """

    def start(x, offsets, times, out):
        rows = (offsets[1:] - offsets[:-1]) * times
        launch_beside(kernel, len(times) * out.shape[1], x, offsets, times, np.cumsum(rows) - rows, out)

    return start


@twins(sum_copies_cpu, on_copies(sum_copies_cuda), size=None)
def sum_copies(x, offsets, times, out):
    """Compute the sums over copies of sequences; `x` holds `times[i]` copies of sequence i.

    Order and precision of the sums are as in `kernels.sums`.

    Parameters
    ----------
    x : (rows, features) C-contiguous
        The copies of a sequence follow each other.
    offsets : (num_sequences + 1,) int64, on the host, in rows of `out`
    times : (num_sequences,) int64, on the host
    out : (offsets[-1], features) C-contiguous, the data type of `x`; written

    Examples
    --------
    >>> out = np.empty((3, 1))
    >>> sum_copies(np.arange(6.0).reshape(6, 1), np.array([0, 2, 3]), np.array([2, 2]), out)
    >>> out.ravel()
    array([2., 4., 9.])
    """


@cuda_kernel
def pool_sum_cuda(x, offsets, scale, out):
    """Twin of `pool_sum_cpu`."""
    thread = cuda.grid(1)
    if thread < out.size:
        i, j = thread // out.shape[1], thread % out.shape[1]
        total = lost = out.dtype.type(0)
        for start in range(offsets[i], offsets[i + 1], BLOCK):
            part = out.dtype.type(0)
            for row in range(start, end_of_block(start, offsets[i + 1])):
                part += x[row, j]
            total, lost = add_block(total, lost, part)
        out[i, j] = settled(total, lost) * scale[i]


@twins(pool_sum_cpu, pool_sum_cuda)
def pool_sum(x, offsets, scale, out):
    """Compute `out[i] = scale[i] * sum of rows offsets[i]..offsets[i + 1]`; 0 for an empty sequence.

    Order and precision of the sums are as in `kernels.sums`, so they depend only on the sequence's own
    rows.  The gradient is `pool_sum_grad`.

    Parameters
    ----------
    x : (rows, features) C-contiguous
    offsets : (num_sequences + 1,) int64, in rows
    scale : (num_sequences,) the data type of `x`
        1 for the sum, 1 / length for the average, 1 / sqrt(length) for sqrt pooling; finite, even for an empty
        sequence.
    out : (num_sequences, features) C-contiguous, the data type of `x`; written

    Examples
    --------
    >>> out = np.empty((2, 1)); x = np.array([[1.0], [3.0], [5.0]])
    >>> pool_sum(x, np.array([0, 2, 3]), np.array([0.5, 1.0]), out); out.ravel()
    array([2., 5.])
    """


@cpu_kernel
def pool_sum_grad_cpu(d_out, offsets, scale, d_x):
    """`d_x[row] = scale[i] * d_out[i]` for the rows of sequence i."""
    for i in range(d_out.shape[0]):
        for row in range(offsets[i], offsets[i + 1]):
            for j in range(d_out.shape[1]):
                d_x[row, j] = scale[i] * d_out[i, j]


@cuda_kernel
def pool_sum_grad_cuda(d_out, offsets, scale, d_x):
    """Twin of `pool_sum_grad_cpu`; one thread per element of `d_out`."""
    thread = cuda.grid(1)
    if thread < d_out.size:
        i, j = thread // d_out.shape[1], thread % d_out.shape[1]
        for row in range(offsets[i], offsets[i + 1]):
            d_x[row, j] = scale[i] * d_out[i, j]


@twins(pool_sum_grad_cpu, pool_sum_grad_cuda, elements_of_first)
def pool_sum_grad(d_out, offsets, scale, d_x):
    """Compute `d_x[row] = scale[i] * d_out[i]` for the rows of every sequence i.

    Parameters
    ----------
    d_out : (num_sequences, features) C-contiguous
    offsets : (num_sequences + 1,) int64, in rows
    scale : (num_sequences,) the data type of `d_out`
    d_x : (rows, features) C-contiguous, the data type of `d_out`; written, every row that `offsets` covers

    Examples
    --------
    >>> d_x = np.empty((3, 1)); d_out = np.array([[2.0], [5.0]])
    >>> pool_sum_grad(d_out, np.array([0, 2, 3]), np.array([0.5, 1.0]), d_x); d_x.ravel()
    array([1., 1., 5.])
    """


@body
def exceeds(value, best):
    """Return whether `value` replaces the maximum so far: it must be larger, or the first NaN."""
    return (value > best) | ((value != value) & (best == best))


@cpu_kernel
def pool_max_cpu(x, offsets, out, index):
    """`out[i, j]` = the maximum of column j over the rows of sequence i, `index[i, j]` its first row."""
    for i in range(out.shape[0]):
        first, end = offsets[i], offsets[i + 1]
        for j in range(out.shape[1]):
            out[i, j] = x[first, j] if first < end else out.dtype.type(0)
            index[i, j] = first if first < end else -1
        for row in range(first + 1, end):
            for j in range(out.shape[1]):
                # Load and store in either case of the comparison, because the loop vectorises only without branches.
                value, best, best_row = x[row, j], out[i, j], index[i, j]
                new = exceeds(value, best)
                out[i, j] = value if new else best
                index[i, j] = row if new else best_row


@cuda_kernel
def pool_max_cuda(x, offsets, out, index):
    """Twin of `pool_max_cpu`; one thread per element of `out`."""
    thread = cuda.grid(1)
    if thread < out.size:
        i, j = thread // out.shape[1], thread % out.shape[1]
        first, end = offsets[i], offsets[i + 1]
        best, best_row = out.dtype.type(0), -1
        if first < end:
            best, best_row = x[first, j], first
        for row in range(first + 1, end):
            if exceeds(x[row, j], best):
                best, best_row = x[row, j], row
        out[i, j] = best
        index[i, j] = best_row


@twins(pool_max_cpu, pool_max_cuda)
def pool_max(x, offsets, out, index):
    """Compute the maximum of every column over the rows of each sequence, and the first row that holds it.

    NaN wins, as in `np.max`.  An empty sequence gives 0 and row -1.  The gradient is `pick_rows_grad` with `index`.

    Parameters
    ----------
    x : (rows, features) C-contiguous, any data type
    offsets : (num_sequences + 1,) int64, in rows
    out : (num_sequences, features) C-contiguous, the data type of `x`; written
    index : (num_sequences, features) C-contiguous int64; written

    Examples
    --------
    >>> out, index = np.empty((2, 1)), np.empty((2, 1), np.int64)
    >>> pool_max(np.array([[1.0], [3.0], [3.0]]), np.array([0, 3, 3]), out, index); out.ravel(), index.ravel()
    (array([3., 0.]), array([ 1, -1]))
    """


@cpu_kernel
def pick_rows_cpu(x, index, out):
    """`out[i, j] = x[index[i, j], j]`, 0 where the index is -1."""
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            row = index[i, j]
            out[i, j] = x[row, j] if row >= 0 else out.dtype.type(0)


@cuda_kernel
def pick_rows_cuda(x, index, out):
    """Twin of `pick_rows_cpu`."""
    thread = cuda.grid(1)
    if thread < out.size:
        i, j = thread // out.shape[1], thread % out.shape[1]
        row = index[i, j]
        out[i, j] = x[row, j] if row >= 0 else out.dtype.type(0)


@twins(pick_rows_cpu, pick_rows_cuda)
def pick_rows(x, index, out):
    """Compute `out[i, j] = x[index[i, j], j]`, and 0 where `index` is -1.  Its gradient is `pick_rows_grad`.

    Parameters
    ----------
    x : (rows, features) C-contiguous, any data type
    index : (n, features) C-contiguous int64, `-1 <= index < rows`
    out : (n, features) C-contiguous, the data type of `x`; written

    Examples
    --------
    >>> out = np.empty((2, 2)); x = np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> pick_rows(x, np.array([[1, 0], [-1, 1]]), out); out
    array([[3., 2.],
           [0., 4.]])
    """


@cpu_kernel
def pick_rows_grad_cpu(d_out, index, d_x):
    """`d_x = 0`, then `d_x[index[i, j], j] += d_out[i, j]` where the index is not -1, in the order of i."""
    d_x[:] = 0
    for i in range(d_out.shape[0]):
        for j in range(d_out.shape[1]):
            row = index[i, j]
            if row >= 0:
                d_x[row, j] += d_out[i, j]


@cuda_kernel
def clear_cuda(out):
    """`out = 0`."""
    i = cuda.grid(1)
    if i < out.size:
        out[i // out.shape[1], i % out.shape[1]] = 0


@cuda_kernel
def pick_rows_grad_cuda(d_out, index, d_x):
    """Twin of `pick_rows_grad_cpu` for a `d_x` that `clear_cuda` set to 0; one thread per column sums in order."""
    j = cuda.grid(1)
    if j < d_x.shape[1]:
        for i in range(d_out.shape[0]):
            row = index[i, j]
            if 0 <= row < d_x.shape[0]:  # an index that a kernel made has not been on the host, so it is checked here
                d_x[row, j] += d_out[i, j]


def _pick_grad_on_device(d_out, index, d_x):
    launch_beside(clear_cuda, d_x.size, d_x)
    launch_beside(pick_rows_grad_cuda, d_x.shape[1], d_out, index, d_x)


@twins(pick_rows_grad_cpu, _pick_grad_on_device, size=None)
def pick_rows_grad(d_out, index, d_x):
    """Compute `d_x = 0`, then `d_x[index[i, j], j] += d_out[i, j]` where `index` is not -1, in the order of i.

    Parameters
    ----------
    d_out : (n, features) C-contiguous, any data type
    index : (n, features) C-contiguous int64, `-1 <= index < rows`; may repeat
    d_x : (rows, features) C-contiguous, the data type of `d_out`; written whole

    Examples
    --------
    >>> d_x = np.empty((3, 1)); pick_rows_grad(np.array([[5.0], [6.0]]), np.array([[1], [-1]]), d_x); d_x.ravel()
    array([0., 5., 0.])
    """
