"""`SequenceEstimator`, the base class: it fits candidates, sums their outputs to predict, and is saved to files."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, is_regressor
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from varlen_rnn import random
from varlen_rnn.checkpoint import save
from varlen_rnn.communicator import Communicator
from varlen_rnn.data import Dataset
from varlen_rnn.errors import CheckpointError, DTypeError, InputError, ShapeError, check_int, shown
from varlen_rnn.sklearn import ranks, recipe
from varlen_rnn.sklearn.advice import warn_of_ids
from varlen_rnn.sklearn.choice import Choice, counted
from varlen_rnn.sklearn.inputs import Inputs
from varlen_rnn.sklearn.labels import Labels, labels_of_data, several_classes, weights_like
from varlen_rnn.sklearn.labels_of_classes import plain
from varlen_rnn.sklearn.options import Options
from varlen_rnn.sklearn.recurrent import Recurrent
from varlen_rnn.sklearn.samples import Samples
from varlen_rnn.sklearn.static import Sequences


@contextlib.contextmanager
def kept_after(estimator: Any, is_fitted: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Restore an estimator's attributes if the fit inside of the `with` block raises.

    So a fit with wrong labels changes nothing, and a network that is half trained does not predict.  After an
    interrupt, attributes are not restored if `is_fitted` says that the estimator can already predict.
    """
    before = dict(vars(estimator))
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) or not is_fitted():
            vars(estimator).clear()
            vars(estimator).update(before)
        raise


def _trains_a_network_only(estimator: Any) -> bool:
    return getattr(estimator, "model", "recurrent") == "recurrent"


