"""`ChoosingEstimator`, the base class of estimators that choose between a network and candidates that cost little."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from varlen_rnn import random
from varlen_rnn.communicator import Communicator
from varlen_rnn.data import Dataset, batches
from varlen_rnn.errors import InputError, check_choice, check_int, listed, shown
from varlen_rnn.sklearn import ranks
from varlen_rnn.sklearn.attributions import attributions, constant, warn_if_incomplete
from varlen_rnn.sklearn.base import SequenceEstimator
from varlen_rnn.sklearn.choice import Choice, Parts, counted
from varlen_rnn.sklearn.described import Described
from varlen_rnn.sklearn.inputs import Inputs, as_sequences
from varlen_rnn.sklearn.ngrams import Text
from varlen_rnn.sklearn.recurrent import ROWS
from varlen_rnn.sklearn.restored import numbers_of, texts_of
from varlen_rnn.sklearn.samples import Samples
from varlen_rnn.sklearn.static import Sequences, static_of, take

MODELS = "auto", "recurrent", "convolutions", "ngrams"


class ChoosingEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, SequenceEstimator):
    """An estimator of one label or number per sequence, with the parameter `model`."""

    model: str

    @property
    def candidates_(self) -> list[dict[str, Any]]:
        """The record of each candidate: its name, loss and seconds, and whether it was chosen."""
        self._of_network("module", None)  # raises before a fit
        return self._records

    def _model(self) -> str:
        return check_choice(self.model, "model", *MODELS)

    def _rows(self, X: Any, inputs: Inputs | None = None) -> Sequences:
        """Return the rows of each sequence; if X has texts, the ids of a text also keep the text (`Text`)."""
        rows = super()._rows(X, inputs)
        if (self._inputs if inputs is None else inputs).kind != "texts" or isinstance(X, Dataset):
            return rows
        kind, texts = as_sequences(X)
        return Sequences(map(Text.of, rows, texts), rows.static) if kind == "texts" else rows

    # Choosing.

    def _choose(self, data: Samples, comm: Communicator | None) -> None:
        """Fit the candidates that `model` names, and choose between them by the loss on sequences left out."""
        self._new_network().check_options()  # wrong options are errors even if no network is trained
        described = Described(self._inputs)
        if self.model not in ("auto", described.name):
            expected = f"'auto', 'recurrent' or {described.name!r}, because X has {self._inputs.kind}"
            raise InputError("model", expected=expected, got=shown(self.model))
        weights = counted(self._labels.weights_of_losses(data.labels, data.weights), len(data))
        data, weights = data.take(np.flatnonzero(weights)), weights[weights != 0]
        targets = self._labels.targets(data.labels, weights)
        rng = np.random.default_rng(int(random.generator().integers(2**31)))
        parts = Parts(data.labels, rng, data.num_trained)
        begun = time.perf_counter()
        found = described.fit_on_first(data.sequences, targets, parts, rng, comm)
        choice = Choice(targets.take(parts.held), self._verbose(comm))
        choice.add(described.name, found, time.perf_counter() - begun)
        choice.agree(comm)
        choice.show()
        self._adopt({described.name: described}, choice.shares, choice.marked(), choice.shift)
        if self.model == "auto" and choice.asks_for_a_network(len(parts.train)):
            choice = self._with_network(choice, data, parts, comm)
            if "recurrent" in choice.shares and self._network is None:
                self._fit_another(data, comm)
            chosen = {name: self._candidates[name] for name in choice.shares}
            self._adopt(chosen, choice.shares, choice.marked(), choice.shift)
        choice.close()

    def _with_network(self, choice: Choice, data: Samples, parts: Parts, comm: Communicator | None) -> Choice:
        """Return the choice after also measuring networks, each on sequences that it was not trained on.

        If the sequences that compare candidates never train (`Parts.apart`), one network is trained, and kept.
        Otherwise, for each fold, a network is trained on all other sequences, and predicts the sequences of the fold.
        Folds are added until the choice is clear.
        """
        begun = time.perf_counter()
        if parts.apart:
            network = self._fit_another(data, comm)
            found = ranks.array_of_first(comm, lambda: network.outputs(take(data.sequences, parts.held)))
            choice.add_network(found, time.perf_counter() - begun, comm)
            return choice
        outputs = np.zeros((len(parts.held), self._labels.num_outputs), np.float32)
        seen = np.zeros(len(parts.held), bool)
        for fold in parts.folds:
            places = np.searchsorted(parts.held, fold)
            outputs[places] = self._outputs_left_out(data, fold, comm)
            seen[places] = True
            found = choice.among(np.flatnonzero(seen))
            found.add_network(outputs[seen], time.perf_counter() - begun, comm)
            worth = found.network_is_worth_it(comm)
            if worth is not None or seen.sum() >= choice.enough_held:
                break
        if worth is False:
            found.keep_first()
        return found

    def _fit_another(self, data: Samples, comm: Communicator | None) -> Any:
        """Fit a network, add it to the candidates, and return it; if the fit raises, the other candidates stay."""
        network = self._new_network()
        network.begin(data.sequences[: data.num_trained])
        self._candidates["recurrent"] = network
        try:
            network.fit(data, comm, alone=False)
        except BaseException:
            del self._candidates["recurrent"]
            raise
        return network

    def _outputs_left_out(self, data: Samples, fold: np.ndarray, comm: Communicator | None) -> np.ndarray:
        """Fit a network on all sequences outside a fold; return its outputs for the sequences of the fold."""
        network, some = self._new_network(), data.take(np.setdiff1d(np.arange(len(data)), fold))
        network.begin(some.sequences)
        network.fit(some, comm, callbacks=(), alone=False)
        return ranks.array_of_first(comm, lambda: network.outputs(take(data.sequences, fold)))

    # Predictions, and files.

    def _chosen(self, method: str) -> list[Any]:
        """Return the candidates that predict; raise if y had numbers of rows, so that sequences have no outputs."""
        check_is_fitted(self, "module_")
        if self._labels.by_row:
            expected, got = "an estimator fitted on one label per sequence", "an estimator fitted on labels of rows"
            raise InputError(method, expected=expected, got=got)
        return [self._candidates[name] for name in self._shares]

    @property
    def _n_features_out(self) -> int:
        return sum(candidate.num_features for candidate in self._chosen("transform"))

    def transform(self, X: Any) -> Any:
        """Return an embedding of each sequence: the numbers from which the chosen models compute their outputs.

        The embedding by a network is the pooled outputs of its layers.  The embedding by a ridge is its features:
        scaled random convolutions, or weights of n-grams, which are sparse.  If both were chosen, both are joined.  So
        the estimator can come before another one in a pipeline.

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
        candidates, sequences = self._chosen("transform"), self._rows(X)
        parts = [candidate.features(sequences) for candidate in candidates]
        return sparse.csr_array(sparse.hstack(parts)) if any(map(sparse.issparse, parts)) else np.hstack(parts)

    def integrated_gradients(self, X: Any, target: Any = None, steps: int = 50) -> list[np.ndarray]:
        """Return how much each row and feature of a sequence adds to its prediction, compared with a baseline.

        The attributions of a sequence add up to the difference of the prediction and the prediction for the baseline
        (completeness), but for the error of integration, which falls with `steps`.  A prediction is the logarithm of
        the probability of a class, as in `predict_log_proba`, or a number, as in `predict` (with quantiles, the median
        before crossing quantiles are sorted).  The baseline of numbers is a sequence of as many rows that have each
        feature's mean over the training, without missing numbers.  The baseline of tokens is an embedding of zeros.
        Static features stay as they are.

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
        self._chosen("integrated_gradients")
        steps = check_int(steps, "integrated_gradients, steps", 1)
        if list(self._shares) != ["recurrent"]:
            expected, got = "an estimator that predicts by a network alone", f"one by {' and '.join(self._shares)}"
            raise InputError("integrated_gradients", expected=expected, got=got, hint="fit with model='recurrent'")
        sequences, outputs = self._outputs(X, None)
        numbers = self._labels.numbers_of_target(target, outputs)
        factor = np.float32(self._shares["recurrent"])
        score = lambda outputs, chosen: self._labels.scores(outputs * factor, chosen)
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

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []
        return tags

    def _candidate_states(self) -> dict[str, Any]:
        state = super()._candidate_states()
        described = next((one for one in self._candidates.values() if isinstance(one, Described)), None)
        arrays, values = ({}, None) if described is None else described.state()
        chosen = {"shares": self._shares, "candidates": self.candidates_, "values": values}
        chosen["shift"] = None if self._shift is None else self._shift.tolist()
        return state | ({"described": arrays} if arrays else {}) | {"chosen": chosen}

    def _restore_candidates(self, saved: dict[str, Any]) -> None:
        chosen = saved["chosen"]
        candidates: dict[str, Any] = {}
        if "module" in saved:
            candidates["recurrent"] = network = self._new_network()
            network.restore(saved["module"])
        if "described" in saved:
            if self._labels.by_row:
                raise InputError("load, a ridge", expected="labels of sequences", got="labels of rows")
            described = Described(self._inputs)
            described.restore(saved["described"], chosen["values"], self._labels.num_outputs)
            candidates[described.name] = described
        names = texts_of(list(chosen["shares"]), "chosen, shares")
        if not names or not candidates.keys() >= set(names):
            raise InputError("chosen, shares", expected=f"some of {listed(list(candidates))}", got=shown(names))
        shares = dict(zip(names, numbers_of(list(chosen["shares"].values()), "chosen, shares"), strict=True))
        shift = chosen["shift"]
        shift = None if shift is None else np.array(numbers_of(shift, "chosen, shift", self._labels.num_outputs))
        self._adopt(candidates, shares, chosen["candidates"], shift)
