"""Compute the cost of operators from specs alone: floating-point operations, and bytes read and written.

Each operator declares its number of operations; by default it is 1 per element of the outputs.  The bytes of each input
and output count once, so an array that is updated in place counts twice.  Plans and lists count 0 bytes.  An unknown
size counts as 1, so the cost of a program over rows is the cost of one row.
"""

import math
from typing import NamedTuple

from varlen_rnn.program.attrs import decode
from varlen_rnn.program.feed import EDGES
from varlen_rnn.program.instructions import nested_blocks
from varlen_rnn.runtime.precision import at_precision
from varlen_rnn.tape.operator import find


class Cost(NamedTuple):
    """The floating-point operations of an operator, and its bytes read and written.

    If an operator declares a Cost instead of a number, its `bytes` are added to the bytes of its inputs and outputs.
    """

    flops: int
    bytes: int = 0


def costs(desc):
    """Return `(OpDesc, Cost)` pairs for all operators of the outermost block except feeds and fetches."""
    return costs_of_block(nested_blocks(desc)(0))


def costs_of_block(nested):
    """Return `(OpDesc, Cost)` pairs for all operators of a block except feeds and fetches."""
    inside = nested_blocks(nested.desc)
    return [(op, cost_of(op, nested.specs, inside)) for op in nested.block.ops if op.type not in EDGES]


def cost_of(op, specs, inside):
    """Return the cost of an OpDesc, given the specs of its variables by name, and `inside`, the program's blocks."""
    kind = find(op.type)
    inputs, outputs = ([specs.get(name) for name in names] for names in (op.input_names(), op.output_names()))
    attrs = decode(kind, op.attrs, inside)
    declared = at_precision(op.precision, kind.cost or per_output_element, inputs, outputs, **attrs)
    flops, more = declared if isinstance(declared, Cost) else Cost(declared)
    return Cost(flops, sum(map(_bytes, inputs + outputs)) + more)


def _bytes(spec):
    return 0 if spec is None or spec.dtype is None else size(spec) * spec.dtype.itemsize


# Functions with which operators declare their cost.


def known(number):
    """Return a size, or 1 if the size is unknown (-1)."""
    return 1 if number == -1 else number


def size(spec):
    """Return the number of elements of a spec; an unknown size counts as 1."""
    return math.prod(map(known, spec.shape))


def nothing(inputs, outputs, **attrs):
    """No operations."""
    return 0


def per_output_element(inputs, outputs, **attrs):
    """1 operation per element of the outputs."""
    return sum(size(spec) for spec in outputs if spec.dtype is not None)


def per_input_element(inputs, outputs, **attrs):
    """1 operation per element of the first input."""
    return size(inputs[0])


def per_taken_element(inputs, outputs, **attrs):
    """1 operation per element of the rows that were taken."""
    return size(inputs[2])
