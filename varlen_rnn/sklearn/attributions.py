"""Integrated gradients: how much each row and feature of a sequence adds to a prediction.

Example: f(x) = x1^2 + x2, the baseline (0, 0), and the row (3, 2).  At the share a of the way from the baseline to the
row, the gradient is (6 a, 1).  Its mean (3, 1) times the difference (3, 2) are the attributions, 9 and 2.  They add up
to f(3, 2) - f(0, 0) = 11 (completeness).

Source: Sundararajan, Taly and Yan (2017), "Axiomatic attribution for deep networks", arXiv 1703.01365.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from varlen_rnn.errors import count
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.sklearn.missing import Filling
from varlen_rnn.sklearn.network import Network
from varlen_rnn.tape.backward import backward
from varlen_rnn.tape.modes import no_grad
from varlen_rnn.tape.variable import Variable

_INCOMPLETE = 0.05  # a sum of attributions may be wrong by this share of the largest difference


def integrated(
    function: Callable[[Variable], Variable], rows: LoDTensor, baseline: np.ndarray, steps: int
) -> np.ndarray:
    """Return an array of attributions, one for each number in `rows`, float64, with the shape of `rows`.

    `function` maps rows to one number per sequence, which depends on the rows of that sequence only.  `baseline` has
    the rows at which the line begins.  The integral along the line is computed from `steps` gradients (Gauss-Legendre
    quadrature).
    """
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    difference, total = rows.data - baseline, np.zeros(rows.data.shape)
    for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
        point = (baseline + node * difference).astype(rows.data.dtype)
        x = Variable(LoDTensor(point, rows.structure), requires_grad=True)
        backward(function(x).sum())
        total += weight * np.asarray(x.grad)
    return total * difference


def constant(network: Network) -> Network:
    """Return a copy of a network in evaluation mode, which shares the network's parameters as constants.

    So gradients with respect to rows leave the network unchanged; other threads may be using it.
    """
    shared = {id(parameter): parameter.detach() for parameter in network.parameters()}
    return copy.deepcopy(network, shared).eval()


def attributions(
    network: Network,
    batch: tuple[Any, ...],
    score: Callable[[Variable, np.ndarray], Variable],
    filling: Filling | None,
    steps: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the attributions of the rows of a batch, and each sequence's score minus the score of its baseline.

    Attributions are float32, `(rows, features)`, or `(rows,)` for tokens.  The network is the result of `constant`.  A
    batch has sequences, static features if there are any, and an integer per sequence: the output that `score` chooses.
    If rows are numbers, each feature's mean over the training (`filling`) is its baseline, and the attribution of its
    indicator (1 where it is missing) is added to its own.  The baseline of tokens is an embedding of zeros.
    """
    x, *static, numbers = batch
    function = lambda rows: score(network.output(network.features(rows, *static)), numbers)
    with no_grad():
        rows = network.rows(x)
        baseline = np.zeros((), np.float32)
        if filling is not None:
            given = np.append(np.array(filling.means, np.float32), np.zeros(len(filling.indicated), np.float32))
            baseline = np.asarray(network.rows(given[None]))
    rows = LoDTensor(np.asarray(rows), x.structure)
    begins = LoDTensor(np.broadcast_to(baseline, rows.data.shape).copy(), x.structure)
    found = integrated(function, rows, baseline, steps).astype(np.float32)
    differences = np.asarray(function(rows), np.float64) - np.asarray(function(begins), np.float64)
    if filling is None:
        return found.sum(axis=1), differences
    features = len(filling.means)
    for column, feature in enumerate(filling.indicated):
        found[:, feature] += found[:, features + column]
    return found[:, :features], differences


def warn_if_incomplete(found: list[np.ndarray], differences: np.ndarray) -> None:
    """Warn if attributions do not add up to the differences of predictions."""
    sums = np.array([attribution.sum(dtype=np.float64) for attribution in found])
    wrong = int((np.abs(sums - differences) > _INCOMPLETE * np.abs(differences).max(initial=0)).sum())
    if wrong:
        message = (
            f"The attributions of {count(wrong, 'sequence')} of {len(found)} do not add up to the difference of the "
            "predictions: the network is too steep between the baseline and the sequence. Try more steps."
        )
        warnings.warn(message, ConvergenceWarning, stacklevel=3)
