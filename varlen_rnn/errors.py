"""Errors about bad input, and checks of arguments that raise them.

A message names the argument, the expected and the given value, and often a remedy.  All errors are `ValueError`s, so
that callers can catch them without importing them.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import operator
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
_LONGEST = 2000  # characters of each part of a message


class InputError(ValueError):
    """The base class of all errors that this library raises about its arguments.

    Parameters
    ----------
    what : str
        The name of the wrong argument, level or entry.
    expected, got : object, optional
        A description of valid values, and the given value.
    hint : str, optional
        The most likely remedy.  Names of arguments are in backticks, so that the command line can show options instead.

    Attributes
    ----------
    what, expected, got, hint : object
        The parts of the message.

    Examples
    --------
    >>> str(InputError("hidden_size", expected="at least 1", got=0, hint="units, not bytes"))
    'hidden_size: expected at least 1, got 0 (units, not bytes)'
    """

    def __init__(self, what: object, *, expected: object = None, got: object = None, hint: str | None = None) -> None:
        self.what, self.expected, self.got, self.hint = what, expected, got, hint
        message = _text(what)
        if expected is not None:
            message += f": expected {_text(expected)}"
        if got is not None:
            message += f"{',' if expected is not None else ':'} got {_text(got)}"
        if hint is not None:
            message += f" ({_text(hint)})"
        super().__init__(message)


def _text(part: object) -> str:
    try:
        text = str(part)
    except Exception:  # an integer with too many digits, or an error in the object's own `__str__`
        return f"a {type(part).__name__} that cannot be printed"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def warn(what: object, *, expected: object, got: object, hint: str | None = None) -> None:
    """Warn of a probable mistake, in the words of an `InputError`, at the line that called the package."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == __package__:
        level, frame = level + 1, frame.f_back
    message = str(InputError(what, expected=expected, got=got, hint=hint))
    warnings.warn(message, UserWarning, stacklevel=level)


def shown(value: object) -> str:
    """Return the first 80 characters of `repr(value)` for a message; this never raises."""
    try:
        return repr(value)[:80]
    except Exception:  # nested too deeply for `repr`, or an integer with too many digits
        return f"a {type(value).__name__} that cannot be printed"


def listed(names: Iterable[object], most: int = 10) -> str:
    """Return the first `most` names as text for a message, and how many more there are."""
    texts = [shown(name) for name in names]
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


def alike(name: object, names: Iterable[object]) -> str | None:
    """Return a hint with the entry of `names` that is most like an unknown `name`, or None if no entry is similar."""
    texts = [text for text in names if isinstance(text, str)]
    found = difflib.get_close_matches(name[:80], texts, 1) if isinstance(name, str) else []
    return f"is it {shown(found[0])}?" if found else None


def unexpected(function: str, name: str, hint: str | None = None) -> TypeError:
    """Return the error for a keyword argument that a function does not have."""
    return TypeError(f"{function}() got an unexpected keyword argument {name!r}" + (f" ({hint})" if hint else ""))


def _name_of(function: Callable[..., Any], inputs: tuple[Any, ...]) -> str:
    """Return the name of a function, or `Class.name` if it is a method and `inputs[0]` is its object or class."""
    owner, dot, name = function.__qualname__.rpartition(".")
    if not dot or not inputs or "<locals>" in owner:
        return function.__qualname__
    of = inputs[0] if isinstance(inputs[0], type) else type(inputs[0])
    return f"{of.__name__}.{name}"


def hinting(otherwise: str | None = None, /, **hints: str) -> Callable[[F], F]:
    """Return a decorator that adds hints to a function's errors about keywords that only other libraries have.

    `hints` maps each such keyword to its hint.  `otherwise` is the hint for any other keyword, unless it is similar to
    a keyword of the function.

    Examples
    --------
    >>> @hinting(dim="its name is axis")
    ... def total(x, axis=0, *, scale=1):
    ...     return x
    >>> total([1], dim=1)
    Traceback (most recent call last):
    TypeError: total() got an unexpected keyword argument 'dim' (its name is axis)
    """

    def decorate(function: F) -> F:
        parameters = inspect.signature(function).parameters.values()
        taken = {p.name for p in parameters if p.kind not in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL, p.VAR_KEYWORD)}
        options = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
        most = sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
        most = sys.maxsize if any(p.kind is p.VAR_POSITIONAL for p in parameters) else most

        @functools.wraps(function)
        def call(*inputs: Any, **named: Any) -> Any:
            if named and (wrong := named.keys() - taken if not takes_any else hints.keys() & named.keys()):
                name = min(wrong)
                hint = hints.get(name) or alike(name, taken) or otherwise
                raise unexpected(_name_of(function, inputs).removesuffix(".__init__"), name, hint)
            if len(inputs) > most:
                raise _surplus(function, inputs, most, options, hints)
            return function(*inputs, **named)

        return cast(F, call)

    return decorate


