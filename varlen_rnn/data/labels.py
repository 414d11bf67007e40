"""Convert labels, as they are read from files, to arrays: classes or numbers, of sequences or of rows."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from varlen_rnn.data.missing import EMPTY, Where, is_missing
from varlen_rnn.errors import DTypeError, InputError, ShapeError, check_choice, check_list, count, shown

# The kinds of labels.  A sequence has one class ("classes"), one or more numbers ("numbers"), or any number of classes
# ("several classes").  Or each of its rows has a class or a number.
KINDS = ("classes", "numbers", "several classes", "classes of rows", "numbers of rows")
IGNORED = -100  # the class of a row without a label; losses ignore it

_INTEGER = re.compile(r"[+-]?\d+")
_MOST_BITS = 10_000  # the longest integer; Python prints at most 4,300 digits
_NUMBERS = {int, float}
_NAMES = {str, int, bool}


def labels_of(
    values: Sequence[Any],
    lengths: Sequence[int],
    where: Where,
    classes: Iterable[str] | None,
    kind: str | None = None,
    gaps: bool = False,
) -> tuple[np.ndarray | list[np.ndarray], list[str]]:
    """Return the array or list of labels for a `Dataset`, and the names of the classes; numbers have no classes.

    Lists that are as long as their sequences (`lengths`) are labels of rows, unless `kind` says otherwise.  With
    `gaps`, rows may lack a class; the class of such rows is -100.

    Examples
    --------
    >>> labels_of(["b", "a"], [3, 4], str, None)
    (array([1, 0]), ['a', 'b'])
    >>> labels_of([[0, 1], [1]], [2, 1], str, None)
    ([array([0, 1]), array([1])], ['0', '1'])
    >>> labels_of([0.5, 2], [2, 1], str, None)
    (array([0.5, 2. ], dtype=float32), [])
    """
    kind = check_choice(_kind(values, lengths, where) if kind is None else kind, "label_kind", *KINDS)
    if "numbers" in kind and classes is not None and list(classes):
        raise InputError("classes", expected="no classes, because the labels are numbers", got=shown(classes))
    if kind == "numbers":
        return _numbers(values, where), []
    if kind == "classes":
        names, found = _names([[value] for value in values], where, classes)
        return np.array(found, np.int64).reshape(-1).view(), names
    for number, (value, length) in enumerate(zip(values, lengths, strict=True)):
        if not isinstance(value, (list, tuple)):
            raise DTypeError(where(number), expected="a list of labels", got=shown(value))
        if kind.endswith("of rows") and len(value) != length:
            expected = f"{count(length, 'label')}, one per row"
            raise ShapeError(where(number), expected=expected, got=count(len(value), "label"))
    if kind == "numbers of rows":
        return [_float32(value, where(number)) for number, value in enumerate(values)], []
    names, rows = _names(values, where, classes, gaps and kind == "classes of rows")
    if kind == "classes of rows":
        return rows, names
    hot = np.zeros((len(rows), len(names)), np.float32)
    for number, labels in enumerate(rows):
        hot[number, labels] = 1
    return hot, names


def typed(texts: Sequence[str]) -> Sequence[Any]:
    """Return the labels of a CSV file as floats if all are numbers and at least one is no integer.

    Otherwise they stay texts.  If all labels are numbers, integers included, a missing label becomes None.

    Examples
    --------
    >>> typed(["1", "2.5", "nan"]), typed(["1", "2", ""]), typed(["1", "x", "nan"])
    ([1.0, 2.5, None], ['1', '2', None], ['1', 'x', 'nan'])
    """
    there = [text.strip().lower() not in EMPTY for text in texts]
    given = list(itertools.compress(texts, there))
    integers = all(_INTEGER.fullmatch(text.strip()) for text in given)
    try:
        numbers = list(map(float, given))
    except ValueError:
        return texts
    found: Iterator[Any] = iter(given if integers else numbers)
    return [next(found) if here else None for here in there]


def _kind(values: Sequence[Any], lengths: Sequence[int], where: Where) -> str:
    lists = [isinstance(value, (list, tuple)) for value in values]
    if not any(lists):
        return "numbers" if set(map(type, values)) <= _NUMBERS and float in map(type, values) else "classes"
    if not all(lists):
        number = lists.index(not lists[0])
        expected = ("a list" if lists[0] else "a single label, no list") + f", as in {where(0)}"
        raise DTypeError(where(number), expected=expected, got=shown(values[number]))
    inside = {type(label) for value in values for label in value}
    of_numbers = inside <= _NUMBERS and float in inside
    if all(len(value) == length for value, length in zip(values, lengths, strict=True)):
        return "numbers of rows" if of_numbers else "classes of rows"
    if inside <= _NUMBERS and len({len(value) for value in values}) == 1:
        return "numbers"
    if inside <= {str}:
        return "several classes"
    number = next(k for k, value in enumerate(values) if len(value) != lengths[k])
    expected, got = f"{count(lengths[number], 'label')}, one per row", count(len(values[number]), "label")
    raise ShapeError(where(number), expected=expected, got=got)


def _numbers(values: Sequence[Any], where: Where) -> np.ndarray:
    """Return float32 labels of shape `(sequences,)`, or `(sequences, targets)` if each value is a list."""
    width: int | None = None
    for number, value in enumerate(values):
        own = len(value) if isinstance(value, (list, tuple)) else 0
        width = own if width is None else width
        if own != width:
            expected = (count(width, "number") if width else "a single number") + f", as in {where(0)}"
            raise ShapeError(where(number), expected=expected, got=shown(value))
    flat = [[value] if not width else value for value in values]
    found = np.array([_float32(row, where(number)) for number, row in enumerate(flat)], np.float32)
    return (found.reshape(len(values), -1) if width else found.reshape(len(values))).view()


def _float32(row: Sequence[Any], where: str) -> np.ndarray:
    numbers = []
    for value in row:
        try:
            number = float(value) if type(value) in (int, float, str) else None
        except (ValueError, OverflowError):
            number = None
        if number is None:
            raise DTypeError(where, expected="a number", got=shown(value))
        numbers.append(number)
    array = np.array(numbers, np.float64)
    if not (np.abs(array) <= np.finfo(np.float32).max).all():
        raise InputError(where, expected="a finite number that fits float32", got=shown(list(row)))
    return array.astype(np.float32).view()


def _names(
    lists: Sequence[Sequence[Any]], where: Where, classes: Iterable[str] | None, gaps: bool = False
) -> tuple[list[str], list[np.ndarray]]:
    """Return the names of the classes, and each label's index among them; all labels must have the same type."""
    common: tuple[type, str] | None = None
    named: list[list[str | None]] = []
    for number, labels in enumerate(lists):
        for label in labels:
            kind = type(label)
            if is_missing(label):
                if gaps:
                    continue
                hint = "to leave it out, pass `missing='drop'`"
                raise InputError(where(number), expected="a label", got="no label", hint=hint)
            if kind not in _NAMES:
                raise DTypeError(where(number), expected="a string or an integer", got=shown(label))
            if kind is int and label.bit_length() > _MOST_BITS:
                raise InputError(where(number), expected="an integer that can be printed", got=shown(label))
            if common is not None and kind is not common[0]:
                expected = f"type {common[0].__name__}, as in {common[1]}"
                raise DTypeError(where(number), expected=expected, got=shown(label))
            common = common or (kind, where(number))
        named.append([None if is_missing(label) else _name(label) for label in labels])
    if classes is None:
        distinct = {name for found in named for name in found if name is not None}
        are_integers = all(map(_INTEGER.fullmatch, distinct))
        names = sorted(distinct, key=lambda name: (int(name), name)) if are_integers else sorted(distinct)
    else:
        given = check_list(classes, "classes")
        for number, name in enumerate(given):
            if not isinstance(name, (str, int)):
                raise DTypeError(f"classes, entry {number}", expected="a string or an integer", got=shown(name))
        names = list(map(str, given))
    ids: dict[str | None, int] = {name: number for number, name in enumerate(names)} | ({None: IGNORED} if gaps else {})
    for number, found in enumerate(named):
        for name in found:
            if name not in ids:
                raise InputError(where(number), expected=f"one of the {len(names)} classes", got=shown(name))
    return names, [np.fromiter(map(ids.__getitem__, found), np.int64, len(found)).view() for found in named]


def _name(label: str | int) -> str:
    return str(label).lower() if type(label) is bool else str(label)
