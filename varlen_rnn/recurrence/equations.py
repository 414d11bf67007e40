"""A cell's equations as loops over a scratch in L1, compiled for each cell; all else of the two loops knows no cell.

The scratch is a few planes of numbers [row][unit], one per quantity, at offsets known to the compiler: the equations
are one loop over rows and units, and vectorise.
"""

import functools
from typing import NamedTuple

from numba import types
from numba.np.numpy_support import from_dtype

from varlen_rnn.jit import address_of, caller
from varlen_rnn.products.vectors import RUN_BYTES, panel_width, vectorise_widely
from varlen_rnn.recurrence.tuples import put, take

BLOCK_ROWS = 24  # rows that a panel of weights serves before the next: whole tiles, of 6 or of 12
MOST_ROWS = 2 * BLOCK_ROWS  # the same of weights that L2 does not hold, rather than that they pass twice per step
PROJECTED_ROWS = 2 * MOST_ROWS  # rows whose inputs are projected at once, of as many steps as it takes
BACKWARD_ROWS = 6  # of a block of the backward loop, which is several panels wide


class Code(NamedTuple):
    """The addresses of the compiled functions that both loops call: products, packing, and a cell's equations."""

    multiply: int
    pack: int
    equations: int


class Sizes(NamedTuple):
    """What the loops know of a cell: its gates, states and slots, the numbers that a row keeps, what equations read."""

    gates: int
    states: int
    slots: int
    kept: int
    reads_output: bool


def sizes_of(cell):
    """Return the Sizes of a cell."""
    return Sizes(len(cell.gates), len(cell.states), len(cell.slots), cell.num_kept, cell.reads_output)


def _forward_arguments(scalar):
    address = types.CPointer(scalar)
    return address, address, types.intp


step_forward = caller(_forward_arguments)


@functools.cache
def forward_equations(cell, dtype):
    """Return the address of a cell's step, for `step_forward(address, (projected, scratch, count))`.

    Projected inputs are planes of `PROJECTED_ROWS` rows, one per gate.  The planes of the scratch, of `MOST_ROWS` rows,
    are the recurrent products, the previous states, then the output and what a row keeps, which the step writes.
    """
    num_gates, num_states, num_kept, step = len(cell.gates), len(cell.states), cell.num_kept, cell.step
    take_gates, take_states, put_results = take(num_gates), take(num_states), put(1 + num_kept)
    plane, x_plane = MOST_ROWS * panel_width(dtype), PROJECTED_ROWS * panel_width(dtype)
    previous, results = num_gates * plane, (num_gates + num_states) * plane

    def forward_step(projected, scratch, count):
        vectorise_widely()
        for j in range(count):
            x, h = take_gates(projected, j, x_plane), take_gates(scratch, j, plane)
            states, slots = step(x, h, take_states(scratch, j + previous, plane))
            put_results(scratch, j + results, plane, (states[0],) + slots + states[1:])  # noqa: RUF005

    return address_of(forward_step, _forward_arguments(from_dtype(dtype)))


def _backward_arguments(scalar):
    return types.CPointer(scalar), types.intp


step_backward = caller(_backward_arguments)


@functools.cache
def backward_equations(cell, dtype):
    """Return the address of the gradient of a cell's step, for `step_backward(address, (scratch, count))`.

    The planes of the scratch, of `BACKWARD_ROWS` rows of `RUN_BYTES`, are what a row keeps, the previous states, and
    the gradients of the states.  The gradients of the slots, and those of the previous states, replace them.
    """
    num_states, num_slots, step_grad = len(cell.states), len(cell.slots), cell.step_grad
    take_states, take_slots, take_others = take(num_states), take(num_slots), take(num_states - 1)
    put_states, put_slots = put(num_states), put(num_slots)
    plane = BACKWARD_ROWS * (RUN_BYTES // dtype.itemsize)
    others, previous = num_slots * plane, cell.num_kept * plane
    d_states = previous + num_states * plane

    def backward_step(scratch, count):
        vectorise_widely()
        for j in range(count):
            slots, prev = take_slots(scratch, j, plane), take_states(scratch, j + previous, plane)
            states = slots[:1] + take_others(scratch, j + others, plane)  # the output, which is not read, and the rest
            d_slots, d_prev = step_grad(slots, prev, states, take_states(scratch, j + d_states, plane))
            put_slots(scratch, j, plane, d_slots)
            put_states(scratch, j + d_states, plane, d_prev)

    return address_of(backward_step, _backward_arguments(from_dtype(dtype)))
