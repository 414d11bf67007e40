"""Weighted sums of windows of rows, running sums and maxima, along each sequence and for each feature; image windows.

Sequence i has rows `offsets[i]` to `offsets[i + 1]`.
Kernels trust their indices, and check no bounds: see `varlen_rnn.kernels`.
"""

import numpy as np

from varlen_rnn.kernels.pool import sum_sequence
from varlen_rnn.kernels.stack import FIRST, STRIP, strip_on_stack, width_of_strip
from varlen_rnn.kernels.sums import BLOCK, add_block, end_of_block, settled
from varlen_rnn.kernels.twins import columns_of_sequences, twins
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.jit import body, cpu_inlined, cpu_kernel, cuda_kernel


@body
def context_of(row, first, end, direction, most):
    """Return how many rows the window has that begins at `row`, inside of first..end; at most `most` rows."""
    left = end - row if direction > 0 else row - first + 1
    return left if left < most else most


@cpu_kernel
def row_conv_cpu(x, offsets, weight, direction, out):
    """`out[row, j] = sum of weight[k, j] * x[row + direction k, j]` over each k whose row is in the sequence."""
    for i in range(offsets.shape[0] - 1):
        first, end = offsets[i], offsets[i + 1]
        for row in range(first, end):
            for j in range(out.shape[1]):
                out[row, j] = weight[0, j] * x[row, j]
            for k in range(1, context_of(row, first, end, direction, weight.shape[0])):
                for j in range(out.shape[1]):
                    out[row, j] += weight[k, j] * x[row + direction * k, j]


@cuda_kernel
def row_conv_cuda(x, offsets, weight, direction, out):
    """Twin of `row_conv_cpu`; one thread per column of a sequence."""
    thread, width = cuda.grid(1), out.shape[1]
    if thread < (offsets.shape[0] - 1) * width:
        i, j = thread // width, thread % width
        first, end = offsets[i], offsets[i + 1]
        for row in range(first, end):
            total = weight[0, j] * x[row, j]
            for k in range(1, context_of(row, first, end, direction, weight.shape[0])):
                total += weight[k, j] * x[row + direction * k, j]
            out[row, j] = total


@twins(row_conv_cpu, row_conv_cuda, columns_of_sequences)
def row_conv(x, offsets, weight, direction, out):
    """Compute `out[row] = sum of weight[k] * x[row + direction k]` over each k whose row is in the sequence.

    Features are summed separately.

    The gradient of `x` is the same kernel on the gradient of `out`, in the other direction.

    Parameters
    ----------
    x : (rows, features) C-contiguous
    offsets : (num_sequences + 1,) int64, in rows
    weight : (context, features) C-contiguous, the data type of `x`; at least one row
    direction : int
        1 for windows of the rows that follow, -1 for windows of the rows before.
    out : (rows, features) C-contiguous, the data type of `x`; written, every row that `offsets` covers

    Examples
    --------
    >>> out, x, weight = np.empty((3, 1)), np.array([[1.0], [2.0], [3.0]]), np.array([[1.0], [10.0]])
    >>> row_conv(x, np.array([0, 2, 3]), weight, 1, out); out.ravel()
    array([21.,  2.,  3.])
    """


@cpu_kernel
def find_edges(offsets, start, taps, edges):
    """Write the rows whose windows reach beyond their sequence, and then -1; the window of row t begins at t + start.

    Examples
    --------
    >>> edges = np.empty(4, np.int64); find_edges(np.array([0, 4, 5]), -1, 3, edges); edges
    array([ 0,  3,  4, -1])
    """
    count = 0
    for i in range(offsets.shape[0] - 1):
        for row in range(offsets[i], offsets[i + 1]):
            if row + start < offsets[i] or row + start + taps > offsets[i + 1]:
                edges[count] = row
                count += 1
    edges[count:] = -1


@cpu_kernel
def place_windows(offsets, start, up, rows, at, of_padding):
    """Find the rows of windows, and of the padding before and after each sequence.

    Parameters
    ----------
    offsets : (num_sequences + 1,) int64, in rows
    start : int
        The window of row t begins at row t + start.
    up : int
        Rows of padding before a sequence; other rows of padding come after it.
    rows : (n,) int64, ascending
        The rows whose windows are wanted.  Rows from the first -1 on have no window.
    at, of_padding : (n, taps) int64; written
        For each place of a window, the row and -1, or -1 and the row of padding.
    """
    i = 0
    for k in range(rows.shape[0]):
        row = rows[k]
        while row >= offsets[i + 1]:
            i += 1
        for tap in range(at.shape[1]):
            place = row + start + tap
            at[k, tap] = of_padding[k, tap] = -1
            if row >= 0 and place < offsets[i]:
                of_padding[k, tap] = place - offsets[i] + up
            elif row >= 0 and place >= offsets[i + 1]:
                of_padding[k, tap] = place - offsets[i + 1] + up
            elif row >= 0:
                at[k, tap] = place


