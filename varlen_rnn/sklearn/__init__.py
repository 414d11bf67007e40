"""Estimators with scikit-learn's interface for sequences of unequal length: of classes, numbers, tags and forecasts."""

from varlen_rnn.sklearn.estimators import SequenceClassifier, SequenceRegressor, SequenceTagger
from varlen_rnn.sklearn.files import load
from varlen_rnn.sklearn.forecaster import SequenceForecaster

__all__ = ["SequenceClassifier", "SequenceForecaster", "SequenceRegressor", "SequenceTagger", "load"]


def __dir__() -> list[str]:
    return __all__
