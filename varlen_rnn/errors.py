"""Errors of bad input: each names the place, the expected and the found value, and gives a hint.

All of them are `ValueError`s, so callers that know only the standard library can catch them.
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")
_LONGEST = 2000  # characters of a part of a message


class InputError(ValueError):
    """Bad input: the base of every error that this library raises about its arguments.

    Parameters
    ----------
    what : str
        The wrong argument, level or entry.
    expected, got : object, optional
        A description of right values, and the given value.
    hint : str, optional
        The most likely remedy.

    Examples
    --------
    >>> str(InputError("hidden_size", expected="at least 1", got=0, hint="units, not bytes"))
    'hidden_size: expected at least 1, got 0 (units, not bytes)'
    """

    def __init__(self, what: object, *, expected: object = None, got: object = None, hint: str | None = None) -> None:
        message = _text(what)
        if expected is not None:
            message += f": expected {_text(expected)}"
        if got is not None:
            message += f"{',' if expected is not None else ':'} got {_text(got)}"
        if hint is not None:
            message += f" ({_text(hint)})"
        super().__init__(message)


def _text(part: object) -> str:
    """Return a part of a message, of which a list of a million names is none."""
    try:
        text = str(part)
    except Exception:  # an integer with more digits than Python writes, or any error of a caller's object
        return f"a {type(part).__name__} that cannot be printed"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def shown(value: object) -> str:
    """Return the beginning of `repr(value)` for a message; this never raises, for any value.

    Examples
    --------
    >>> shown([1, "a"]), len(shown("a" * 1000))
    ("[1, 'a']", 80)
    """
    try:
        return repr(value)[:80]
    except Exception:  # lists one inside the other, too deep for `repr`; or an integer of too many digits
        return f"a {type(value).__name__} that cannot be printed"


class LoDError(InputError):
    """The level-of-detail structure is invalid, or two structures disagree."""


class ShapeError(InputError):
    """An array has the wrong rank, size or content for its place."""


class DTypeError(InputError, TypeError):
    """A value has the wrong type or data type; data types are never mixed silently."""


class OutOfRangeError(InputError, IndexError):
    """An index or id is out of range."""


class ProgramError(InputError):
    """A recorded computation cannot be described, run or differentiated."""


class CheckpointError(InputError):
    """A file of saved parameters is damaged, or does not fit the model that loads it."""


def check_number(value: Any, name: str, expected: str, holds: Callable[[float], bool]) -> float:
    """Return `value` as a float, or raise an error that names it unless it is a number for which `holds` is true.

    Examples
    --------
    >>> check_number(0.5, "p", "0 <= p <= 1", lambda p: 0 <= p <= 1)
    0.5
    """
    # A Variable remembers how it was computed; the number alone would lose the gradient.
    other = isinstance(value, (bool, str, bytes)) or hasattr(value, "requires_grad") or getattr(value, "ndim", False)
    try:
        number = None if other else float(value)
    except (TypeError, ValueError):
        number = None
    except OverflowError:
        number = math.inf if value > 0 else -math.inf
    if number is None:
        raise DTypeError(name, expected=f"a number, {expected}", got=type(value).__name__)
    if not holds(number):
        raise ShapeError(name, expected=expected, got=number)
    return number


def check_int(value: Any, name: str, minimum: int | None = None) -> int:
    """Return `value` as an int, or raise an error that names it.

    Examples
    --------
    >>> check_int(3, "num_layers", 1)
    3
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise DTypeError(name, expected="an integer", got=type(value).__name__)
    if minimum is not None and number < minimum:
        raise ShapeError(name, expected=f"at least {minimum}", got=shown(number))
    return number


def check_flag(value: object, name: str) -> bool:
    """Return whether `value` is true, or raise an error that names it: an array of several is neither.

    Examples
    --------
    >>> check_flag(1, "bias")
    True
    """
    try:
        return bool(value)
    except (TypeError, ValueError) as error:
        raise DTypeError(name, expected="True or False", got=shown(value)) from error


def check_choice(value: Any, name: str, *choices: str) -> str:
    """Return `value`, one of some texts, or raise an error that names it.

    Examples
    --------
    >>> check_choice("sum", "reduction", "mean", "sum")
    'sum'
    """
    if not isinstance(value, str) or value not in choices:
        *others, last = map(repr, choices)
        raise ShapeError(name, expected=f"one of {', '.join(others)} or {last}", got=shown(value))
    return value


def check_list(value: Any, name: str, expected: str = "a list") -> list[Any]:
    """Return the entries of an iterable as a list; raise for a text, a mapping, a set or a Variable, too.

    Examples
    --------
    >>> check_list((1, 2), "shape")
    [1, 2]
    """
    try:
        # A Variable's rows, taken for a list, would be new Variables.
        other = isinstance(value, (str, bytes, Mapping, set, frozenset)) or hasattr(value, "requires_grad")
        entries = None if other else iter(value)
    except TypeError:
        entries = None
    if entries is None:
        raise DTypeError(name, expected=expected, got=shown(value))
    return list(entries)


def check_callable(value: T, name: str) -> T:
    """Return a callable, or raise an error that names the argument.

    Examples
    --------
    >>> check_callable(len, "cost")([1])
    1
    """
    if not callable(value):
        raise DTypeError(name, expected="a function", got=shown(value))
    return value


def check_path(value: Any, name: str) -> str:
    """Return a path as a text, or raise an error that names it.

    Examples
    --------
    >>> check_path(b"model.safetensors", "path")
    'model.safetensors'
    """
    try:
        path = os.fsdecode(value)
        if "\0" not in os.fsencode(path).decode(errors="replace"):
            return path
    except (TypeError, UnicodeError):
        pass
    raise DTypeError(name, expected="a path", got=shown(value))


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
