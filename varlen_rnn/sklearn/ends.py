"""The ends of series, held out to choose between candidates and to calibrate quantiles.

steps of a series              0 1 2 3 4 5 6 7 8 9
held out                                       8 9       one end: row 7 forecasts them
rows to learn from             1 2 3 4 5                 row 5 forecasts 6 and 7; no such row forecasts a held-out step
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from scipy.stats import norm

from varlen_rnn.errors import count
from varlen_rnn.sklearn.lags import Rows
from varlen_rnn.sklearn.quantiles import pinball, quantiles_of

# Errors are measured at about _ENDS ends, so each series has several ends if there are few series.  A series keeps at
# least _LEAST values before its first end, and all series together keep at least _LEAST_ROWS rows to learn from.
_ENDS, _LEAST, _LEAST_ROWS = 40, 3, 10
_NORMAL = 1.2533  # the standard deviation of normal numbers, divided by their mean absolute value
_JOINED = "ridge", "recurrent"


@dataclasses.dataclass(frozen=True)
class Ends:
    """Which rows of series are held out, and which are left to learn from."""

    lengths: np.ndarray  # the number of values of each series
    first: np.ndarray  # the number of values of each series before its first held-out value
    held: np.ndarray  # indices of the rows whose forecasts are compared with held-out values
    before: np.ndarray  # indices of the rows whose next `horizon` values are not held out
    complete: np.ndarray  # indices of the rows after which the series has at least `horizon` values

    @classmethod
    def of(cls, lengths: np.ndarray, horizon: int) -> Ends:
        """Return the ends of series of these lengths; nothing is held out if too few rows would be left to learn."""
        begin = np.cumsum([0, *lengths[:-1]])
        room = np.minimum(lengths - horizon - _LEAST + 1, np.maximum(1, lengths // 4))  # the most ends of a series
        number = np.clip(math.ceil(_ENDS / max(1, (room > 0).sum())), 0, np.maximum(room, 0))
        apart = np.maximum(1, room // np.maximum(number, 1))
        first = np.where(number > 0, lengths - horizon - apart * (number - 1), lengths)
        rows = lambda low, high, step=1: np.concatenate([np.arange(*each) for each in np.broadcast(low, high, step)])
        held = rows(begin + first - 1, begin + np.where(number > 0, lengths - horizon, 0), apart)
        before = rows(begin + 1, begin + np.maximum(first - horizon, 1))
        complete = rows(begin + 1, begin + np.maximum(lengths - horizon, 1))
        if len(before) < _LEAST_ROWS:
            return cls(lengths, lengths, held[:0], before[:0], complete)
        return cls(lengths, first, held, before, complete)


class Choice:
    """Candidates with the changes that they forecast at held-out ends, and the best of them."""

    def __init__(self, rows: Rows, ends: Ends, levels: list[float], verbose: int) -> None:
        self.rows, self.ends, self.levels, self.verbose = rows, ends, levels, verbose
        self.wanted = rows.changes()[ends.held]
        self.candidates: list[dict[str, Any]] = []
        self.found: dict[str, np.ndarray] = {}
        self.shifts: dict[str, np.ndarray] = {}

    def add(self, name: str, changes: np.ndarray, seconds: float) -> None:
        """Measure a candidate by the changes that it forecasts after each row, `(rows, horizon[, quantiles])`."""
        found = changes.reshape(*changes.shape[:2], -1)[self.ends.held]
        self._add(name, found, seconds)

    def add_mean(self) -> None:
        """Measure the mean of ridge and network."""
        both = [self.found[name] for name in _JOINED if name in self.found]
        if len(both) > 1:
            self._add(" and ".join(_JOINED), sum(both[1:], both[0]) / len(both), 0.0)

    def _add(self, name: str, found: np.ndarray, seconds: float) -> None:
        rows, held, levels = self.rows, self.ends.held, np.array(self.levels)
        self.found[name], self.shifts[name] = found, _shift(found, self.wanted, self.levels)
        forecasts = ordered(rows, found + self.shifts[name], held, self.levels)
        unit, future = rows.unit[held], rows.future[held]
        loss = (pinball(forecasts, future[:, :, None], levels).mean(axis=(1, 2)) / unit).mean()
        error = (np.abs(forecasts[:, :, self.levels.index(0.5)] - future).mean(axis=1) / unit).mean()
        self.candidates.append({"candidate": name, "loss": float(loss), "error": float(error), "seconds": seconds})
        if self.verbose:
            ends = count(len(held), "end")
            print(f"{name}: quantile loss {loss:.4f}, absolute error {error:.4f}, on {ends} held out; {seconds:.1f} s")

    def closed(self, default: str) -> tuple[list[str], np.ndarray, list[dict[str, Any]]]:
        """Return the names of the best candidates (two if their mean is best), their shift, and all records.

        Without held-out ends, `default` is the best.  Its shift then assumes normal changes whose variance grows in
        proportion to the steps ahead.
        """
        if not self.candidates:
            spread = _NORMAL * np.sqrt(np.arange(1, self.rows.form.horizon + 1))
            record = {"candidate": default, "loss": None, "error": None, "seconds": 0.0, "chosen": True}
            record["reason"] = "no held-out ends: series are too short"
            return [default], spread[:, None] * norm.ppf(self.levels), [record]
        best = min(self.candidates, key=lambda candidate: candidate["loss"])["candidate"]
        for candidate in self.candidates:
            candidate["chosen"] = candidate["candidate"] == best
        if self.verbose:
            print("chosen:", best)
        return best.split(" and "), self.shifts[best], self.candidates


def _shift(found: np.ndarray, wanted: np.ndarray, levels: list[float]) -> np.ndarray:
    """Return the numbers whose addition calibrates forecast quantiles, `(horizon, quantiles)`; 0 for the median.

    Errors are assumed to grow as a power of the steps ahead.  All errors, each divided by this power, give the
    quantiles.  Errors after one end depend on each other, so the number of independent errors is the number of ends.
    `found` has the shape `(ends, horizon, quantiles or 1)`, and `wanted` the shape `(ends, horizon)`.
    """
    middle = levels.index(0.5)
    median = found[:, :, middle] if found.shape[2] > 1 else found[:, :, 0]
    spread = np.log(np.maximum(np.abs(wanted - median).mean(axis=0), 1e-12))
    if len(spread) > 1:
        steps = np.log(np.arange(1, len(spread) + 1))
        spread = np.polyval(np.polyfit(steps, spread, 1), steps)
    errors = (wanted[:, :, None] - found) / np.exp(spread)[:, None]
    errors = np.broadcast_to(errors, (*wanted.shape, len(levels))).reshape(-1, len(levels))
    found = np.exp(spread)[:, None] * quantiles_of(errors, np.array(levels), independent=len(wanted))
    found[:, middle] = 0
    return found


def ordered(rows: Rows, changes: np.ndarray, chosen: np.ndarray, levels: list[float]) -> np.ndarray:
    """Return the forecasts of chosen rows, given their changes; quantiles that cross the median become equal to it."""
    found = rows.forecasts(changes, chosen)
    middle = levels.index(0.5)
    median = found[:, :, middle : middle + 1]
    sides = np.minimum(found[:, :, :middle], median), median, np.maximum(found[:, :, middle + 1 :], median)
    return np.sort(np.concatenate(sides, axis=2), axis=2)
