"""The forward loop of the shrinking batch on the CPU, for any cell.

A block is up to `work.block_rows` sequences at one step, or, where no more are alive, rows of several steps.  Its rows
are projected at once, so that the weights of the inputs pass once a block.  Then, for each step and panel of units, the
recurrent products are summed into the scratch, and the cell's equations run on it.

The scratch is a few planes of numbers [row][unit], a quantity each, at offsets known to the compiler: the equations
are one loop over rows and units, and vectorise.  Projected inputs are planes, too, one a panel of units and gate, where
the rows of a step are neighbours.
"""

import functools

from varlen_rnn.jit import cpu_inlined, cpu_kernel
from varlen_rnn.products.gemm import pack_columns, tiles
from varlen_rnn.products.sync import wait
from varlen_rnn.products.tile import copy_run, panel_width, pointer, stream_panel, vectorise_widely
from varlen_rnn.recurrence.direction import Direction
from varlen_rnn.recurrence.sharing import (
    MOST_ROWS,
    Batch,
    Loop,
    Work,
    carry_of,
    counter_of,
    next_group,
    next_to_pack,
    numbers_of,
    offsets_of,
    row_of_step,
    sequences_of,
    steps_of,
    take_group,
    units_of,
)
from varlen_rnn.recurrence.tuples import put, take

_PROJECTED = 2 * MOST_ROWS  # rows whose inputs are projected at once, of as many steps as it takes


