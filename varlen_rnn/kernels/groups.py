"""Group equal numbers of rows, and sum the values of each group, as a sparse gradient with repeated rows needs.

The ids 4, 0, 4 have two groups: the rows 0 and 4, with the places 1 and 0, 2 in the ids.  The number of groups depends
on the ids.  So arrays have room for as many groups as ids, and unused entries of `rows` are -1, at the end.

Kernels trust their ids, and check no bounds: see `varlen_rnn.kernels`.
"""

import numpy as np

from varlen_rnn.kernels.stack import FIRST, STRIP, strip_on_stack, width_of_strip
from varlen_rnn.kernels.sums import BLOCK, add_block, settled
from varlen_rnn.runtime.jit import cpu_inlined, cpu_kernel

_BITS = 8  # of a digit


@cpu_kernel
def group_ids(ids, height, counts, order, rows, starts):
    """Sort ids, from lowest to highest, and find the groups of equal ids; equal ids keep their order.

    Parameters
    ----------
    ids : (n,) int64, `-1 <= id < height`
        The id -1 belongs to no group.
    height : int
    counts : (257,) int64; written
        Memory for the kernel.
    order : (n,) int64; written
        The places of the sorted ids.
    rows : (n,) int64; written
        The id of each group, and -1 after the last group.
    starts : (n + 1,) int64; written
        Group i has the places `order[starts[i]]` to `order[starts[i + 1] - 1]`; it has none after the last group.

    Examples
    --------
    >>> counts, (order, rows), starts = np.empty(257, np.int64), np.empty((2, 3), np.int64), np.empty(4, np.int64)
    >>> group_ids(np.array([4, 0, 4]), 5, counts, order, rows, starts); order, rows, starts
    (array([1, 0, 2]), array([ 0,  4, -1]), array([0, 1, 3, 3]))

    Source: radix sort from the lowest digit, as in Knuth, "The Art of Computer Programming", section 5.2.5.
    """
    count, shift = ids.shape[0], 0
    for k in range(count):
        order[k] = k
    while height >> shift:  # `height` itself takes the place of -1, so that this id becomes the last
        counts[:] = 0
        for k in range(count):
            digit = ((ids[k] if ids[k] >= 0 else height) >> shift) & 255
            counts[digit + 1] += 1
        for digit in range(256):
            counts[digit + 1] += counts[digit]
        for k in range(count):
            place = order[k]
            digit = ((ids[place] if ids[place] >= 0 else height) >> shift) & 255
            starts[counts[digit]] = place
            counts[digit] += 1
        for k in range(count):
            order[k] = starts[k]
        shift += _BITS
    groups = end = 0
    for k in range(count):
        row = ids[order[k]]
        if row < 0:
            break
        if groups == 0 or rows[groups - 1] != row:
            rows[groups] = row
            starts[groups] = k
            groups += 1
        end = k + 1
    starts[groups:] = end
    rows[groups:] = -1


@cpu_inlined
def _sum_group(values, order, start, end, begin, width, out):
    """Write the sums of the columns from `begin` on, at most `STRIP`, of the group that has the places start..end."""
    zero = out.dtype.type(0)
    totals, lost = strip_on_stack(zero), strip_on_stack(zero)
    if start == end:
        for j in range(begin, begin + width):
            out[j] = zero
    for first in range(start, end, BLOCK):
        if first > start:
            for j in range(width):
                old, rest = (totals[j], lost[j]) if first > start + BLOCK else (zero, zero)
                totals[j], lost[j] = add_block(old, rest, out[begin + j])
        row = order[first]
        for j in range(begin, begin + width):
            out[j] = values[row, j]
        for k in range(first + 1, min(first + BLOCK, end)):
            row = order[k]
            for j in range(begin, begin + width):
                out[j] += values[row, j]
    if end - start > BLOCK:
        for j in range(width):
            total, rest = add_block(totals[j], lost[j], out[begin + j])
            out[begin + j] = settled(total, rest)


@cpu_kernel
def sum_groups(values, order, starts, out):
    """Compute `out[i]`, the sum of `values[order[k]]` for k from `starts[i]` to `starts[i + 1]`; 0 if there is no k.

    The first value is copied, and the precision of longer sums is as in `kernels.sums`.

    Parameters
    ----------
    values : (n, features) C-contiguous floats
    order, starts : int64, as `group_ids` writes them
    out : (groups, features) C-contiguous, the data type of `values`; written

    Examples
    --------
    >>> out = np.empty((3, 1))
    >>> sum_groups(np.array([[1.0], [2.0], [4.0]]), np.array([1, 0, 2]), np.array([0, 1, 3, 3]), out); out.ravel()
    array([2., 5., 0.])
    """
    columns = np.uint64(out.shape[1])
    for begin in range(FIRST, columns, STRIP):
        for i in range(out.shape[0]):
            _sum_group(values, order, starts[i], starts[i + 1], begin, width_of_strip(begin, columns), out[i])
