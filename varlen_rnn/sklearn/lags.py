"""Turn series into rows, from which a ridge learns.  A row has all that is known at its step, over its own scale.

    step                     0    1    2    3    4
    value                    5    7    6    8    9
    scale at step 2          1.5, the mean absolute difference of 5, 7 and 6 (and a little of other series' scale)
    row 2, two lags          6-7 and 6-5 over 1.5, ...
    change after row 2       8-6 and 9-6 over 1.5, for a horizon of two

A row knows nothing of later steps.  So the last row of a series, from which it is forecast, is computed in the same way
as the training rows.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from scipy.linalg import eigh
from threadpoolctl import threadpool_limits

from varlen_rnn.errors import check_flag, check_int
from varlen_rnn.sklearn.restored import array_of, check_that, finite_of, numbers_of

PENALTIES = 10.0 ** np.arange(1, -4.1, -1)  # tried in turn; each is multiplied by the number of rows
_OWN = 4  # the typical difference of all series counts as much as this many differences of one series
_FARTHEST = 8.0  # features and changes are clipped to this many deviations
_TINY = 1e-30  # a smaller sum of squared differences is rounding


@dataclasses.dataclass(frozen=True)
class Form:
    """How series become rows."""

    horizon: int  # steps to forecast
    season: int  # steps of a season; 1 for none
    lags: int  # the number of values before the last that are features
    logarithm: bool  # whether series of positive numbers become logarithms
    seasonal: bool  # whether changes count from the value one season before; otherwise from the last value
    # The mean absolute differences of logarithms, and of values divided by their mean absolute value.
    typical: tuple[float, float]

    @classmethod
    def restored(cls, state: dict[str, Any]) -> Form:
        """Return the Form that `state` (from `dataclasses.asdict`, or its JSON) describes, or raise."""
        horizon, season, lags = (check_int(state[name], f"form, {name}", 1) for name in ("horizon", "season", "lags"))
        logarithm, seasonal = (check_flag(state[name], f"form, {name}") for name in ("logarithm", "seasonal"))
        first, second = numbers_of(state["typical"], "form, typical", 2)
        return cls(horizon, season, lags, logarithm, seasonal, (first, second))

    def num_features(self, columns: int) -> int:
        """Return the number of features of a row, given the number of covariates."""
        return self.lags + 2 + (self.horizon if self.season > 1 else 0) + columns * (self.horizon + 1)


class Rows:
    """The rows of series, one for each step, in the order of the series.

    covariates: (steps + horizon, columns) of each series; in the training they may end with the series
    features: (rows, features)
    last: (rows,), the value, or its logarithm, at the row's step
    base: (rows, horizon), the values or logarithms from which changes count
    seasonal: (rows, horizon), the values or logarithms one season before each step to forecast
    scale, unit: (rows,), the scale of changes; and the scale of values, by which errors are divided
    logarithm: (rows,) bool, whether the row has logarithms
    future: (rows, horizon), the values that follow; NaN after the end of the series
    """

    def __init__(self, form: Form, series: list[np.ndarray], covariates: list[np.ndarray] | None = None) -> None:
        self.form = form
        self.lengths = np.array(list(map(len, series)))
        parts = [
            _rows_of(form, x, None if covariates is None else covariates[number]) for number, x in enumerate(series)
        ]
        self.features, self.last, self.seasonal, self.scale, self.unit, self.logarithm, self.future = (
            np.concatenate(arrays) for arrays in zip(*parts, strict=True)
        )
        self.base = self.seasonal if form.seasonal else np.repeat(self.last[:, None], form.horizon, axis=1)

    def by_series(self, values: np.ndarray) -> list[np.ndarray]:
        """Return `values`, which has an entry per row, as a list with an array for each series."""
        return np.split(values, np.cumsum(self.lengths)[:-1])

    def changes(self) -> np.ndarray:
        """Return the changes that follow each row, `(rows, horizon)`; NaN after the end of the series."""
        with np.errstate(invalid="ignore", divide="ignore"):
            values = np.where(self.logarithm[:, None], np.log(self.future), self.future)
        return (values - self.base) / self.scale[:, None]

    def changes_to(self, values: np.ndarray) -> np.ndarray:
        """Return the changes that lead to `values`, or to logarithms, `(rows, horizon)`."""
        return (values - self.base) / self.scale[:, None]

    def forecasts(self, changes: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return the values to which `changes` of some rows lead, `(rows, horizon, quantiles)`, in the series' unit."""
        found = self.base[rows][:, :, None] + changes * self.scale[rows][:, None, None]
        logarithm = self.logarithm[rows][:, None, None]
        return np.where(logarithm, np.exp(np.where(logarithm, np.minimum(found, 700.0), 0.0)), found)


