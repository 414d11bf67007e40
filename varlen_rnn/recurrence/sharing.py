"""How threads share a recurrence: groups of sequences, which threads take in turns, or a team of threads each.

Sequences do not depend on each other, so a group can be any thread's: one takes the group that has most left, runs it
for some rows, and puts it back.  Once the weights are packed nobody waits: a thread does as much as its core lets it.
A group is neighbours in the order of the plan, which are about as long as each other, so few steps have less rows than
a tile.

Where sequences are too few for that, threads are teams.  The members of a team share the sequences of their group and
own parts of the hidden units; since a step needs all units of the one before, they meet at a barrier once a step.

Kernels are called with plain tuples, which they name themselves, for a NamedTuple costs time at each call.
"""

import contextlib
import functools
import itertools
from collections.abc import Callable
from operator import sub
from typing import NamedTuple

import numpy as np

from varlen_rnn import threads
from varlen_rnn.device import empty
from varlen_rnn.jit import cpu_inlined
from varlen_rnn.plan import ranks_of
from varlen_rnn.products.sync import COUNTER, arrive, publish, read, swap, take_or_wait
from varlen_rnn.products.tile import FAR, WIDE, pointer

BLOCK_ROWS = 24  # rows that a panel of weights serves before the next: whole tiles, of 6 or of 12
MOST_ROWS = 2 * BLOCK_ROWS  # the same of weights that no near cache holds, rather than that they pass twice a step
_ENDLESS = 2**62
_PACKING = 2  # lines of `integers`, after those of the groups
_TAKEN, _ENDED = -1, -2  # in place of the steps that a group has behind it
_TURN_ROWS = 48  # of a group, or a block of the forward loop, after which another thread may take it
_TURNS = 64  # of a thread in a call at most, and groups for each thread

# What a split costs, measured on two cores: with vectors of 64 bytes, whose rows take half the time, and with others.
_PASS = 1.5 if WIDE else 0.5  # rows in the time that a step of a group loses to weights that pass by
_FAR_PASS = 4 if WIDE else 0.5  # the same of weights that are far
_ONE_ROW, _TWO_ROWS = (1.1, 0.7) if WIDE else (1.4, 0.5)  # rows more in the time that a step of one or two rows takes
_BARRIER = 100_000  # multiply-adds in the time of a barrier
_UNEVEN = 1.1  # by how much the slowest of some threads lags, where others do not take over
_TOGETHER = 1.3 if WIDE else 1.1  # the same of the members of a team, who also fetch what the others computed
_WORTH = 0.97  # of the time with larger groups is what smaller ones must come down to

_ALONE = contextlib.nullcontext(True)  # in place of a team


class Batch(NamedTuple):
    """The sequences, group after group, each group longest first; each may run from its last row to its first."""

    starts: np.ndarray
    seq_lens: np.ndarray
    order: np.ndarray
    reverse: bool


class Work(NamedTuple):
    """The groups, the members of a team, the rows of a turn and of a block of the forward loop, and memory.

    `numbers` has rows of a panel's width: the panels of weights, then what each sequence carries from step to step,
    then the scratch of each shard.  `integers` has a line for each group: the counter of its barrier, or the steps that
    it has behind it; and, where there are several, its first and end among the sequences, and its rows left.  Then
    there are two lines for packing, how many unit blocks are taken and how many are packed, and the offsets of each
    shard, followed by an empty line: what a thread writes at each step shares no line with what another reads.
    """

    groups: int
    parts: int
    turn: int
    block_rows: int
    panel_rows: int
    carry_rows: int
    numbers: np.ndarray
    integers: np.ndarray


class Loop(NamedTuple):
    """A kernel for panels of `width`, called with plain tuples: `kernel(shard, num_shards, work, batch, *arguments)`.

    `memory_of(unit_blocks, own_unit_blocks, sequences)`: how many rows of numbers a sequence carries, how many a shard
    needs, and how many offsets where its groups have so many sequences.
    """

    kernel: Callable
    memory_of: Callable
    width: int


@cpu_inlined
def counter_of(work, group):
    """Return the address of a group's counter."""
    return pointer(work.integers, group * COUNTER)


@cpu_inlined
def sequences_of(work, batch, group):
    """Return a group's first and end among the sequences of the batch."""
    if work.groups == 1:
        return 0, len(batch.starts)
    return work.integers[group * COUNTER + 1], work.integers[group * COUNTER + 2]


@cpu_inlined
def carry_of(work, first, end):
    """Return the memory for what some sequences carry from step to step."""
    return work.numbers[work.panel_rows + first * work.carry_rows : work.panel_rows + end * work.carry_rows].ravel()


