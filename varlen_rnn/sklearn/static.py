"""Static features: numbers beside each sequence, such as the age of a patient, in further columns of a frame.

    a frame with a row per sequence       the sequences       the static features, standardised
    series          age   male
    [0.1, 0.7]      40    1               [0.1, 0.7]          -1    1
    [0.3]           60    0               [0.3]                1   -1

`cross_val_score`, searches and pipelines of scikit-learn index the rows of a frame, so they need nothing more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np

from varlen_rnn.data.columns import holds_numbers, values_of
from varlen_rnn.data.frames import frame_of
from varlen_rnn.errors import InputError, ShapeError, listed
from varlen_rnn.sklearn.missing import Filling
from varlen_rnn.sklearn.restored import numbers_of, scales_of, texts_of


class Sequences(list[np.ndarray]):
    """The rows of sequences, with the static features of each, float32 `(sequences, features)`, or None."""

    def __init__(self, rows: Iterable[np.ndarray], static: np.ndarray | None = None) -> None:
        super().__init__(rows)
        self.static = static


def take(sequences: list[np.ndarray], indices: Iterable[int]) -> Sequences:
    """Return some of the sequences, with their static features."""
    static = static_of(sequences)
    indices = np.asarray(indices, np.int64)
    return Sequences([sequences[k] for k in indices], None if static is None else static[indices])


def joined(first: list[np.ndarray], second: list[np.ndarray]) -> Sequences:
    """Return two lists of sequences as one."""
    above, below = static_of(first), static_of(second)
    return Sequences([*first, *second], None if above is None or below is None else np.concatenate([above, below]))


def static_of(sequences: list[np.ndarray]) -> np.ndarray | None:
    """Return the static features of sequences, or None if they have none."""
    return getattr(sequences, "static", None)


@dataclasses.dataclass(frozen=True)
class Static:
    """The static features of the training: their names, how missing ones are filled, and how all are standardised."""

    names: tuple[str, ...]  # the columns of the frame
    filling: Filling
    mean: tuple[float, ...]  # the mean of each feature, then of each indicator
    scale: tuple[float, ...]

    @classmethod
    def learn(cls, names: tuple[str, ...], table: np.ndarray) -> Static:
        """Return the Static of a table, float32 with NaNs for missing numbers, shape `(sequences, names)`."""
        filling = Filling.learn([table], len(names))
        filled = filling.fill_each(table)
        scale = filled.std(axis=0, dtype=np.float64).astype(np.float32)
        mean = filled.mean(axis=0, dtype=np.float64).astype(np.float32)
        constant = scale <= 1e-6 * np.abs(mean)
        return cls(names, filling, tuple(mean.tolist()), tuple(np.where(constant, 1.0, scale).tolist()))

    @classmethod
    def restored(cls, state: dict[str, Any]) -> Static:
        """Return the Static that `state` (from `dataclasses.asdict`, or its JSON) describes, or raise."""
        filling = Filling.restored(state["filling"])
        names = texts_of(state["names"], "static, names", len(filling.means))
        mean = numbers_of(state["mean"], "static, mean", filling.width)
        scale = scales_of(state["scale"], "static, scale", filling.width)
        return cls(tuple(names), filling, tuple(mean), tuple(scale))

    @property
    def width(self) -> int:
        """The number of columns after `standardized`."""
        return len(self.mean)

    def standardized(self, table: np.ndarray) -> np.ndarray:
        """Return the features of sequences, filled and standardised, float32."""
        filled = self.filling.fill_each(table)
        return (filled - np.array(self.mean, np.float32)) / np.array(self.scale, np.float32)


def divided(X: Any) -> tuple[Any, tuple[str, ...], np.ndarray | None]:
    """Return the sequences of X, the names of its static features, and their table, or None if it has no such features.

    A frame with one column of lists or arrays and other columns of numbers has static features.  A frame with a column
    of texts has none, because these can be the ids of a frame with a row per step.
    """
    if (frame := frame_of(X, "X")) is None:
        return X, (), None
    numbers = [field for field in frame.fields if holds_numbers(frame.foreign(field))]
    others = [field for field in frame.fields if field not in numbers]
    if not numbers or len(others) != 1 or _holds_texts(frame.foreign(others[0])):
        return X, (), None
    table = np.stack([frame.numbers(field) for field in numbers], axis=1)
    wrong = np.argwhere(np.abs(table) > np.finfo(np.float32).max)
    if len(wrong):
        number, column = wrong[0]
        expected, got = "finite numbers that fit float32", "infinity or a larger number"
        raise InputError(frame.place(int(number), numbers[column]), expected=expected, got=got)
    return frame.foreign(others[0]), tuple(numbers), table.astype(np.float32)


def _holds_texts(column: Any) -> bool:
    return any(isinstance(entry, str) for entry in values_of(column))


def static_like(static: Static | None, names: tuple[str, ...], table: np.ndarray | None) -> np.ndarray | None:
    """Return the static features of other sequences in the order of the training, or raise if their names differ."""
    wanted = () if static is None else static.names
    if set(names) != set(wanted):
        expected = f"the columns {listed(wanted)} beside the sequences" if wanted else "sequences alone"
        got = f"the columns {listed(names)}" if names else "sequences alone"
        raise ShapeError("X", expected=f"{expected}, as in the training", got=got)
    if static is None or table is None:
        return None
    return static.standardized(table[:, [names.index(name) for name in wanted]])
