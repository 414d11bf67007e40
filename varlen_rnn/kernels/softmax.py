"""The softmax of each column over the rows of each sequence, its gradient, and the log-softmax over the last axis.

Sequence i has rows `offsets[i]` to `offsets[i + 1]`.  Sums are computed as in `kernels.sums`, so that a result
depends only on the sequence's own rows.
Kernels trust their indices, and check no bounds: see `varlen_rnn.kernels`.
"""

import numpy as np

from varlen_rnn.kernels import arithmetic, functions
from varlen_rnn.kernels.activations import exp, log
from varlen_rnn.kernels.elementwise import elementwise
from varlen_rnn.kernels.pairwise import highest_of, pairwise_sum
from varlen_rnn.kernels.pool import sum_columns
from varlen_rnn.kernels.stack import FIRST, STRIP, strip_on_stack, width_of_strip
from varlen_rnn.kernels.sums import BLOCK, add_block, end_of_block, settled
from varlen_rnn.kernels.twins import columns_of_sequences, launch_beside, twins
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.device import as_operand, empty, on_device
from varlen_rnn.runtime.jit import cpu_inlined, cpu_kernel, cuda_kernel

_AT_A_TIME = 2048  # elements whose exponentials the logarithm of the softmax computes in one loop; L1 holds them


@cpu_inlined
def _subtract_highest(x, first, end, begin, width, highest, out):
    """`out = x - maximum of its column` for the rows first..end, at least one, and `width` columns from `begin` on."""
    for j in range(width):
        highest[j] = x[first, begin + j]
    for row in range(first + 1, end):
        for j in range(width):
            value, best = x[row, begin + j], highest[j]
            highest[j] = value if value > best else best
    for row in range(first, end):
        for j in range(width):
            out[row, begin + j] = x[row, begin + j] - highest[j]


@cpu_kernel
def softmax_cpu(x, offsets, out):
    """`out[row, j]` = `exp(x[row, j])` divided by the sum of these powers over the rows of the sequence."""
    columns, elements, memory = np.uint64(out.shape[1]), out.reshape(out.size), strip_on_stack(out.dtype.type(0))
    for i in range(offsets.shape[0] - 1):
        first, end = offsets[i], offsets[i + 1]
        if first == end:
            continue
        for begin in range(FIRST, columns, STRIP):
            _subtract_highest(x, first, end, begin, width_of_strip(begin, columns), memory, out)
        # One flat loop, which vectorises even if there are few columns.
        powers = elements[first * out.shape[1] : end * out.shape[1]]
        for k in range(powers.shape[0]):
            powers[k] = exp(powers[k])
        for begin in range(FIRST, columns, STRIP):
            width = width_of_strip(begin, columns)
            sum_columns(out, first, end, begin, width, memory)
            for row in range(first, end):
                for j in range(width):
                    out[row, begin + j] /= memory[j]


@cuda_kernel
def softmax_cuda(x, offsets, out):
    """Twin of `softmax_cpu`; one thread per column of a sequence."""
    thread, width = cuda.grid(1), out.shape[1]
    if thread < (offsets.shape[0] - 1) * width:
        i, j = thread // width, thread % width
        first, end = offsets[i], offsets[i + 1]
        if first < end:
            highest = x[first, j]
            for row in range(first + 1, end):
                highest = x[row, j] if x[row, j] > highest else highest
            total = lost = out.dtype.type(0)
            for start in range(first, end, BLOCK):
                part = out.dtype.type(0)
                for row in range(start, end_of_block(start, end)):
                    out[row, j] = exp(x[row, j] - highest)
                    part += out[row, j]
                total, lost = add_block(total, lost, part)
            total = settled(total, lost)
            for row in range(first, end):
                out[row, j] /= total


@twins(softmax_cpu, softmax_cuda, columns_of_sequences)
def softmax(x, offsets, out):
    """Compute the softmax of each column over the rows of each sequence: positive numbers whose sum is 1.

    The maximum is subtracted first, so that no number is too large.  NaN, and a maximum that is infinite, make the
    column NaN in that sequence.  The gradient is `softmax_grad`.

    Parameters
    ----------
    x : (rows, features) C-contiguous
    offsets : (num_sequences + 1,) int64, in rows
    out : (rows, features) C-contiguous, the data type of `x`; written, every row that `offsets` covers

    Examples
    --------
    >>> out = np.empty((3, 1)); softmax(np.array([[1e9], [1e9], [-5.0]]), np.array([0, 2, 3]), out); out.ravel()
    array([0.5, 0.5, 1. ])
    """


