"""Functions that compiled code calls by their addresses, and the parts of loops: what is compiled, and how often."""

import numpy as np
import pytest
from numba import types
from numba.core.errors import TypingError

from varlen_rnn import recurrence
from varlen_rnn.cells import CELLS
from varlen_rnn.products.vectors import pointer
from varlen_rnn.recurrence import backward_loop, forward_loop
from varlen_rnn.rows.plan import sort_by_seq_len
from varlen_rnn.runtime.jit import address_of_function, caller, cpu_inlined, engine_kernel


def add_product(factors, out):
    out[0] += factors[0] * factors[1][0][0]


def arguments_for(scalar):
    address = types.CPointer(scalar)
    return types.Tuple((types.float64, types.Tuple((address,)))), address


call = caller(arguments_for)


@engine_kernel
def twice(address, x, out):
    for _ in range(2):
        call(address, ((2.5, (pointer(x, 1),)), pointer(out, 0)))


@engine_kernel
def with_an_integer(address, x, out):
    call(address, ((2, (pointer(x, 1),)), pointer(out, 0)))


def test_compiled_code_calls_a_function_by_its_address():
    x, out = np.array([1.0, 3.0]), np.zeros(1)
    twice(address_of_function(add_product, arguments_for(types.float64)), x, out)
    assert out[0] == 15


def test_arguments_of_other_types_are_not_passed():
    with pytest.raises(TypingError, match="call by address"):
        with_an_integer(0, np.ones(2), np.zeros(1))


def test_the_loops_are_compiled_once_for_all_cells():
    """A second cell compiles its equations alone."""
    plan, x, seen = sort_by_seq_len([0, 2, 5]), np.ones((5, 3), np.float32), []
    for cell in CELLS.values():
        gates = len(cell.gates) * 4
        weights = [np.ones(shape, np.float32) for shape in ((gates, 3), (gates, 4), (gates,), (gates,))]
        directions = [recurrence.Direction(*weights)]
        y, last, kept = recurrence.forward(cell, x, directions, None, plan)
        saved, arriving = recurrence.Saved(y, kept), recurrence.Arriving(y, last)
        recurrence.backward(cell, x, directions, None, plan, saved, arriving)
        seen.append([len(loop.signatures) for loop in (forward_loop.forward, backward_loop.backward)])
    assert min(seen[0]) > 0
    assert seen == seen[:1] * len(CELLS)


@cpu_inlined
def following(x):
    return x + 1


@cpu_inlined
def collatz(x, most):
    """Assigns to a parameter, in a loop, and calls a part with it."""
    steps = 0
    while x > 1 and steps < most:
        x = following(3 * x) if x % 2 else x // 2
        steps = following(steps)
    return x, steps


@cpu_inlined
def swapped(pair):
    return pair[1], pair[0]


def run_parts(x, out):
    number, pair = x, (x, 2 * x)
    for turn in range(3):
        number, steps = collatz(number, 4)
        pair = swapped(pair)
        out[turn] = 1000 * number + 100 * steps + pair[0]
        number = following(number)
    out[3] = x


def test_parts_read_what_their_callers_gave_them():
    """A parameter that a part assigns to is the part's own; what takes its result may be what was given."""
    x, out = 7, np.zeros(4)
    engine_kernel(run_parts)(x, out)
    # 7 22 11 34 17, then 18 9 28 14 7, then 8 4 2 1
    assert out.tolist() == [17_000 + 400 + 14, 7_000 + 400 + 7, 1_000 + 300 + 14, 7]
