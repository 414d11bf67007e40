"""What the recurrence works on: the weights of a direction of a layer, and a task, that direction over a batch."""

from typing import Any, NamedTuple

import numpy as np


class Direction(NamedTuple):
    """The weights of one direction of a layer, in PyTorch's shapes: gates stand one below the other.

    `weight_ih` (gates * hidden, input), `weight_hh` (gates * hidden, hidden), both biases (gates * hidden,).
    """

    weight_ih: np.ndarray
    weight_hh: np.ndarray
    bias_ih: np.ndarray
    bias_hh: np.ndarray


class Task(NamedTuple):
    """One direction of a layer over a batch, for both loops, on any device.

    Attributes
    ----------
    x : (rows, input)
    weights : Direction
    initial : (states, sequences, hidden), in the caller's order
    given : bool
        Whether `initial` was given; otherwise it is zeros.
    y : (rows, columns)
        Outputs; those of this direction begin at `column`.
    column : int
    kept : (rows, cell.num_kept * hidden or more)
        What the gradient needs of each row; the backward loop overwrites its slots.  Of no rows, in inference.
    """

    x: Any
    weights: Direction
    initial: Any
    given: bool
    y: Any
    column: int
    kept: Any
