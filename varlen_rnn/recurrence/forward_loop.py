"""The forward loop of the shrinking batch on the CPU, for any cell.

A block is up to `block_rows` sequences at one step.  If one block holds all sequences, inputs of several steps are
projected together, so that the weights of the inputs are read less often.  Then, for each step, phase and panel of
units, the recurrent products are summed into the scratch (a thread's working memory), and the phase's equations run
there (`equations`).  Projected inputs are stored as planes, one per panel of units and gate.  The rows of a step are
neighbours in a plane.  Values that a phase passes on are stored in such planes, too.
"""

from typing import Any, NamedTuple

from varlen_rnn.products.packing import no_weight, pack, part_of_weight, weight_of, weight_without_bias
from varlen_rnn.products.sync import wait
from varlen_rnn.products.tile import Panels, Prefetch, Rows, Sums, multiply
from varlen_rnn.products.vectors import (
    copy_units,
    least,
    offset,
    optimise_for_size,
    store_units_non_temporal,
)
from varlen_rnn.recurrence.bounds import bounded
from varlen_rnn.recurrence.equations import PROJECTED_ROWS, step_forward
from varlen_rnn.recurrence.forward_memory import Layer, Scratch, carry_of, layer_of, scratch_of
from varlen_rnn.recurrence.halves import keep_halves
from varlen_rnn.recurrence.norms import copy_planes, normalise
from varlen_rnn.recurrence.phases import NOTHING, OUTPUT, ForwardCode, Sizes, forward_phase
from varlen_rnn.recurrence.sharing import (
    Batch,
    Share,
    Units,
    Work,
    blocks_to_pack,
    group_of,
    next_group,
    row_of_step,
    share_of,
    thread_units_of,
)
from varlen_rnn.recurrence.task import Direction, Pointer, Task
from varlen_rnn.runtime.jit import cpu_inlined, engine_kernel


class _Block(NamedTuple):
    """Some sequences of a group at one step.

    t: the step
    first, count: the rank of its first sequence in the group, and the number of its sequences
    at_x: the position of their first row among the rows that were projected together
    rows: the row of each sequence
    before, now, operands: the addresses of the sequences' outputs of the step before, of their outputs of this step,
        and of the operands of later phases' products
    """

    t: int
    first: int
    count: int
    at_x: int
    rows: Pointer
    before: Pointer
    now: Pointer
    operands: Pointer


class _Thread(NamedTuple):
    """The records that a thread builds before it takes its first group of sequences."""

    code: ForwardCode
    sizes: Sizes
    phases: Any
    share: Share
    layer: Layer
    units: Units
    scratch: Scratch


class _Panel(NamedTuple):
    """The units of one panel, for the sequences of a block.

    number, unit: number of the panel, and its first unit
    valid: how many of its units exist, because the last panel can be padded
    states: the address, in the carry, of these sequences' states in these units
    """

    number: int
    unit: int
    valid: int
    states: Pointer


@cpu_inlined
def _bring_initial_states(share, sizes, layer, units, group, carry):
    """Copy the initial states of a group to its carry, for the thread's units."""
    for rank in range(group.count):
        for unit_block in range(units.first_block, units.end_block):
            unit = unit_block * units.width
            valid = least(units.width, layer.hidden - unit)
            source = offset(layer.initial, share.order[group.first + rank] * layer.hidden + unit)
            copy_units(1, source, 0, offset(carry.outputs, rank * carry.output_step + unit), 0, valid)
            state = offset(carry.states, (unit_block * group.count + rank) * units.width)
            others = offset(source, layer.state_size)
            copy_units(sizes.states - 1, others, layer.state_size, state, carry.state_plane, valid)


