"""`Samples`: sequences with encoded labels and weights, from which candidates learn."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from varlen_rnn.data import Batches
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


class Labelled:
    """Batches in which the labels and weights of sequences replace their indices; `parts_at(indices)` returns them."""

    def __init__(self, made: Batches, parts_at: Callable[[np.ndarray], tuple[Any, ...]]) -> None:
        self._made, self._parts_at = made, parts_at
        self.lengths = made.lengths

    def __len__(self) -> int:
        return len(self._made)

    def __getitem__(self, batch: int) -> tuple[Any, ...]:
        *inputs, indices = self._made[batch]
        return (*inputs, *self._parts_at(indices))

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return (self[batch] for batch in range(len(self)))

    def at_epoch(self, epoch: int) -> Labelled:
        """Return the batches of another epoch."""
        return Labelled(self._made.at_epoch(epoch), self._parts_at)

    def part(self, *shard: Any) -> Labelled:
        """Return a rank's part of each batch, as `Batches.part` does."""
        return Labelled(self._made.part(*shard), self._parts_at)


def labels_at(labels: Any, indices: np.ndarray) -> Any:
    """Return some of the encoded labels."""
    return [labels[k] for k in indices] if isinstance(labels, list) else labels[indices]
