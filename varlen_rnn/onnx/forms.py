"""Forms: functions that check and convert attributes and constants of ONNX nodes, beyond ONNX's own schema of a node.

A form is called with a value and the rank of the node's first input.  It returns the value for the converter, or raises
Wrong: `axis(-1, 3)` is 2, and `axis(7, 3)` raises "an axis from -3 to 2".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Form = Callable[[Any, int], Any]


class Wrong(Exception):
    """Raised for a value that breaks the rules of ONNX; the message describes valid values."""


def _integers(value: Any, rank: int) -> list[int]:
    if np.ndim(value) != 1:
        raise Wrong("a vector of integers")
    return [int(number) for number in value]


def _axis(value: Any, rank: int) -> int:
    if not -rank <= value < rank:
        raise Wrong(f"an axis from {-rank} to {rank - 1}")
    return int(value) % rank


def _axes(value: Any, rank: int) -> list[int]:
    if np.ndim(value) > 1:
        raise Wrong("a vector of integers")
    found = [_axis(number, rank) for number in np.ravel(value)]
    if len(set(found)) < len(found):
        raise Wrong("axes without repetition")
    return found


def _new_axes(value: Any, rank: int) -> list[int]:
    """Return the axes of the result that the input does not have, counted from 0."""
    return _axes(value, rank + np.size(value))


def _permutation(value: Any, rank: int) -> list[int]:
    if sorted(value) != list(range(rank)):
        raise Wrong(f"each of the axes 0 to {rank - 1} once")
    return list(value)


def sizes(value: Any, rank: int) -> list[Any]:
    """Return the sizes of a shape as a list; sizes that are known only in a run stay as they are."""
    if np.ndim(value) != 1:
        raise Wrong("a vector of integers")
    found = [int(size) if isinstance(size, (int, np.integer)) else size for size in value]
    numbers = [size for size in found if isinstance(size, int)]
    if any(size < -1 for size in numbers) or numbers.count(-1) > 1:
        raise Wrong("sizes of at least 0, and at most one -1")
    return found


def _flag(value: Any, rank: int) -> bool:
    if value not in (0, 1):
        raise Wrong("0 or 1")
    return bool(value)


def _number(value: Any, rank: int) -> float:
    if not math.isfinite(value):
        raise Wrong("a finite number")
    return float(value)


# {name of an attribute or input in lower case: form}; "Kind.name" is only for nodes of this kind.
FORMS: dict[str, Form] = {
    "Flatten.axis": lambda value, rank: int(value),
    "Unsqueeze.axes": _new_axes,
    "alpha": _number,
    "axes": _axes,
    "axis": _axis,
    "ends": _integers,
    "epsilon": _number,
    "input_forget": _flag,
    "keepdims": _flag,
    "layout": _flag,
    "linear_before_reset": _flag,
    "pads": _integers,
    "perm": _permutation,
    "shape": sizes,
    "split": _integers,
    "starts": _integers,
    "steps": _integers,
}
