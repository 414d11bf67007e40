"""Read series from CSV tables: in long form, with one row per step, or in wide form, with one row per series."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from varlen_rnn.data.dataset import Dataset
from varlen_rnn.data.doubts import warn_of_few_differences, warn_of_repeats
from varlen_rnn.data.labels import labels_of, typed
from varlen_rnn.data.large_ids import check_no_large_id
from varlen_rnn.data.missing import EMPTY, is_missing, with_labels, without_gaps
from varlen_rnn.data.options import Options
from varlen_rnn.errors import DTypeError, InputError, alike, check_list, listed, shown

_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
FORMS = "`sequence` names the column of texts or lists; `id` (and `time`) read a row per step; `wide` a series per row"


class Table:
    r"""A CSV file: the names of its fields, and its lines.

    Examples
    --------
    >>> table = Table("a,b\n1,x\n2,\n", ",", "my.csv")
    >>> table.fields, table.column("b"), table.numbers("a")
    (['a', 'b'], ['x', ''], array([1., 2.]))
    """

    def __init__(self, text: str, delimiter: str, name: str) -> None:
        self.name, self.head = name, f"{name}, line 1"
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
                    expected = f"{len(self.fields)} field{'s' * (len(self.fields) > 1)}"
                    hint = other_delimiter(self.fields)
                    raise InputError(where, expected=expected, got=len(line), hint=hint)
                self.lines.append(line)
                self._numbers.append(reader.line_num)
        except csv.Error as error:
            raise InputError(f"{name}, line {reader.line_num}", expected="CSV", got=error) from error
        if len(set(self.fields)) < len(self.fields):
            hint = "the first line names the fields; a file without names needs such a line"
            raise InputError(self.head, expected="fields of different names", got=listed(self.fields), hint=hint)
        if not self.lines:
            raise InputError(name, expected="at least one record", got="none", hint="is the file empty?")

    def __len__(self) -> int:
        return len(self.lines)

    def where(self, number: int) -> str:
        """Return a description of a line for error messages: the file and the line number."""
        return f"{self.name}, line {self._numbers[number]}"

    def place(self, number: int, field: str) -> str:
        """Return a description of an entry for error messages."""
        return f"{self.where(number)}, field {field!r}"

    def places(self, lines: np.ndarray) -> Callable[[int], str]:
        """Return a function of k that describes the line number `lines[k]` for error messages."""
        return lambda k: self.where(lines[k])

    def position(self, field: str, option: str) -> int:
        """Return the position of a field, or raise an error that names the option."""
        if not isinstance(field, str) or field not in self.fields:
            expected, got = f"the field {shown(field)}", f"only {listed(self.fields)}"
            hint = other_delimiter(self.fields) or alike(field, self.fields)
            raise InputError(f"{self.head}, `{option}`", expected=expected, got=got, hint=hint)
        return self.fields.index(field)

    def column(self, field: str, option: str = "field") -> list[str]:
        """Return the entry of a field in each line."""
        position = self.position(field, option)
        return [line[position] for line in self.lines]

    def ids(self, field: str) -> list[str]:
        """Return the id in each line; a missing id is blank."""
        return self.column(field, "id")

    def labels(self, field: str, kind: str | None) -> Sequence[Any]:
        """Return the label in each line, as floats if all are numbers; a missing label is None or blank."""
        return typed(self.column(field, "label"))

    def times(self, field: str) -> np.ndarray:
        """Return the time in each line as a number."""
        return times_of(self.column(field, "time"), lambda number: self.place(number, field))

    def numbers(self, field: str, option: str = "features") -> np.ndarray:
        """Return a field's entries as float64; a missing entry is NaN, any other text that is no number raises."""
        texts = self.column(field, option)
        try:
            found = np.array(list(map(float, texts)))  # no array of texts, which would pad each to the longest
        except ValueError:
            found = self._numbers_and_gaps(texts, field)
        check_no_large_id(found, texts, lambda number: self.place(number, field))
        return found

    def _numbers_and_gaps(self, texts: list[str], field: str) -> np.ndarray:
        found = np.empty(len(texts))
        for number, text in enumerate(texts):
            try:
                found[number] = np.nan if text.strip().lower() in EMPTY else float(text)
            except ValueError as error:
                hint, where = no_number(text), self.place(number, field)
                raise InputError(where, expected="a number", got=shown(text), hint=hint) from error
        return found

    def preview(self) -> str:
        """Return the names of the fields and the first three lines, for error messages."""
        return "; ".join(map(listed, (self.fields, *self.lines[:3])))


