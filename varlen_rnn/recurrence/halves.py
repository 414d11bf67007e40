"""Slots of 16 bits, which a row saves at the precisions in bfloat16: two in the place of a float32.

Take an LSTM of 4 units: its gates i, f, g, o and the state c.  In float32, a row saves 20 numbers.  Here, elements 0 to
7 have the 16 gates as 16-bit integers: the gate 0.5 is 16384, because 1 is 32767.  Elements 8 to 11 have c, in float32.
The gradient replaces the integers by the gates' gradients in bfloat16, the pairs that products multiply.

Integers fit numbers from -1 to 1, the results of sigmoid and tanh; NaN is the integer -32768.  In bfloat16, 1 - f would
be lost if f is nearly 1.  But a **factor**, a number that gradients are only multiplied by, is in bfloat16, such as a
GRU's product u_n.
"""

from typing import NamedTuple

import numpy as np
from numba import float32, float64, int16, types, uint16

from varlen_rnn.products.rounding import last_bits, number_of_half, round_row
from varlen_rnn.products.vectors import halves_at, lanes_of, make_stack_memory, offset, vectorise_widely
from varlen_rnn.recurrence.phases import norms_of
from varlen_rnn.runtime.jit import called_by_address, cpu_inlined
from varlen_rnn.runtime.precision import get_float32_matmul_precision

_ONE = 32767  # the integer of 1
_NAN = -32768
_ROUNDING = 1.5 * 2.0**52  # a float64 that is added to a number less than 2^51 has it, rounded, as its last bits


class Halves(NamedTuple):
    """How a row saves its slots.

    halved: 1 if slots have 16 bits, otherwise 0, and so are the other fields
    factors: bit s is 1 if slot s is a bfloat16, and not an integer
    spared: how many elements less than in float32 a row has
    """

    halved: int
    factors: int
    spared: int


_NONE = Halves(0, 0, 0)


def halves_of(cell, shape, dtype, precision=None):
    """Return the Halves of a cell and a Shape at a precision of products of float32, by default the precision in force.

    Slots have 16 bits if the precision is in bfloat16 and each fits an integer or is a factor.  This leaves out cells
    of several phases, row inputs, projections, heads and an odd number of units.
    """
    if dtype != np.float32 or not (precision or get_float32_matmul_precision()).startswith("bf16"):
        return _NONE
    others = len(cell.phases) > 1 or norms_of(cell) or cell.row_inputs or shape.projects or shape.heads > 1
    factors = set(range(len(cell.slots))).difference(cell.bounded)
    if others or shape.hidden % 2 or not factors.issubset(cell.factors):
        return _NONE
    return Halves(1, sum(1 << slot for slot in factors), len(cell.slots) * shape.hidden // 2)


@cpu_inlined
def _integer_of(x):
    """Return the bits of the integer of a number from -1 to 1; the product is exact, so it is rounded once."""
    return uint16(_NAN & 0xFFFF) if x != x else last_bits(float64(x) * float64(_ONE) + float64(_ROUNDING))


@cpu_inlined
def _number_of(bits):
    integer = int16(bits)
    return float32(np.nan) if integer == _NAN else float32(integer) * float32(1 / _ONE)


_spare_on_stack = make_stack_memory(lambda lanes: lanes)


@cpu_inlined
def _round_units(source, target, count):
    """Write an even number of neighbouring numbers as bfloat16, and nothing behind them."""
    spare, span = _spare_on_stack(target), 2 * lanes_of(target)
    whole = count // span * span
    if whole:
        round_row(source, target, whole)
    if whole < count:
        round_row(offset(source, whole), spare, count - whole)
        for j in range((count - whole) // 2):
            target[whole // 2 + j] = spare[j]


def _arguments_of_moves(scalar):
    number, address = types.intp, types.CPointer(scalar)
    return address, address, *[number] * 7


@called_by_address(_arguments_of_moves)
def keep_halves(planes, row, plane, hidden, unit, count, first, end, factors):
    """Save `count` units, from `unit` on, of the slots `first` to `end`, which are planes."""
    vectorise_widely()
    for s in range(first, end):
        source, place = offset(planes, (s - first) * plane), s * hidden + unit
        if factors >> s & 1:
            _round_units(source, offset(row, place // 2), count)
        else:
            target = offset(halves_at(row), place)
            for j in range(count):
                target[j] = _integer_of(source[j])


@called_by_address(_arguments_of_moves)
def load_halves(planes, row, plane, hidden, unit, count, first, end, factors):
    """Read the numbers that `keep_halves` has saved into planes; the arguments are the same."""
    vectorise_widely()
    for s in range(first, end):
        source, target = offset(halves_at(row), s * hidden + unit), offset(planes, (s - first) * plane)
        if factors >> s & 1:
            for j in range(count):
                target[j] = number_of_half(source[j])
        else:
            for j in range(count):
                target[j] = _number_of(source[j])


@called_by_address(_arguments_of_moves)
def round_halves(planes, row, plane, hidden, unit, count, first, end, factors):
    """Replace the slots `first` to `end` by gradients, which are planes, in bfloat16; `factors` is not used."""
    vectorise_widely()
    for s in range(first, end):
        _round_units(offset(planes, (s - first) * plane), offset(row, (s * hidden + unit) // 2), count)