@cpu_kernel
def overwrite_listed(rows, values, out):
    """`out[rows[k]] = values[k]` unless `rows[k]` is -1."""
    for k in range(rows.shape[0]):
        for j in range(out.shape[1] if rows[k] >= 0 else 0):
            out[rows[k], j] = values[k, j]


@cpu_kernel
def copy_padding(padding, of_padding, out):
    """`out[k] = padding[of_padding[k]]` unless `of_padding[k]` is -1."""
    for k in range(out.shape[0]):
        for j in range(out.shape[1] if of_padding[k] >= 0 else 0):
            out[k, j] = padding[of_padding[k], j]


@cpu_kernel
def row_conv_weight_grad(x, d_out, offsets, products, d_weight):
    """Compute the gradient of the weight of `row_conv` in the direction 1; sums are computed as in `kernels.sums`.

    Parameters
    ----------
    x, d_out : (rows, features) C-contiguous
    offsets : (num_sequences + 1,) int64, in rows
    products : (rows, features) C-contiguous; written
        Memory for the kernel.
    d_weight : (context, features) C-contiguous; written
    """
    for k in range(d_weight.shape[0]):
        count = 0
        for i in range(offsets.shape[0] - 1):
            for row in range(offsets[i], offsets[i + 1] - k):
                for j in range(x.shape[1]):
                    products[count, j] = d_out[row, j] * x[row + k, j]
                count += 1
        sum_sequence(products, 0, count, d_weight[k])


@cpu_inlined
def _cumsum_strip(x, first, end, begin, width, direction, out):
    """Write the running sums of the columns from `begin` on, at most `STRIP`, over the rows first..end."""
    zero = out.dtype.type(0)
    total, lost, before, part = strip_on_stack(zero), strip_on_stack(zero), strip_on_stack(zero), strip_on_stack(zero)
    for j in range(width):
        total[j] = lost[j] = 0
    for start in range(0, end - first, BLOCK):
        for j in range(width):
            before[j], part[j] = settled(total[j], lost[j]), 0
        for k in range(start, end_of_block(start, end - first)):
            row = first + k if direction > 0 else end - 1 - k
            for j in range(width):
                part[j] += x[row, begin + j]
                out[row, begin + j] = before[j] + part[j]
        for j in range(width):
            total[j], lost[j] = add_block(total[j], lost[j], part[j])


@cpu_kernel
def cumsum_cpu(x, offsets, direction, out):
    """`out[row, j]` = the sum of column j over the rows of the sequence up to `row`; from `row` on if direction < 0."""
    columns = np.uint64(out.shape[1])
    for i in range(offsets.shape[0] - 1):
        for begin in range(FIRST, columns, STRIP):
            _cumsum_strip(x, offsets[i], offsets[i + 1], begin, width_of_strip(begin, columns), direction, out)


@cuda_kernel
def cumsum_cuda(x, offsets, direction, out):
    """Twin of `cumsum_cpu`; one thread per column of a sequence."""
    thread, width = cuda.grid(1), out.shape[1]
    if thread < (offsets.shape[0] - 1) * width:
        i, j = thread // width, thread % width
        count = offsets[i + 1] - offsets[i]
        total = lost = out.dtype.type(0)
        for start in range(0, count, BLOCK):
            before, part = settled(total, lost), out.dtype.type(0)
            for k in range(start, end_of_block(start, count)):
                row = offsets[i] + k if direction > 0 else offsets[i + 1] - 1 - k
                part += x[row, j]
                out[row, j] = before + part
            total, lost = add_block(total, lost, part)


@twins(cumsum_cpu, cumsum_cuda, columns_of_sequences)
def cumsum(x, offsets, direction, out):
    """Compute the running sums of each column along every sequence.

    Order and precision of the sums are as in `kernels.sums`.  The gradient is the same kernel on the
    gradient of `out`, in the other direction.

    Parameters
    ----------
    x : (rows, features) C-contiguous
    offsets : (num_sequences + 1,) int64, in rows
    direction : int
        1 to sum each row and the rows before it, -1 to sum each row and the rows that follow.
    out : (rows, features) C-contiguous, the data type of `x`; written, every row that `offsets` covers

    Examples
    --------
    >>> out = np.empty((3, 1)); cumsum(np.array([[1.0], [2.0], [5.0]]), np.array([0, 2, 3]), 1, out); out.ravel()
    array([1., 3., 5.])
    """