@cpu_inlined
def numbers_of(work, batch, shard, num_shards):
    """Return the memory of a shard for numbers."""
    before = work.panel_rows + len(batch.starts) * work.carry_rows
    rows = (work.numbers.shape[0] - before) // num_shards
    return work.numbers[before + shard * rows : before + (shard + 1) * rows].ravel()


@cpu_inlined
def offsets_of(work, shard, num_shards):
    """Return the memory of a shard for offsets, zeros."""
    before = (work.groups + _PACKING) * COUNTER
    count = (work.integers.shape[0] - before) // num_shards
    return work.integers[before + shard * count : before + (shard + 1) * count]


@cpu_inlined
def units_of(shard, parts, unit_blocks):
    """Return the first and the end of the unit blocks that a shard owns."""
    part = shard % parts
    return unit_blocks * part // parts, unit_blocks * (part + 1) // parts


@cpu_inlined
def next_to_pack(work, shard, unit_blocks, has_packed):
    """Return the first and the end of the unit blocks that a shard packs next; equal, when it goes on.

    Where there is one group, its members pack what they own, each into its own caches.  Groups share the panels: shards
    take one block after another, and go on when all are packed.
    """
    if work.groups == 1:
        first, end = units_of(shard, work.parts, unit_blocks)
        return end if has_packed else first, end
    taken, done = pointer(work.integers, work.groups * COUNTER), pointer(work.integers, (work.groups + 1) * COUNTER)
    if has_packed:
        arrive(done)
    block = take_or_wait(taken, done, unit_blocks)
    return block, min(block + 1, unit_blocks)


@cpu_inlined
def steps_of(batch, first, end):
    """Return the steps of a group."""
    return batch.seq_lens[first] if end > first else 0


@cpu_inlined
def row_of_step(batch, sequence, t):
    """Return the row of step `t` of a sequence."""
    return batch.starts[sequence] + (batch.seq_lens[sequence] - 1 - t if batch.reverse else t)


@cpu_inlined
def take_group(work, shard):
    """Return the group that a shard goes on with, and the steps behind it; -1 when there is none.

    When all that have not ended are taken, those who have them will end them.
    """
    if work.parts > 1:
        return shard // work.parts, 0
    while True:
        group, most, at = -1, -1, 0
        for other in range(work.groups):
            done, left = read(counter_of(work, other)), work.integers[other * COUNTER + 3]
            if done >= 0 and left > most:
                group, most, at = other, left, done
        if group < 0 or swap(counter_of(work, group), at, _TAKEN):
            return group, at


@cpu_inlined
def next_group(work, shard, group, rows, done, steps):
    """Put a group back, with `rows` less and `done` steps behind it, and take one as `take_group` does.

    A team has one group.
    """
    if work.parts > 1:
        return -1, 0
    work.integers[group * COUNTER + 3] -= rows
    publish(counter_of(work, group), _ENDED if done == steps else done)
    return take_group(work, shard)


