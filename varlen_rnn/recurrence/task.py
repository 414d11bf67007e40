"""The records of the recurrence: a layer over a batch, one of its directions, and the arrays that its gradient reads.

A record's docstring has a line for each field, with its shape if it is an array.
"""

from typing import Any, NamedTuple, TypeAlias

import numpy as np

from varlen_rnn.runtime.device import zeros

Pointer: TypeAlias = Any  # an address of numbers, in compiled code


class Direction(NamedTuple):
    """The weights of one direction of a layer, in PyTorch's shapes: the rows of gate 0, then the rows of gate 1, ...

    weight_ih: (x_gates * hidden, input)
    weight_hh: (h_gates * hidden, outputs), or (h_gates * hidden, hidden / heads): see `Weight`
    bias_ih: (x_gates * hidden,)
    bias_hh: (h_gates * hidden,)
    weight_hr: (outputs, hidden); None if outputs are the hidden units, without a projection
    vectors: (vectors, hidden), the cell's parameters with one number per unit; None if it has none
    rows: (rows, inputs * hidden), the row inputs that are not projected; None if the cell has none.  Each direction has
        its own, as it has its own weights.
    """

    weight_ih: np.ndarray
    weight_hh: np.ndarray
    bias_ih: np.ndarray
    bias_hh: np.ndarray
    weight_hr: np.ndarray | None = None
    vectors: np.ndarray | None = None
    rows: np.ndarray | None = None


def weights_of(directions, name, otherwise=None):
    """Return a tuple with the weight `name` of each direction; `otherwise` takes the place of weights that are None."""
    found = tuple(getattr(direction, name) for direction in directions)
    return (otherwise,) * len(found) if found[0] is None else found


class Call(NamedTuple):
    """A layer over a batch, as the CPU and CUDA engines take it: arguments of `layer.forward`, and a Shape."""

    cell: Any
    x: Any
    directions: list
    initial: Any
    plan: Any
    reverse: tuple
    shape: Any

    @property
    def sizes(self):
        """The shape of one direction's states: number of states, of sequences, of units."""
        return len(self.cell.states), self.plan.num_sequences, self.shape.hidden


def given_of(call, like):
    """Return two tuples with an array per direction: the row inputs, and the vectors.  A missing array is empty."""
    vectors = weights_of(call.directions, "vectors", zeros((0, call.shape.hidden), like))
    return weights_of(call.directions, "rows", zeros((1, 0), like)), vectors


class Saved(NamedTuple):
    """What a forward pass saved for the gradient, as `layer.forward` returns it."""

    y: Any
    kept: list


class Arriving(NamedTuple):
    """The gradients that arrive at a layer.

    d_y: (rows, directions * outputs)
    d_last: (states, directions, sequences, hidden)
    d_others: (rows, (states - 1) * hidden) for each direction, gradients of the states after the first at every row;
        None if none arrived
    """

    d_y: Any
    d_last: Any
    d_others: Any = None


class Task(NamedTuple):
    """One direction of a layer over a batch, as the forward and the backward loop take it.

    x: (rows, input)
    weights: a Direction without row inputs
    initial: (states, sequences, hidden), in the caller's order
    begins: whether `initial` was given; otherwise it is zeros
    outputs: the number of units of an output: of the hidden units, or of the projection if there is one
    y: (rows, columns), the outputs; this direction writes from `column` on
    kept: (rows, columns of the cell * hidden or more), the saved columns, whose slots the backward loop overwrites; no
        rows in inference
    given: (rows, inputs * hidden), the row inputs that are not projected; no rows if there are none
    bound: the largest absolute value of a projected output
    """

    x: Any
    weights: Any
    initial: Any
    begins: bool
    outputs: int
    y: Any
    column: int
    kept: Any
    given: Any
    bound: Any


class Gradients(NamedTuple):
    """The gradients that the backward loop reads and writes, besides the slots in a task's saved columns.

    d_y: (rows, columns), the gradients of the outputs, with the columns of the task's `y`
    d_others: (rows, (states - 1) * hidden), the gradients of the states after the first at every row; no rows if none
        arrived
    d_last: (states, sequences, hidden), the gradients of the last states, in the caller's order
    d_initial: the gradients of the initial states, with the shape of `d_last`; the loop writes it
    d_vectors: (vectors of the cell, sequences, hidden), the gradients of the cell's vectors for each sequence, in the
        order of phases; the loop writes it
    """

    d_y: Any
    d_others: Any
    d_last: Any
    d_initial: Any
    d_vectors: Any
