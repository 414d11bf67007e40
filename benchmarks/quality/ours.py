"""The estimators of varlen_rnn, with their defaults."""

import time

import numpy as np

from varlen_rnn import sklearn

ESTIMATORS = {
    "series": sklearn.SequenceClassifier,
    "texts": sklearn.SequenceClassifier,
    "tags": sklearn.SequenceTagger,
    "numbers": sklearn.SequenceRegressor,
}


def default(kind, X, y, X_test, seed):
    """Return predictions, probabilities or None, and seconds, of the estimator without any parameter."""
    if kind == "forecasts":
        return _forecast(sklearn.SequenceForecaster(y[0], random_state=seed), X, X_test)
    return _fitted(ESTIMATORS[kind](random_state=seed), X, y, X_test)


def quantiles(kind, X, y, X_test, seed):
    """Return medians and intervals of 80 % of the regressor, and seconds."""
    estimator = sklearn.SequenceRegressor(loss="quantile", random_state=seed)
    began = time.perf_counter()
    estimator.fit(X, y)
    seconds = time.perf_counter() - began
    return estimator.predict(X_test), estimator.predict_quantiles(X_test)[:, [0, -1]], seconds


def recurrent(kind, X, y, X_test, seed):
    """Return the same of the recurrent network alone."""
    if kind == "forecasts":
        return _forecast(sklearn.SequenceForecaster(y[0], model="recurrent", random_state=seed), X, X_test)
    estimator = ESTIMATORS[kind](random_state=seed)
    if "model" in estimator.get_params():
        estimator.set_params(model="recurrent")
    return _fitted(estimator, X, y, X_test)


def _fitted(estimator, X, y, X_test):
    began = time.perf_counter()
    estimator.fit(X, y)
    seconds = time.perf_counter() - began
    proba = estimator.predict_proba(X_test) if isinstance(estimator, sklearn.SequenceClassifier) else None
    found = estimator.predict(X_test) if proba is None else estimator.classes_[np.argmax(proba, axis=1)]
    return found, proba, seconds


def _forecast(estimator, X, X_test):
    began = time.perf_counter()
    estimator.fit(X)
    seconds = time.perf_counter() - began
    return estimator.predict(X_test), estimator.predict_quantiles(X_test)[:, :, [0, -1]], seconds
