"""The base class of estimators that choose between a network and candidates that cost little.

The outputs of such an estimator are a weighted sum of the outputs of its candidates.  For classes, this is the product
of their probabilities: the weights (`_shares`) are 2.1 and 0.8, say, each the temperature of a candidate on sequences
that it was not trained on, times the temperature of the product.
"""

from __future__ import annotations

import copy
import time
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from varlen_rnn import random
from varlen_rnn.communicator import Communicator
from varlen_rnn.data import Dataset, batches
from varlen_rnn.errors import InputError, check_choice, check_int, check_list, count, listed, shown
from varlen_rnn.sklearn import network, ranks
from varlen_rnn.sklearn.attributions import attributions, constant, warn_if_incomplete
from varlen_rnn.sklearn.base import ROWS, SequenceEstimator, kept_after, several_classes
from varlen_rnn.sklearn.described import Described
from varlen_rnn.sklearn.inputs import Inputs, as_sequences
from varlen_rnn.sklearn.linear import MOST_LEFT_OUT, Targets
from varlen_rnn.sklearn.ngrams import Text
from varlen_rnn.sklearn.restored import numbers_of, texts_of
from varlen_rnn.sklearn.static import static_of, take
from varlen_rnn.tape.variable import Variable

MODELS = "auto", "recurrent", "convolutions", "ngrams"
# Six trainings take much longer than the ridge, which takes a second with few sequences.  On series of known equations,
# networks were better with 100 sequences (four sets of five), and also with 50.
_LEAST_SEQUENCES = 100
_FOLDS, _MOST_HELD = 5, 2000
# With fewer sequences left out, a network is not chosen yet; with enough, the choice is made.
_LEAST_HELD, _ENOUGH_HELD = 50, 100
_LEAST_FOR_QUANTILES = 200  # which calibrate, so that about twenty lie below the quantile 0.1
_LEAST_GAIN = 0.05  # the share of the loss that is worth a network's cost


def _trains_a_network_only(estimator: Any) -> bool:
    return estimator.model == "recurrent"


class ChoosingEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, SequenceEstimator):
    """An estimator of one label or number per sequence, with the parameter `model`."""

    model: str
    candidates_: list[dict[str, Any]]
    _shares: dict[str, float]  # the weights of candidates' outputs
    _described: Described | None
    _shift: np.ndarray | None = None  # added to outputs, it calibrates quantiles

    def _targets(self, labels: np.ndarray, weights: np.ndarray) -> Targets:
        """Return encoded labels as targets of a linear model."""
        raise NotImplementedError

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        eval_set: Any = None,
        comm: Communicator | None = None,
    ) -> Any:
        """Fit the candidates on sequences and their labels, and choose between them; return the estimator.

        Parameters
        ----------
        X : sequences
            A list of arrays of shape `(steps, features)` or `(steps,)`, where floating-point numbers are measurements
            and integers are token ids.  Or a list of texts or of lists of tokens, an Arrow or Awkward column, a
            LoDTensor, or a `data.Dataset`.  Sequences of one array, `(sequences, steps)` or
            `(sequences, steps, features)`, may end with steps of NaN, which are padding; other NaNs are missing
            numbers.  A frame with a column of lists or arrays and columns of numbers has static features.
        y : labels
            One label per sequence.  If `X` is a `data.Dataset`, its labels are the default.
        sample_weight : array, shape `(sequences,)`, optional
            The weight of each sequence in the loss.
        eval_set : pair of sequences and labels, or a list of one pair, optional
            Sequences that are not trained on.  They choose between the candidates, and calibrate them, in place of
            sequences of X that are left out.  The records of epochs have their loss ("valid_loss"), and
            `early_stopping` stops by it.
        comm : Communicator, optional
            The ranks of `distributed.connect()`.  All call `fit` with the same arguments, train the network together,
            and end with the same estimator; rank 0 fits the other candidates, and only rank 0 prints.

        Notes
        -----
        An interrupt (Ctrl-C) during the training of the network is raised, but the estimator is fitted: it predicts by
        the best candidate until then.  If the network is the only candidate, the estimator stays as it was.
        """
        if check_choice(self.model, "model", *MODELS) == "recurrent":
            with kept_after(self):
                self._adopt({"recurrent": 1.0}, [])
                return super().fit(X, y, sample_weight, eval_set=eval_set, comm=comm)
        for name, neutral in (("warm_start", False), ("checkpoints", None)):
            if (value := getattr(self, name)) not in (neutral, False):
                expected, hint = f"{neutral} with model={self.model!r}", "model='recurrent' takes it"
                raise InputError(name, expected=expected, got=shown(value), hint=hint)
        y = self._given_labels(X, y)
        with kept_after(self, lambda: bool(self.candidates_)), self._on(comm), random.seeded(self._seed()):
            self.candidates_ = []
            sequences = self._learn(X, y, several_classes(X))
            labels, weights = self._encoded(sequences, y, sample_weight)
            if eval_set is None:
                self._choose(sequences, labels, weights)
            else:
                self._choose(*self._with(eval_set, sequences, labels, weights), number=len(sequences))
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
        with kept_after(self):
            self._adopt({"recurrent": 1.0}, [])
            return super().partial_fit(X, y, classes, sample_weight)

    def _adopt(
        self, shares: dict[str, float], candidates: list[dict[str, Any]], shift: np.ndarray | None = None
    ) -> None:
        """Predict by the weighted sum of candidates' outputs, and `shift`, from now on."""
        self._shares, self.candidates_, self._shift = shares, candidates, shift
        if "recurrent" in shares and len(shares) == 1:
            self._described = None

    def _rows(self, X: Any, inputs: Inputs | None = None) -> list[np.ndarray]:
        """Return the rows of each sequence, and texts together with the ids of their tokens."""
        rows = super()._rows(X, inputs)
        if (self._inputs if inputs is None else inputs).kind != "texts" or isinstance(X, Dataset):
            return rows
        kind, texts = as_sequences(X)
        return list(map(Text.of, rows, texts)) if kind == "texts" else rows

    # Choosing.

    def _choose(
        self, sequences: list[np.ndarray], labels: np.ndarray, weights: np.ndarray | None, number: int | None = None
    ) -> None:
        """Fit the candidates that `model` names, and choose shares by the loss on sequences left out.

        If `number` is given, the candidates are fitted on as many sequences, and the others choose.
        """
        self._check_network()
        described = self._candidate()
        weights_of_losses = self._weights_of_losses(labels, weights)
        counted = _counted(weights_of_losses, len(sequences))
        kept = np.flatnonzero(counted)
        sequences, labels, weights = _take(kept, sequences, labels, weights)
        targets = self._targets(labels, counted[kept])
        rng = np.random.default_rng(int(random.generator().integers(2**31)))
        parts = _Parts(labels, rng, len(kept) if number is None else int(np.searchsorted(kept, number)))
        begun = time.perf_counter()
        found = self._describe(described, sequences, targets, parts, rng)
        choice = _Choice(targets.take(parts.held), self.verbose and ranks.is_first(self._comm))
        choice.add(described.name, found, time.perf_counter() - begun)
        choice.agree(self._comm)
        choice.show()
        self.module_, self._described = None, described
        self._adopt(choice.shares, choice.marked(), choice.shift)
        if self.model == "auto" and choice.asks_for_a_network(len(parts.train)):
            choice = self._with_network(choice, sequences, labels, weights, parts)
            if "recurrent" in choice.shares and self.module_ is None:
                self._train_network(sequences, labels, weights, None)
            elif "recurrent" not in choice.shares:
                self._forget_network()
            self._adopt(choice.shares, choice.marked(), choice.shift)
        choice.close()

    def _describe(
        self, described: Described, sequences: list[np.ndarray], targets: Targets, parts: _Parts, rng: Any
    ) -> np.ndarray:
        """Fit the candidate that costs little, on rank 0; return its outputs for the sequences held, on every rank."""

        def fit() -> np.ndarray:
            found = described.fit(take(sequences, parts.train), targets.take(parts.train), parts.left_out, rng)
            return described.outputs(take(sequences, parts.held)) if parts.apart else found

        if self._comm is None:
            return fit()
        found = np.zeros(0)

        def state() -> ranks.State:
            nonlocal found
            found = fit()
            arrays, values = described.state()
            return arrays | {"": found}, values

        arrays, values = ranks.from_first(self._comm, state)
        found = arrays.pop("")
        if not ranks.is_first(self._comm):
            described.restore(arrays, values, self._inputs.num_static, self._num_outputs)
        return found

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
        small = copy.copy(self)  # the network itself may never be trained
        for name in ("hidden_size", "embedding_size"):
            check_int(getattr(self, name), name, 1)
            setattr(small, name, 1)
        with random.seeded(0):
            small.module_ = small._network()
            small._scheduler(small._make_optimizer(), 2)

    def _with_network(
        self, choice: _Choice, sequences: list[np.ndarray], labels: Any, weights: Any, parts: _Parts
    ) -> _Choice:
        """Return the choice with networks as a candidate, each measured on sequences that it was not trained on.

        If the sequences held never train, there is one network, which stays.  Otherwise each network predicts the
        sequences of one fold, and is trained on all others; as many folds are tried as the choice needs.
        """
        begun = time.perf_counter()
        if parts.apart:
            self._train_network(sequences, labels, weights, None, num_held=len(parts.held))
            self._measure(choice, self._network_outputs(take(sequences, parts.held)), begun)
            return choice
        outputs, seen = np.zeros((len(parts.held), self._num_outputs), np.float32), np.zeros(len(parts.held), bool)
        for fold in parts.folds:
            rest, places = np.setdiff1d(np.arange(len(sequences)), fold), np.searchsorted(parts.held, fold)
            some, of_some, weighing = _take(rest, sequences, labels, weights)
            outputs[places] = self._train_network(some, of_some, weighing, (), take(sequences, fold))
            seen[places] = True
            found = choice.among(np.flatnonzero(seen))
            self._measure(found, outputs[seen], begun)
            worth = found.network_is_worth_it(self._comm)
            if worth is not None or seen.sum() >= max(_ENOUGH_HELD, choice.least_held):
                break
        if worth is False:
            found.keep_first()
        return found

    def _measure(self, choice: _Choice, outputs: np.ndarray, begun: float) -> None:
        """Add a network, and the product with it, to the candidates of a choice."""
        choice.add("recurrent", outputs, time.perf_counter() - begun)
        choice.add_product()
        choice.agree(self._comm)

    def _train_network(
        self,
        sequences: list[np.ndarray],
        labels: Any,
        weights: Any,
        callbacks: Any,
        others: Any = None,
        num_held: int = 0,
    ) -> Any:
        """Train a network, and keep it; or, if other sequences are given, return its outputs for them instead."""
        kept = False
        try:
            self._begin(sequences[: len(sequences) - num_held])
            self._train(sequences, labels, weights, callbacks, num_held)
            found = None if others is None else self._network_outputs(others)
            kept = others is None
        finally:
            if not kept:
                self._forget_network()
        return found

    def _network_outputs(self, sequences: list[np.ndarray]) -> np.ndarray:
        """Return the network's outputs for sequences, which rank 0 computes."""
        return ranks.array_of_first(self._comm, lambda: SequenceEstimator._outputs_of(self, sequences, None))

    def _forget_network(self) -> None:
        self.module_, self.history_, self.n_iter_ = None, [], 0

    def _calibrate(self, sequences: list[np.ndarray], labels: Any, weights: Any, held: np.ndarray | None) -> None:
        if self.model != "recurrent" or held is None:
            return
        outputs = self._network_outputs(take(sequences, held))
        verbose = self.verbose and ranks.is_first(self._comm)
        own = self._weights_of_losses(labels[held], None if weights is None else weights[held])
        choice = _Choice(self._targets(labels[held], _counted(own, len(held))), verbose)
        choice.add("recurrent", outputs, 0.0)
        choice.agree(self._comm)
        choice.show()
        self._adopt(choice.shares, choice.marked(), choice.shift)

    # Predictions, and files.

    def _outputs_of(self, sequences: list[np.ndarray], executor: Any) -> np.ndarray:
        """Return the weighted sum of the candidates' outputs, float32."""
        rows = len(sequences) if self._pool else sum(map(len, sequences))
        outputs = np.zeros((rows, self._num_outputs), np.float32)
        for name, share in self._shares.items():
            self._check_has(name)
            if name == "recurrent":
                outputs += np.float32(share) * super()._outputs_of(sequences, executor)
            else:
                outputs += np.float32(share) * self._described.outputs(sequences)  # type: ignore[union-attr]
        return outputs if self._shift is None else outputs + self._shift.astype(np.float32)

    def _check_has(self, name: str) -> None:
        """Raise unless the candidate that the shares name is there, because outputs without it would be zeros."""
        if (self.module_ if name == "recurrent" else self._described) is None:
            raise RuntimeError(f"the estimator predicts by {name!r}, which it has not: please report this error")

    def _check_pools(self, method: str) -> None:
        """Raise if y had numbers of rows, because the network then has outputs of rows, and none of sequences."""
        if not self._pool:
            raise InputError(method, expected="an estimator of numbers of sequences", got="numbers of rows")

    @property
    def _n_features_out(self) -> int:
        """The number of columns of the result of `transform`."""
        of_network = self.module_.output.in_features if "recurrent" in self._shares else 0
        return of_network + (0 if self._described is None else len(self._described.linear.weight))

    def transform(self, X: Any) -> Any:
        """Return an embedding of each sequence: the numbers from which the chosen models compute their outputs.

        A network has the pooled outputs of its layers.  A ridge has its features: random convolutions, scaled, or
        weights of n-grams, which are sparse.  If both were chosen, the embedding has both.  So the estimator may stand
        in a pipeline before another.

        Parameters
        ----------
        X : sequences
            As in `fit`.

        Returns
        -------
        array or sparse array, float32, shape `(sequences, features)`

        Raises
        ------
        InputError
            If y had numbers of rows.

        Examples
        --------
        >>> from varlen_rnn.sklearn import SequenceClassifier
        >>> X, y = [[0.5, 1.0], [2.5]] * 4, [0, 1] * 4
        >>> model = SequenceClassifier("gru", 4, model="recurrent", max_epochs=1).fit(X, y)
        >>> model.transform([[1.0, 2.0, 3.0]]).shape
        (1, 88)
        """
        check_is_fitted(self, "module_")
        self._check_pools("transform")
        sequences, parts = self._rows(X), []
        for name in self._shares:
            self._check_has(name)
            if name == "recurrent":
                parts.append(self._computed(sequences, self.module_.output.in_features, network.features_of, None))
            else:
                parts.append(self._described.scaled(sequences))  # type: ignore[union-attr]
        return _side_by_side(parts)

    def integrated_gradients(self, X: Any, target: Any = None, steps: int = 50) -> list[np.ndarray]:
        """Return how much each row and feature of a sequence adds to its prediction, compared with a baseline.

        The attributions of a sequence add up to the difference of the prediction and the prediction for the baseline
        (completeness), but for the error of integration, which falls with `steps`.  A prediction is the logarithm of
        the probability of a class, as in `predict_log_proba`, or a number, as in `predict` (of quantiles the median,
        before quantiles that cross are sorted).  The baseline of numbers is
        a sequence of as many rows that have each feature's mean over the training, without missing numbers.  The
        baseline of tokens is an embedding of zeros.  Static features stay as they are.

        Parameters
        ----------
        X : sequences
            As in `fit`.
        target : class or int, optional
            The class, or the number of the target, from 0.  By default the most probable class of each sequence, or
            the first target.
        steps : int
            The number of gradients that are averaged, at least 1.

        Returns
        -------
        list of array, float32
            For each sequence an array of shape `(steps, features)`, or `(steps,)` for tokens.

        Raises
        ------
        InputError
            If a ridge was chosen, whose features have no gradients; `model="recurrent"` has them.  Or if y had numbers
            of rows.

        Warns
        -----
        ConvergenceWarning
            If the attributions of a sequence miss the difference by more than a twentieth of the largest difference.

        Examples
        --------
        >>> from varlen_rnn.sklearn import SequenceRegressor
        >>> X = [[0.5, 1.0], [2.5]] * 4
        >>> model = SequenceRegressor("gru", 4, model="recurrent", max_epochs=1).fit(X, [0.5, 2.5] * 4)
        >>> [found.shape for found in model.integrated_gradients(X[:2])]
        [(2, 1), (1, 1)]

        Source: Sundararajan, Taly and Yan (2017), "Axiomatic attribution for deep networks", arXiv 1703.01365.
        """
        check_is_fitted(self, "module_")
        self._check_pools("integrated_gradients")
        steps = check_int(steps, "integrated_gradients, steps", 1)
        if list(self._shares) != ["recurrent"]:
            expected, got = "an estimator that predicts by a network alone", " and ".join(self._shares)
            raise InputError("integrated_gradients", expected=expected, got=got, hint="model='recurrent'")
        sequences = self._rows(X)
        numbers = self._numbers_of_targets(target, sequences)
        factor = np.float32(self._shares["recurrent"])
        score = lambda outputs, chosen: self._scores(outputs * factor, chosen)
        found: list[Any] = [None] * len(sequences)
        differences = np.zeros(len(sequences))
        made = batches(sequences, numbers, static=static_of(sequences), max_tokens=ROWS, bucket=True)
        frozen = constant(self.module_)
        for number, batch in enumerate(made):
            rows, change = attributions(frozen, batch, score, self._inputs.filling, steps)
            differences[made.indices(number)] = change
            parts = np.split(rows, batch[0].structure.levels[0][1:-1])
            for k, part in zip(made.indices(number), parts, strict=True):
                found[k] = part
        warn_if_incomplete(found, differences)
        return found

    def _numbers_of_targets(self, target: Any, sequences: list[np.ndarray]) -> np.ndarray:
        """Return the number of the output that each sequence's attributions are about, int64."""
        raise NotImplementedError

    def _scores(self, outputs: Variable, numbers: np.ndarray) -> Variable:
        """Return the prediction of one output for each sequence, given the number of this output."""
        raise NotImplementedError

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags, which say that embeddings are float32 for any X."""
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []
        return tags

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
            self._check_pools("load, a ridge")
            self._described = Described(self._inputs)
            self._described.restore(saved["described"], chosen["values"], self._inputs.num_static, self._num_outputs)
        has = {} if self._described is None else {self._described.name: self._described}
        has |= {} if self.module_ is None else {"recurrent": self.module_}
        names = texts_of(list(chosen["shares"]), "chosen, shares")
        if not names or not has.keys() >= set(names):
            raise InputError("chosen, shares", expected=f"some of {listed(list(has))}", got=shown(names))
        shares = numbers_of(list(chosen["shares"].values()), "chosen, shares")
        self._shares, self.candidates_ = dict(zip(names, shares, strict=True)), chosen["candidates"]
        shift = chosen["shift"]
        self._shift = None if shift is None else np.array(numbers_of(shift, "chosen, shift", self._num_outputs))


class _Parts:
    """Which sequences train, and which choose between the candidates.

    Parameters
    ----------
    labels : array
    rng : Generator
    number : int
        The sequences that may train are the first `number`.

    Attributes
    ----------
    train : array of int
        The sequences that train in the end.
    apart : bool
        Whether the sequences that choose never train.
    folds : list of array
        Parts of the sequences that train: each part is left out of one training.
    left_out : array of int, or None
        The only part, or None if there are few sequences, of which each is left out.
    held : array of int
        The sequences that choose.
    """

    def __init__(self, labels: np.ndarray, rng: np.random.Generator, number: int) -> None:
        self.train, self.apart = np.arange(number), number < len(labels)
        self.folds = _folds(labels[:number], rng)
        self.left_out = None if number <= MOST_LEFT_OUT else self.folds[0]
        self.held = self.train if self.left_out is None else self.left_out
        if self.apart:
            self.held = np.arange(number, len(labels))


class _Choice:
    """Candidates with their outputs for sequences that they were not trained on, and the best of them so far."""

    def __init__(self, targets: Targets, verbose: int) -> None:
        self.targets, self.verbose = targets, verbose
        self.candidates: list[dict[str, Any]] = []
        self.outputs: dict[str, np.ndarray] = {}
        self.losses: dict[str, np.ndarray] = {}  # of each sequence
        self.shares_of: dict[str, dict[str, float]] = {}
        self.shift_of: dict[str, np.ndarray] = {}  # of quantiles
        self._shown = 0

    @property
    def shares(self) -> dict[str, float]:
        """The weights of the candidate of the least loss, among those that may be chosen."""
        return self.shares_of[self._best]

    @property
    def shift(self) -> np.ndarray | None:
        """The numbers that calibrate quantiles of the same candidate."""
        return self.shift_of.get(self._best)

    @property
    def _best(self) -> str:
        trained = [candidate for candidate in self.candidates if candidate["candidate"] in self.shares_of]
        return min(trained, key=lambda candidate: candidate["loss"])["candidate"]

    def add(self, name: str, outputs: np.ndarray, seconds: float) -> None:
        """Measure a candidate's outputs."""
        factor = self.targets.calibrated(outputs)[1]
        self.outputs[name] = outputs
        self._add(name, outputs, {name: factor}, factor, seconds)

    def add_product(self) -> None:
        """Measure the product of the probabilities of both candidates; of numbers, the mean by their precisions."""
        losses = {candidate["candidate"]: candidate["loss"] for candidate in self.candidates}
        if self.targets.kind == "numbers":
            precisions = {name: 1 / max(loss, 1e-12) for name, loss in losses.items()}
            shares = {name: precision / sum(precisions.values()) for name, precision in precisions.items()}
        else:
            shares = {name: self.shares_of[name][name] for name in self.outputs}
        joint = np.sum([share * np.float64(self.outputs[name]) for name, share in shares.items()], axis=0)
        factor = self.targets.calibrated(joint)[1]
        shares = {name: share * factor for name, share in shares.items()}
        self._add(" and ".join(self.outputs), joint, shares, factor, 0.0)

    def among(self, places: np.ndarray) -> _Choice:
        """Return the choice between the same candidates, measured on some of the sequences.

        Shares and shifts stay, because all sequences decided them.
        """
        found = _Choice(self.targets.take(places), self.verbose)
        for name, outputs in self.outputs.items():
            found.outputs[name], shares = outputs[places], self.shares_of[name]
            seconds = self.candidates[len(found.candidates)]["seconds"]
            found._add(name, found.outputs[name], shares, shares[name], seconds)
        found._shown, found.shift_of = len(found.candidates), dict(self.shift_of)
        return found

    @property
    def least_held(self) -> int:
        """The least number of sequences left out that a network needs to be chosen, unless there are no more."""
        return _LEAST_HELD if self.targets.levels is None else _LEAST_FOR_QUANTILES

    def network_is_worth_it(self, comm: Communicator | None) -> bool | None:
        """Return whether a network is clearly better or not worth its cost, or None if more folds shall decide.

        It is better if the mean difference of the losses, on enough sequences to calibrate it, exceeds two standard
        errors.  It is not worth its cost if even a difference larger by one standard error would be small.  Rank
        0 decides.
        """
        first, *others = (candidate["candidate"] for candidate in self.candidates)
        best = min(others, key=lambda name: self.targets.mean(self.losses[name]))
        gains = self.losses[first] - self.losses[best]
        gain, weights = self.targets.mean(gains), self.targets.weights / self.targets.weights.sum()
        error = float(np.sqrt((weights**2 * (gains - gain) ** 2).sum()))
        worth = True if gain > 2 * error and len(gains) >= self.least_held else None
        if gain + error < _LEAST_GAIN * self.targets.mean(self.losses[first]):
            worth = False
        return ranks.from_first(comm, lambda: ({}, worth))[1]

    def keep_first(self) -> None:
        """Choose the first candidate, even if the loss of another is less."""
        first = self.candidates[0]["candidate"]
        self.shares_of = {first: self.shares_of[first]}

    def show(self) -> None:
        """Print the candidates that were not printed before."""
        for candidate in self.candidates[self._shown :] if self.verbose else []:
            name, loss = candidate["candidate"], candidate["loss"]
            where = count(candidate["sequences"], "sequence")
            if self.targets.kind == "numbers":
                measure = f"{'squared error' if self.targets.levels is None else 'quantile loss'} {loss:.3f}"
            else:
                measure = f"log loss {loss:.3f}, {candidate['error']:.1%} wrong"
            print(f"{name}: {measure}, on {where} left out; {candidate['seconds']:.1f} s")
        self._shown = len(self.candidates)

    def _add(self, name: str, outputs: np.ndarray, shares: dict[str, float], factor: float, seconds: float) -> None:
        self.shares_of[name], self.losses[name] = shares, self.targets.losses(factor * outputs)
        if (shift := self.targets.shift(outputs)) is not None:
            self.shift_of[name] = shift
        loss, error = self.targets.mean(self.losses[name]), self.targets.errors(outputs)
        record = {"candidate": name, "loss": loss, "error": error, "sequences": len(outputs), "seconds": seconds}
        self.candidates.append(record | {"chosen": False})

    def agree(self, comm: Communicator | None) -> None:
        """Take the losses, shares and shifts of rank 0, so that all ranks choose alike."""
        state = lambda: (self.shift_of, [self.candidates, self.shares_of])
        self.shift_of, (self.candidates, self.shares_of) = ranks.from_first(comm, state)

    def asks_for_a_network(self, number: int) -> bool:
        """Return whether to train a network: there are enough sequences, and the first candidate makes errors."""
        if number < _LEAST_SEQUENCES:
            reason = f"{count(number, 'sequence')}, fewer than {_LEAST_SEQUENCES}"
        elif self.candidates[0]["error"] < 1e-6:
            reason = f"{self.candidates[0]['candidate']} makes no error"
        else:
            return True
        reason = f"not trained: {reason}"
        self.candidates.append({"candidate": "recurrent", "loss": None, "reason": reason, "chosen": False})
        self._shown += 1
        if self.verbose:
            print(f"recurrent: {reason}")
        return False

    def marked(self) -> list[dict[str, Any]]:
        """Return the candidates; the best so far is marked as chosen."""
        for candidate in self.candidates:
            candidate["chosen"] = candidate["candidate"] == self._best
        return self.candidates

    def close(self) -> None:
        """Print the candidate that was chosen, after those that were not printed before."""
        self.show()
        if self.verbose:
            print("chosen:", self._best)


