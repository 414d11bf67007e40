"""The shrinking batch on CUDA, written once for any cell: plain kernels, two launches per phase of a step.

The same equations as on the CPU, over the same rows; one thread per sequence and unit.  The host walks the steps with
the plan's `batch_sizes`.
"""

import functools
import itertools
import math

import numpy as np

from varlen_rnn.kernels.sums import add_block, settled
from varlen_rnn.products.gemm import product
from varlen_rnn.products.packing import ALL_ROWS
from varlen_rnn.recurrence.backward_loop import SUMMED_STEPS
from varlen_rnn.recurrence.bounds import bounded, through_bound
from varlen_rnn.recurrence.phases import (
    NOTHING,
    PER_EPSILON,
    BackwardPhase,
    ForwardPhase,
    backward_table,
    carried_by,
    forward_table,
    kept_by,
    norms_of,
)
from varlen_rnn.recurrence.tuples import add, put, take
from varlen_rnn.rows.plan import ranks_of, step_rows
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.device import beside, empty, launch, zeros
from varlen_rnn.runtime.jit import cuda_kernel


@cuda_kernel
def load_states(initial, order, y, y_column, outputs, kept, num_slots, rows, first, out):
    """`out[s, r]` = state `s` of rank `r` after row `rows[r]`, or its initial state when `first`."""
    i = cuda.grid(1)
    hidden = out.shape[2]
    if i < rows.shape[0] * hidden:
        r, unit = i // hidden, i % hidden
        for s in range(out.shape[0]):
            if first:
                out[s, r, unit] = initial[s, order[r], unit]
            elif s:
                out[s, r, unit] = kept[rows[r], (num_slots + s - 1) * hidden + unit]
            elif unit < outputs:
                out[s, r, unit] = y[rows[r], y_column + unit]


@cuda_kernel
def recurrent_product(operand, weight, first_row, bias, alive, out):
    """`out[r] = operand[r] @ weight[first_row:]^T + bias` for the first `alive` ranks; one thread per element."""
    i = cuda.grid(1)
    columns = out.shape[1]
    if i < alive * columns:
        r, j = i // columns, i % columns
        total = bias[first_row + j]
        for k in range(weight.shape[1]):
            total += operand[r, k] * weight[first_row + j, k]
        out[r, j] = total


@cuda_kernel
def transposed_product(kept, column, rows, weight, weight_rows, first_row, depth, d_operand):
    """`d_operand[r] += kept[rows[r], column:] @ weight[first_row:][weight_rows]`; one thread per rank and unit."""
    i = cuda.grid(1)
    columns = weight.shape[1]
    if i < rows.shape[0] * columns:
        r, j = i // columns, i % columns
        total = d_operand[r, j]
        for k in range(depth):
            row = weight_rows[first_row + k] if weight_rows.shape[0] else k
            total += kept[rows[r], column + k] * weight[first_row + row, j]
        d_operand[r, j] = total


@cuda_kernel
def store_projection(products, rows, bound, state, y, y_column):
    """Write the products of a projection as outputs, and as the first state; one thread per rank and output."""
    i = cuda.grid(1)
    outputs = products.shape[1]
    if i < rows.shape[0] * outputs:
        r, j = i // outputs, i % outputs
        state[r, j] = y[rows[r], y_column + j] = bounded(products[r, j], bound)


@cuda_kernel
def keep_projection_grad(kept, column, rows, y, bound, d_y, y_column, outputs, d_state):
    """Save the gradient of outputs, and clear the gradient of the first state; one thread per rank and unit."""
    i = cuda.grid(1)
    hidden = d_state.shape[1]
    if i < rows.shape[0] * hidden:
        r, j = i // hidden, i % hidden
        if j < outputs:
            d = d_state[r, j] + d_y[rows[r], y_column + j]
            kept[rows[r], column + j] = through_bound(d, y[rows[r], y_column + j], bound)
        d_state[r, j] = 0


@cuda_kernel
def normalise(passed, first_pass, norms, rows, kept, column, scales):
    """Normalise the values that a phase passes on; save them and the inverse divisors; a thread per rank and value."""
    i = cuda.grid(1)
    number, hidden = kept.dtype.type, passed.shape[2]
    if i < rows.shape[0] * norms:
        r, n = i // norms, i % norms
        row, mean, variance = rows[r], number(0), number(0)
        for j in range(hidden):
            mean += passed[first_pass + n, r, j] / number(hidden)
        for j in range(hidden):
            apart = passed[first_pass + n, r, j] - mean
            variance += apart * apart / number(hidden)
        scale = number(1) / math.sqrt(variance + number(1) / number(PER_EPSILON))
        kept[row, scales + n] = scale
        for j in range(hidden):
            value = (passed[first_pass + n, r, j] - mean) * scale
            passed[first_pass + n, r, j] = value
            kept[row, column + n * hidden + j] = value


