"""The forward loop of the shrinking batch on the CPU, for any cell.

A block is up to `block_rows` sequences at one step, or, where no more are alive, rows of several steps.  Its rows are
projected at once, so that the weights of the inputs pass once per block.  Then, for each step and panel of units, the
recurrent products are summed into the scratch, and the cell's equations run on it (`equations`).  Projected inputs are
planes, too, one per panel of units and gate, where the rows of a step are neighbours.
"""

from typing import Any, NamedTuple

from varlen_rnn.jit import cpu_inlined, engine_kernel
from varlen_rnn.products.packing import pack, weight_of
from varlen_rnn.products.sync import wait
from varlen_rnn.products.tile import Panels, Prefetch, Rows, Sums, multiply
from varlen_rnn.products.vectors import (
    copy_units,
    least,
    offset,
    optimise_for_size,
    pointer,
    store_units_non_temporal,
    width_of,
)
from varlen_rnn.recurrence.equations import MOST_ROWS, PROJECTED_ROWS, Code, Sizes, step_forward
from varlen_rnn.recurrence.sharing import (
    Batch,
    Work,
    blocks_to_pack,
    group_of,
    next_group,
    row_of_step,
    share_of,
    units_of,
)
from varlen_rnn.recurrence.task import Direction, Task


class _Layer(NamedTuple):
    """What a thread reads and writes: addresses of the task's arrays, and elements from row to row."""

    hidden: int
    x: Any
    x_depth: int
    initial: Any
    last: Any
    state_size: int
    given: bool
    y: Any
    y_stride: int
    kept: Any
    kept_stride: int
    keep: bool
    non_temporal: bool


class _Units(NamedTuple):
    """The blocks of units that a thread owns, the panels of both weights for all of them, and an output's numbers."""

    first: int
    end: int
    count: int
    width: int
    output_step: int
    x_panels: Any
    h_panels: Any


class _Scratch(NamedTuple):
    """A thread's planes: products, previous states, results; projected inputs; and offsets of rows.

    `rows` are those whose inputs are projected, `x_rows` where they begin in `x`.
    """

    planes: Any
    previous: int
    results: int
    plane: int
    projected: Any
    rows: Any
    x_rows: Any
    sums: Any
    no_offsets: Any
    h_rows: Any


class _Carry(NamedTuple):
    """What a group carries from step to step.

    The outputs of the step before and of this one, in turns: [steps behind them % 2][rank][unit].  Rows of `y` are
    apart by what the caller's lengths make it, at worst all in one set of a cache.  Then the states but the first:
    [state][unit block][rank][unit].
    """

    outputs: Any
    output_step: int
    output_plane: int
    states: Any
    state_plane: int


class _Block(NamedTuple):
    """Sequences at one step: how many, their rows, and where their outputs begin before and after it."""

    count: int
    rows: Any
    before: Any
    now: Any


class _Panel(NamedTuple):
    """A block of units: its number, the first unit, how many exist, and where its states begin in the carry."""

    number: int
    unit: int
    valid: int
    states: Any


def output_blocks(unit_blocks):
    """Return the unit blocks from an output to the next: odd, for then those of a tile are in many sets of a cache."""
    return unit_blocks | 1


def memory_of(sizes, own_unit_blocks, sequences):
    """Return how many rows of numbers, and how many offsets, a thread needs that owns so many blocks of units."""
    planes = sizes.gates + sizes.states + 1 + sizes.kept
    return planes * MOST_ROWS + PROJECTED_ROWS * own_unit_blocks * sizes.gates, 4 * PROJECTED_ROWS + MOST_ROWS


@cpu_inlined
def _layer_of(task, last, keep, non_temporal):
    hidden = task.initial.shape[2]
    return _Layer(
        hidden, pointer(task.x, 0), task.x.shape[1], pointer(task.initial, 0), pointer(last, 0),
        task.initial.shape[1] * hidden, task.given, pointer(task.y, task.column), task.y.shape[1],
        pointer(task.kept, 0), task.kept.shape[1], keep, non_temporal,
    )  # fmt: skip


@cpu_inlined
def _units_of(share, sizes, layer):
    """Return the units of a thread, and the panels of `weight_ih`, and those of `weight_hh` after them."""
    width = width_of(share.panels)
    count = (layer.hidden + width - 1) // width
    first, end = units_of(share, count)
    h_panels = offset(share.panels, count * sizes.gates * (layer.x_depth + 1) * width)
    output_step = (count | 1) * width  # as many blocks as `output_blocks` says
    return _Units(first, end, count, width, output_step, share.panels, h_panels)


