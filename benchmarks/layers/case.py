"""A layer of one cell on a batch of given lengths: what it takes, and what it costs at least."""

import dataclasses

import numpy as np

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
STATES = {"RNN": 1, "GRU": 1, "LSTM": 2}


@dataclasses.dataclass(frozen=True)
class Case:
    """A layer and its batch.

    Attributes
    ----------
    cell : "RNN", "LSTM" or "GRU"
    input_size, hidden_size : int
    lengths : sequence of int, the steps of each sequence
    distribution : str, what the lengths are called

    Examples
    --------
    >>> case = Case("LSTM", 2, 3, [4, 1], "ragged")
    >>> case.rows, case.flops("inference"), case.flops("training")
    (5, 600, 1800)
    """

    cell: str
    input_size: int
    hidden_size: int
    lengths: tuple
    distribution: str

    @property
    def rows(self):
        """Rows that exist: padding is nobody's work."""
        return sum(self.lengths)

    def flops(self, mode):
        """Return the operations of the products of a step; a gradient costs two more products of the same size."""
        forward = 2 * self.rows * (self.input_size + self.hidden_size) * GATES[self.cell] * self.hidden_size
        return 3 * forward if mode == "training" else forward

    def summary(self):
        """Return what a line of results says of this case."""
        return {
            "cell": self.cell,
            "size": [len(self.lengths), self.input_size, self.hidden_size],
            "lengths": self.distribution,
            "rows": self.rows,
            "padded_rows": len(self.lengths) * max(self.lengths),
        }


class Inputs:
    """Rows, the gradient of the outputs, and weights with PyTorch's names: the same in every process.

    Parameters
    ----------
    case : Case
    """

    def __init__(self, case):
        rng = np.random.default_rng(0)
        self.weights = draw_weights(rng, weight_shapes(case.cell, case.input_size, case.hidden_size), case.hidden_size)
        self.x = rng.standard_normal((case.rows, case.input_size), np.float32)
        self.d_y = rng.standard_normal((case.rows, case.hidden_size), np.float32)


def weight_shapes(cell, input_size, hidden_size):
    """Return the shape of each weight of a layer, by PyTorch's name."""
    gates = GATES[cell] * hidden_size
    return {
        "weight_ih_l0": (gates, input_size),
        "weight_hh_l0": (gates, hidden_size),
        "bias_ih_l0": (gates,),
        "bias_hh_l0": (gates,),
    }


def draw_weights(rng, shapes, hidden_size):
    """Return weights drawn as PyTorch draws those of a recurrent layer."""
    bound = hidden_size**-0.5
    return {name: rng.uniform(-bound, bound, shape).astype(np.float32) for name, shape in shapes.items()}
