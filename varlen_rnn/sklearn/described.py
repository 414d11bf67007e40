"""`Described`, the candidate that costs little: features of sequences, and a ridge."""

from __future__ import annotations

from typing import Any

import numpy as np

from varlen_rnn.sklearn.convolutions import SeriesFeatures
from varlen_rnn.sklearn.inputs import Inputs
from varlen_rnn.sklearn.linear import MOST_LEFT_OUT, Linear, Targets
from varlen_rnn.sklearn.ngrams import TextFeatures

_AT_ONCE = 1024  # sequences whose features are in memory at the same time


class Described:
    """Predict from features of sequences by a ridge.

    Parameters
    ----------
    inputs : Inputs
        Sequences of numbers are described by random convolutions, others by n-grams.
    """

    def __init__(self, inputs: Inputs) -> None:
        of_numbers = inputs.kind == "numbers"
        self.name = "convolutions" if of_numbers else "ngrams"
        self.features: Any = SeriesFeatures(inputs.size) if of_numbers else TextFeatures(inputs)
        self.linear = Linear()

    def fit(
        self, sequences: list[np.ndarray], targets: Targets, held: np.ndarray | None, rng: np.random.Generator
    ) -> np.ndarray:
        """Fit on all sequences; return outputs for the sequences `held` by a fit without them.

        Parameters
        ----------
        sequences : list of arrays
            Rows as `inputs` has them.
        targets : Targets
        held : array of int, optional
            None for all sequences, each by a fit without this sequence.
        rng : Generator
        """
        self.features.fit(sequences, rng)
        if held is None:
            return self._choose(sequences, targets)
        rest = np.setdiff1d(np.arange(len(sequences)), held)
        few = rng.choice(rest, min(len(rest), MOST_LEFT_OUT), replace=False)
        self._choose([sequences[k] for k in few], targets.take(few))
        features, factors = self.features.transform(sequences), self.features.factors(self.choice)
        self.linear.fit(features[rest], factors, targets.take(rest))
        found = self.linear.outputs(features[held])
        self.linear.fit(features, factors, targets)
        return found

    def _choose(self, sequences: list[np.ndarray], targets: Targets) -> np.ndarray:
        """Choose the features and the penalty of the least loss; return outputs without each sequence."""
        features, least = self.features.transform(sequences), np.inf
        outputs = np.zeros(0)
        for choice, chosen in self.features.choices(features):
            linear = Linear()
            loss, found = linear.fit_left_out(chosen, self.features.factors(choice), targets)
            if loss < least:
                least, outputs, self.linear, self.choice = loss, found, linear, choice
        self.features.choose(self.choice)
        return outputs

    def outputs(self, sequences: list[np.ndarray]) -> np.ndarray:
        """Return the outputs for each sequence, float32, shape `(sequences, outputs)`."""
        parts = [sequences[k : k + _AT_ONCE] for k in range(0, len(sequences), _AT_ONCE)]
        return np.concatenate([self.linear.outputs(self.features.transform(part)) for part in parts])

    def state(self) -> tuple[dict[str, np.ndarray], Any]:
        """Return the arrays by name, and values for JSON."""
        arrays, values = self.features.state()
        named = {f"linear.{name}": getattr(self.linear, name) for name in Linear.ARRAYS}
        return {f"features.{name}": array for name, array in arrays.items()} | named, values

    def restore(self, arrays: dict[str, np.ndarray], values: Any) -> None:
        """Restore the result of `state`."""
        for name in Linear.ARRAYS:
            setattr(self.linear, name, arrays[f"linear.{name}"])
        of_features = {name.removeprefix("features."): array for name, array in arrays.items()}
        self.features.restore(of_features, values)
