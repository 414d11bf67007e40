"""The base class of estimators that choose between a network and candidates that cost little.

The outputs of such an estimator are a weighted sum of the outputs of its candidates.  For classes, this is the product
of their probabilities: the weights (`_shares`) are 2.1 and 0.8, say, each the temperature of a candidate on sequences
that it was not trained on, times the temperature of the product.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from sklearn.utils.metaestimators import available_if

from varlen_rnn import random
from varlen_rnn.errors import InputError, check_choice, check_int, check_list, count, shown
from varlen_rnn.sklearn.base import SequenceEstimator, labels_of_data, several_classes
from varlen_rnn.sklearn.described import Described
from varlen_rnn.sklearn.linear import MOST_LEFT_OUT, Targets

MODELS = "auto", "recurrent", "convolutions", "ngrams"
# Networks trained on fewer sequences are not better than the other candidates by enough to pay for six trainings.
_LEAST_SEQUENCES = 100
_FOLDS, _MOST_HELD = 5, 2000


def _trains_a_network_only(estimator: Any) -> bool:
    return estimator.model == "recurrent"


class ChoosingEstimator(SequenceEstimator):
    """An estimator of one label or number per sequence, with the parameter `model`."""

    model: str
    candidates_: list[dict[str, Any]]
    _shares: dict[str, float]  # the weights of candidates' outputs
    _described: Described | None
    _shift: np.ndarray | None = None  # added to outputs, it calibrates quantiles

    def _targets(self, labels: np.ndarray, weights: np.ndarray) -> Targets:
        """Return encoded labels as targets of a linear model."""
        raise NotImplementedError

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """Fit the candidates on sequences and their labels, and choose between them; return the estimator.

        Parameters
        ----------
        X : sequences
            A list of arrays of shape `(steps, features)` or `(steps,)`, where floating-point numbers are measurements
            and integers are token ids.  Or a list of texts or of lists of tokens, an Arrow or Awkward column, a
            LoDTensor, or a `data.Dataset`.  Sequences of equal length may be one array, `(sequences, steps)` or
            `(sequences, steps, features)`.
        y : labels
            One label per sequence.  If `X` is a `data.Dataset`, its labels are the default.
        sample_weight : array, shape `(sequences,)`, optional
            The weight of each sequence in the loss.

        Notes
        -----
        An interrupt (Ctrl-C) during the training of the network is raised, but the estimator is fitted: it predicts by
        the best candidate until then.
        """
        if check_choice(self.model, "model", *MODELS) == "recurrent":
            self._adopt({"recurrent": 1.0}, [])
            return super().fit(X, y, sample_weight)
        for name, neutral in (("warm_start", False), ("checkpoints", None)):
            if (value := getattr(self, name)) not in (neutral, False):
                expected, hint = f"{neutral} with model={self.model!r}", "model='recurrent' takes it"
                raise InputError(name, expected=expected, got=shown(value), hint=hint)
        y = labels_of_data(X, y)
        with random.seeded(self._seed()):
            sequences = self._learn(X, y, several_classes(X))
            labels, weights = self._encoded(sequences, y, sample_weight)
            self._choose(sequences, labels, weights)
        return self

    @available_if(_trains_a_network_only)
    def partial_fit(self, X: Any, y: Any = None, classes: Any = None, sample_weight: Any = None) -> Any:
        """Train for one epoch on these sequences, at a constant learning rate; return the estimator.

        Only an estimator with `model="recurrent"` has this method.

        Parameters
        ----------
        X, y, sample_weight
            As in `fit`.
        classes : array, optional
            The classes that occur in any call; a classifier needs them in the first call.
        """
        self._adopt({"recurrent": 1.0}, [])
        return super().partial_fit(X, y, classes, sample_weight)

    def _adopt(
        self, shares: dict[str, float], candidates: list[dict[str, Any]], shift: np.ndarray | None = None
    ) -> None:
        """Predict by the weighted sum of candidates' outputs, and `shift`, from now on."""
        self._shares, self.candidates_, self._shift = shares, candidates, shift
        if "recurrent" in shares and len(shares) == 1:
            self._described = None

    # Choosing.

    def _choose(self, sequences: list[np.ndarray], labels: np.ndarray, weights: np.ndarray | None) -> None:
        """Fit the candidates that `model` names, and choose shares by the loss on sequences left out."""
        self._check_network()
        described = self._candidate()
        weights_of_losses = self._weights_of_losses(labels, weights)
        counted = np.ones(len(sequences)) if weights_of_losses is None else np.asarray(weights_of_losses, np.float64)
        kept = np.flatnonzero(counted) if counted.any() else np.arange(len(sequences))
        sequences, labels, weights = _take(kept, sequences, labels, weights)
        targets = self._targets(labels, counted[kept] if counted.any() else np.ones(len(kept)))
        rng = np.random.default_rng(int(random.generator().integers(2**31)))
        folds = _folds(labels, rng)
        held = np.arange(len(kept)) if len(kept) <= MOST_LEFT_OUT else folds[0]
        begun = time.perf_counter()
        found = described.fit(sequences, targets, None if len(kept) <= MOST_LEFT_OUT else held, rng)
        choice = _Choice(targets.take(held), self.verbose)
        choice.add(described.name, found, time.perf_counter() - begun)
        self.module_, self._described = None, described
        self._adopt(choice.shares, choice.candidates, choice.shift)
        if self.model == "auto" and choice.asks_for_a_network(len(kept)):
            begun = time.perf_counter()
            found = self._outputs_held(sequences, labels, weights, folds, held)
            choice.add("recurrent", found, time.perf_counter() - begun)
            choice.add_product()
            if "recurrent" in choice.shares:
                self._train_network(sequences, labels, weights, None)
            self._adopt(choice.shares, choice.candidates, choice.shift)
        choice.close()

    def _candidate(self) -> Described:
        """Return the candidate that costs little, or raise unless it is the one that `model` names."""
        described = Described(self._inputs)
        if self.model not in ("auto", described.name):
            expected = f"'auto', 'recurrent' or {described.name!r} for X of {self._inputs.kind}"
            raise InputError("model", expected=expected, got=shown(self.model))
        return described

    def _check_network(self) -> None:
        """Raise if a parameter of the network or its training is wrong, even if no network will be trained."""
        for name in ("max_epochs", "batch_size"):
            if (value := getattr(self, name)) != "auto":
                check_int(value, name, 1)
        check_list(self.callbacks, "callbacks", "a list of callbacks")
        with random.seeded(0):
            self.module_ = self._network()
            self._scheduler(self._make_optimizer(), 2)
        del self.module_

    def _outputs_held(
        self, sequences: list[np.ndarray], labels: Any, weights: Any, folds: list[np.ndarray], held: np.ndarray
    ) -> np.ndarray:
        """Return the outputs of networks for the sequences `held`, each by a network that did not see it."""
        outputs = np.empty((len(sequences), self._num_outputs), np.float32)
        for fold in folds:
            rest = np.setdiff1d(np.arange(len(sequences)), fold)
            others = [sequences[k] for k in fold]
            some, of_some, weighing = _take(rest, sequences, labels, weights)
            outputs[fold] = self._train_network(some, of_some, weighing, (), others)
        return outputs[held]

    def _train_network(
        self, sequences: list[np.ndarray], labels: Any, weights: Any, callbacks: Any, others: Any = None
    ) -> Any:
        """Train a network, and keep it; or, if other sequences are given, return its outputs for them instead."""
        kept = False
        try:
            self._begin(sequences)
            self._train(sequences, labels, weights, callbacks)
            found = None if others is None else SequenceEstimator._outputs_of(self, others, None)
            kept = others is None
        finally:
            if not kept:
                self.module_, self.history_, self.n_iter_ = None, [], 0
        return found

    def _calibrate(self, sequences: list[np.ndarray], labels: Any, weights: Any, held: np.ndarray | None) -> None:
        if self.model != "recurrent" or held is None:
            return
        outputs = SequenceEstimator._outputs_of(self, [sequences[k] for k in held], None)
        choice = _Choice(self._targets(labels, np.ones(len(labels))).take(held), self.verbose)
        choice.add("recurrent", outputs, 0.0)
        self._adopt(choice.shares, choice.candidates, choice.shift)

    # Predictions, and files.

    def _outputs_of(self, sequences: list[np.ndarray], executor: Any) -> np.ndarray:
        """Return the weighted sum of the candidates' outputs, float32."""
        rows = len(sequences) if self._pool else sum(map(len, sequences))
        outputs = np.zeros((rows, self._num_outputs), np.float32)
        for name, share in self._shares.items():
            if name == "recurrent":
                outputs += np.float32(share) * super()._outputs_of(sequences, executor)
            elif self._described is not None:
                outputs += np.float32(share) * self._described.outputs(sequences)
        return outputs if self._shift is None else outputs + self._shift.astype(np.float32)

    def _model_state(self) -> dict[str, Any]:
        state = super()._model_state() if self.module_ is not None else {}
        arrays, values = ({}, None) if self._described is None else self._described.state()
        chosen = {"shares": self._shares, "candidates": self.candidates_, "values": values}
        chosen["shift"] = None if self._shift is None else self._shift.tolist()
        return state | ({"described": arrays} if arrays else {}) | {"chosen": chosen}

    def _restore_model(self, saved: dict[str, Any]) -> None:
        chosen = saved["chosen"]
        self.module_, self._described = None, None
        if "module" in saved:
            super()._restore_model(saved)
        if "described" in saved:
            self._described = Described(self._inputs)
            self._described.restore(saved["described"], chosen["values"])
        shift = None if chosen["shift"] is None else np.array(chosen["shift"])
        self._shares, self.candidates_, self._shift = chosen["shares"], chosen["candidates"], shift


