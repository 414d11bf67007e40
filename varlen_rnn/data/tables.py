"""Make a data set of series in a table: in long form, with one row per step, or in wide form, one row per series."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from varlen_rnn.data.columns import Table
from varlen_rnn.data.dataset import Dataset
from varlen_rnn.data.labels import labels_of
from varlen_rnn.data.missing import is_missing, with_labels, without_gaps
from varlen_rnn.data.options import Options
from varlen_rnn.errors import InputError, check_list, count, listed, shown, warn

_FEW = 10  # if labels differ within at most one of this many ids, a warning says that they are probably errors


def read_long(table: Table, options: Options) -> Dataset:
    """Return the Dataset of a table with one row per step.

    The rows of an id, in the order of time, are a sequence.  If the label is the same in all rows of each id, it is a
    label of the sequence, otherwise of the row.
    """
    id, time = str(options.id), options.time
    ids = table.ids(id)
    group, times = _groups(table, id, ids), None if time is None else table.times(time)
    features, rows = _rows(table, options, id, time)
    order = np.argsort(group, kind="stable") if times is None else np.lexsort((times, group))
    if times is not None:
        same = (np.diff(group[order]) == 0) & (np.diff(times[order]) == 0)
        if same.any():
            number, where = int(same.sum()), table.place(int(order[1:][same].min()))
            got = f"{count(number, 'row')} that repeat{'s' * (number == 1)} an id and a time; this is the first"
            hint = f"to leave repeated rows out, use frame.drop_duplicates({[id, time]}) of pandas"
            warn(where, expected="one row for each id and time", got=got, hint=hint)
    bounds = np.searchsorted(group[order], np.arange(group.max() + 2))
    parts = [order[a:b] for a, b in itertools.pairwise(bounds)]
    keep = [_kept(table, part, rows[part], options) for part in parts]
    kept = [part[chosen] for part, (_, chosen) in zip(parts, keep, strict=True)]
    names = tuple(ids[part[0]] for part in parts)
    data = _labelled(table, names, [values for values, _ in keep], parts, kept, options)
    return dataclasses.replace(data, features=features)


def read_wide(table: Table, options: Options) -> Dataset:
    """Return the Dataset of a table with one row per series, whose fields are the steps."""
    (features, rows), sequences = _rows(table, options, options.id), []
    for line, row in enumerate(rows):
        there = np.flatnonzero(~np.isnan(row))
        row = row[: there[-1] + 1 if len(there) else 0, None]
        sequences.append(_kept(table, np.full(len(row), line), row, options)[0])
    parts = [np.array([line]) for line in range(len(rows))]
    ids = () if options.id is None else tuple(table.ids(options.id))
    return dataclasses.replace(_labelled(table, ids, sequences, parts, parts, options), features=features)


def _rows(table: Table, options: Options, *others: str | None) -> tuple[tuple[str, ...], np.ndarray]:
    """Return the names of the fields with numbers, by default all but label, `ignore` and `others`; and the numbers."""
    if options.label is not None:
        table.foreign(options.label, "label")  # raises if misspelled: its real field must not become a feature
    names = [name for name in table.fields if name not in (options.label, *(options.ignore or ()), *others)]
    if options.features is not None:
        names = check_list(options.features, "features", "a list of fields")
    if not names:
        raise InputError(table.name, expected="fields of numbers", got=f"only the fields {listed(table.fields)}")
    return tuple(names), np.stack([table.numbers(name) for name in names], axis=1)


def _groups(table: Table, id: str, ids: Sequence[str]) -> np.ndarray:
    """Return the number of each line's id; ids are numbered in the order in which the table has them."""
    numbers: dict[str, int] = {}
    for line, text in enumerate(ids):
        if not text.strip():
            raise InputError(table.place(line, id), expected="an id", got="no id")
    return np.fromiter((numbers.setdefault(text, len(numbers)) for text in ids), np.int64, len(ids))


def _kept(table: Table, lines: np.ndarray, rows: np.ndarray, options: Options) -> tuple[np.ndarray, np.ndarray]:
    """Apply the rule `missing` to rows that were read from `lines`; return the rows, and the indices of kept rows."""
    too_large = (np.abs(np.nan_to_num(rows, posinf=np.inf, neginf=np.inf)) > np.finfo(options.dtype).max).any(axis=1)
    if too_large.any():
        wrong = int(np.flatnonzero(too_large)[0])
        expected, got = f"finite numbers that fit {options.dtype}", shown(rows[wrong].tolist())
        raise InputError(table.place(lines[wrong]), expected=expected, got=got)
    rows, kept = without_gaps(rows, options.missing, lambda row: table.place(lines[row]))
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
    classes, kind = options.classes, options.label_kind
    if options.label is None:
        return Dataset(table.name, sequences, None, [], check_list(classes or [], "classes"), "list", ids=ids)
    values = table.labels(options.label, kind)
    gone = [is_missing(value) for value in values]
    if options.missing == "error" and any(gone):
        with_labels(values, "error", lambda line: f"{table.place(line)}, label")  # raises
    own = [[values[line] for line in part if not gone[line]] for part in parts]
    differ = [any(label != labels[0] for label in labels) for labels in own]  # not a set, because a label may be a list
    of_rows = any(differ) if kind is None else kind.endswith("of rows")
    if any(differ) and not of_rows:
        first, *others = (line for line in parts[differ.index(True)] if not gone[line])
        wrong = next(line for line in others if values[line] != values[first])
        expected = f"{shown(values[first])}, as in the first row of its id"
        hint = "for a label per row, pass `label_kind='classes of rows'` or 'numbers of rows'"
        raise InputError(f"{table.place(wrong)}, label", expected=expected, got=shown(values[wrong]), hint=hint)
    if of_rows and kind is None and sum(differ) * _FEW <= len(differ):
        expected = "the same label in all rows of an id, or labels that differ within many ids"
        hint = "correct these rows, or pass `label_kind='classes of rows'` or 'numbers of rows' if the labels are right"
        warn(f"{table.name}, `label` {options.label!r}", expected=expected, got=differences(ids, differ), hint=hint)
    there = [number for number, labels in enumerate(own) if labels]  # sequences without any label are left out
    if not there:
        raise InputError(table.name, expected="a label in at least one row", got="no labels")
    where = lambda number: f"{table.place(int(parts[there[number]][0]))}, label"
    if kind is None and (of_rows or not isinstance(own[there[0]][0], list)):
        kind = ("numbers" if isinstance(own[there[0]][0], float) else "classes") + " of rows" * of_rows
    rows = [sequences[number] for number in there]
    found: list[Any] = [[values[line] for line in kept[number]] if of_rows else own[number][0] for number in there]
    labels, names = labels_of(found, list(map(len, rows)), where, classes, kind, gaps=options.missing != "error")
    there_ids = tuple(ids[number] for number in there) if ids else ()
    return Dataset(table.name, rows, labels, [], names, "list", ids=there_ids)


def differences(ids: Sequence[str], differ: Sequence[bool]) -> str:
    """Return a description of the ids within which a label differs."""
    number, first = sum(differ), ids[list(differ).index(True)]
    others = f" and {count(number - 1, 'other id')}" if number > 1 else ""
    return f"a label that differs between rows of {shown(first)}{others} ({number} of {len(ids)} ids)"
