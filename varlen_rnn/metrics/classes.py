"""Metrics of classes: accuracy, confusion matrix, and F1."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from varlen_rnn.errors import ShapeError, check_choice, check_int, check_number, shown
from varlen_rnn.metrics.metric import TargetMetric, ratio
from varlen_rnn.ops.counts import MOST_CLASSES

Per: TypeAlias = Literal["row", "sequence"]
Average: TypeAlias = Literal["macro", "micro", "weighted"]


class Accuracy(TargetMetric):
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
        is_per_sequence = check_choice(per, "Accuracy, per", "row", "sequence") == "sequence"
        ignored = check_ignored("Accuracy", ignore_index)
        top_k = check_int(top_k, "Accuracy, top_k", 1)
        if top_k >= 2**63:
            raise ShapeError("Accuracy, top_k", expected="as many as there are classes, at most", got=shown(top_k))
        super().__init__(top_k=top_k, ignore_index=ignored, per_sequence=is_per_sequence)

    def compute(self) -> float:
        """Return the share of right predictions, or NaN if no row counts."""
        return ratio(*self._counts)

    def _nothing(self) -> np.ndarray:
        return np.zeros(2)


def check_ignored(name: str, ignore_index: int | None) -> int | None:
    """Return the option `ignore_index`; raise unless it is an integer or None.

    Examples
    --------
    >>> check_ignored("F1", -100)
    -100
    """
    if ignore_index is None:
        return None
    index = check_int(ignore_index, f"{name}, ignore_index")
    if not -(2**63) <= index < 2**63:
        raise ShapeError(f"{name}, ignore_index", expected="one that int64 holds", got=shown(index))
    return index


class _Confusions(TargetMetric):
    """The common base of `ConfusionMatrix` and `F1`, which both compute the matrix."""

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
        return float(weights[some] @ each[some] / weights.sum()) if some.any() else self._zero_division
