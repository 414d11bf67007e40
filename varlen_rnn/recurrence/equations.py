"""Compile a cell's equations as loops over a scratch in L1; all other code of the two loops is compiled once.

The scratch (a thread's working memory) has one plane of numbers [row][unit] per quantity, such as a gate, at offsets
that the compiler knows.  So the equations are one loop over rows and units, which LLVM vectorises.
"""

import functools

from numba import types

from varlen_rnn.products.vectors import RUN_BYTES, panel_width, vectorise_widely
from varlen_rnn.recurrence.phases import carried_by, most_gates
from varlen_rnn.recurrence.tuples import put, take
from varlen_rnn.runtime.jit import body, caller

BLOCK_ROWS = 24  # rows that are multiplied by one panel of weights before the next panel: whole tiles of 6 or 12 rows
MOST_ROWS = 2 * BLOCK_ROWS  # the same for weights larger than L2, so that these are read half as often
PROJECTED_ROWS = 2 * MOST_ROWS  # the most rows whose inputs are projected together, from one step or several
BACKWARD_ROWS = 6  # rows of a block in the backward loop, whose blocks are several panels wide


def _forward_arguments(scalar):
    address = types.CPointer(scalar)
    return address, address, address, address, address, types.intp, types.intp


step_forward = caller(_forward_arguments)


@functools.cache
def forward_equations(cell, number, dtype):
    """Return the address of a phase's compiled equations, for `step_forward(address, arguments)`.

    The arguments are `(projected, given, scratch, passed, vectors, vector_step, rows)`.  `projected` and `given` have
    planes of `PROJECTED_ROWS` rows: one per gate with a projected input, and one per row input that is not projected.
    `scratch` has planes of `MOST_ROWS` rows: recurrent products, previous states, then the results of the phase (first
    result, slots, states).  `passed` has planes of `MOST_ROWS` rows for values that phases pass to later phases.
    Vectors are `vector_step` elements apart.
    """
    phase, num_states, num_vectors = cell.phases[number], len(cell.states), len(cell.vectors)
    before = sum(earlier.passes for earlier in cell.phases[:number])
    take_x, take_products, take_states = take(len(cell.x_gates)), take(phase.gates), take(num_states)
    take_passed, take_vectors, take_rows = take(before), take(num_vectors), take(len(cell.row_inputs))
    put_results, put_passes = put(1 + phase.kept[1] - phase.kept[0]), put(phase.passes)
    last = number == len(cell.phases) - 1
    put_states = put(num_states - 1 if last else 0)
    width = panel_width(dtype)
    plane, x_plane = MOST_ROWS * width, PROJECTED_ROWS * width
    previous = most_gates(cell) * plane
    results, step = previous + num_states * plane, phase.step
    states, passes = results + (1 + phase.kept[1] - phase.kept[0]) * plane, before * plane

    @body
    def run(projected, given, scratch, passed, vectors, j):
        x, h = take_x(projected, j, x_plane), take_products(scratch, j, plane)
        prev, earlier = take_states(scratch, j + previous, plane), take_passed(passed, j, plane)
        first, new, slots, later = step(x, h, prev, earlier, vectors + take_rows(given, j, x_plane))
        put_results(scratch, j + results, plane, (first,) + slots)  # noqa: RUF005 - Numba joins tuples by + alone
        put_states(scratch, j + states, plane, new)
        put_passes(passed, j + passes, plane, later)

    # A vector has one number per unit, so the loop must count units.  Without vectors, one flat loop is enough.
    if num_vectors:

        def forward_step(projected, given, scratch, passed, vectors, vector_step, rows):
            vectorise_widely()
            for r in range(rows):
                for u in range(width):
                    run(projected, given, scratch, passed, take_vectors(vectors, u, vector_step), r * width + u)

    else:

        def forward_step(projected, given, scratch, passed, vectors, vector_step, rows):
            vectorise_widely()
            for j in range(rows * width):
                run(projected, given, scratch, passed, (), j)

    return step_forward.address_of(forward_step, dtype)


def _backward_arguments(scalar):
    address = types.CPointer(scalar)
    return address, address, types.intp, types.intp, types.intp


step_backward = caller(_backward_arguments)


@functools.cache
def backward_equations(cell, number, dtype):
    """Return the address of a phase's compiled gradient, for `step_backward(address, arguments)`.

    The arguments are `(scratch, vectors, vector_step, rows, span)`.  The scratch has planes of `BACKWARD_ROWS` rows of
    `RUN_BYTES` bytes: the saved columns (slots, states after the first, operands, normalised values), the previous
    states, the carried gradients (gradients of states first), then row inputs that are not projected.  The results
    overwrite the phase's slots and the carried gradients.
    """
    phase, num_states, num_slots = cell.phases[number], len(cell.states), len(cell.slots)
    num_operands, num_vectors = cell.num_kept - num_slots - (num_states - 1), len(cell.vectors)
    take_slots, take_previous, take_others = take(num_slots), take(num_states), take(num_states - 1)
    take_operands, take_carried, take_vectors = take(num_operands), take(carried_by(cell)), take(num_vectors)
    first, end = phase.slots
    put_slots, put_carried, step_grad = put(end - first), put(carried_by(cell)), phase.step_grad
    take_rows = take(len(cell.row_inputs))
    plane = BACKWARD_ROWS * (RUN_BYTES // dtype.itemsize)
    others, operands, previous = (n * plane for n in (num_slots, num_slots + num_states - 1, cell.num_kept))
    carried, own = previous + num_states * plane, first * plane
    of_row = carried + carried_by(cell) * plane
    of_vectors, put_vectors = of_row + len(cell.row_inputs) * plane, put(phase.vectors[1] - phase.vectors[0])

    @body
    def run(scratch, vectors, j):
        slots, prev = take_slots(scratch, j, plane), take_previous(scratch, j + previous, plane)
        # The gradient may not read `states[0]`, the output, so any number can take its place.
        states = slots[:1] + take_others(scratch, j + others, plane)
        given, arriving = take_operands(scratch, j + operands, plane), take_carried(scratch, j + carried, plane)
        others_of_row = vectors + take_rows(scratch, j + of_row, plane)
        d_slots, leaving, d_vectors = step_grad(slots, prev, states, given, arriving, others_of_row)
        put_slots(scratch, j + own, plane, d_slots)
        put_carried(scratch, j + carried, plane, leaving)
        put_vectors(scratch, j + of_vectors, plane, d_vectors)

    if num_vectors:  # as in `forward_equations`

        def backward_step(scratch, vectors, vector_step, rows, span):
            vectorise_widely()
            for r in range(rows):
                for u in range(span):
                    run(scratch, take_vectors(vectors, u, vector_step), r * span + u)

    else:

        def backward_step(scratch, vectors, vector_step, rows, span):
            vectorise_widely()
            for j in range(rows * span):
                run(scratch, (), j)

    return step_backward.address_of(backward_step, dtype)
