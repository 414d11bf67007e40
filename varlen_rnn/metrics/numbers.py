"""Metrics of numbers: mean errors, and the share of the targets' variance that predictions explain."""

from __future__ import annotations

import math

import numpy as np

from varlen_rnn.errors import ShapeError, check_choice, check_flag, check_int, shown
from varlen_rnn.kernels.arithmetic import absolute, divide, multiply, subtract, where
from varlen_rnn.kernels.copies import astype, full, joined
from varlen_rnn.kernels.reductions import sum_over
from varlen_rnn.metrics.classes import Per
from varlen_rnn.metrics.metric import Share, TargetMetric
from varlen_rnn.metrics.rows import FLOAT64, both_sums, check_numbers, check_weight, that_weigh, weights_of
from varlen_rnn.ops.cost import per_input_element
from varlen_rnn.ops.examples import rows
from varlen_rnn.runtime.device import beside, on_device
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import TensorSpec

_MOST_OUTPUTS = 2**20  # the most outputs of `R2`, with 32 MiB of counts


@operator(cost=per_input_element)
def error_counts(predictions, targets, sample_weight=None, *, squared: bool, per_sequence: bool):
    """Return the weighted sum of each row's mean error, absolute or squared, and the sum of the weights."""
    weights = weights_of("error_counts", predictions, targets, sample_weight, per_sequence=per_sequence)
    if on_device(predictions.data):
        return _errors_on_device(predictions.data, targets.data, weights, squared)
    weights, x, y = that_weigh(weights, predictions.data, targets.data)
    difference = x.astype(FLOAT64) - y
    errors = difference * difference if squared else np.abs(difference)
    width = math.prod(errors.shape[1:])
    return both_sums(weights * (errors.reshape(len(errors), width).sum(axis=1) / max(1, width)), weights)


def _errors_on_device(x, y, weights, squared):
    """Compute `error_counts` on a device; rows without weight count as 0, because they may hold NaN."""
    difference = subtract(astype(x, FLOAT64), astype(y, FLOAT64))
    errors = multiply(difference, difference) if squared else absolute(difference)
    width = math.prod(x.shape[1:])
    of_rows = divide(sum_over(errors.reshape((len(x), width)), 1), np.array(float(max(1, width))))
    of_rows = where(beside(weights != 0, x), of_rows, np.array(0.0))
    return both_sums(multiply(beside(weights, x), of_rows), weights)


@error_counts.infer
def _infer_error(predictions, targets, sample_weight, squared, per_sequence):
    check_numbers("error_counts", predictions, targets)
    check_weight("error_counts", sample_weight, predictions.shape[0], per_sequence)
    return TensorSpec((2,), FLOAT64)


@error_counts.examples
def _examples_of_error(rng):
    for squared in (False, True):
        yield [rows(rng, 3), rng.random((6, 3)), rng.random(6)], {"squared": squared, "per_sequence": False}
        yield [rows(rng), rng.integers(0, 3, 6), rng.random(4)], {"squared": squared, "per_sequence": True}


class MeanAbsoluteError(Share, TargetMetric):
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


@operator(cost=per_input_element)
def variance_counts(predictions, targets, sample_weight=None):
    """Return four rows: each column's weight, mean of targets, and weighted sums of squared deviations and errors."""
    weights = weights_of("variance_counts", predictions, targets, sample_weight)
    x, y = (v.data if v.data.ndim == 2 else v.data[:, None] for v in (predictions, targets))
    if on_device(x):
        return _variance_on_device(x, y, weights)
    weights, x, y = that_weigh(weights, x, y)
    total, of_rows = weights.sum(), weights[:, None]
    mean = sum_over(of_rows * y, 0) / total if total else np.zeros(y.shape[1])
    deviation, error = y - mean, x.astype(FLOAT64) - y
    squares = [sum_over(of_rows * each**2, 0) for each in (deviation, error)]
    return np.stack([np.full(y.shape[1], total), mean, *squares])


def _variance_on_device(x, y, weights):
    """Compute `variance_counts` on a device; rows without weight count as 0, because they may hold NaN."""
    total, of_rows, counts = np.array(weights.sum()), beside(weights[:, None], x), beside(weights[:, None] != 0, x)
    x, y = (where(counts, astype(rows, FLOAT64), np.array(0.0)) for rows in (x, y))
    mean = divide(sum_over(multiply(of_rows, y), 0), np.maximum(total, np.finfo(FLOAT64).tiny))
    deviation, error = subtract(y, mean), subtract(x, y)
    squares = [sum_over(multiply(of_rows, multiply(each, each)), 0) for each in (deviation, error)]
    parts = full(mean.shape, float(total), mean), mean, *squares
    return joined([part.reshape((1, *mean.shape)) for part in parts], 0)


@variance_counts.infer
def _infer_variance(predictions, targets, sample_weight):
    check_numbers("variance_counts", predictions, targets)
    if len(predictions.shape) > 2:
        got = f"shape {predictions.shape}"
        raise ShapeError("variance_counts, predictions", expected="an array of one or two axes", got=got)
    check_weight("variance_counts", sample_weight, predictions.shape[0])
    return TensorSpec((4, predictions.shape[1] if len(predictions.shape) == 2 else 1), FLOAT64)


@variance_counts.examples
def _examples_of_variance(rng):
    yield [rows(rng, 3), rng.random((6, 3)), rng.random(6)], {}
    yield [rows(rng), rng.integers(0, 3, 6), None], {}


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
    _hint = "num_outputs must be the number of columns of the targets"

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
