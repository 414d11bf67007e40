"""Missing numbers (NaN) in features: they are filled, and indicators say where they were.

Example: the rows `[1, 5], [nan, 7], [nan, nan]` become `[1, 5, 0], [1, 7, 1], [1, 7, 1]` if only the first feature had
NaNs in the training: a number is carried forward, and the last column indicates the NaNs of the first feature.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np

from varlen_rnn.data.missing import carried_forward
from varlen_rnn.sklearn.restored import numbers_of, wholes_of


@dataclasses.dataclass(frozen=True)
class Filling:
    """How missing numbers are filled: with the last number before, or with the feature's mean if there is none."""

    means: tuple[float, ...]  # each feature's mean over the training, without missing numbers; 0 if all are missing
    indicated: tuple[int, ...] = ()  # features with missing numbers in the training; each gets a column of flags

    @classmethod
    def learn(cls, sequences: Iterable[np.ndarray], width: int) -> Filling:
        """Return a Filling that has the mean of each feature of `sequences`."""
        sums, counts, missing = np.zeros(width), np.zeros(width), np.zeros(width, bool)
        for rows in sequences:
            total, number = rows.sum(axis=0, dtype=np.float64), len(rows)
            if (gone := np.isnan(total)).any():
                there = ~np.isnan(rows)
                missing |= gone
                total, number = np.where(there, rows, 0).sum(axis=0, dtype=np.float64), there.sum(axis=0)
            sums += total
            counts += number
        means = (sums / np.maximum(counts, 1)).astype(np.float32)
        return cls(tuple(means.tolist()), tuple(np.flatnonzero(missing).tolist()))

    @classmethod
    def restored(cls, state: dict[str, Any]) -> Filling:
        """Return the Filling that `state` (from `dataclasses.asdict`, or its JSON) describes, or raise."""
        means = numbers_of(state["means"], "filling, means")
        return cls(tuple(means), tuple(wholes_of(state["indicated"], "filling, indicated", len(means))))

    @property
    def width(self) -> int:
        """The number of columns after `fill`."""
        return len(self.means) + len(self.indicated)

    def fill(self, rows: np.ndarray) -> np.ndarray:
        """Return the rows of a sequence without NaNs, and with the indicators behind the features, float32."""
        gone = np.isnan(rows)
        return self._filled(carried_forward(rows) if gone.any() else rows, gone)

    def fill_each(self, rows: np.ndarray) -> np.ndarray:
        """Return rows as `fill` does, but filled with means only, because they are not steps of one sequence."""
        return self._filled(rows, np.isnan(rows))

    def _filled(self, rows: np.ndarray, gone: np.ndarray) -> np.ndarray:
        if gone.any():
            rows = np.where(np.isnan(rows), np.array(self.means, np.float32), rows)
        if self.indicated:
            rows = np.concatenate([rows, gone[:, list(self.indicated)]], axis=1, dtype=np.float32)
        return rows


def without_padding(rows: np.ndarray) -> np.ndarray:
    """Return the rows of a padded sequence without the rows at its end that are all NaN."""
    if rows.dtype.kind != "f" or not len(rows) or not np.isnan(rows[-1]).all():
        return rows
    there = np.flatnonzero(~np.isnan(rows).all(axis=1))
    return rows[: there[-1] + 1 if len(there) else 0]