@cpu_inlined
def panels_of(weights, num_gates, panels):
    """Return the panels of `weight_ih`, and those of `weight_hh` after them."""
    gates, depth = weights.weight_ih.shape
    width = panels.shape[1]
    x_rows = (gates // num_gates + width - 1) // width * num_gates * (depth + 1)
    return panels[:x_rows], panels[x_rows:]


@cpu_inlined
def pack(weights, num_gates, first, end, panels):
    """Pack the weights and biases of the unit blocks from `first` to `end`."""
    first, end = first * num_gates, end * num_gates
    x_panels, h_panels = panels_of(weights, num_gates, panels)
    pack_columns(weights.weight_ih, weights.bias_ih, num_gates, first, end, x_panels)
    pack_columns(weights.weight_hh, weights.bias_hh, num_gates, first, end, h_panels)


@cpu_inlined
def rows_of_block(batch, lowest, steps, r0, n, alive, t, stride, offsets):
    """Fill in the offsets of the block that begins with step `t` of `n` sequences.

    Return its rows, and the step that it ends before: the next one, unless all `alive` sequences are in the block.
    """
    count, end, has_all = 0, t, n == alive
    while True:
        for r in range(n):
            offsets[count + r] = row_of_step(batch, lowest + r0 + r, end) * stride
        count += n
        end += 1
        if not has_all or end == steps:
            return count, end
        while batch.seq_lens[lowest + n - 1] <= end:
            n -= 1
        if count + n > _PROJECTED:
            return count, end


@cpu_inlined
def blocks_of_output(unit_blocks):
    """Return the unit blocks from an output to the next: odd, for then those of a tile are in many sets of a cache."""
    return unit_blocks | 1


@functools.cache
def forward_loop(cell, dtype):
    """Return the forward loop of `cell` for rows of a data type."""
    num_gates, num_states, num_slots = len(cell.gates), len(cell.states), len(cell.slots)
    width = panel_width(dtype)
    num_kept, step, reads_output, plane = cell.num_kept, cell.step, cell.reads_output, MOST_ROWS * width
    take_gates, take_states = take(num_gates), take(num_states)
    put_states, put_slots = put(num_states), put(num_slots)
    previous = num_gates * plane  # after the products
    new = previous + num_states * plane
    kept = new + num_states * plane
    size = kept + num_slots * plane
    x_plane = _PROJECTED * width

    def memory_of(unit_blocks, own_unit_blocks, sequences):  # it carries states; the scratch and projected inputs
        rows = size // width + _PROJECTED * own_unit_blocks * num_gates
        return 2 * blocks_of_output(unit_blocks) + (num_states - 1) * unit_blocks, rows, 3 * _PROJECTED + MOST_ROWS

    @cpu_inlined
    def load(scratch, r, outputs, at_output, carry, at_carry, carry_plane):
        if reads_output:
            copy_run(outputs, at_output, scratch, previous + r, width, width)
        for s in range(1, num_states):
            copy_run(carry, at_carry + (s - 1) * carry_plane, scratch, previous + s * plane + r, width, width)

    @cpu_inlined
    def equations(projected, scratch, count):
        vectorise_widely()
        for j in range(count):
            x, h = take_gates(projected, j, x_plane), take_gates(scratch, j, plane)
            states, slots = step(x, h, take_states(scratch, j + previous, plane))
            put_states(scratch, j + new, plane, states)
            put_slots(scratch, j + kept, plane, slots)

    @cpu_inlined
    def store(scratch, r, y, at_y, valid, outputs, at_output, carry, at_carry, carry_plane):
        copy_run(scratch, new + r, y, at_y, valid, width)
        copy_run(scratch, new + r, outputs, at_output, width, width)
        for s in range(1, num_states):
            copy_run(scratch, new + s * plane + r, carry, at_carry + (s - 1) * carry_plane, width, width)

    @cpu_inlined
    def stream_row(scratch, r, slots, at_slot, hidden):
        for k in range(num_slots):
            stream_panel(scratch, kept + k * plane + r, slots, at_slot + k * hidden)
        for s in range(1, num_states):
            stream_panel(scratch, new + s * plane + r, slots, at_slot + (num_slots + s - 1) * hidden)

    @cpu_inlined
    def keep_row(scratch, r, slots, at_slot, hidden, valid):
        for k in range(num_slots):
            copy_run(scratch, kept + k * plane + r, slots, at_slot + k * hidden, valid, width)
        for s in range(1, num_states):
            copy_run(scratch, new + s * plane + r, slots, at_slot + (num_slots + s - 1) * hidden, valid, width)

    @cpu_inlined
    def begin(batch, lowest, highest, first, end, initial, initial_plane, hidden, outputs, stride, carry, carry_plane):
        """Bring the initial states of a group."""
        for rank in range(highest - lowest):
            for unit_block in range(first, end):
                unit, to = unit_block * width, (unit_block * (highest - lowest) + rank) * width
                valid, at = min(width, hidden - unit), batch.order[lowest + rank] * hidden + unit
                copy_run(initial, at, outputs, rank * stride + unit, valid, width)
                for s in range(1, num_states):
                    copy_run(initial, at + s * initial_plane, carry, to + (s - 1) * carry_plane, valid, width)

    @cpu_inlined
    def leave(batch, lowest, highest, first, end, outputs, stride, carry, carry_plane, last, last_plane, hidden):
        """Write the last states of a group: of an empty sequence, its initial ones."""
        for rank in range(highest - lowest):
            at_output = (batch.seq_lens[lowest + rank] % 2 * (highest - lowest) + rank) * stride
            for unit_block in range(first, end):
                unit, at = unit_block * width, (unit_block * (highest - lowest) + rank) * width
                valid, to = min(width, hidden - unit), batch.order[lowest + rank] * hidden + unit
                copy_run(outputs, at_output + unit, last, to, valid, width)
                for s in range(1, num_states):
                    copy_run(carry, at + (s - 1) * carry_plane, last, to + s * last_plane, valid, width)

    @cpu_kernel
    def forward(
        shard, num_shards, work, batch, weights, x, initial, given, y, y_column, slots, last, keep, stream
    ):  # fmt: skip
        work, batch, weights = Work(*work), Batch(*batch), Direction(*weights)
        hidden = initial.shape[2]
        unit_blocks = (hidden + width - 1) // width
        first, end = units_of(shard, work.parts, unit_blocks)
        panels = work.numbers[: work.panel_rows]
        to_pack, pack_until = next_to_pack(work, shard, unit_blocks, has_packed=False)
        while to_pack < pack_until:
            pack(weights, num_gates, to_pack, pack_until, panels)
            to_pack, pack_until = next_to_pack(work, shard, unit_blocks, has_packed=True)
        own, x_size, x_depth, y_stride = end - first, num_gates * x_plane, x.shape[1], y.shape[1]
        x_step, h_step, slots_stride = (x_depth + 1) * width, (hidden + 1) * width, slots.shape[1]
        x, y, slots = x.ravel(), y.ravel(), slots.ravel()
        initial, last, initial_plane = initial.ravel(), last.ravel(), len(batch.starts) * hidden
        x_panels, h_panels = panels_of(weights, num_gates, panels)
        x_panels, h_panels = x_panels.ravel(), h_panels.ravel()

        numbers = numbers_of(work, batch, shard, num_shards)
        scratch, projected = numbers[:size], numbers[size:]
        offsets = offsets_of(work, shard, num_shards)
        x_rows, sums = offsets, offsets[_PROJECTED:]
        no_offsets, h_rows = offsets[2 * _PROJECTED :], offsets[3 * _PROJECTED :]
        for r in range(_PROJECTED):
            sums[r] = r * width
        output_stride = blocks_of_output(unit_blocks) * width
        for r in range(MOST_ROWS):
            h_rows[r] = r * output_stride

        nothing = (pointer(x, 0), pointer(no_offsets, 0), 0)  # wanted but the next panel
        group, done = take_group(work, shard)
        while group >= 0:
            lowest, highest = sequences_of(work, batch, group)
            num_sequences, steps = highest - lowest, steps_of(batch, lowest, highest)
            memory = carry_of(work, lowest, highest)
            # Outputs of the step before and of this one, in turns: [steps behind them % 2][rank][unit].  Rows of `y`
            # are apart by what the caller's lengths make it, at worst all in one set of a cache.
            output_plane = num_sequences * output_stride
            outputs, carry = memory[: 2 * output_plane], memory[2 * output_plane :]
            carry_plane = unit_blocks * num_sequences * width  # of a state but the first: [unit block][rank][unit]
            if done == 0:
                begin(
                    batch, lowest, highest, first, end, initial, initial_plane, hidden, outputs, output_stride, carry,
                    carry_plane,
                )  # fmt: skip
                if work.parts > 1 and given:
                    wait(counter_of(work, group), work.parts)

            t, alive, rows, projected_until, at_step = done, num_sequences, 0, 0, 0
            while t < steps and (rows < work.turn or projected_until > t):
                while batch.seq_lens[lowest + alive - 1] <= t:
                    alive -= 1
                depth = hidden if given or t > 0 else 0
                at_before, at_now = t % 2 * output_plane, (t + 1) % 2 * output_plane
                for r0 in range(0, alive, work.block_rows):
                    n = min(work.block_rows, alive - r0)
                    before, now = at_before + r0 * output_stride, at_now + r0 * output_stride
                    if projected_until <= t:
                        count, until = rows_of_block(batch, lowest, steps, r0, n, alive, t, x_depth, x_rows)
                        tiles(
                            count, pointer(x, 0), pointer(x_rows, 0),
                            pointer(x_panels, first * num_gates * x_step), x_step, own * num_gates, x_depth,
                            pointer(x_panels, first * num_gates * x_step + x_depth * width), pointer(no_offsets, 0),
                            x_step, pointer(projected, 0), pointer(sums, 0), x_plane, nothing,
                        )  # fmt: skip
                        at_step = 0
                        if n == alive:
                            projected_until = until
                    # Panels pass up one step and down the next: the caches hold the last ones.
                    way, nearest = (1, 0) if t % 2 else (-1, num_gates - 1)
                    for i in range(own):
                        unit_block = first + i if way > 0 else end - 1 - i
                        unit = unit_block * width
                        valid = min(width, hidden - unit)
                        at_carry = (unit_block * num_sequences + r0) * width
                        at_x = (unit_block - first) * x_size + at_step * width
                        at_panel = (unit_block * num_gates + nearest) * h_step
                        for r in range(n):
                            at_output, here = before + h_rows[r] + unit, at_carry + r * width
                            load(scratch, r * width, outputs, at_output, carry, here, carry_plane)
                        tiles(
                            n, pointer(outputs, before), pointer(h_rows, 0),
                            pointer(h_panels, at_panel), way * h_step, num_gates, depth,
                            pointer(h_panels, at_panel + hidden * width), pointer(no_offsets, 0), way * h_step,
                            pointer(scratch, nearest * plane), pointer(sums, 0), way * plane, nothing,
                        )  # fmt: skip
                        equations(projected[at_x:], scratch, n * width)
                        for r in range(0 if stream else n):
                            row = row_of_step(batch, lowest + r0 + r, t)
                            at_y, here = row * y_stride + y_column + unit, at_carry + r * width
                            at_output = now + h_rows[r] + unit
                            store(scratch, r * width, y, at_y, valid, outputs, at_output, carry, here, carry_plane)
                            if keep:
                                keep_row(scratch, r * width, slots, row * slots_stride + unit, hidden, valid)
                        # A loop of its own: the compiler would merge stores of both kinds, and a line takes only one.
                        for r in range(n if stream else 0):
                            row = row_of_step(batch, lowest + r0 + r, t)
                            at_y, here = row * y_stride + y_column + unit, at_carry + r * width
                            at_output = now + h_rows[r] + unit
                            store(scratch, r * width, y, at_y, width, outputs, at_output, carry, here, carry_plane)
                            stream_row(scratch, r * width, slots, row * slots_stride + unit, hidden)
                    for r in range(n if keep and end == unit_blocks else 0):  # a user may fetch what is kept
                        at = row_of_step(batch, lowest + r0 + r, t) * slots_stride
                        slots[at + num_kept * hidden : at + slots_stride] = 0
                    at_step += n
                t, rows = t + 1, rows + alive
                if work.parts > 1:
                    wait(counter_of(work, group), (t + given) * work.parts)

            if t == steps:
                leave(
                    batch, lowest, highest, first, end, outputs, output_stride, carry, carry_plane, last,
                    initial_plane, hidden,
                )  # fmt: skip
            group, done = next_group(work, shard, group, rows, t, steps)

    return Loop(forward, memory_of, width)
