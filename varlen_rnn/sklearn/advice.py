"""Advice about X: integers that may be measurements, and columns of frames that estimators do not take."""

from __future__ import annotations

from typing import Any

import numpy as np

from varlen_rnn.data.columns import Table, holds_numbers, values_of
from varlen_rnn.errors import listed, shown, warn

MEASUREMENTS = "integers are read as ids of tokens; for measurements, pass x.astype(float)"
LARGE_IDS = "for hashes and other large ids, pass them as texts: [list(map(str, x)) for x in X]"
_MANY = 100  # more distinct ids than this may be measurements


def warn_of_ids(sequences: list[np.ndarray], to_numbers: bool) -> None:
    """Warn if ids of tokens may be measurements.

    An estimator that predicts numbers always warns, because numbers are mostly predicted from measurements.  A
    classifier warns if there are more than 100 distinct ids, which occur less than twice on average.
    """
    flat = np.concatenate(sequences)
    distinct = len(np.unique(flat))
    if to_numbers or (distinct > _MANY and 2 * distinct > len(flat)):
        got = f"{distinct} different integers, which are read as ids of tokens"
        hint = "for measurements, pass x.astype(float)"
        warn("fit, X", expected="floating-point numbers for measurements", got=got, hint=hint)


def about_columns(frame: Table) -> tuple[str, str]:
    """Return two texts for an error: which columns of a frame are not numbers, and code that turns the frame into X."""
    others = [field for field in frame.fields if not holds_numbers(frame.foreign(field))]
    firsts = {field: next((x for x in values_of(frame.foreign(field)) if x is not None), None) for field in others}
    texts = [field for field, first in firsts.items() if isinstance(first, str)]
    lists = [field for field, first in firsts.items() if _is_list(first)]
    got = f"a frame of {listed(frame.fields)}, in which " + " and ".join(
        f"{shown(field)} holds {'texts' if field in texts else 'lists' if field in lists else _kind(firsts[field])}"
        for field in others[:5]
    )
    if len(lists) > 1:
        hint = f"[numpy.column_stack(lists) for lists in zip({', '.join(f'X[{field!r}]' for field in lists)})]"
        return got, f"{hint} joins them to sequences of {len(lists)} features"
    if len(lists) == 1 and texts:
        return got, f"pandas.get_dummies(X, columns={texts}) turns texts into numbers"
    if len(lists) == 1:
        rest = [field for field in others if field not in lists]
        return got, f"leave these columns out with X.drop(columns={rest}), or turn them into numbers"
    return got, 'pass one column, such as X["text"]; for a row per step, varlen_rnn.data.read(X, id=..., label=...)'


def _is_list(value: Any) -> bool:
    return hasattr(value, "__len__") and not isinstance(value, (str, bytes, dict))


def _kind(value: Any) -> str:
    return "no values" if value is None else f"values such as {shown(value)}"
