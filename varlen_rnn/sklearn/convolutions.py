"""Features for a linear model, computed from sequences of numbers of any lengths: random convolutions, and a summary.

    columns of the result                     the meaning of a column
    features of values: some 10,000           the share of rows at which a convolution of values exceeds a threshold
    features of differences: half as many     the same for differences of neighbouring rows
    summary: 8 per feature, and 1             mean, deviation, least, largest, first, last, ...; the number of rows

Source of the convolutions: Dempster, Schmidt and Webb (2021), "MiniRocket", arXiv 2012.08791, for series of one length.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from varlen_rnn.kernels.convolutions import COLUMNS, DILATION, EVERY_ROW, TAPS, convolve, shares_above
from varlen_rnn.nn.standardize import Standardize
from varlen_rnn.sklearn.restored import array_of, check_that, finite_of, numbers_of

# The 84 ways to choose the three of nine taps that have the weight 2.
_HEAVY = np.array(list(itertools.combinations(range(TAPS), 3)), np.int64)
_MOST_DILATIONS, _MOST_CHANNELS = 32, 9
_LONGEST = 2**40  # rows; every dilation must be smaller
_GOLDEN = (np.sqrt(5) + 1) / 2
# The most features of values, and the most numbers in the matrix of features of all training sequences.
_MOST_FEATURES, _MOST_NUMBERS = 9996, 40_000_000
# Pairs of factors: of the features of differences, and of the summary.  Leave-one-out chooses a pair.
_CHOICES = [(differences, summary) for differences in (0.0, 1.0) for summary in (3.0, 10.0, 30.0)]


class Convolutions:
    """Draw convolutions, and compute the shares of rows at which they exceed thresholds."""

    table: np.ndarray  # int64, as in `kernels.convolutions.shares_above`
    channels: np.ndarray  # int64, as in `shares_above`
    thresholds: np.ndarray  # (convolutions, thresholds), float32

    def fit(self, sequences: list[np.ndarray], num_features: int, rng: np.random.Generator) -> None:
        """Draw each convolution's channels, and its thresholds: quantiles of its values over one random sequence."""
        dilations = _dilations(int(np.median([len(x) for x in sequences])), num_features)
        count = len(_HEAVY) * len(dilations)
        every_row = (np.arange(count) + np.arange(count) // len(_HEAVY)) % 2
        repeated = np.repeat(dilations, len(_HEAVY))
        self.table = np.column_stack([np.tile(_HEAVY, (len(dilations), 1)), repeated, every_row])
        self.channels = _channels(sequences[0].shape[1], count, rng)
        quantiles = np.arange(1, max(1, num_features // count) + 1) * _GOLDEN % 1
        self.thresholds = np.zeros((count, len(quantiles)), np.float32)
        full = [x for x in sequences if len(x)]
        for k in range(count if full else 0):
            x = full[rng.integers(len(full))]
            y = np.empty(len(x), np.float32)
            convolve(x, self.table, self.channels, k, y)
            self.thresholds[k] = np.quantile(y, quantiles)

    def state(self) -> dict[str, np.ndarray]:
        """Return the arrays by name."""
        return {"table": self.table, "channels": self.channels, "thresholds": self.thresholds}

    def restore(self, arrays: dict[str, np.ndarray], width: int) -> None:
        """Restore the result of `state`, or raise unless a kernel can trust it for rows of `width` features."""
        table = array_of(arrays, "table", (None, COLUMNS), np.int64)
        channels = array_of(arrays, "channels", (len(table), None), np.int64)
        thresholds = array_of(arrays, "thresholds", (len(table), None))
        taps, dilation, every_row = table[:, :DILATION], table[:, DILATION], table[:, EVERY_ROW]
        holds = ((taps >= 0) & (taps < TAPS)).all(axis=1) & (dilation > 0) & (dilation < _LONGEST)
        check_that(table, holds & ((every_row == 0) | (every_row == 1)), "table", "taps, dilations and flags")
        check_that(channels, (channels >= -1) & (channels < width), "channels", f"features below {width}, or -1")
        self.table, self.channels, self.thresholds = table, channels, thresholds

    def transform(self, sequences: list[np.ndarray]) -> np.ndarray:
        """Return each sequence's shares of rows above thresholds, float32, shape `(sequences, features)`."""
        out = np.empty((len(sequences), self.thresholds.size), np.float32)
        offsets = np.cumsum([0, *map(len, sequences)])
        shares_above(np.concatenate(sequences), offsets, self.table, self.channels, self.thresholds, out)
        return out


class SeriesFeatures:
    """Features of sequences of numbers, which are standardised first."""

    def __init__(self, width: int) -> None:
        self.standardize = Standardize(width)
        self.values, self.differences = Convolutions(), Convolutions()
        self.choice = _CHOICES[-1]

    def fit(self, sequences: list[np.ndarray], rng: np.random.Generator) -> None:
        """Draw all convolutions."""
        self.standardize.fit(sequences)
        scaled = self._scaled(sequences)
        count = min(_MOST_FEATURES, max(len(_HEAVY), _MOST_NUMBERS // len(sequences)))
        self.values.fit(scaled, count, rng)
        self.differences.fit(_differences(scaled), count // 2, rng)

    def extend(self, sequences: list[np.ndarray]) -> None:
        """Change nothing: the convolutions would gain little from more sequences."""

    def choices(self, features: np.ndarray) -> Iterator[tuple[Any, np.ndarray]]:
        """Yield each choice (a pair of factors), and the columns of `features` that it keeps."""
        for choice in _CHOICES:
            yield choice, features[:, self._factors(choice) > 0]

    def factors(self, choice: Any) -> np.ndarray:
        """Return the factor of each feature that a choice keeps, after all features are scaled."""
        factors = self._factors(choice)
        return factors[factors > 0]

    def choose(self, choice: Any) -> None:
        """Make `transform` return the columns of a choice only."""
        self.choice = tuple(choice)

    def transform(self, sequences: list[np.ndarray]) -> np.ndarray:
        """Return the features of each sequence, which do not depend on other sequences."""
        scaled = self._scaled(sequences)
        parts = [self.values.transform(scaled), np.stack([_summary(x) for x in scaled])]
        if self.choice[0]:
            parts.insert(1, self.differences.transform(_differences(scaled)))
        return np.concatenate(parts, axis=1)

    def state(self) -> tuple[dict[str, np.ndarray], Any]:
        """Return the arrays by name, and a value that JSON can hold."""
        arrays = {"mean": self.standardize.mean.value.data, "scale": self.standardize.scale.value.data}
        for part in ("values", "differences"):
            arrays |= {f"{part}.{name}": array for name, array in getattr(self, part).state().items()}
        return arrays, list(self.choice)

    def restore(self, arrays: dict[str, np.ndarray], values: Any) -> None:
        """Restore the result of `state`, or raise unless it fits the features of rows."""
        width = self.standardize.features
        self.standardize.mean.assign(finite_of(arrays, "mean", (width,)))
        scale = finite_of(arrays, "scale", (width,))
        self.standardize.scale.assign(check_that(scale, scale > 0, "scale", "numbers above 0"))
        for part in ("values", "differences"):
            own = {name.removeprefix(f"{part}."): array for name, array in arrays.items() if name.startswith(part)}
            getattr(self, part).restore(own, width)
        self.choose(numbers_of(values, "choice", 2))

    @property
    def width(self) -> int:
        """The number of columns of the result of `transform`."""
        return int(np.count_nonzero(self._factors(self.choice)))

    def _factors(self, choice: Any) -> np.ndarray:
        sizes = self.values.thresholds.size, self.differences.thresholds.size, 8 * self.standardize.features + 1
        return np.repeat(np.array([1.0, *choice], np.float32), sizes)

    def _scaled(self, sequences: list[np.ndarray]) -> list[np.ndarray]:
        mean, scale = (np.asarray(value) for value in (self.standardize.mean, self.standardize.scale))
        with np.errstate(over="ignore"):  # huge numbers become infinite without a warning
            return [(x - mean) / scale for x in sequences]


def _dilations(length: int, num_features: int) -> np.ndarray:
    """Return dilations, in rows, from 1 to an eighth of `length`, equally far apart on a logarithmic scale."""
    most = max(1, min(_MOST_DILATIONS, num_features // len(_HEAVY)))
    exponents = np.linspace(0, np.log2(max(1, (length - 1) / (TAPS - 1))), most)
    return np.unique(np.floor(2**exponents).astype(np.int64))


def _channels(width: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return the indices of the features that each convolution sums over, `(count, most)`; -1 fills unused places."""
    most = min(width, _MOST_CHANNELS)
    numbers = np.minimum(most, (2 ** rng.uniform(0, np.log2(most + 1), count)).astype(np.int64))
    channels = np.full((count, most), -1)
    for k, number in enumerate(numbers):
        channels[k, :number] = rng.choice(width, number, replace=False)
    return channels


def _differences(sequences: list[np.ndarray]) -> list[np.ndarray]:
    with np.errstate(invalid="ignore"):
        return [np.diff(x, axis=0) for x in sequences]


def _summary(x: np.ndarray) -> np.ndarray:
    """Return eight numbers about each feature of a sequence (zeros if it has no rows), and log(1 + its rows)."""
    length = np.array([np.log1p(len(x))], np.float32)
    if not len(x):
        return np.concatenate([np.zeros(8 * x.shape[1], np.float32), length])
    x = np.clip(x, -1e15, 1e15)
    steps = np.diff(x, axis=0) if len(x) > 1 else np.zeros_like(x)
    numbers = (x.mean(axis=0), x.std(axis=0), x.min(axis=0), x.max(axis=0), x[0], x[-1])
    return np.concatenate([*numbers, np.abs(steps).mean(axis=0), steps.std(axis=0), length]).astype(np.float32)
