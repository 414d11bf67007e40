"""A ridge that predicts each sequence by a fit without it, and the calibration of such predictions.

The candidates that cost little are linear models of features: `convolutions` and `ngrams`.  Probabilities come from the
outputs z of a linear model or a network as softmax(factor z), or sigmoid(factor z) if a sequence may have several
classes.  The factor is chosen on outputs z that were predicted without their sequence: by leave-one-out, or on
sequences held out.

A ridge predicts the share of each class, 1 for the class of a sequence and 0 for the others, on a scale from -1 to 1.
If each sequence has one class, z is the logarithm of this share plus a floor, which is smaller if there are more
classes.  Example: if a sequence has shares of 0.4, 0.04 and 75 times about 0.008, the softmax of the shares themselves
would give much of the probability to the 75; a factor that prevents this makes the first class almost certain.

Source of the leave-one-out residuals: Rifkin and Lippert (2007), "Notes on regularized least squares".
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from scipy.linalg import eigh
from scipy.optimize import minimize_scalar
from scipy.special import log_expit, log_softmax
from sklearn.linear_model import Ridge
from threadpoolctl import threadpool_limits

from varlen_rnn.products.gemm import product
from varlen_rnn.runtime.precision import at_precision
from varlen_rnn.sklearn.quantiles import pinball, quantiles_of
from varlen_rnn.sklearn.restored import array_of, check_that, finite_of

# With more sequences than this, the decomposition of a matrix (sequences, sequences) costs more than two fits.
MOST_LEFT_OUT = 1000
# The penalties that are tried, in units of the mean squared norm of a centred sequence's features.
_PENALTIES = 10.0 ** np.arange(2, -4.1, -0.5)
_LOG_FACTORS = -4.0, 8.0
_FLOOR = 4.0  # divided by the number of classes, this is `Linear.floor`; chosen by the log loss on held-out data


@dataclasses.dataclass(frozen=True)
class Targets:
    """What a model shall predict, and how its outputs are scored."""

    # (sequences, outputs), float64: 1 for a class of the sequence and -1 for other classes; or standardised numbers.
    values: np.ndarray
    kind: str  # "classes", "several classes" or "numbers"
    weights: np.ndarray  # (sequences,), float64
    levels: np.ndarray | None = None  # (outputs,), float64: the quantile of each output, if quantiles are predicted

    def take(self, indices: np.ndarray) -> Targets:
        """Return the targets of some sequences."""
        return Targets(self.values[indices], self.kind, self.weights[indices], self.levels)

    def shift(self, outputs: np.ndarray) -> np.ndarray | None:
        """Return numbers to add to the outputs of left-out sequences to calibrate quantiles; None without quantiles."""
        return None if self.levels is None else quantiles_of(self.values - outputs, self.levels, self.weights)

    def calibrated(self, outputs: np.ndarray) -> tuple[float, float]:
        """Return the least mean loss of `factor * outputs`, and this factor; for numbers it is 1."""
        if self.kind == "numbers":
            return self.mean(self.losses(outputs)), 1.0
        best = minimize_scalar(
            lambda log: self.mean(self.losses(outputs * np.exp(log))),
            bounds=_LOG_FACTORS,
            method="bounded",
            options={"xatol": 1e-2},
        )
        return float(best.fun), float(np.exp(best.x))

    def losses(self, outputs: np.ndarray) -> np.ndarray:
        """Return the cross entropy of each sequence; for numbers the squared error, or calibrated quantiles' loss.

        Classes count as wrong with the probability 1 / (n + 2) (the rule of succession), because otherwise the best
        factor would be infinite if all n sequences are right.
        """
        if self.levels is not None:
            return pinball(outputs + self.shift(outputs), self.values, self.levels).mean(axis=1)
        if self.kind == "numbers":
            return ((outputs - self.values) ** 2).mean(axis=1)
        doubt = 1 / (len(outputs) + 2)
        return (self._cross_entropy if self.kind == "classes" else self._binary_cross_entropy)(outputs, doubt)

    def errors(self, outputs: np.ndarray) -> float:
        """Return the share of wrong predictions; for numbers the squared error, or the loss of calibrated quantiles."""
        if self.kind == "numbers":
            return self.mean(self.losses(outputs))
        if self.kind == "classes":
            return self.mean((outputs.argmax(axis=1) != self.values.argmax(axis=1)).astype(np.float64))
        return self.mean(((outputs > 0) != (self.values > 0)).any(axis=1).astype(np.float64))

    def mean(self, losses: np.ndarray) -> float:
        """Return the mean of losses, one per sequence, weighted by the sequences' weights."""
        return float(np.average(losses, weights=self.weights))

    def _cross_entropy(self, outputs: np.ndarray, doubt: float) -> np.ndarray:
        log, right = log_softmax(outputs, axis=1), self.values > 0
        if outputs.shape[1] == 1:
            return np.zeros(len(outputs))
        of_right = log[right]
        of_others = (log.sum(axis=1) - of_right) / (outputs.shape[1] - 1)
        return -(1 - doubt) * of_right - doubt * of_others

    def _binary_cross_entropy(self, outputs: np.ndarray, doubt: float) -> np.ndarray:
        signed = outputs * self.values
        return (-(1 - doubt) * log_expit(signed) - doubt * log_expit(-signed)).mean(axis=1)


