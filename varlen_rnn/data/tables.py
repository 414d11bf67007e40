"""Tables of text: series in long form, one row per step, or wide, one row per series."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from varlen_rnn.data.dataset import Dataset
from varlen_rnn.data.labels import IGNORED, labels_of, typed
from varlen_rnn.errors import DTypeError, InputError, check_list, shown

_EMPTY = {"", "na", "nan", "null", "none", "n/a", "?"}


class Table:
    r"""The fields of a CSV file, and its lines.

    Examples
    --------
    >>> table = Table("a,b\n1,x\n2,\n", ",", "my.csv")
    >>> table.fields, table.column("b"), table.numbers("a")
    (['a', 'b'], ['x', ''], array([1., 2.]))
    """

    def __init__(self, text: str, delimiter: str, name: str) -> None:
        self.name = name
        try:
            reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        except (TypeError, ValueError) as error:
            raise DTypeError("delimiter", expected="a character", got=shown(delimiter)) from error
        try:
            self.fields = next(reader, [])
            self.lines, self._numbers = [], []
            for line in reader:
                if not line:
                    continue
                if len(line) != len(self.fields):
                    where = f"{name}, line {reader.line_num}"
                    raise InputError(where, expected=f"{len(self.fields)} fields", got=len(line))
                self.lines.append(line)
                self._numbers.append(reader.line_num)
        except csv.Error as error:
            raise InputError(f"{name}, line {reader.line_num}", expected="CSV", got=error) from error
        if len(set(self.fields)) < len(self.fields):
            raise InputError(f"{name}, line 1", expected="fields of different names", got=shown(self.fields))
        if not self.lines:
            raise InputError(name, expected="at least one record", got="none", hint="is the file empty?")

    def where(self, number: int) -> str:
        """Return the words for a line."""
        return f"{self.name}, line {self._numbers[number]}"

    def places(self, lines: np.ndarray) -> Callable[[int], str]:
        """Return a function that returns the words for the k-th of some lines."""
        return lambda k: self.where(lines[k])

    def position(self, field: str, option: str) -> int:
        """Return the number of a field, or raise."""
        if not isinstance(field, str) or field not in self.fields:
            got = f"only {', '.join(map(repr, self.fields))}"
            raise InputError(f"{self.name}, line 1, {option}", expected=f"the field {shown(field)}", got=got)
        return self.fields.index(field)

    def column(self, field: str, option: str = "field") -> list[str]:
        """Return the entries of a field."""
        position = self.position(field, option)
        return [line[position] for line in self.lines]

    def numbers(self, field: str, option: str = "features") -> np.ndarray:
        """Return the entries of a field as float64, NaN where they are missing, or raise where one is no number."""
        texts = self.column(field, option)
        try:
            return np.array(list(map(float, texts)))  # an array of texts is as wide as the longest of them
        except ValueError:
            pass
        found = np.empty(len(texts))
        for number, text in enumerate(texts):
            try:
                found[number] = np.nan if text.strip().lower() in _EMPTY else float(text)
            except ValueError as error:
                hint = "features names the fields that are numbers"
                where = f"{self.where(number)}, field {field!r}"
                raise InputError(where, expected="a number", got=shown(text), hint=hint) from error
        return found

    def preview(self) -> str:
        """Return the first lines as they were read."""
        lines = [self.fields, *self.lines[:3]]
        return "; ".join(", ".join(map(shown, line)) for line in lines)


def read_long(
    table: Table,
    id: str,
    time: str | None,
    features: Sequence[str] | None,
    label: str | None,
    missing: str,
    classes: Any,
    label_kind: str | None,
) -> Dataset:
    """Return the data set of a table with a row for each step: rows of one id, in the order of time, are a sequence.

    A label that is the same in all rows of each id is one of sequences, else one of rows.
    """
    names = [name for name in (id, time, label) if name is not None]
    group, times = _groups(table, id), None if time is None else _times(table, time)
    features = _features(table, features, names)
    rows = np.stack([table.numbers(name) for name in features], axis=1)
    order = np.argsort(group, kind="stable") if times is None else np.lexsort((times, group))
    bounds = np.searchsorted(group[order], np.arange(group.max() + 2))
    parts = [order[a:b] for a, b in itertools.pairwise(bounds)]
    texts = None if label is None else table.column(label, "label")
    keep = [_kept(rows[part], missing, table.places(part)) for part in parts]
    sequences = [values for values, _ in keep]
    left = [part[kept] for part, (_, kept) in zip(parts, keep, strict=True)]
    data = _labelled(table, sequences, texts, parts, left, missing, classes, label_kind)
    return dataclasses.replace(data, features=tuple(features))


def read_wide(
    table: Table, features: Sequence[str] | None, label: str | None, missing: str, classes: Any, label_kind: str | None
) -> Dataset:
    """Return the data set of a table with a row for each series: fields are its steps, blanks at the end no steps."""
    features = _features(table, features, [] if label is None else [label])
    rows, sequences = np.stack([table.numbers(name) for name in features], axis=1), []
    for number, row in enumerate(rows):
        there = np.flatnonzero(~np.isnan(row))
        row = row[: there[-1] + 1 if len(there) else 0, None]
        sequences.append(_kept(row, missing, table.places(np.full(len(row), number)))[0])
    texts = None if label is None else table.column(label, "label")
    parts = [np.array([number]) for number in range(len(rows))]
    data = _labelled(table, sequences, texts, parts, parts, missing, classes, label_kind)
    return dataclasses.replace(data, features=tuple(features))


def _features(table: Table, features: Sequence[str] | None, others: Sequence[str]) -> list[str]:
    """Return the names of the fields of numbers."""
    names = [name for name in table.fields if name not in others]
    if features is not None:
        names = check_list(features, "features", "a list of fields")
    if not names:
        raise InputError(table.name, expected="fields of numbers", got=f"only {shown(table.fields)}")
    return names


def _groups(table: Table, id: str) -> np.ndarray:
    """Return the number of each line's id, in the order of the file."""
    numbers: dict[str, int] = {}
    ids = table.column(id, "id")
    for number, text in enumerate(ids):
        if not text.strip():
            raise InputError(f"{table.where(number)}, field {id!r}", expected="an id", got="none")
    return np.fromiter((numbers.setdefault(text, len(numbers)) for text in ids), np.int64, len(ids))


