"""The base class of the estimators: parameters, fitting, batched predictions, saving."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, is_regressor
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from varlen_rnn import random
from varlen_rnn.checkpoint import save
from varlen_rnn.communicator import Communicator
from varlen_rnn.data import Batches, Dataset, batches
from varlen_rnn.data.labels import IGNORED
from varlen_rnn.errors import (
    CheckpointError,
    DTypeError,
    InputError,
    ShapeError,
    check_choice,
    check_int,
    check_list,
    check_number,
    shown,
)
from varlen_rnn.optim import AdamW, lr_scheduler
from varlen_rnn.sklearn import network, ranks, recipe
from varlen_rnn.sklearn.advice import warn_of_ids
from varlen_rnn.sklearn.inputs import Inputs
from varlen_rnn.sklearn.network import Network, of_batches
from varlen_rnn.sklearn.restored import check_that, finite_of
from varlen_rnn.sklearn.static import joined, static_of, take
from varlen_rnn.tape.modes import evaluating, no_grad
from varlen_rnn.tape.variable import Variable, apply
from varlen_rnn.training import Callback, Checkpoints, EarlyStopping, Progress, Schedule, Trainer

ROWS = 8192  # the number of rows in a batch of predictions


@contextlib.contextmanager
def kept_after(estimator: Any, is_fitted: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Give an estimator its attributes back if a fit inside of a `with` block raises.

    So a fit with wrong labels leaves an estimator as it was, and a network that is half trained does not predict.
    After an interrupt, attributes stay if `is_fitted` says that the estimator predicts already.
    """
    before = dict(vars(estimator))
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) or not is_fitted():
            vars(estimator).clear()
            vars(estimator).update(before)
        raise


