"""CUDA kernels of the recurrence for any cell: a launch runs one phase of a step, in all directions of a layer.

Each thread has one unit of one sequence in one direction.  It sums the products of the unit's gates, then computes the
cell's equations.  It reads the states of the step before where that step wrote them: in the outputs `y`, in the saved
columns `kept`, or in the initial states.  No thread reads a number that another thread of the same launch writes.

A sequence's rank is its place by length, the longest first.  The first `alive` ranks have step `t`.  `ranks` has the
plan's starts, lengths and order, then whether each direction runs backwards.  An argument that differs between
directions is a tuple with an entry per direction.
"""

import functools
import math

from varlen_rnn.kernels.elementwise import unravel
from varlen_rnn.kernels.sums import add_block, settled
from varlen_rnn.recurrence.backward_loop import SUMMED_STEPS
from varlen_rnn.recurrence.bounds import bounded, through_bound
from varlen_rnn.recurrence.phases import OUTPUT, PER_EPSILON, carried_by
from varlen_rnn.recurrence.tuples import add, put, take
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.jit import body, cuda_kernel


@body
def row_of(ranks, d, r, t):
    """Return the row of rank `r` at step `t` in a direction."""
    starts, lengths, _, reverse = ranks
    return starts[r] + (lengths[r] - 1 - t if reverse[d] else t)


@functools.cache
def add_products(count):
    """Return a body (a function that kernels inline) that adds `number` times a weight to each of `count` sums.

    The weights are `stride` apart.
    """
    if count == 0:

        @body
        def add_none(sums, number, weights, start, stride):
            return ()

        return add_none
    head, last = add_products(count - 1), count - 1

    @body
    def add_all(sums, number, weights, start, stride):
        mine = sums[last] + number * weights[start + last * stride]
        return head(sums, number, weights, start, stride) + (mine,)  # noqa: RUF005 - as in `take`

    return add_all


@functools.cache
def products_of(gates):
    """Return a body that computes `operand[row, column:] @ weight + bias` in `gates` columns, `stride` apart."""
    take_biases, add = take(gates), add_products(gates)

    @body
    def products(operand, row, column, depth, weight, bias, start, stride):
        sums = take_biases(bias, start, stride)
        for k in range(depth if gates else 0):
            sums = add(sums, operand[row, column + k], weight[k], start, stride)
        return sums

    return products


@body
def product_grad_of(start, kept, row, product, d, unit):
    """Return `start + kept[row, column:] @ weight[d][first_row:][rows, unit]`; empty `rows` means all rows in order.

    A head multiplies `depth` neighbouring numbers of each of `count` segments, which are `step` numbers apart.
    """
    column, (count, step, depth), _, weights, rows, first_row = product
    total, weight = start, weights[d]
    number = unit // weight.shape[1]  # the unit's head
    for segment in range(count):
        first = segment * step + number * depth
        for k in range(first, first + depth):
            weight_row = rows[first_row + k] if rows.shape[0] else k
            total += kept[row, column + k] * weight[first_row + weight_row, unit - number * weight.shape[1]]
    return total


@body
def units_of(product, d):
    """Return how many units the operand of a product has in a direction."""
    return product[2] * product[3][d].shape[1]


@functools.cache
def states_before(cell):
    """Return a body that returns the states of one unit of one sequence before step `t`, as a tuple.

    The first state is the output.  A layer with a projection has fewer outputs than units: units without an output get
    0.
    """
    column, take_states, take_others = len(cell.slots), take(len(cell.states)), take(len(cell.states) - 1)

    @body
    def states(initial, sequence, d, y, outputs, kept, row_before, t, unit):
        hidden = initial.shape[3]
        if t == 0:
            return take_states(initial[:, d, sequence, unit], 0, 1)
        first = y[row_before, d * outputs + unit] if unit < outputs else y.dtype.type(0)
        return (first,) + take_others(kept[row_before], column * hidden + unit, hidden)  # noqa: RUF005 - as in `take`

    return states