class Linear:
    """A ridge: outputs are `((features - mean) / scale) weight + bias`; sparse features are not scaled.

    The scale is infinite for a constant feature.  Scaled features are clipped to `-bound` and `bound`.
    """

    penalty: float

    def __init__(self) -> None:
        self.mean = self.scale = self.bound = np.zeros(0, np.float32)  # (features,), or empty if features are sparse
        # 0 unless each sequence has one class: then outputs are logarithms of (share plus this floor).
        self.floor = np.zeros(1, np.float32)
        self.weight = np.zeros((0, 0), np.float32)  # (features, outputs)
        self.bias = np.zeros(0, np.float32)  # (outputs,)

    def fit_left_out(self, features: Any, factors: np.ndarray | None, targets: Targets) -> tuple[float, np.ndarray]:
        """Fit with the best penalty; return its loss, and each sequence's outputs by a fit that leaves it out."""
        scaled = self._learn_scale(features, factors)
        if targets.kind == "classes":
            self.floor = np.array([_FLOOR / targets.values.shape[1]], np.float32)
        with threadpool_limits(1, "blas"):  # the number of BLAS's threads would decide the last bits
            found = _Decomposed(scaled, targets)
            outputs = {penalty: self._of_shares(found.outputs(penalty)) for penalty in found.penalties}
            losses = {penalty: targets.calibrated(own)[0] for penalty, own in outputs.items()}
            self.penalty = min(losses, key=losses.__getitem__)  # if losses are equal, the largest penalty
            weight, bias = found.solution(self.penalty)
        self.weight, self.bias = np.asarray(weight, np.float32), np.asarray(bias, np.float32)
        return losses[self.penalty], outputs[self.penalty]

    def fit(self, features: Any, factors: np.ndarray | None, targets: Targets) -> None:
        """Fit on all sequences with the penalty that `fit_left_out` chose."""
        scaled = self._learn_scale(features, factors)
        solver = "sparse_cg" if factors is None else "cholesky"
        with threadpool_limits(1, "blas"):
            ridge = Ridge(self.penalty, solver=solver).fit(scaled, targets.values, targets.weights)
        self.weight = ridge.coef_.reshape(-1, scaled.shape[1]).T.astype(np.float32, order="C")
        self.bias = np.atleast_1d(ridge.intercept_).astype(np.float32)

    def outputs(self, features: Any) -> np.ndarray:
        """Return the outputs of sequences, float32; a sequence's outputs do not depend on other sequences."""
        if not len(self.scale):
            return self._of_shares(features.astype(np.float32) @ self.weight + self.bias)
        out = np.empty((len(features), len(self.bias)), np.float32)
        # `_Decomposed` chose the penalty in float64: another precision would only lose digits of the predictions.
        at_precision("fp32", product, self.scaled(features), self.weight, out, bias=self.bias)
        return self._of_shares(out)

    def state(self) -> dict[str, np.ndarray]:
        """Return the arrays by name."""
        return {name: getattr(self, name) for name in ("mean", "scale", "bound", "weight", "bias", "floor")}

    def restore(self, arrays: dict[str, np.ndarray], num_features: int, num_outputs: int, is_sparse: bool) -> None:
        """Restore the result of `state`, or raise unless it fits the numbers of features and outputs."""
        of_scale = (0 if is_sparse else num_features,)
        self.mean, self.bound = (finite_of(arrays, name, of_scale) for name in ("mean", "bound"))
        self.scale = array_of(arrays, "scale", of_scale)
        check_that(self.scale, self.scale > 0, "scale", "numbers above 0")
        self.weight = finite_of(arrays, "weight", (num_features, num_outputs))
        self.bias = finite_of(arrays, "bias", (num_outputs,))
        self.floor = finite_of(arrays, "floor", (1,))
        check_that(self.floor, self.floor >= 0, "floor", "a number from 0")

    def _of_shares(self, found: np.ndarray) -> np.ndarray:
        """Return the logarithms of class shares, given shares scaled to -1 to 1; without a floor, return `found`."""
        return np.log(np.maximum((1 + found) / 2, 0) + self.floor) if self.floor[0] else found

    def _learn_scale(self, features: Any, factors: np.ndarray | None) -> Any:
        """Learn mean and scale of dense features; return the features scaled and multiplied by `factors`."""
        if factors is None:
            return features
        mean, deviation = features.mean(axis=0, dtype=np.float64), features.std(axis=0, dtype=np.float64)
        constant = deviation <= 1e-6 * np.maximum(np.abs(mean), 1e-30)
        self.mean, self.scale = mean.astype(np.float32), (np.where(constant, np.inf, deviation) / factors).astype("f")
        # Of n training sequences, none lies farther than sqrt(n) deviations from the mean.
        self.bound = (np.sqrt(len(features)) * factors).astype(np.float32)
        return self.scaled(features)

    def scaled(self, features: Any) -> Any:
        """Return dense features scaled and clipped, as the weights need them; return sparse features unchanged."""
        if not len(self.scale):
            return features
        return np.clip((features - self.mean) / self.scale, -self.bound, self.bound)


