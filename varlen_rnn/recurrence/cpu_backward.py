"""The backward loop of the shrinking batch on the CPU, for any cell.

A step runs the equations over all its sequences, which overwrites their slots with the gradients of the gates, and then
adds the products of those with the weights to the gradients of the states of the step before.

The equations run on blocks of a few rows and several panels of units: what they read comes from main memory, which
gives neighbours of a row sooner than other rows.
"""

import functools

from varlen_rnn.jit import cpu_inlined, cpu_kernel
from varlen_rnn.memory import CACHE_LINE
from varlen_rnn.products.gemm import pack_rows, tiles
from varlen_rnn.products.sync import wait
from varlen_rnn.products.tile import (
    BLOCK_BYTES,
    FAR,
    add_units,
    copy_units,
    panel_width,
    pointer,
    prefetch_to_read,
    prefetch_to_write,
    vectorise_widely,
)
from varlen_rnn.recurrence.sharing import (
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

_ROWS = 6  # of a block


@cpu_inlined
def block_after(at_unit, r0, units, own_units, alive):
    """Return the unit and the first rank of the block after this one, and 1 if it is the next step's."""
    if at_unit + units < own_units:
        return at_unit + units, r0, 0
    return (0, r0 + _ROWS, 0) if r0 + _ROWS < alive else (0, 0, 1)


@functools.cache
def backward_loop(cell, dtype):
    """Return the backward loop of `cell` for rows of a data type."""
    num_states, num_slots, width = len(cell.states), len(cell.slots), panel_width(dtype)
    step_grad, reads_output = cell.step_grad, cell.reads_output
    block_units = BLOCK_BYTES // dtype.itemsize
    plane = _ROWS * block_units
    take_states, take_slots = take(num_states), take(num_slots)
    put_states, put_slots = put(num_states), put(num_slots)
    previous = num_slots * plane
    new = previous + num_states * plane
    d_new = new + num_states * plane
    d_kept, d_previous = 0, d_new  # in their place
    size = d_new + num_states * plane

    def memory_of(unit_blocks, own_unit_blocks, sequences):  # it carries the gradients of states
        return num_states * unit_blocks, size // width, 4 * sequences

    @cpu_inlined
    def load(scratch, r, slots, at_slot, hidden, d_y, at_y, carry, at_carry, sums, units):
        for k in range(num_slots):
            copy_units(slots, at_slot + k * hidden, scratch, k * plane + r, units, width)
        for s in range(1, num_states):
            copy_units(slots, at_slot + (num_slots + s - 1) * hidden, scratch, new + s * plane + r, units, width)
        for s in range(num_states):
            copy_units(carry, at_carry + s * sums, scratch, d_new + s * plane + r, units, width)
        add_units(d_y, at_y, scratch, d_new + r, units, width)

    @cpu_inlined
    def load_previous(scratch, r, y, at_y, states, at_state, state_plane, units):
        """Bring the states of the step before, from the outputs and the other states; or all from initial ones."""
        if reads_output:
            copy_units(y, at_y, scratch, previous + r, units, width)
        for s in range(1, num_states):
            copy_units(states, at_state + (s - 1) * state_plane, scratch, previous + s * plane + r, units, width)

    @cpu_inlined
    def ask(slots, at_slot, before, hidden, d_y, at_y, units):
        """Ask a block ahead for most of what `load` and `load_previous` read from main memory."""
        line = CACHE_LINE // slots.itemsize
        for j in range(0, units, line):
            for k in range(num_slots):
                prefetch_to_write(pointer(slots, at_slot + k * hidden + j))
            for s in range(1, num_states):
                prefetch_to_read(pointer(slots, before + (num_slots + s - 1) * hidden + j))
            prefetch_to_read(pointer(d_y, at_y + j))

    @cpu_inlined
    def equations(scratch, count):
        vectorise_widely()
        for j in range(count):
            prev, states = take_states(scratch, j + previous, plane), take_states(scratch, j + new, plane)
            kept, d_states = take_slots(scratch, j, plane), take_states(scratch, j + d_new, plane)
            d_slots, d_prev = step_grad(kept, prev, states, d_states)
            put_slots(scratch, j + d_kept, plane, d_slots)
            put_states(scratch, j + d_previous, plane, d_prev)

    @cpu_inlined
    def store(scratch, r, slots, at_slot, hidden, carry, at_carry, sums, units):
        for k in range(num_slots):
            copy_units(scratch, d_kept + k * plane + r, slots, at_slot + k * hidden, units, width)
        for s in range(num_states):
            copy_units(scratch, d_previous + s * plane + r, carry, at_carry + s * sums, units, width)

    @cpu_kernel
    def backward(
        shard, num_shards, work, batch, weight, weight_rows, slots, y, y_column, initial, d_y, d_last, d_initial
    ):  # fmt: skip
        work, batch = Work(*work), Batch(*batch)
        hidden, depth = initial.shape[2], weight.shape[0]
        unit_blocks = (hidden + width - 1) // width
        first, end = units_of(shard, work.parts, unit_blocks)
        panels = work.numbers[: work.panel_rows]
        to_pack, pack_until = next_to_pack(work, shard, unit_blocks, has_packed=False)
        while to_pack < pack_until:
            pack_rows(weight, weight.ravel()[:0], weight_rows, to_pack, pack_until, panels)
            to_pack, pack_until = next_to_pack(work, shard, unit_blocks, has_packed=True)
        first_unit, own_units = first * width, min(end * width, hidden) - first * width
        y_stride, slots_stride, carry_stride = y.shape[1], slots.shape[1], unit_blocks * width
        first_state = num_slots * hidden  # of what a row keeps
        initial_plane, panel_size = len(batch.starts) * hidden, (depth + 1) * width
        y, slots, initial = y.ravel(), slots.ravel(), initial.ravel()
        d_y, d_last, d_initial, panels = d_y.ravel(), d_last.ravel(), d_initial.ravel(), panels.ravel()

        scratch, offsets = numbers_of(work, batch, shard, num_shards), offsets_of(work, shard, num_shards)
        count = len(offsets) // 4
        rows, gates, carried = offsets[:count], offsets[count : 2 * count], offsets[2 * count : 3 * count]
        wanted, is_near = offsets[3 * count :], (end - first) * panel_size <= FAR
        for r in range(count):
            carried[r] = r * carry_stride + first_unit

        back = 1 if batch.reverse else -1  # from the row of a step to that of the step before
        group, done = take_group(work, shard)
        while group >= 0:
            lowest, highest = sequences_of(work, batch, group)
            num_sequences, steps = highest - lowest, steps_of(batch, lowest, highest)
            carry = carry_of(work, lowest, highest)
            sums = num_sequences * carry_stride  # of a state in `carry`: [rank][unit]
            for r in range(num_sequences if done == 0 else 0):
                at = batch.order[lowest + r] * hidden + first_unit
                for s in range(num_states):
                    copy_units(d_last, at + s * initial_plane, carry, carried[r] + s * sums, own_units, width)

            alive, rows_done, asked = 0, 0, 0
            while done < steps and rows_done < work.turn:
                done += 1
                t = steps - done
                while alive < num_sequences and batch.seq_lens[lowest + alive] > t:
                    alive += 1
                for r in range(alive):
                    rows[r] = row_of_step(batch, lowest + r, t)
                    gates[r] = rows[r] * slots_stride
                for r0 in range(0, alive, _ROWS):
                    n = min(_ROWS, alive - r0)
                    for at_unit in range(0, own_units, block_units):
                        unit, units = first_unit + at_unit, min(block_units, own_units - at_unit)
                        span = (units + width - 1) // width * width
                        next_unit, next_r0, next_step = block_after(at_unit, r0, block_units, own_units, alive)
                        for r in range(r0, r0 + n):
                            if next_r0 + r - r0 < alive:
                                row, ahead = rows[next_r0 + r - r0] + next_step * back, first_unit + next_unit
                                ask(
                                    slots, row * slots_stride + ahead, (row + back) * slots_stride + ahead, hidden,
                                    d_y, row * y_stride + y_column + ahead, block_units,
                                )  # fmt: skip
                            row, here = rows[r], (r - r0) * span
                            load(
                                scratch, here, slots, gates[r] + unit, hidden, d_y, row * y_stride + y_column + unit,
                                carry, carried[r] + at_unit, sums, units,
                            )  # fmt: skip
                            if t > 0:
                                row = row_of_step(batch, lowest + r, t - 1)
                                at_y, at_state = row * y_stride + y_column, row * slots_stride + first_state
                                load_previous(scratch, here, y, at_y + unit, slots, at_state + unit, hidden, units)
                            else:
                                at = batch.order[lowest + r] * hidden + unit
                                load_previous(
                                    scratch, here, initial, at, initial, at + initial_plane, initial_plane, units
                                )  # fmt: skip
                        equations(scratch, n * span)
                        for r in range(r0, r0 + n):
                            here, at_carry = (r - r0) * span, carried[r] + at_unit
                            store(scratch, here, slots, gates[r] + unit, hidden, carry, at_carry, sums, units)
                if work.parts > 1:
                    wait(counter_of(work, group), done * work.parts)
                # Where caches near the core hold the panels, tiles ask for the slots of two steps to come, neighbours
                # from the lower row on, of half of the sequences at each step.
                num_wanted = (alive + 1) // 2 if is_near else 0
                for i in range(num_wanted):
                    wanted[i] = (rows[(asked + i) % alive] + min(back, 2 * back)) * slots_stride
                asked = (asked + num_wanted) % alive
                way, nearest = (-1, end - 1) if t % 2 else (1, first)  # up one step and down the next
                at_sums, at_panels = pointer(carry, (nearest - first) * width), pointer(panels, nearest * panel_size)
                tiles(
                    alive, pointer(slots, 0), pointer(gates, 0), at_panels, way * panel_size, end - first, depth,
                    at_sums, pointer(carried, 0), way * width, at_sums, pointer(carried, 0), way * width,
                    (pointer(slots, 0), pointer(wanted, 0), num_wanted),
                )  # fmt: skip
                rows_done += alive

            for r in range(num_sequences if done == steps else 0):
                to = batch.order[lowest + r] * hidden + first_unit
                for s in range(num_states):
                    copy_units(carry, carried[r] + s * sums, d_initial, to + s * initial_plane, own_units, width)
            group, done = next_group(work, shard, group, rows_done, done, steps)

    return Loop(backward, memory_of, width)
