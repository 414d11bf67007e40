"""Metrics that add up over batches, as scikit-learn defines them, per row or with equal weight for each sequence."""

from typing import TYPE_CHECKING

from varlen_rnn.metrics.classes import F1, Accuracy, ConfusionMatrix
from varlen_rnn.metrics.mean import Mean
from varlen_rnn.metrics.metric import Metric
from varlen_rnn.metrics.numbers import R2, MeanAbsoluteError, MeanSquaredError
from varlen_rnn.metrics.scores import AUC
from varlen_rnn.tape import elsewhere

__all__ = ["AUC", "F1", "R2", "Accuracy", "ConfusionMatrix", "Mean", "MeanAbsoluteError", "MeanSquaredError", "Metric"]

if not TYPE_CHECKING:  # Hidden from type checkers: with a module's `__getattr__` they accept any name.

    def __getattr__(name):
        raise elsewhere.missing_name(__name__, name)


def __dir__() -> list[str]:
    return __all__
