"""Errors of bad input: what is wrong, where, what was expected, what came, and a hint.

All of them are `ValueError`s, so callers that know only the standard library can catch them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class InputError(ValueError):
    """Bad input: the base of every error that this library raises about its arguments.

    Parameters
    ----------
    what : str
        What is wrong, and where: the argument, level or entry.
    expected, got : object, optional
        What would have been right, and what came.
    hint : str, optional
        What the caller most likely meant.

    Examples
    --------
    >>> str(InputError("hidden_size", expected="at least 1", got=0, hint="units, not bytes"))
    'hidden_size: expected at least 1, got 0 (units, not bytes)'
    """

    def __init__(self, what: object, *, expected: object = None, got: object = None, hint: str | None = None) -> None:
        message = str(what)
        if expected is not None:
            message += f": expected {expected}"
        if got is not None:
            message += f"{',' if expected is not None else ':'} got {got}"
        if hint is not None:
            message += f" ({hint})"
        super().__init__(message)


class LoDError(InputError):
    """The level-of-detail structure is invalid, or two structures disagree."""


class ShapeError(InputError):
    """An array has the wrong rank, size or content for its place."""


class DTypeError(InputError, TypeError):
    """A value has the wrong type or data type; data types are never mixed silently."""


class OutOfRangeError(InputError, IndexError):
    """An index or id lies outside of what it indexes."""


class ProgramError(InputError):
    """A recorded computation cannot be described, run or differentiated."""


class CheckpointError(InputError):
    """A file of saved parameters is damaged, or does not fit what it is loaded into."""


def check_number(value: Any, name: str, expected: str, holds: Callable[[float], bool]) -> float:
    """Return `value` as a float, or raise an error that names it unless it is a number for which `holds` is true.

    Examples
    --------
    >>> check_number(0.5, "p", "0 <= p <= 1", lambda p: 0 <= p <= 1)
    0.5
    """
    # Of what remembers how it was computed, the number alone would lose the gradient.
    other = isinstance(value, (bool, str, bytes)) or hasattr(value, "requires_grad")
    if other or not hasattr(value, "__float__") or getattr(value, "ndim", False):
        raise DTypeError(name, expected=f"a number, {expected}", got=type(value).__name__)
    value = float(value)
    if not holds(value):
        raise ShapeError(name, expected=expected, got=value)
    return value


def check_int(value: Any, name: str, minimum: int | None = None) -> int:
    """Return `value` as an int, or raise an error that names it.

    Examples
    --------
    >>> check_int(3, "num_layers", 1)
    3
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise DTypeError(name, expected="an integer", got=type(value).__name__)
    value = value.__index__()
    if minimum is not None and value < minimum:
        raise ShapeError(name, expected=f"at least {minimum}", got=value)
    return value


def check_none(what: str, **given: object) -> None:
    """Raise unless the arguments of NumPy that `what` does not know are None, as `np.sum(variable)` gives them."""
    for name, value in given.items():
        if value is not None:
            raise DTypeError(f"{what}, {name}", expected="None", got=value, hint="np.asarray(x) has the values")


def count(number: int, noun: str) -> str:
    """Return the number and the noun, plural where it is not one.

    Examples
    --------
    >>> count(1, "row"), count(2, "row")
    ('1 row', '2 rows')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"