@cuda_kernel
def normalise_grad(kept, column, scales, rows, carried, first, norms):
    """Turn gradients of normalised values into gradients of passed values; one thread per rank and value."""
    i = cuda.grid(1)
    number, hidden = kept.dtype.type, carried.shape[2]
    if i < rows.shape[0] * norms:
        r, n = i // norms, i % norms
        row, mean, slope = rows[r], number(0), number(0)
        for j in range(hidden):
            mean += carried[first + n, r, j] / number(hidden)
            slope += carried[first + n, r, j] * kept[row, column + n * hidden + j] / number(hidden)
        for j in range(hidden):
            d = carried[first + n, r, j] - mean - kept[row, column + n * hidden + j] * slope
            carried[first + n, r, j] = kept[row, scales + n] * d


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


@cuda_kernel
def add_up(part, total, lost):
    """Add a block's sums of the gradients of vectors to the totals, and clear them; one thread per sum."""
    i = cuda.grid(1)
    if i < part.size:
        plane = part.shape[1] * part.shape[2]
        at = i // plane, i // part.shape[2] % part.shape[1], i % part.shape[2]
        total[at], lost[at] = add_block(total[at], lost[at], part[at])
        part[at] = 0


@cuda_kernel
def settle(total, lost, order, out):
    """`out[k, order[r]] = settled(total[k, r], lost[k, r])`; one thread per sum."""
    i = cuda.grid(1)
    if i < out.size:
        plane = out.shape[1] * out.shape[2]
        k, r, unit = i // plane, i // out.shape[2] % out.shape[1], i % out.shape[2]
        out[k, order[r], unit] = settled(total[k, r, unit], lost[k, r, unit])


@functools.cache
def forward_step_of(cell, number):
    """Return the kernel of a phase of a step of `cell`; one thread per rank of `rows` and unit."""
    phase, num_states, num_slots = cell.phases[number], len(cell.states), len(cell.slots)
    before, step = sum(earlier.passes for earlier in cell.phases[:number]), phase.step
    num_rows, take_rows = len(cell.row_inputs), take(len(cell.row_inputs))
    take_x, take_products, take_states = take(len(cell.x_gates)), take(phase.gates), take(num_states)
    take_passed, take_vectors = take(before), take(len(cell.vectors))
    first_slot, end = phase.kept
    put_slots, put_passes = put(end - first_slot), put(phase.passes)
    put_others = put(num_states - 1 if number == len(cell.phases) - 1 else 0)

    @cuda_kernel
    def forward_step(projected, given, rows, products, carried, vectors, kept, into, to_rows, column):
        """Write the first result to `into[r]` and to `to_rows[rows[r], column:]`; `carried`: states, passed values."""
        i = cuda.grid(1)
        hidden = carried.shape[2]
        if i < rows.shape[0] * hidden:
            r, unit = i // hidden, i % hidden
            row = rows[r]
            x, h = take_x(projected[row], unit, hidden), take_products(products[r], unit, hidden)
            prev, earlier = take_states(carried[:, r, unit], 0, 1), take_passed(carried[:, r, unit], num_states, 1)
            others = take_vectors(vectors[:, unit], 0, 1) + take_rows(given[row if num_rows else 0], unit, hidden)
            first, new, slots, later = step(x, h, prev, earlier, others)
            put_others(carried[:, r, unit], 1, 1, new)
            put_others(kept[row], num_slots * hidden + unit, hidden, new)
            put_slots(kept[row], first_slot * hidden + unit, hidden, slots)
            put_passes(carried[:, r, unit], num_states + before, 1, later)
            into[r, unit] = first
            to_rows[row, column + unit] = first

    return forward_step


