"""Reduce an array, or one axis of it, to its sum, its extreme or the index of its extreme.

On a CUDA device, an axis is cut into blocks of 48 elements.  One thread reduces each block, and then the results of the
blocks are reduced.  The order depends only on the shape, so a result has the same bits in every run.  Sums are computed
as in `kernels.sums`; over axes of up to 110,592 elements other than the last, they have the same bits as on the CPU.
"""

import math

import numpy as np

from varlen_rnn.kernels import windows
from varlen_rnn.kernels.arithmetic import divide, equal, share_of_equal
from varlen_rnn.kernels.copies import astype
from varlen_rnn.kernels.elementwise import FLOATS, unravel
from varlen_rnn.kernels.pairwise import extreme_of_lanes, mean_of_neighbours
from varlen_rnn.kernels.pool import exceeds, sum_columns, sum_sequence
from varlen_rnn.kernels.stack import FIRST, STRIP, strip_on_stack, width_of_strip
from varlen_rnn.kernels.sums import BLOCK, add_block, settled
from varlen_rnn.kernels.twins import launch_beside
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.device import as_operand, beside, empty, on_device
from varlen_rnn.runtime.jit import body, cpu_inlined, cpu_kernel, cuda_kernel
from varlen_rnn.runtime.placeholder import Placeholder

GROUP = BLOCK * BLOCK  # the number of blocks whose sums one thread adds
_LANES = 64  # numbers that a host compares at once to find an extreme


@body
def block_of(thread, out, size, length):
    """Return the indices (b, k, a) of a thread's element of `out`, and the first element and the end of its block.

    Block k has `size` elements, fewer at the end of an axis of `length` elements.
    """
    b, k, a = unravel(thread, out.shape[1], out.shape[2])
    first = k * size
    return b, k, a, first, first + size if length - first > size else length


@cuda_kernel
def sum_blocks_cuda(x, out):
    """`out[b, k, a]` = the sum of block k of `x[b, :, a]`; an axis of no elements has one block, whose sum is 0."""
    thread = cuda.grid(1)
    if thread < out.size:
        b, k, a, first, end = block_of(thread, out, BLOCK, x.shape[1])
        total = out.dtype.type(0)
        for i in range(first, end):
            total += x[b, i, a]
        out[b, k, a] = total


@cuda_kernel
def add_sums_cuda(sums, out):
    """`out[b, k, a]` = the sum of group k of `sums[b, :, a]`; rounding errors are collected and added at the end."""
    thread = cuda.grid(1)
    if thread < out.size:
        b, k, a, first, end = block_of(thread, out, GROUP, sums.shape[1])
        total = lost = out.dtype.type(0)
        for i in range(first, end):
            total, lost = add_block(total, lost, sums[b, i, a])
        out[b, k, a] = settled(total, lost)


def _sum_on_device(x):
    """Return the sums over the middle axis of a device array `(before, count, after)`."""
    sums = _blocks(x, BLOCK)
    launch_beside(sum_blocks_cuda, sums.size, x, sums)
    while sums.shape[1] > 1:
        parts, sums = sums, _blocks(sums, GROUP)
        launch_beside(add_sums_cuda, sums.size, parts, sums)
    return sums