def _counted(weights: np.ndarray | None, number: int) -> np.ndarray:
    """Return weights, float64, or ones if there are none or all are 0."""
    return np.ones(number) if weights is None or not weights.any() else np.asarray(weights, np.float64)


def _take(indices: np.ndarray, sequences: list[np.ndarray], labels: np.ndarray, weights: Any) -> tuple[Any, ...]:
    """Return some of the sequences, their labels and weights."""
    return take(sequences, indices), labels[indices], None if weights is None else weights[indices]


def _folds(labels: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Return the indices of five parts of the sequences, or of a fifth if there are many; classes have equal shares."""
    order = rng.permutation(len(labels))
    if labels.dtype == np.int64:
        order = order[np.argsort(labels[order], kind="stable")]
    if len(labels) <= MOST_LEFT_OUT:
        return [np.sort(order[k::_FOLDS]) for k in range(min(_FOLDS, len(labels)))]
    held = min(len(labels) // _FOLDS, _MOST_HELD)
    return [np.sort(order[np.linspace(0, len(labels) - 1, held).round().astype(int)])]


def _side_by_side(parts: list[Any]) -> Any:
    """Return arrays as one, with the columns of all; it is sparse if one of them is."""
    if any(map(sparse.issparse, parts)):
        return sparse.csr_array(sparse.hstack(parts))
    return np.concatenate(parts, axis=1)
