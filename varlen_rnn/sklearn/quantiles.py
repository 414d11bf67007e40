"""Quantiles as predictions: their levels, their loss, and their calibration on data that no training has seen.

Example: of 99 numbers that were left out, 30 lie below the predictions of the quantile 0.1.  These predictions are
shifted down until 10 lie below them; then the interval from 0.1 to 0.9 covers 80 % of new numbers.

Source: Romano, Patterson and Candes (2019), "Conformalized quantile regression", arXiv 1905.03222, in the form that
calibrates both ends of an interval separately (its section 6); Koenker and Bassett (1978), for the loss.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from varlen_rnn.errors import InputError, check_list, check_number, listed, shown


def check_quantiles(quantiles: Any) -> list[float]:
    """Return `quantiles` as a list of floats, or raise unless they rise between 0 and 1."""
    between = "between 0 and 1", lambda level: 0 < level < 1
    levels = [check_number(level, "quantiles", *between) for level in check_list(quantiles, "quantiles")]
    if not levels or any(low >= high for low, high in itertools.pairwise(levels)):
        raise InputError("quantiles", expected="rising numbers, such as (0.1, 0.5, 0.9)", got=shown(quantiles))
    return levels


def with_median(quantiles: list[float]) -> list[float]:
    """Return the quantiles in rising order, with the quantile 0.5 among them: `predict` returns the median."""
    return sorted({*quantiles, 0.5})


def places_of(quantiles: Any, levels: list[float]) -> list[int]:
    """Return the index of each quantile in `levels`, the levels of a fit, or raise if a quantile is not in it."""
    wanted = check_quantiles(quantiles)
    if not set(wanted) <= set(levels):
        expected = f"only the fitted quantiles {listed(levels)}" if levels else "an estimator fitted with quantiles"
        raise InputError("quantiles", expected=expected, got=shown(quantiles), hint="call fit again")
    return [levels.index(level) for level in wanted]


def pinball(outputs: np.ndarray, values: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Return the pinball loss of each output; its mean is least if each output is the quantile of its level.
    The arrays broadcast to one shape.
    """
    difference = values - outputs
    return np.maximum(levels * difference, (levels - 1) * difference)


def quantiles_of(
    values: np.ndarray, levels: np.ndarray, weights: np.ndarray | None = None, independent: int | None = None
) -> np.ndarray:
    """Return a quantile of each column k of `values`: a new number lies below it with the probability `levels[k]`.

    The k-th smallest of n numbers has the level k / (n + 1) (Weibull, 1939).  Levels beyond the first or the last
    number get that number.  If the numbers count as only `independent` ones (an end of a series has several errors),
    levels are as far from 0.5 as in a sample of that size.
    """
    weights = np.ones(len(values)) if weights is None else np.asarray(weights, np.float64)
    values, weights = values[weights > 0], weights[weights > 0]
    if not len(values):
        return np.zeros(len(levels))
    order = np.argsort(values, axis=0, kind="stable")
    places = np.cumsum(weights[order], axis=0) / weights.sum() * (len(values) / (len(values) + 1))
    if independent is not None and 1 < independent < len(values):  # levels of a sample begin at 1 / (n + 1)
        of_few, of_all = ((n - 1) / (n + 1) for n in (independent, len(values)))
        places = 0.5 + (places - 0.5) * (of_few / of_all)
    columns = np.take_along_axis(values, order, axis=0)
    return np.array([np.interp(level, places[:, k], columns[:, k]) for k, level in enumerate(levels)])