def _times(table: Table, time: str) -> np.ndarray:
    """Return times as numbers: those of the file, or nano- or microseconds of dates."""
    texts = table.column(time, "time")
    try:
        return np.array(list(map(int, texts)), np.int64)  # nanoseconds since 1970 are more than float64 holds
    except (ValueError, OverflowError):
        pass
    try:
        found = np.array(list(map(float, texts)))
        if not np.isnan(found).any():
            return found
    except ValueError:
        pass
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "no explicit representation of timezones")
        dates = [_date(text, f"{table.where(number)}, field {time!r}") for number, text in enumerate(texts)]
    years = np.array([date.astype("datetime64[Y]") for date in dates]).astype(np.int64) + 1970
    # 64 bits hold the nanoseconds of these years, and the microseconds of all.
    unit = "ns" if years.min() > 1677 and years.max() < 2262 else "us"
    return np.array([date.astype(f"datetime64[{unit}]") for date in dates]).astype(np.int64)


def _date(text: str, where: str) -> np.datetime64:
    """Return a date, in UTC where it has a time zone, or raise."""
    try:
        date = np.datetime64(text.strip())
        if not np.isnat(date):
            return date
    except ValueError:
        pass
    raise InputError(where, expected="a number, or a date as 2026-01-31T12:00", got=shown(text))


