"""Find the rows of the largest numbers of each sequence.

Kernels trust their indices, and check no bounds: see `varlen_rnn.kernels`.
"""

from varlen_rnn.kernels.twins import sequences, twins
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.jit import body, cpu_kernel, cuda_kernel


@body
def is_above(a, b):
    """Return whether `a` is larger than `b`; NaN is larger than all numbers."""
    return a > b or (a != a and b == b)


@body
def take_largest(x, first, end, out, begin, limit):
    """`out[begin:limit]` = the rows of the largest numbers of `x[first:end]`, by insertion into a sorted list.

    Nearly all numbers take one comparison, unless they ascend.
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
    """`out[limits[i]:limits[i + 1]]` = the rows of the largest numbers of `x[offsets[i]:offsets[i + 1]]`.

    No bounds are checked.
    """
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

    No bounds are checked.

    Parameters
    ----------
    x : (rows,) C-contiguous
    offsets : (num_sequences + 1,) int64, in rows
    limits : (num_sequences + 1,) int64
        Offsets in `out`: sequence i gets `limits[i + 1] - limits[i]` rows, at most as many as it has.
    out : (limits[-1],) int64; written

    Examples
    --------
    >>> import numpy as np
    >>> out = np.empty(3, np.int64)
    >>> largest(np.array([1.0, 3.0, 3.0, 5.0]), np.array([0, 3, 4]), np.array([0, 2, 3]), out); out
    array([1, 2, 3])
    """
