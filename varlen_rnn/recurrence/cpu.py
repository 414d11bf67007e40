"""The shrinking batch on the CPU, written once for any cell.

A shard owns every `num_shards`-th sequence of the plan, from the first step to the last, so shards shrink alike and
never wait for each other.  Rows stay where they are: the product of a step reads the states of the step before
through the offsets of their rows.  The gates of six sequences and one panel of units are computed into a scratch that
stays in the first-level cache, and the cell's equations run on it right there.

A scratch row is a few runs of `width` numbers at offsets known to the compiler: projected inputs, products, previous
states, results.  Copying rows in and out of it costs little, and lets the equations vectorise without a doubt about
aliasing.
"""

import functools

import numpy as np

from varlen_rnn.jit import cpu_inlined, cpu_kernel
from varlen_rnn.kernels.gemm import pack_columns, packed
from varlen_rnn.kernels.tile import TILE_ROWS, add_run, copy_run, panel_width, rows_of_tile, tile
from varlen_rnn.recurrence.tuples import put, take
from varlen_rnn.threads import for_each_shard


@cpu_kernel
def copy_row(source, source_start, target, target_start, count):
    """Copy `count` neighbours from one flat array to another."""
    here, there = source[source_start : source_start + count], target[target_start : target_start + count]
    for j in range(count):
        there[j] = here[j]


@cpu_inlined
def row_of_step(start, length, t, reverse):
    """Return the row of step `t` of a sequence, which runs backwards when `reverse`."""
    return start + length - 1 - t if reverse else start + t


@functools.cache
def forward_kernel(cell, width):
    """Return the forward loop of `cell` for panels of `width` units."""
    num_gates, num_states, num_slots = len(cell.gates), len(cell.states), len(cell.slots)
    x_slot, step = cell.x_slot, cell.step
    take_gates, take_states = take(num_gates), take(num_states)
    put_states, put_slots = put(num_states), put(num_slots)
    products, previous = num_gates * width, 2 * num_gates * width
    new = previous + num_states * width
    kept = new + num_states * width
    row_size = kept + num_slots * width

    @cpu_inlined
    def equations(scratch):
        for j in range(width):
            x = take_gates(scratch, j, width)
            h = take_gates(scratch, j + products, width)
            states, slots = step(x, h, take_states(scratch, j + previous, width))
            put_states(scratch, j + new, width, states)
            put_slots(scratch, j + kept, width, slots)

    @cpu_kernel
    def forward(
        shard, num_shards, slots, y, y_column, states, panels, bias, initial, given, last, starts, seq_lens, order,
        reverse, keep,
    ):  # fmt: skip
        hidden = bias.shape[0] // num_gates
        num_sequences = (len(starts) - shard + num_shards - 1) // num_shards
        if num_sequences <= 0:
            return
        y_stride, slots_stride, num_rows = y.shape[1], slots.shape[1], slots.shape[0]
        y, slots, states, initial, last = y.ravel(), slots.ravel(), states.ravel(), initial.ravel(), last.ravel()
        plane = len(starts) * hidden  # of one state in `initial` and `last`
        carry = np.empty(num_states * num_sequences * hidden, y.dtype)  # states other than the output, by rank
        carry_plane = num_sequences * hidden
        scratch = np.zeros(TILE_ROWS * row_size, y.dtype)
        rows = np.empty(num_sequences, np.int64)
        before = np.empty(num_sequences, np.int64)  # offsets of the states h that enter the product
        for r in range(num_sequences):
            for s in range(num_states):
                at = s * carry_plane + r * hidden
                copy_row(initial, s * plane + order[shard + r * num_shards] * hidden, carry, at, hidden)
        alive = num_sequences
        for t in range(seq_lens[shard]):
            while seq_lens[shard + (alive - 1) * num_shards] <= t:
                alive -= 1
            source = y if t > 0 else initial
            for r in range(alive):
                rank = shard + r * num_shards
                rows[r] = row_of_step(starts[rank], seq_lens[rank], t, reverse)
                before[r] = order[rank] * hidden
                if t > 0:
                    before[r] = row_of_step(starts[rank], seq_lens[rank], t - 1, reverse) * y_stride + y_column
            for unit_block in range(panels.shape[0]):
                unit = unit_block * width
                valid = min(width, hidden - unit)
                r0 = 0
                while r0 < alive:
                    m = rows_of_tile(alive - r0)
                    for r in range(m):
                        base, row = r * row_size, rows[r0 + r]
                        for g in range(num_gates):
                            at = row * slots_stride + (x_slot + g) * hidden + unit
                            copy_run(slots, at, scratch, base + g * width, valid, width)
                            copy_run(bias, g * hidden + unit, scratch, base + products + g * width, valid, width)
                        copy_run(source, before[r0 + r] + unit, scratch, base + previous, valid, width)
                        for s in range(1, num_states):
                            at = s * carry_plane + (r0 + r) * hidden + unit
                            copy_run(carry, at, scratch, base + previous + s * width, valid, width)
                    if t > 0 or given:
                        for g in range(num_gates):
                            panel = (unit_block * num_gates + g) * hidden * width
                            at = products + g * width
                            tile(m, source, before, r0, 1, panels, panel, hidden, scratch, at, row_size, True)
                    for r in range(m):
                        base, row = r * row_size, rows[r0 + r]
                        equations(scratch[base : base + row_size])
                        copy_run(scratch, base + new, y, row * y_stride + y_column + unit, valid, width)
                        for s in range(1, num_states):
                            at = s * carry_plane + (r0 + r) * hidden + unit
                            copy_run(scratch, base + new + s * width, carry, at, valid, width)
                        if keep:
                            for s in range(1, num_states):
                                at = ((s - 1) * num_rows + row) * hidden + unit
                                copy_run(scratch, base + new + s * width, states, at, valid, width)
                            for k in range(num_slots):
                                at = row * slots_stride + k * hidden + unit
                                copy_run(scratch, base + kept + k * width, slots, at, valid, width)
                    r0 += m
        for r in range(num_sequences):
            rank = shard + r * num_shards
            at = order[rank] * hidden
            for s in range(1, num_states):
                copy_row(carry, s * carry_plane + r * hidden, last, s * plane + at, hidden)
            if seq_lens[rank] > 0:
                row = row_of_step(starts[rank], seq_lens[rank], seq_lens[rank] - 1, reverse)
                copy_row(y, row * y_stride + y_column, last, at, hidden)
            else:
                copy_row(initial, at, last, at, hidden)

    return forward