class _Choice:
    """Candidates with their outputs for sequences that they were not trained on, and the best of them so far."""

    def __init__(self, targets: Targets, verbose: int) -> None:
        self.targets, self.verbose = targets, verbose
        self.candidates: list[dict[str, Any]] = []
        self.outputs: dict[str, np.ndarray] = {}
        self.shares_of: dict[str, dict[str, float]] = {}
        self.shift_of: dict[str, np.ndarray | None] = {}

    @property
    def shares(self) -> dict[str, float]:
        """The weights of the candidate of the least loss."""
        return self.shares_of[self._best]

    @property
    def shift(self) -> np.ndarray | None:
        """The numbers that calibrate quantiles of the candidate of the least loss."""
        return self.shift_of[self._best]

    @property
    def _best(self) -> str:
        trained = [candidate for candidate in self.candidates if candidate["candidate"] in self.shares_of]
        return min(trained, key=lambda candidate: candidate["loss"])["candidate"]

    def add(self, name: str, outputs: np.ndarray, seconds: float) -> None:
        """Measure a candidate's outputs."""
        loss, factor = self.targets.calibrated(outputs)
        self.outputs[name] = outputs
        self._add(name, outputs, loss, {name: factor}, seconds)

    def add_product(self) -> None:
        """Measure the product of the probabilities of both candidates; of numbers, the mean by their precisions."""
        losses = {candidate["candidate"]: candidate["loss"] for candidate in self.candidates}
        if self.targets.kind == "numbers":
            precisions = {name: 1 / max(loss, 1e-12) for name, loss in losses.items()}
            shares = {name: precision / sum(precisions.values()) for name, precision in precisions.items()}
        else:
            shares = {name: self.shares_of[name][name] for name in self.outputs}
        joint = np.sum([share * np.float64(self.outputs[name]) for name, share in shares.items()], axis=0)
        loss, factor = self.targets.calibrated(joint)
        shares = {name: share * factor for name, share in shares.items()}
        self._add(" and ".join(self.outputs), joint, loss, shares, 0.0)

    def _add(self, name: str, outputs: np.ndarray, loss: float, shares: dict[str, float], seconds: float) -> None:
        self.shares_of[name], self.shift_of[name] = shares, self.targets.shift(outputs)
        record = {"candidate": name, "loss": loss, "error": self.targets.errors(outputs), "seconds": seconds}
        self.candidates.append(record)
        if self.verbose:
            measure = "squared error" if self.targets.kind == "numbers" else "log loss"
            measure = measure if self.targets.levels is None else "quantile loss"
            errors = "" if self.targets.kind == "numbers" else f", {record['error']:.1%} wrong"
            print(
                f"{name}: {measure} {loss:.3f}{errors}, on {count(len(outputs), 'sequence')} left out; {seconds:.1f} s"
            )

    def asks_for_a_network(self, number: int) -> bool:
        """Return whether to train a network: there are enough sequences, and the first candidate makes errors."""
        if number < _LEAST_SEQUENCES:
            reason = f"{count(number, 'sequence')}, fewer than {_LEAST_SEQUENCES}"
        elif self.candidates[0]["error"] < 1e-6:
            reason = f"{self.candidates[0]['candidate']} makes no error"
        else:
            return True
        self.candidates.append({"candidate": "recurrent", "loss": None, "reason": f"not trained: {reason}"})
        if self.verbose:
            print(f"recurrent: not trained: {reason}")
        return False

    def close(self) -> None:
        """Mark the candidate that was chosen."""
        for candidate in self.candidates:
            candidate["chosen"] = self.shares_of.get(candidate["candidate"]) is self.shares
        if self.verbose:
            print("chosen:", next(candidate["candidate"] for candidate in self.candidates if candidate["chosen"]))


def _take(indices: np.ndarray, sequences: list[np.ndarray], labels: np.ndarray, weights: Any) -> tuple[Any, ...]:
    """Return some of the sequences, their labels and weights."""
    return [sequences[k] for k in indices], labels[indices], None if weights is None else weights[indices]


def _folds(labels: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Return the indices of five parts of the sequences, or of a fifth if there are many; classes have equal shares."""
    order = rng.permutation(len(labels))
    if labels.dtype == np.int64:
        order = order[np.argsort(labels[order], kind="stable")]
    if len(labels) <= MOST_LEFT_OUT:
        return [np.sort(order[k::_FOLDS]) for k in range(min(_FOLDS, len(labels)))]
    held = min(len(labels) // _FOLDS, _MOST_HELD)
    return [np.sort(order[np.linspace(0, len(labels) - 1, held).round().astype(int)])]
