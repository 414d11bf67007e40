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
    return _fitted(ESTIMATORS[kind](random_state=seed), X, y, X_test)


def recurrent(kind, X, y, X_test, seed):
    """Return the same of the recurrent network alone."""
    return _fitted(ESTIMATORS[kind](model="recurrent", random_state=seed), X, y, X_test)


def _fitted(estimator, X, y, X_test):
    began = time.process_time()
    estimator.fit(X, y)
    seconds = time.process_time() - began
    proba = estimator.predict_proba(X_test) if isinstance(estimator, sklearn.SequenceClassifier) else None
    found = estimator.predict(X_test) if proba is None else estimator.classes_[np.argmax(proba, axis=1)]
    return found, proba, seconds
