"""Values of an ONNX model while it is loaded: rows of sequences, shapes, Variables, and constants as NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from varlen_rnn.onnx.checks import Unread
from varlen_rnn.tape.variable import Variable

STEPS, SEQUENCES = "steps", "sequences"


class Rows(NamedTuple):
    """Rows of sequences, without padding, that represent a padded ONNX value.

    If a model was exported for batches of one shape, its reshapes contain the sizes in `declared`.
    """

    variable: Variable
    axes: tuple[Any, ...]  # for each axis of the ONNX value: STEPS, SEQUENCES, or an axis of a row
    declared: Mapping[str, int]  # numbers of steps and sequences that the model's input declares; -1 if unknown

    def place(self, axis: int) -> int:
        """Return the variable's axis for an axis of the ONNX value; raise if it runs over steps or sequences."""
        found = self.axes[axis]
        if isinstance(found, str):
            raise Unread(f"over {found}")
        return found + 1

    def without(self, dropped: Sequence[int]) -> tuple[Any, ...]:
        """Return `axes` without the positions `dropped`; the remaining axes of a row are renumbered from 0."""
        kept = [axis for place, axis in enumerate(self.axes) if place not in dropped]
        order = sorted(axis for axis in kept if not isinstance(axis, str))
        return tuple(axis if isinstance(axis, str) else order.index(axis) for axis in kept)


class Unknown(NamedTuple):
    """A value that is known only in a run."""

    is_zeros: bool = False  # whether all numbers are 0; their shape is not known
    lengths: str | None = None  # "given" for lengths of sequences, "computed" for numbers computed from them


class Sizes(NamedTuple):
    """A shape, or numbers computed from shapes: integers, STEPS, SEQUENCES, and None for an unknown size."""

    numbers: np.ndarray


def variable_of(x: Any) -> Any:
    """Return the Variable that holds the rows if a value is `Rows`, and any other value unchanged."""
    return x.variable if isinstance(x, Rows) else x


def like(x: Any, variable: Variable) -> Any:
    """Return `variable` as a value like `x`: as Rows with the axes of `x` if `x` is Rows, otherwise unchanged."""
    return x._replace(variable=variable) if isinstance(x, Rows) else variable


def rank_of(x: Any) -> int:
    """Return the rank of the ONNX value of `x`, or 0 if its shape is not known."""
    if isinstance(x, Rows):
        return len(x.axes)
    return x.numbers.ndim if isinstance(x, Sizes) else getattr(x, "ndim", 0)
