"""The area under the curve of the true positive rate over the false positive rate (ROC)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from varlen_rnn.metrics.classes import check_ignored
from varlen_rnn.metrics.metric import TargetMetric
from varlen_rnn.tape.variable import Variable


class AUC(TargetMetric):
    """The probability that a row of label 1 has a higher score than a row of label 0; equal scores count as one half.

    Predictions are scores, shape `(rows,)`: logits or probabilities; targets are 0 or 1.  The result is exact, so the
    metric keeps all scores, with 24 bytes per row.

    Parameters
    ----------
    ignore_index : int or None
        Rows with this target do not count.

    Examples
    --------
    >>> auc = AUC()
    >>> auc.update(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1]))
    >>> auc.compute()
    0.75

    Source: `sklearn.metrics.roc_auc_score`, of two classes.
    """

    op = "score_counts"
    _batches: list[np.ndarray]

    def __init__(self, *, ignore_index: int | None = -100) -> None:
        super().__init__(ignore_index=check_ignored("AUC", ignore_index))

    def compute(self) -> float:
        """Return the area, or NaN if no row of one of the labels counts."""
        scores, labels, weights = self._counts[:, np.argsort(self._counts[0], kind="stable")]
        ends = np.flatnonzero(np.append(scores[1:] != scores[:-1], True)) if scores.size else np.zeros(0, int)
        positive, negative = (np.diff(np.cumsum(weights * part)[ends], prepend=0) for part in (labels, 1 - labels))
        pairs = positive.sum() * negative.sum()
        below = np.cumsum(negative) - negative / 2
        return float(positive @ below / pairs) if pairs else float("nan")

    def _nothing(self) -> np.ndarray:
        return np.zeros((3, 0))

    @property
    def _counts(self) -> np.ndarray:
        self._batches = [np.concatenate(self._batches, axis=1)]
        return self._batches[0]

    @_counts.setter
    def _counts(self, counts: np.ndarray) -> None:
        self._batches = [counts]

    def update_counts(self, counts: ArrayLike | Variable) -> None:
        """Keep counts that `counts` returned, or that a run of a program fetched; they are joined when needed."""
        self._batches.append(self._checked(counts))

    def _fits(self, shape: tuple[int, ...], nothing: tuple[int, ...]) -> bool:
        return shape[0] == 3
