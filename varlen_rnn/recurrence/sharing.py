"""What a thread decides while it runs a recurrence: which weights to pack, and which group of sequences comes next.

Sequences do not depend on each other, so a group can be any thread's: one takes the group that has most left, runs it
for some rows, and puts it back.  Once the weights are packed nobody waits: a thread does as much as its core lets it.

Where sequences are too few for that, threads are teams.  The members of a team share the sequences of their group and
own parts of the hidden units; since a step needs all units of the one before, they meet at a barrier once per step.

Kernels are called with plain tuples, which they name themselves, for a NamedTuple costs time at each call.
"""

from typing import Any, NamedTuple

import numpy as np

from varlen_rnn.products.packing import Blocks
from varlen_rnn.products.sync import COUNTER, publish, read, swap
from varlen_rnn.products.vectors import offset, pointer, width_of
from varlen_rnn.runtime.jit import cpu_inlined

PACKING = 8  # lines of `integers` after the lines of groups: two for each of at most four phases
PACKED = 2**40  # more blocks than any weight has
FIRST, END, LEFT = 1, 2, 3  # positions in the line of a group, after its counter
_TAKEN, _ENDED = -1, -2  # in place of the steps that a group has behind it


class Batch(NamedTuple):
    """The sequences, group after group, each group longest first; each may run from its last row to its first."""

    starts: np.ndarray
    seq_lens: np.ndarray
    order: np.ndarray
    reverse: bool


class Work(NamedTuple):
    """How a batch is cut, and the memory that all threads share.

    Attributes
    ----------
    groups, parts : int
        The number of groups, and of the members of a team.
    turn, block_rows : int
        Rows that a thread runs before it puts a group back, and rows of a block of the forward loop.
    carry_rows : int
        Rows of `numbers` that each sequence carries.
    panels : array
        The packed weights.
    numbers : array
        Rows as wide as a panel: the values that each sequence carries from step to step, then the scratch of each
        shard.
    integers : array
        One cache line per group: the counter of its barrier or its finished steps, its first and end among the
        sequences, and its rows left.  Then two lines per phase, for the unit blocks taken for packing and packed
        (`PACKED` or more if all were packed before).  Then the offsets of each shard and an empty line, so that a line
        that one thread writes at each step is never read by another.
    """

    groups: int
    parts: int
    turn: int
    block_rows: int
    carry_rows: int
    panels: np.ndarray
    numbers: np.ndarray
    integers: np.ndarray


class Share(NamedTuple):
    """What one thread sees of the work: the sequences, the lines of the groups, and memory, some of it its own."""

    shard: int
    groups: int
    parts: int
    turn: int
    block_rows: int
    starts: Any
    seq_lens: Any
    order: Any
    reverse: bool
    lines: Any
    panels: Any
    carries: Any
    carry_size: int
    numbers: Any
    offsets: Any
    num_offsets: int


class Group(NamedTuple):
    """Some sequences: their first rank, how many, the steps of the longest, their carry, and their line of integers."""

    first: int
    count: int
    steps: int
    carry: Any
    line: Any


@cpu_inlined
def share_of(shard, num_shards, work, batch):
    """Return the share of a shard."""
    numbers, integers, count = pointer(work.numbers, 0), pointer(work.integers, 0), len(batch.starts)
    width, lines = width_of(numbers), (work.groups + PACKING) * COUNTER
    before = count * work.carry_rows
    rows, own = (work.numbers.shape[0] - before) // num_shards, (work.integers.shape[0] - lines) // num_shards
    return Share(
        shard=shard, groups=work.groups, parts=work.parts, turn=work.turn, block_rows=work.block_rows,
        starts=pointer(batch.starts, 0), seq_lens=pointer(batch.seq_lens, 0), order=pointer(batch.order, 0),
        reverse=batch.reverse, lines=integers, panels=pointer(work.panels, 0), carries=numbers,
        carry_size=work.carry_rows * width, numbers=offset(numbers, (before + shard * rows) * width),
        offsets=offset(integers, lines + shard * own), num_offsets=own - COUNTER,
    )  # fmt: skip


@cpu_inlined
def units_of(share, unit_blocks):
    """Return the first and the end of the unit blocks that a thread owns."""
    part = share.shard % share.parts
    return unit_blocks * part // share.parts, unit_blocks * (part + 1) // share.parts


@cpu_inlined
def blocks_to_pack(share, unit_blocks, phase):
    """Return which blocks of units a thread packs for a phase.

    A single group's members each pack the blocks that they own, into their own caches.  Several groups share the
    panels.
    """
    taken = offset(share.lines, (share.groups + 2 * phase) * COUNTER)
    packed = offset(taken, COUNTER)
    if share.groups == 1:
        first, end = units_of(share, unit_blocks)
        return Blocks(end if packed[0] >= PACKED else first, end, False, taken, packed)
    return Blocks(0, unit_blocks, True, taken, packed)


@cpu_inlined
def group_of(share, number):
    """Return a group."""
    line = offset(share.lines, number * COUNTER)
    first, end = line[FIRST], line[END]
    steps = share.seq_lens[first] if end > first else 0
    carry = offset(share.carries, first * share.carry_size)
    return Group(first=first, count=end - first, steps=steps, carry=carry, line=line)


@cpu_inlined
def row_of_step(share, rank, t):
    """Return the row of step `t` of the sequence of a rank."""
    return share.starts[rank] + (share.seq_lens[rank] - 1 - t if share.reverse else t)


@cpu_inlined
def next_group(share, number, rows, done, steps):
    """Return the number of the group that a thread goes on with, and the steps behind it; -1 when there is none.

    The group of a `number` that it had, if any, is put back: with `rows` less, and `done` of its steps behind it.  When
    all that have not ended are taken, those who have them will end them.  A team has one group.
    """
    if share.parts > 1:
        return share.shard // share.parts if number < 0 else -1, 0
    if number >= 0:
        line = offset(share.lines, number * COUNTER)
        line[LEFT] -= rows
        publish(line, _ENDED if done == steps else done)
    while True:
        number, most, at = -1, -1, 0
        for other in range(share.groups):
            line = offset(share.lines, other * COUNTER)
            done, left = read(line), line[LEFT]
            if done >= 0 and left > most:
                number, most, at = other, left, done
        if number < 0 or swap(offset(share.lines, number * COUNTER), at, _TAKEN):
            return number, at