def no_number(entry: Any) -> str:
    """Return a hint for an entry that is no number.

    Examples
    --------
    >>> no_number("1,5")
    "a decimal comma? pandas.read_csv(path, decimal=',', ...) makes a frame, which data.read takes"
    """
    if isinstance(entry, str) and _DECIMAL_COMMA.fullmatch(entry.strip()):
        return "a decimal comma? pandas.read_csv(path, decimal=',', ...) makes a frame, which data.read takes"
    lists = "tokens need a row per sequence, with a list: frame.groupby(id).agg(list).reset_index(), or JSON lines"
    return f"`features` names the columns that are numbers, `ignore` those that are none; {lists}"


def other_delimiter(fields: Sequence[str]) -> str | None:
    """Return a hint if the first line seems to use another delimiter, otherwise None."""
    found = [sign for sign in ";\t|" if len(fields) == 1 and sign in fields[0]]
    return f"`delimiter={found[0]!r}`" if found else None


def read_long(table: Table, options: Options) -> Dataset:
    """Return the Dataset of a table with one row per step.

    The rows of an id, in the order of time, are a sequence.  If the label is the same in all rows of each id, it is a
    label of the sequence, otherwise of the row.
    """
    id, time = str(options.id), options.time
    ids = table.ids(id)
    group, times = _groups(table, id, ids), None if time is None else table.times(time)
    features = _features(table, options, id, time)
    rows = np.stack([table.numbers(name) for name in features], axis=1)
    order = np.argsort(group, kind="stable") if times is None else np.lexsort((times, group))
    if times is not None:
        warn_of_repeats(table, (id, str(time)), group, times, order)
    bounds = np.searchsorted(group[order], np.arange(group.max() + 2))
    parts = [order[a:b] for a, b in itertools.pairwise(bounds)]
    keep = [_kept(rows[part], options, table.places(part)) for part in parts]
    sequences = [values for values, _ in keep]
    kept = [part[chosen] for part, (_, chosen) in zip(parts, keep, strict=True)]
    names = tuple(ids[part[0]] for part in parts)
    data = _labelled(table, names, sequences, parts, kept, options)
    return dataclasses.replace(data, features=tuple(features))


def read_wide(table: Table, options: Options) -> Dataset:
    """Return the Dataset of a table with one row per series, whose fields are the steps."""
    features = _features(table, options, options.id)
    rows, sequences = np.stack([table.numbers(name) for name in features], axis=1), []
    for number, row in enumerate(rows):
        there = np.flatnonzero(~np.isnan(row))
        row = row[: there[-1] + 1 if len(there) else 0, None]
        sequences.append(_kept(row, options, table.places(np.full(len(row), number)))[0])
    parts = [np.array([number]) for number in range(len(rows))]
    ids = () if options.id is None else tuple(table.ids(options.id))
    data = _labelled(table, ids, sequences, parts, parts, options)
    return dataclasses.replace(data, features=tuple(features))


def _features(table: Table, options: Options, *others: str | None) -> list[str]:
    """Return the fields with numbers: by default all except the label, ignored fields and `others`."""
    if options.label is not None:
        table.position(options.label, "label")  # before the label's own field is taken for numbers
    names = [name for name in table.fields if name not in (options.label, *(options.ignore or ()), *others)]
    if options.features is not None:
        names = check_list(options.features, "features", "a list of fields")
    if not names:
        raise InputError(table.name, expected="fields of numbers", got=f"only {listed(table.fields)}")
    return names


def _groups(table: Table, id: str, ids: list[str]) -> np.ndarray:
    """Return a number for each line that identifies its id; ids are numbered in the order of the file."""
    numbers: dict[str, int] = {}
    for number, text in enumerate(ids):
        if not text.strip():
            raise InputError(table.place(number, id), expected="an id", got="none")
    return np.fromiter((numbers.setdefault(text, len(numbers)) for text in ids), np.int64, len(ids))


