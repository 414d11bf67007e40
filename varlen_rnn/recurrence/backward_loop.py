"""The backward loop of the shrinking batch on the CPU, for any cell.

A phase is a recurrent product and the equations after it.  A step runs its phases from last to first.  The gradient of
a phase's equations runs over all sequences of the step and overwrites their slots (saved numbers) with the gradients of
the gates.  Then the products of these gradients with the weights are added to the gradient of the phase's operand: the
outputs of the step before, or the result of the phase before.

The equations run on blocks of a few rows and several panels of units.  Their operands come from main memory, which
delivers the neighbours in a row sooner than other rows.
"""

from typing import NamedTuple

from varlen_rnn.products.packing import Weight, no_weight, pack
from varlen_rnn.products.row_sums import add_up
from varlen_rnn.products.sync import wait
from varlen_rnn.products.tile import Panels, Prefetch, Rows, Sums, multiply
from varlen_rnn.products.vectors import (
    L2_ELEMENTS,
    RUN_BYTES,
    TILE_ROWS,
    TILE_VECTORS,
    VECTOR_BYTES,
    add_run,
    copy_runs,
    lanes_of,
    least,
    offset,
    optimise_for_size,
    pointer,
    prefetch_to_read,
    prefetch_to_write,
)
from varlen_rnn.recurrence.bounds import through_bound
from varlen_rnn.recurrence.equations import BACKWARD_ROWS, step_backward
from varlen_rnn.recurrence.halves import load_halves, round_halves
from varlen_rnn.recurrence.norms import copy_planes, normalise_grad
from varlen_rnn.recurrence.phases import BackwardCode, Sizes, backward_phase
from varlen_rnn.recurrence.sharing import (
    Batch,
    Work,
    blocks_to_pack,
    group_of,
    next_group,
    row_of_step,
    share_of,
    thread_units_of,
)
from varlen_rnn.recurrence.task import Direction, Gradients, Pointer, Task
from varlen_rnn.runtime.jit import cpu_inlined, engine_kernel
from varlen_rnn.runtime.memory import CACHE_LINE