@functools.cache
def backward_kernel(cell, width):
    """Return the backward loop of `cell` for panels of `width` units."""
    num_gates, num_states, num_slots = len(cell.gates), len(cell.states), len(cell.slots)
    step_grad = cell.step_grad
    take_states, take_slots = take(num_states), take(num_slots)
    put_states, put_slots = put(num_states), put(num_slots)
    previous = num_slots * width
    new = previous + num_states * width
    d_new = new + num_states * width
    d_kept = d_new + num_states * width
    d_previous = d_kept + num_slots * width
    row_size = d_previous + num_states * width

    @cpu_inlined
    def equations(scratch):
        for j in range(width):
            kept = take_slots(scratch, j, width)
            prev = take_states(scratch, j + previous, width)
            states = take_states(scratch, j + new, width)
            d_slots, d_prev = step_grad(kept, prev, states, take_states(scratch, j + d_new, width))
            put_slots(scratch, j + d_kept, width, d_slots)
            put_states(scratch, j + d_previous, width, d_prev)

    @cpu_kernel
    def backward(
        shard, num_shards, slots, y, y_column, states, panels, initial, d_y, d_last, d_initial, starts, seq_lens,
        order, reverse,
    ):  # fmt: skip
        hidden = panels.shape[1] // num_gates
        num_sequences = (len(starts) - shard + num_shards - 1) // num_shards
        if num_sequences <= 0:
            return
        y_stride, slots_stride, num_rows = y.shape[1], slots.shape[1], slots.shape[0]
        y, slots, states, initial = y.ravel(), slots.ravel(), states.ravel(), initial.ravel()
        d_y, d_last, d_initial = d_y.ravel(), d_last.ravel(), d_initial.ravel()
        plane = len(starts) * hidden
        padded = panels.shape[0] * width  # a row of `d_carry`: whole panels, so that tiles write without an edge
        d_plane = num_sequences * padded
        d_carry = np.zeros(num_states * d_plane, y.dtype)
        scratch = np.zeros(TILE_ROWS * row_size, y.dtype)
        rows = np.empty(num_sequences, np.int64)
        gates = np.empty(num_sequences, np.int64)  # offsets of the gradients that enter the product
        for r in range(num_sequences):
            for s in range(num_states):
                at = s * plane + order[shard + r * num_shards] * hidden
                copy_row(d_last, at, d_carry, s * d_plane + r * padded, hidden)
        alive = 0
        for t in range(seq_lens[shard] - 1, -1, -1):
            while alive < num_sequences and seq_lens[shard + alive * num_shards] > t:
                alive += 1
            for r in range(alive):
                rank = shard + r * num_shards
                rows[r] = row_of_step(starts[rank], seq_lens[rank], t, reverse)
                gates[r] = rows[r] * slots_stride
            r0 = 0
            while r0 < alive:
                m = rows_of_tile(alive - r0)
                for unit_block in range(panels.shape[0]):
                    unit = unit_block * width
                    valid = min(width, hidden - unit)
                    for r in range(m):
                        rank = shard + (r0 + r) * num_shards
                        row, at_carry = rows[r0 + r], (r0 + r) * padded + unit
                        at_y = row * y_stride + y_column + unit
                        before = row_of_step(starts[rank], seq_lens[rank], t - 1, reverse)
                        for k in range(num_slots):
                            copy_run(slots, gates[r0 + r] + k * hidden + unit, scratch, k * width, valid, width)
                        copy_run(y, at_y, scratch, new, valid, width)
                        for s in range(num_states):
                            if t == 0:
                                at = s * plane + order[rank] * hidden + unit
                                copy_run(initial, at, scratch, previous + s * width, valid, width)
                            elif s == 0:
                                copy_run(y, before * y_stride + y_column + unit, scratch, previous, valid, width)
                            else:
                                at = ((s - 1) * num_rows + before) * hidden + unit
                                copy_run(states, at, scratch, previous + s * width, valid, width)
                            if s > 0:
                                at = ((s - 1) * num_rows + row) * hidden + unit
                                copy_run(states, at, scratch, new + s * width, valid, width)
                            copy_run(d_carry, s * d_plane + at_carry, scratch, d_new + s * width, valid, width)
                        add_run(d_y, at_y, scratch, d_new, valid, width)
                        equations(scratch[:row_size])
                        for k in range(num_slots):
                            copy_run(
                                scratch, d_kept + k * width, slots, gates[r0 + r] + k * hidden + unit, valid, width
                            )
                        for s in range(num_states):
                            copy_run(scratch, d_previous + s * width, d_carry, s * d_plane + at_carry, valid, width)
                for p in range(panels.shape[0]):
                    panel, at = p * panels.shape[1] * width, r0 * padded + p * width
                    tile(m, slots, gates, r0, 1, panels, panel, panels.shape[1], d_carry, at, padded, True)
                r0 += m
        for r in range(num_sequences):
            for s in range(num_states):
                at = s * plane + order[shard + r * num_shards] * hidden
                copy_row(d_carry, s * d_plane + r * padded, d_initial, at, hidden)

    return backward