@cpu_kernel
def windows_of_images(images, strides, before, out):
    """Copy windows of images; a window can reach beyond its image, where numbers are 0.

    Parameters
    ----------
    images : (images, channels, height, width), any strides
    strides, before : (int, int)
        Rows and columns from a window to the next, and of the first window above and left of the image.
    out : (images, windows down, windows to the right, channels, height, width of a window) C-contiguous; written
    """
    zero, size = out.dtype.type(0), out.shape[5]
    for n in range(out.shape[0]):
        for i in range(out.shape[1]):
            for j in range(out.shape[2]):
                column = j * strides[1] - before[1]
                first = max(0, -column)
                end = max(first, min(size, images.shape[3] - column))
                for c in range(out.shape[3]):
                    for a in range(out.shape[4]):
                        row, window = i * strides[0] - before[0] + a, out[n, i, j, c, a]
                        if row < 0 or row >= images.shape[2]:
                            for b in range(size):
                                window[b] = zero
                        else:
                            for b in range(min(first, size)):
                                window[b] = zero
                            place = np.uint64(column + first)  # unsigned, so that numbers need no check of their index
                            for b in range(np.uint64(end - first)):
                                window[np.uint64(first) + b] = images[n, c, row, place + b]
                            for b in range(end, size):
                                window[b] = zero


@cpu_kernel
def add_windows_to_images(windows, strides, before, out):
    """Add windows to the images from which `windows_of_images` copied them, which has the same parameters."""
    height, width = out.shape[2], out.shape[3]
    for n in range(out.shape[0]):
        for a in range(windows.shape[4]):
            for b in range(windows.shape[5]):
                for i in range(windows.shape[1]):
                    row = i * strides[0] - before[0] + a
                    for c in range(out.shape[1] if 0 <= row < height else 0):
                        for j in range(windows.shape[2]):
                            column = j * strides[1] - before[1] + b
                            if 0 <= column < width:
                                out[n, c, row, column] += windows[n, i, j, c, a, b]


@cpu_kernel
def stabilise_cpu(log_decay, log_input, offsets, first, last, shift, out):
    """`m = max(log_decay + m before, log_input)`, row by row; `shift` is how much m falls."""
    for i in range(first.shape[0]):
        for j in range(out.shape[1]):
            last[i, j] = first[i, j]
        for row in range(offsets[i], offsets[i + 1]):
            for j in range(out.shape[1]):
                before, level = last[i, j], log_decay[row, j] + last[i, j]
                last[i, j] = log_input[row, j] if log_input[row, j] > level else level
                shift[row, j], out[row, j] = before - last[i, j], last[i, j]


@cuda_kernel
def stabilise_cuda(log_decay, log_input, offsets, first, last, shift, out):
    """Twin of `stabilise_cpu`; one thread per column of a sequence."""
    thread, width = cuda.grid(1), out.shape[1]
    if thread < first.shape[0] * width:
        i, j = thread // width, thread % width
        m = first[i, j]
        for row in range(offsets[i], offsets[i + 1]):
            before, level = m, log_decay[row, j] + m
            m = log_input[row, j] if log_input[row, j] > level else level
            shift[row, j], out[row, j] = before - m, m
        last[i, j] = m


@twins(stabilise_cpu, stabilise_cuda, lambda *arguments: arguments[3].size)
def stabilise(log_decay, log_input, offsets, first, last, shift, out):
    """Compute the running maximum m of decaying inputs, on a logarithmic scale, for each column of a sequence.

    Row by row, `m = max(log_decay + m, log_input)`.

    Parameters
    ----------
    log_decay, log_input : (rows, columns) C-contiguous
    offsets : (num_sequences + 1,) int64, in rows
    first : (num_sequences, columns) C-contiguous
        m before each sequence.
    last : as `first`; written
        m after each sequence.
    shift : as `log_decay`; written
        m before each row, less m.
    out : as `log_decay`; written

    Examples
    --------
    >>> decay, x = np.full((3, 1), -1.0), np.array([[2.0], [0.0], [3.0]])
    >>> last, shift, out = np.empty((1, 1)), np.empty((3, 1)), np.empty((3, 1))
    >>> stabilise(decay, x, np.array([0, 3]), np.zeros((1, 1)), last, shift, out); out.ravel(), shift.ravel()
    (array([2., 1., 3.]), array([-2.,  1., -2.]))
    """
