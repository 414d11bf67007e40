"""Work items of sequences against loops: each head of each chunk once, the most expensive first."""

import numpy as np
import pytest

from varlen_rnn.products.tasks import tasks_of


def tasks_by_loops(lengths, chunk, heads, costs):
    """Return the cost and the numbers of each task: head, first row, end, and sequence."""
    found, begin = [], 0
    for sequence, length in enumerate(lengths):
        for first in range(begin, begin + max(length, 1), chunk):
            end = min(first + chunk, begin + length)
            found += [((end - first) * costs[sequence], [head, first, end, sequence]) for head in range(heads)]
        begin += length
    return found


@pytest.mark.parametrize("lengths", [[], [0], [1], [3, 3], [5, 0, 2, 9], [4, 8, 1]])
@pytest.mark.parametrize("chunk", [1, 4, 2**40])
def test_tasks(lengths, chunk):
    offsets, costs = np.cumsum([0, *lengths]), np.arange(1, len(lengths) + 1)
    tasks = tasks_of(offsets, offsets[-1], chunk, 2, costs, np.arange(len(lengths)))
    wanted = sorted(tasks_by_loops(lengths, chunk, 2, costs), key=lambda task: -task[0])
    assert tasks.tolist() == [numbers for _, numbers in wanted]
    assert (tasks.dtype, tasks.flags.c_contiguous) == (np.int64, True)