@cpu_inlined
def _scratch_of(share, sizes, units):
    """Return the scratch of a thread, in its own memory."""
    plane, rows = MOST_ROWS * units.width, share.offsets
    x_rows, sums = offset(rows, PROJECTED_ROWS), offset(rows, 2 * PROJECTED_ROWS)
    no_offsets, h_rows = offset(rows, 3 * PROJECTED_ROWS), offset(rows, 4 * PROJECTED_ROWS)  # the first are zeros
    for r in range(PROJECTED_ROWS):
        sums[r] = r * units.width
    for r in range(MOST_ROWS):
        h_rows[r] = r * units.output_step
    results = (sizes.gates + sizes.states) * plane
    projected = offset(share.numbers, results + (1 + sizes.kept) * plane)
    return _Scratch(
        share.numbers, sizes.gates * plane, results, plane, projected, rows, x_rows, sums, no_offsets, h_rows
    )


@cpu_inlined
def _carry_of(group, units):
    plane = group.count * units.output_step
    states = offset(group.carry, 2 * plane)
    return _Carry(group.carry, units.output_step, plane, states, units.count * group.count * units.width)


@cpu_inlined
def _bring_initial_states(share, sizes, layer, units, group, carry):
    """Copy the initial states of a group, of the thread's units."""
    for rank in range(group.count):
        for unit_block in range(units.first, units.end):
            unit = unit_block * units.width
            valid = least(units.width, layer.hidden - unit)
            source = offset(layer.initial, share.order[group.first + rank] * layer.hidden + unit)
            copy_units(1, source, 0, offset(carry.outputs, rank * carry.output_step + unit), 0, valid)
            state = offset(carry.states, (unit_block * group.count + rank) * units.width)
            others = offset(source, layer.state_size)
            copy_units(sizes.states - 1, others, layer.state_size, state, carry.state_plane, valid)


@cpu_inlined
def _leave_last_states(share, sizes, layer, units, group, carry):
    """Write the last states of a group: of an empty sequence, its initial ones."""
    for rank in range(group.count):
        output = share.seq_lens[group.first + rank] % 2 * carry.output_plane + rank * carry.output_step
        for unit_block in range(units.first, units.end):
            unit = unit_block * units.width
            valid = least(units.width, layer.hidden - unit)
            target = offset(layer.last, share.order[group.first + rank] * layer.hidden + unit)
            copy_units(1, offset(carry.outputs, output + unit), 0, target, 0, valid)
            state = offset(carry.states, (unit_block * group.count + rank) * units.width)
            others = offset(target, layer.state_size)
            copy_units(sizes.states - 1, state, carry.state_plane, others, layer.state_size, valid)


@cpu_inlined
def _find_rows(share, layer, scratch, group, first, count, alive, t):
    """List the rows that are projected with step `t` of some sequences.

    Return how many, and the step that they end before: the next one, unless they are all the sequences alive.
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
    """Project the inputs of the listed rows, for the thread's units."""
    step = (layer.x_depth + 1) * units.width
    panels = offset(units.x_panels, units.first * sizes.gates * step)
    biases = Sums(offset(panels, layer.x_depth * units.width), scratch.no_offsets, step)
    multiply(code.multiply, (
        num_rows, (units.end - units.first) * sizes.gates, Rows(layer.x, scratch.x_rows),
        Panels(panels, step, layer.x_depth), biases,
        Sums(scratch.projected, scratch.sums, PROJECTED_ROWS * units.width), Prefetch(layer.x, scratch.no_offsets, 0),
    ))  # fmt: skip


@cpu_inlined
def _panel_of(layer, units, carry, group, number, first):
    """Return a block of units, for the sequences from a rank on."""
    unit = number * units.width
    states = offset(carry.states, (number * group.count + first) * units.width)
    return _Panel(number, unit, least(units.width, layer.hidden - unit), states)


@cpu_inlined
def _load_states(sizes, units, scratch, carry, block, panel):
    """Copy to the scratch what the equations read of the step before."""
    for r in range(block.count):
        target = offset(scratch.planes, scratch.previous + r * units.width)
        output = offset(block.before, r * carry.output_step + panel.unit)
        copy_units(sizes.reads_output, output, 0, target, 0, units.width)
        source, others = offset(panel.states, r * units.width), offset(target, scratch.plane)
        copy_units(sizes.states - 1, source, carry.state_plane, others, scratch.plane, units.width)


@cpu_inlined
def _multiply_panel(code, sizes, layer, units, scratch, block, panel, depth, way):
    """Sum the recurrent products of a block of units, one panel per gate, in the order in which panels pass."""
    step, nearest = (layer.hidden + 1) * units.width, 0 if way > 0 else sizes.gates - 1
    panels = offset(units.h_panels, (panel.number * sizes.gates + nearest) * step)
    biases = Sums(offset(panels, layer.hidden * units.width), scratch.no_offsets, way * step)
    products = Sums(offset(scratch.planes, nearest * scratch.plane), scratch.sums, way * scratch.plane)
    multiply(code.multiply, (
        block.count, sizes.gates, Rows(block.before, scratch.h_rows), Panels(panels, way * step, depth), biases,
        products, Prefetch(panels, scratch.no_offsets, 0),
    ))  # fmt: skip


