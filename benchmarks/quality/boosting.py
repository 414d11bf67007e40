"""Gradient boosting of scikit-learn over statistics of each series."""

import time

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor


def statistics(kind, X, y, X_test, seed):
    """Mean, deviation, quantiles, ends, changes and length of each series."""
    classes = {"series": HistGradientBoostingClassifier, "numbers": HistGradientBoostingRegressor}
    estimator = classes[kind](random_state=seed)
    began = time.process_time()
    estimator.fit(np.array(list(map(_statistics, X))), y)
    seconds = time.process_time() - began
    features = np.array(list(map(_statistics, X_test)))
    return estimator.predict(features), estimator.predict_proba(features) if kind == "series" else None, seconds


def _statistics(x):
    x = np.asarray(x, np.float64)
    change = np.diff(x, axis=0) if len(x) > 1 else np.zeros_like(x)
    parts = [x.mean(0), x.std(0), *np.quantile(x, (0, 0.25, 0.5, 0.75, 1), axis=0), x[0], x[-1], x.sum(0)]
    return np.concatenate([*parts, change.mean(0), change.std(0), np.abs(change).max(0), [len(x)]])
