"""Check that labels are of one kind, and treat missing labels (None, NaN, NaT, pandas.NA) alike, also among texts.

`numpy.asarray` would turn a missing label among texts into the text "nan"; here it becomes None:

    ["a", nan]      ["a", None]
    [0.0, nan]      [0.0, None]
"""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

import numpy as np

from varlen_rnn.errors import DTypeError, shown

_KINDS = (bool, np.bool_), (Real,), (str,), (bytes,)  # a flag is a Real, too


def is_absent(label: Any) -> bool:
    """Return whether a label is missing."""
    if label is None or hasattr(label, "__len__"):
        return label is None
    try:
        return bool(label != label)
    except TypeError:  # pandas.NA has no truth value
        return True


def check_one_kind(labels: Iterable[Any]) -> None:
    """Raise if labels are of several kinds, such as texts and numbers, because NumPy would turn 1 into "1"."""
    firsts: dict[int, Any] = {}  # the first label of each kind
    for label in labels:
        for number, kind in enumerate(_KINDS):
            if isinstance(label, kind) and not is_absent(label):
                firsts.setdefault(number, label)
                break
    if len(firsts) > 1:
        first, second, *_ = firsts.values()
        got, hint = f"{shown(first)} and {shown(second)}", "list(map(str, y)) turns all labels into texts"
        raise DTypeError("y", expected="labels of one kind, texts or numbers", got=got, hint=hint)


def as_array(labels: Any) -> np.ndarray:
    """Return labels of one kind as an array; a list with missing labels becomes an array of objects."""
    labels = labels.to_numpy() if hasattr(labels, "iloc") else labels
    if isinstance(labels, (list, tuple)) or getattr(labels, "dtype", None) == np.dtype(object):
        check_one_kind(labels)
    if isinstance(labels, (list, tuple)) and any(map(is_absent, labels)):
        found = np.empty(len(labels), object)
        found[:] = labels
        return found
    found = np.asarray(labels)
    return _exact(found, labels) if isinstance(labels, (list, tuple)) else found


def _exact(found: np.ndarray, labels: Iterable[Any]) -> np.ndarray:
    """Return integers as uint64 if NumPy rounded them to floats because some are 2**63 or more."""
    labels = list(labels)
    if found.dtype.kind != "f" or not labels or not all(isinstance(label, Integral) for label in labels):
        return found
    if min(labels) < 0:
        hint = "pass floats for measurements, or texts for classes: list(map(str, y))"
        got = f"{int(min(labels))} together with integers of 2**63 or more"
        raise DTypeError("y", expected="integers that fit one data type, int64 or uint64", got=got, hint=hint)
    return np.array(labels, np.uint64).reshape(found.shape)


def with_none(labels: np.ndarray) -> np.ndarray:
    """Return the labels of steps, with None in place of each missing label."""
    if labels.dtype.kind not in "fOmM":
        return labels
    gone = np.fromiter(map(is_absent, labels), bool, len(labels))
    if gone.any():
        labels = labels.astype(object)
        labels[gone] = None
    return labels


def of_one_kind(labels: np.ndarray) -> np.ndarray:
    """Return an array of Python objects as numbers or flags if all objects are such, otherwise unchanged."""
    if labels.dtype.kind != "O":
        return labels
    of_flags = {isinstance(label, (bool, np.bool_)) for label in labels.ravel()}
    if of_flags == {True} or (of_flags == {False} and all(isinstance(label, Real) for label in labels.ravel())):
        return _exact(np.array(labels.tolist()), labels.ravel())
    return labels
