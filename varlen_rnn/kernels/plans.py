"""Plans as kernels, for programs whose kernels run without Python; `rows.plan` computes the same by NumPy.

Kernels trust their offsets: see `varlen_rnn.kernels`.
"""

from varlen_rnn.runtime.jit import cpu_kernel


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
    count, width = order.shape[0], 1
    for i in range(count):
        order[i] = i
    while width < count:  # merge sorted runs of `width` sequences into runs of twice as many; `starts` is memory
        for first in range(0, count, 2 * width):
            middle, end = min(first + width, count), min(first + 2 * width, count)
            i, j = first, middle
            for k in range(first, end):
                takes_left = i < middle
                if takes_left and j < end:
                    left, right = order[i], order[j]
                    takes_left = offsets[left + 1] - offsets[left] >= offsets[right + 1] - offsets[right]
                if takes_left:
                    starts[k] = order[i]
                    i += 1
                else:
                    starts[k] = order[j]
                    j += 1
        for k in range(count):
            order[k] = starts[k]
        width *= 2
    for k in range(count):
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
