"""The layers and batches that are compared on a GPU."""

import dataclasses

import numpy as np

from benchmarks import layers
from benchmarks.layers.case import draw_weights, weight_shapes
from benchmarks.lengths import equal, lognormal, pareto

SIZES = 256, 512, 1024  # units, and features of the input
BATCH, STEPS = 64, 80  # sequences; steps of equal lengths


@dataclasses.dataclass(frozen=True)
class Case(layers.Case):
    """A layer of one or two directions, and its batch.

    Examples
    --------
    >>> case = Case("LSTM", 2, 3, (4, 1), "ragged", directions=2)
    >>> case.summary()["directions"], case.flops("inference")
    (2, 1200)
    """

    directions: int = 1

    def flops(self, mode):
        """Return the operations of the products of a step."""
        return super().flops(mode) * self.directions

    def summary(self):
        """Return the fields of a line of results that describe this case."""
        return {**super().summary(), "directions": self.directions}


class Inputs:
    """Rows, the gradient of the outputs, and weights with PyTorch's names."""

    def __init__(self, case):
        rng, shapes = np.random.default_rng(0), weight_shapes(case.cell, case.input_size, case.hidden_size)
        named = {f"{name}{end}": shape for end in ("", "_reverse")[: case.directions] for name, shape in shapes.items()}
        self.weights = draw_weights(rng, named, case.hidden_size)
        self.x = rng.standard_normal((case.rows, case.input_size), np.float32)
        self.d_y = rng.standard_normal((case.rows, case.directions * case.hidden_size), np.float32)


def cases(quick):
    """Return the cases: each cell and size with three distributions of lengths, and with two directions."""
    if quick:
        return [Case(cell, 32, 32, lognormal(8), "lognormal", 2) for cell in ("LSTM", "GRU")]
    forms = [("lognormal", lognormal(BATCH), 1), ("equal", equal(BATCH, STEPS), 1), ("lognormal", lognormal(BATCH), 2)]
    forms += [("pareto", pareto(BATCH), 1)]
    return [
        Case(cell, size, size, lengths, distribution, directions)
        for distribution, lengths, directions in forms
        for size in SIZES
        for cell in ("LSTM", "GRU")
    ]