@cpu_inlined
def _store_states(sizes, layer, units, scratch, carry, block, panel):
    """Copy the results of a block of units: outputs to `y` and for the next step, states for the next step."""
    for r in range(block.count):
        source = offset(scratch.planes, scratch.results + r * units.width)
        copy_units(1, source, 0, offset(layer.y, block.rows[r] * layer.y_stride + panel.unit), 0, panel.valid)
        output = offset(block.now, r * carry.output_step + panel.unit)
        copy_units(1, source, 0, output, 0, units.width)
        others, there = offset(source, (1 + sizes.slots) * scratch.plane), offset(panel.states, r * units.width)
        copy_units(sizes.states - 1, others, scratch.plane, there, carry.state_plane, units.width)


@cpu_inlined
def _keep_rows(sizes, layer, units, scratch, block, panel):
    """Copy what the gradient needs of a block of units, past the caches where they could not hold it until then."""
    for r in range(block.count):
        source = offset(scratch.planes, scratch.results + scratch.plane + r * units.width)
        target = offset(layer.kept, block.rows[r] * layer.kept_stride + panel.unit)
        if layer.non_temporal:
            store_units_non_temporal(sizes.kept, source, scratch.plane, target, layer.hidden, panel.valid)
        else:
            copy_units(sizes.kept, source, scratch.plane, target, layer.hidden, panel.valid)


@cpu_inlined
def _clear_pads(sizes, layer, block):
    """Clear what makes rows longer than what is kept, for a user may fetch them."""
    for r in range(block.count):
        for j in range(sizes.kept * layer.hidden, layer.kept_stride):
            layer.kept[block.rows[r] * layer.kept_stride + j] = 0


@engine_kernel
def forward(shard, num_shards, work, batch, code, sizes, task, last, keep, non_temporal):
    """Run the steps of the groups that a thread takes: write the outputs of a task, and what its rows keep.

    `last` gets the last states; `keep` says whether to keep what the gradient needs, `non_temporal` whether past the
    caches.
    """
    optimise_for_size()
    share = share_of(shard, num_shards, Work(*work), Batch(*batch))
    code, sizes, task = Code(*code), Sizes(*sizes), Task(*task)
    layer = _layer_of(task, last, keep, non_temporal)
    units = _units_of(share, sizes, layer)
    scratch = _scratch_of(share, sizes, units)
    weights = Direction(*task.weights)
    of_x = weight_of(weights.weight_ih, weights.bias_ih, units.x_panels)
    of_h = weight_of(weights.weight_hh, weights.bias_hh, units.h_panels)
    pack(code.pack, ((of_x, of_h), True, sizes.gates, blocks_to_pack(share, units.count)))
    number, rows, t, steps = -1, 0, 0, 0
    while True:
        number, t = next_group(share, number, rows, t, steps)
        if number < 0:
            return
        group = group_of(share, number)
        carry, steps = _carry_of(group, units), group.steps
        if t == 0:
            _bring_initial_states(share, sizes, layer, units, group, carry)
        alive, rows, projected_until, at_x = group.count, 0, 0, 0
        while t < steps and (rows < share.turn or projected_until > t):
            if share.parts > 1 and (layer.given or t > 0):  # a step needs all units of the one before
                wait(group.line, (t + layer.given) * share.parts)
            while share.seq_lens[group.first + alive - 1] <= t:
                alive -= 1
            depth, way = layer.hidden if layer.given or t > 0 else 0, 1 if t % 2 else -1
            before, now = t % 2 * carry.output_plane, (t + 1) % 2 * carry.output_plane
            for first in range(0, alive, share.block_rows):
                count = least(share.block_rows, alive - first)
                if projected_until <= t:
                    num_rows, until = _find_rows(share, layer, scratch, group, first, count, alive, t)
                    _project_rows(code, sizes, layer, units, scratch, num_rows)
                    projected_until, at_x = until if count == alive else projected_until, 0
                at = offset(carry.outputs, first * carry.output_step)
                block = _Block(count, offset(scratch.rows, at_x), offset(at, before), offset(at, now))
                # Panels pass up one step and down the next: the caches hold the last ones.
                for i in range(units.end - units.first):
                    number_of_panel = units.first + i if way > 0 else units.end - 1 - i
                    panel = _panel_of(layer, units, carry, group, number_of_panel, first)
                    _load_states(sizes, units, scratch, carry, block, panel)
                    _multiply_panel(code, sizes, layer, units, scratch, block, panel, depth, way)
                    plane = (panel.number - units.first) * sizes.gates * PROJECTED_ROWS
                    projected = offset(scratch.projected, (plane + at_x) * units.width)
                    step_forward(code.equations, (projected, scratch.planes, count * units.width))
                    _store_states(sizes, layer, units, scratch, carry, block, panel)
                    if layer.keep:
                        _keep_rows(sizes, layer, units, scratch, block, panel)
                if layer.keep and units.end == units.count:
                    _clear_pads(sizes, layer, block)
                at_x += count
            t, rows = t + 1, rows + alive
        if t == steps:
            _leave_last_states(share, sizes, layer, units, group, carry)
