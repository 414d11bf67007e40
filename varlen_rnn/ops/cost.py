"""What operators cost, from descriptions alone: operations on floating numbers, and bytes read and written.

Each operator declares its operations; the default is 1 per element of its outputs for any function.  Bytes count all
inputs and all outputs once, weights and updated arrays too; plans and lists have none.  An unknown size counts as one,
so the cost of a program over rows is the cost of a row.
"""

import math
from typing import NamedTuple

from varlen_rnn.program.attrs import decode
from varlen_rnn.program.feed import EDGES
from varlen_rnn.program.instructions import nested_blocks
from varlen_rnn.tape.operator import find


class Cost(NamedTuple):
    """Operations on floating numbers, and bytes.

    An operator that declares both gives the bytes beyond its inputs and outputs.
    """

    flops: int
    bytes: int = 0


def costs(desc):
    """Return the operators of the outermost block that compute, each with its cost: `(OpDesc, Cost)` pairs.

    Examples
    --------
    >>> import numpy as np
    >>> import varlen_rnn as vr
    >>> with vr.program_guard() as program:
    ...     y = vr.feed_data("x", shape=[-1, 4], dtype="float32") @ vr.Variable(np.ones((4, 3), np.float32))
    >>> [(op.type, tuple(cost)) for op, cost in costs(program.desc)]
    [('matmul', (24, 76))]
    """
    return costs_of_block(nested_blocks(desc)(0))


def costs_of_block(nested):
    """Return the operators of a block that compute, each with its cost."""
    inside = nested_blocks(nested.desc)
    return [(op, _cost(op, nested, inside)) for op in nested.block.ops if op.type not in EDGES]


def _cost(op, nested, inside):
    kind = find(op.type)
    inputs, outputs = ([nested.specs.get(name) for name in names] for names in (op.input_names(), op.output_names()))
    attrs = decode(kind, op.attrs, inside)
    declared = (kind.cost or per_output_element)(inputs, outputs, **attrs)
    flops, more = declared if isinstance(declared, Cost) else Cost(declared)
    return Cost(flops, sum(map(_bytes, inputs + outputs)) + more)


def _bytes(spec):
    return 0 if spec is None or spec.dtype is None else size(spec) * spec.dtype.itemsize


# What operators declare, in these terms.


def known(number):
    """Return a size, 1 where only values tell."""
    return 1 if number == -1 else number


def size(spec):
    """Return the number of elements, an unknown size being one."""
    return math.prod(map(known, spec.shape))


def nothing(inputs, outputs, **attrs):
    """None."""
    return 0


def per_output_element(inputs, outputs, **attrs):
    """1 per element."""
    return sum(size(spec) for spec in outputs if spec.dtype is not None)


def per_input_element(inputs, outputs, **attrs):
    """1 per element of the first input."""
    return size(inputs[0])