def run(loop, plan, reverse, products, unit_blocks, panel_rows, like, *arguments):
    """Call the kernel of a loop on as many threads, in as large teams, as pay.

    Parameters
    ----------
    loop : Loop
    plan : SortedSeqs
    reverse : bool
        Whether each sequence runs from its last row to its first.
    products : int
        Multiply-adds in all.
    unit_blocks : int
        Panels of hidden units, which the members of a team share.
    panel_rows : int
        Rows of a panel's width that the packed weights take.
    like : (rows, ...)
        An array of as many rows, of the data type of the memory that the loop gets.
    *arguments
        Of the kernel, after the batch.
    """
    batch, bounds = ranks_of(plan), (0, plan.num_sequences)
    num_groups, parts = _split(batch[1], products, unit_blocks, may_meet=True)
    with threads.team() if parts > 1 else _ALONE as may_meet:
        if not may_meet:
            num_groups, parts = _split(batch[1], products, unit_blocks, may_meet=False)
        num_shards, turn = num_groups * parts, _ENDLESS
        block_rows = MOST_ROWS if products > parts * FAR * len(like) else BLOCK_ROWS
        if num_groups > 1 and parts > 1:
            batch, bounds = _deal(batch, num_groups)
        elif num_groups > 1:
            bounds = _cut(batch[1], num_groups)
            num_shards = min(num_groups, threads.get_num_threads())
            turn = max(_TURN_ROWS, len(like) // (_TURNS * num_shards))
        num_groups, longest = len(bounds) - 1, max(map(sub, bounds[1:], bounds))
        carry_rows, rows, offsets = loop.memory_of(unit_blocks, -(-unit_blocks // parts), longest)
        numbers = empty((panel_rows + plan.num_sequences * carry_rows + num_shards * rows, loop.width), like)
        integers = np.zeros((num_groups + _PACKING) * COUNTER + num_shards * (offsets + COUNTER), np.int64)
        if num_groups > 1:
            lines = integers[: num_groups * COUNTER].reshape(num_groups, COUNTER)
            lines[:, 1], lines[:, 2], lines[:, 3] = bounds[:-1], bounds[1:], np.add.reduceat(batch[1], bounds[:-1])
        threads.for_each_shard(
            loop.kernel,
            (num_groups, parts, turn, block_rows, panel_rows, carry_rows, numbers, integers),
            (*batch, reverse),
            *arguments,
            num_shards=num_shards,
            # Should one member fail, the others must not wait for it.
            give_up=functools.partial(integers[: num_groups * COUNTER : COUNTER].fill, _ENDLESS) if parts > 1 else None,
        )


def _cut(seq_lens, num_groups):
    """Return the bounds of groups of neighbours; sequences without rows are in the last one."""
    return *_bounds(max(1, np.count_nonzero(seq_lens)), num_groups)[:-1], len(seq_lens)


def _bounds(count, num_groups):
    """Return where groups of nearly equal size begin among `count` sequences, and `count`."""
    return [count * group // num_groups for group in range(num_groups + 1)]


def _deal(batch, num_groups):
    """Return a batch whose sequences are dealt out to groups of nearly equal rows, and the bounds of the groups."""
    groups = [_dealt(len(batch[0]), num_groups, group) for group in range(num_groups)]
    ranks = np.array([rank for group in groups for rank in group], np.int64)
    dealt = [array[ranks] for array in batch]
    for array in dealt:
        array.flags.writeable = False  # as a plan's are: other types would have kernels compiled again
    return dealt, (0, *itertools.accumulate(map(len, groups)))


def _dealt(num_sequences, num_groups, group):
    """Return the ranks of the sequences of one group, when they are dealt out to and fro."""
    ranks = (r * num_groups + (num_groups - 1 - group if r % 2 else group) for r in range(num_sequences))
    return list(itertools.takewhile(num_sequences.__gt__, ranks))


def _split(seq_lens, products, unit_blocks, may_meet):
    """Return how many groups, and how many members of a team each, take the least time.

    Threads that take groups in turns take the mean time, or that of the longest group.  The time of a team is that of
    its group divided by its members, a barrier a step, and what the slowest lags; the first has the longest sequences.
    """
    num_threads = threads.count_shards(products, len(seq_lens) * unit_blocks)
    if num_threads == 1:
        return 1, 1
    lengths = seq_lens[seq_lens > 0].tolist()  # a list, for most batches are small: less than NumPy's calls take
    count, work_of_row = len(lengths), products / sum(lengths)  # a multiply-add a number of the weights
    lost = _FAR_PASS if work_of_row > FAR else _PASS
    best, num_groups, least = (float("inf"), 1, 1), 0, -(-count // (num_threads * _TURNS))
    for size in (-(-max(BLOCK_ROWS, least) // BLOCK_ROWS) * BLOCK_ROWS, 18, 12, 6, 3, 2, 1):
        if size < least or num_groups == -(-count // size):
            continue
        num_groups = -(-count // size)
        bounds = _bounds(count, num_groups)
        times = [_rows_and_steps(lengths[first:end], lost) for first, end in itertools.pairwise(bounds)]
        longest, mean = max(times) * _UNEVEN, sum(times) / min(num_threads, num_groups)
        if max(longest, mean) * work_of_row < best[0] * _WORTH:
            best = (max(longest, mean) * work_of_row, num_groups, 1)
        if longest <= mean:
            break  # smaller groups would only have more steps
    parts = 2
    while may_meet and parts <= min(num_threads, unit_blocks):
        num_groups = max(1, min(num_threads // parts, count))
        of_first = sorted(lengths[:: 2 * num_groups] + lengths[2 * num_groups - 1 :: 2 * num_groups], reverse=True)
        units = -(-unit_blocks // parts) / unit_blocks
        time = _rows_and_steps(of_first, lost) * work_of_row * units + lengths[0] * _BARRIER
        best = min(best, (time * _TOGETHER, num_groups, parts))
        parts *= 2
    return best[1:]


def _rows_and_steps(lengths, lost):
    """Return the time of a group on one thread, in rows: that of all its rows, and what is `lost` at each step."""
    first, second, third = (*lengths[:3], 0, 0)[:3]
    return sum(lengths) + _ONE_ROW * (first - second) + _TWO_ROWS * (second - third) + lost * first