@cpu_kernel
def softmax_grad_cpu(y, d_y, offsets, d_x):
    """`d_x = y d_y - y * sum of y d_y in the rows of the sequence`, column by column."""
    columns, total = np.uint64(d_x.shape[1]), strip_on_stack(d_x.dtype.type(0))
    for i in range(offsets.shape[0] - 1):
        first, end = offsets[i], offsets[i + 1]
        for row in range(first, end):
            for j in range(columns):
                d_x[row, j] = y[row, j] * d_y[row, j]
        for begin in range(FIRST, columns, STRIP):
            width = width_of_strip(begin, columns)
            sum_columns(d_x, first, end, begin, width, total)
            for row in range(first, end):
                for j in range(width):
                    d_x[row, begin + j] -= y[row, begin + j] * total[j]


@cuda_kernel
def softmax_grad_cuda(y, d_y, offsets, d_x):
    """Twin of `softmax_grad_cpu`; one thread per column of a sequence."""
    thread, width = cuda.grid(1), d_x.shape[1]
    if thread < (offsets.shape[0] - 1) * width:
        i, j = thread // width, thread % width
        first, end = offsets[i], offsets[i + 1]
        total = lost = d_x.dtype.type(0)
        for start in range(first, end, BLOCK):
            part = d_x.dtype.type(0)
            for row in range(start, end_of_block(start, end)):
                d_x[row, j] = y[row, j] * d_y[row, j]
                part += d_x[row, j]
            total, lost = add_block(total, lost, part)
        total = settled(total, lost)
        for row in range(first, end):
            d_x[row, j] -= y[row, j] * total


@twins(softmax_grad_cpu, softmax_grad_cuda, lambda y, d_y, offsets, d_x: (offsets.size - 1) * d_x.shape[1])
def softmax_grad(y, d_y, offsets, d_x):
    """Compute the gradient of `softmax` from its result: `y (d_y - sum of y d_y)`, column by column.

    Parameters
    ----------
    y, d_y : (rows, features) C-contiguous
        The result of `softmax`, and its gradient.
    offsets : (num_sequences + 1,) int64, in rows
    d_x : (rows, features) C-contiguous, the data type of `y`; written, every row that `offsets` covers

    Examples
    --------
    >>> y, d_y, d_x = np.array([[0.5], [0.5]]), np.array([[1.0], [0.0]]), np.empty((2, 1))
    >>> softmax_grad(y, d_y, np.array([0, 2]), d_x); d_x.ravel()
    array([ 0.25, -0.25])
    """


@cpu_kernel
def log_softmax_cpu(x, powers, out):
    """`out = x - log of the sum of exp(x)`, row by row; as many rows at a time as `powers`, which is memory, has."""
    number, width, most = out.dtype.type, out.shape[1], powers.shape[0]
    given, elements, exponentials = x.reshape(x.size), out.reshape(out.size), powers.reshape(powers.size)
    for start in range(0, out.shape[0], most):
        end = min(start + most, out.shape[0])
        for row in range(start, end):
            highest = highest_of(given, row * width, width)
            highest = highest if abs(highest) < number(np.inf) else number(0)  # also if it is NaN
            for j in range(width):
                out[row, j] = x[row, j] - highest
        shifted = elements[start * width : end * width]  # one flat loop, which vectorises even if there are few columns
        for k in range(shifted.shape[0]):
            exponentials[k] = functions.exp(shifted[k])
        for row in range(start, end):
            total = number(log(number(0) + pairwise_sum(exponentials, (row - start) * width, width)))
            for j in range(width):
                out[row, j] -= total


@cuda_kernel
def log_softmax_cuda(x, out):
    """`out = x - log of the sum of exp(x)`, row by row; one thread per row."""
    row = cuda.grid(1)
    if row < out.shape[0]:
        number, width = out.dtype.type, out.shape[1]
        highest = x[row, 0]
        for j in range(1, width):
            highest = x[row, j] if x[row, j] > highest else highest
        highest = highest if abs(highest) < number(np.inf) else number(0)  # 0 instead of NaN and infinity
        total = lost = number(0)
        for start in range(0, width, BLOCK):
            part = number(0)
            for j in range(start, end_of_block(start, width)):
                part += functions.exp(x[row, j] - highest)
            total, lost = add_block(total, lost, part)
        total = log(settled(total, lost))
        for j in range(width):
            out[row, j] = (x[row, j] - highest) - total


def log_softmax(x):
    """Return the logarithm of the softmax over the last axis of an array.

    On the host, a row is summed in the order of NumPy.

    Examples
    --------
    >>> log_softmax(np.zeros((1, 2))).round(4)
    array([[-0.6931, -0.6931]])
    """
    width = x.shape[-1]
    flat = as_operand(x).reshape((x.size // width, width))
    out = empty(flat.shape, flat)
    if on_device(x):
        launch_beside(log_softmax_cuda, len(flat), flat, out)
    else:
        log_softmax_cpu(flat, empty((max(1, _AT_A_TIME // width), width), flat), out)
    return out.reshape(x.shape)


@elementwise(lambda y, d_y, total: d_y - arithmetic.exp(y) * total)
def log_softmax_grad(y, d_y, total):
    """Return the gradient of `log_softmax`, from its result and the sums of `d_y` over the last axis."""
    return d_y - functions.exp(y) * total
