"""How threads share a recurrence: groups of sequences, each the business of one thread, or of a team of them.

A group owns one of every `num_groups` sequences of the plan, from the first step to the last, so groups shrink alike
and never wait for each other.  The members of a team share the sequences of their group and own parts of the hidden
units; since a step needs all units of the one before, they meet at a barrier once a step.

Kernels are called with plain tuples, which they name themselves, for a NamedTuple costs time at each call.
"""

import contextlib
import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from varlen_rnn import threads
from varlen_rnn.device import empty
from varlen_rnn.jit import cpu_inlined
from varlen_rnn.kernels.counters import COUNTER
from varlen_rnn.kernels.tile import pointer

BLOCK_ROWS = 24  # rows that a panel of weights serves before the next: four tiles
_BARRIER = 100_000  # multiply-adds in the time of a barrier
_ALONE = contextlib.nullcontext(True)  # in place of a team


class Batch(NamedTuple):
    """The sequences of a plan by rank, and whether each runs from its last row to its first."""

    starts: np.ndarray
    seq_lens: np.ndarray
    order: np.ndarray
    reverse: bool


class Work(NamedTuple):
    """The members of a team, and memory: for panels of weights and the numbers of each shard, as rows of a panel's
    width, and for a counter and the offsets of each shard.
    """

    parts: int
    panel_rows: int
    numbers: np.ndarray
    integers: np.ndarray


class Loop(NamedTuple):
    """A kernel for panels of `width`, called with plain tuples: `kernel(shard, num_shards, work, batch, *arguments)`.

    `memory_of(unit_blocks, sequences)`: how many rows of numbers, and offsets, a shard with that many needs.
    """

    kernel: Callable
    memory_of: Callable
    width: int


@cpu_inlined
def counter_of(work, group):
    """Return the address of the counter of a group's barrier, which its first member has."""
    return pointer(work.integers, group * work.parts * work.integers.shape[1])


@cpu_inlined
def numbers_of(work, shard, num_shards):
    """Return the memory of a shard for numbers."""
    rows = (work.numbers.shape[0] - work.panel_rows) // num_shards
    first = work.panel_rows + shard * rows
    return work.numbers[first : first + rows].ravel()


@cpu_inlined
def offsets_of(work, shard):
    """Return the memory of a shard for offsets, zeros."""
    return work.integers[shard, COUNTER:]


def _rank_of(group, num_groups, r):
    """Return the rank of sequence `r` of a group: dealt out to and fro, so that groups get nearly equal rows."""
    return r * num_groups + group + r % 2 * (num_groups - 1 - 2 * group)


rank_of = cpu_inlined(_rank_of)


@cpu_inlined
def share_of(shard, num_shards, parts, unit_blocks, num_sequences):
    """Return a shard's group, how many there are, its sequences, and the shard's first and end of unit blocks."""
    group, part, num_groups = shard // parts, shard % parts, num_shards // parts
    own = num_sequences // num_groups
    own += rank_of(group, num_groups, own) < num_sequences
    return group, num_groups, own, unit_blocks * part // parts, unit_blocks * (part + 1) // parts


@cpu_inlined
def row_of_step(batch, rank, t):
    """Return the row of step `t` of a sequence."""
    return batch.starts[rank] + (batch.seq_lens[rank] - 1 - t if batch.reverse else t)


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
        num_shards = num_groups * parts
        rows, offsets = loop.memory_of(-(-unit_blocks // parts), -(-len(plan.seq_lens) // num_groups))
        numbers = empty((panel_rows + num_shards * rows, loop.width), like)
        integers = np.zeros((num_shards, COUNTER + offsets + COUNTER), np.int64)  # a counter shares its line with none
        if num_groups > 1:
            kernel, *first_arguments = pack
            kernel(*first_arguments, 0, unit_blocks, numbers[:panel_rows])
        threads.for_each_shard(
            loop.kernel,
            (parts, panel_rows, numbers, integers),
            (plan.starts, plan.seq_lens, plan.sorted_indices, reverse),
            *arguments,
            num_shards=num_shards,
            # Should one member fail, the others must not wait for it.
            give_up=functools.partial(integers[:, 0].fill, 2**62) if parts > 1 else None,
        )


def _split(seq_lens, products, unit_blocks, may_meet):
    """Return how many groups, and how many members of a team each, take the least time.

    The time of a group is that of its rows, where one or two rows take a tile longer than their share of three, divided
    by its members, and of the barriers.  The first group has the longest sequences.
    """
    num_threads = threads.count_shards(products, len(seq_lens) * unit_blocks)
    if num_threads == 1:
        return 1, 1
    seq_lens = seq_lens[seq_lens > 0]
    num_sequences, work_of_row = len(seq_lens), products / seq_lens.sum()
    best = (np.inf, 1, 1)
    in_teams, parts = min(num_threads, threads.MAX_TEAM), 1
    while parts <= min(in_teams if may_meet else 1, unit_blocks):
        num_groups = max(1, min((num_threads if parts == 1 else in_teams) // parts, num_sequences))
        ranks = _rank_of(0, num_groups, np.arange(-(-num_sequences // num_groups)))
        lengths = seq_lens[ranks[ranks < num_sequences]]
        first, second, third = [*lengths[:3].tolist(), 0, 0][:3]
        rows = lengths.sum() + 0.6 * (first - second) + 0.3 * (second - third)
        units = -(-unit_blocks // parts) / unit_blocks
        time = rows * work_of_row * units + (first * _BARRIER if parts > 1 else 0)
        best = min(best, (time, num_groups, parts))
        parts *= 2
    return best[1:]
