"""The names of columns in X: they bring the features of later sequences into the order of the training.

Columns are features or steps:

    a list of frames, a data set in long form    features: another order is corrected, other names are an error
    a wide frame, a data set in wide form        steps: another order than in the training is an error
"""

from __future__ import annotations

import dataclasses
from typing import Any

from varlen_rnn.data import Dataset
from varlen_rnn.data.columns import holds_numbers
from varlen_rnn.data.frames import frame_of
from varlen_rnn.errors import ShapeError, check_flag, listed
from varlen_rnn.sklearn.restored import texts_of


@dataclasses.dataclass(frozen=True)
class Columns:
    """The names of the columns of X."""

    names: tuple[str, ...]
    of_steps: bool  # whether the columns are the steps of sequences, otherwise the features of rows

    @classmethod
    def restored(cls, state: dict[str, Any] | None) -> Columns | None:
        """Return the Columns that `state` (from `dataclasses.asdict`, or its JSON) describes; None if it is None."""
        if state is None:
            return None
        return cls(
            tuple(texts_of(state["names"], "columns, names")), check_flag(state["of_steps"], "columns, of_steps")
        )


def in_order(X: Any, columns: Columns | None = None, name: str = "X") -> tuple[Any, Columns | None]:
    """Return X with its features in the order of the training, and its Columns, or None if X has no such names.

    Without the columns of the training, the first frame of a list decides the order.
    """
    if isinstance(X, (list, tuple)):
        return _of_frames(list(X), columns, name)
    found = _of_data(X) if isinstance(X, Dataset) else _of_steps(X)
    if found is None or columns is None or found.of_steps != columns.of_steps or found == columns:
        return X, found
    if not found.of_steps:
        order = _order(found.names, columns.names, name)
        rows = [sequence[:, order] for sequence in X.sequences]
        return dataclasses.replace(X, sequences=rows, features=columns.names), columns
    common = [step for step in columns.names if step in found.names]
    if common != [step for step in found.names if step in columns.names]:
        expected, got = f"steps in the order of the training, {listed(common, 5)}", listed(found.names, 5)
        raise ShapeError(f"{name}, columns", expected=expected, got=got, hint="feature names should match")
    return X, found


def _of_data(data: Dataset) -> Columns | None:
    """Return the columns of a data set; if it has one feature but several names, they are names of steps."""
    width = next((rows.shape[1] for rows in data.sequences if getattr(rows, "ndim", 1) == 2), None)
    if not data.features or width is None:
        return None
    if width != len(data.features):
        return Columns(tuple(data.features), True) if width == 1 else None
    return Columns(tuple(data.features), False)


def _of_steps(X: Any) -> Columns | None:
    """Return the columns of a frame in which each row is a sequence and each column a step."""
    frame = frame_of(X, "X")
    if frame is None or not all(holds_numbers(frame.foreign(field)) for field in frame.fields):
        return None
    return Columns(tuple(frame.fields), True)


def _of_frames(entries: list[Any], columns: Columns | None, name: str) -> tuple[list[Any], Columns | None]:
    """Return a list whose frames have their columns in one order, and this order; other entries stay unchanged."""
    names = None if columns is None or columns.of_steps else columns.names
    for number, entry in enumerate(entries):
        own = _names_of(entry)
        if own is None:
            continue
        names = own if names is None else names
        if own != names:
            order = _order(own, names, f"{name}, sequence {number}")
            entries[number] = entry.iloc[:, order] if hasattr(entry, "iloc") else entry.select(list(names))
    return entries, None if names is None else Columns(names, False)


def _names_of(entry: Any) -> tuple[str, ...] | None:
    """Return the names of a frame's columns if all are texts, as scikit-learn does, otherwise None."""
    if not (hasattr(entry, "iloc") or hasattr(entry, "select")):
        return None
    names: Any = getattr(entry, "column_names", None) or getattr(entry, "columns", ())
    names = tuple(names) if hasattr(names, "__len__") else ()
    return names if names and all(isinstance(field, str) for field in names) else None


def _order(names: tuple[str, ...], wanted: tuple[str, ...], where: str) -> list[int]:
    """Return the position of each wanted name, or raise unless the names are the same."""
    if sorted(names) != sorted(wanted):
        new, gone = [field for field in names if field not in wanted], [field for field in wanted if field not in names]
        got = " and ".join([f"also {listed(new)}"] * bool(new) + [f"no {listed(gone)}"] * bool(gone))
        expected, hint = f"the features of the training, {listed(wanted)}", "feature names should match"
        raise ShapeError(f"{where}, columns", expected=expected, got=got or listed(names), hint=hint)
    return [names.index(field) for field in wanted]
