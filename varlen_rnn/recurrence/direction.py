"""The weights of one direction of a layer."""

from typing import NamedTuple

import numpy as np


class Direction(NamedTuple):
    """The weights of one direction of a layer, in PyTorch's shapes: gates stand one below the other.

    `weight_ih` (gates * hidden, input), `weight_hh` (gates * hidden, hidden), both biases (gates * hidden,).
    """

    weight_ih: np.ndarray
    weight_hh: np.ndarray
    bias_ih: np.ndarray
    bias_hh: np.ndarray