def _kept(rows: np.ndarray, missing: str, where: Callable[[int], str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of a sequence as float32, by the rule for numbers that are missing, and which rows they are."""
    everyone = np.arange(len(rows))
    too_large = (np.abs(np.nan_to_num(rows, posinf=np.inf, neginf=np.inf)) > np.finfo(np.float32).max).any(axis=1)
    if too_large.any():
        wrong = int(np.flatnonzero(too_large)[0])
        raise InputError(where(wrong), expected="finite numbers that fit float32", got=shown(rows[wrong].tolist()))
    gaps = np.isnan(rows)
    if not gaps.any():
        return rows.astype(np.float32).view(), everyone
    if missing == "error":
        wrong = int(np.flatnonzero(gaps.any(axis=1))[0])
        hint = "missing='drop' leaves such rows out, 'zero' and 'forward' fill them"
        raise InputError(where(wrong), expected="numbers", got="one that is missing", hint=hint)
    if missing == "drop":
        kept = np.flatnonzero(~gaps.any(axis=1))
        return rows[kept].astype(np.float32).view(), kept
    filled = rows.copy()
    if missing == "forward":  # the row of the last number of each column, or none
        last = np.maximum.accumulate(np.where(gaps, -1, everyone[:, None]), axis=0)
        filled = np.where(last >= 0, np.take_along_axis(rows, np.maximum(last, 0), axis=0), np.nan)
    return np.nan_to_num(filled, nan=0.0).astype(np.float32).view(), everyone


def _labelled(
    table: Table,
    sequences: list[np.ndarray],
    texts: list[str] | None,
    parts: list[np.ndarray],
    left: list[np.ndarray],
    missing: str,
    classes: Any,
    label_kind: str | None,
) -> Dataset:
    """Return the data set of sequences whose rows are lines of the table: all of them, and those that are left."""
    if texts is None:
        return Dataset(table.name, sequences, None, [], check_list(classes or [], "classes"), "list")
    own = [[texts[line] for line in part] for part in parts]
    of_rows = label_kind in ("classes of rows", "numbers of rows")
    if label_kind is None:
        of_rows = any(len(set(labels)) > 1 for labels in own)
    gone = [all(not text.strip() for text in labels) for labels in own]
    if missing != "error" and any(gone):  # sequences without a label teach nothing
        there = [number for number, lost in enumerate(gone) if not lost]
        parts, left = [parts[number] for number in there], [left[number] for number in there]
        sequences = [sequences[number] for number in there]
    for number in (line for part in parts for line in part):
        if not texts[number].strip() and missing == "error":
            hint = "missing='drop' leaves it out"
            raise InputError(f"{table.where(number)}, label", expected="a label", got="none", hint=hint)
    lines = left if of_rows else [_line_of_label(table, texts, part) for part in parts]
    own = [[texts[line] for line in part] for part in lines]
    flat = [text for labels in own for text in labels]
    known = typed([text for text in flat if text.strip()])
    kind = label_kind or ("numbers" if known and isinstance(known[0], float) else "classes") + (" of rows" * of_rows)
    values: list[Any] = own if of_rows else [text for (text,) in own]
    where = lambda number: f"{table.where(lines[number][0]) if len(lines[number]) else table.name}, label"
    if kind == "classes of rows" and len(known) < len(flat):
        return _with_gaps(table, sequences, own, where, classes)
    labels, names = labels_of(values, list(map(len, sequences)), where, classes, kind)
    return Dataset(table.name, sequences, labels, [], names, "list")


def _line_of_label(table: Table, texts: list[str], part: np.ndarray) -> list[int]:
    """Return the first line of a sequence that has a label, which no other line contradicts."""
    lines = [line for line in part if texts[line].strip()]
    for line in lines:
        if texts[line] != texts[lines[0]]:
            expected, hint = (
                f"{texts[lines[0]]!r}, as in the first row of its id",
                "label_kind='classes of rows', or 'numbers of rows', takes labels that differ",
            )
            raise InputError(f"{table.where(line)}, label", expected=expected, got=repr(texts[line]), hint=hint)
    return lines[:1]


def _with_gaps(
    table: Table, sequences: list[np.ndarray], own: list[list[str]], where: Callable[[int], str], classes: Any
) -> Dataset:
    """Return the data set of labels of rows of which some are missing: these have the class that losses ignore."""
    there = [np.array([bool(text.strip()) for text in labels], bool) for labels in own]
    present = [[text for text in labels if text.strip()] for labels in own]
    found, names = labels_of(present, list(map(len, present)), where, classes, "classes of rows")
    labels = []
    for mask, numbers in zip(there, found, strict=True):
        full = np.full(len(mask), IGNORED, np.int64)
        full[mask] = numbers
        labels.append(full.view())
    return Dataset(table.name, sequences, labels, [], names, "list")