def _rows_of(form: Form, x: np.ndarray, covariates: np.ndarray | None) -> tuple[np.ndarray, ...]:
    """Return the arrays of `Rows` for one series, without `base`."""
    steps, ahead = np.arange(len(x)), np.arange(1, form.horizon + 1)
    logarithm = form.logarithm and bool(x.min() > 0)
    z = np.log(x) if logarithm else x
    unit = _mean_difference(x, form.typical[1] * np.cumsum(np.abs(x)) / (steps + 1))
    scale = _mean_difference(z, np.full(len(x), form.typical[0])) if logarithm else unit
    before = np.maximum(steps[:, None] - np.arange(1, form.lags + 1), 0)
    parts = [z[:, None] - z[before], (z - np.cumsum(z) / (steps + 1))[:, None]]
    parts += [((z - z[0]) / np.maximum(steps, 1))[:, None]]
    places = steps[:, None] + 1 - form.season + (ahead - 1) % form.season
    seasonal = z[np.where(places < 0, steps[:, None], places)]
    parts += [seasonal - z[:, None]] if form.season > 1 else []
    features = np.concatenate(parts, axis=1) / scale[:, None]
    if covariates is not None:
        later = np.minimum(steps[:, None] + np.arange(form.horizon + 1), len(covariates) - 1)
        features = np.concatenate([features, covariates[later].reshape(len(x), -1)], axis=1)
    future = np.append(x, np.full(form.horizon, np.nan))[steps[:, None] + ahead]
    return features, z, seasonal, scale, unit, np.full(len(x), logarithm), future


def _mean_difference(z: np.ndarray, typical: np.ndarray) -> np.ndarray:
    """Return the mean of the absolute differences of neighbours up to each step and of `_OWN` typical differences."""
    total = np.cumsum(np.abs(np.diff(z, prepend=z[:1])))
    found = (total + _OWN * typical) / (np.arange(len(z)) + _OWN)
    return np.where(found > np.finfo(np.float64).tiny, found, 1.0)


def typical_differences(series: list[np.ndarray]) -> tuple[float, float]:
    """Return `Form.typical`: medians over the series that have differences."""
    of_logarithms = [np.abs(np.diff(np.log(x))).mean() for x in series if len(x) > 1 and x.min() > 0]
    of_values = [np.abs(np.diff(x)).mean() / np.abs(x).mean() for x in series if len(x) > 1 and np.abs(x).any()]
    return tuple(float(np.median(some)) if some else 0.1 for some in (of_logarithms, of_values))  # type: ignore