@cpu_inlined
def _leave_last_states(share, sizes, layer, units, group, carry):
    """Copy the last states of a group from its carry to `last`; an empty sequence keeps its initial states."""
    for rank in range(group.count):
        output = share.seq_lens[group.first + rank] % 2 * carry.output_plane + rank * carry.output_step
        for unit_block in range(units.first_block, units.end_block):
            unit = unit_block * units.width
            valid = least(units.width, layer.hidden - unit)
            target = offset(layer.last, share.order[group.first + rank] * layer.hidden + unit)
            of_output = least(units.width, layer.outputs - unit)
            copy_units(of_output > 0, offset(carry.outputs, output + unit), 0, target, 0, of_output)
            state = offset(carry.states, (unit_block * group.count + rank) * units.width)
            others = offset(target, layer.state_size)
            copy_units(sizes.states - 1, state, carry.state_plane, others, layer.state_size, valid)


@cpu_inlined
def _find_rows(share, layer, scratch, group, first, count, alive, t):
    """List the rows whose inputs are projected together: step `t` of `count` sequences from rank `first` on.

    If these are all `alive` sequences, rows of later steps follow while there is room.  Return the number of rows, and
    the first step that is not listed.
    """
    num_rows, end, has_all = 0, t, count == alive
    while True:
        for r in range(count):
            row = row_of_step(share, group.first + first + r, end)
            scratch.rows[num_rows + r], scratch.x_rows[num_rows + r] = row, row * layer.x_depth
        num_rows += count
        end += 1
        if not has_all or end == group.steps:
            return num_rows, end
        while share.seq_lens[group.first + count - 1] <= end:
            count -= 1
        if num_rows + count > PROJECTED_ROWS:
            return num_rows, end


@cpu_inlined
def _project_rows(code, sizes, layer, units, scratch, num_rows):
    """Multiply the inputs of the listed rows by the input weights of the thread's units."""
    step = (layer.x_depth + 1) * units.width
    panels = offset(units.panels, units.first_block * sizes.x_gates * step)
    biases = Sums(offset(panels, layer.x_depth * units.width), scratch.no_offsets, step)
    multiply(code.multiply, (
        num_rows, (units.end_block - units.first_block) * sizes.x_gates, Rows(layer.x, scratch.x_rows),
        Panels(panels, step, layer.x_depth), biases,
        Sums(scratch.projected, scratch.sums, PROJECTED_ROWS * units.width), Prefetch(layer.x, scratch.no_offsets, 0),
    ))  # fmt: skip


@cpu_inlined
def _bring_rows(code, sizes, layer, units, scratch, num_rows):
    """Copy the row inputs that are not projected to the scratch, for the listed rows and the thread's units."""
    for unit_block in range(units.first_block, units.end_block):
        unit, plane = unit_block * units.width, PROJECTED_ROWS * units.width
        target = offset(scratch.given, (unit_block - units.first_block) * sizes.rows * plane)
        for r in range(num_rows):
            source = offset(layer.rows, scratch.rows[r] * sizes.rows * layer.hidden + unit)
            valid = least(units.width, layer.hidden - unit)
            there = offset(target, r * units.width)
            copy_planes(code.copy, (source, layer.hidden, there, plane, sizes.rows, valid))


@cpu_inlined
def _panel_of(units, carry, group, phase, number, first):
    unit = number * units.width
    states = offset(carry.states, (number * group.count + first) * units.width)
    return _Panel(number, unit, least(units.width, phase.units - unit), states)


@cpu_inlined
def _load_states(sizes, units, scratch, carry, block, panel):
    """Copy the previous states that the equations read to the scratch."""
    for r in range(block.count):
        target = offset(scratch.planes, scratch.previous + r * units.width)
        output = offset(block.before, r * carry.output_step + panel.unit)
        copy_units(sizes.reads_output, output, 0, target, 0, units.width)
        source, others = offset(panel.states, r * units.width), offset(target, scratch.plane)
        copy_units(sizes.states - 1, source, carry.state_plane, others, scratch.plane, units.width)


@cpu_inlined
def _copy_products(units, scratch, block, phase, planes, begin):
    """Copy the products at `planes` to the scratch, for all gates and the columns of a panel from `begin` on."""
    for gate in range(phase.gates):
        for r in range(block.count):
            for j in range(begin, units.width):
                at = gate * scratch.plane + r * units.width + j
                scratch.planes[at] = planes[at]


