"""Plans, and arithmetic of offsets, as kernels, for programs whose kernels run without Python.

Kernels trust their offsets: see `varlen_rnn.kernels`.
"""

from varlen_rnn.runtime.jit import cpu_kernel


@cpu_kernel
def sort_descending(numbers, count, order, memory):
    """Write the order that sorts the first `count` numbers, largest first; equal numbers keep their order.

    Parameters
    ----------
    numbers : (n,) int64, `count <= n`
    order, memory : (n,) int64; written

    Examples
    --------
    >>> order, memory = np.empty((2, 3), np.int64)
    >>> sort_descending(np.array([1, 3, 2]), 3, order, memory); order
    array([1, 2, 0])
    """
    width = 1
    for k in range(count):
        order[k] = k
    while width < count:  # merge sorted runs of `width` numbers into runs of twice as many
        for first in range(0, count, 2 * width):
            middle, end = min(first + width, count), min(first + 2 * width, count)
            i, j = first, middle
            for k in range(first, end):
                if i < middle and (j == end or numbers[order[i]] >= numbers[order[j]]):
                    memory[k] = order[i]
                    i += 1
                else:
                    memory[k] = order[j]
                    j += 1
        for k in range(count):
            order[k] = memory[k]
        width *= 2


@cpu_kernel
def sort_sequences(offsets, order, starts, seq_lens):
    """Sort sequences by length, longest first; sequences of equal length keep their order.

    Parameters
    ----------
    offsets : (n + 1,) int64
    order, starts, seq_lens : (n,) int64; written
        The number, the first row and the length of the sequence at each rank.

    Examples
    --------
    >>> order, starts, seq_lens = np.empty((3, 3), np.int64)
    >>> sort_sequences(np.array([0, 1, 4, 6]), order, starts, seq_lens); order, starts, seq_lens
    (array([1, 2, 0]), array([1, 4, 0]), array([3, 2, 1]))
    """
    for k in range(order.shape[0]):
        seq_lens[k] = offsets[k + 1] - offsets[k]
    sort_descending(seq_lens, order.shape[0], order, starts)
    for k in range(order.shape[0]):
        starts[k] = offsets[order[k]]
        seq_lens[k] = offsets[order[k] + 1] - starts[k]


@cpu_kernel
def find_previous_rows(offsets, is_reverse, previous):
    """Compute the row of the step before each row; -1 - i at the first step of sequence i.

    Examples
    --------
    >>> previous = np.empty(4, np.int64)
    >>> find_previous_rows(np.array([0, 1, 4]), True, previous); previous
    array([-1,  2,  3, -2])
    """
    step = 1 if is_reverse else -1
    for i in range(offsets.shape[0] - 1):
        begin, end = offsets[i], offsets[i + 1]
        for row in range(begin, end):
            previous[row] = row + step
        if end > begin:
            previous[end - 1 if is_reverse else begin] = -1 - i


@cpu_kernel
def compare_offsets(a, b, found):
    """Write 1 to `found` (1,) if two arrays of one size have the same numbers, otherwise 0."""
    found[0] = 1
    for k in range(a.shape[0]):
        if a[k] != b[k]:
            found[0] = 0


@cpu_kernel
def compose_offsets(upper, lower, out):
    """`out[k] = lower[upper[k]]`: the offsets of a level, counted in entries of the level below."""
    for k in range(out.shape[0]):
        out[k] = lower[upper[k]]


@cpu_kernel
def place_evenly(step, out):
    """`out[k] = k * step`."""
    for k in range(out.shape[0]):
        out[k] = k * step


@cpu_kernel
def number_rows(offsets, out):
    """`out[row]` = the number of the sequence that has the row."""
    for i in range(offsets.shape[0] - 1):
        for row in range(offsets[i], offsets[i + 1]):
            out[row] = i


@cpu_kernel
def find_longer(offsets, most, found):
    """Write the length of the longest sequence to `found` (1,) if it is more than `most`, otherwise -1."""
    found[0] = -1
    for i in range(offsets.shape[0] - 1):
        length = offsets[i + 1] - offsets[i]
        if length > most and length > found[0]:
            found[0] = length
