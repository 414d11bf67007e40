"""Checks of the arrays and values of a file, before an estimator gets them: kernels trust indices and shapes.

Any error that a check raises becomes a `CheckpointError` in `load`, which names the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from varlen_rnn.errors import FINITE, DTypeError, InputError, ShapeError, check_int, check_list, check_number, shown


def array_of(
    arrays: Mapping[str, np.ndarray], name: str, shape: tuple[int | None, ...], dtype: Any = np.float32
) -> np.ndarray:
    """Return an array of a file, or raise unless it has this shape (None is any size) and data type, and no NaN."""
    array = arrays.get(name)
    if not isinstance(array, np.ndarray):
        raise InputError(name, expected="an array", got=shown(array))
    if array.dtype != dtype:
        raise DTypeError(name, expected=f"an array of {np.dtype(dtype)}", got=f"an array of {array.dtype}")
    if len(array.shape) != len(shape) or any(n not in (None, m) for n, m in zip(shape, array.shape, strict=True)):
        raise ShapeError(name, expected=f"shape {shape}", got=f"shape {array.shape}")
    return check_that(array, ~np.isnan(array), name, "numbers")


def finite_of(arrays: Mapping[str, np.ndarray], name: str, shape: tuple[int | None, ...], dtype: Any = "f") -> Any:
    """Return an array of a file as `array_of` does, or raise if a number of it is infinite."""
    array = array_of(arrays, name, shape, dtype)
    return check_that(array, np.isfinite(array), name, "finite numbers")


def check_that(array: np.ndarray, holds: np.ndarray | bool, name: str, expected: str) -> np.ndarray:
    """Return `array`, or raise an error with `expected` unless all entries of `holds` are true."""
    if not np.all(holds):
        raise InputError(name, expected=expected, got=shown(array))
    return array


def numbers_of(value: Any, name: str, size: int | None = None) -> list[float]:
    """Return `value` as a list of floats, or raise unless it is a list of finite numbers of this size."""
    found = [check_number(each, name, *FINITE) for each in check_list(value, name)]
    return _of_size(found, name, size)


def scales_of(value: Any, name: str, size: int | None = None) -> list[float]:
    """Return saved scales (divisors of features or targets) as a list; raise unless all are finite and above 0."""
    found = numbers_of(value, name, size)
    check_that(np.array(found), np.array(found) > 0, name, "numbers above 0")
    return found


def wholes_of(value: Any, name: str, end: int) -> list[int]:
    """Return a list of different integers from 0 and below `end`, or raise."""
    found = [check_int(each, name, 0) for each in check_list(value, name)]
    holds = len(set(found)) == len(found) and max(found, default=-1) < end
    check_that(np.array(found), holds, name, f"different integers below {end}")
    return found


def texts_of(value: Any, name: str, size: int | None = None) -> list[str]:
    """Return `value`, or raise unless it is a list of different texts of this size."""
    found = check_list(value, name, "a list of texts")
    if not all(isinstance(text, str) for text in found) or len(set(found)) != len(found):
        raise InputError(name, expected="different texts", got=shown(value))
    return _of_size(found, name, size)


def _of_size(found: list[Any], name: str, size: int | None) -> list[Any]:
    if size is not None and len(found) != size:
        raise ShapeError(name, expected=f"{size} entries", got=f"{len(found)} entries")
    return found