def _surplus(
    function: Callable[..., Any], inputs: tuple[Any, ...], most: int, options: list[str], hints: Mapping[str, str]
) -> TypeError:
    """Return the error for too many positional arguments, with the names of up to six keyword-only arguments."""
    name = _name_of(function, inputs)
    of_method = name != function.__name__ or "." in name
    found = [f"options have names: {', '.join(f'{option}=' for option in options[:6])}"] if options else []
    found += [f"{keyword}: {hint}" for hint, keyword in {hint: keyword for keyword, hint in hints.items()}.items()]
    takes, got = count(most - of_method, "positional argument"), len(inputs) - of_method
    text = f" ({'; '.join(found)})" if found else ""
    return TypeError(f"{name.removesuffix('.__init__')}() takes {takes}, got {got}{text}")


NO_BATCH_AXIS = "leave it out: rows have no batch axis"
_LAST_AXIS = (
    "leave it out, because the function always uses the last axis, like dim=-1; for another axis, call "
    "transpose(axis, -1) before and after; sequence_softmax runs over the steps of each sequence"
)
over_last_axis = hinting(dim=_LAST_AXIS, axis=_LAST_AXIS)
IN_PLACE = "leave it out: no operator changes its operands"
NO_DEVICE = 'leave it out: to("cuda") moves it'
NO_NORM = "leave it out: a lookup changes no row"
NUMPY_NAMES = {
    "dim": "its name is axis, as in NumPy",
    "keepdim": "its name is keepdims, as in NumPy",
    "dim0": "its name is axis0",
    "dim1": "its name is axis1",
}
numpy_names = hinting(**NUMPY_NAMES)


class LoDError(InputError):
    """A LoD (level of detail: how rows form sequences) is invalid, or two LoDs that must be equal differ."""


class ShapeError(InputError):
    """An array has the wrong rank, size or content for its use."""


class DTypeError(InputError, TypeError):
    """A value has the wrong type or data type; the library never mixes data types silently."""


class OutOfRangeError(InputError, IndexError):
    """An index or id is out of range."""


class PlaceError(InputError, TypeError):
    """Values are in different places, or an operator has no kernel where its values are; nothing is copied unasked."""


class ProgramError(InputError):
    """A recorded computation cannot be described, run or differentiated."""


class CheckpointError(InputError):
    """A file of saved parameters is damaged, or does not fit the model that loads it."""


# The ranges of numbers that most checks name, as the last two arguments of `check_number`.
FINITE = "a finite number", math.isfinite
NOT_NEGATIVE = "finite and at least 0", lambda number: 0 <= number < math.inf
POSITIVE = "finite and more than 0", lambda number: 0 < number < math.inf
SHARE = "0 to 1", lambda number: 0 <= number <= 1


def check_number(value: Any, name: str, expected: str, holds: Callable[[float], bool]) -> float:
    """Return `value` as a float; raise an error that names it `name` unless it is a number and `holds(number)`."""
    # A Variable is refused, because converting it to a float would lose its gradient.
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
    """Return `value` as an int; raise an error that names it `name` if it is no integer, or is below `minimum`."""
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
    """Return `bool(value)`; raise an error that names it `name` if that fails, as for an array of several numbers."""
    try:
        return bool(value)
    except (TypeError, ValueError) as error:
        raise DTypeError(name, expected="True or False", got=shown(value)) from error


def check_choice(value: Any, name: str, *choices: str) -> str:
    """Return `value`, or raise an error with `name` unless it is one of the strings `choices`."""
    if not isinstance(value, str) or value not in choices:
        *others, last = map(repr, choices)
        raise ShapeError(name, expected=f"one of {', '.join(others)} or {last}", got=shown(value))
    return value


def check_list(value: Any, name: str, expected: str = "a list") -> list[Any]:
    """Return the entries of an iterable as a list, or raise; strings, mappings, sets and Variables are errors."""
    try:
        # Iterating over a Variable would silently split it into one new Variable per row.
        other = isinstance(value, (str, bytes, Mapping, set, frozenset)) or hasattr(value, "requires_grad")
        entries = None if other else iter(value)
    except TypeError:
        entries = None
    if entries is None:
        raise DTypeError(name, expected=expected, got=shown(value))
    return list(entries)


def check_callable(value: T, name: str) -> T:
    """Return `value`, or raise an error with `name` unless it is callable."""
    if not callable(value):
        raise DTypeError(name, expected="a function", got=shown(value))
    return value


def check_path(value: Any, name: str) -> str:
    """Return a path as a str, or raise an error with `name` if it is not a valid path."""
    try:
        path = os.fsdecode(value)
        if "\0" not in os.fsencode(path).decode(errors="replace"):
            return path
    except (TypeError, UnicodeError):
        pass
    raise DTypeError(name, expected="a path", got=shown(value))


def check_none(what: str, **given: object) -> None:
    """Raise unless all `given` arguments, such as the `out` that `np.sum(variable)` passes to a method, are None."""
    for name, value in given.items():
        if value is not None:
            raise DTypeError(f"{what}, {name}", expected="None", got=value, hint="np.asarray(x) has the values")


def count(number: int, noun: str) -> str:
    """Return a number and a noun as text, such as "1 row" or "2 rows"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
