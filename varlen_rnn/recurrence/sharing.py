"""The decisions of a thread that runs a recurrence: which weights to pack, and which group of sequences comes next.

Sequences do not depend on each other, so any thread can run any group.  A thread takes the group with the most rows
left, runs it for some rows, and puts it back.  Once the weights are packed, no thread waits for another, so a slow core
simply runs fewer rows.

If there are too few sequences for all threads, threads form teams.  The members of a team run the same sequences, and
each member owns some of the hidden units.  A step needs all units of the step before, so members meet at a barrier once
per step.

Kernels take plain tuples and make NamedTuples of them inside, because passing a NamedTuple costs time at each call.
"""

from typing import Any, NamedTuple

import numpy as np

from varlen_rnn.products.packing import Blocks
from varlen_rnn.products.sync import COUNTER, publish, read, swap
from varlen_rnn.products.vectors import RUN_BYTES, VECTOR_BYTES, lanes_of, least, offset, pointer, width_of
from varlen_rnn.recurrence.task import Pointer
from varlen_rnn.runtime.jit import cpu_inlined

PACKING = 8  # cache lines of `integers` after the lines of groups: two for each of at most four phases
PACKED = 2**40  # more packed blocks than any weight has: it means that all blocks were packed before the call
FIRST, END, LEFT = 1, 2, 3  # positions in a group's line of integers, which begins with the group's counter
_TAKEN, _ENDED = -1, -2  # values of a group's counter: a thread holds the group, or all steps are finished


class Batch(NamedTuple):
    """The sequences, group after group; each group begins with its longest sequence.

    starts, seq_lens: arrays of int64, the first row of each sequence, and its rows
    order: array of int64, the number of each sequence in the caller's order
    reverse: whether each sequence runs from its last row to its first
    """

    starts: np.ndarray
    seq_lens: np.ndarray
    order: np.ndarray
    reverse: bool


class Work(NamedTuple):
    """How a batch is cut, and the memory that all threads share.

    groups, parts: the number of groups, and the number of threads that run a group together
    turn, block_rows: how many rows of a group a thread runs before it puts the group back, and how many sequences a
        block of the forward loop has
    carry_rows: how many rows of `numbers` each sequence needs for values that it carries from step to step
    panels: the packed weights
    numbers: rows as wide as a panel: first the carried values of each sequence, then the scratch of each shard
    integers: One cache line per group: a counter (of its barrier, or of its finished steps), its first sequence, the
        end of its sequences, and its rows left.  Then two lines per phase: the number of unit blocks taken for packing,
        and the number of packed blocks (`PACKED` or more if all were packed before).  Then the offsets of each shard
        and an empty line, so that no thread reads a line that another thread writes at each step.
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
    """A thread's view of a Batch and a Work, with addresses instead of arrays.  Other fields are as in Batch and Work.

    shard: the number of the thread in this call
    lines: the address of `Work.integers`: a cache line for each group, then the lines for packing
    carries: the carried values of all sequences; `carry_size` elements for each
    numbers, offsets: the thread's own scratch, and its own memory for `num_offsets` offsets
    """

    shard: int
    groups: int
    parts: int
    turn: int
    block_rows: int
    starts: Any
    seq_lens: Any
    order: Any
    reverse: bool
    lines: Pointer
    panels: Any
    carries: Pointer
    carry_size: int
    numbers: Pointer
    offsets: Pointer
    num_offsets: int


class Units(NamedTuple):
    """The hidden units that a thread owns.

    first_block, end_block, num_blocks: its range of blocks of units (a block is as wide as a panel), and the number of
        all blocks of the layer
    first, count: its first unit, and the number of its units
    run: the number of units that the equations process together
    width: units of a panel
    row: the number of elements of a carried row
    panels: all packed weights
    vectors: the vectors of the cell, `vector_step` elements apart
    """

    first_block: int
    end_block: int
    num_blocks: int
    first: int
    count: int
    run: int
    width: int
    row: int
    panels: Pointer
    vectors: Pointer
    vector_step: int


class Group(NamedTuple):
    """A group of sequences.

    first, count: its first sequence in the Batch, and the number of its sequences
    steps: the steps of its longest sequence
    carry: the values that its sequences carry from step to step
    line: its line of integers: see `Work.integers`
    """

    first: int
    count: int
    steps: int
    carry: Pointer
    line: Pointer


@cpu_inlined
def share_of(shard, num_shards, work, batch):
    """Return the Share of the thread with number `shard`."""
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
    """Return the range (first, end) of the unit blocks that a thread owns."""
    part = share.shard % share.parts
    return unit_blocks * part // share.parts, unit_blocks * (part + 1) // share.parts


@cpu_inlined
def thread_units_of(share, hidden, vectors):
    """Return the Units of a thread."""
    width, run = width_of(share.panels), lanes_of(share.panels) * RUN_BYTES // VECTOR_BYTES
    num_blocks = (hidden + width - 1) // width
    first, end = units_of(share, num_blocks)
    count = least(end * width, hidden) - first * width
    row, at = num_blocks * width, pointer(vectors, 0)
    return Units(
        first_block=first, end_block=end, num_blocks=num_blocks, first=first * width, count=count, run=run,
        width=width, row=row, panels=share.panels, vectors=at, vector_step=vectors.shape[1],
    )  # fmt: skip


@cpu_inlined
def blocks_to_pack(share, unit_blocks, phase):
    """Return the blocks of units that a thread packs for a phase.

    With a single group, each member packs the blocks that it owns, so that they are in its caches.  With several
    groups, each thread packs any block that is not yet taken.
    """
    taken = offset(share.lines, (share.groups + 2 * phase) * COUNTER)
    packed = offset(taken, COUNTER)
    if share.groups == 1:
        first, end = units_of(share, unit_blocks)
        return Blocks(end if packed[0] >= PACKED else first, end, False, taken, packed)
    return Blocks(0, unit_blocks, True, taken, packed)


@cpu_inlined
def group_of(share, number):
    """Return the Group with a number."""
    line = offset(share.lines, number * COUNTER)
    first, end = line[FIRST], line[END]
    steps = share.seq_lens[first] if end > first else 0
    carry = offset(share.carries, first * share.carry_size)
    return Group(first=first, count=end - first, steps=steps, carry=carry, line=line)


@cpu_inlined
def row_of_step(share, rank, t):
    """Return the row of step `t` of sequence `rank` of the Batch."""
    return share.starts[rank] + (share.seq_lens[rank] - 1 - t if share.reverse else t)


@cpu_inlined
def next_group(share, number, rows, done, steps):
    """Return (number, finished steps) of the group that a thread runs next; the number is -1 if no group is left.

    The thread first puts back group `number`, unless that is -1: the thread has just run `rows` rows of it, and `done`
    of its `steps` steps are finished.  Then it takes the group with the most rows left.  If other threads hold all
    unfinished groups, it stops, because these threads will finish them.  A member of a team has one group only.
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