@functools.cache
def backward_step_of(cell, number):
    """Return the kernel of the gradient of a phase of a step; one thread per rank of `rows` and unit."""
    phase, num_states, num_slots = cell.phases[number], len(cell.states), len(cell.slots)
    num_carried, step_grad, num_operands = carried_by(cell), phase.step_grad, cell.num_kept - num_slots - num_states + 1
    num_rows, take_rows = len(cell.row_inputs), take(len(cell.row_inputs))
    take_slots, take_states, take_others = take(num_slots), take(num_states), take(num_states - 1)
    take_operands, take_carried, take_vectors = take(num_operands), take(num_carried), take(len(cell.vectors))
    first_slot, end = phase.slots
    put_slots, put_carried = put(end - first_slot), put(num_carried)
    first_vector, add_vectors = phase.vectors[0], add(phase.vectors[1] - phase.vectors[0])

    @cuda_kernel
    def backward_step(kept, given, rows, previous, vectors, d_y, y_column, d_others, carried, d_vectors):
        """Replace slots and `carried` gradients; `d_y` and `d_others` have no rows if they do not reach this phase."""
        i = cuda.grid(1)
        hidden = carried.shape[2]
        if i < rows.shape[0] * hidden:
            r, unit = i // hidden, i % hidden
            row = rows[r]
            if d_y.shape[0]:
                carried[0, r, unit] += d_y[row, y_column + unit]
            for s in range(1, num_states if d_others.shape[0] else 0):
                carried[s, r, unit] += d_others[row, (s - 1) * hidden + unit]
            slots = take_slots(kept[row], unit, hidden)
            states = slots[:1] + take_others(kept[row], num_slots * hidden + unit, hidden)
            operands = take_operands(kept[row], (num_slots + num_states - 1) * hidden + unit, hidden)
            prev, arriving = take_states(previous[:, r, unit], 0, 1), take_carried(carried[:, r, unit], 0, 1)
            others = take_vectors(vectors[:, unit], 0, 1) + take_rows(given[row if num_rows else 0], unit, hidden)
            d_slots, leaving, d_v = step_grad(slots, prev, states, operands, arriving, others)
            put_slots(kept[row], first_slot * hidden + unit, hidden, d_slots)
            put_carried(carried[:, r, unit], 0, 1, leaving)
            add_vectors(d_vectors[:, r, unit], first_vector, 1, d_v)

    return backward_step


def _rows_by_step(plan, reverse, like):
    """Return, for each step, the rows of the sequences that have not ended, as views of one array on the device."""
    rows, ends = beside(step_rows(plan, reverse), like), np.cumsum(plan.batch_sizes).tolist()
    return [rows[begin:end] for begin, end in itertools.pairwise([0, *ends])]


def _phases(cell, shape, table_of, kind):
    """Return a record for each phase, read from the table that the CPU loops use; a projection comes last."""
    # Here no code has an address, but an address of 0 marks a projection, so phases get numbers from 1.
    table, _ = table_of(cell, shape, 1, range(1, 1 + len(cell.phases)))
    return [kind(*map(int, row)) for row in table]


def _norm_places(cell, shape, phase):
    """Return where a saved row holds the values normalised after a phase, and where their inverse divisors."""
    column = (cell.num_kept - norms_of(cell) + phase.first_norm) * shape.hidden
    return column, kept_by(cell, shape.projects) * shape.hidden + phase.first_norm


def _given(weights, like, hidden):
    """Return the vectors of a cell and the row inputs that are not projected; empty arrays if there are none."""
    vectors = zeros((0, hidden), like) if weights.vectors is None else weights.vectors
    return vectors, zeros((1, 0), like) if weights.rows is None else weights.rows


def kept_of_rows(x, columns):
    """Twin of `recurrence.cpu.kept_of_rows`."""
    return empty((x.shape[0], columns), x)


