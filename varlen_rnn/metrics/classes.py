"""Metrics of classes: accuracy, confusion matrix, and F1."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from varlen_rnn.errors import ShapeError, check_choice, check_int, check_number, shown
from varlen_rnn.kernels.arithmetic import equal, multiply
from varlen_rnn.kernels.copies import astype
from varlen_rnn.kernels.largest import top
from varlen_rnn.kernels.reductions import argmax_over, max_over
from varlen_rnn.kernels.rows import mark
from varlen_rnn.metrics.metric import Share, TargetMetric, check_ignored
from varlen_rnn.metrics.rows import FLOAT64, both_sums, check_classes, check_weight, classes_and_counted, weights_of
from varlen_rnn.ops.cost import per_input_element
from varlen_rnn.ops.examples import rows
from varlen_rnn.ops.indices import indices
from varlen_rnn.products.row_sums import row_product
from varlen_rnn.runtime.device import beside, empty, host_numbers, on_device
from varlen_rnn.tape.checks import check_shape
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import TensorSpec

Per: TypeAlias = Literal["row", "sequence"]
Average: TypeAlias = Literal["macro", "micro", "weighted"]
# A confusion matrix of so many classes takes 128 MiB; without a limit, a program could request any amount of memory.
MOST_CLASSES = 4096


@operator(cost=per_input_element)
def accuracy_counts(
    predictions, targets, sample_weight=None, *, top_k: int, ignore_index: int | None, per_sequence: bool
):
    """Return the total weight of the correctly predicted rows, and the total weight of all rows that count."""
    op = "accuracy_counts"
    labels = host_numbers(targets.data)
    if predictions.data.ndim == 1:
        counted = np.ones(len(labels), bool) if ignore_index is None else labels != ignore_index
        right = equal(predictions.data, targets.data)
    else:
        classes, counted = classes_and_counted(op, targets, predictions.shape[1], ignore_index)
        right = _are_among_largest(predictions.data, classes, top_k)
    weights = weights_of(op, predictions, targets, sample_weight, counted, per_sequence)
    if on_device(right):
        return both_sums(multiply(beside(weights, right), astype(right, FLOAT64)), weights)
    return np.array([weights[right].sum(), weights.sum()])


def _are_among_largest(scores, classes, k):
    """Return whether the class of each row is among the `k` best; of equal scores the first is better, NaN is best."""
    if k == 1:
        return equal(argmax_over(scores, 1), beside(classes, scores))
    if on_device(scores):
        found = equal(top(scores, k, 1)[1], beside(classes[:, None], scores))
        return astype(max_over(astype(found, np.int64), 1), np.bool_)
    own, is_nan = scores[np.arange(len(scores)), classes][:, None], np.isnan(scores)
    above = (scores > own) | (is_nan & ~np.isnan(own))
    ties = (scores == own) | (is_nan & np.isnan(own))
    before = np.arange(scores.shape[1]) < classes[:, None]
    return np.count_nonzero(above | (ties & before), axis=1) < k


@accuracy_counts.infer
def _infer_accuracy(predictions, targets, sample_weight, top_k, ignore_index, per_sequence):
    check_classes("accuracy_counts", predictions, targets)
    most = 1 if len(predictions.shape) == 1 else predictions.shape[1]
    if top_k < 1 or top_k > most != -1:
        raise ShapeError("accuracy_counts, top_k", expected=f"1 to {most}, the number of classes", got=top_k)
    check_weight("accuracy_counts", sample_weight, predictions.shape[0], per_sequence)
    return TensorSpec((2,), FLOAT64)


@accuracy_counts.examples
def _examples_of_accuracy(rng):
    labels = np.array([0, -1, 1, 1, 0, 2])
    for per_sequence, weight in ((False, None), (False, rng.random(6)), (True, None), (True, rng.random(4))):
        options = {"ignore_index": -1, "per_sequence": per_sequence}
        yield [rows(rng, 3), labels, weight], {"top_k": 2, **options}
        yield [rows(rng).like(np.zeros(6, int)), labels, weight], {"top_k": 1, **options}


class Accuracy(Share, TargetMetric):
    """The share of rows that have the right class, or the mean of this share over sequences.

    Predictions are scores, shape `(rows, classes)`, or classes, shape `(rows,)`; targets are classes.

    Parameters
    ----------
    top_k : int
        A row is right if its class has one of the `top_k` largest scores.  Of equal scores, the first ranks higher.
    ignore_index : int or None
        Rows with this target do not count.
    per : {"row", "sequence"}
        Whether every row, or every sequence of the last level, has the same weight.  The accuracy of a sequence is the
        mean over its rows that count; sequences without such rows do not count.

    Examples
    --------
    >>> accuracy = Accuracy()
    >>> accuracy.update(np.array([[0.1, 0.9], [0.8, 0.2]]), np.array([1, 1]))
    >>> accuracy.update(np.array([1, 0]), np.array([1, -100]))
    >>> round(accuracy.compute(), 3)
    0.667

    Source: `sklearn.metrics.accuracy_score` and `top_k_accuracy_score`.
    """

    op = "accuracy_counts"

    def __init__(self, top_k: int = 1, *, ignore_index: int | None = -100, per: Per = "row") -> None:
        check_choice(per, "Accuracy, per", "row", "sequence")
        ignored = check_ignored("Accuracy", ignore_index)
        top_k = check_int(top_k, "Accuracy, top_k", 1)
        if top_k >= 2**63:
            raise ShapeError("Accuracy, top_k", expected="at most the number of classes", got=shown(top_k))
        super().__init__(top_k=top_k, ignore_index=ignored, per_sequence=per == "sequence")


@operator(cost=per_input_element)
def confusion_counts(predictions, targets, sample_weight=None, *, num_classes: int, ignore_index: int | None):
    """Return the confusion matrix: entry (i, j) sums the weights of the rows of class i that were predicted as j."""
    op = "confusion_counts"
    classes, counted = classes_and_counted(op, targets, num_classes, ignore_index)
    weights = weights_of(op, predictions, targets, sample_weight, counted)
    if predictions.data.ndim == 1:
        kept = predictions.like(np.where(counted, host_numbers(predictions.data), predictions.dtype.type(0)))
        found = indices(f"{op}, predictions", kept, num_classes, "class")
    else:
        found = argmax_over(predictions.data, 1)
    if on_device(predictions.data):
        return _confusion_on_device(classes, found, weights, num_classes, predictions.data)
    matrix = np.bincount(classes * num_classes + found, weights, num_classes**2).reshape(num_classes, num_classes)
    return matrix.astype(FLOAT64, copy=False)  # NumPy returns integers if there are no rows


def _confusion_on_device(classes, found, weights, num_classes, like):
    """Return the confusion matrix, as a product of one-hot rows."""
    given, taken = (empty((len(classes), num_classes), like, FLOAT64) for _ in range(2))
    mark(classes, given)
    mark(found, taken)
    return row_product(multiply(given, beside(weights[:, None], like)), taken)


@confusion_counts.infer
def _infer_confusion(predictions, targets, sample_weight, num_classes, ignore_index):
    check_classes("confusion_counts", predictions, targets)
    if not 1 <= num_classes <= MOST_CLASSES:
        raise ShapeError("confusion_counts, num_classes", expected=f"1 to {MOST_CLASSES}", got=num_classes)
    if len(predictions.shape) == 2:
        shape = (predictions.shape[0], num_classes)
        check_shape("confusion_counts", "predictions", predictions, shape, "one column for each class")
    check_weight("confusion_counts", sample_weight, predictions.shape[0])
    return TensorSpec((num_classes, num_classes), FLOAT64)


@confusion_counts.examples
def _examples_of_confusion(rng):
    labels = np.array([0, -1, 1, 1, 0, 2])
    for weight in (None, rng.random(6)):
        yield [rows(rng, 3), labels, weight], {"num_classes": 3, "ignore_index": -1}
        yield [rows(rng).like(rng.integers(0, 3, 6)), labels, weight], {"num_classes": 3, "ignore_index": -1}


class _Confusions(TargetMetric):
    op = "confusion_counts"

    def __init__(self, num_classes: int, ignore_index: int | None) -> None:
        name = type(self).__name__
        number = check_int(num_classes, f"{name}, num_classes", 1)
        if number > MOST_CLASSES:
            raise ShapeError(f"{name}, num_classes", expected=f"at most {MOST_CLASSES}", got=shown(number))
        super().__init__(num_classes=number, ignore_index=check_ignored(name, ignore_index))

    def _nothing(self) -> np.ndarray:
        return np.zeros((self._options["num_classes"],) * 2)


class ConfusionMatrix(_Confusions):
    """The confusion matrix: entry (i, j) is the number of rows of class i that were predicted as class j.

    Predictions are scores, shape `(rows, num_classes)`, or classes, shape `(rows,)`; targets are classes.

    Parameters
    ----------
    num_classes : int
        At most 4096: the matrix takes `8 * num_classes ** 2` bytes.
    ignore_index : int or None
        Rows with this target do not count.

    Examples
    --------
    >>> confusions = ConfusionMatrix(2)
    >>> confusions.update(np.array([0, 1, 1]), np.array([0, 0, 1]))
    >>> confusions.compute()
    array([[1., 1.],
           [0., 1.]])

    Source: `sklearn.metrics.confusion_matrix`.
    """

    def __init__(self, num_classes: int, *, ignore_index: int | None = -100) -> None:
        super().__init__(num_classes, ignore_index)

    def compute(self) -> np.ndarray:
        """Return the matrix, shape `(num_classes, num_classes)`, float64; entries are sums of the weights of rows."""
        return self._counts.copy()


class F1(_Confusions):
    """The harmonic mean of precision and recall of each class, or their average.

    Predictions, targets, `num_classes`, `ignore_index` and memory are as in `ConfusionMatrix`.

    Parameters
    ----------
    num_classes : int
    average : {"macro", "micro", "weighted"} or None
        "macro": the mean over classes.  "micro": F1 of all rows together.  "weighted": the mean over classes, weighted
        by their rows.  None: an array with F1 of each class.  A mean over classes leaves out classes that occur neither
        in predictions nor in targets.
    zero_division : float
        F1 of a class that occurs neither in predictions nor in targets, and of no rows at all: 0 to 1, or NaN.
    ignore_index : int or None

    Examples
    --------
    >>> f1 = F1(3, average=None)
    >>> f1.update(np.array([0, 1, 1]), np.array([0, 0, 1]))
    >>> f1.compute().round(3)
    array([0.667, 0.667, 0.   ])

    Source: `sklearn.metrics.f1_score`.
    """

    def __init__(
        self,
        num_classes: int,
        average: Average | None = "macro",
        zero_division: float = 0.0,
        *,
        ignore_index: int | None = -100,
    ) -> None:
        if average is not None:
            check_choice(average, "F1, average", "macro", "micro", "weighted")
        super().__init__(num_classes, ignore_index)
        expected = "0 to 1, or NaN"
        self._zero_division = check_number(
            zero_division, "F1, zero_division", expected, lambda number: 0 <= number <= 1 or number != number
        )
        self._average = average

    def compute(self) -> float | np.ndarray:
        """Return the average, or F1 of each class."""
        right, there, predicted = np.diagonal(self._counts), self._counts.sum(axis=1), self._counts.sum(axis=0)
        if self._average == "micro":
            right, there, predicted = right.sum(), there.sum(), predicted.sum()
        both = np.asarray(there + predicted)
        each = np.divide(2 * right, both, out=np.full(both.shape, self._zero_division), where=both != 0)
        if self._average is None:
            return each
        if self._average == "micro":
            return float(each)
        weights = there if self._average == "weighted" else (both != 0).astype(np.float64)
        some = weights != 0
        return float((weights[some] * each[some]).sum() / weights.sum()) if some.any() else self._zero_division
