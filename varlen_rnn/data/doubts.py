"""Warnings about tables that can be read, but were probably meant otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from varlen_rnn.errors import count, shown, warn

_FEW = 10  # if the label differs within fewer than one of so many ids, it is probably wrong there


def warn_of_repeats(
    table: Any, fields: tuple[str, str], group: np.ndarray, times: np.ndarray, order: np.ndarray
) -> None:
    """Warn if rows of an id have the same time, given the order of the rows by id and time.

    Parameters
    ----------
    table : Table
    fields : pair of str
        The fields of ids and times.
    group, times, order : array, shape `(rows,)`
    """
    same = (np.diff(group[order]) == 0) & (np.diff(times[order]) == 0)
    if same.any():
        number = int(same.sum())
        got = f"{count(number, 'row')} that repeat{'s' * (number == 1)} an id and a time; this is the first"
        hint = f"frame.drop_duplicates({list(fields)}) of pandas leaves them out"
        where = table.place(int(order[1:][same].min()))
        warn(where, expected="one row for each id and time", got=got, hint=hint)


def warn_of_few_differences(name: str, field: str, ids: Sequence[str], differ: Sequence[bool]) -> None:
    """Warn if a label is read as one of rows because of few ids.

    Examples
    --------
    >>> warn_of_few_differences("frame", "failed", ["a", "b"], [True, False])
    """
    if sum(differ) * _FEW <= len(differ):
        expected = "the same label in all rows of an id, or labels that differ within many ids"
        hint = "`label_kind='classes of rows'` or 'numbers of rows' if this is meant; otherwise correct these rows"
        warn(f"{name}, `label` {field!r}", expected=expected, got=differences(ids, differ), hint=hint)


def differences(ids: Sequence[str], differ: Sequence[bool]) -> str:
    """Return a description of the ids within which a label differs.

    Examples
    --------
    >>> differences(["a", "b"], [False, True])
    "a label that differs between rows of 'b' (1 of 2 ids)"
    """
    number, first = sum(differ), ids[list(differ).index(True)]
    others = f" and {count(number - 1, 'other id')}" if number > 1 else ""
    return f"a label that differs between rows of {shown(first)}{others} ({number} of {len(ids)} ids)"
