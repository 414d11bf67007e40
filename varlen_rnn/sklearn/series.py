"""Convert the X and the known columns of forecasters to float64, without NaNs before the first value of a series.

The known columns (`future_covariates`) lose the same steps:

    X                   [[nan, nan, 5, 6]]        [[5, 6]]
    known columns       [[[0], [0], [1], [0]]]    [[[1], [0]]]
"""

from __future__ import annotations

from typing import Any

import numpy as np

from varlen_rnn.errors import DTypeError, InputError, ShapeError, listed
from varlen_rnn.sklearn.columns import Columns, in_order
from varlen_rnn.sklearn.inputs import as_sequences
from varlen_rnn.sklearn.static import divided


def series_of(
    X: Any, known: Any, orders: tuple[Columns | None, Columns | None]
) -> tuple[list[np.ndarray], list[np.ndarray] | None, tuple[Columns | None, Columns | None]]:
    """Return three values: the series, their known columns (or None), and the names of both as Columns.

    `known` are the `future_covariates` of a forecaster.  `orders` are the Columns of X and of `known` in the training.
    """
    rows, of_series = _as_rows(X, "X", orders[0])
    if not rows:
        raise ShapeError("X", expected="at least one series", got="0 sample(s)")
    found, gone = [], []
    for number, own in enumerate(rows):
        if own.shape[1] != 1:
            hint = "pass further columns as future_covariates to fit (in Python only)"
            raise ShapeError(f"X, series {number}", expected="a number per step", got=f"shape {own.shape}", hint=hint)
        there = ~np.isnan(own[:, 0])
        gone.append(int(np.argmax(there)) if there.any() else len(there))
        values = own[gone[-1] :, 0]
        if not len(values):
            raise ShapeError(f"X, series {number}", expected="at least one value", got="no values")
        if np.isnan(values).any():
            hint = "fill gaps between values, for example with frame.interpolate() of pandas"
            raise InputError(f"X, series {number}", expected="finite numbers", got="NaN", hint=hint)
        found.append(values)
    order = of_series if of_series is not None and of_series.of_steps else orders[0]
    if known is None:
        return found, None, (order, orders[1])
    columns, of_columns = _as_rows(known, "future_covariates", orders[1])
    if len(columns) != len(found):
        expected, got = f"one array for each of {len(found)} series", f"{len(columns)} arrays"
        raise ShapeError("future_covariates", expected=expected, got=got)
    for number, own in enumerate(columns):
        if np.isnan(own).any():
            hint = "fill them, for example with frame.ffill() or frame.fillna(0) of pandas"
            raise InputError(f"future_covariates, series {number}", expected="finite numbers", got="NaN", hint=hint)
    return found, [own[before:] for own, before in zip(columns, gone, strict=True)], (order, of_columns)


def scale_of_columns(known: list[np.ndarray]) -> list[list[float]]:
    """Return mean and deviation of each column of the training."""
    if len({rows.shape[1] for rows in known}) != 1:
        got = f"{sorted({rows.shape[1] for rows in known})} columns"
        raise ShapeError("future_covariates", expected="the same number of columns for each series", got=got)
    rows = np.concatenate(known)
    deviation = rows.std(axis=0)
    return [rows.mean(axis=0).tolist(), np.where(deviation > 0, deviation, 1.0).tolist()]


def _as_rows(X: Any, name: str, order: Columns | None) -> tuple[list[np.ndarray], Columns | None]:
    """Return sequences of numbers as float64 rows, and the names of columns; whole numbers are numbers, not ids."""
    if names := divided(X)[1]:
        raise InputError(name, expected="one column of series", got=f"also the columns {listed(names)}")
    columns = None
    if name != "X" or not isinstance(X, (list, tuple)):  # each series in a list may have a name of its own
        X, columns = in_order(X, order, name)
    if isinstance(X, (list, tuple)):
        X = [_as_floats(entry) for entry in X]
    try:
        kind, sequences = as_sequences(X, np.float64)
    except InputError as error:
        what = str(error.what).replace("X", name, 1)
        raise type(error)(what, expected=error.expected, got=error.got, hint=error.hint) from error
    if kind not in ("numbers", "ids"):
        raise DTypeError(name, expected="numbers", got=kind)
    found = [np.asarray(rows, np.float64) for rows in sequences]
    return [rows if rows.ndim == 2 else rows[:, None] for rows in found], columns


def _as_floats(entry: Any) -> Any:
    if not isinstance(entry, (list, tuple, np.ndarray)):
        return entry
    try:
        rows = np.asarray(entry)
    except ValueError:
        return entry
    return rows.astype(np.float64) if rows.dtype.kind in "iub" and rows.ndim else entry
