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
    seconds = _seconds(estimator, X, y)
    return estimator.predict(X_test), estimator.predict_quantiles(X_test)[:, [0, -1]], seconds


def recurrent(kind, X, y, X_test, seed):
    """Return the same of the recurrent network alone."""
    if kind == "forecasts":
        return _forecast(sklearn.SequenceForecaster(y[0], model="recurrent", random_state=seed), X, X_test)
    return _fitted(ESTIMATORS[kind](model="recurrent", random_state=seed), X, y, X_test)


def _fitted(estimator, X, y, X_test):
    seconds = _seconds(estimator, X, y)
    proba = estimator.predict_proba(X_test) if isinstance(estimator, sklearn.SequenceClassifier) else None
    found = estimator.predict(X_test) if proba is None else estimator.classes_[np.argmax(proba, axis=1)]
    return found, proba, seconds


def _forecast(estimator, X, X_test):
    seconds = _seconds(estimator, X)
    return estimator.predict(X_test), estimator.predict_quantiles(X_test)[:, :, [0, -1]], seconds


def _seconds(estimator, *data):
    """Fit an estimator; return the seconds of processor time."""
    began = time.process_time()
    estimator.fit(*data)
    return time.process_time() - began
