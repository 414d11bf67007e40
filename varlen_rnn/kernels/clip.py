"""Squares of whole gradients, and their scaling by the global norm, on a CUDA device without a look at the norm.

In float32 the square of 1e20 overflows, and on a GPU float64 is slow.  So a sum of squares is two numbers, the largest
magnitude `m` and the sum of `(x / m)**2`: each of 48 elements at first, and each of 48 such pairs then.

Source: the scaled sum of squares of LAPACK's `lassq`.
"""

import math

from varlen_rnn.kernels.elementwise import elementwise
from varlen_rnn.kernels.sums import BLOCK, end_of_block
from varlen_rnn.kernels.twins import launch_beside
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.device import as_operand, empty
from varlen_rnn.runtime.jit import body, cuda_kernel


@body
def larger(magnitude, most):
    """Return the larger of two magnitudes; NaN is larger than all numbers."""
    return magnitude if magnitude > most or magnitude != magnitude else most


@body
def ratio(magnitude, most):
    """Return `magnitude / most`, 0 if both are; an infinite magnitude is 1 time the infinite most."""
    one, zero = type(most)(1), type(most)(0)
    return zero if magnitude == zero else one if magnitude == most else magnitude / most


@cuda_kernel
def squares_cuda(x, first, out):
    """`out[:, first + k]` = the largest magnitude `m` of block k of `x`, and the sum of its `(x / m)**2`."""
    k = cuda.grid(1)
    start = k * BLOCK
    if start < x.shape[0]:
        most = total = out.dtype.type(0)
        for i in range(start, end_of_block(start, x.shape[0])):
            most = larger(abs(x[i]), most)
        for i in range(start, end_of_block(start, x.shape[0])):
            part = ratio(abs(x[i]), most)
            total += part * part
        out[0, first + k], out[1, first + k] = most, total


@cuda_kernel
def add_squares_cuda(parts, out):
    """`out[:, k]` = the sum of block k of sums of squares, as `squares_cuda` writes them."""
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
    """Return the root of a sum of squares."""
    return most * math.sqrt(total)


@elementwise(None, numbers=1)
def clipped(x, norm, max_norm):
    """Return an element of a gradient of the given global norm, so scaled that the norm is at most `max_norm`."""
    return x if norm <= max_norm else x * (max_norm / norm)


def norm_on_device(arrays):
    """Return the root of the sum of all squares of device arrays of one data type, as an array of rank 0 there."""
    counts = [-(-array.size // BLOCK) for array in arrays]
    parts, first = empty((2, max(1, sum(counts))), arrays[0]), 0
    if not sum(counts):
        launch_beside(add_squares_cuda, 1, empty((2, 0), parts), parts)
    for array, count in zip(arrays, counts, strict=True):
        launch_beside(squares_cuda, count, as_operand(array).reshape((array.size,)), first, parts)
        first += count
    while parts.shape[1] > 1:
        sums = empty((2, -(-parts.shape[1] // BLOCK)), parts)
        launch_beside(add_squares_cuda, sums.shape[1], parts, sums)
        parts = sums
    return root_of_squares(parts[0].reshape(()), parts[1].reshape(()))
