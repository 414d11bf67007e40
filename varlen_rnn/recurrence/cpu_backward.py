"""The backward loop of the shrinking batch on the CPU, for any cell.

A step runs the equations over all its sequences, which overwrites their slots with the gradients of the gates, and then
adds the products of those with the weights to the gradients of the states of the step before.
"""

import functools

from varlen_rnn.jit import cpu_inlined, cpu_kernel
from varlen_rnn.kernels.barrier import wait
from varlen_rnn.kernels.gemm import tiles
from varlen_rnn.kernels.tile import add_run, copy_run, pointer
from varlen_rnn.recurrence.sharing import BLOCK_ROWS, rank_of, row_of_step, share_of
from varlen_rnn.recurrence.tuples import put, take


def memory_of(cell, unit_blocks, sequences):
    """Return how many panels of numbers a shard needs: scratch, and the gradients of the states that it carries."""
    return BLOCK_ROWS * (2 * len(cell.slots) + 4 * len(cell.states)) + len(cell.states) * unit_blocks * sequences


def offsets_of(sequences):
    """Return how many offsets a shard needs."""
    return 3 * sequences


@functools.cache
def backward_kernel(cell, width):
    """Return the backward loop of `cell` for panels of `width` units."""
    num_states, num_slots = len(cell.states), len(cell.slots)
    step_grad, first_read, plane = cell.step_grad, 0 if cell.reads_output else 1, BLOCK_ROWS * width
    take_states, take_slots = take(num_states), take(num_slots)
    put_states, put_slots = put(num_states), put(num_slots)
    previous = num_slots * plane
    new = previous + num_states * plane
    d_new = new + num_states * plane
    d_kept = d_new + num_states * plane
    d_previous = d_kept + num_slots * plane
    size = d_previous + num_states * plane

    @cpu_inlined
    def load(
        scratch,
        r,
        slots,
        at_slot,
        hidden,
        d_y,
        at_y,
        states,
        at_state,
        state_plane,
        carry,
        at_carry,
        carry_plane,
        valid,
    ):
        for k in range(num_slots):
            copy_run(slots, at_slot + k * hidden, scratch, k * plane + r, valid, width)
        for s in range(1, num_states):
            copy_run(states, at_state + (s - 1) * state_plane, scratch, new + s * plane + r, valid, width)
        for s in range(num_states):
            copy_run(carry, at_carry + s * carry_plane, scratch, d_new + s * plane + r, width, width)
        add_run(d_y, at_y, scratch, d_new + r, valid, width)

    @cpu_inlined
    def load_previous(scratch, r, y, at_y, states, at_state, state_plane, valid):
        """Bring the states of the step before, from the outputs and the other states; or all from initial ones."""
        for s in range(first_read, num_states):
            if s == 0:
                copy_run(y, at_y, scratch, previous + r, valid, width)
            else:
                copy_run(states, at_state + (s - 1) * state_plane, scratch, previous + s * plane + r, valid, width)

    @cpu_inlined
    def equations(scratch, count):
        for j in range(count):
            prev, states = take_states(scratch, j + previous, plane), take_states(scratch, j + new, plane)
            kept, d_states = take_slots(scratch, j, plane), take_states(scratch, j + d_new, plane)
            d_slots, d_prev = step_grad(kept, prev, states, d_states)
            put_slots(scratch, j + d_kept, plane, d_slots)
            put_states(scratch, j + d_previous, plane, d_prev)

    @cpu_inlined
    def store(scratch, r, slots, at_slot, hidden, carry, at_carry, carry_plane, valid):
        for k in range(num_slots):
            copy_run(scratch, d_kept + k * plane + r, slots, at_slot + k * hidden, valid, width)
        for s in range(num_states):
            copy_run(scratch, d_previous + s * plane + r, carry, at_carry + s * carry_plane, width, width)

    @cpu_kernel
    def backward(
        shard, num_shards, work, batch, panels, slots, y, y_column, states, initial, d_y, d_last, d_initial
    ):  # fmt: skip
        hidden, depth = initial.shape[2], panels.shape[1]
        group, num_groups, num_sequences, first, end = share_of(
            shard, num_shards, work.parts, panels.shape[0], len(batch.starts)
        )
        if num_sequences <= 0:
            return
        own, y_stride, slots_stride = end - first, y.shape[1], slots.shape[1]
        state_plane, initial_plane = slots.shape[0] * hidden, len(batch.starts) * hidden
        y, slots, states, initial = y.ravel(), slots.ravel(), states.ravel(), initial.ravel()
        d_y, d_last, d_initial, panels = d_y.ravel(), d_last.ravel(), d_initial.ravel(), panels.ravel()

        scratch, carry = work.memory[shard, :size], work.memory[shard, size:]
        carry_plane = own * num_sequences * width  # of a state: [unit block][rank][unit]
        offsets = work.offsets[shard]
        rows, gates, sums = offsets, offsets[num_sequences:], offsets[2 * num_sequences :]
        for r in range(num_sequences):
            sums[r] = r * width
            for unit_block in range(first, end):
                unit, to = unit_block * width, ((unit_block - first) * num_sequences + r) * width
                at = batch.order[rank_of(group, num_groups, r)] * hidden + unit
                for s in range(num_states):
                    valid = min(width, hidden - unit)
                    copy_run(d_last, at + s * initial_plane, carry, to + s * carry_plane, valid, width)

        alive, max_steps = 0, batch.seq_lens[group]
        for t in range(max_steps - 1, -1, -1):
            while alive < num_sequences and batch.seq_lens[rank_of(group, num_groups, alive)] > t:
                alive += 1
            for r in range(alive):
                rows[r] = row_of_step(batch, rank_of(group, num_groups, r), t)
                gates[r] = rows[r] * slots_stride
            for r0 in range(0, alive, BLOCK_ROWS):
                n = min(BLOCK_ROWS, alive - r0)
                for unit_block in range(first, end):
                    unit = unit_block * width
                    valid = min(width, hidden - unit)
                    at_carry = ((unit_block - first) * num_sequences + r0) * width
                    for r in range(n):
                        rank, row = rank_of(group, num_groups, r0 + r), rows[r0 + r]
                        load(
                            scratch, r * width, slots, gates[r0 + r] + unit, hidden, d_y,
                            row * y_stride + y_column + unit, states, row * hidden + unit, state_plane,
                            carry, at_carry + r * width, carry_plane, valid,
                        )  # fmt: skip
                        if t > 0:
                            row = row_of_step(batch, rank, t - 1)
                            at_y, at_state = row * y_stride + y_column + unit, row * hidden + unit
                            load_previous(scratch, r * width, y, at_y, states, at_state, state_plane, valid)
                        else:
                            at = batch.order[rank] * hidden + unit
                            at_state = at + initial_plane
                            load_previous(scratch, r * width, initial, at, initial, at_state, initial_plane, valid)
                    equations(scratch, n * width)
                    for r in range(n):
                        at_slot, at = gates[r0 + r] + unit, at_carry + r * width
                        store(scratch, r * width, slots, at_slot, hidden, carry, at, carry_plane, valid)
            if work.parts > 1:
                wait(pointer(work.arrived, group * 8), (max_steps - t) * work.parts)
            here, step = pointer(carry, 0), num_sequences * width
            tiles(
                alive, pointer(slots, 0), pointer(gates, 0), pointer(panels, first * depth * width), own, depth,
                here, pointer(sums, 0), step, here, pointer(sums, 0), step,
            )  # fmt: skip

        for r in range(num_sequences):
            for unit_block in range(first, end):
                unit, here = unit_block * width, ((unit_block - first) * num_sequences + r) * width
                to = batch.order[rank_of(group, num_groups, r)] * hidden + unit
                for s in range(num_states):
                    valid = min(width, hidden - unit)
                    copy_run(carry, here + s * carry_plane, d_initial, to + s * initial_plane, valid, width)

    return backward