@functools.cache
def forward_step_of(cell, number):
    """Return the kernel that runs a phase of one step of `cell`; one thread per direction, rank and unit."""
    phase, num_states, num_slots = cell.phases[number], len(cell.states), len(cell.slots)
    before = sum(earlier.passes for earlier in cell.phases[:number])
    states, step, products = states_before(cell), phase.step, products_of(phase.gates)
    is_first, is_last = number == 0, number == len(cell.phases) - 1
    num_rows, take_rows = len(cell.row_inputs), take(len(cell.row_inputs))
    take_x, take_passed, take_vectors = take(len(cell.x_gates)), take(before), take(len(cell.vectors))
    first_slot, end = phase.kept
    put_slots, put_passes, put_others = put(end - first_slot), put(phase.passes), put((num_states - 1) * is_last)

    @cuda_kernel
    def forward_step(t, alive, ranks, layer, product, passed, keeps):
        """Run the phase for one unit of one sequence.

        The product of the first phase reads the outputs of the step before; later products read column `reads`.

        `keeps` is the column that gets the phase's first result; -1 writes it to `y`, and -2 nowhere.  `weight` is
        transposed, so that neighbouring threads read neighbouring numbers.
        """
        i = cuda.grid(1)
        initial, projected, given, vectors, kept, y, outputs = layer
        weight, bias, first_row, depth, head, reads = product
        hidden = initial.shape[3]
        if i < len(kept) * alive * hidden:
            d, r, unit = unravel(i, alive, hidden)
            sequence, saved, y_column = ranks[2][r], kept[d], d * outputs
            row, row_before = row_of(ranks, d, r, t), row_of(ranks, d, r, t - 1)
            prev = states(initial, sequence, d, y, outputs, saved, row_before, t, unit)
            if not is_first:
                operand, at, column = saved, row, reads * hidden
            elif t == 0:
                operand, at, column = initial[0, d], sequence, 0
            else:
                operand, at, column = y, row_before, y_column
            column += unit // head * depth
            h = products(operand, at, column, depth, weight[d], bias[d], first_row + unit, hidden)
            x, earlier = take_x(projected[d][row], unit, hidden), take_passed(passed[d, :, r, unit], 0, 1)
            v = take_vectors(vectors[d][:, unit], 0, 1) + take_rows(given[d][row if num_rows else 0], unit, hidden)
            first, new, slots, later = step(x, h, prev, earlier, v)
            put_others(saved[row], num_slots * hidden + unit, hidden, new)
            put_slots(saved[row], first_slot * hidden + unit, hidden, slots)
            put_passes(passed[d, :, r, unit], before, 1, later)
            if keeps >= 0:
                saved[row, keeps * hidden + unit] = first
            elif keeps == OUTPUT:
                y[row, y_column + unit] = first

    return forward_step


@cuda_kernel
def project(t, alive, ranks, kept, reads, weight, bound, y):
    """Project column `reads` of saved rows, and write the outputs to `y`; one thread per direction, rank and output.

    `weight` is transposed.
    """
    i = cuda.grid(1)
    hidden, outputs = weight[0].shape
    if i < len(kept) * alive * outputs:
        d, r, j = unravel(i, alive, outputs)
        row = row_of(ranks, d, r, t)
        total = y.dtype.type(0)
        for k in range(hidden):
            total += kept[d][row, reads * hidden + k] * weight[d][k, j]
        y[row, d * outputs + j] = bounded(total, bound)


@cuda_kernel
def normalise(t, alive, ranks, passed, first_pass, norms, kept, column, scales):
    """Normalise the values that a phase passes on; save them and the inverse divisors.

    One thread per direction, rank and value.
    """
    i = cuda.grid(1)
    number, hidden = passed.dtype.type, passed.shape[3]
    if i < len(kept) * alive * norms:
        d, r, n = unravel(i, alive, norms)
        values, saved = passed[d, first_pass + n, r], kept[d][row_of(ranks, d, r, t)]
        mean, variance = number(0), number(0)
        for j in range(hidden):
            mean += values[j] / number(hidden)
        for j in range(hidden):
            apart = values[j] - mean
            variance += apart * apart / number(hidden)
        scale = number(1) / math.sqrt(variance + number(1) / number(PER_EPSILON))
        saved[scales + n] = scale
        for j in range(hidden):
            value = (values[j] - mean) * scale
            values[j] = saved[column + n * hidden + j] = value


