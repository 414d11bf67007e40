"""The area under the curve of the true positive rate over the false positive rate (ROC)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from varlen_rnn.errors import OutOfRangeError
from varlen_rnn.kernels.copies import astype, joined
from varlen_rnn.kernels.reductions import max_over
from varlen_rnn.metrics.metric import TargetMetric, check_ignored
from varlen_rnn.metrics.rows import FLOAT64, check_weight, classes_and_counted, that_weigh, weights_of
from varlen_rnn.ops.cost import per_input_element
from varlen_rnn.ops.examples import rows
from varlen_rnn.ops.indices import rows_at
from varlen_rnn.runtime.device import beside, on_device, to_host
from varlen_rnn.tape.checks import check_float, check_integer, check_rank, check_shape
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import TensorSpec
from varlen_rnn.tape.variable import Variable


@operator(cost=per_input_element)
def score_counts(predictions, targets, sample_weight=None, *, ignore_index: int | None):
    """Return three rows: the scores, the labels (0 or 1), and the weights of all rows whose weight is not 0."""
    labels, counted = classes_and_counted("score_counts", targets, 2, ignore_index)
    weights = weights_of("score_counts", predictions, targets, sample_weight, counted)
    if on_device(predictions.data):  # select rows by their positions, because scores are not on the host
        kept = np.flatnonzero(weights)
        weights, scores, labels = weights[kept], rows_at(predictions.data, kept), labels[kept]
        has_nan = len(kept) > 0 and np.isnan(to_host(max_over(scores, None)))
    else:
        weights, scores, labels = that_weigh(weights, predictions.data, labels)
        has_nan = np.isnan(scores).any()
    if has_nan:
        raise OutOfRangeError("score_counts, predictions", expected="numbers without NaN", got="NaN")
    if on_device(scores):
        columns = astype(scores, FLOAT64), beside(labels.astype(FLOAT64), scores), beside(weights, scores)
        return joined([column.reshape((1, len(labels))) for column in columns], 0)
    return np.stack([scores.astype(FLOAT64), labels, weights])


@score_counts.infer
def _infer_scores(predictions, targets, sample_weight, ignore_index):
    check_float("score_counts", predictions=predictions)
    hint = "one score for each row; for two columns, pass scores[:, 1] - scores[:, 0]"
    check_rank("score_counts", "predictions", predictions, 1, hint)
    check_integer("score_counts", targets=targets)
    check_shape("score_counts", "targets", targets, predictions.shape, "one label, 0 or 1, for each row")
    check_weight("score_counts", sample_weight, predictions.shape[0])
    return TensorSpec((3, -1), FLOAT64)


@score_counts.examples
def _examples_of_scores(rng):
    for weight in (None, rng.random(6)):
        yield [rows(rng), np.array([0, 1, -1, 1, 0, 0]), weight], {"ignore_index": -1}


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
        """Return the area, or NaN unless rows of both labels count."""
        scores, labels, weights = self._counts[:, np.argsort(self._counts[0], kind="stable")]
        ends = np.flatnonzero(np.append(scores[1:] != scores[:-1], True)) if scores.size else np.zeros(0, int)
        positive, negative = (np.diff(np.cumsum(weights * part)[ends], prepend=0) for part in (labels, 1 - labels))
        pairs = positive.sum() * negative.sum()
        below = np.cumsum(negative) - negative / 2
        return float((positive * below).sum() / pairs) if pairs else float("nan")

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
