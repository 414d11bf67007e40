"""Values of an ONNX model that is loaded: rows of sequences, shapes, Variables, and NumPy arrays of constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from varlen_rnn.onnx.checks import Unread
from varlen_rnn.tape.variable import Variable

STEPS, SEQUENCES = "steps", "sequences"


class Rows(NamedTuple):
    """Rows of sequences in place of a padded ONNX value.

    Reshapes of a model that was exported for one shape of batches contain the numbers in `declared`.
    """

    variable: Variable
    axes: tuple[Any, ...]  # for each axis of the ONNX value: STEPS, SEQUENCES, or an axis of a row
    declared: Mapping[str, int]  # steps and sequences of the model's input, or -1

    def place(self, axis: int) -> int:
        """Return the variable's axis for an axis of the ONNX value; raise if that runs over steps or sequences."""
        found = self.axes[axis]
        if isinstance(found, str):
            raise Unread(f"over {found}")
        return found + 1

    def without(self, dropped: Sequence[int]) -> tuple[Any, ...]:
        """Return `axes` without the dropped positions, with the remaining axes of a row renumbered from 0."""
        kept = [axis for place, axis in enumerate(self.axes) if place not in dropped]
        order = sorted(axis for axis in kept if not isinstance(axis, str))
        return tuple(axis if isinstance(axis, str) else order.index(axis) for axis in kept)


class Unknown(NamedTuple):
    """A value that is known only in a run."""

    is_zeros: bool = False  # of a shape that is not known
    lengths: str | None = None  # "given" for lengths of sequences, "computed" for numbers computed from them


class Sizes(NamedTuple):
    """A shape, or numbers computed from shapes: integers, STEPS, SEQUENCES, and None for an unknown size."""

    numbers: np.ndarray


def variable_of(x: Any) -> Any:
    """Return the Variable of rows, and any other value itself."""
    return x.variable if isinstance(x, Rows) else x


def like(x: Any, variable: Variable) -> Any:
    """Return a value of `variable`: rows with the axes of `x` if `x` has rows of sequences."""
    return x._replace(variable=variable) if isinstance(x, Rows) else variable


def rank_of(x: Any) -> int:
    """Return the rank of the ONNX value of `x`, or 0 if its shape is not known."""
    if isinstance(x, Rows):
        return len(x.axes)
    return x.numbers.ndim if isinstance(x, Sizes) else getattr(x, "ndim", 0)
