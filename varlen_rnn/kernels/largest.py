"""Find the rows of the largest numbers of each sequence, and the largest elements along an axis.

Kernels trust their indices, and check no bounds: see `varlen_rnn.kernels`.
"""

import numpy as np

from varlen_rnn.kernels.elementwise import unravel
from varlen_rnn.kernels.reductions import cut, is_for_kernels
from varlen_rnn.kernels.twins import launch_beside, sequences, twins
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.device import empty, on_device
from varlen_rnn.runtime.jit import body, cpu_kernel, cuda_kernel

_FEW = 16  # the most elements that are found by insertion; for more, a partition is faster


@body
def is_above(a, b):
    """Return whether `a` is larger than `b`; NaN is larger than all numbers."""
    return a > b or (a != a and b == b)


@body
def take_largest(x, first, end, out, begin, limit):
    """`out[begin:limit]` = the rows of the largest numbers of `x[first:end]`, by insertion into a sorted list.

    Nearly all numbers need only one comparison, unless they ascend.
    """
    held = begin
    for row in range(first, end if begin < limit else first):
        place = -1
        if held < limit:
            place = held
            held += 1
        elif is_above(x[row], x[out[limit - 1]]):
            place = limit - 1
        if place >= 0:
            while place > begin and is_above(x[row], x[out[place - 1]]):
                out[place] = out[place - 1]
                place -= 1
            out[place] = row


@cpu_kernel
def largest_cpu(x, offsets, limits, out):
    """`out[limits[i]:limits[i + 1]]` = the rows of the largest numbers of `x[offsets[i]:offsets[i + 1]]`."""
    for i in range(offsets.shape[0] - 1):
        take_largest(x, offsets[i], offsets[i + 1], out, limits[i], limits[i + 1])


@cuda_kernel
def largest_cuda(x, offsets, limits, out):
    """Twin of `largest_cpu`; one thread per sequence."""
    i = cuda.grid(1)
    if i < offsets.shape[0] - 1:
        take_largest(x, offsets[i], offsets[i + 1], out, limits[i], limits[i + 1])


@twins(largest_cpu, largest_cuda, sequences)
def largest(x, offsets, limits, out):
    """Compute the rows of the largest numbers of each sequence, largest first; equal numbers keep their order.

    NaN is larger than all numbers.

    Parameters
    ----------
    x : (rows,) C-contiguous
    offsets : (num_sequences + 1,) int64, in rows
    limits : (num_sequences + 1,) int64
        Offsets in `out`: sequence i gets `limits[i + 1] - limits[i]` rows, at most as many as it has.
    out : (limits[-1],) int64; written

    Examples
    --------
    >>> out = np.empty(3, np.int64)
    >>> largest(np.array([1.0, 3.0, 3.0, 5.0]), np.array([0, 3, 4]), np.array([0, 2, 3]), out); out
    array([1, 2, 3])
    """


@cpu_kernel
def top_cpu(x, index):
    """`index[b, :, a]` = the places of the largest elements of `x[b, :, a]`, largest first."""
    for b in range(x.shape[0]):
        for a in range(x.shape[2]):
            take_largest(x[b, :, a], 0, x.shape[1], index[b, :, a], 0, index.shape[1])


@cuda_kernel
def top_cuda(x, index):
    """`index[b, :, a]` = the places of the largest elements of `x[b, :, a]`, largest first; one thread per (b, a)."""
    thread, after = cuda.grid(1), x.shape[2]
    if thread < x.shape[0] * after:
        b, a = thread // after, thread % after
        take_largest(x[b, :, a], 0, x.shape[1], index[b, :, a], 0, index.shape[1])


@cpu_kernel
def take_along_cpu(x, index, out):
    """`out[b, k, a] = x[b, index[b, k, a], a]`."""
    for b in range(out.shape[0]):
        for k in range(out.shape[1]):
            for a in range(out.shape[2]):
                out[b, k, a] = x[b, index[b, k, a], a]


@cuda_kernel
def take_along_cuda(x, index, out):
    """`out[b, k, a] = x[b, index[b, k, a], a]`."""
    thread = cuda.grid(1)
    if thread < out.size:
        b, k, a = unravel(thread, out.shape[1], out.shape[2])
        out[b, k, a] = x[b, index[b, k, a], a]


@cpu_kernel
def put_along_cpu(values, index, out):
    """`out[b, index[b, k, a], a] = values[b, k, a]` if the index is in range."""
    for b in range(values.shape[0]):
        for k in range(values.shape[1]):
            for a in range(values.shape[2]):
                if 0 <= index[b, k, a] < out.shape[1]:
                    out[b, index[b, k, a], a] = values[b, k, a]


@cuda_kernel
def put_along_cuda(values, index, out):
    """`out[b, index[b, k, a], a] = values[b, k, a]` if the index is in range; one thread per element of `values`."""
    thread = cuda.grid(1)
    if thread < values.size:
        b, k, a = unravel(thread, values.shape[1], values.shape[2])
        if 0 <= index[b, k, a] < out.shape[1]:
            out[b, index[b, k, a], a] = values[b, k, a]


def top(x, k, axis):
    """Return the `k` largest elements along an axis, the largest first, and their places.

    Of equal elements, the first is taken.  NaN is larger than all numbers.

    Examples
    --------
    >>> top(np.array([2.0, 5.0, 5.0]), 2, 0)
    (array([5., 5.]), array([1, 2]))
    """
    if on_device(x) or (k <= _FEW and is_for_kernels(x)):
        shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
        parts = cut(x, axis)
        out = empty((parts.shape[0], k, parts.shape[2]), x)
        index = empty(out.shape, x, np.int64)
        if on_device(x):
            launch_beside(top_cuda, out.shape[0] * out.shape[2], parts, index)
            launch_beside(take_along_cuda, out.size, parts, index, out)
        else:
            top_cpu(parts, index)
            take_along_cpu(parts, index, out)
        return out.reshape(shape), index.reshape(shape)
    index = np.moveaxis(_places_of_largest(np.moveaxis(x, axis, -1), k), -1, axis)
    return np.ascontiguousarray(np.take_along_axis(x, index, axis)), np.ascontiguousarray(index)


def _places_of_largest(x, k):
    """Return the indices of the `k` largest elements along the last axis, the largest first."""
    # Find the k-th largest by a partition, and sort only k elements: sorting a vocabulary takes many times as long.
    least = np.partition(x, -k, -1)[..., -k, None]
    is_nan, least_is_nan = x != x, least != least
    above = (x > least) | (is_nan & ~least_is_nan)
    equal = (x == least) | (is_nan & least_is_nan)
    missing = k - np.count_nonzero(above, -1, keepdims=True)
    candidates = np.nonzero(above | (equal & (np.cumsum(equal, -1) <= missing)))[-1].reshape(*x.shape[:-1], k)
    # Sort the reversed candidates, and reverse the result, so that equal elements remain in their order.
    order = np.argsort(np.take_along_axis(x, candidates, -1)[..., ::-1], -1, kind="stable")[..., ::-1]
    return np.take_along_axis(candidates, k - 1 - order, -1)


def put_along(values, index, axis, out):
    """Write values to the places along an axis of `out` that `top` returned.

    Examples
    --------
    >>> out = np.zeros(3); put_along(np.array([7.0]), np.array([1]), 0, out); out
    array([0., 7., 0.])
    """
    parts = cut(values, axis), cut(index, axis), cut(out, axis)
    if on_device(out):
        launch_beside(put_along_cuda, values.size, *parts)
    else:
        put_along_cpu(*parts)
