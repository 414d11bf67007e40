"""Sums of rows: every kernel that adds rows, and its CUDA twin, adds them in the order that is described here.

Rows are added one after another, in their own data type and in blocks of 48.  When the sums of blocks are added, the
rounding error of each addition is collected and added at the end.  So the error does not grow with the number of rows:
it is at most 49 roundings, 3e-6 in float32, of the sum of magnitudes.  Up to 48 rows are summed by a plain loop.

Source: the compensated sum is `Sum2` of Ogita, Rump and Oishi (2005), on Knuth's TwoSum.
"""

import numpy as np

from varlen_rnn.kernels.stack import FIRST, STRIP, strip_on_stack, width_of_strip
from varlen_rnn.runtime.jit import body, cpu_kernel

BLOCK = 48  # rows: a million equal float32 numbers have an error of 8e-7; 24 rows would slow `scatter_add_rows` by 10 %


@body
def end_of_block(start, end):
    """Return the end of the block of rows that begins at row `start`; the last block ends at `end`."""
    return start + BLOCK if end - start > BLOCK else end


@body
def add_block(total, lost, part):
    """Return `total + part` and the sum of all rounding errors so far: `lost` plus the error of this addition."""
    new = total + part
    rest = new - total
    return new, lost + ((total - (new - rest)) + (part - rest))


@body
def settled(total, lost):
    """Return `total + lost`; if `lost` is NaN because the total is infinite or NaN, return the total."""
    return total + lost if lost == lost else total


@cpu_kernel
def sum_rows_in_float64(x, out):
    """`out[j]` = the sum of column j of `x` (rows, columns), added in float64 from the first row to the last."""
    totals, columns = strip_on_stack(0.0), np.uint64(out.shape[0])
    for begin in range(FIRST, columns, STRIP):
        width = width_of_strip(begin, columns)
        for j in range(width):
            totals[j] = 0
        for i in range(x.shape[0]):
            for j in range(width):
                totals[j] += x[i, begin + j]
        for j in range(width):
            out[begin + j] = totals[j]