def _blocks(x, size, dtype=None):
    return empty((x.shape[0], max(1, -(-x.shape[1] // size)), x.shape[2]), x, dtype)


def cut(x, axis):
    """Return a C-contiguous array, reshaped to `(before, count, after)`; the middle axis is `axis`, or all elements."""
    shape = x.shape
    if axis is None:
        return as_operand(x).reshape((1, x.size, 1))
    return as_operand(x).reshape((math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])))


def _without(shape, axis):
    return () if axis is None else shape[:axis] + shape[axis + 1 :]


@cpu_kernel
def mean_rows_cpu(x, count, divisor, out):
    """`out[i]` = the sum of `count` rows of `x`, from row `i * count` on, divided by the integer `divisor`."""
    number = out.dtype.type(divisor)
    for i in range(out.shape[0]):
        sum_sequence(x, i * count, (i + 1) * count, out[i])
        for j in range(out.shape[1] if divisor != 1 else 0):
            out[i, j] /= number


@cpu_kernel
def sum_integers_cpu(x, out):
    """`out[b, a]` = the sum of the integers `x[b, :, a]`, which wraps around."""
    for b in range(x.shape[0]):
        if x.shape[2] == 1:
            total = out.dtype.type(0)
            for i in range(x.shape[1]):
                total += x[b, i, 0]
            out[b, 0] = total
        else:
            for a in range(x.shape[2]):
                out[b, a] = 0
            for i in range(x.shape[1]):
                for a in range(x.shape[2]):
                    out[b, a] += x[b, i, a]


@cpu_inlined
def _add_sums_of_blocks(x, step, blocks, begin, width, out):
    """Write the results of `sum_blocks_of_rows` for the columns from `begin` on, at most `STRIP`."""
    zero = x.dtype.type(0)
    total, lost, part, of_block = strip_on_stack(zero), strip_on_stack(zero), strip_on_stack(zero), strip_on_stack(zero)
    for k in range(blocks):
        sum_columns(x, k * step, min(x.shape[0], (k + 1) * step), begin, width, of_block)
        if k % BLOCK:
            for j in range(width):
                part[j] += of_block[j]
            continue
        for j in range(width if k else FIRST):  # `part` has the sum of the `BLOCK` blocks before
            total[j], lost[j] = add_block(total[j], lost[j], part[j]) if k > BLOCK else (part[j], zero)
        for j in range(width):
            part[j] = zero + of_block[j]
    for j in range(width):
        if blocks > BLOCK:
            total[j], lost[j] = add_block(total[j], lost[j], part[j])
        out[0, begin + j] = settled(total[j], lost[j]) if blocks > BLOCK else part[j]


@cpu_kernel
def sum_blocks_of_rows(x, step, out):
    """`out[0]` = the sum of the rows of `x`: the sum of each `step` rows, and then the sum of these sums."""
    blocks, columns = max(1, -(-x.shape[0] // step)), np.uint64(x.shape[1])
    for begin in range(FIRST, columns, STRIP):
        _add_sums_of_blocks(x, step, blocks, begin, width_of_strip(begin, columns), out)


def sum_over(x, axis):
    """Return the sum of an array over an axis, which is removed, or over all elements.

    On the host, sums of all elements and over the last axis are pairwise, in the order of NumPy.  Other sums are
    computed as in `kernels.sums`.  They do not depend on the layout of the array in memory.

    Parameters
    ----------
    x : array, float32, float64 or int64
    axis : int or None
        `0 <= axis < x.ndim`; None for all elements.

    Examples
    --------
    >>> sum_over(np.arange(6.0).reshape(3, 2), 0)
    array([6., 9.])
    """
    return _sum_on_device_over(x, axis) if on_device(x) else _mean_on_host(x, axis, 1)


def mean_over(x, axis):
    """Return the mean of an array of floats over an axis, which is removed, or of all elements; NaN if there are none.

    Examples
    --------
    >>> mean_over(np.arange(6.0).reshape(3, 2), 0)
    array([2., 3.])
    """
    count = x.size if axis is None else x.shape[axis]
    if not on_device(x):
        return _mean_on_host(x, axis, count)
    return divide(_sum_on_device_over(x, axis), x.dtype.type(count))


def _sum_on_device_over(x, axis):
    return _sum_on_device(cut(x, axis)).reshape(_without(x.shape, axis))


def _mean_on_host(x, axis, divisor):
    """Return the sum of an array over an axis, or over all elements, divided by an integer; 1 for integers."""
    shape = _without(x.shape, axis)
    if x.dtype.kind == "i":
        parts, out = cut(x, axis), empty(shape, x, np.int64)
        sum_integers_cpu(parts, out.reshape(parts.shape[0], parts.shape[2]))
        return out
    flat, out = as_operand(x).reshape(-1), empty(shape, x)
    after = 1 if axis is None else math.prod(shape[axis:])
    count = x.size if axis is None else x.shape[axis]
    if after == 1:
        mean_of_neighbours(flat, count, divisor, out.reshape(-1))
    else:
        before = math.prod(shape[:axis])
        mean_rows_cpu(flat.reshape(before * count, after), count, divisor, out.reshape(before, after))
    return out


@body
def falls_below(value, best):
    """Return whether `value` replaces the minimum so far: it must be smaller, or the first NaN."""
    return (value < best) | ((value != value) & (best == best))


def _extremes(replaces, sign):
    """Return the kernels of an extreme; `replaces(value, best)` says whether a value replaces the best so far."""
    found_in_lanes = extreme_of_lanes(sign, _LANES)

    @cpu_inlined
    def extreme_of(x, first, end):
        """Return the extreme of the neighbours `x[first:end]`, at least one."""
        whole = end - (end - first) % _LANES
        best = found_in_lanes(x, first, whole - first) if whole > first else x[first]
        for i in range(whole, end):
            best = x[i] if replaces(x[i], best) else best
        return best

    @cpu_kernel
    def extremes_cpu(x, out, index):
        """`out[b, a]` = the extreme of `x[b, :, a]`, and `index[b, a]` = its first place, unless `index` is empty."""
        count, flat, finds_places = x.shape[1], x.reshape(x.size), index.size > 0
        for b in range(x.shape[0]):
            if x.shape[2] == 1 and (finds_places or count < _LANES):
                best, at = x[b, 0, 0], 0
                for i in range(1, count):
                    new = replaces(x[b, i, 0], best)
                    best, at = x[b, i, 0] if new else best, i if new else at
                out[b, 0] = best
                if finds_places:
                    index[b, 0] = at
            elif x.shape[2] == 1:
                out[b, 0] = extreme_of(flat, b * count, b * count + count)
            else:
                for a in range(x.shape[2]):
                    out[b, a] = x[b, 0, a]
                    if finds_places:
                        index[b, a] = 0
                for i in range(1, count):
                    if finds_places:
                        for a in range(x.shape[2]):  # load and store in either case, so that the loop vectorises
                            value, best, place = x[b, i, a], out[b, a], index[b, a]
                            new = replaces(value, best)
                            out[b, a], index[b, a] = value if new else best, i if new else place
                    else:
                        for a in range(x.shape[2]):
                            value, best = x[b, i, a], out[b, a]
                            out[b, a] = value if replaces(value, best) else best

    @cuda_kernel
    def extremes_cuda(x, places, out, index):
        """`out[b, k, a]` = the extreme of block k of `x[b, :, a]`, and `index[b, k, a]` = its place.

        If `x` has the extremes of blocks, `places` has their places in the whole axis; otherwise it is empty.
        """
        thread = cuda.grid(1)
        if thread < out.size:
            b, k, a, first, end = block_of(thread, out, BLOCK, x.shape[1])
            best, at = x[b, first, a], first
            for i in range(first + 1, end):
                if replaces(x[b, i, a], best):
                    best, at = x[b, i, a], i
            out[b, k, a] = best
            index[b, k, a] = places[b, at, a] if places.size else at

    return extremes_cpu, extremes_cuda


largest_cpu, largest_cuda = _extremes(exceeds, ">")
smallest_cpu, smallest_cuda = _extremes(falls_below, "<")


def _extreme_on_device(kernel, x, axis):
    """Return the extremes of a device array over an axis, and their places on the axis."""
    values, places = cut(x, axis), empty((0, 0, 0), x, np.int64)
    while True:
        parts, given = values, places
        values, places = _blocks(parts, BLOCK), _blocks(parts, BLOCK, np.int64)
        launch_beside(kernel, values.size, parts, given, values, places)
        if values.shape[1] == 1:
            shape = _without(x.shape, axis)
            return values.reshape(shape), places.reshape(shape)


def _extreme_on_host(kernel, x, axis, finds_places=False):
    """Return the extremes of an array of the host over an axis, or their first places on the axis."""
    parts, shape = cut(x, axis), _without(x.shape, axis)
    out = empty((parts.shape[0], parts.shape[2]), x)
    index = empty(out.shape if finds_places else (0, 0), x, np.int64)
    kernel(parts, out, index)
    return (index if finds_places else out).reshape(shape)


def is_for_kernels(x):
    """Return whether kernels take an array of the host; NumPy reduces arrays of other types, such as flags."""
    return x.dtype in FLOATS or x.dtype.kind == "i"


def max_over(x, axis):
    """Return the maximum of an array over an axis, which is removed, or over all elements; NaN wins, as in `np.max`.

    Examples
    --------
    >>> x = np.array([[1.0, 5.0], [3.0, 2.0]])
    >>> max_over(x, 0), min_over(x, 0), argmax_over(x, 0)
    (array([3., 5.]), array([1., 2.]), array([1, 0]))
    """
    if on_device(x):
        return _extreme_on_device(largest_cuda, x, axis)[0]
    return _extreme_on_host(largest_cpu, x, axis) if is_for_kernels(x) else np.asarray(np.maximum.reduce(x, axis))


def min_over(x, axis):
    """Return the minimum of an array over an axis, or over all elements; see `max_over`."""
    if on_device(x):
        return _extreme_on_device(smallest_cuda, x, axis)[0]
    return _extreme_on_host(smallest_cpu, x, axis) if is_for_kernels(x) else np.asarray(np.minimum.reduce(x, axis))


def argmax_over(x, axis):
    """Return the place of the maximum that `max_over` returns; among equal elements, the first place."""
    if on_device(x):
        return _extreme_on_device(largest_cuda, x, axis)[1]
    if type(x) is Placeholder:
        return _extreme_on_host(largest_cpu, x, axis, True)
    return np.asarray(np.argmax(x, axis), np.int64)  # along a contiguous axis, it is faster than our loop


@cpu_kernel
def share_among_equal_cpu(x, best, d_best, counts, d_x):
    """Where `x[b, i, a]` is the best, `d_x[b, i, a]` = `d_best[b, a]` / how many of `x[b, :, a]` are; otherwise 0.

    It is NaN if the best is NaN.  `counts` is memory for one number for each `a`.
    """
    number = d_x.dtype.type
    for b in range(x.shape[0]):
        if x.shape[2] == 1:
            count = 0
            for i in range(x.shape[1]):
                count += x[b, i, 0] == best[b, 0]
            share = d_best[b, 0] / number(count)
            none = number(0) * share
            for i in range(x.shape[1]):
                d_x[b, i, 0] = share if x[b, i, 0] == best[b, 0] else none
        else:
            for a in range(x.shape[2]):
                counts[a] = 0
            for i in range(x.shape[1]):
                for a in range(x.shape[2]):
                    counts[a] += x[b, i, a] == best[b, a]
            for i in range(x.shape[1]):
                for a in range(x.shape[2]):
                    share = d_best[b, a] / number(counts[a])
                    d_x[b, i, a] = share if x[b, i, a] == best[b, a] else number(0) * share


def share_among_equal(x, out, d_out, axis):
    """Return the gradient of an extreme: all elements equal to it get the same share; NaN if the extreme is NaN.

    `out`, the extreme, and `d_out` have size 1 along the axis, or are single numbers if `axis` is None.
    """
    if on_device(x):
        count = sum_over(astype(equal(x, out), x.dtype), axis).reshape(d_out.shape)
        return share_of_equal(x, out, divide(d_out, count))
    parts, d_x = cut(x, axis), empty(x.shape, x)
    shape = parts.shape[0], parts.shape[2]
    best, d_best = (as_operand(array).reshape(shape) for array in (out, beside(d_out, x)))
    share_among_equal_cpu(parts, best, d_best, empty((shape[1],), x, np.int64), d_x.reshape(parts.shape))
    return d_x


@cpu_kernel
def running_sums_cpu(x, backwards, out):
    """`out[b, i, a]` = the sum of `x[b, :i + 1, a]`, or of `x[b, i:, a]`, added one after another."""
    last = x.shape[1] - 1
    for b in range(x.shape[0]):
        for k in range(x.shape[1]):
            i = last - k if backwards else k
            before = i + 1 if backwards else i - 1
            for a in range(x.shape[2]):
                out[b, i, a] = out[b, before, a] + x[b, i, a] if k else x[b, i, a]


def running_sums(x, axis, backwards=False):
    """Return, for each element, the sum of the elements up to it along an axis, or from it on if `backwards`.

    On the host, one element is added after another, as in NumPy.  On a device, sums are computed as in `kernels.sums`.

    Examples
    --------
    >>> running_sums(np.array([1.0, 2.0, 3.0]), 0, backwards=True)
    array([6., 5., 3.])
    """
    if on_device(x):
        before, count, after = (parts := cut(x, axis % x.ndim)).shape
        out = empty((before * count, after), x)
        offsets = np.arange(before + 1) * count
        windows.cumsum(parts.reshape(out.shape), offsets, -1 if backwards else 1, out)
        return out.reshape(x.shape)
    parts, out = cut(x, axis % x.ndim), empty(x.shape, x)
    running_sums_cpu(parts, backwards, out.reshape(parts.shape))
    return out
