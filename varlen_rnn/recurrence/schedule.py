"""Decide by a cost model how threads share a batch: they take groups of sequences in turns, or form teams.

A group is a run of sequences that are neighbours in the plan (longest first).  They have similar lengths, so few steps
have fewer rows than a tile.  For example, two threads may take turns with 200 sequences in eight groups of 25, while
two sequences of 10,000 steps are one group for a team of two threads.  The code that runs in the threads is in
`sharing`.
"""

import contextlib
import functools
import itertools
from collections.abc import Callable
from operator import sub
from typing import NamedTuple

import numpy as np

from varlen_rnn.products.sync import COUNTER
from varlen_rnn.products.vectors import L2_ELEMENTS
from varlen_rnn.recurrence.equations import BLOCK_ROWS, MOST_ROWS
from varlen_rnn.recurrence.sharing import END, FIRST, LEFT, PACKED, PACKING
from varlen_rnn.rows.plan import ranks_of
from varlen_rnn.runtime import threads
from varlen_rnn.runtime.cache import PROCESSOR
from varlen_rnn.runtime.device import empty, zeros

ENDLESS = 2**62
_TURN_ROWS = 48  # the fewest rows that a thread runs of a group before another thread can take the group
_TURNS = 64  # the most times that a thread takes a group in a call, and the most groups per thread

# The cost model, whose unit is the time that a thread takes for the products of one row.
_COSTS = PROCESSOR.costs
_BARRIER_COST = 100_000  # multiply-adds that take as long as one barrier
_THREAD_LAG = 1.1  # time of the slowest thread / mean time, if other threads do not take over its work
_MIN_GAIN = 0.97  # a cut into more groups must take less than this share of the time estimated for fewer groups

_ALONE = contextlib.nullcontext(True)  # the context of a call without a team


class Loop(NamedTuple):
    """A loop (forward or backward) for a cell and a Shape, and the memory that it takes.

    kernel: `kernel(shard, num_shards, work, batch, cell, *arguments)`, called with plain tuples
    cell: the cell as the kernel takes it, in plain tuples: addresses of functions, its Sizes, its table of phases
    memory_of: `memory_of(own_unit_blocks, sequences)` returns how much memory a thread needs that owns so many blocks
        of units, if no group has more sequences: rows, each of `width` numbers, and int64 offsets
    width: units of a panel
    unit_blocks: how many panels of hidden units the members of a team divide among themselves
    carry_rows: how many rows of `width` numbers a sequence carries from step to step
    panel_rows: how many rows of `width` numbers the packed weights take
    may_meet: whether threads may share the units of a group
    meets: whether threads that share the units wait for each other at each step; False if the cell has no recurrent
        product
    """

    kernel: Callable
    cell: tuple
    memory_of: Callable
    width: int
    unit_blocks: int
    carry_rows: int
    panel_rows: int
    may_meet: bool
    meets: bool