@functools.cache
def last_states_of(cell):
    """Return the kernel that writes the last states; one thread per direction, rank and unit."""
    states, put_states = states_before(cell), put(len(cell.states))

    @cuda_kernel
    def last_states(ranks, initial, kept, y, outputs, last):
        """`last[:, d, order[r]]` = the states after the last step of rank r; its initial states if it has no steps."""
        i = cuda.grid(1)
        _, lengths, order, _ = ranks
        count, hidden = order.shape[0], initial.shape[3]
        if i < len(kept) * count * hidden:
            d, r, unit = unravel(i, count, hidden)
            row = row_of(ranks, d, r, lengths[r] - 1)
            found = states(initial, order[r], d, y, outputs, kept[d], row, lengths[r], unit)
            put_states(last[:, d, order[r], unit], 0, 1, found)

    return last_states


@cuda_kernel
def carry_last(d_last, order, carried):
    """Set `carried[d, s, r]` to the gradient of last state s of rank r; one thread per element of `d_last`."""
    i = cuda.grid(1)
    if i < d_last.size:
        plane, r, unit = unravel(i, d_last.shape[2], d_last.shape[3])
        s, d = plane // d_last.shape[1], plane % d_last.shape[1]
        carried[d, s, r, unit] = d_last[s, d, order[r], unit]


@functools.cache
def backward_step_of(cell, number):
    """Return the kernel of a phase's gradient in one step; one thread per direction, rank in the plan and unit."""
    phase, num_states, num_slots = cell.phases[number], len(cell.states), len(cell.slots)
    num_carried, step_grad, num_operands = carried_by(cell), phase.step_grad, cell.num_kept - num_slots - num_states + 1
    num_rows, take_rows, states = len(cell.row_inputs), take(len(cell.row_inputs)), states_before(cell)
    take_slots, take_others = take(num_slots), take(num_states - 1)
    take_operands, take_carried, take_vectors = take(num_operands), take(num_carried), take(len(cell.vectors))
    first_slot, end = phase.slots
    put_slots, put_carried = put(end - first_slot), put(num_carried)
    first_vector, end_vector = phase.vectors
    add_vectors = add(end_vector - first_vector)

    @cuda_kernel
    def backward_step(t, alive, later, ranks, layer, arriving, before, of_vectors):
        """First add the product of the launch before to `carried[:, target]`; then overwrite slots and `carried`.

        If this launch `comes_first` in its step, the launch before ran step t + 1, which only the first `later` ranks
        have.  `d_y` and `d_others` have no rows if they do not reach this phase.  At the end of a block of steps, the
        sums of vectors' gradients are added to the totals.
        """
        i = cuda.grid(1)
        (initial, given, vectors, kept, y, outputs), (d_y, d_others, carried) = layer, arriving
        (comes_first, target, product), (sums, total, lost) = before, of_vectors
        hidden = carried.shape[3]
        if i < len(kept) * alive * hidden:
            d, r, unit = unravel(i, alive, hidden)
            row, saved, mine = row_of(ranks, d, r, t), kept[d], carried[d, :, r, unit]
            if (r < later or not comes_first) and unit < units_of(product, d):
                of_product = row_of(ranks, d, r, t + comes_first)
                mine[target] = product_grad_of(mine[target], saved, of_product, product, d, unit)
            if d_y.shape[0]:
                mine[0] += d_y[row, d * outputs + unit]
            for s in range(1, num_states if d_others[d].shape[0] else 0):
                mine[s] += d_others[d][row, (s - 1) * hidden + unit]
            slots = take_slots(saved[row], unit, hidden)
            after = slots[:1] + take_others(saved[row], num_slots * hidden + unit, hidden)
            operands = take_operands(saved[row], (num_slots + num_states - 1) * hidden + unit, hidden)
            row_before = row_of(ranks, d, r, t - 1)
            prev = states(initial, ranks[2][r], d, y, outputs, saved, row_before, t, unit)
            v = take_vectors(vectors[d][:, unit], 0, 1) + take_rows(given[d][row if num_rows else 0], unit, hidden)
            d_slots, leaving, d_v = step_grad(slots, prev, after, operands, take_carried(mine, 0, 1), v)
            put_slots(saved[row], first_slot * hidden + unit, hidden, d_slots)
            put_carried(mine, 0, 1, leaving)
            add_vectors(sums[d, :, r, unit], first_vector, 1, d_v)
            for k in range(first_vector, first_vector if t % SUMMED_STEPS else end_vector):
                at = d, k, r, unit
                total[at], lost[at] = add_block(total[at], lost[at], sums[at])
                sums[at] = 0

    return backward_step


