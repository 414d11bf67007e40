"""Work items of a kernel over sequences: a task is one head of one chunk of rows; each thread has its own scratch.

Sequences of 5 and 2 rows, in chunks of at most 4 rows, have three tasks for each head: rows 0 to 4, 4 to 5, and 5 to 7.
A kernel `kernel(shard, num_shards, code, counters, tasks, numbers, offsets, it)` takes tasks, by calling `arrive` on
the first counter, until none is left.  Row `shard` of `numbers` and of `offsets` is the scratch of its thread.
"""

import numpy as np

from varlen_rnn.kernels.plans import sort_descending
from varlen_rnn.products.sync import COUNTER
from varlen_rnn.runtime.device import as_operand, empty, zeros
from varlen_rnn.runtime.jit import cpu_kernel
from varlen_rnn.runtime.placeholder import Placeholder
from varlen_rnn.runtime.threads import count_shards, for_each_shard

UNLIMITED = 2**40  # rows; more than any sequence has, so each sequence is one chunk


def tasks_of(offsets, num_rows, chunk, heads, costs, *columns):
    """Return a row of int64 for each task: head, first row, end of rows, and the entries of its sequence in `columns`.

    `costs` (sequences,) int64 is the cost of a row of each sequence; the most expensive tasks come first.  A task has
    at most `chunk` of the `num_rows` rows.  A sequence without rows has one empty task for each head.  In a dry run,
    unused rows at the end have the head -1.

    Examples
    --------
    >>> offsets = np.array([0, 2, 7])
    >>> tasks_of(offsets, 7, 4, 1, np.ones(2, int), offsets[:-1]).tolist()
    [[0, 2, 6, 2], [0, 0, 2, 0], [0, 6, 7, 2]]
    """
    count = len(offsets) - 1
    if chunk < UNLIMITED and type(offsets) is Placeholder:
        count += num_rows
    elif chunk < UNLIMITED:
        count = int(np.maximum(1, -(-(offsets[1:] - offsets[:-1]) // chunk)).sum())
    tasks = empty((count * heads, 3 + len(columns)), offsets)
    memory = empty((5, count), offsets)
    write_tasks(as_operand(offsets), chunk, heads, tuple(map(as_operand, (costs, *columns))), memory, tasks)
    return tasks


@cpu_kernel
def write_tasks(offsets, chunk, heads, columns, memory, tasks):
    """Write the result of `tasks_of`; `columns` begins with the costs, and `memory` (5, tasks of one head) is int64."""
    costs, sequences, firsts, order, other = memory
    count = 0
    for i in range(offsets.shape[0] - 1):
        begin = offsets[i]
        while begin == offsets[i] or begin < offsets[i + 1]:
            end = min(begin + chunk, offsets[i + 1])
            costs[count], sequences[count], firsts[count] = (end - begin) * columns[0][i], i, begin
            count += 1
            begin += chunk
    sort_descending(costs, count, order, other)
    for k in range(count):
        i, begin = sequences[order[k]], firsts[order[k]]
        for head in range(heads):
            task = tasks[k * heads + head]
            task[0], task[1], task[2] = head, begin, min(begin + chunk, offsets[i + 1])
            for c in range(1, len(columns)):
                task[2 + c] = columns[c][i]
    for k in range(count * heads, tasks.shape[0]):
        tasks[k, 0] = -1


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