def run(loop, plan, reverse, products, like, *arguments, panels=None):
    """Call the kernel of a loop, with the threads, groups and teams that the cost model estimates to be fastest.

    `products` is the number of multiply-adds of the call.  `like` is an array with as many rows as the inputs; memory
    gets its data type.  The kernel gets `arguments` after `cell`.  `panels` holds the packed weights if they were
    packed earlier.
    """
    batch, bounds, unit_blocks = ranks_of(plan), (0, plan.num_sequences), loop.unit_blocks
    num_groups, parts = split(batch[1], products, unit_blocks, may_meet=loop.may_meet, meets=loop.meets)
    with threads.team() if parts > 1 else _ALONE as may_meet:
        if not may_meet:
            num_groups, parts = split(batch[1], products, unit_blocks, may_meet=False)
        num_shards, turn = num_groups * parts, ENDLESS
        block_rows = MOST_ROWS if products > parts * L2_ELEMENTS * len(like) else BLOCK_ROWS
        if num_groups > 1 and parts > 1:
            batch, bounds = _deal(batch, num_groups)
        elif num_groups > 1:
            bounds = _cut(batch[1], num_groups)
            num_shards = min(num_groups, threads.get_num_threads())
            turn = max(_TURN_ROWS, len(like) // (_TURNS * num_shards))
        num_groups, longest = len(bounds) - 1, max(map(sub, bounds[1:], bounds))
        rows, offsets = loop.memory_of(-(-unit_blocks // parts), longest)
        first = loop.panel_rows if panels is None else 0
        numbers = empty((first + plan.num_sequences * loop.carry_rows + num_shards * rows, loop.width), like)
        integers = zeros((num_groups + PACKING) * COUNTER + num_shards * (offsets + COUNTER), like, np.int64)
        _write_groups(integers, batch, bounds)
        if panels is None:
            panels, numbers = numbers[:first], numbers[first:]
        else:
            integers[num_groups * COUNTER : (num_groups + PACKING) * COUNTER] = PACKED
        threads.for_each_shard(
            loop.kernel,
            (num_groups, parts, turn, block_rows, loop.carry_rows, panels, numbers, integers),
            (*batch, reverse),
            loop.cell,
            *arguments,
            num_shards=num_shards,
            # If a member of a team fails, the other members must not wait for it.
            give_up=functools.partial(integers[: num_groups * COUNTER : COUNTER].fill, ENDLESS) if parts > 1 else None,
        )


class Alone(NamedTuple):
    """The memory of a loop on one thread, for one call at a time: a Work as a plain tuple, and its field `integers`."""

    work: tuple
    integers: np.ndarray


def alone(loop, sequences, like, panels=None, packed=0):
    """Return the Alone of a loop for at most `sequences` sequences; pass PACKED if `panels` holds packed weights."""
    rows, offsets = loop.memory_of(loop.unit_blocks, sequences)
    panels = empty((loop.panel_rows, loop.width), like) if panels is None else panels
    numbers = empty((sequences * loop.carry_rows + rows, loop.width), like)
    integers = np.zeros((1 + PACKING) * COUNTER + offsets + COUNTER, np.int64)
    integers[COUNTER : (1 + PACKING) * COUNTER] = packed
    return Alone((1, 1, ENDLESS, BLOCK_ROWS, loop.carry_rows, panels, numbers, integers), integers)


def run_alone(loop, memory, batch, count, *arguments):
    """Call the kernel of a loop on this thread, over the first `count` sequences of `batch`, a Batch as a tuple."""
    # Reset the only group's line: its finished steps, first sequence, end of sequences, and rows left.
    memory.integers[:4] = 0, 0, count, 0
    loop.kernel(0, 1, memory.work, batch, loop.cell, *arguments)


def _write_groups(integers, batch, bounds):
    """Write each group's line of `integers`: its first sequence, the end of its sequences, and its rows left."""
    if len(bounds) == 2:
        integers[END] = bounds[1]  # nothing reads how many rows a single group has left
        return
    lines = integers[: (len(bounds) - 1) * COUNTER].reshape(-1, COUNTER)
    lines[:, FIRST], lines[:, END] = bounds[:-1], bounds[1:]
    lines[:, LEFT] = np.add.reduceat(batch[1], bounds[:-1])


def _cut(seq_lens, num_groups):
    """Return where each group of neighbours in the plan begins, and the end; the last group gets empty sequences."""
    return *_bounds(max(1, np.count_nonzero(seq_lens)), num_groups)[:-1], len(seq_lens)


def _bounds(count, num_groups):
    """Return where each group begins if `count` sequences form groups of nearly equal size, and then `count`."""
    return [count * group // num_groups for group in range(num_groups + 1)]


def _deal(batch, num_groups):
    """Return a reordered batch whose groups have nearly equal numbers of rows, and the bounds of the groups."""
    groups = [_dealt(len(batch[0]), num_groups, group) for group in range(num_groups)]
    ranks = np.array([rank for group in groups for rank in group], np.int64)
    dealt = [array[ranks] for array in batch]
    for array in dealt:
        array.flags.writeable = False  # like a plan's arrays, because writable arrays are another type to Numba
    return dealt, (0, *itertools.accumulate(map(len, groups)))


def _dealt(num_sequences, num_groups, group):
    """Return the ranks of a group, dealt forth and back: with 3 groups, the first group gets ranks 0, 5, 6, 11, ..."""
    ranks = (r * num_groups + (num_groups - 1 - group if r % 2 else group) for r in range(num_sequences))
    return list(itertools.takewhile(num_sequences.__gt__, ranks))


def split(seq_lens, products, unit_blocks, may_meet, meets=True):
    """Return the number of groups, and the number of threads in each group's team, that take the least time."""
    num_threads = threads.count_shards(products, len(seq_lens) * unit_blocks)
    if num_threads == 1:
        return 1, 1
    lengths = seq_lens[seq_lens > 0].tolist()  # a list is faster than NumPy for a small batch
    work_of_row = products / sum(lengths)  # multiply-adds: one per number of the weights
    lost = _COSTS.far_weight_pass if work_of_row > L2_ELEMENTS else _COSTS.weight_pass
    best = _best_turns(lengths, num_threads, lost, work_of_row)
    if may_meet:
        barrier = _BARRIER_COST if meets else 0
        best = min([best, *_teams(lengths, num_threads, unit_blocks, lost, work_of_row, barrier)])
    return best[1:]


def _best_turns(lengths, num_threads, lost, work_of_row):
    """Return (time, number of groups, 1) for the best cut into groups that threads take in turns.

    The 1 is the number of threads that run a group at once.  The time, in multiply-adds, is the mean over threads or
    the time of the longest group, whichever is longer.
    """
    best, num_groups, count = (float("inf"), 1, 1), 0, len(lengths)
    least = -(-count // (num_threads * _TURNS))
    for size in (-(-max(BLOCK_ROWS, least) // BLOCK_ROWS) * BLOCK_ROWS, 18, 12, 6, 3, 2, 1):
        if size < least or num_groups == -(-count // size):
            continue
        num_groups = -(-count // size)
        bounds = itertools.pairwise(_bounds(count, num_groups))
        times = [_rows_and_steps(lengths[first:end], lost) for first, end in bounds]
        longest, mean = max(times) * _THREAD_LAG, sum(times) / min(num_threads, num_groups)
        if max(longest, mean) * work_of_row < best[0] * _MIN_GAIN:
            best = (max(longest, mean) * work_of_row, num_groups, 1)
        if longest <= mean:
            break  # smaller groups would only have more steps
    return best


def _teams(lengths, num_threads, unit_blocks, lost, work_of_row, barrier):
    """Yield (time in multiply-adds, number of teams, threads per team) for several sizes of teams.

    The first group has the longest sequences.  The time is this group's time on one thread, times a member's share of
    the units, plus a `barrier` at each step, all times the lag of the slowest member.
    """
    parts = 2
    while parts <= min(num_threads, unit_blocks):
        num_groups = max(1, min(num_threads // parts, len(lengths)))
        of_first = sorted(lengths[:: 2 * num_groups] + lengths[2 * num_groups - 1 :: 2 * num_groups], reverse=True)
        units = -(-unit_blocks // parts) / unit_blocks
        time = _rows_and_steps(of_first, lost) * work_of_row * units + lengths[0] * barrier
        yield time * _COSTS.member_lag, num_groups, parts
        parts *= 2


def _rows_and_steps(lengths, lost):
    """Return the time of a group on one thread, whose unit is one row's products: its rows, and costs of each step.

    Every step costs `lost` more, and a step with one or two rows costs still more (see `Costs`).
    """
    first, second, third = (*lengths[:3], 0, 0)[:3]
    return sum(lengths) + _COSTS.one_row * (first - second) + _COSTS.two_rows * (second - third) + lost * first