SUMMED_STEPS = 48  # steps whose gradients of vectors are summed before the sum is added to the total
# Rows whose products with a panel of several heads are computed at once; two planes of the scratch hold them.
_ROWS_OF_HEADS = 2 * BACKWARD_ROWS * (RUN_BYTES // (TILE_VECTORS * VECTOR_BYTES))


class _Layer(NamedTuple):
    """The arrays of a task and of its Gradients, as addresses, and their strides from row to row in elements.

    hidden, outputs: hidden units, and units of an output
    kept, kept_stride: the saved columns
    columns: where the saved columns would begin if all slots had 32 bits, for the columns behind the slots
    y, y_stride: the outputs, from this direction's first column on; `d_y` has the same stride
    initial: the initial states, [state][sequence][unit], in the caller's order
    state_size: elements of one state of all sequences
    d_y, d_last: the gradients of the outputs, and of the last states
    d_others, others: the gradients of the states after the first at every row, and the number of these states; 0 if no
        such gradient arrived
    d_initial, d_vectors: the gradients that the loop writes
    rows: the row inputs that are not projected
    bound: the largest absolute value of a projected output
    """

    hidden: int
    outputs: int
    kept: Pointer
    kept_stride: int
    columns: Pointer
    y: Pointer
    y_stride: int
    initial: Pointer
    state_size: int
    d_y: Pointer
    d_others: Pointer
    others: int
    d_last: Pointer
    d_initial: Pointer
    d_vectors: Pointer
    rows: Pointer
    bound: float


class _Scratch(NamedTuple):
    """Working memory of one thread: planes [row][unit] of saved columns, previous states, carried gradients.

    planes: The first plane.  Previous states begin `previous` elements after its start, carried gradients `carry`
        elements.
    plane: elements of a plane
    rows, gates, carried: for each sequence: its row at this step, the offset of its saved columns, and the offset of
        its carry (the gradients that it carries from step to step)
    later: offsets of rows that tiles prefetch for later steps
    """

    planes: Pointer
    previous: int
    carry: int
    plane: int
    rows: Pointer
    gates: Pointer
    carried: Pointer
    later: Pointer


class _Block(NamedTuple):
    """Part of step `t`: `count` sequences from rank `first` on, and `units` of the thread's units from `unit` on.

    Rows of the scratch are `span` elements apart.
    """

    t: int
    first: int
    count: int
    unit: int
    units: int
    span: int


def memory_of(sizes, own_unit_blocks, sequences):
    """Return how much memory a thread needs: rows of numbers, each as wide as a panel, and int64 offsets.

    `sequences` is the number of sequences of the largest group.
    """
    planes = sizes.kept + sizes.states + sizes.carried + sizes.rows + sizes.vectors
    panels_of_run = RUN_BYTES // (TILE_VECTORS * VECTOR_BYTES)
    return planes * BACKWARD_ROWS * panels_of_run, 4 * sequences


def carry_rows(sizes, unit_blocks):
    """Return how many rows, each as wide as a panel, a sequence carries: gradients, and three sums for each vector."""
    return (sizes.carried + 3 * sizes.vectors) * unit_blocks


@cpu_inlined
def _layer_of(task, sizes, gradients):
    hidden = task.initial.shape[2]
    return _Layer(
        hidden=hidden, outputs=task.outputs, kept=pointer(task.kept, 0), kept_stride=task.kept.shape[1],
        columns=pointer(task.kept, -sizes.spared), y=pointer(task.y, task.column), y_stride=task.y.shape[1],
        initial=pointer(task.initial, 0),
        state_size=task.initial.shape[1] * hidden, d_y=pointer(gradients.d_y, task.column),
        d_others=pointer(gradients.d_others, 0), others=gradients.d_others.shape[1] // hidden,
        d_last=pointer(gradients.d_last, 0), d_initial=pointer(gradients.d_initial, 0),
        d_vectors=pointer(gradients.d_vectors, 0), rows=pointer(task.given, 0), bound=task.y.dtype.type(task.bound),
    )  # fmt: skip


@cpu_inlined
def _scratch_of(share, sizes, units):
    """Return the _Scratch of a thread, in the memory of its Share; write the offsets of carries."""
    plane, count, rows = BACKWARD_ROWS * units.run, share.num_offsets // 4, share.offsets
    carried = offset(rows, 2 * count)
    for r in range(count):
        carried[r] = r * units.row + units.first
    carry = (sizes.kept + sizes.states) * plane
    return _Scratch(
        planes=share.numbers, previous=sizes.kept * plane, carry=carry, plane=plane, rows=rows,
        gates=offset(rows, count), carried=carried, later=offset(rows, 3 * count),
    )  # fmt: skip


@cpu_inlined
def _bring_last_gradients(share, sizes, layer, units, scratch, group):
    """Copy the gradients of a group's last states to its carry, and set its sums to zero, for the thread's units."""
    for r in range(group.count):
        source = offset(layer.d_last, share.order[group.first + r] * layer.hidden + units.first)
        target = offset(group.carry, scratch.carried[r])
        copy_runs(sizes.states, source, layer.state_size, target, group.count * units.row, units.count)
        for k in range(sizes.carried, sizes.carried + 3 * sizes.vectors):
            for j in range(units.count):
                target[k * group.count * units.row + j] = 0


@cpu_inlined
def _add_up_vectors(code, sizes, units, scratch, group, alive):
    """Add the gradients of vectors, summed over a block of steps, to the totals; set the sums of the block to zero.

    Each vector of the cell has three planes: the sum of the block, the total, and the rounding errors of the total.
    """
    plane = group.count * units.row
    for r in range(alive):
        for k in range(sizes.vectors):
            block = offset(group.carry, scratch.carried[r] + (sizes.carried + k) * plane)
            total = offset(block, sizes.vectors * plane)
            add_up(code.add_up, (block, total, offset(total, sizes.vectors * plane), units.count))


@cpu_inlined
def _leave_first_gradients(share, sizes, layer, units, scratch, group):
    """Write the gradients of a group's initial states and of its vectors, for the thread's units."""
    for r in range(group.count):
        source = offset(group.carry, scratch.carried[r])
        target = offset(layer.d_initial, share.order[group.first + r] * layer.hidden + units.first)
        copy_runs(sizes.states, source, group.count * units.row, target, layer.state_size, units.count)
        for k in range(sizes.vectors):
            total = offset(source, (sizes.carried + sizes.vectors + k) * group.count * units.row)
            lost = offset(total, sizes.vectors * group.count * units.row)
            at = k * layer.state_size + share.order[group.first + r] * layer.hidden + units.first
            for j in range(units.count):
                layer.d_vectors[at + j] = total[j] + lost[j]


@cpu_inlined
def _find_rows(share, layer, scratch, group, alive, t):
    """Write to the scratch: the rows at step `t` of the `alive` sequences, and the offsets of their saved columns."""
    for r in range(alive):
        scratch.rows[r] = row_of_step(share, group.first + r, t)
        scratch.gates[r] = scratch.rows[r] * layer.kept_stride


@cpu_inlined
def _prefetch_next(share, sizes, layer, units, scratch, phase, block, alive):
    """Prefetch most of the memory that the block after `block` will read."""
    unit, first, step = block.unit + units.run, block.first, 0
    if unit >= units.count:
        unit, first = 0, block.first + BACKWARD_ROWS
        if first >= alive:
            first, step = 0, 1  # the first block of the next step
    back, line = 1 if share.reverse else -1, lanes_of(layer.kept) * CACHE_LINE // VECTOR_BYTES
    for r in range(first, least(first + block.count, alive)):
        row = scratch.rows[r] + step * back
        at, first_unit = row * layer.kept_stride, units.first + unit
        at_y, before = row * layer.y_stride + first_unit, at + back * layer.kept_stride + first_unit
        for j in range(0, units.run, line):
            for k in range(phase.first_read, phase.first_read + phase.num_read):
                prefetch_to_write(offset(layer.kept, at + (k * layer.hidden + first_unit + j >> sizes.halved)))
            for k in range(sizes.slots, sizes.kept):
                prefetch_to_read(offset(layer.columns, before + k * layer.hidden + j))
            prefetch_to_read(offset(layer.d_y, at_y + j))


@cpu_inlined
def _load_rows(code, share, sizes, layer, units, scratch, group, phase, block):
    """Copy the operands of a phase's equations to the scratch, for a block of rows."""
    unit, plane = units.first + block.unit, group.count * units.row
    for r in range(block.first, block.first + block.count):
        target = offset(scratch.planes, (r - block.first) * block.span)
        kept, after = offset(layer.kept, scratch.gates[r]), offset(target, sizes.slots * scratch.plane)
        read = offset(target, phase.first_read * scratch.plane)
        if sizes.halved:
            first, end = phase.first_read, phase.first_read + phase.num_read
            places = scratch.plane, layer.hidden, unit, block.units, first, end, sizes.factors
            load_halves(code.load_halves, (read, kept, *places))
        else:
            slots = offset(kept, phase.first_read * layer.hidden + unit)
            copy_runs(phase.num_read, slots, layer.hidden, read, scratch.plane, block.units)
        kept = offset(layer.columns, scratch.gates[r] + sizes.slots * layer.hidden + unit)
        copy_runs(sizes.kept - sizes.slots, kept, layer.hidden, after, scratch.plane, block.units)
        carried, here = offset(group.carry, scratch.carried[r] + block.unit), offset(target, scratch.carry)
        copy_runs(sizes.carried, carried, plane, here, scratch.plane, block.units)
        row = scratch.rows[r]
        if phase.of_outputs:
            add_run(offset(layer.d_y, row * layer.y_stride + unit), here, block.units)
        for s in range(layer.others if phase.of_states else 0):
            d_state = offset(layer.d_others, (row * layer.others + s) * layer.hidden + unit)
            add_run(d_state, offset(here, (1 + s) * scratch.plane), block.units)
        # At step 0 all previous states are initial states.  Later the output is in `y`, other states in saved columns.
        if block.t > 0:
            before = row_of_step(share, group.first + r, block.t - 1)
            output, step = offset(layer.y, before * layer.y_stride + unit), layer.hidden
            others = offset(layer.columns, before * layer.kept_stride + sizes.slots * layer.hidden + unit)
        else:
            output = offset(layer.initial, share.order[group.first + r] * layer.hidden + unit)
            others, step = offset(output, layer.state_size), layer.state_size
        previous = offset(target, scratch.previous)
        copy_runs(sizes.reads_output, output, 0, previous, 0, block.units)
        copy_runs(sizes.states - 1, others, step, offset(previous, scratch.plane), scratch.plane, block.units)
        given = offset(layer.rows, row * sizes.rows * layer.hidden + unit)
        of_row = offset(here, sizes.carried * scratch.plane)
        if sizes.rows:
            copy_planes(code.copy, (given, layer.hidden, of_row, scratch.plane, sizes.rows, block.units))


@cpu_inlined
def _store_rows(code, sizes, layer, units, scratch, group, phase, block):
    """Copy a block's gradients out of the scratch: gradients of gates to their slots, carried ones to the carry."""
    for r in range(block.first, block.first + block.count):
        source = offset(scratch.planes, (r - block.first) * block.span)
        column = phase.first_slot * layer.hidden + units.first + block.unit
        slots = offset(source, phase.first_slot * scratch.plane)
        kept = offset(layer.kept, scratch.gates[r])
        if sizes.halved:
            unit, first, end = units.first + block.unit, phase.first_slot, phase.first_slot + phase.slots
            places = scratch.plane, layer.hidden, unit, block.units, first, end, sizes.factors
            round_halves(code.round_halves, (slots, kept, *places))
        else:
            copy_runs(phase.slots, slots, scratch.plane, offset(kept, column), layer.hidden, block.units)
        leaving, carried = offset(source, scratch.carry), offset(group.carry, scratch.carried[r] + block.unit)
        copy_runs(sizes.carried, leaving, scratch.plane, carried, group.count * units.row, block.units)
        for k in range(phase.vectors):
            d_vector = offset(leaving, (sizes.carried + sizes.rows + k) * scratch.plane)
            sums = (sizes.carried + phase.first_vector + k) * group.count * units.row
            add_run(d_vector, offset(carried, sums), block.units)


@cpu_inlined
def _later_rows(share, layer, units, scratch, phase, alive, asked):
    """Write the offsets that tiles prefetch: saved columns of the next two steps, whose rows are neighbours.

    For each sequence, the offset is the lower one of its next two rows.  Each step prefetches for half of the
    sequences, beginning with number `asked`, so two steps cover all.  Return the number of offsets.  It is 0 if L2
    cannot hold the panels, because tiles then prefetch panels instead, or if a panel has several heads.
    """
    if phase.pieces > 1 or (units.end_block - units.first_block) * (phase.depth + 1) * units.width > L2_ELEMENTS:
        return 0
    count, back = (alive + 1) // 2, 1 if share.reverse else -1
    for i in range(count):
        scratch.later[i] = (scratch.rows[(asked + i) % alive] + least(back, 2 * back)) * layer.kept_stride
    return count


@cpu_inlined
def _segment_of(sizes, layer, units, scratch, phase, place, number, segment, way):
    """Return the gradients of gates and the panels of one segment of head `number`; panels begin at number `place`."""
    step, depth = (phase.depth + 1) * units.width, phase.depth // phase.segments
    at = phase.panels + place * step + segment * depth * units.width
    first = (phase.h_slot + segment) * layer.hidden + number * depth
    gates = Rows(offset(layer.kept, first >> sizes.halved), scratch.gates)
    return gates, Panels(offset(units.panels, at), way * step, depth)


@cpu_inlined
def _add_to_heads(code, sizes, layer, units, scratch, phase, sums, alive, panel, first, last):
    """Add the products of a panel that has units of heads `first` to `last`.

    The products of a head are computed for all columns, in the memory of planes.  Only its own columns are copied.
    """
    unit, head = panel * units.width, phase.units // phase.heads
    for r in range(least(_ROWS_OF_HEADS, alive)):
        scratch.later[r] = r * units.width
    apart = Sums(scratch.planes, scratch.later, 0)
    for begin in range(0, alive, _ROWS_OF_HEADS):
        rows, there = least(_ROWS_OF_HEADS, alive - begin), offset(sums.offsets, begin)
        for number in range(first, last + 1):
            start, place = Sums(sums.at, there, 0), panel * phase.pieces + number - first
            for segment in range(phase.segments):
                gates, panels = _segment_of(sizes, layer, units, scratch, phase, place, number, segment, 0)
                of_rows, nothing = Rows(gates.at, offset(gates.offsets, begin)), Prefetch(panels.at, scratch.later, 0)
                multiply(code.multiply, (rows, 1, of_rows, panels, start, apart, nothing))
                start = apart
            low, high = number * head - unit if number > first else 0, least(units.width, (number + 1) * head - unit)
            for r in range(rows):
                for j in range(low, high):
                    sums.at[there[r] + j] = scratch.planes[r * units.width + j]


@cpu_inlined
def _add_products(code, sizes, layer, units, scratch, group, phase, alive, t, num_later):
    """Add the products of a step's gradients of gates with the weights to the gradients of the phase's operands.

    The order of panels alternates from step to step, because the caches still hold the panels used last.  Neighbouring
    panels of one head are multiplied together.
    """
    width, end = units.width, least(units.end_block, (phase.units + units.width - 1) // units.width)
    (way, panel), left, tiles = (-1, end - 1) if t % 2 else (1, units.first_block), end - units.first_block, 0
    head, of_tile = phase.units // phase.heads, (alive + TILE_ROWS - 1) // TILE_ROWS
    of_head = (head + width - 1) // width
    while left > 0:
        at = phase.target * group.count * units.row + (panel - units.first_block) * width
        sums, count = Sums(offset(group.carry, at), scratch.carried, way * width), 1
        first, last = panel * width // head, (least((panel + 1) * width, phase.units) - 1) // head
        if last > first:
            _add_to_heads(code, sizes, layer, units, scratch, phase, sums, alive, panel, first, last)
        else:
            if phase.pieces == 1:
                count = least(left, of_head - panel % of_head if way > 0 else panel % of_head + 1)
            for segment in range(phase.segments):
                gates, panels = _segment_of(
                    sizes, layer, units, scratch, phase, panel * phase.pieces, first, segment, way
                )
                done = least(tiles, num_later)
                later = Prefetch(layer.kept, offset(scratch.later, done), num_later - done)
                multiply(code.multiply, (alive, count, gates, panels, sums, sums, later))
                tiles += count * of_tile
        panel, left = panel + way * count, left - count


@cpu_inlined
def _differentiate_projection(layer, units, scratch, group, phase, alive):
    """Save the gradients of a step's outputs, and set the gradients of the projection's operands to zero."""
    for r in range(alive):
        carried, kept = offset(group.carry, scratch.carried[r]), offset(layer.kept, scratch.gates[r])
        d_output = offset(kept, phase.h_slot * layer.hidden)
        d_y, y = offset(layer.d_y, scratch.rows[r] * layer.y_stride), offset(layer.y, scratch.rows[r] * layer.y_stride)
        for j in range(layer.outputs):
            d_output[j] = through_bound(carried[j] + d_y[j], y[j], layer.bound)
        for j in range(units.row):
            carried[j] = 0


@cpu_inlined
def _differentiate_norms(code, sizes, layer, units, scratch, group, phase, alive):
    """Replace the gradients of normalised values by the gradients of the values that a phase passed on."""
    plane, of_norms = group.count * units.row, sizes.kept - sizes.norms + phase.first_norm
    scales = (sizes.kept + 2 * (layer.outputs < layer.hidden)) * layer.hidden + phase.first_norm
    for r in range(alive):
        kept = offset(layer.kept, scratch.gates[r])
        for n in range(phase.norms):
            d = offset(group.carry, scratch.carried[r] + (sizes.states + 1 + n) * plane)
            x = offset(kept, (of_norms + n) * layer.hidden)
            normalise_grad(code.normalise_grad, (d, x, layer.hidden, offset(kept, scales + n)))


@cpu_inlined
def _differentiate_phase(code, share, sizes, layer, units, scratch, group, phase, alive, t):
    """Run the gradient of a phase's equations over all sequences of a step, block by block."""
    for first in range(0, alive, BACKWARD_ROWS):
        count = least(BACKWARD_ROWS, alive - first)
        for unit in range(0, units.count, units.run):
            num_units = least(units.run, units.count - unit)
            span = (num_units + units.width - 1) // units.width * units.width
            block = _Block(t=t, first=first, count=count, unit=unit, units=num_units, span=span)
            if phase.of_states:
                _prefetch_next(share, sizes, layer, units, scratch, phase, block, alive)
            _load_rows(code, share, sizes, layer, units, scratch, group, phase, block)
            vectors = offset(units.vectors, units.first + unit)
            step_backward(phase.equations, (scratch.planes, vectors, units.vector_step, count, span))
            _store_rows(code, sizes, layer, units, scratch, group, phase, block)


@cpu_inlined
def _pack_weights(code, share, sizes, phases, task, layer, units, weight_rows):
    """Pack the weights of all phases: row k of a phase's panels is row `weight_rows[k]` of its weight."""
    weights, order = Direction(*task.weights), pointer(weight_rows, 0)
    for number in range(sizes.phases):
        phase = backward_phase(phases, number)
        count = (phase.units + units.width - 1) // units.width
        panels, blocks = offset(units.panels, phase.panels), blocks_to_pack(share, count, number)
        columns, rows = phase.units // phase.heads, phase.depth * phase.heads
        at = pointer(weights.weight_hh, phase.first_row * weights.weight_hh.shape[1])
        if phase.equations == 0:
            at = pointer(weights.weight_hr, 0)
        num_ordered = rows if len(weight_rows) and phase.equations else 0
        of_phase = offset(order, phase.first_row)
        weight = Weight(
            at=at, rows=rows, columns=columns, groups=phase.segments, bias=at, has_bias=False, order=of_phase,
            num_ordered=num_ordered, panels=panels, stride=columns, heads=phase.heads, pieces=phase.pieces,
        )  # fmt: skip
        pack(code.pack, ((weight, no_weight(panels)), False, blocks))


@engine_kernel
def backward(shard, num_shards, work, batch, cell, task, weight_rows, gradients):
    """Run all groups that this thread takes, each from its last step to its first: replace slots by gradients.

    Afterwards, the slots hold the gradients of recurrent products, phase by phase.  Number k of these belongs to row
    `weight_rows[k]` of its phase's part of `weight_hh`.  `cell` is the field `cell` of a Loop.
    """
    optimise_for_size()
    share = share_of(shard, num_shards, Work(*work), Batch(*batch))
    code, sizes, phases, task = BackwardCode(*cell[0]), Sizes(*cell[1]), cell[2], Task(*task)
    layer = _layer_of(task, sizes, Gradients(*gradients))
    units = thread_units_of(share, layer.hidden, task.weights[5])
    scratch = _scratch_of(share, sizes, units)
    _pack_weights(code, share, sizes, phases, task, layer, units, weight_rows)
    number, rows_done, done, steps, meetings = -1, 0, 0, 0, 0
    while True:
        number, done = next_group(share, number, rows_done, done, steps)
        if number < 0:
            return
        group = group_of(share, number)
        if done == 0:
            _bring_last_gradients(share, sizes, layer, units, scratch, group)
        alive, rows_done, asked, steps = 0, 0, 0, group.steps
        while done < steps and rows_done < share.turn:
            done += 1
            t = steps - done
            while alive < group.count and share.seq_lens[group.first + alive] > t:
                alive += 1
            _find_rows(share, layer, scratch, group, alive, t)
            for i in range(sizes.phases):
                phase = backward_phase(phases, sizes.phases - 1 - i)
                if phase.norms:
                    _differentiate_norms(code, sizes, layer, units, scratch, group, phase, alive)
                if phase.equations:
                    _differentiate_phase(code, share, sizes, layer, units, scratch, group, phase, alive, t)
                else:
                    _differentiate_projection(layer, units, scratch, group, phase, alive)
                if phase.depth == 0:
                    continue
                if share.parts > 1:  # the product reads the gradients of gates of all units
                    meetings += 1
                    wait(group.line, meetings * share.parts)
                num_later = _later_rows(share, layer, units, scratch, phase, alive, asked)
                asked = (asked + num_later) % alive
                _add_products(code, sizes, layer, units, scratch, group, phase, alive, t, num_later)
            if sizes.vectors and t % SUMMED_STEPS == 0:
                _add_up_vectors(code, sizes, units, scratch, group, alive)
            rows_done += alive
        if done == steps:
            _leave_first_gradients(share, sizes, layer, units, scratch, group)
