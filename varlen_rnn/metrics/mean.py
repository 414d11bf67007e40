"""The mean of numbers, such as losses, that arrive one by one or several at a time."""

from __future__ import annotations

import numpy as np

from varlen_rnn.errors import DTypeError, OutOfRangeError, ShapeError, shown
from varlen_rnn.metrics.metric import Share
from varlen_rnn.tape.variable import required
from varlen_rnn.typing import Rows


class Mean(Share):
    """The mean of numbers with optional weights, such as losses of batches weighted by their numbers of rows.

    Examples
    --------
    >>> mean = Mean()
    >>> mean.update(0.5, sample_weight=3)
    >>> mean.update(np.array([1.0, 0.5]))
    >>> mean.compute()
    0.6
    """

    def update(self, values: Rows, sample_weight: Rows | None = None) -> None:
        """Add a number, or several; an error changes nothing.

        Parameters
        ----------
        values : number, or Variable or array of shape `()` or `(rows,)`
        sample_weight : numbers of the shape of `values`, optional
            The weight of each number, finite and at least 0; by default 1.

        Raises
        ------
        InputError
            If an argument does not fit.
        """
        numbers = _numbers(values, "Mean, values")
        weights = np.ones_like(numbers) if sample_weight is None else _numbers(sample_weight, "Mean, sample_weight")
        if weights.shape != numbers.shape:
            expected = f"shape {numbers.shape}, the shape of `values`"
            raise ShapeError("Mean, sample_weight", expected=expected, got=f"shape {weights.shape}")
        if not ((weights >= 0) & (weights < np.inf)).all():
            expected = "finite numbers of at least 0"
            raise OutOfRangeError("Mean, sample_weight", expected=expected, got=shown(sample_weight))
        self.update_counts(np.array([(numbers * weights).sum(), weights.sum()]))


def _numbers(values: Rows, what: str) -> np.ndarray:
    """Return a number, or one number per row, as an array of float64, or raise."""
    found = np.asarray(required(values, what))
    if found.dtype.kind not in "fiub":
        raise DTypeError(what, expected="numbers", got=found.dtype)
    if found.ndim > 1:
        raise ShapeError(what, expected="a number, or an array of one axis", got=f"shape {found.shape}")
    return found.astype(np.float64)
