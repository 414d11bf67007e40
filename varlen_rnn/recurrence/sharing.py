"""How threads share a recurrence: groups of sequences, which threads take in turns, or a team of threads each.

Sequences do not depend on each other, so a group can be any thread's: one takes the group that has most left, runs it
for some rows, and puts it back.  Nobody waits, and a thread does as much as its core lets it.  A group is neighbours in
the order of the plan, which are about as long as each other, so few steps have less rows than a tile.

Where sequences are too few for that, threads are teams.  The members of a team share the sequences of their group and
own parts of the hidden units; since a step needs all units of the one before, they meet at a barrier once a step.

Kernels are called with plain tuples, which they name themselves, for a NamedTuple costs time at each call.
"""

import contextlib
import functools
import itertools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from varlen_rnn import threads
from varlen_rnn.device import empty
from varlen_rnn.jit import cpu_inlined
from varlen_rnn.kernels.counters import COUNTER, publish, read, swap
from varlen_rnn.kernels.tile import TILE_ROWS, pointer

BLOCK_ROWS = 24  # rows that a panel of weights serves before the next: four tiles
_SIZES = (24, 18, 12, 6, 3, 2, 1)  # of groups that threads take in turns
_TURN_ROWS, _TURNS = 48, 64  # of a group, after which another thread may take it: so many rows, or turns of a thread
_ENDLESS = 2**62
_TAKEN, _ENDED = -1, -2  # in place of the steps that a group has behind it
_BARRIER = 100_000  # multiply-adds in the time of a barrier
_PASS = 0.5  # rows in the time that a step loses to weights which no cache near the core holds
_UNEVEN = 1.1  # by how much the slowest of some threads on one machine lags
_ALONE = contextlib.nullcontext(True)  # in place of a team


class Batch(NamedTuple):
    """The sequences, group after group, each group longest first; each may run from its last row to its first."""

    starts: np.ndarray
    seq_lens: np.ndarray
    order: np.ndarray
    reverse: bool


class Work(NamedTuple):
    """The groups, the members of a team, the rows of a turn, and memory.

    `numbers` has rows of a panel's width: the panels of weights, then what each group carries from step to step, then
    the scratch of each shard.  `integers` has a line for each group, its barrier's counter or the steps behind it, and
    where there are several, its first and end among the sequences; an empty line; and the offsets of each shard.
    """

    groups: int
    parts: int
    turn: int
    panel_rows: int
    carry_rows: int
    numbers: np.ndarray
    integers: np.ndarray