def forward(cell, task, shape, last, plan, reverse, keep):
    """Twin of `recurrence.cpu.forward`; it saves columns for the gradient even without `keep`."""
    x, weights, y, kept = task.x, task.weights, task.y, task.kept
    count, order = plan.num_sequences, beside(ranks_of(plan)[2], y)
    hidden, (vectors, of_rows) = shape.hidden, _given(weights, y, shape.hidden)
    projected = empty((x.shape[0], weights.weight_ih.shape[0]), y)
    product(x, weights.weight_ih, projected, transposed=True, bias=weights.bias_ih)
    phases = _phases(cell, shape, forward_table, ForwardPhase)
    products = [zeros((count, phase.gates * phase.units), y) for phase in phases]
    operands = [zeros((count, hidden), y) for _ in phases]
    nowhere = zeros((x.shape[0] if any(p.keeps == NOTHING for p in phases) else 0, hidden), y)
    num_states = len(cell.states)
    carried = zeros((num_states + sum(p.passes for p in cell.phases), count, hidden), y)
    state = carried[:num_states]
    launch(permute_states, state.size, task.initial, order, False, state)
    for rows in _rows_by_step(plan, reverse, y):
        alive, operand = len(rows), state[0]
        for number, (phase, of_phase) in enumerate(zip(phases, products, strict=True)):
            weight, bias = weights.weight_hh, weights.bias_hh
            if not phase.equations:
                weight, bias = weights.weight_hr, zeros(shape.outputs, y)
            given = operands[number] if phase.keeps >= 0 else state[0]
            arguments = operand, weight, phase.first_row, bias, alive, of_phase
            launch(recurrent_product, alive * of_phase.shape[1], *arguments)
            if phase.equations:
                there = (kept, phase.keeps * hidden) if phase.keeps >= 0 else (y, task.column)
                there = (operands[number], nowhere, 0) if phase.keeps == NOTHING else (given, *there)
                arguments = projected, of_rows, rows, of_phase, carried, vectors, kept, *there
                launch(forward_step_of(cell, number), alive * hidden, *arguments)
                if phase.norms:
                    arguments = carried, num_states + phase.first_pass, phase.norms, rows, kept
                    launch(normalise, alive * phase.norms, *arguments, *_norm_places(cell, shape, phase))
            else:
                bound = y.dtype.type(task.bound)
                launch(store_projection, alive * shape.outputs, of_phase, rows, bound, state[0], y, task.column)
            operand = given
    launch(permute_states, state.size, state, order, True, last)


def backward(cell, task, shape, weight_rows, gradients, plan, reverse):
    """Twin of `recurrence.cpu.backward`."""
    y, weights, kept, (d_y, d_others, d_last, d_initial, d_vectors) = task.y, task.weights, task.kept, gradients
    order = beside(ranks_of(plan)[2], y)
    hidden, (vectors, of_rows) = shape.hidden, _given(weights, y, shape.hidden)
    weight_rows, none = beside(weight_rows, y), beside(ALL_ROWS, y)
    nothing = zeros((0, 0), y)
    carried = zeros((carried_by(cell), plan.num_sequences, hidden), y)
    previous, num_states = zeros(task.initial.shape, y), len(cell.states)
    launch(permute_states, previous.size, d_last, order, False, previous)
    carried[:num_states].copy_to_device(previous)
    phases = _phases(cell, shape, backward_table, BackwardPhase)
    sums, total, lost = (zeros(d_vectors.shape, y) for _ in range(3))
    by_step = _rows_by_step(plan, reverse, y)
    for t, rows in reversed(list(enumerate(by_step))):
        alive = len(rows)
        before = by_step[t - 1][:alive] if t else rows
        states = task.initial, order, y, task.column, shape.outputs, kept, len(cell.slots)
        launch(load_states, alive * hidden, *states, before, t == 0, previous)
        for number, phase in reversed(list(enumerate(phases))):
            column, weight, perm = phase.h_slot * hidden, weights.weight_hh, weight_rows
            if phase.norms:
                places = *_norm_places(cell, shape, phase), rows
                launch(normalise_grad, alive * phase.norms, kept, *places, carried, num_states + 1, phase.norms)
            if phase.equations:
                of_others = d_others if phase.of_states and d_others is not None else nothing
                arriving = d_y if phase.of_outputs else nothing, task.column, of_others
                arguments = kept, of_rows, rows, previous, vectors, *arriving, carried, sums
                launch(backward_step_of(cell, number), alive * hidden, *arguments)
            else:
                weight, perm = weights.weight_hr, none
                arguments = kept, column, rows, y, y.dtype.type(task.bound), d_y, task.column, shape.outputs, carried[0]
                launch(keep_projection_grad, alive * hidden, *arguments)
            target = carried[phase.target]
            operands = kept, column, rows, weight, perm, phase.first_row, phase.depth
            launch(transposed_product, alive * weight.shape[1], *operands, target)
        if t % SUMMED_STEPS == 0:
            launch(add_up, sums.size, sums, total, lost)
    d_states = zeros(d_initial.shape, y)
    d_states.copy_to_device(carried[:num_states])
    launch(permute_states, d_initial.size, d_states, order, True, d_initial)
    launch(settle, d_vectors.size, total, lost, order, d_vectors)
