"""Work items of a kernel over sequences: a task is one head of one chunk of rows; each thread has its own scratch.

Sequences of 5 and 2 rows, in chunks of at most 4 rows, have three tasks for each head: rows 0 to 4, 4 to 5, and 5 to 7.
A kernel `kernel(shard, num_shards, code, counters, tasks, numbers, offsets, it)` takes tasks, by calling `arrive` on
the first counter, until none is left.  Row `shard` of `numbers` and of `offsets` is the scratch of its thread.
"""

import numpy as np

from varlen_rnn.products.sync import COUNTER
from varlen_rnn.runtime.device import empty, zeros
from varlen_rnn.runtime.threads import count_shards, for_each_shard


def tasks_of(offsets, chunk, heads, costs, *columns):
    """Return a row of int64 for each task: head, first row, end of rows, and the entries of its sequence in `columns`.

    `costs` (sequences,) is the cost of a row of each sequence; the most expensive tasks come first.  A task has at most
    `chunk` rows.  A sequence without rows has one empty task for each head.

    Examples
    --------
    >>> offsets = np.array([0, 2, 7])
    >>> tasks_of(offsets, 4, 1, np.ones(2), offsets[:-1]).tolist()
    [[0, 2, 6, 2], [0, 0, 2, 0], [0, 6, 7, 2]]
    """
    pieces = np.maximum(1, -(-np.diff(offsets) // chunk))
    sequence = np.repeat(np.arange(len(pieces)), pieces)
    number = np.arange(len(sequence)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    first = offsets[sequence] + number * chunk
    end = np.minimum(first + chunk, offsets[sequence + 1])
    order = np.argsort(-(end - first) * costs[sequence], kind="stable")
    rows = np.stack([first, end, *(column[sequence] for column in columns)], axis=1)[order]
    return np.column_stack([np.tile(np.arange(heads), len(rows)), np.repeat(rows, heads, axis=0)])


def run_tasks(kernel, code, tasks, scratch, work, like, it):
    """Run a kernel over the result of `tasks_of`, on a number of threads that suits `work` multiply-adds.

    `code` holds addresses of functions that the kernel calls.  `scratch` says how many elements of the data type of
    `like`, and how many int64, a thread needs.  `it` holds the arrays and numbers of the call.
    """
    if len(tasks):
        shards = count_shards(work, len(tasks))
        numbers, offsets = empty((shards, scratch[0]), like), empty((shards, scratch[1]), like, np.int64)
        counters = zeros(COUNTER, like, np.int64)
        for_each_shard(kernel, code, counters, tasks, numbers, offsets, it, num_shards=shards)
