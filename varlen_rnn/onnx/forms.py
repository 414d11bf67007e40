"""Forms of attributes and constants of ONNX nodes, in addition to ONNX's own schema of a node.

A form is called with a value and the rank of the node's first input.  It returns the value that the converter gets, or
raises Wrong.

Examples
--------
>>> axis(-1, 3), axes([0, -1], 3)
(2, [0, 2])
>>> axis(7, 3)
Traceback (most recent call last):
varlen_rnn.onnx.forms.Wrong: an axis from -3 to 2
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Form = Callable[[Any, int], Any]


class Wrong(Exception):
    """Raised for a value that breaks the rules of ONNX; the message describes valid values."""


def integers(value: Any, rank: int) -> list[int]:
    """Return a vector of integers."""
    if np.ndim(value) != 1:
        raise Wrong("a vector of integers")
    return [int(number) for number in value]


def axis(value: Any, rank: int) -> int:
    """Return an axis, counted from 0."""
    if not -rank <= value < rank:
        raise Wrong(f"an axis from {-rank} to {rank - 1}")
    return int(value) % rank


def axes(value: Any, rank: int) -> list[int]:
    """Return one or more axes, counted from 0."""
    if np.ndim(value) > 1:
        raise Wrong("a vector of integers")
    found = [axis(number, rank) for number in np.ravel(value)]
    if len(set(found)) < len(found):
        raise Wrong("each axis once")
    return found


def new_axes(value: Any, rank: int) -> list[int]:
    """Return axes that the result has in addition to the axes of the input."""
    return axes(value, rank + np.size(value))


def permutation(value: Any, rank: int) -> list[int]:
    """Return all axes in another order."""
    if sorted(value) != list(range(rank)):
        raise Wrong(f"each of the axes 0 to {rank - 1} once")
    return list(value)


def sizes(value: Any, rank: int) -> list[Any]:
    """Return the sizes of a shape; a size that only a run tells is no integer."""
    if np.ndim(value) != 1:
        raise Wrong("a vector of integers")
    found = [int(size) if isinstance(size, (int, np.integer)) else size for size in value]
    numbers = [size for size in found if isinstance(size, int)]
    if any(size < -1 for size in numbers) or numbers.count(-1) > 1:
        raise Wrong("sizes from 0 on, and -1 once at most")
    return found


def flag(value: Any, rank: int) -> bool:
    """Return whether an integer is 1."""
    if value not in (0, 1):
        raise Wrong("0 or 1")
    return bool(value)


def number(value: Any, rank: int) -> float:
    """Return a finite number."""
    if not math.isfinite(value):
        raise Wrong("a finite number")
    return float(value)


# By the name of an attribute or input in lower case; a name with the kind of a node before it is for this kind alone.
FORMS: dict[str, Form] = {
    "Flatten.axis": lambda value, rank: int(value),
    "Unsqueeze.axes": new_axes,
    "alpha": number,
    "axes": axes,
    "axis": axis,
    "ends": integers,
    "epsilon": number,
    "input_forget": flag,
    "keepdims": flag,
    "layout": flag,
    "linear_before_reset": flag,
    "perm": permutation,
    "shape": sizes,
    "starts": integers,
    "steps": integers,
}
