"""`Described`, the candidate that costs little: a ridge (a regularized linear model) on features of sequences."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import sparse

from varlen_rnn.communicator import Communicator
from varlen_rnn.sklearn import ranks
from varlen_rnn.sklearn.choice import Parts
from varlen_rnn.sklearn.convolutions import SeriesFeatures
from varlen_rnn.sklearn.inputs import Inputs
from varlen_rnn.sklearn.linear import MOST_LEFT_OUT, Linear, Targets
from varlen_rnn.sklearn.ngrams import TextFeatures
from varlen_rnn.sklearn.static import Sequences, static_of, take

_AT_ONCE = 1024  # sequences whose features are in memory at the same time


class Described:
    """Predict by a ridge from random convolutions of sequences of numbers, or from n-grams of texts, tokens and ids."""

    def __init__(self, inputs: Inputs) -> None:
        of_numbers = inputs.kind == "numbers"
        self.name = "convolutions" if of_numbers else "ngrams"
        self.maker: Any = SeriesFeatures(inputs.size) if of_numbers else TextFeatures(inputs)
        self.linear = Linear()
        self._num_static = inputs.num_static

    def fit(
        self, sequences: list[np.ndarray], targets: Targets, held: np.ndarray | None, rng: np.random.Generator
    ) -> np.ndarray:
        """Fit on all sequences; return the outputs for the sequences `held` by another fit, which leaves them out.

        If `held` is None, return the outputs for all sequences, each by a fit that leaves out that sequence.
        """
        if held is None:
            self.maker.fit(sequences, rng)
            return self._choose(sequences, targets)
        rest = np.setdiff1d(np.arange(len(sequences)), held)
        train, of_train = take(sequences, rest), targets.take(rest)
        self.maker.fit(train, rng)
        few = rng.choice(len(rest), min(len(rest), MOST_LEFT_OUT), replace=False)
        self._choose(take(train, few), of_train.take(few))
        self.linear.fit(self.transform(train), self._factors(self.choice, static_of(train)), of_train)
        found = self.outputs(take(sequences, held))
        self.maker.extend(sequences)
        self.linear.fit(self.transform(sequences), self._factors(self.choice, static_of(sequences)), targets)
        return found

    def fit_on_first(
        self, sequences: list[np.ndarray], targets: Targets, parts: Parts, rng: Any, comm: Communicator | None
    ) -> np.ndarray:
        """Fit on rank 0, and send the fit to all ranks; return the outputs for the sequences `parts.held`."""

        def fit() -> np.ndarray:
            found = self.fit(take(sequences, parts.train), targets.take(parts.train), parts.left_out, rng)
            return self.outputs(take(sequences, parts.held)) if parts.apart else found

        if comm is None:
            return fit()

        def state() -> ranks.State:
            found = fit()
            arrays, values = self.state()
            return arrays | {"": found}, values

        arrays, values = ranks.from_first(comm, state)
        found = arrays.pop("")
        if not ranks.is_first(comm):
            self.restore(arrays, values, found.shape[1])
        return found

    def _choose(self, sequences: list[np.ndarray], targets: Targets) -> np.ndarray:
        """Choose features and penalty by the least loss; return each sequence's outputs by a fit that leaves it out."""
        features, static, least = self.maker.transform(sequences), static_of(sequences), np.inf
        outputs = np.zeros(0)
        for choice, chosen in self.maker.choices(features):
            linear = Linear()
            loss, found = linear.fit_left_out(_beside(chosen, static), self._factors(choice, static), targets)
            if loss < least:
                least, outputs, self.linear, self.choice = loss, found, linear, choice
        self.maker.choose(self.choice)
        return outputs

    def outputs(self, sequences: list[np.ndarray], executor: Any = None) -> np.ndarray:
        """Return the outputs for each sequence, float32, shape `(sequences, outputs)`."""
        return np.concatenate([self.linear.outputs(self.transform(part)) for part in _in_parts(sequences)])

    def features(self, sequences: list[np.ndarray]) -> Any:
        """Return the features that the ridge multiplies by its weights, float32, shape `(sequences, features)`."""
        parts = [self.linear.scaled(self.transform(part)) for part in _in_parts(sequences)]
        return sparse.csr_array(sparse.vstack(parts)) if sparse.issparse(parts[0]) else np.concatenate(parts)

    @property
    def num_features(self) -> int:
        """The number of columns of the result of `features`."""
        return len(self.linear.weight)

    def transform(self, sequences: list[np.ndarray]) -> Any:
        """Return the chosen features of each sequence, and its static features, shape `(sequences, features)`."""
        return _beside(self.maker.transform(sequences), static_of(sequences))

    def _factors(self, choice: Any, static: np.ndarray | None) -> Any:
        """Return the factor of each feature of a choice (the largest for static features); None if none is scaled."""
        factors = self.maker.factors(choice)
        return factors if factors is None or static is None else np.append(factors, [factors.max()] * static.shape[1])

    def state(self) -> tuple[dict[str, np.ndarray], Any]:
        """Return the arrays by name, and a value that JSON can hold."""
        arrays, values = self.maker.state()
        named = {f"linear.{name}": array for name, array in self.linear.state().items()}
        return {f"features.{name}": array for name, array in arrays.items()} | named, values

    def restore(self, arrays: dict[str, np.ndarray], values: Any, num_outputs: int) -> None:
        """Restore the result of `state`, or raise unless it fits the inputs and the number of outputs."""
        named = {name.partition(".")[2]: array for name, array in arrays.items() if name.startswith("features.")}
        self.maker.restore(named, values)
        named = {name.partition(".")[2]: array for name, array in arrays.items() if name.startswith("linear.")}
        is_sparse = isinstance(self.maker, TextFeatures)
        self.linear.restore(named, self.maker.width + self._num_static, num_outputs, is_sparse)


def _in_parts(sequences: list[np.ndarray]) -> Iterator[Sequences]:
    ends = [*range(0, len(sequences), _AT_ONCE), len(sequences)]
    return (take(sequences, range(*pair)) for pair in itertools.pairwise(ends))


def _beside(features: Any, static: np.ndarray | None) -> Any:
    """Return features with static features as further columns; the result is sparse if `features` is."""
    if static is None:
        return features
    if sparse.issparse(features):  # clip static features, because a sparse ridge does not scale and clip
        return sparse.csr_array(sparse.hstack([features, sparse.csr_array(np.clip(static, -5, 5))]))
    return np.concatenate([features, static], axis=1)