@cpu_inlined
def _multiply_panel(code, units, scratch, block, panel, phase, operand, depth, way):
    """Compute the recurrent products of a panel of units, gate after gate; `way` is -1 to begin with the last gate.

    The products of each head in the panel are computed on their own, for all columns.  Those of the second head and of
    later ones go to the memory of results first, because only the columns of the head itself are right.
    """
    step, nearest = (phase.depth + 1) * units.width, 0 if way > 0 else phase.gates - 1
    head = phase.units // phase.heads
    first, last = panel.unit // head, (panel.unit + panel.valid - 1) // head
    for number in range(first, last + 1):
        place = (panel.number * phase.pieces + number - first) * phase.gates + nearest
        panels = offset(units.panels, phase.panels + place * step)
        biases = Sums(offset(panels, phase.depth * units.width), scratch.no_offsets, way * step)
        planes = scratch.planes if number == first else offset(scratch.planes, scratch.results)
        products = Sums(offset(planes, nearest * scratch.plane), scratch.sums, way * scratch.plane)
        multiply(code.multiply, (
            block.count, phase.gates, Rows(offset(operand, number * phase.depth), scratch.h_rows),
            Panels(panels, way * step, depth), biases, products, Prefetch(panels, scratch.no_offsets, 0),
        ))  # fmt: skip
        if number > first:
            _copy_products(units, scratch, block, phase, planes, number * head - panel.unit)


@cpu_inlined
def _run_equations(sizes, units, scratch, block, panel, phase):
    number, at_x = panel.number - units.first_block, block.at_x
    projected = offset(scratch.projected, (number * sizes.x_gates * PROJECTED_ROWS + at_x) * units.width)
    given = offset(scratch.given, (number * sizes.rows * PROJECTED_ROWS + at_x) * units.width)
    passed = offset(scratch.passed, number * sizes.passes * scratch.plane)
    vectors = offset(units.vectors, panel.unit)
    step_forward(phase.equations, (projected, given, scratch.planes, passed, vectors, units.vector_step, block.count))


@cpu_inlined
def _store_results(layer, units, scratch, carry, block, panel, phase, given):
    """Copy the results of a panel of units out of the scratch.

    The first result is the output or the operand of the next product.  The output goes to `y`, an operand to its saved
    column.  The next product reads a copy at `given`.  A first result that no product reads is not copied.  The other
    states go to the carry.
    """
    results = scratch.results if phase.equations else 0  # a projection has no equations: its products are the results
    rows, step = layer.y, layer.y_stride
    if phase.keeps >= 0:
        rows, step = offset(layer.columns, phase.keeps * layer.hidden), layer.kept_stride
    stores = phase.keeps == OUTPUT or (phase.keeps >= 0 and layer.keep)
    for r in range(block.count):
        source = offset(scratch.planes, results + r * units.width)
        if phase.equations == 0:
            for u in range(units.width):
                source[u] = bounded(source[u], layer.bound)
        copy_units(stores, source, 0, offset(rows, block.rows[r] * step + panel.unit), 0, panel.valid)
        there = offset(given, r * carry.output_step + panel.unit)
        copy_units(phase.keeps != NOTHING, source, 0, there, 0, units.width)
        others, states = offset(source, (1 + phase.slots) * scratch.plane), offset(panel.states, r * units.width)
        copy_units(phase.states, others, scratch.plane, states, carry.state_plane, units.width)


