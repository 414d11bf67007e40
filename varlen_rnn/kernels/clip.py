"""Compute the global norm of gradients, and scale them by it.

On the host, squares are added in float64, because in float32 the square of 1e20 overflows.

On a CUDA device, where float64 is slow, a sum of squares is held as two numbers: the largest magnitude `m`, and the sum
of `(x / m)**2`.  A thread first sums 48 elements, and then 48 such pairs.  The norm is never copied to the host.

Source: the scaled sum of squares of LAPACK's `lassq`.
"""

import math

import numpy as np

from varlen_rnn.kernels.elementwise import elementwise
from varlen_rnn.kernels.pairwise import pairwise_sum
from varlen_rnn.kernels.sums import BLOCK, end_of_block
from varlen_rnn.kernels.twins import launch_beside
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.device import as_operand, empty, launch
from varlen_rnn.runtime.jit import body, cpu_kernel, cuda_kernel

_MOST = 16  # the number of arrays that a launch takes
SQUARES = 2**16  # squares that are computed before they are added


@cpu_kernel
def add_squares(x, rows, squares, total):
    """Add the squares of the numbers in listed rows to a sum in float64.

    Parameters
    ----------
    x : (n, features) C-contiguous, float32 or float64
    rows : (n,) int64
        Rows of `x` from the first -1 on do not count.
    squares : (SQUARES,) or all numbers of `x`, float64; written
        Memory for the kernel.
    total : (1,) float64; added to

    Examples
    --------
    >>> total = np.ones(1)
    >>> add_squares(np.array([[2.0], [3.0], [9.0]]), np.array([5, 7, -1]), np.empty(3), total); total
    array([14.])
    """
    listed, own = 0, 0.0
    while listed < rows.shape[0] and rows[listed] >= 0:
        listed += 1
    numbers, count = x.reshape(x.size), listed * x.shape[1]
    for first in range(0, count, SQUARES):
        size = min(SQUARES, count - first)
        piece = numbers[first : first + size]
        for k in range(size):
            number = np.float64(piece[k])  # `float` leaves float32 as it is
            squares[k] = number * number
        own += pairwise_sum(squares, 0, size)
    total[0] += own


@cpu_kernel
def factor_of_norm(squares, max_norm, norm, factor):
    """Compute a norm from the sum of its squares, and the factor that scales it to at most `max_norm`; 1 if it is less.

    All arrays have one float64.  If the norm is NaN, the factor is NaN, too, as in PyTorch.

    Examples
    --------
    >>> norm, factor = np.empty(1), np.empty(1)
    >>> factor_of_norm(np.array([25.0]), 1.0, norm, factor); norm, factor
    (array([5.]), array([0.2]))
    """
    norm[0] = math.sqrt(squares[0])
    factor[0] = 1.0 if norm[0] <= max_norm else max_norm / norm[0]


@body
def larger(magnitude, most):
    """Return the larger of two magnitudes; NaN is larger than all numbers."""
    return magnitude if magnitude > most or magnitude != magnitude else most


@body
def ratio(magnitude, most):
    """Return `magnitude / most`, or 0 if both are 0, or 1 if both are infinite."""
    one, zero = type(most)(1), type(most)(0)
    return zero if magnitude == zero else one if magnitude == most else magnitude / most


@cuda_kernel
def squares_cuda(arrays, out):
    """`out[:, k]` = the largest magnitude `m` of block k, and the sum of its `(x / m)**2`; one thread per block.

    The flat arrays are cut into blocks, which are numbered from array to array.
    """
    thread = cuda.grid(1)
    k = thread
    for a in range(len(arrays)):
        x = arrays[a]
        blocks = (x.shape[0] + BLOCK - 1) // BLOCK
        if 0 <= k < blocks:
            start = k * BLOCK
            most = total = out.dtype.type(0)
            for i in range(start, end_of_block(start, x.shape[0])):
                most = larger(abs(x[i]), most)
            for i in range(start, end_of_block(start, x.shape[0])):
                part = ratio(abs(x[i]), most)
                total += part * part
            out[0, thread], out[1, thread] = most, total
        k -= blocks


@cuda_kernel
def add_squares_cuda(parts, out):
    """`out[:, k]` = the sum of squares of block k of `parts`, which are sums of squares that `squares_cuda` wrote."""
    k = cuda.grid(1)
    start = k * BLOCK
    if k < out.shape[1]:
        most = total = out.dtype.type(0)
        for i in range(start, end_of_block(start, parts.shape[1])):
            most = larger(parts[0, i], most)
        for i in range(start, end_of_block(start, parts.shape[1])):
            part = ratio(parts[0, i], most)
            total += part * part * parts[1, i]
        out[0, k], out[1, k] = most, total


@elementwise(None)
def root_of_squares(most, total):
    """Return the root of a sum of squares, given as its largest magnitude and its scaled sum."""
    return most * math.sqrt(total)


@cuda_kernel
def clip_cuda(arrays, norm, max_norm, out):
    """`out` = `arrays`, whose global norm is `norm`, scaled to at most `max_norm`; one thread per element."""
    i = cuda.grid(1)
    for a in range(len(arrays)):
        if 0 <= i < arrays[a].shape[0]:
            x, whole = arrays[a][i], norm[()]
            out[a][i] = x if whole <= max_norm else x * (max_norm / whole)
        i -= arrays[a].shape[0]


def norm_on_device(arrays):
    """Return the root of the sum of all squares of device arrays of one data type, as a device array without axes."""
    counts = [-(-array.size // BLOCK) for array in arrays]
    parts, first = empty((2, max(1, sum(counts))), arrays[0]), 0
    if not sum(counts):
        launch_beside(add_squares_cuda, 1, empty((2, 0), parts), parts)
    for group in _groups([_flat(array) for array in arrays]):
        count = sum(-(-array.size // BLOCK) for array in group)
        launch(squares_cuda, count, group, parts[:, first : first + count])
        first += count
    while parts.shape[1] > 1:
        sums = empty((2, -(-parts.shape[1] // BLOCK)), parts)
        launch_beside(add_squares_cuda, sums.shape[1], parts, sums)
        parts = sums
    return root_of_squares(parts[0].reshape(()), parts[1].reshape(()))


def clipped(arrays, norm, max_norm):
    """Return device arrays of one data type whose norm is `norm`, scaled so that it is at most `max_norm`."""
    found = [empty(array.shape, array) for array in arrays]
    flat = [_flat(array) for array in arrays], [_flat(array) for array in found]
    for group, out in zip(*map(_groups, flat), strict=True):
        launch(clip_cuda, sum(array.size for array in group), group, norm, norm.dtype.type(max_norm), out)
    return found


def _flat(array):
    return as_operand(array).reshape((array.size,))


def _groups(arrays):
    """Return tuples of `_MOST` arrays, the last one filled up with empty arrays, so that one kernel takes them all."""
    groups = [arrays[first : first + _MOST] for first in range(0, len(arrays), _MOST)]
    return [(*group, *[group[0][:0]] * (_MOST - len(group))) for group in groups]
