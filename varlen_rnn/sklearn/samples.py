"""`Samples`: sequences with encoded labels and weights, from which candidates learn."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from varlen_rnn.sklearn.static import Sequences, joined, take


@dataclasses.dataclass(frozen=True)
class Samples:
    """Sequences, their labels as `Labels.encode` returns them, and their weights."""

    sequences: Sequences
    labels: Any
    weights: np.ndarray | None  # float32
    num_held: int = 0  # the number of sequences, at the end, that are not trained on

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def num_trained(self) -> int:
        """The number of sequences, at the beginning, that can be trained on."""
        return len(self) - self.num_held

    def take(self, indices: np.ndarray) -> Samples:
        """Return the samples at rising indices."""
        weights = None if self.weights is None else self.weights[indices]
        held = int((indices >= self.num_trained).sum())
        return Samples(take(self.sequences, indices), labels_at(self.labels, indices), weights, held)

    def holding(self, others: Sequences, labels: Any) -> Samples:
        """Return these samples followed by `others`, which have the weight 1 and are not trained on."""
        every = self.labels + labels if isinstance(labels, list) else np.concatenate([self.labels, labels])
        weights = self.weights
        weights = None if weights is None else np.append(weights, np.ones(len(others), weights.dtype))
        return Samples(joined(self.sequences, others), every, weights, len(others))


def labels_at(labels: Any, indices: np.ndarray) -> Any:
    """Return some of the encoded labels."""
    return [labels[k] for k in indices] if isinstance(labels, list) else labels[indices]
