"""How the recurrent network of the estimators is trained, given the size of the data, and whether training succeeded.

Example: 50 series make batches of 17, 17 and 16.  200 epochs of 3 steps are the 600 steps that small data get.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from varlen_rnn.data.labels import IGNORED

# Normalisation over rows needs batches of at least 16 sequences.  The steps of a training grow with the root of the
# number of sequences.
_LEAST_STEPS, _MOST_STEPS, _STEPS_PER_ROOT = 600, 2000, 25
_LEAST_EPOCHS, _MOST_EPOCHS = 6, 400
# If sequences have more than _LONG rows on average, neighbours become one row, so that about _SHORTENED rows are left.
# Networks learned control charts and two patterns of 512 and 768 rows better from 128 rows than from 256, in less time.
_LONG, _SHORTENED = 256, 128
_FEW_SEQUENCES = 2000  # more sequences are not stretched, because they are enough to learn from
# A last loss above _NOTHING times the loss of a constant means that nothing was learned.  A last loss above _WORSE
# times the best epoch's loss means that training diverged.  After fewer than _FEW steps, neither is judged.
_NOTHING, _WORSE, _FEW = 0.95, 3.0, 100


def batch_size(count: int, convolved: bool) -> int:
    """Return the number of sequences per step, so that all batches have about the same size.

    `convolved` says whether the network normalises over the rows of a batch.
    """
    size = min(64, max(16 if convolved else 8, count // 40))
    return math.ceil(count / max(1, round(count / size))) if convolved else size


def epochs(count: int, steps_per_epoch: int, convolved: bool) -> int:
    """Return the number of epochs of a training."""
    steps = min(_MOST_STEPS, max(_LEAST_STEPS, math.ceil(_STEPS_PER_ROOT * count**0.5))) if convolved else _MOST_STEPS
    return min(_MOST_EPOCHS if convolved else _MOST_EPOCHS // 2, max(_LEAST_EPOCHS, math.ceil(steps / steps_per_epoch)))


def stride(lengths: np.ndarray, convolved: bool) -> int:
    """Return how many neighbouring rows a network replaces by their mean: 1 unless the mean length is above 256 rows.

    Examples
    --------
    >>> stride(np.array([100, 412]), True), stride(np.array([1460]), True)
    (1, 12)
    """
    mean = float(lengths.mean())
    return math.ceil(mean / _SHORTENED) if convolved and mean > _LONG else 1


def stretches(sequences: list[np.ndarray], labels: Any, convolved: bool) -> bool:
    """Return whether to stretch the sequences at random in training.

    Only few sequences of measurements, with classes as labels, are stretched.  A number to predict can depend on the
    length.  Whole numbers are codes or counts, so numbers between them mean nothing.
    """
    if not convolved or len(sequences) > _FEW_SEQUENCES or (labels.dtype != np.int64):
        return False
    return any((sequence != np.rint(sequence)).any() for sequence in sequences)


def loss_of_constant(labels: Any, weights: np.ndarray | None, several: bool) -> float:
    """Return the least mean loss that outputs reach if they are equal for all sequences.

    Labels are int64 classes, one per sequence, or a list with an array per sequence that has a class per step.  Or they
    are float32, `(sequences, outputs)`: zeros and ones if `several`, otherwise standardised targets.  `weights` has the
    weight of each loss.
    """
    flat = np.concatenate(labels) if isinstance(labels, list) else labels
    own = np.ones(len(flat)) if weights is None else np.asarray(weights, np.float64)
    if flat.dtype != np.int64:
        share = own / own.sum()
        mean = share @ flat
        if not several:
            return float((share @ (flat - mean) ** 2).mean())
        return float(np.mean([_entropy(np.array([p, 1 - p])) for p in mean]))
    there = flat != IGNORED
    mass = np.bincount(flat[there], own[there])
    return _entropy(mass / max(mass.sum(), np.finfo(float).tiny))


def _entropy(shares: np.ndarray) -> float:
    some = shares[shares > 0]
    return float(-(some * np.log(some)).sum())


def warn_if_failed(history: list[dict[str, float]], constant: float) -> None:
    """Warn with advice if the losses of epochs show that a training failed, given the loss of a constant prediction."""
    if not history or history[-1]["step"] < _FEW or constant <= 1e-3:
        return
    last, best = history[-1]["loss"], min(record["loss"] for record in history)
    found = f"The training loss of the last epoch is {last:.3g}; a constant prediction has {constant:.3g}"
    if last > _NOTHING * constant:
        advice = "more epochs (max_epochs) or a higher rate (lr) if the loss was still falling, otherwise a lower rate"
        message = f"{found}: the network has learned nothing from X. Try {advice}; or X says little about y."
    elif last > _WORSE * best and last - best > 0.1 * constant:
        message = f"{found}, and the best epoch had {best:.3g}: training became unstable. Try a lower rate (lr)."
    else:
        return
    warnings.warn(message, ConvergenceWarning, stacklevel=5)
