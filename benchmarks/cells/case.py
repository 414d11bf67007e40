"""A layer of any cell on a batch of given lengths: its weights, what it costs, and whom it is compared with."""

import dataclasses
from typing import NamedTuple

import numpy as np

from benchmarks.layers import case as layers
from benchmarks.layers.case import draw_weights

ATTENDED = 32  # rows of the sequence that a step with attention reads


class Kind(NamedTuple):
    """What the weights of a cell are, and which share of its built-in relative's speed it promises.

    Attributes
    ----------
    gates : int
        Blocks of rows of the weights.
    built_in : "LSTM", "GRU" or None
        The layer whose rate of products its own is compared with.
    promise : str
        The bar that it stands under; "" of none.
    vectors : tuple of str
        Parameters that are one number per unit.
    projected, attends : bool
        Whether outputs are projected to half of the units; whether a step reads another sequence.
    """

    gates: int
    built_in: str | None = None
    promise: str = ""
    vectors: tuple = ()
    projected: bool = False
    attends: bool = False


# Names in lower case are those of `varlen_rnn.cells.find_cell`.
KINDS = {
    "LSTM": Kind(4),
    "GRU": Kind(3),
    "RNN": Kind(1),
    "CIFG": Kind(3, "LSTM", "one product"),
    "lstm(peepholes=True)": Kind(4, "LSTM", "one product", vectors=("p_i", "p_f", "p_o")),
    "gru(reset_after=False)": Kind(3, "GRU", "reset before the product"),
    "ln_lstm": Kind(4, "LSTM", "layer norm", vectors=tuple(f"{part}_{gate}" for part in "sb" for gate in "ifgoc")),
    "ln_gru": Kind(3, "GRU", "layer norm", vectors=tuple(f"{part}_{gate}" for part in "sb" for gate in "rzn")),
    "LSTM(proj_size=H/2)": Kind(4, "LSTM", "projected outputs", projected=True),
    "DynamicRNN, LSTM": Kind(4, "LSTM", "ordinary operators"),
    "DynamicRNN, attention": Kind(1, attends=True),
}


@dataclasses.dataclass(frozen=True)
class Case(layers.Case):
    """A layer and its batch; `cell` is a key of `KINDS`.

    Examples
    --------
    >>> case = Case("LSTM(proj_size=H/2)", 2, 4, [4, 1], "ragged")
    >>> case.flops("inference"), case.flops("training")
    (720, 2160)
    """

    def flops(self, mode):
        """Return the operations of the products of a step: every row meets every matrix once, thrice in training."""
        forward = 2 * self.rows * sum(rows * columns for rows, columns in _matrices(weight_shapes(self)))
        return 3 * forward if mode == "training" else forward

    def of_built_in(self):
        """Return the case of the built-in layer that this one is compared with, or None."""
        built_in = KINDS[self.cell].built_in
        return built_in and dataclasses.replace(self, cell=built_in)


class Inputs:
    """Rows, the gradient of the outputs, and weights by name: the same in every process.

    Parameters
    ----------
    case : Case
    """

    def __init__(self, case):
        rng = np.random.default_rng(0)
        self.weights = draw_weights(rng, weight_shapes(case), case.hidden_size)
        self.x = rng.standard_normal((case.rows, case.input_size), np.float32)
        self.d_y = rng.standard_normal((case.rows, outputs_of(case)), np.float32)


def outputs_of(case):
    """Return how many outputs a row has."""
    return case.hidden_size // 2 if KINDS[case.cell].projected else case.hidden_size


def weight_shapes(case):
    """Return the shape of each weight, in PyTorch's names of a cell's weights where it has one."""
    kind, hidden, outputs = KINDS[case.cell], case.hidden_size, outputs_of(case)
    rows = kind.gates * hidden
    shapes = {
        "weight_ih": (rows, case.input_size),
        "weight_hh": (rows, outputs),
        "bias_ih": (rows,),
        "bias_hh": (rows,),
    }
    shapes |= {vector: (hidden,) for vector in kind.vectors}
    if kind.projected:
        shapes["weight_hr"] = (outputs, hidden)
    if kind.attends:
        shapes |= {"keys": (hidden, ATTENDED), "values": (ATTENDED, hidden), "weight_ch": (hidden, hidden)}
    return shapes


def _matrices(shapes):
    return [shape for shape in shapes.values() if len(shape) == 2]