class _Decomposed:
    """The eigenvalues of sequences' inner products, from which solutions for all penalties follow.

    Features and targets are centred and multiplied by the square roots of the sequences' weights.  The vector of these
    roots is an eigenvector with the eigenvalue 0.  It belongs to the intercept, so it is left out.
    """

    def __init__(self, features: Any, targets: Targets) -> None:
        self.features, self.targets = features, targets
        self.root = np.sqrt(targets.weights)[:, None]
        self.of_mean = targets.weights / targets.weights.sum()
        self.mean = self.of_mean @ targets.values
        products = np.asarray((features @ features.T).todense() if hasattr(features, "todense") else
                              features.astype(np.float64) @ features.T.astype(np.float64), np.float64)  # fmt: skip
        of_mean = products @ self.of_mean
        products = products - of_mean[:, None] - of_mean + self.of_mean @ of_mean
        products *= self.root * self.root.T
        typical = float(np.trace(products)) / len(products)
        typical = typical if typical > 1e-20 else 1.0  # 1 if features are constant
        self.penalties = [float(typical * penalty) for penalty in _PENALTIES]
        direction = self.root / np.linalg.norm(self.root)
        values, vectors = eigh(products + 2 * len(products) * typical * direction * direction.T)
        self.values, self.vectors = np.maximum(values[:-1], 0), vectors[:, :-1]  # `direction` is last, with the largest
        self.projected = self.vectors.T @ (self.root * (targets.values - self.mean))

    def outputs(self, penalty: float) -> np.ndarray:
        """Return the outputs for each sequence by a fit without this sequence."""
        inverse = 1 / (self.values + penalty)
        own = (self.vectors**2 @ inverse)[:, None]
        residuals = self.vectors @ (inverse[:, None] * self.projected)
        alone = own * penalty <= 1e-12  # a fit without this sequence predicts the mean
        residuals = np.where(alone, self.root * (self.targets.values - self.mean), residuals / np.where(alone, 1, own))
        return self.targets.values - residuals / self.root

    def solution(self, penalty: float) -> tuple[np.ndarray, np.ndarray]:
        """Return weight and bias."""
        dual = self.root * (self.vectors @ (self.projected / (self.values + penalty)[:, None]))
        weight = np.asarray(self.features.T @ (dual - self.of_mean[:, None] * dual.sum(axis=0)))
        centre = np.asarray(self.of_mean @ self.features).ravel()
        return weight, self.mean - centre @ weight