def season_of(series: list[np.ndarray]) -> int:
    """Return the length of a season in steps, or 1 if there is none: the lag at which differences are alike.

    The autocorrelation of differences (of logarithms of positive series) is averaged over the series of at least three
    seasons.  The season is the first peak with at least 0.9 of the highest peak's value.  A peak must exceed 0, and the
    value at some shorter lag, by a margin: 0.15 plus two standard deviations of the noise of series without a season.
    """
    longest = max(map(len, series)) // 3
    total, count, steps = np.zeros(longest + 1), np.zeros(longest + 1), 0
    for x in series:
        if len(x) < 9:
            continue
        z = np.diff(np.log(x) if x.min() > 0 else x)
        z = z - z.mean()
        if (power := z @ z) <= _TINY:
            continue
        spectrum = np.abs(np.fft.rfft(z, 2 * len(z))) ** 2
        lags = min(len(x) // 3, longest) + 1
        total[:lags] += np.fft.irfft(spectrum)[:lags] / power * len(z) / (len(z) - np.arange(lags))
        count[:lags] += 1
        steps += len(z)
    mean = np.where(count >= max(1, count.max(initial=0) / 2), total / np.maximum(count, 1), 0.0)
    least = 0.15 + 2 / np.sqrt(max(steps, 1))
    peaks = [k for k in range(2, longest) if mean[k] >= max(mean[k - 1], mean[k + 1], least)]
    peaks = [k for k in peaks if mean[k] >= mean[1:k].min() + least]
    return next(k for k in peaks if mean[k] >= 0.9 * mean[peaks].max()) if peaks else 1


class Ridge:
    """Changes as a linear function of features: `clip((features - mean) / scale) weight + bias`."""

    mean: np.ndarray  # (features,)
    scale: np.ndarray  # (features,), infinite for a constant feature
    weight: np.ndarray  # (features, horizon)
    bias: np.ndarray  # (horizon,)
    bound: np.ndarray  # (horizon,), the largest changes of the training: outputs are clipped to -bound and bound

    def fit(self, features: np.ndarray, changes: np.ndarray, penalties: np.ndarray = PENALTIES) -> list[tuple]:
        """Learn mean, scale and bound; return a pair (weight, bias) for each penalty, which counts once per row."""
        self.mean, deviation = features.mean(axis=0), features.std(axis=0)
        self.scale = np.where(deviation <= 1e-9 * np.maximum(np.abs(self.mean), 1.0), np.inf, deviation)
        farthest = _FARTHEST * np.sqrt((changes**2).mean(axis=0))
        changes = np.clip(changes, -farthest, farthest)
        self.bound = np.abs(changes).max(axis=0)
        scaled = self.scaled(features)
        centre, bias = scaled.mean(axis=0), changes.mean(axis=0)
        with threadpool_limits(1, "blas"):  # the number of BLAS's threads would decide the last bits
            values, vectors = eigh((scaled - centre).T @ (scaled - centre))
            projected = vectors.T @ ((scaled - centre).T @ (changes - bias))
            weights = [vectors @ (projected / (values + p * len(scaled))[:, None]) for p in penalties]
            return [(weight, bias - centre @ weight) for weight in weights]

    def outputs(self, features: np.ndarray) -> np.ndarray:
        """Return the changes that follow each row, `(rows, horizon)`; a row's changes do not depend on other rows."""
        found = np.einsum("rf,fh->rh", self.scaled(features), self.weight) + self.bias
        return np.clip(found, -self.bound, self.bound)

    def scaled(self, features: np.ndarray) -> np.ndarray:
        """Return features scaled to mean 0 and deviation 1 over the training, and clipped to `_FARTHEST` deviations."""
        return np.clip((features - self.mean) / self.scale, -_FARTHEST, _FARTHEST)

    def state(self) -> dict[str, np.ndarray]:
        """Return the arrays by name; none before a fit."""
        names = "mean", "scale", "weight", "bias", "bound"
        return {name: getattr(self, name) for name in names if hasattr(self, name)}

    def restore(self, arrays: dict[str, np.ndarray], num_features: int, horizon: int) -> None:
        """Restore the result of `state`, or raise unless it fits the numbers of features and of steps to forecast."""
        if not arrays:
            return
        self.mean = finite_of(arrays, "mean", (num_features,), np.float64)
        self.scale = array_of(arrays, "scale", (num_features,), np.float64)
        check_that(self.scale, self.scale > 0, "scale", "numbers above 0")
        self.weight = finite_of(arrays, "weight", (num_features, horizon), np.float64)
        self.bias, self.bound = (finite_of(arrays, name, (horizon,), np.float64) for name in ("bias", "bound"))