@cuda_kernel
def project_grad(t, alive, later, ranks, kept, keeps, of_outputs, carried, product):
    """Save the gradients of outputs in saved rows, from place `keeps` on, and set the gradient of the first state to 0.

    The product of step `t + 1`, which the first `later` ranks have, is added to the gradients first.  One thread per
    direction, rank and unit.
    """
    i = cuda.grid(1)
    y, d_y, bound = of_outputs
    outputs, hidden = units_of(product, 0), carried.shape[3]
    if i < len(kept) * alive * hidden:
        d, r, j = unravel(i, alive, hidden)
        row = row_of(ranks, d, r, t)
        if j < outputs:
            total = carried[d, 0, r, j]
            if r < later:
                total = product_grad_of(total, kept[d], row_of(ranks, d, r, t + 1), product, d, j)
            total += d_y[row, d * outputs + j]
            kept[d][row, keeps + j] = through_bound(total, y[row, d * outputs + j], bound)
        carried[d, 0, r, j] = 0


@cuda_kernel
def normalise_grad(t, alive, _, ranks, kept, column, scales, carried, first, norms):
    """Replace gradients of normalised values by gradients of the values before normalisation.

    One thread per direction, rank and value.
    """
    i = cuda.grid(1)
    number, hidden = carried.dtype.type, carried.shape[3]
    if i < len(kept) * alive * norms:
        d, r, n = unravel(i, alive, norms)
        values, saved = carried[d, first + n, r], kept[d][row_of(ranks, d, r, t)]
        mean, slope = number(0), number(0)
        for j in range(hidden):
            mean += values[j] / number(hidden)
            slope += values[j] * saved[column + n * hidden + j] / number(hidden)
        for j in range(hidden):
            values[j] = saved[scales + n] * (values[j] - mean - saved[column + n * hidden + j] * slope)


@cuda_kernel
def initial_grads(ranks, kept, carried, alive, product, d_initial):
    """Write the gradients of initial states: the carried gradients plus the product of step 0.

    One thread per element of `d_initial`, (states, directions, sequences, hidden).
    """
    i = cuda.grid(1)
    if i < d_initial.size:
        plane, r, unit = unravel(i, d_initial.shape[2], d_initial.shape[3])
        s, d = plane // d_initial.shape[1], plane % d_initial.shape[1]
        total = carried[d, s, r, unit]
        if s == 0 and r < alive and unit < units_of(product, d):
            total = product_grad_of(total, kept[d], row_of(ranks, d, r, 0), product, d, unit)
        d_initial[s, d, ranks[2][r], unit] = total


@cuda_kernel
def settle(total, lost, order, out):
    """Set `out[d, k, order[r]] = settled(total[d, k, r], lost[d, k, r])`; one thread per element of `out`."""
    i = cuda.grid(1)
    if i < out.size:
        plane, r, unit = unravel(i, out.shape[2], out.shape[3])
        d, k = plane // out.shape[1], plane % out.shape[1]
        out[d, k, order[r], unit] = settled(total[d, k, r, unit], lost[d, k, r, unit])
