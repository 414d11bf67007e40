"""The records of the recurrence: the weights of a direction, a task (that direction over a batch), its gradients."""

from typing import Any, NamedTuple

import numpy as np


class Direction(NamedTuple):
    """The weights of one direction of a layer, in PyTorch's shapes: the rows of gate 0, then the rows of gate 1, ...

    Attributes
    ----------
    weight_ih : (x_gates * hidden, input)
    weight_hh : (h_gates * hidden, outputs)
    bias_ih : (x_gates * hidden,)
    bias_hh : (h_gates * hidden,)
    weight_hr : (outputs, hidden), or None
        The projection of the outputs; without it, they are the hidden units.
    vectors : (number of vectors, hidden), or None
        The cell's parameters with one number per unit; None if it has none.
    rows : (rows, number of inputs * hidden), or None
        The row inputs that are not projected; None if the cell has none.  They are no weight, but like a weight they
        belong to one direction.
    """

    weight_ih: np.ndarray
    weight_hh: np.ndarray
    bias_ih: np.ndarray
    bias_hh: np.ndarray
    weight_hr: np.ndarray | None = None
    vectors: np.ndarray | None = None
    rows: np.ndarray | None = None

    @property
    def hidden(self):
        """The number of hidden units."""
        return (self.weight_hh if self.weight_hr is None else self.weight_hr).shape[1]


def weights_of(directions, name, otherwise=None):
    """Return the weights of all directions that have a name, or for each an array that replaces a missing one."""
    found = tuple(getattr(direction, name) for direction in directions)
    return (otherwise,) * len(found) if found[0] is None else found


class Task(NamedTuple):
    """One direction of a layer over a batch, for both loops, on any device.

    Attributes
    ----------
    x : (rows, input)
    weights : Direction
    initial : (states, sequences, hidden), in the caller's order
    begins : bool
        Whether `initial` was given; otherwise it is zeros.
    outputs : int
        Units of an output: hidden units, or units of the projection.
    y : (rows, columns)
        The outputs; this direction writes from `column` on.
    column : int
    kept : (rows, columns of the cell * hidden or more)
        The saved columns of each row; the backward loop overwrites the slots.  Inference has no rows here.
    given : (rows, number of inputs * hidden)
        The row inputs that are not projected; no rows if there are none.
    bound : float
        The largest absolute value of a projected output.
    """

    x: Any
    weights: Direction
    initial: Any
    begins: bool
    outputs: int
    y: Any
    column: int
    kept: Any
    given: Any
    bound: Any


class Gradients(NamedTuple):
    """The gradients that the backward loop reads and writes, besides the slots of a task.

    Attributes
    ----------
    d_y : (rows, columns)
        The gradient of the outputs; columns as in the `y` of the task.
    d_others : (rows, (states - 1) * hidden), or None
        The gradient of the states after the first, at every row; None if none arrived.
    d_last : (states, sequences, hidden), in the caller's order
        The gradient of the last states.
    d_initial : as `d_last`
        The gradient of the initial states; the loop writes it.
    d_vectors : (vectors of the cell, sequences, hidden)
        The gradient of the cell's vectors, for each sequence, in the order of phases; the loop writes it.
    """

    d_y: Any
    d_others: Any
    d_last: Any
    d_initial: Any
    d_vectors: Any