@cpu_inlined
def _keep_rows(code, sizes, layer, units, scratch, block, panel, phase):
    """Save the columns of a panel of units; write past the caches if these cannot hold them until the gradient."""
    first, states = phase.first_slot * layer.hidden + panel.unit, sizes.slots * layer.hidden + panel.unit
    for r in range(block.count):
        source = offset(scratch.planes, scratch.results + scratch.plane + r * units.width)
        there = offset(source, phase.slots * scratch.plane)
        row, num_slots = block.rows[r] * layer.kept_stride, phase.slots
        target, others = offset(layer.kept, row + first), offset(layer.columns, row + states)
        if sizes.halved:
            own = phase.first_slot, phase.first_slot + num_slots
            places = scratch.plane, layer.hidden, panel.unit, panel.valid, *own
            keep_halves(code.keep_halves, (source, offset(layer.kept, row), *places, sizes.factors))
            num_slots = 0
        if layer.non_temporal:
            store_units_non_temporal(num_slots, source, scratch.plane, target, layer.hidden, panel.valid)
            store_units_non_temporal(phase.states, there, scratch.plane, others, layer.hidden, panel.valid)
        else:
            copy_units(num_slots, source, scratch.plane, target, layer.hidden, panel.valid)
            copy_units(phase.states, there, scratch.plane, others, layer.hidden, panel.valid)


@cpu_inlined
def _clear_pads(sizes, layer, block):
    """Set the padding of saved rows, which users can fetch, and the column of a projection's gradient to zero."""
    projects = layer.outputs < layer.hidden
    written, end = (sizes.kept + projects) * layer.hidden, (sizes.kept + 2 * projects) * layer.hidden
    for r in range(block.count):
        for j in range(written, end):
            layer.columns[block.rows[r] * layer.kept_stride + j] = 0
        for j in range(end + sizes.norms - sizes.spared, layer.kept_stride):
            layer.kept[block.rows[r] * layer.kept_stride + j] = 0


@cpu_inlined
def _pack_weights(code, share, sizes, phases, task, layer, units):
    """Pack the weights of the inputs and the weights of all phases."""
    weights = Direction(*task.weights)
    blocks, first = blocks_to_pack(share, units.num_blocks, 0), forward_phase(phases, 0)
    of_x = weight_of(weights.weight_ih, weights.bias_ih, sizes.x_gates, units.panels)
    of_h = part_of_weight(
        weights.weight_hh, weights.bias_hh, 0, first.gates, layer.hidden, offset(units.panels, first.panels),
        first.heads, first.pieces,
    )  # fmt: skip
    pack(code.pack, ((of_x, of_h), True, blocks))
    for number in range(1, sizes.phases):
        phase = forward_phase(phases, number)
        panels = offset(units.panels, phase.panels)
        of_phase = part_of_weight(
            weights.weight_hh, weights.bias_hh, phase.first_row, phase.gates, layer.hidden, panels, phase.heads,
            phase.pieces,
        )  # fmt: skip
        if phase.equations == 0:
            of_phase = weight_without_bias(weights.weight_hr, panels)
        count = (phase.units + units.width - 1) // units.width
        pack(code.pack, ((of_phase, no_weight(panels)), True, blocks_to_pack(share, count, number)))


@cpu_inlined
def _normalise_rows(code, sizes, layer, units, scratch, block, phase):
    """Normalise, over all units, the values that a phase passes on; save them with the inverse divisors."""
    column = (sizes.kept - sizes.norms + phase.first_norm) * layer.hidden
    scales = (sizes.kept + 2 * (layer.outputs < layer.hidden)) * layer.hidden + phase.first_norm
    for r in range(block.count):
        kept = offset(layer.columns, block.rows[r] * layer.kept_stride)
        for n in range(phase.norms):
            at = offset(scratch.passed, (phase.first_pass + n) * scratch.plane + r * units.width)
            place, scale = offset(kept, column + n * layer.hidden), offset(kept, scales + n)
            step = sizes.passes * scratch.plane
            normalise(code.normalise, (at, step, layer.hidden, layer.keep, place, scale))


