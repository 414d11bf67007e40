"""Baselines of forecasts: the last value, the last season, and gradient boosting of scikit-learn over lags."""

import time

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor


def naive(kind, X, y, X_test, seed):
    """Repeat the last value."""
    horizon, _ = y
    return np.stack([np.repeat(x[-1:], horizon) for x in X_test]), None, 0.0


def seasonal(kind, X, y, X_test, seed):
    """Repeat the last season."""
    horizon, season = y
    return np.stack([x[np.arange(horizon) % season - season] for x in X_test]), None, 0.0


def boosted(kind, X, y, X_test, seed):
    """Predict, from the last six values or two seasons over the last value and the step ahead, the change to it.

    Changes are logarithms, since the series are positive.  One model learns all series and steps ahead.
    """
    horizon, season = y
    lags = max(6, 2 * season)
    began = time.process_time()
    rows, changes = [], []
    for x in map(np.log, X):
        for now in range(1, len(x) - 1):
            ahead = np.arange(1, min(horizon, len(x) - 1 - now) + 1)
            rows.append(_rows(x[: now + 1], ahead, lags, season))
            changes.append(x[now + ahead] - x[now])
    model = HistGradientBoostingRegressor(random_state=seed).fit(np.concatenate(rows), np.concatenate(changes))
    seconds = time.process_time() - began
    ahead = np.arange(1, horizon + 1)
    found = [x[-1] + model.predict(_rows(x, ahead, lags, season)) for x in map(np.log, X_test)]
    return np.exp(found), None, seconds


def _rows(x, ahead, lags, season):
    """Return a row for each step ahead: the lags, the value a season before the step, and the number of steps."""
    before = np.full(lags, np.nan)
    own = x[-lags - 1 : -1][::-1]
    before[: len(own)] = own - x[-1]
    places = len(x) - 1 + ahead - season * np.ceil(ahead / season).astype(int)
    last = np.where(places >= 0, x[np.maximum(places, 0)] - x[-1], np.nan)
    return np.column_stack([np.tile(before, (len(ahead), 1)), last, ahead])
