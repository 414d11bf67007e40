"""Treat missing numbers and labels: raise an error, leave them out, fill them, or keep them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from varlen_rnn.errors import DTypeError, InputError, shown

Missing: TypeAlias = Literal["error", "drop", "zero", "forward", "keep"]
MISSING = get_args(Missing)
EMPTY = {"", "na", "nan", "null", "none", "n/a", "?"}  # texts that mean a missing number

Where = Callable[[int], str]


def without_gaps(rows: np.ndarray, missing: str, where: Where) -> tuple[np.ndarray, np.ndarray]:
    """Apply the rule `missing` to NaNs in a sequence; return the resulting rows, and the indices of the rows kept."""
    everyone = np.arange(len(rows))
    gaps = np.isnan(rows)
    if not gaps.any() or missing == "keep":
        return rows, everyone
    if missing == "error":
        wrong = int(np.flatnonzero(gaps.any(axis=1))[0])
        hint = "`missing='drop'` leaves such rows out, 'zero' and 'forward' fill them, 'keep' lets estimators fill them"
        raise InputError(where(wrong), expected="numbers", got="a missing number", hint=hint)
    if missing == "drop":
        kept = np.flatnonzero(~gaps.any(axis=1))
        return rows[kept], kept
    return np.nan_to_num(carried_forward(rows) if missing == "forward" else rows, nan=0.0), everyone


def carried_forward(rows: np.ndarray) -> np.ndarray:
    """Return rows with each NaN replaced by the last number above it in its column; NaNs before any number stay."""
    # `last[r, c]` is the index of the last row up to r that has a number in column c, or -1.
    last = np.maximum.accumulate(np.where(np.isnan(rows), -1, np.arange(len(rows))[:, None]), axis=0)
    return np.where(last >= 0, np.take_along_axis(rows, np.maximum(last, 0), axis=0), rows.dtype.type(np.nan))


def without_missing(entries: Sequence[Any], missing: str, where: Where) -> list[Any]:
    """Return sequences with an empty text or list for each missing sequence, or raise if `missing` is "error"."""
    gone = [number for number, entry in enumerate(entries) if entry is None]
    alone = [number for number, entry in enumerate(entries) if isinstance(entry, (int, float, np.number))]
    if gone and alone:
        hint = "if each row is a step, pass `id`; if each row is a series, pass `wide`"
        raise DTypeError(where(alone[0]), expected="a text or a list", got=shown(entries[alone[0]]), hint=hint)
    if gone and missing == "error":
        hint = "to read it as an empty sequence, pass `missing='drop'`"
        raise InputError(where(gone[0]), expected="a text or a list", got="a missing entry", hint=hint)
    of_texts = any(isinstance(entry, str) for entry in entries)
    return [("" if of_texts else []) if entry is None else entry for entry in entries]


def filled(
    sequences: Sequence[np.ndarray], labels: Sequence[Any] | None, missing: str, where: Where
) -> tuple[list[np.ndarray], list[Any] | None]:
    """Apply the rule `missing` to all sequences of numbers; also drop the labels of dropped rows."""
    found, own = list(sequences), None if labels is None else list(labels)
    for number, rows in enumerate(sequences):
        if rows.dtype.kind != "f":
            continue
        whole, kept = without_gaps(rows, missing, functools.partial("{}, row {}".format, where(number)))
        found[number], label = whole.view(), None if own is None else own[number]
        if own is not None and isinstance(label, list) and len(label) == len(rows):
            own[number] = [label[row] for row in kept]
    return found, own


def is_missing(label: Any) -> bool:
    """Return whether a label is missing: None, NaN or a blank text."""
    if isinstance(label, str):
        return not label.strip()
    return label is None or (isinstance(label, float) and label != label)


def with_labels(labels: Sequence[Any], missing: str, where: Where) -> list[int]:
    """Return the indices of the labels that are not missing; raise if `missing` is "error" and one is missing."""
    there = [number for number, label in enumerate(labels) if not is_missing(label)]
    if len(there) < len(labels) and (missing == "error" or not there):
        wrong = next(number for number, label in enumerate(labels) if is_missing(label))
        hint = "to leave it out, pass `missing='drop'`" if missing == "error" else None
        raise InputError(where(wrong), expected="a label", got="no label", hint=hint)
    return there