class SequenceEstimator(BaseEstimator):
    """The base class of the estimators; subclasses define labels, the loss, and predictions from outputs."""

    _pool: tuple[str, ...] = ("max", "mean", "last")
    _stride = 1  # how many rows become one in the network
    _by_spelling = False  # whether words that occur once are told by their spelling
    _comm: Communicator | None = None  # the ranks of the fit that goes on, if there are several

    def __init__(
        self,
        cell: str = "lstm",
        hidden_size: int = 64,
        *,
        num_layers: int = 1,
        bidirectional: bool = True,
        embedding_size: int = 48,
        dropout: float = 0.3,
        tokens: str = "auto",
        min_count: int = 1,
        max_vocabulary: int | None = None,
        max_epochs: int | str = "auto",
        batch_size: int | str = "auto",
        lr: float = 4e-3,
        weight_decay: float = 0.01,
        schedule: str = "one_cycle",
        clip_norm: float | None = 1.0,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 5,
        random_state: Any = None,
        warm_start: bool = False,
        verbose: int = 0,
        checkpoints: Any = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.cell = cell
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.bidirectional = bidirectional
        self.embedding_size = embedding_size
        self.dropout = dropout
        self.tokens = tokens
        self.min_count = min_count
        self.max_vocabulary = max_vocabulary
        self.max_epochs = max_epochs
        self.batch_size = batch_size
        self.lr = lr
        self.weight_decay = weight_decay
        self.schedule = schedule
        self.clip_norm = clip_norm
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.random_state = random_state
        self.warm_start = warm_start
        self.verbose = verbose
        self.checkpoints = checkpoints
        self.callbacks = callbacks

    module_: Any
    n_iter_: int
    history_: list[dict[str, float]]

    # Methods that subclasses define or override.

    def _learn_labels(self, y: Any, lengths: np.ndarray, classes: Any = None) -> int:
        """Learn the classes or the scale of labels; return the number of outputs of the network."""
        raise NotImplementedError

    def _given_labels(self, X: Any, y: Any) -> Any:
        """Return `y`, or the labels of a data set X."""
        return labels_of_data(X, y)

    def _encode_labels(self, y: Any, lengths: np.ndarray) -> Any:
        """Return labels as the loss takes them: an array with an entry per sequence, or a list of arrays."""
        raise NotImplementedError

    def _losses(self, outputs: Variable, labels: Any) -> Variable:
        """Return the loss of each sequence of a batch; a tagger returns the loss of each row."""
        raise NotImplementedError

    def _weights_of_losses(self, labels: Any, weights: np.ndarray | None) -> np.ndarray | None:
        """Return the weight of each loss, given the weights of sequences; None if all weights are equal."""
        return weights

    def _cut(self, X: Any, y: Any) -> str:
        """Return how texts are divided into tokens."""
        return self.tokens

    def _label_state(self) -> dict[str, Any]:
        """Return the learned properties of labels as values that JSON can hold."""
        raise NotImplementedError

    def _restore_labels(self, state: dict[str, Any]) -> None:
        """Restore the learned properties of labels from the result of `_label_state`."""
        raise NotImplementedError

    def _weights(self, labels: Any, sample_weight: Any) -> np.ndarray | None:
        """Return the weight of each sequence, or None if all weights are equal."""
        if sample_weight is None:
            return None
        try:
            weights = np.asarray(sample_weight, np.float32)
        except (ValueError, TypeError) as error:
            raise DTypeError("sample_weight", expected="one number per sequence", got=shown(sample_weight)) from error
        if weights.shape != (len(labels),):
            expected = f"shape ({len(labels)},), one number per sequence"
            raise ShapeError("sample_weight", expected=expected, got=f"shape {weights.shape}")
        if not (np.isfinite(weights).all() and (weights >= 0).all() and weights.sum() > 0):
            expected = "finite numbers of at least 0, and not all of them zero"
            raise InputError("sample_weight", expected=expected, got=shown(weights))
        return weights

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
        """Train the network on sequences and their labels; return the estimator.

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
            Sequences that are not trained on: the records of epochs have their loss ("valid_loss"), `early_stopping`
            stops by it, and probabilities are calibrated with them.
        comm : Communicator, optional
            The ranks of `distributed.connect()`, which train together.  All call `fit` with the same arguments, and end
            with the same estimator; only rank 0 prints.
        """
        y = self._given_labels(X, y)
        if self.warm_start and self.checkpoints is not None:
            hint = "another fit would find the files of the one before"
            raise InputError("checkpoints", expected="None with warm_start", got=shown(self.checkpoints), hint=hint)
        with kept_after(self), self._on(comm), random.seeded(self._seed()):
            begins = not (self.warm_start and getattr(self, "module_", None) is not None)
            sequences = self._start(X, y, several_classes(X)) if begins else self._rows(X)
            labels, weights = self._encoded(sequences, y, sample_weight)
            if eval_set is None:
                self._train(sequences, labels, weights)
            else:
                every = self._with(eval_set, sequences, labels, weights)
                self._train(*every, num_held=len(every[0]) - len(sequences))
        return self

    @contextlib.contextmanager
    def _on(self, comm: Communicator | None) -> Iterator[None]:
        """Fit on ranks inside of a `with` block."""
        self._comm = ranks.several(comm)
        try:
            yield
        finally:
            if self._comm is not None and getattr(self, "module_", None) is not None:
                self.module_ = copy.deepcopy(self.module_)  # a copy asks no other rank for gradients
            del self._comm

    def _with(self, eval_set: Any, sequences: list[np.ndarray], labels: Any, weights: Any) -> tuple[Any, Any, Any]:
        """Return sequences, labels and weights with the ones in `eval_set` at the end."""
        X, y = _pair(eval_set)
        others = self._rows(X)
        of_others = self._encode_labels(self._given_labels(X, y), np.fromiter(map(len, others), np.int64, len(others)))
        every = labels + of_others if isinstance(labels, list) else np.concatenate([labels, of_others])
        weights = None if weights is None else np.append(weights, np.ones(len(others), weights.dtype))
        return joined(sequences, others), every, weights

    def partial_fit(self, X: Any, y: Any = None, classes: Any = None, sample_weight: Any = None) -> Any:
        """Train for one epoch on these sequences, at a constant learning rate; return the estimator.

        Parameters
        ----------
        X, y, sample_weight
            As in `fit`.
        classes : array, optional
            The classes that occur in any call; a classifier or tagger needs them in the first call.
        """
        y = self._given_labels(X, y)
        first = getattr(self, "module_", None) is None
        with kept_after(self), random.seeded(self._seed() if first else self._seed() + self.n_iter_):
            classes = several_classes(X) if classes is None else classes
            sequences = self._start(X, y, classes) if first else self._rows(X)
            if not hasattr(self, "_optimizer"):
                self._optimizer = self._make_optimizer()
            labels, weights = self._encoded(sequences, y, sample_weight)
            made = self._batches(sequences, np.arange(len(sequences)), seed=self.n_iter_)
            trainer = Trainer(
                self.module_, self._optimizer, self._loss_of(labels, weights), made, clip_norm=self.clip_norm
            )
            trainer.fit(epochs=1)
        self._calibrate(sequences, labels, weights, None)
        self.n_iter_ += 1
        self.history_ = [*self.history_, trainer.history[0] | {"epoch": self.n_iter_}]
        return self

    def _seed(self) -> int:
        """Return the seed of a fit; it is random if `random_state` is None and there are no checkpoints."""
        state = self.random_state
        if state is None and self.checkpoints is not None:  # a resumed fit must draw the same random numbers
            state = 0
        seed = lambda: np.array([check_random_state(state).randint(2**31 - 1)])
        return int(ranks.array_of_first(self._comm, seed)[0])

    def _rows(self, X: Any, inputs: Inputs | None = None) -> list[np.ndarray]:
        """Return the rows of each sequence, or raise if there are no sequences."""
        sequences = (self._inputs if inputs is None else inputs).rows_of(X)
        if not sequences:
            raise ShapeError("X", expected="at least one sequence", got="0 sample(s)")
        return sequences

    def _start(self, X: Any, y: Any, classes: Any = None) -> list[np.ndarray]:
        """Learn the kind of inputs and labels, and create the network; return the rows of the sequences."""
        sequences = self._learn(X, y, classes)
        self._begin(sequences)
        return sequences

    def _learn(self, X: Any, y: Any, classes: Any) -> list[np.ndarray]:
        """Learn the kind of inputs and labels; return the rows of the sequences."""
        self.__dict__.pop("_optimizer", None)
        inputs = Inputs.learn(X, self._cut(X, y), self.min_count, self.max_vocabulary, self._by_spelling)
        sequences = self._rows(X, inputs)
        lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
        num_outputs = self._learn_labels(y, lengths, classes)
        if inputs.kind == "ids" and ranks.is_first(self._comm):
            warn_of_ids(sequences, to_numbers=is_regressor(self))
        self._inputs, self._num_outputs = inputs, num_outputs
        self._stride = recipe.stride(lengths, inputs.kind == "numbers" and bool(self._pool))
        self._tell_features()
        self.vocabulary_ = list(inputs.vocabulary)
        self.history_, self.n_iter_ = [], 0
        return sequences

    def _tell_features(self) -> None:
        for name in ("n_features_in_", "feature_names_in_"):
            self.__dict__.pop(name, None)
        self.__dict__.update(self._inputs.attributes())

    def _begin(self, sequences: list[np.ndarray]) -> None:
        """Create the network for sequences on which it will be trained."""
        self.module_ = self._network()
        if self.module_.standardize is not None:
            self.module_.standardize.fit(sequences)

    def _network(self) -> Network:
        kind = "numbers" if self._inputs.kind == "numbers" else "ids"
        return Network(
            kind, self._inputs.size, self._num_outputs, cell=self.cell, embedding_size=self.embedding_size,
            hidden_size=self.hidden_size, num_layers=self.num_layers, bidirectional=self.bidirectional,
            dropout=self.dropout, pool=self._pool,
            num_static=self._inputs.num_static, stride=self._stride,
        )  # fmt: skip

    def _encoded(self, sequences: list[np.ndarray], y: Any, sample_weight: Any) -> tuple[Any, np.ndarray | None]:
        """Return encoded labels, and the weights of sequences."""
        labels = self._encode_labels(y, np.fromiter(map(len, sequences), np.int64, len(sequences)))
        return labels, self._weights(labels, sample_weight)

    def _train(
        self, sequences: list[np.ndarray], labels: Any, weights: Any, callbacks: Any = None, num_held: int = 0
    ) -> None:
        """Train the network, with the constructor's callbacks if `callbacks` is None.

        The last `num_held` sequences are not trained on.  If it is 0, early stopping holds some back.
        """
        given = self.callbacks if callbacks is None else callbacks
        seed = int(random.generator().integers(2**31))
        train, held = self._parts(len(sequences), labels, seed, num_held)
        made = self._batches(sequences, train, seed)
        self.module_.stretches = recipe.stretches([sequences[k] for k in train], labels, self._convolved())
        loss = self._loss_of(labels, weights)
        optimizer, epochs = self._make_optimizer(), self._epochs(len(train), len(made))
        callbacks = []
        if (scheduler := self._scheduler(optimizer, epochs * len(made))) is not None:
            callbacks.append(Schedule(scheduler))
        if held is not None and self.early_stopping:
            callbacks.append(EarlyStopping("valid_loss", self.n_iter_no_change))
        callbacks += check_list(given, "callbacks", "a list of callbacks")
        if self.checkpoints is not None:
            callbacks.append(Checkpoints(self.checkpoints, every=min(len(made), 200)))
        callbacks += [Progress()] if self.verbose else []
        validate = None if held is None else lambda: self._validate(sequences, labels, weights, held)
        identity = "" if self.checkpoints is None else self._identity(sequences, labels, weights, f"{seed} {num_held}")
        trainer = Trainer(
            self.module_, optimizer, loss, made, validate=validate, clip_norm=self.clip_norm, callbacks=callbacks,
            identity=identity, comm=self._comm,
        )  # fmt: skip
        if self.checkpoints is not None:
            trainer.resume(self.checkpoints)
        trainer.fit(epochs)
        self.history_, self.n_iter_ = trainer.history, trainer.epoch
        if ranks.is_first(self._comm):
            recipe.warn_if_failed(self.history_, self._loss_of_constant(labels, weights))
        self._calibrate(sequences, labels, weights, held)

    def _calibrate(self, sequences: list[np.ndarray], labels: Any, weights: Any, held: np.ndarray | None) -> None:
        """Scale the network's outputs so that probabilities are right on sequences that were held back."""

    def _loss_of_constant(self, labels: Any, weights: np.ndarray | None) -> float:
        weighing = self._weights_of_losses(labels, weights)
        return recipe.loss_of_constant(labels, weighing, getattr(self, "_several", False))

    def _parts(self, count: int, labels: Any, seed: int, num_held: int = 0) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the indices of the training sequences, and of the validation sequences or None."""
        if num_held:
            return np.arange(count - num_held), np.arange(count - num_held, count)
        if not self.early_stopping:
            return np.arange(count), None
        share = check_number(self.validation_fraction, "validation_fraction", "0 to 1", lambda share: 0 < share < 1)
        held = max(1, round(count * share))
        if held >= count:
            expected = "sequences to train on beside those that early stopping holds back"
            raise ShapeError("X", expected=expected, got=f"{count} in all")
        order = np.random.default_rng(seed).permutation(count)
        if getattr(labels, "dtype", None) == np.int64:  # stratified: each class has the same share in both
            order = order[np.argsort(labels[order], kind="stable")]
            chosen = order[np.linspace(0, count - 1, held).round().astype(int)]
            return np.setdiff1d(np.arange(count), chosen), chosen
        return np.sort(order[held:]), order[:held]

    def _batches(self, sequences: list[np.ndarray], train: np.ndarray, seed: int) -> Batches:
        """Return batches of the training sequences, with the indices of the sequences in place of labels."""
        size = self.batch_size
        size = recipe.batch_size(len(train), self._convolved()) if size == "auto" else check_int(size, "batch_size", 1)
        some = take(sequences, train)
        return batches(some, train, static=some.static, batch_size=size, shuffle=True, seed=seed)

    def _convolved(self) -> bool:
        return self.module_.convolutions is not None

    def _epochs(self, count: int, steps_per_epoch: int) -> int:
        if self.max_epochs == "auto":
            return recipe.epochs(count, steps_per_epoch, self._convolved())
        return check_int(self.max_epochs, "max_epochs", 1)

    def _make_optimizer(self) -> AdamW:
        """Return the optimizer; weight decay applies to matrices, but not to biases and embeddings."""
        named = [pair for pair in self.module_.named_parameters() if pair[1].requires_grad]
        weights = [value for name, value in named if len(value.shape) > 1 and "embedding" not in name]
        others = [value for name, value in named if len(value.shape) < 2 or "embedding" in name]
        groups = [{"params": weights, "weight_decay": self.weight_decay}, {"params": others, "weight_decay": 0.0}]
        return AdamW(groups, lr=self.lr, lazy=True)

    def _scheduler(self, optimizer: AdamW, num_steps: int) -> Any:
        check_choice(self.schedule, "schedule", "one_cycle", "cosine", "constant")
        if self.schedule == "cosine":
            return lr_scheduler.CosineAnnealingLR(optimizer, num_steps)
        if self.schedule == "one_cycle":
            return lr_scheduler.OneCycleLR(optimizer, self.lr, total_steps=num_steps + 1, pct_start=0.2)
        return None

    def _loss_of(self, labels: Any, weights: np.ndarray | None) -> Callable[..., Variable]:
        """Return a function that computes the loss of a batch: its sequences, static features and indices."""
        comm = self._comm

        def loss(*batch: Any) -> Variable:
            losses, own = self._losses_and_weights(batch, labels, weights)
            if own is None and comm is None:
                return losses.mean() if len(losses) else losses.sum()  # all sequences of a tagger's batch may be empty
            if own is None and self._pool:
                return losses.mean()
            own = np.ones(len(losses), np.float32) if own is None else own
            return apply("weighted_mean", losses * own, own.sum())  # over all ranks

        return loss

    def _losses_and_weights(self, batch: tuple[Any, ...], labels: Any, weights: Any) -> tuple[Variable, Any]:
        *inputs, numbers = batch
        if isinstance(labels, list):  # a rank's part of a batch may have no sequence
            chosen = [labels[k] for k in numbers] or [labels[0][:0]]
        else:
            chosen = labels[numbers]
        own = self._weights_of_losses(chosen, None if weights is None else weights[numbers])
        return self._losses(self.module_(*inputs), chosen), own

    def _validate(self, sequences: list[np.ndarray], labels: Any, weights: Any, held: np.ndarray) -> dict[str, float]:
        """Return the weighted mean loss of the validation sequences `held`; each rank computes a part."""
        total = mass = 0.0
        some = take(sequences, held)
        for batch in batches(some, held, static=some.static, max_tokens=ROWS, bucket=True, part=self._comm):
            losses, own = self._losses_and_weights(batch, labels, weights)
            found = np.asarray(losses, np.float64)
            own = np.ones(len(found)) if own is None else own.astype(np.float64)
            total, mass = total + float(found @ own), mass + float(own.sum())
        total, mass = ranks.summed(self._comm, total, mass)
        return {"valid_loss": total / mass if mass else 0.0}

    def _loss_on(self, X: Any, y: Any) -> float:
        """Return the mean loss on other sequences, weighted as in the training; y may be None for a data set."""
        sequences = self._rows(X)
        lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
        labels = self._encode_labels(labels_of_data(X, y), lengths)
        with no_grad(), evaluating():
            return self._validate(sequences, labels, None, np.arange(len(sequences)))["valid_loss"]

    def _identity(self, sequences: list[np.ndarray], labels: Any, weights: Any, seed: str) -> str:
        """Return a digest of the settings and data, by which a resumed fit recognises its own checkpoints."""
        digest = hashlib.sha256()
        settings = {name: repr(value) for name, value in self.get_params().items()}
        for name in ("checkpoints", "callbacks", "verbose", "random_state"):
            del settings[name]
        settings["seed"] = seed
        digest.update(json.dumps(settings, sort_keys=True).encode())
        for part in [*sequences, static_of(sequences), *(labels if isinstance(labels, list) else [labels]), weights]:
            array = np.ascontiguousarray(part if part is not None else [])
            digest.update(f"{array.shape}".encode() + array.tobytes())
        return digest.hexdigest()

    # Predictions.

    def _outputs(self, X: Any, executor: Any) -> tuple[list[np.ndarray], np.ndarray]:
        """Return the rows of each sequence, and the outputs (per sequence or row) in the order of X."""
        check_is_fitted(self, "module_")
        sequences = self._rows(X)
        return sequences, self._outputs_of(sequences, executor)

    def _outputs_of(self, sequences: list[np.ndarray], executor: Any) -> np.ndarray:
        """Return the network's outputs, float32."""
        return self._computed(sequences, self._num_outputs, network.outputs_of, executor)

    def _computed(
        self, sequences: list[np.ndarray], width: int, function: Callable[..., np.ndarray], executor: Any
    ) -> np.ndarray:
        """Return the results of a function of the network and batches, in the order of the sequences or rows."""
        by_row = not self._pool
        lengths = np.fromiter(map(len, sequences), np.int64, len(sequences)) if by_row else np.ones(len(sequences), int)
        ends = np.cumsum(lengths)
        outputs = np.empty((int(ends[-1]), width), np.float32)
        made = batches(sequences, static=static_of(sequences), max_tokens=ROWS, bucket=True)
        for number, found in enumerate(of_batches(function, self.module_, made, executor)):
            places = [np.arange(ends[k] - lengths[k], ends[k]) for k in made.indices(number)]
            outputs[np.concatenate(places)] = found
        return outputs

    def read_options(self) -> dict[str, Any]:
        """Return options that make `data.read` encode texts as in the training; {} if inputs are numbers."""
        check_is_fitted(self, "module_")
        if not self.vocabulary_:
            return {}
        tokens = "list" if self._inputs.kind == "tokens" else self._inputs.cut
        if self._inputs.by_spelling:  # needs unknown tokens themselves
            return {"tokens": tokens, "min_count": 1, "max_vocabulary": None}
        return {"tokens": tokens, "vocabulary": self.vocabulary_}

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags, which say which forms of X are accepted."""
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = tags.input_tags.three_d_array = tags.input_tags.string = True
        tags.input_tags.allow_nan = True
        tags.non_deterministic = self.random_state is None
        return tags

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
            if isinstance(value, dict):  # as pairs, because JSON's keys are texts and classes may be numbers
                params[name] = {"pairs": [list(map(plain, pair)) for pair in value.items()]}
            try:
                json.dumps(params[name])
            except (TypeError, ValueError) as error:
                hint = f"set_params({name}=...) replaces it"
                expected = "what JSON can hold"
                raise CheckpointError(f"save, {name}", expected=expected, got=shown(value), hint=hint) from error
        fitted = {"history": self.history_, "n_iter": self.n_iter_, "num_outputs": self._num_outputs}
        fitted["stride"] = self._stride
        save(
            path, labels=self._label_state(), params=params, fitted=fitted, estimator=type(self).__name__,
            inputs=dataclasses.asdict(self._inputs),
            notes=getattr(self, "notes_", None) if notes is None else notes, **self._model_state(),
        )  # fmt: skip

    def _model_state(self) -> dict[str, Any]:
        """Return groups of arrays, and values that JSON can hold, by name."""
        return {"module": self.module_.state_dict(copy=False)}

    def _restore_model(self, saved: dict[str, Any]) -> None:
        """Restore the result of `_model_state`, or raise unless it is the state of the estimator's network."""
        arrays = saved["module"]
        self._check_sizes(arrays)
        self.module_ = self._network()
        self.module_.load_state_dict(arrays)
        for name, variable in [*self.module_.named_parameters(), *self.module_.named_buffers()]:
            finite_of(arrays, name, variable.shape, variable.dtype)
            if name.rpartition(".")[2] in ("scale", "running_var"):
                check_that(arrays[name], arrays[name] > 0, name, "numbers above 0")

    def _check_sizes(self, arrays: dict[str, np.ndarray]) -> None:
        """Raise unless a file's arrays have the sizes of the network, which could otherwise be too large to make."""
        sizes = {"hidden_size": self.hidden_size, "num_layers": self.num_layers, "stride": self._stride}
        for name, size in sizes.items():
            check_int(size, name, 1)
        if self._stride > 1 and not self._pool:
            raise ShapeError("stride", expected="1 for outputs of rows", got=self._stride)
        finite_of(arrays, "output.weight", (self._num_outputs, None))
        if self._inputs.kind != "numbers":
            finite_of(arrays, "embedding.weight", (self._inputs.size, self.embedding_size))
        if self.num_layers > len(arrays) or not any(self.hidden_size in array.shape for array in arrays.values()):
            expected, got = "layers and units as the arrays have", f"{self.num_layers} of {self.hidden_size}"
            raise ShapeError("num_layers, hidden_size", expected=expected, got=got)

    def _restore(self, saved: dict[str, Any]) -> None:
        """Restore the fitted attributes from the arrays and settings that `save` wrote."""
        self._inputs = Inputs.restored(saved["inputs"])
        fitted = saved["fitted"]
        self._num_outputs, self._stride = check_int(fitted["num_outputs"], "num_outputs", 1), fitted["stride"]
        self.history_, self.n_iter_ = fitted["history"], fitted["n_iter"]
        self.vocabulary_ = list(self._inputs.vocabulary)
        self._tell_features()
        self._restore_labels(saved["labels"])
        self._restore_model(saved)
        self.notes_ = saved["notes"]


def _pair(eval_set: Any) -> tuple[Any, Any]:
    """Return the sequences and the labels of an `eval_set`: a pair, a list of one pair, or a data set with labels."""
    if isinstance(eval_set, list) and len(eval_set) == 1:
        (eval_set,) = eval_set
    if isinstance(eval_set, Dataset):
        return eval_set, None
    if not isinstance(eval_set, tuple) or len(eval_set) != 2:
        expected = "a pair of sequences and labels, or a list of one pair"
        raise DTypeError("fit, eval_set", expected=expected, got=shown(eval_set))
    return eval_set


def labels_of_data(X: Any, y: Any) -> Any:
    """Return `y`, or if it is None the labels of the data set `X`, as names of classes instead of indices."""
    if y is not None or not isinstance(X, Dataset) or X.labels is None:
        return y
    if not X.classes:
        return X.labels
    names = np.array(X.classes)
    if X.label_kind == "several classes":
        return X.labels
    if X.label_kind != "classes of rows":
        return names[X.labels]
    return [_names_of(names, np.asarray(labels)) for labels in X.labels]


def _names_of(names: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the name of the class of each row, or None for a row without a class."""
    gaps = labels == IGNORED
    if not gaps.any():
        return names[labels]
    found = names.astype(object)[np.where(gaps, 0, labels)]
    found[gaps] = None
    return found


def several_classes(X: Any) -> list[str] | None:
    """Return the names of the classes if X is a data set with several classes per sequence, otherwise None."""
    return X.classes if isinstance(X, Dataset) and X.label_kind == "several classes" else None


def plain(value: Any) -> Any:
    """Return a NumPy scalar as a Python number; return any other value unchanged."""
    return value.item() if isinstance(value, np.generic) else value