class SequenceEstimator(Options, BaseEstimator):
    """An estimator of sequences: it predicts by the weighted sum of its candidates' outputs, plus a shift."""

    _by_spelling = False  # whether rare words share embeddings by spelling
    _inputs: Inputs
    _labels: Any  # a Labels
    _stride: int  # a network replaces this many neighbouring rows by their mean
    _candidates: dict[str, Any]  # by name
    _shares: dict[str, float]  # the weights of the candidates' outputs
    _shift: np.ndarray | None  # added to outputs, to calibrate quantiles
    _records: list[dict[str, Any]]  # the name, loss and time of each candidate
    vocabulary_: list[str]

    # Subclasses define `_learned_labels(y, lengths, classes)`, which returns the Labels of y, and
    # `_restored_labels(state, num_outputs)`.  An estimator with an option `model` has `_choose(data, comm)`.
    _learned_labels: Callable[..., Labels]
    _restored_labels: Callable[..., Labels]
    _choose: Callable[[Samples, Communicator | None], None]

    def _given_labels(self, X: Any, y: Any) -> Any:
        return labels_of_data(X, y)

    def _cut(self, X: Any, y: Any) -> str:
        return self.tokens

    def _model(self) -> str:
        """Return the option `model`, which names the candidates to fit, or raise if it is unknown."""
        return "recurrent"

    # Fitting.

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
            One label per sequence, or for a tagger one per step.  If `X` is a `data.Dataset`, its labels are the
            default.
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
        An interrupt (Ctrl-C) during the training of the network is raised, but if there is another candidate, the
        estimator is fitted: it predicts by the best candidate until then.  Otherwise the estimator stays as it was.
        """
        alone = self._model() == "recurrent"
        self._check_repeats(alone)
        y = self._given_labels(X, y)
        comm = ranks.several(comm)
        with kept_after(self, lambda: not alone and bool(self._records)), random.seeded(self._seed(comm)):
            self._records = []
            begins = not self.warm_start or self._network is None
            sequences = self._learn(X, y, several_classes(X), comm) if begins else self._rows(X)
            data = self._samples(sequences, y, sample_weight)
            if eval_set is not None:
                data = data.holding(*self._evaluated(eval_set))
            if alone or self._labels.by_row:
                self._fit_network(data, comm)
            else:
                self._choose(data, comm)
        return self

    @available_if(_trains_a_network_only)
    def partial_fit(self, X: Any, y: Any = None, classes: Any = None, sample_weight: Any = None) -> Any:
        """Train the network for one epoch on these sequences, at a constant learning rate; return the estimator.

        Of the estimators with an option `model`, only those with `model="recurrent"` have this method.

        Parameters
        ----------
        X, y, sample_weight
            As in `fit`.
        classes : array, optional
            The classes that occur in any call; a classifier or tagger needs them in the first call.
        """
        y = self._given_labels(X, y)
        first = self._network is None
        with kept_after(self), random.seeded(self._seed() if first else self._seed() + self.n_iter_):
            classes = several_classes(X) if classes is None else classes
            sequences = self._learn(X, y, classes) if first else self._rows(X)
            data = self._samples(sequences, y, sample_weight)
            self._begun(data).fit_epoch(data)
        return self

    def _check_repeats(self, alone: bool) -> None:
        """Raise if `warm_start` or `checkpoints` contradicts other options; if `alone`, only a network is fitted."""
        if alone and self.warm_start and self.checkpoints is not None:
            hint = "a second fit would find the checkpoints of the first"
            expected = "None, because of warm_start=True"
            raise InputError("checkpoints", expected=expected, got=shown(self.checkpoints), hint=hint)
        for name, neutral in () if alone else (("warm_start", False), ("checkpoints", None)):
            if (value := getattr(self, name)) not in (neutral, False):
                expected, hint = f"{neutral}, because of model={self._model()!r}", "or pass model='recurrent'"
                raise InputError(name, expected=expected, got=shown(value), hint=hint)

    def _seed(self, comm: Communicator | None = None) -> int:
        """Return the seed of a fit; it is random if `random_state` is None and there are no checkpoints."""
        state = self.random_state
        if state is None and self.checkpoints is not None:  # a resumed fit must draw the same random numbers
            state = 0
        seed = lambda: np.array([check_random_state(state).randint(2**31 - 1)])
        return int(ranks.array_of_first(comm, seed)[0])

    def _rows(self, X: Any, inputs: Inputs | None = None) -> Sequences:
        """Return the rows of each sequence, or raise if there are no sequences."""
        sequences = (self._inputs if inputs is None else inputs).rows_of(X)
        if not sequences:
            raise ShapeError("X", expected="at least one sequence", got="0 sample(s)")
        return sequences

    def _learn(self, X: Any, y: Any, classes: Any, comm: Communicator | None = None) -> Sequences:
        """Learn the kind of inputs and labels, and forget all candidates; return the rows of the sequences."""
        inputs = Inputs.learn(X, self._cut(X, y), self.min_count, self.max_vocabulary, self._by_spelling)
        sequences = self._rows(X, inputs)
        lengths = _lengths_of(sequences)
        labels = self._learned_labels(y, lengths, classes)
        if inputs.kind == "ids" and ranks.is_first(comm):
            warn_of_ids(sequences, to_numbers=is_regressor(self))
        self._stride = recipe.stride(lengths, inputs.kind == "numbers" and not labels.by_row)
        self._candidates = {}
        self._take(inputs, labels)
        return sequences

    def _take(self, inputs: Inputs, labels: Labels) -> None:
        self._inputs, self._labels, self.vocabulary_ = inputs, labels, list(inputs.vocabulary)
        for name in ("n_features_in_", "feature_names_in_"):
            self.__dict__.pop(name, None)
        self.__dict__.update(inputs.attributes() | labels.attributes())

    def _samples(self, sequences: Sequences, y: Any, sample_weight: Any) -> Samples:
        """Return the Samples: sequences, encoded labels and weights; learn the weights of classes from the labels."""
        labels = self._labels.encode(y, _lengths_of(sequences))
        self._labels.weigh(labels, getattr(self, "class_weight", None))
        return Samples(sequences, labels, weights_like(labels, sample_weight))

    def _evaluated(self, eval_set: Any) -> tuple[Sequences, Any]:
        """Return the sequences and the labels of an `eval_set`: a pair, a list of one pair, or a labelled data set."""
        if isinstance(eval_set, list) and len(eval_set) == 1:
            (eval_set,) = eval_set
        eval_set = (eval_set, None) if isinstance(eval_set, Dataset) else eval_set
        if not isinstance(eval_set, tuple) or len(eval_set) != 2:
            expected = "a pair of sequences and labels, or a list of one pair"
            raise DTypeError("fit, eval_set", expected=expected, got=shown(eval_set))
        X, y = eval_set
        sequences = self._rows(X)
        return sequences, self._labels.encode(self._given_labels(X, y), _lengths_of(sequences))

    def _new_network(self) -> Recurrent:
        # A subclass may have a constructor, and so parameters, of its own.
        options = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return Recurrent(SimpleNamespace(**options), self._inputs, self._labels, self._stride)

    def _begun(self, data: Samples) -> Recurrent:
        """Return the network of the previous fit, or a new network; from now on, the estimator predicts by it alone."""
        network, new = self._network, self._new_network()
        if network is None:
            network = new
            network.begin(data.sequences[: data.num_trained])
        network.options = new.options
        self._adopt({"recurrent": network}, {"recurrent": 1.0})
        return network

    def _fit_network(self, data: Samples, comm: Communicator | None) -> None:
        """Fit the network as the only candidate, and calibrate its outputs on sequences that were held back."""
        held = self._begun(data).fit(data, comm)
        if held is not None and self._labels.calibrates:
            self._calibrate(data.take(held), comm)

    def _calibrate(self, data: Samples, comm: Communicator | None) -> None:
        """Calibrate the outputs of the network, the only candidate, on sequences that it was not trained on."""
        network = self._candidates["recurrent"]
        outputs = ranks.array_of_first(comm, lambda: network.outputs(data.sequences))
        own = self._labels.weights_of_losses(data.labels, data.weights)
        if not self._labels.by_row:
            choice = Choice(self._labels.targets(data.labels, counted(own, len(data))), self._verbose(comm))
            choice.add("recurrent", outputs, 0.0)
            choice.agree(comm)
            choice.show()
            self._adopt(self._candidates, choice.shares, choice.marked(), choice.shift)
            return
        places, targets = self._labels.targets_of_rows(data.labels, own)
        if len(places):
            factor = lambda: targets.calibrated(outputs[places])[1]
            shift = lambda: {} if targets.levels is None else {"shift": targets.shift(outputs[places])}
            arrays, share = ranks.from_first(comm, lambda: (shift(), factor()))
            self._adopt(self._candidates, {"recurrent": share}, shift=arrays.get("shift"))

    def _verbose(self, comm: Communicator | None) -> int:
        return self.verbose and ranks.is_first(comm)

    def _adopt(
        self,
        candidates: dict[str, Any],
        shares: dict[str, float],
        records: list[dict[str, Any]] | None = None,
        shift: np.ndarray | None = None,
    ) -> None:
        """From now on, predict by the sum of the candidates' outputs, weighted by `shares`, plus `shift`."""
        self._candidates, self._shares, self._shift = candidates, shares, shift
        self._records = [] if records is None else records

    def _loss_on(self, X: Any, y: Any) -> float:
        """Return the network's mean loss on sequences X with labels y; classes have the weights of the training."""
        sequences = self._rows(X)
        labels = self._labels.encode(labels_of_data(X, y), _lengths_of(sequences))
        return self._candidates["recurrent"].loss_on(Samples(sequences, labels, None))

    # Predictions.

    @property
    def _network(self) -> Recurrent | None:
        return getattr(self, "_candidates", {}).get("recurrent")

    @property
    def module_(self) -> Any:
        """The network, or None if none was chosen."""
        return self._of_network("module", None)

    @property
    def history_(self) -> list[dict[str, float]]:
        """The records of the epochs, as in `training.Trainer.history`; [] if there is no network."""
        return self._of_network("history", [])

    @property
    def n_iter_(self) -> int:
        """The number of epochs trained."""
        return self._of_network("num_epochs", 0)

    def _of_network(self, name: str, otherwise: Any) -> Any:
        if "_candidates" not in vars(self):
            raise AttributeError(
                f"this {type(self).__name__} is not fitted yet, so it has no network and no candidates: call fit first"
            )
        return otherwise if self._network is None else getattr(self._network, name)

    def _outputs(self, X: Any, executor: Any) -> tuple[Sequences, np.ndarray]:
        """Return the rows of each sequence, and the outputs (per sequence or row) in the order of X."""
        check_is_fitted(self, "module_")
        sequences = self._rows(X)
        rows = sum(map(len, sequences)) if self._labels.by_row else len(sequences)
        outputs = np.zeros((rows, self._labels.num_outputs), np.float32)
        for name, share in self._shares.items():
            outputs += np.float32(share) * self._candidates[name].outputs(sequences, executor)
        return sequences, outputs if self._shift is None else outputs + self._shift.astype(np.float32)

    def _by_sequence(self, sequences: Sequences, found: np.ndarray) -> Any:
        """Return predictions of rows as a list with an array per sequence, predictions of sequences unchanged."""
        return np.split(found, np.cumsum(_lengths_of(sequences))[:-1]) if self._labels.by_row else found

    def read_options(self) -> dict[str, Any]:
        """Return options that make `data.read` encode texts as in the training; {} if inputs are numbers."""
        check_is_fitted(self, "module_")
        if not self.vocabulary_:
            return {}
        tokens = "list" if self._inputs.kind == "tokens" else self._inputs.cut
        if self._inputs.by_spelling:  # unknown tokens must keep their spelling
            return {"tokens": tokens, "min_count": 1, "max_vocabulary": None}
        return {"tokens": tokens, "vocabulary": self.vocabulary_}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = tags.input_tags.three_d_array = tags.input_tags.string = True
        tags.input_tags.allow_nan = True
        tags.non_deterministic = self.random_state is None
        return tags

    # Files.

    def save(self, path: Any, notes: Any = None) -> None:
        """Write the fitted estimator to a file, without pickle; `varlen_rnn.sklearn.load` reads it.

        Parameters
        ----------
        path : path
        notes : optional
            Any value that JSON can hold, saved with the model.  The estimator that `load` returns has it as `notes_`.
            By default, the `notes_` of this estimator are saved.

        Raises
        ------
        CheckpointError
            If a parameter cannot be saved, such as a callback of your own; replace it by `set_params` before.
        """
        check_is_fitted(self, "module_")
        params = self.get_params()
        params["checkpoints"] = None if self.checkpoints is None else str(self.checkpoints)
        for name, value in params.items():
            if isinstance(value, (list, tuple, np.ndarray)):
                params[name] = value = list(map(plain, value))
            params[name] = value = plain(value)
            if isinstance(value, dict):  # as pairs, because classes may be numbers, and JSON's keys are texts
                params[name] = {"pairs": [list(map(plain, pair)) for pair in value.items()]}
            try:
                json.dumps(params[name])
            except (TypeError, ValueError) as error:
                hint = f"call set_params({name}=...) with another value first"
                expected = "a value that JSON can hold"
                raise CheckpointError(f"save, {name}", expected=expected, got=shown(value), hint=hint) from error
        fitted = {"history": self.history_, "n_iter": self.n_iter_, "num_outputs": self._labels.num_outputs}
        save(
            path, labels=self._label_state(), params=params, fitted=fitted | {"stride": self._stride},
            estimator=type(self).__name__, inputs=dataclasses.asdict(self._inputs),
            notes=getattr(self, "notes_", None) if notes is None else notes, **self._candidate_states(),
        )  # fmt: skip

    def _label_state(self) -> dict[str, Any]:
        return self._labels.state()

    def _candidate_states(self) -> dict[str, Any]:
        return {} if self._network is None else {"module": self._network.state()}

    def _restore(self, saved: dict[str, Any]) -> None:
        fitted = saved["fitted"]
        num_outputs, self._stride = check_int(fitted["num_outputs"], "num_outputs", 1), fitted["stride"]
        self._take(Inputs.restored(saved["inputs"]), self._restored_labels(saved["labels"], num_outputs))
        self._restore_candidates(saved)
        if self._network is not None:
            self._network.history, self._network.num_epochs = fitted["history"], fitted["n_iter"]
        self.notes_ = saved["notes"]

    def _restore_candidates(self, saved: dict[str, Any]) -> None:
        network = self._new_network()
        network.restore(saved["module"])
        self._adopt({"recurrent": network}, {"recurrent": 1.0})


def _lengths_of(sequences: list[np.ndarray]) -> np.ndarray:
    return np.fromiter(map(len, sequences), np.int64, len(sequences))