def times_of(texts: Sequence[str], place: Callable[[int], str]) -> np.ndarray:
    """Return times as numbers; dates become nanoseconds or microseconds since 1970.

    Examples
    --------
    >>> times_of(["1970-01-01", "1970-01-01T00:00:01"], str)
    array([         0, 1000000000])
    """
    try:
        return np.array(list(map(int, texts)), np.int64)  # float64 would round nanoseconds since 1970
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
        dates = [_date(text, place(number)) for number, text in enumerate(texts)]
    years = np.array([date.astype("datetime64[Y]") for date in dates]).astype(np.int64) + 1970
    # 64 bits hold nanoseconds only for the years 1678 to 2261, but microseconds for all years.
    unit = "ns" if years.min() > 1677 and years.max() < 2262 else "us"
    return np.array([date.astype(f"datetime64[{unit}]") for date in dates]).astype(np.int64)


def _date(text: str, where: str) -> np.datetime64:
    """Return a date, converted to UTC if it has a time zone, or raise."""
    try:
        date = np.datetime64(text.strip())
        if not np.isnat(date):
            return date
    except ValueError:
        pass
    hint = "frame[time] = pandas.to_datetime(frame[time], dayfirst=True), for example, converts other dates"
    raise InputError(where, expected="a number, or a date as 2026-01-31T12:00", got=shown(text), hint=hint)


def _kept(rows: np.ndarray, options: Options, where: Callable[[int], str]) -> tuple[np.ndarray, np.ndarray]:
    """Return a sequence's rows of the data type, with the rule `missing` applied, and the indices of the rows kept."""
    too_large = (np.abs(np.nan_to_num(rows, posinf=np.inf, neginf=np.inf)) > np.finfo(options.dtype).max).any(axis=1)
    if too_large.any():
        wrong = int(np.flatnonzero(too_large)[0])
        expected = f"finite numbers that fit {options.dtype}"
        raise InputError(where(wrong), expected=expected, got=shown(rows[wrong].tolist()))
    rows, kept = without_gaps(rows, options.missing, where)
    return rows.astype(options.dtype).view(), kept


def _labelled(
    table: Table,
    ids: tuple[str, ...],
    sequences: list[np.ndarray],
    parts: list[np.ndarray],
    kept: list[np.ndarray],
    options: Options,
) -> Dataset:
    """Return the Dataset of sequences, with labels from the table.

    Sequence k was read from the lines `parts[k]`; after dropping rows with missing numbers, its rows come from
    `kept[k]`.
    """
    missing, classes, label_kind = options.missing, options.classes, options.label_kind
    if options.label is None:
        return Dataset(table.name, sequences, None, [], check_list(classes or [], "classes"), "list", ids=ids)
    values = table.labels(options.label, label_kind)
    whole = [[values[line] for line in part] for part in parts]
    own = [[label for label in labels if not is_missing(label)] for labels in whole]
    if missing == "error":
        with_labels(values, missing, lambda line: f"{table.where(line)}, label")
    differ = [any(label != labels[0] for label in labels) for labels in own]  # no set, for a label may be a list
    of_rows = any(differ) if label_kind is None else label_kind.endswith("of rows")
    if any(differ) and not of_rows:
        _raise_contradiction(table, values, parts[differ.index(True)])
    if of_rows and label_kind is None:
        warn_of_few_differences(table.name, options.label, ids, differ)
    there = [number for number, labels in enumerate(own) if labels]  # sequences without any label are left out
    if not there:
        raise InputError(table.name, expected="labels", got="none in all of them")
    where = lambda number: f"{table.where(int(parts[there[number]][0]))}, label"
    kind = label_kind
    if kind is None and (of_rows or not isinstance(own[there[0]][0], list)):
        kind = ("numbers" if isinstance(own[there[0]][0], float) else "classes") + " of rows" * of_rows
    rows = [sequences[number] for number in there]
    found: list[Any] = [[values[line] for line in kept[number]] if of_rows else own[number][0] for number in there]
    labels, names = labels_of(found, list(map(len, rows)), where, classes, kind, gaps=missing != "error")
    there_ids = tuple(ids[number] for number in there) if ids else ()
    return Dataset(table.name, rows, labels, [], names, "list", ids=there_ids)


def _raise_contradiction(table: Table, values: Sequence[Any], part: np.ndarray) -> NoReturn:
    lines = [line for line in part if not is_missing(values[line])]
    wrong = next(line for line in lines if values[line] != values[lines[0]])
    expected = f"{shown(values[lines[0]])}, as in the first row of its id"
    hint = "`label_kind='classes of rows'`, or 'numbers of rows', takes labels that differ"
    raise InputError(f"{table.where(wrong)}, label", expected=expected, got=shown(values[wrong]), hint=hint)
