"""`Numbers`, labels that are one or several numbers per sequence or per row, standardised."""

from __future__ import annotations

from typing import Any

import numpy as np

from varlen_rnn.errors import (
    DTypeError,
    InputError,
    OutOfRangeError,
    ShapeError,
    check_choice,
    check_flag,
    check_int,
    count,
    shown,
)
from varlen_rnn.nn import functional
from varlen_rnn.sklearn import recipe
from varlen_rnn.sklearn.labels import Labels, are_of_rows, as_lists, chosen_of, one_per_sequence, one_per_step
from varlen_rnn.sklearn.labels_of_classes import repeated
from varlen_rnn.sklearn.linear import Targets
from varlen_rnn.sklearn.quantiles import check_quantiles, with_median
from varlen_rnn.sklearn.restored import numbers_of, scales_of
from varlen_rnn.tape.variable import Variable

QUANTILES = 0.1, 0.5, 0.9


class Numbers(Labels):
    """One or several numbers per sequence or per row; numbers of a row can be missing."""

    def __init__(
        self, mean: np.ndarray, scale: np.ndarray, levels: list[float], *, is_flat: bool = False, by_row: bool = False
    ) -> None:
        self.mean, self.scale, self.levels = mean, scale, levels  # (targets,), float64, of the numbers of the training
        self.is_flat, self.by_row = is_flat, by_row  # y is flat if it has no axis of targets
        self.num_outputs = len(mean) * max(1, len(levels))

    @classmethod
    def learned(cls, y: Any, lengths: np.ndarray, loss: str, quantiles: Any) -> Numbers:
        """Return the Numbers of `y` for a loss; `quantiles` are predicted with the loss "quantile"."""
        checked = check_quantiles(quantiles)
        levels = {"squared": [], "mae": [0.5], "quantile": with_median(checked)}
        levels |= {"squared_error": [], "absolute_error": [0.5]}  # scikit-learn's names
        chosen = levels[check_choice(loss, "loss", *levels)]
        if loss != "quantile" and tuple(quantiles) != QUANTILES:
            expected = f"the default {QUANTILES}, because of loss={loss!r}"
            raise InputError("quantiles", expected=expected, got=shown(quantiles), hint="or pass loss='quantile'")
        by_row = are_of_rows(y, lengths)
        width = _width_of(y) if by_row else None
        targets = np.concatenate(_of_rows(y, lengths, width)) if by_row else _of_sequences(y, len(lengths))
        if np.isnan(targets).all(axis=0).any():
            raise InputError("y", expected="a number for at least one row", got="no numbers")
        columns = (
            [targets[~np.isnan(targets[:, k]), k : k + 1] for k in range(targets.shape[1])] if by_row else [targets]
        )
        mean = np.concatenate([column.mean(axis=0) for column in columns])
        scale = np.concatenate([column.std(axis=0) for column in columns])
        if not np.isfinite(scale).all():
            raise InputError("y", expected="numbers whose variance fits float64", got=shown(y))
        scale[scale == 0] = 1.0
        return cls(mean, scale, chosen, is_flat=width is None if by_row else np.asarray(y).ndim == 1, by_row=by_row)

    @classmethod
    def restored(cls, state: dict[str, Any], num_outputs: int) -> Numbers:
        """Return the Numbers that `state` describes, or raise unless they fit the number of outputs."""
        levels = check_quantiles(state["levels"]) if state["levels"] else []
        if levels and 0.5 not in levels:
            raise InputError("labels, levels", expected="levels that include 0.5", got=shown(levels))
        targets = num_outputs // max(1, len(levels))
        if targets * max(1, len(levels)) != num_outputs:
            expected = f"a number of levels that divides {num_outputs}, the number of outputs"
            raise InputError("labels, levels", expected=expected, got=len(levels))
        mean = np.array(numbers_of(state["mean"], "labels, mean", targets))
        scale = np.array(scales_of(state["scale"], "labels, scale", targets))
        is_flat = check_flag(state["flat"], "labels, flat")
        if is_flat and targets > 1:
            raise InputError("labels, flat", expected="one target", got=targets)
        return cls(mean, scale, levels, is_flat=is_flat, by_row=check_flag(state["of_rows"], "labels, of_rows"))

    def state(self) -> dict[str, Any]:
        """Return all that was learned of y as values that JSON can hold."""
        state = {"mean": self.mean.tolist(), "scale": self.scale.tolist(), "flat": self.is_flat}
        return state | {"levels": self.levels, "of_rows": self.by_row}

    def of_rows(self, y: Any, lengths: np.ndarray) -> list[np.ndarray]:
        """Return the numbers of the rows of each sequence, float64, `(rows, targets)`; missing numbers are NaN."""
        return _of_rows(y, lengths, None if self.is_flat else len(self.mean))

    def encode(self, y: Any, lengths: np.ndarray) -> Any:
        """Return standardised numbers, float32, `(sequences, targets)` or a list of arrays `(rows, targets)`."""
        if self.by_row:
            return [((own - self.mean) / self.scale).astype(np.float32) for own in self.of_rows(y, lengths)]
        if are_of_rows(y, lengths):
            raise ShapeError("y", expected="numbers of sequences, as in the first fit", got="numbers of rows")
        targets = _of_sequences(y, len(lengths))
        if targets.shape[1] != len(self.mean):
            expected = f"{count(len(self.mean), 'target')}, as in the first fit"
            raise ShapeError("y", expected=expected, got=count(targets.shape[1], "target"))
        return ((targets - self.mean) / self.scale).astype(np.float32)

    def weights_of_losses(self, labels: Any, weights: np.ndarray | None) -> np.ndarray | None:
        """Return the weight of each sequence or row; a row's weight is multiplied by the share of its known numbers."""
        if not self.by_row:
            return weights
        by_row, there = repeated(weights, labels), np.isfinite(np.concatenate(labels))
        if there.all():
            return by_row
        share = there.mean(axis=1, dtype=np.float32)
        return share if by_row is None else share * by_row

    def arrays(self, labels: Any) -> tuple[np.ndarray, ...]:
        """Return the numbers of a batch; if some are missing, zeros for these, and each number's share of its loss."""
        values = np.concatenate(labels) if self.by_row else labels
        there = np.isfinite(values)
        if there.all():
            return (values,)
        share = (there / np.maximum(there.sum(axis=1, keepdims=True), 1)).astype(np.float32)
        return np.where(there, values, np.float32(0)), share

    def losses(self, outputs: Variable, arrays: Any, field: Any) -> Variable:
        """Return the mean loss over the numbers of each sequence or row; missing numbers are left out."""
        known, *share = arrays
        if not self.levels:
            losses = functional.mse_loss(outputs, known, reduction="none")
        else:  # reshape to a row per target and a column per quantile
            losses = functional.quantile_loss(
                outputs.reshape(-1, len(self.levels)), known.reshape(-1), self.levels, "none"
            )
        if not share:
            return losses.reshape(-1, outputs.shape[1]).mean(axis=1)
        return ((losses.mean(axis=1).reshape(-1, known.shape[1]) if self.levels else losses) * share[0]).sum(axis=1)

    def targets(self, labels: Any, weights: np.ndarray) -> Targets:
        """Return the targets of a ridge: each number, repeated once per quantile."""
        values = np.repeat(labels.astype(np.float64), max(1, len(self.levels)), axis=1)
        levels = np.tile(self.levels, labels.shape[1]) if self.levels else None
        return Targets(values, "numbers", weights, levels)

    @property
    def calibrates(self) -> bool:
        """Whether held-back sequences calibrate outputs; if rows have numbers, only quantiles are calibrated."""
        return not self.by_row or bool(self.levels)

    def targets_of_rows(self, labels: Any, weights: np.ndarray | None) -> tuple[np.ndarray, Targets]:
        """Return the indices of the rows that calibrate outputs, and the Targets of these rows."""
        values = np.concatenate(labels)
        places = np.flatnonzero(np.isfinite(values).all(axis=1))
        counted = np.ones(len(values)) if weights is None else weights
        return places, self.targets(values[places], counted[places])

    def loss_of_constant(self, labels: Any, weights: np.ndarray | None) -> float:
        """Return the least mean loss that is possible if all sequences or rows have the same outputs."""
        own = self.weights_of_losses(labels, weights)
        values = np.nan_to_num(np.concatenate(labels)) if self.by_row else labels
        if not self.levels:
            return recipe.loss_of_constant(values, own, several=False)
        targets = self.targets(values, np.ones(len(values)) if own is None else own)
        return targets.errors(np.zeros_like(targets.values))

    def numbers_of_target(self, target: Any, outputs: np.ndarray) -> np.ndarray:
        """Return the index of the output that predicts a target (its median with quantiles), once per sequence."""
        number = 0 if target is None else check_int(target, "integrated_gradients, target", 0)
        if number >= len(self.mean):
            expected = f"less than {len(self.mean)}, the number of targets"
            raise OutOfRangeError("integrated_gradients, target", expected=expected, got=number)
        median = number * len(self.levels) + self.levels.index(0.5) if self.levels else number
        return np.full(len(outputs), median)

    def scores(self, outputs: Variable, numbers: np.ndarray) -> Variable:
        """Return the prediction of one target for each sequence, in the unit of y."""
        scale = self.scale[numbers // max(1, len(self.levels))]
        return chosen_of(outputs, numbers) * scale.astype(np.float32)

    def numbers(self, outputs: np.ndarray) -> np.ndarray:
        """Return predictions in the unit of y, float64, `(sequences or rows, targets, quantiles)`."""
        found = outputs.reshape(len(outputs), len(self.mean), max(1, len(self.levels)))
        return np.sort(found * self.scale[:, None] + self.mean[:, None], axis=2)


class Changes(Numbers):
    """Changes of series after each row; they are not standardised, and a constant forecast causes no warning."""

    steps = 500  # the steps of a training with max_epochs="auto"

    def __init__(self, horizon: int, levels: list[float]) -> None:
        super().__init__(np.zeros(horizon), np.ones(horizon), levels, by_row=True)

    def loss_of_constant(self, labels: Any, weights: np.ndarray | None) -> float:
        """Return 0, so that no warning comes: a constant can be the best forecast."""
        return 0.0

    def epochs(self, most: int, steps_per_epoch: int, rows: int) -> int:
        """Return the epochs that have about 500 steps."""
        return max(1, round(self.steps / steps_per_epoch))


def _width_of(y: Any) -> int | None:
    """Return the number of targets of a row; None if y has no axis of targets."""
    firsts = [own.iloc[0] if hasattr(own, "iloc") else own[0] for own in as_lists(y) if len(own)]
    return next((shape[0] for shape in map(np.shape, firsts) if shape), None)


def _of_sequences(y: Any, number: int) -> np.ndarray:
    """Return float64 targets, shape `(sequences, targets)`."""
    targets = one_per_sequence(y, number)
    if targets.dtype.kind not in "fiub":
        try:
            targets = targets.astype(np.float64)
        except (ValueError, TypeError) as error:
            raise DTypeError("y", expected="numbers", got=shown(y)) from error
    if targets.ndim > 2 or not np.isfinite(targets).all():
        expected = "finite numbers of shape (sequences,) or (sequences, targets)"
        raise InputError("y", expected=expected, got=f"shape {targets.shape}, NaN or infinity")
    return targets.reshape(number, -1).astype(np.float64)


def _of_rows(y: Any, lengths: np.ndarray, width: int | None) -> list[np.ndarray]:
    """Return the targets of the rows of each sequence, float64, `(rows, targets)`; missing numbers are NaN."""
    found = []
    for number, numbers in enumerate(one_per_step(y, lengths, width)):
        try:
            targets = np.asarray(numbers, np.float64)
        except (ValueError, TypeError) as error:
            raise DTypeError(f"y, sequence {number}", expected="numbers", got=shown(numbers)) from error
        if np.isinf(targets).any():
            expected = "finite numbers, or None for a row without a number"
            raise InputError(f"y, sequence {number}", expected=expected, got="infinity")
        found.append(targets.reshape(len(targets), -1) if len(targets) else np.zeros((0, width or 1)))
    return found