@cpu_inlined
def _run_block(thread, group, carry, block, meetings):
    """Run all phases of a step for a block of sequences; return the number of barriers that the thread has passed."""
    code, sizes, phases, share, layer, units, scratch = thread
    way = 1 if block.t % 2 else -1
    operand, given = block.before, block.before
    for number in range(sizes.phases):
        phase = forward_phase(phases, number)
        depth = phase.depth if number > 0 or layer.begins or block.t > 0 else 0
        given = block.now if phase.keeps == OUTPUT else offset(block.operands, number * carry.output_plane)
        if number > 0 and share.parts > 1:  # a product needs all units of its operand
            meetings += 1
            wait(group.line, meetings * share.parts)
        # The order of panels alternates from step to step, because the caches still hold the panels used last.
        end = least(units.end_block, (phase.units + units.width - 1) // units.width)
        for i in range(end - units.first_block):
            panel_number = units.first_block + i if way > 0 else end - 1 - i
            panel = _panel_of(units, carry, group, phase, panel_number, block.first)
            _load_states(sizes, units, scratch, carry, block, panel)
            if phase.gates:
                _multiply_panel(code, units, scratch, block, panel, phase, operand, depth, way)
            if phase.equations:
                _run_equations(sizes, units, scratch, block, panel, phase)
            _store_results(layer, units, scratch, carry, block, panel, phase, given)
            if layer.keep:
                _keep_rows(code, sizes, layer, units, scratch, block, panel, phase)
        if phase.norms:
            _normalise_rows(code, sizes, layer, units, scratch, block, phase)
        operand = given
    return meetings


@engine_kernel
def forward(shard, num_shards, work, batch, cell, task, last, keep, non_temporal):
    """Run the steps of all groups that this thread takes: write the task's outputs and saved columns.

    `cell` is the field `cell` of a Loop.  `last` receives the last states.  `keep` says whether to save columns for the
    gradient, `non_temporal` whether to write them past the caches.
    """
    optimise_for_size()
    share = share_of(shard, num_shards, Work(*work), Batch(*batch))
    code, sizes, phases, task = ForwardCode(*cell[0]), Sizes(*cell[1]), cell[2], Task(*task)
    layer = layer_of(task, sizes, last, keep, non_temporal)
    units = thread_units_of(share, layer.hidden, task.weights[5])
    scratch = scratch_of(share, sizes, units)
    thread = _Thread(code=code, sizes=sizes, phases=phases, share=share, layer=layer, units=units, scratch=scratch)
    _pack_weights(code, share, sizes, phases, task, layer, units)
    number, rows, t, steps, meetings = -1, 0, 0, 0, 0
    while True:
        number, t = next_group(share, number, rows, t, steps)
        if number < 0:
            return
        group = group_of(share, number)
        carry, steps = carry_of(group, sizes, units), group.steps
        if t == 0:
            _bring_initial_states(share, sizes, layer, units, group, carry)
        alive, rows, projected_until, at_x = group.count, 0, 0, 0
        while t < steps and (rows < share.turn or projected_until > t):
            # The team (threads that share the units) meets here: the products of a step read all units of the step
            # before, and the outputs of a step overwrite the operands of the products of the step before.
            if share.parts > 1 and sizes.products and (layer.begins or t > 0):
                meetings += 1
                wait(group.line, meetings * share.parts)
            while share.seq_lens[group.first + alive - 1] <= t:
                alive -= 1
            before, now = t % 2 * carry.output_plane, (t + 1) % 2 * carry.output_plane
            for first in range(0, alive, share.block_rows):
                count = least(share.block_rows, alive - first)
                if projected_until <= t:
                    num_rows, until = _find_rows(share, layer, scratch, group, first, count, alive, t)
                    _project_rows(code, sizes, layer, units, scratch, num_rows)
                    if sizes.rows:
                        _bring_rows(code, sizes, layer, units, scratch, num_rows)
                    projected_until, at_x = until if count == alive else projected_until, 0
                at, operands = first * carry.output_step, offset(carry.operands, first * carry.output_step)
                outputs = offset(carry.outputs, at)
                block = _Block(
                    t=t, first=first, count=count, at_x=at_x, rows=offset(scratch.rows, at_x),
                    before=offset(outputs, before), now=offset(outputs, now), operands=operands,
                )  # fmt: skip
                meetings = _run_block(thread, group, carry, block, meetings)
                if layer.keep and units.end_block == units.num_blocks:
                    _clear_pads(sizes, layer, block)
                at_x += count
            t, rows = t + 1, rows + alive
        if t == steps:
            _leave_last_states(share, sizes, layer, units, group, carry)