def forward(cell, slots, y, y_column, states, direction, initial, given, last, plan, reverse, keep):
    """Run one direction of a layer over rows whose projected inputs stand in `slots`; see `recurrence.forward`."""
    hidden, width, num_gates = direction.weight_hh.shape[1], panel_width(y.dtype), len(cell.gates)
    panels = np.empty((-(-hidden // width), num_gates, hidden, width), y.dtype)
    for gate in range(num_gates):
        pack_columns(direction.weight_hh[gate * hidden : (gate + 1) * hidden], panels[:, gate])
    for_each_shard(
        forward_kernel(cell, width), slots, y, y_column, states, panels, direction.bias_hh, initial, given, last,
        plan.starts, plan.seq_lens, plan.sorted_indices, reverse, keep,
        work=len(slots) * direction.weight_hh.size, max_shards=plan.num_sequences,
    )  # fmt: skip


def backward(cell, slots, y, y_column, states, weight, initial, d_y, d_last, d_initial, plan, reverse):
    """Overwrite `slots` with the gradients of the gates; `weight` has its gates in the order of `cell.h_gates`."""
    for_each_shard(
        backward_kernel(cell, panel_width(y.dtype)), slots, y, y_column, states, packed(weight), initial, d_y, d_last,
        d_initial, plan.starts, plan.seq_lens, plan.sorted_indices, reverse,
        work=len(slots) * weight.size, max_shards=plan.num_sequences,
    )  # fmt: skip
