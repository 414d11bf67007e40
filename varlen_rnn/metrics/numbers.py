"""Metrics of numbers: mean errors, and the share of the targets' variance that predictions explain."""

from __future__ import annotations

import math

import numpy as np

from varlen_rnn.errors import ShapeError, check_choice, check_flag, check_int, shown
from varlen_rnn.metrics.classes import Per
from varlen_rnn.metrics.metric import TargetMetric, ratio

_MOST_OUTPUTS = 2**20  # the most outputs of `R2`, with 32 MiB of counts


class MeanAbsoluteError(TargetMetric):
    """The mean absolute difference of predictions and targets, numbers of the same shape `(rows, ...)`.

    Parameters
    ----------
    per : {"row", "sequence"}
        Whether every row, or every sequence of the last level, has the same weight.  The error of a row is the mean
        over its elements, of a sequence the mean over its rows; empty sequences do not count.

    Examples
    --------
    >>> error = MeanAbsoluteError()
    >>> error.update(np.array([1.0, 2.0]), np.array([0.0, 2.0]))
    >>> error.compute()
    0.5

    Source: `sklearn.metrics.mean_absolute_error`.
    """

    op = "error_counts"
    _squared = False

    def __init__(self, *, per: Per = "row") -> None:
        check_choice(per, f"{type(self).__name__}, per", "row", "sequence")
        super().__init__(squared=self._squared, per_sequence=per == "sequence")

    def compute(self) -> float:
        """Return the mean error, or NaN if there are no rows."""
        return ratio(*self._counts)

    def _nothing(self) -> np.ndarray:
        return np.zeros(2)


class MeanSquaredError(MeanAbsoluteError):
    """The mean squared difference of predictions and targets of the same shape `(rows, ...)`, or its root.

    Parameters
    ----------
    root : bool
        Whether the result is the square root of the mean over all elements.
    per : {"row", "sequence"}
        As in `MeanAbsoluteError`.

    Examples
    --------
    >>> error = MeanSquaredError(root=True)
    >>> error.update(np.array([3.0, 4.0]), np.array([0.0, 0.0]))
    >>> round(error.compute(), 4)
    3.5355

    Source: `sklearn.metrics.mean_squared_error`, and `root_mean_squared_error` for one column.
    """

    _squared = True

    def __init__(self, root: bool = False, *, per: Per = "row") -> None:
        self._root = check_flag(root, "MeanSquaredError, root")
        super().__init__(per=per)

    def compute(self) -> float:
        """Return the mean error, or its root; NaN if there are no rows."""
        mean = super().compute()
        return math.sqrt(mean) if self._root else mean


class R2(TargetMetric):
    """The coefficient of determination: 1 - (squared errors) / (squared deviations of targets from their mean).

    Predictions and targets are numbers, shape `(rows,)` or `(rows, num_outputs)`; the result is the mean over columns.

    Parameters
    ----------
    num_outputs : int
        At most 1,048,576.

    Examples
    --------
    >>> r2 = R2()
    >>> r2.update(np.array([1.0, 2.0]), np.array([1.0, 2.0]))
    >>> r2.update(np.array([2.0]), np.array([3.0]))
    >>> r2.compute()
    0.5

    Source: `sklearn.metrics.r2_score`; Chan, Golub and LeVeque (1983) for sums of batches, which do not cancel.
    """

    op = "variance_counts"
    _hint = "num_outputs is how many columns targets have"

    def __init__(self, num_outputs: int = 1) -> None:
        self._num_outputs = check_int(num_outputs, "R2, num_outputs", 1)
        if self._num_outputs > _MOST_OUTPUTS:
            raise ShapeError("R2, num_outputs", expected=f"at most {_MOST_OUTPUTS}", got=shown(num_outputs))
        super().__init__()

    def compute(self) -> float:
        """Return the mean over columns, or NaN if there are no rows.

        If all targets of a column are equal, as for a single row, its value is 1 if all predictions equal them, and 0
        otherwise (scikit-learn returns NaN for a single row).
        """
        weight, _, deviations, errors = self._counts
        if not weight.all():
            return float("nan")
        constant = np.where(errors == 0, 1.0, 0.0)
        each = np.divide(errors, deviations, out=1 - constant, where=deviations != 0)
        return float(np.mean(1 - each))

    def _nothing(self) -> np.ndarray:
        return np.zeros((4, self._num_outputs))

    def _sum(self, counts: np.ndarray, added: np.ndarray) -> np.ndarray:
        (weight, mean, deviations, errors), (weight_2, mean_2, deviations_2, errors_2) = counts, added
        total, apart = weight + weight_2, mean_2 - mean
        share = np.divide(weight_2, total, out=np.zeros_like(total), where=total != 0)
        between = apart**2 * weight * share
        return np.stack([total, mean + apart * share, deviations + deviations_2 + between, errors + errors_2])