class Loop(NamedTuple):
    """A kernel for panels of `width`, called with plain tuples: `kernel(shard, num_shards, work, batch, *arguments)`.

    `memory_of(unit_blocks, own_unit_blocks, sequences)`: how many rows of numbers a group of so many sequences carries,
    how many a shard needs, and how many offsets.
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
def carry_of(work, group):
    """Return the memory for what a group carries from step to step."""
    first = work.panel_rows + group * work.carry_rows
    return work.numbers[first : first + work.carry_rows].ravel()


@cpu_inlined
def numbers_of(work, shard, num_shards):
    """Return the memory of a shard for numbers."""
    before = work.panel_rows + work.groups * work.carry_rows
    rows = (work.numbers.shape[0] - before) // num_shards
    return work.numbers[before + shard * rows : before + (shard + 1) * rows].ravel()


@cpu_inlined
def offsets_of(work, shard, num_shards):
    """Return the memory of a shard for offsets, zeros."""
    before = (work.groups + 1) * COUNTER
    count = (work.integers.shape[0] - before) // num_shards
    return work.integers[before + shard * count : before + (shard + 1) * count]


@cpu_inlined
def units_of(shard, parts, unit_blocks):
    """Return the first and the end of the unit blocks that a shard owns."""
    part = shard % parts
    return unit_blocks * part // parts, unit_blocks * (part + 1) // parts


@cpu_inlined
def steps_of(batch, first, end):
    """Return the steps of a group."""
    return batch.seq_lens[first] if end > first else 0


@cpu_inlined
def row_of_step(batch, sequence, t):
    """Return the row of step `t` of a sequence."""
    return batch.starts[sequence] + (batch.seq_lens[sequence] - 1 - t if batch.reverse else t)


@cpu_inlined
def _rows_left(work, batch, group, done, backward):
    """Return the rows of a group that has `done` steps behind it, from its first step or from its last."""
    first, end = sequences_of(work, batch, group)
    steps, rows = steps_of(batch, first, end), 0
    low, high = (0, steps - done) if backward else (done, steps)
    for sequence in range(first, end):
        rows += max(0, min(batch.seq_lens[sequence], high) - low)
    return rows


@cpu_inlined
def take_group(work, batch, shard, backward):
    """Return the group that a shard goes on with, and the steps behind it; -1 when there is none.

    When all that have not ended are taken, those who have them will end them.
    """
    if work.parts > 1:
        return shard // work.parts, 0
    while True:
        group, most, at = -1, -1, 0
        for other in range(work.groups):
            done = read(counter_of(work, other))
            if done >= 0:
                left = _rows_left(work, batch, other, done, backward)
                if left > most:
                    group, most, at = other, left, done
        if group < 0 or swap(counter_of(work, group), at, _TAKEN):
            return group, at


@cpu_inlined
def next_group(work, batch, group, done, steps, shard, backward):
    """Put a group back that has `done` of its steps behind it, and take one as `take_group` does."""
    if work.parts > 1:
        return -1, 0
    publish(counter_of(work, group), _ENDED if done == steps else done)
    return take_group(work, batch, shard, backward)


def run(loop, plan, reverse, products, unit_blocks, panel_rows, pack, like, *arguments):
    """Call the kernel of a loop on as many threads, in as large teams, as pay.

    Parameters
    ----------
    products : int
        Multiply-adds in all.
    panel_rows : int
        Rows of a panel's width that the packed weights take.
    pack : tuple
        A kernel and its first arguments; after them it takes the first and the end of the unit blocks, and the panels.
        It packs the weights that groups share; where there is one group, its members pack what they own.
    """
    num_groups, parts = _split(plan.seq_lens, products, unit_blocks, may_meet=True)
    with threads.team() if parts > 1 else _ALONE as may_meet:
        if not may_meet:
            num_groups, parts = _split(plan.seq_lens, products, unit_blocks, may_meet=False)
        batch, bounds, longest = (plan.starts, plan.seq_lens, plan.sorted_indices), (), plan.num_sequences
        num_shards, turn = parts, _ENDLESS
        if num_groups > 1:
            ranks, bounds = _deal(plan.seq_lens, num_groups, parts)
            batch = batch if ranks is None else [array[ranks] for array in batch]
            num_groups, longest = len(bounds) - 1, max(end - first for first, end in itertools.pairwise(bounds))
            num_shards = num_groups * parts
            if parts == 1:
                num_shards = min(num_groups, threads.get_num_threads())
                turn = max(_TURN_ROWS, len(like) // (_TURNS * num_shards))
        carry_rows, rows, offsets = loop.memory_of(unit_blocks, -(-unit_blocks // parts), longest)
        numbers = empty((panel_rows + num_groups * carry_rows + num_shards * rows, loop.width), like)
        integers = np.zeros((num_groups + 1) * COUNTER + num_shards * offsets, np.int64)
        for group, ends in enumerate(itertools.pairwise(bounds)):
            integers[group * COUNTER + 1 : group * COUNTER + 3] = ends
        if num_groups > 1:
            kernel, *first_arguments = pack
            kernel(*first_arguments, 0, unit_blocks, numbers[:panel_rows])
        threads.for_each_shard(
            loop.kernel,
            (num_groups, parts, turn, panel_rows, carry_rows, numbers, integers),
            (*batch, reverse),
            *arguments,
            num_shards=num_shards,
            # Should one member fail, the others must not wait for it.
            give_up=functools.partial(integers[: num_groups * COUNTER : COUNTER].fill, 2**62) if parts > 1 else None,
        )


def _deal(seq_lens, num_groups, parts):
    """Return the ranks of sequences group after group, None for the order of the plan, and the bounds of the groups.

    Groups of teams are dealt out to and fro, so that they get nearly equal rows.
    """
    num_sequences = len(seq_lens)
    if parts == 1:
        with_rows = max(1, np.count_nonzero(seq_lens))  # the others belong to the last group
        size = -(-with_rows // num_groups)
        size = size if size < TILE_ROWS else -(-size // TILE_ROWS) * TILE_ROWS
        return None, (*range(0, with_rows, size), num_sequences)
    groups = [_dealt(num_sequences, num_groups, group) for group in range(num_groups)]
    return np.concatenate(groups), (0, *np.cumsum([len(group) for group in groups]).tolist())


def _dealt(num_sequences, num_groups, group):
    """Return the ranks of one group that are dealt out to and fro."""
    deal = np.arange(-(-num_sequences // num_groups))
    ranks = deal * num_groups + group + deal % 2 * (num_groups - 1 - 2 * group)
    return ranks[ranks < num_sequences]


def _split(seq_lens, products, unit_blocks, may_meet):
    """Return how many groups, and how many members of a team each, take the least time.

    Threads that take groups in turns take the mean time, or that of the longest group.  The time of a team is that of
    its group divided by its members, a barrier a step, and what the slowest lags; the first has the longest sequences.
    """
    num_threads = threads.count_shards(products, len(seq_lens) * unit_blocks)
    if num_threads == 1:
        return 1, 1
    seq_lens = seq_lens[seq_lens > 0]
    num_sequences, work_of_row = len(seq_lens), products / seq_lens.sum()
    best = (np.inf, 1, 1)
    for size in _SIZES:
        times = _rows_and_steps(_in_groups(seq_lens, size))
        longest, mean = times.max(), times.sum() / min(num_threads, len(times))
        best = min(best, (max(longest, mean) * work_of_row, len(times), 1))
        if longest <= mean and len(times) >= num_threads:
            break  # smaller groups would only have more steps
    in_teams, parts = min(num_threads, threads.MAX_TEAM), 2
    while may_meet and parts <= min(in_teams, unit_blocks):
        num_groups = max(1, min(in_teams // parts, num_sequences))
        lengths = seq_lens[_dealt(num_sequences, num_groups, 0)]
        units = -(-unit_blocks // parts) / unit_blocks
        time = _rows_and_steps(_in_groups(lengths, len(lengths)))[0] * work_of_row * units + lengths[0] * _BARRIER
        best = min(best, (time * _UNEVEN, num_groups, parts))
        parts *= 2
    return best[1:]


def _in_groups(seq_lens, size):
    """Return the lengths of groups of `size` neighbours, (groups, at least three), filled up with zeros."""
    num_groups = -(-len(seq_lens) // size)
    lengths = np.zeros((num_groups, max(3, size)), np.int64)
    padded = np.zeros(num_groups * size, np.int64)
    padded[: len(seq_lens)] = seq_lens
    lengths[:, :size] = padded.reshape(num_groups, size)
    return lengths


def _rows_and_steps(lengths):
    """Return the time of each group on one thread, in rows.

    One row takes a tile 2.4 times as long as its share of three, two take it 1.25 times as long.
    """
    first, second, third = lengths[:, 0], lengths[:, 1], lengths[:, 2]
    return lengths.sum(axis=1) + 1.4 * (first - second) + 0.5 * (second - third) + _PASS * first
