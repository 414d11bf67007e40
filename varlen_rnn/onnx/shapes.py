"""Compute the shapes of an ONNX model as far as they are known: the sizes of a batch are known only in a run.

For example, PyTorch's exporter joins two directions of 5 units by a reshape of (steps, sequences, 2, 5).  The model
computes the new shape from the old one; with `Sizes`, the result is (STEPS, SEQUENCES, 10).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from varlen_rnn.onnx.checks import Unread
from varlen_rnn.onnx.values import Rows, Sizes, Unknown
from varlen_rnn.tape.variable import Variable

_MOST = 64  # the most numbers in a shape, because each node of a damaged model could double them
_MOVES = ("Identity", "Cast", "Gather", "Slice", "Squeeze", "Unsqueeze", "Reshape")  # zeros stay zeros
_INTEGERS = (6, 7)  # ONNX's numbers of int32 and int64
ALIKE = ("Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape")  # lengths stay as they are
_OTHERS = ("Concat", "Mul", "Add", "Sub", "Div", "Equal", "Greater", "Less", "Not", "And", "Or", "Where")


def shape_of(x: Any, start: int = 0, end: int | None = None) -> Any:
    """Return the result of the node `Shape`."""
    if isinstance(x, Unknown):
        return Unknown()
    if isinstance(x, Rows):
        found = [axis if isinstance(axis, str) else x.variable.shape[axis + 1] for axis in x.axes]
    else:
        found = list(x.numbers.shape if isinstance(x, Sizes) else x.shape)
    return _known(np.array([None if size == -1 else size for size in found], object)[start:end])


def size_of(x: Any) -> Any:
    """Return the result of the node `Size`."""
    if isinstance(x, Sizes):
        return np.array(x.numbers.size)
    if isinstance(x, (Rows, Unknown)) or -1 in x.shape:
        return Unknown()
    return np.array(math.prod(x.shape))


def _known(numbers: np.ndarray) -> Any:
    """Return numbers of a shape as an array if all are known, otherwise as `Sizes`; `Unknown` if there are too many."""
    if numbers.size > _MOST:
        return Unknown()
    if all(isinstance(number, (int, np.integer)) for number in numbers.flat):
        return numbers.astype(np.int64)
    return Sizes(numbers)


def computed(kind: str, values: list[Any], named: dict[str, Any]) -> Any:
    """Return the result of a node whose inputs include shapes; raise if it depends on the content of a batch."""
    if any(isinstance(value, (Rows, Variable)) for value in values):
        raise Unread("by a shape or by lengths that are known only in a run")
    if kind == "ConstantOfShape":
        value = named.get("value")
        return Unknown(is_zeros=value is None or not np.any(value))
    if kind == "Expand":
        return Unknown(is_zeros=isinstance(values[0], np.ndarray) and not np.any(values[0]))
    is_number = kind != "Cast" or named["to"] in _INTEGERS
    if kind in _NUMBERS and is_number and all(isinstance(value, (Sizes, np.ndarray, type(None))) for value in values):
        given = [value.numbers if isinstance(value, Sizes) else value for value in values]
        try:
            return _known(_NUMBERS[kind](given, named))
        except (IndexError, ValueError) as error:
            raise Unread(f"of shapes ({error})") from error
    if kind in _MOVES + _OTHERS:
        unknown = [value for value in values if isinstance(value, Unknown)]
        of_lengths = any(value.lengths for value in unknown)
        are_same = kind in ALIKE and all(value.lengths == "given" for value in unknown)
        is_zeros = isinstance(values[0], Unknown) and values[0].is_zeros and kind in _MOVES
        return Unknown(is_zeros, ("given" if are_same else "computed") if of_lengths else None)
    raise Unread("of a shape or of lengths that are known only in a run")


def _product(x: Any, y: Any) -> Any:
    if isinstance(x, (int, np.integer)) and isinstance(y, (int, np.integer)):
        return int(x) * int(y)
    return y if x == 1 else x if y == 1 else None


def slices(starts: list[int], ends: list[int], axes: list[int] | None, steps: list[int] | None) -> dict[int, slice]:
    """Return, for each axis, the slice that the node `Slice` takes."""
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise Unread(f"with starts {starts}, ends {ends}, axes {axes} and steps {steps}")
    far = 2**31 - 2  # larger numbers mean the end of an axis
    return {
        axis: slice(start, None if (end if step > 0 else -end) > far else end, step)
        for axis, start, end, step in zip(axes, starts, ends, steps, strict=True)
    }


def _sliced(x: np.ndarray, named: dict[str, Any]) -> np.ndarray:
    taken = slices(*(named.get(name) for name in ("starts", "ends", "axes", "steps")))  # type: ignore[arg-type]
    return x[tuple(taken.get(axis, slice(None)) for axis in range(x.ndim))]


_NUMBERS: dict[str, Callable[[list[Any], dict[str, Any]], Any]] = {
    "Identity": lambda given, named: given[0],
    "Cast": lambda given, named: given[0],
    "Gather": lambda given, named: np.asarray(np.take(given[0], given[1], named["axis"]), object),
    "Slice": lambda given, named: _sliced(given[0], named),
    "Concat": lambda given, named: np.concatenate([np.asarray(one, object) for one in given], named["axis"]),
    "Squeeze": lambda given, named: np.squeeze(given[0], named.get("axes") and tuple(named["axes"])),
    "Unsqueeze": lambda given, named: np.expand_dims(given[0], tuple(named["axes"])),
    "Reshape": lambda given, named: given[0].reshape(named["shape"]),
    "Mul": lambda given, named: np.asarray(np.frompyfunc(_product, 2, 1)(*given), object),
}
