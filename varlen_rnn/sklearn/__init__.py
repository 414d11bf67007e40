"""Estimators with scikit-learn's interface for sequences of unequal length: a classifier, a regressor, a tagger."""

from varlen_rnn.sklearn.estimators import SequenceClassifier, SequenceRegressor, SequenceTagger
from varlen_rnn.sklearn.files import load

__all__ = ["SequenceClassifier", "SequenceRegressor", "SequenceTagger", "load"]


def __dir__() -> list[str]:
    return __all__
