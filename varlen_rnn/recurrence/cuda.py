"""The shrinking batch on CUDA, written once for any cell: plain kernels, two launches per step.

The same equations as on the CPU, over the same rows; one thread per sequence and unit.  The host walks the steps with
the plan's `batch_sizes`.
"""

import functools

from numba import cuda

from varlen_rnn.device import empty, launch, to_device, zeros
from varlen_rnn.jit import cuda_kernel
from varlen_rnn.products.gemm import product
from varlen_rnn.recurrence.tuples import put, take


@cuda_kernel
def load_states(initial, order, y, y_column, slots, num_slots, rows, first, out):
    """`out[s, r]` = state `s` of rank `r` after row `rows[r]`, or its initial state when `first`."""
    i = cuda.grid(1)
    hidden = out.shape[2]
    if i < rows.shape[0] * hidden:
        r, unit = i // hidden, i % hidden
        for s in range(out.shape[0]):
            if first:
                out[s, r, unit] = initial[s, order[r], unit]
            elif s == 0:
                out[s, r, unit] = y[rows[r], y_column + unit]
            else:
                out[s, r, unit] = slots[rows[r], (num_slots + s - 1) * hidden + unit]


@cuda_kernel
def recurrent_product(state, weight, bias, alive, out):
    """`out[r] = state[0, r] @ weight^T + bias` for the first `alive` ranks; one thread per element."""
    i = cuda.grid(1)
    columns = weight.shape[0]
    if i < alive * columns:
        r, j = i // columns, i % columns
        total = bias[j]
        for k in range(weight.shape[1]):
            total += state[0, r, k] * weight[j, k]
        out[r, j] = total


@cuda_kernel
def transposed_product(slots, rows, weight, weight_rows, d_state):
    """`d_state[0, r] += slots[rows[r], :gates] @ weight[weight_rows]`; one thread per rank of `rows` and unit."""
    i = cuda.grid(1)
    hidden = weight.shape[1]
    if i < rows.shape[0] * hidden:
        r, j = i // hidden, i % hidden
        total = d_state[0, r, j]
        for k in range(weight.shape[0]):
            total += slots[rows[r], k] * weight[weight_rows[k] if weight_rows.shape[0] else k, j]
        d_state[0, r, j] = total


@cuda_kernel
def permute_states(source, order, to_caller, out):
    """`out[s, order[r]] = source[s, r]` when `to_caller`, else `out[s, r] = source[s, order[r]]`."""
    i = cuda.grid(1)
    hidden = out.shape[2]
    if i < out.size:
        s, r, unit = i // (order.shape[0] * hidden), i // hidden % order.shape[0], i % hidden
        if to_caller:
            out[s, order[r], unit] = source[s, r, unit]
        else:
            out[s, r, unit] = source[s, order[r], unit]


@functools.cache
def step_kernels(cell):
    """Return the two kernels of one step of `cell`, forward and backward; one thread per rank of `rows` and unit."""
    num_gates, num_states, num_slots = len(cell.gates), len(cell.states), len(cell.slots)
    x_slot, step, step_grad = cell.x_slot, cell.step, cell.step_grad
    take_gates, take_states, take_slots = take(num_gates), take(num_states), take(num_slots)
    put_states, put_slots = put(num_states), put(num_slots)

    @cuda_kernel
    def forward_step(slots, rows, products, state, y, y_column):
        i = cuda.grid(1)
        hidden = state.shape[2]
        if i < rows.shape[0] * hidden:
            r, unit = i // hidden, i % hidden
            row = rows[r]
            x = take_gates(slots[row], x_slot * hidden + unit, hidden)
            h = take_gates(products[r], unit, hidden)
            new, kept = step(x, h, take_states(state[:, r, unit], 0, 1))
            put_states(state[:, r, unit], 0, 1, new)
            put_slots(slots[row], unit, hidden, kept)
            y[row, y_column + unit] = new[0]
            for s in range(1, num_states):
                slots[row, (num_slots + s - 1) * hidden + unit] = state[s, r, unit]

    @cuda_kernel
    def backward_step(slots, rows, previous, new, d_y, y_column, d_state):
        i = cuda.grid(1)
        hidden = d_state.shape[2]
        if i < rows.shape[0] * hidden:
            r, unit = i // hidden, i % hidden
            row = rows[r]
            d_state[0, r, unit] += d_y[row, y_column + unit]
            kept = take_slots(slots[row], unit, hidden)
            prev = take_states(previous[:, r, unit], 0, 1)
            states = take_states(new[:, r, unit], 0, 1)
            d_slots, d_prev = step_grad(kept, prev, states, take_states(d_state[:, r, unit], 0, 1))
            put_slots(slots[row], unit, hidden, d_slots)
            put_states(d_state[:, r, unit], 0, 1, d_prev)

    return forward_step, backward_step


def _rows_of_step(plan, t, reverse):
    alive = plan.batch_sizes[t]
    starts, steps = plan.starts[:alive], plan.seq_lens[:alive] - 1 - t if reverse else t
    return to_device(starts + steps)


def kept_of_rows(x, columns):
    """Twin of `recurrence.cpu.kept_of_rows`."""
    return empty((x.shape[0], columns), x)


def forward(cell, task, last, plan, reverse, keep):
    """Twin of `recurrence.cpu.forward`; it always keeps what the gradient needs."""
    x, direction, initial, _, y, y_column, slots = task
    weight = direction.weight_hh
    column = cell.x_slot * weight.shape[1]
    product(x, direction.weight_ih, slots, transposed=True, bias=direction.bias_ih, c_column=column)
    hidden, order = weight.shape[1], to_device(plan.sorted_indices)
    state, products = zeros(initial.shape, y), zeros((plan.num_sequences, weight.shape[0]), y)
    launch(permute_states, state.size, initial, order, False, state)
    forward_step, _ = step_kernels(cell)
    for t, alive in enumerate(plan.batch_sizes):
        rows = _rows_of_step(plan, t, reverse)
        launch(recurrent_product, alive * weight.shape[0], state, weight, direction.bias_hh, alive, products)
        launch(forward_step, alive * hidden, slots, rows, products, state, y, y_column)
    launch(permute_states, state.size, state, order, True, last)


def backward(cell, task, weight_rows, d_y, d_last, d_initial, plan, reverse):
    """Twin of `recurrence.cpu.backward`."""
    initial, y, y_column, slots, weight = task.initial, task.y, task.column, task.kept, task.weights.weight_hh
    hidden, order, weight_rows = weight.shape[1], to_device(plan.sorted_indices), to_device(weight_rows)
    d_state, previous, new = zeros(initial.shape, y), zeros(initial.shape, y), zeros(initial.shape, y)
    launch(permute_states, d_state.size, d_last, order, False, d_state)
    _, backward_step = step_kernels(cell)
    for t in reversed(range(plan.max_seq_len)):
        alive = plan.batch_sizes[t]
        rows = _rows_of_step(plan, t, reverse)
        before = _rows_of_step(plan, t - 1, reverse) if t else rows
        states = initial, order, y, y_column, slots, len(cell.slots)
        launch(load_states, alive * hidden, *states, before[:alive], t == 0, previous)
        launch(load_states, alive * hidden, *states, rows, False, new)
        launch(backward_step, alive * hidden, slots, rows, previous, new, d_y, y_column, d_state)
        launch(transposed_product, alive * hidden, slots, rows, weight, weight_rows, d_state)
    launch(permute_states, d_state.size, d_state, order, True, d_initial)
