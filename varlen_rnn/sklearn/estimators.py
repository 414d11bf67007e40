"""The estimators: `SequenceClassifier`, `SequenceRegressor` and `SequenceTagger`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np
from scipy.special import log_expit, log_softmax
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from varlen_rnn.data import Batches, Dataset
from varlen_rnn.data.frames import entries_of, frame_of
from varlen_rnn.data.labels import IGNORED
from varlen_rnn.data.tables import differences
from varlen_rnn.data.vocabulary import split_text
from varlen_rnn.errors import (
    DTypeError,
    InputError,
    OutOfRangeError,
    ShapeError,
    check_choice,
    check_flag,
    check_int,
    check_number,
    listed,
    shown,
)
from varlen_rnn.nn import LinearChainCRF, functional
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.sklearn import ranks, recipe
from varlen_rnn.sklearn.base import SequenceEstimator, labels_of_data, plain
from varlen_rnn.sklearn.choosing import ChoosingEstimator
from varlen_rnn.sklearn.gaps import as_array, check_one_kind, is_absent, of_one_kind, with_none
from varlen_rnn.sklearn.inputs import as_sequences
from varlen_rnn.sklearn.linear import Targets
from varlen_rnn.sklearn.network import Network
from varlen_rnn.sklearn.quantiles import check_quantiles, places_of, with_median
from varlen_rnn.sklearn.restored import numbers_of, scales_of
from varlen_rnn.sklearn.static import take
from varlen_rnn.tape.variable import Variable

# A tagger learns from each step of a sequence.  max_epochs="auto" trains on _ROWS_OF_TAGGERS of them, for at least
# _LEAST_STEPS updates and _LEAST_EPOCHS epochs.
_ROWS_OF_TAGGERS, _LEAST_STEPS, _LEAST_EPOCHS = 500_000, 300, 6
_MOST_CALIBRATING = 20_000  # steps of held-back sequences, which are enough for one number
_QUANTILES = 0.1, 0.5, 0.9
_CALIBRATE = 5  # one of so many sequences calibrates quantiles of a network that is trained alone


def also_takes_parameters_of(base: type) -> Callable[[Any], Any]:
    """Return a decorator that adds the parameters of `base` to a constructor's signature in place of `**params`.

    scikit-learn finds the parameters of an estimator in this signature.
    """

    def give(init: Any) -> Any:
        own, inherited = (
            list(inspect.signature(function).parameters.values()) for function in (init, vars(base)["__init__"])
        )
        named = {parameter.name: parameter for parameter in (*inherited, *own[:-1])}  # a default of its own wins
        init.__signature__ = inspect.Signature(list(named.values()))
        return init

    return give


def _one_per_sequence(y: Any, number: int) -> np.ndarray:
    """Return labels as an array, or raise unless it has one entry per sequence."""
    _check_given(y, "sequence")
    y = y.value if isinstance(y, Variable) else y
    try:
        labels = as_array(y)
    except DTypeError:
        raise
    except ValueError as error:
        hint = "SequenceTagger takes labels of steps; several classes are columns of 0 and 1 (MultiLabelBinarizer)"
        raise ShapeError("y", expected="entries of one shape", got=shown(y), hint=hint) from error
    if labels.ndim == 0 or len(labels) != number:
        expected, hint = f"{number} entries, one per sequence", None
        if labels.ndim and len(labels) < number:
            hint = "if a frame has a row per step, fit(varlen_rnn.data.read(frame, id=..., time=..., label=...))"
        raise ShapeError("y", expected=expected, got=f"shape {labels.shape}", hint=hint)
    absent = [is_absent(label) for label in labels.ravel()] if labels.dtype.kind in "fOmM" else []
    if any(absent):
        got = "NaN" if isinstance(labels.flat[absent.index(True)], float) else "None"
        raise InputError(f"y, entry {absent.index(True)}", expected="a label", got=got)
    if labels.dtype.kind == "c":
        raise DTypeError("y", expected="labels", got="Complex data not supported")
    return of_one_kind(labels)


def _check_given(y: Any, unit: str) -> None:
    if y is None:
        expected = f"a label per {unit}: requires y to be passed, but the target y is None"
        raise InputError("y", expected=expected, got="None")


def _one_column(y: Any, number: int) -> np.ndarray:
    """Return labels of shape `(sequences,)`; a column `(sequences, 1)` is flattened with scikit-learn's warning."""
    return column_or_1d(_one_per_sequence(y, number), warn=True)


def _classes_of_each(y: Any, number: int) -> np.ndarray:
    """Return labels `(sequences,)`; for several classes, float32 zeros and ones, `(sequences, classes)`."""
    labels = _one_per_sequence(y, number)
    if labels.ndim < 2 or labels.shape[1:] == (1,):
        return _one_column(y, number)
    if labels.ndim > 2 or labels.dtype.kind not in "fiub" or not np.isin(labels, (0, 1)).all():
        expected = "a class per sequence, or a column of 0 and 1 per class"
        raise InputError("y", expected=expected, got=f"{shown(labels)} of shape {labels.shape}")
    return labels.astype(np.float32)


class SequenceClassifier(ClassifierMixin, ChoosingEstimator):
    """Classify sequences of unequal length, without padding, by the best of a few models.

    `y` has one class per sequence.  If a sequence may have several classes, `y` has a column of 0 and 1 for each class,
    and each class has its own probability.

    The candidates are a ridge, on random convolutions of numbers (MiniRocket, arXiv 2012.08791) or on n-grams of texts,
    tokens and ids; a recurrent network; and the product of their probabilities.  The estimator chooses the candidate of
    the least log loss on sequences that it was not trained on: by leave-one-out for the ridge and up to five folds for
    the network, as many as the choice needs; or on a fifth of the sequences if there are more than 1,000.  A network is
    trained only if there are at least 100 sequences and the ridge makes errors.  The same sequences calibrate the
    probabilities (a temperature).

    In the network, tokens are embedded, and numbers are standardised.  A recurrent layer follows; a linear layer maps
    the maximum, the mean and the last row of its outputs for each sequence to the classes.  For numbers, three
    convolutions along each sequence, with normalisation over the rows of a batch, run beside the recurrent layer
    (LSTM-FCN, arXiv 1709.05206).  If sequences of numbers have more than 256 rows in the mean, neighbours become one
    row, their mean, so that about 128 rows are left.  AdamW trains with a learning rate that rises and falls (one
    cycle).  Up to 2,000 sequences of numbers that are not all whole are stretched and scaled in training by random
    factors of about 0.9 to 1.1, so that they are not learned by heart.  No parameter needs to be set.

    Parameters
    ----------
    cell : str
        "lstm", "gru", "rnn", or the name of another cell.
    hidden_size, num_layers, bidirectional, embedding_size, dropout
        Sizes and options of the network, as in `nn.Recurrent` and `nn.Embedding`.
    tokens : {"auto", "characters", "words"}
        How texts are divided into tokens; "auto" means words if the median text has at least ten words, otherwise
        characters.
    min_count, max_vocabulary : int
        Tokens that occur fewer than `min_count` times, or are not among the `max_vocabulary` most frequent, are treated
        as unknown.
    max_epochs : int or "auto"
        "auto" trains for about 2,000 steps, but for at least 6 and at most 200 epochs.  With numbers, it trains for 600
        steps, or for 25 times the root of the number of sequences (at most 2,000), in at most 400 epochs.
    batch_size : int or "auto"
        Sequences per step; "auto" means a fortieth of all sequences, but at least 8 and at most 64.  With numbers, it
        means at least 16, and all batches have about the same size.
    lr, weight_decay, clip_norm : float
        Learning rate and weight decay of AdamW, and the largest norm of the gradient, above which it is scaled down.
    schedule : {"one_cycle", "cosine", "constant"}
        How the learning rate changes during training.
    model : {"auto", "recurrent", "convolutions", "ngrams"}
        "auto" chooses.  "recurrent" always trains the network, on all sequences.  Its probabilities are calibrated with
        `early_stopping` or `eval_set` only, which leave sequences out of the training.  "convolutions" is for numbers,
        "ngrams" for other inputs.  All parameters but `tokens`, `min_count`, `max_vocabulary`, `class_weight`,
        `random_state` and `verbose` govern the network.  `warm_start`, `checkpoints` and `partial_fit` need
        "recurrent".
    class_weight : dict, "balanced" or None
        The weight of each class in the loss.
    early_stopping : bool
        Whether to stop when the loss on a validation set has not fallen for `n_iter_no_change` epochs, and to use the
        weights of the best epoch.  The validation set is the `eval_set` of `fit`, or otherwise the share
        `validation_fraction` of the sequences.
    random_state : int, RandomState or None
        With an int, every fit gives the same result, bit for bit.
    warm_start : bool
        Whether `fit` starts from the weights of the previous fit.
    verbose : int
        1 or more prints the candidates and shows a progress bar (`training.Progress`); 0 shows nothing.
    checkpoints : path, optional
        A folder for checkpoints.  If a fit is killed, the next call of `fit` continues from the last checkpoint and
        ends with the same bits.  With `checkpoints`, a `random_state` of None means 0.
    callbacks : list of training.Callback

    Attributes
    ----------
    classes_ : array
    candidates_ : list of dict
        For each candidate its name ("candidate"), "loss" and "error" on sequences left out, the number of these
        "sequences", "seconds", and whether it was "chosen"; or the "reason" why it was not trained.
    module_ : nn.Module or None
        The network, or None if none was chosen; then `history_` is empty.
    history_ : list of dict
        The records of the epochs, as in `training.Trainer.history`.
    n_iter_ : int
        The number of epochs trained.
    n_features_in_ : int
        Features of a row, if inputs are numbers.
    vocabulary_ : list of str

    Warns
    -----
    ConvergenceWarning
        scikit-learn's, with advice, if after 100 steps or more the training loss is hardly below the loss of a constant
        prediction, or has risen far above the loss of the best epoch.

    Examples
    --------
    >>> texts = ["a b", "b a a", "c", "c d d", "d c"] * 8
    >>> model = SequenceClassifier("gru", 8, max_epochs=10, random_state=0).fit(texts, [0, 0, 1, 1, 1] * 8)
    >>> model.predict(["b b", "d d c"])
    array([0, 1])
    """

    @also_takes_parameters_of(SequenceEstimator)
    def __init__(
        self,
        cell: str = "lstm",
        hidden_size: int = 64,
        *,
        model: str = "auto",
        class_weight: Any = None,
        **params: Any,
    ) -> None:
        SequenceEstimator.__init__(self, cell, hidden_size, **params)
        self.model = model
        self.class_weight = class_weight

    def _learn_labels(self, y: Any, lengths: np.ndarray, classes: Any = None) -> int:
        labels = _classes_of_each(y, len(lengths))
        self._several = labels.ndim == 2
        if self._several:
            self.classes_ = np.arange(labels.shape[1]) if classes is None else np.asarray(classes)
            if self.class_weight is not None:
                raise InputError("class_weight", expected="None where a sequence has several classes", got=shown(y))
        else:
            _check_classes(labels)
            self.classes_ = _classes_among(labels if classes is None else classes)
        return len(self.classes_)

    def _given_labels(self, X: Any, y: Any) -> Any:
        if y is None and isinstance(X, Dataset) and X.label_kind == "classes of rows":
            differ = [len(set(np.ravel(labels).tolist())) > 1 for labels in X.labels or ()]
            got = differences(X.ids or list(map(str, range(len(X)))), differ) if any(differ) else "classes of rows"
            hint = "label_kind='classes' of data.read names rows that differ; SequenceTagger learns classes of rows"
            raise InputError("X, labels of the data set", expected="a class per sequence", got=got, hint=hint)
        return super()._given_labels(X, y)

    def _encode_labels(self, y: Any, lengths: np.ndarray) -> np.ndarray:
        labels = _classes_of_each(y, len(lengths))
        if labels.shape[1:] != ((len(self.classes_),) if self._several else ()):
            expected = f"a column for each of {len(self.classes_)} classes" if self._several else "a class per sequence"
            raise ShapeError("y", expected=f"{expected}, as in the first fit", got=f"shape {labels.shape}")
        return labels if self._several else _numbers_of(labels, self.classes_)

    def _weights(self, labels: np.ndarray, sample_weight: Any) -> np.ndarray | None:
        if self.class_weight is not None:
            self._class_weights = _class_weights(self.class_weight, self.classes_, labels)
        return super()._weights(labels, sample_weight)

    def _weights_of_losses(self, labels: np.ndarray, weights: np.ndarray | None) -> np.ndarray | None:
        if self.class_weight is None:
            return weights
        by_class = self._class_weights[labels]
        return by_class if weights is None else by_class * weights

    def _targets(self, labels: np.ndarray, weights: np.ndarray) -> Targets:
        own = labels if self._several else labels[:, None] == np.arange(len(self.classes_))
        return Targets(2.0 * own - 1, "several classes" if self._several else "classes", weights)

    def _losses(self, outputs: Variable, labels: np.ndarray) -> Variable:
        if self._several:
            return functional.binary_cross_entropy_with_logits(outputs, labels, reduction="none").mean(axis=1)
        return functional.cross_entropy(outputs, labels, reduction="none")

    def _numbers_of_targets(self, target: Any, sequences: list[np.ndarray]) -> np.ndarray:
        if target is None:
            return self._outputs_of(sequences, None).argmax(axis=1)
        numbers = [k for k, name in enumerate(self.classes_.tolist()) if np.isscalar(target) and name == target]
        if not numbers:
            expected = f"one of the classes, {listed(self.classes_.tolist())}"
            raise InputError("integrated_gradients, target", expected=expected, got=shown(target))
        return np.full(len(sequences), numbers[0])

    def _scores(self, outputs: Variable, numbers: np.ndarray) -> Variable:
        if self._several:
            return functional.log_sigmoid(_chosen(outputs, numbers))
        return -functional.cross_entropy(outputs, numbers, reduction="none")

    def predict_proba(self, X: Any, executor: Executor | None = None) -> np.ndarray:
        """Return the probability of each class, shape `(sequences, classes)`, in the order of `classes_`.

        Parameters
        ----------
        X : sequences
            As in `fit`.
        executor : concurrent.futures.Executor, optional
            It computes parts of X at the same time, with the same results: processes, Dask, an MPI pool.
        """
        outputs = self._outputs(X, executor)[1]
        return np.asarray(functional.sigmoid(outputs)) if self._several else _softmax(outputs)

    def predict_log_proba(self, X: Any, executor: Executor | None = None) -> np.ndarray:
        """Return the logarithms of the probabilities that `predict_proba` returns, which do not become minus infinity.

        Parameters
        ----------
        X : sequences
            As in `fit`.
        executor : concurrent.futures.Executor, optional
            As in `predict_proba`.
        """
        outputs = self._outputs(X, executor)[1]
        return log_expit(outputs) if self._several else log_softmax(outputs, axis=1)

    def decision_function(self, X: Any, executor: Executor | None = None) -> np.ndarray:
        """Return scores, shape `(sequences, classes)`; for two classes `(sequences,)`, positive for `classes_[1]`.

        The probabilities are their softmax, or sigmoid if there are two classes or a sequence may have several.

        Parameters
        ----------
        X : sequences
            As in `fit`.
        executor : concurrent.futures.Executor, optional
            As in `predict_proba`.
        """
        outputs = self._outputs(X, executor)[1]
        return outputs[:, 1] - outputs[:, 0] if len(self.classes_) == 2 and not self._several else outputs

    def predict(self, X: Any, executor: Executor | None = None) -> np.ndarray:
        """Return the most probable class of each sequence; for several classes, 0 or 1 for each class.

        Parameters
        ----------
        X : sequences
            As in `fit`.
        executor : concurrent.futures.Executor, optional
            It computes parts of X at the same time, with the same results: processes, Dask, an MPI pool.
        """
        outputs = self._outputs(X, executor)[1]
        return (outputs > 0).astype(np.int64) if self._several else self.classes_[outputs.argmax(axis=1)]

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the share of sequences whose class, or all of whose classes, are predicted correctly."""
        found = self.predict(X)
        wanted = _classes_of_each(self._given_labels(X, y), len(found))
        return accuracy_score(wanted, found, sample_weight=sample_weight)

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags, which say that a sequence may have several classes."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    def _label_state(self) -> dict[str, Any]:
        return {"classes": _saved_classes(self.classes_), "several": self._several}

    def _restore_labels(self, state: dict[str, Any]) -> None:
        self.classes_ = _classes_of(state["classes"], self._num_outputs)
        self._several = check_flag(state["several"], "labels, several")


class SequenceRegressor(RegressorMixin, ChoosingEstimator):
    """Predict numbers from sequences of unequal length, without padding, by the best of a few models.

    `y` has one or more numbers per sequence.  If it is a list of arrays as long as the sequences, it has a number per
    row; then `predict` returns such a list, and the estimator is always a network, without convolutions.  A row whose
    number is None or NaN does not count.

    Targets are standardised.  In place of the product of probabilities, the mean of both predictions is weighted by
    their precisions (the inverse losses).  The network, parameters and attributes are as in `SequenceClassifier`,
    except for `class_weight` and `classes_`.  Sequences are never stretched, because a number may depend on their
    length.

    Parameters
    ----------
    loss : {"squared", "mae", "quantile"}
        "squared", the squared error, predicts means; "mae", the mean absolute error, medians; "quantile", the pinball
        loss, `quantiles`, and `predict` returns medians.  The last two are calibrated on sequences left out: those that
        choose between models, or with `model="recurrent"` and for numbers of rows a fifth that the network is not
        trained on (with `early_stopping` the validation set, with `eval_set` its sequences).  A share of about `q` of
        new numbers then lies below the quantile `q` (conformalized quantile regression, arXiv 1905.03222).
        `partial_fit` does not calibrate.  scikit-learn's names "squared_error" and "absolute_error" are taken, too.
    quantiles : list of float
        Rising numbers between 0 and 1 for `loss="quantile"`; the default is an interval of 80 % and the median.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = [rng.random(length) for length in rng.integers(1, 9, size=64)]
    >>> model = SequenceRegressor("gru", 8, random_state=0).fit(X, [x.mean() for x in X])
    >>> model.score(X, [x.mean() for x in X]) > 0.9
    True

    An interval for each sequence, and a number for each row:

    >>> model = SequenceRegressor("gru", 8, loss="quantile", random_state=0).fit(X, [len(x) + x[0] for x in X])
    >>> low, median, high = model.predict_quantiles(X).T
    >>> bool((low <= median).all() and (median <= high).all())
    True
    >>> model = SequenceRegressor("gru", 8, max_epochs=5, random_state=0).fit(X, [np.cumsum(x) for x in X])
    >>> [found.shape for found in model.predict(X[:2])] == [x.shape for x in X[:2]]
    True
    """

    @also_takes_parameters_of(SequenceEstimator)
    def __init__(
        self,
        cell: str = "lstm",
        hidden_size: int = 64,
        *,
        model: str = "auto",
        loss: str = "squared",
        quantiles: Sequence[float] = _QUANTILES,
        **params: Any,
    ) -> None:
        SequenceEstimator.__init__(self, cell, hidden_size, **params)
        self.model = model
        self.loss = loss
        self.quantiles = quantiles

    def _learn_labels(self, y: Any, lengths: np.ndarray, classes: Any = None) -> int:
        quantiles = check_quantiles(self.quantiles)
        levels = {"squared": [], "mae": [0.5], "quantile": with_median(quantiles)}
        levels |= {"squared_error": [], "absolute_error": [0.5]}  # scikit-learn's names
        self._levels = levels[check_choice(self.loss, "loss", *levels)]
        if self.loss != "quantile" and tuple(self.quantiles) != _QUANTILES:
            expected = f"{_QUANTILES}, the default, with loss={self.loss!r}"
            raise InputError("quantiles", expected=expected, got=shown(self.quantiles), hint="loss='quantile'")
        self._pool = () if _are_of_rows(y, lengths) else SequenceEstimator._pool
        targets = self._numbers(y, len(lengths)) if self._pool else np.concatenate(self._numbers_of_rows(y, lengths))
        targets = targets[~np.isnan(targets).any(axis=1)]
        if not len(targets):
            raise InputError("y", expected="numbers of some rows", got="none")
        self._mean, self._scale = targets.mean(axis=0), targets.std(axis=0)
        if not np.isfinite(self._scale).all():
            raise InputError("y", expected="numbers whose variance float64 holds", got=shown(y))
        self._scale[self._scale == 0] = 1.0
        self._flat = not self._pool or np.asarray(y).ndim == 1
        return targets.shape[1] * max(1, len(self._levels))

    def _numbers(self, y: Any, number: int) -> np.ndarray:
        """Return float64 targets, shape `(sequences, targets)`."""
        targets = _one_per_sequence(y, number)
        if targets.dtype.kind not in "fiub":
            try:
                targets = targets.astype(np.float64)
            except (ValueError, TypeError) as error:
                raise DTypeError("y", expected="numbers", got=shown(y)) from error
        if targets.ndim > 2 or not np.isfinite(targets).all():
            expected = "finite numbers of shape (sequences,) or (sequences, targets)"
            raise InputError("y", expected=expected, got=f"shape {targets.shape}, NaN or infinity")
        return targets.reshape(number, -1).astype(np.float64)

    def _numbers_of_rows(self, y: Any, lengths: np.ndarray) -> list[np.ndarray]:
        """Return float64 targets of the rows of each sequence, `(rows, 1)`; NaN for a row without a number."""
        found = []
        for number, numbers in enumerate(_one_per_step(y, lengths)):
            try:
                targets = np.asarray(numbers, np.float64)
            except (ValueError, TypeError) as error:
                raise DTypeError(f"y, sequence {number}", expected="numbers", got=shown(numbers)) from error
            if np.isinf(targets).any():
                expected = "finite numbers, or None for a row without one"
                raise InputError(f"y, sequence {number}", expected=expected, got="infinity")
            found.append(targets[:, None])
        return found

    def _encode_labels(self, y: Any, lengths: np.ndarray) -> np.ndarray | list[np.ndarray]:
        if not self._pool:
            return [((own - self._mean) / self._scale).astype(np.float32) for own in self._numbers_of_rows(y, lengths)]
        if _are_of_rows(y, lengths):
            raise ShapeError("y", expected="numbers of sequences, as in the first fit", got="numbers of rows")
        targets = self._numbers(y, len(lengths))
        if targets.shape[1] != len(self._mean):
            raise ShapeError("y", expected=f"{len(self._mean)} targets, as in the first fit", got=targets.shape[1])
        return ((targets - self._mean) / self._scale).astype(np.float32)

    def _targets(self, labels: np.ndarray, weights: np.ndarray) -> Targets:
        values = np.repeat(labels.astype(np.float64), max(1, len(self._levels)), axis=1)
        levels = np.tile(self._levels, labels.shape[1]) if self._levels else None
        return Targets(values, "numbers", weights, levels)

    def _losses(self, outputs: Variable, labels: np.ndarray | list[np.ndarray]) -> Variable:
        values = np.nan_to_num(np.concatenate(labels)) if isinstance(labels, list) else labels
        if not self._levels:
            return functional.mse_loss(outputs, values, reduction="none").mean(axis=1)
        columns = outputs.reshape(-1, len(self._levels))  # a row for each target
        losses = functional.quantile_loss(columns, values.reshape(-1), self._levels, "none")
        return losses.reshape(len(values), outputs.shape[1]).mean(axis=1)

    def _numbers_of_targets(self, target: Any, sequences: list[np.ndarray]) -> np.ndarray:
        number = 0 if target is None else check_int(target, "integrated_gradients, target", 0)
        if number >= len(self._mean):
            expected = f"less than {len(self._mean)}, the number of targets"
            raise OutOfRangeError("integrated_gradients, target", expected=expected, got=number)
        median = number * len(self._levels) + self._levels.index(0.5) if self._levels else number
        return np.full(len(sequences), median)

    def _scores(self, outputs: Variable, numbers: np.ndarray) -> Variable:
        return _chosen(outputs, numbers) * self._scale[numbers // max(1, len(self._levels))].astype(np.float32)

    def _weights_of_losses(self, labels: Any, weights: np.ndarray | None) -> np.ndarray | None:
        if self._pool:
            return weights
        by_row = None if weights is None else np.repeat(weights, list(map(len, labels)))
        gone = np.isnan(np.concatenate(labels)[:, 0])
        if not gone.any():
            return by_row
        return np.where(gone, np.float32(0), np.float32(1) if by_row is None else by_row)

    def _loss_of_constant(self, labels: Any, weights: np.ndarray | None) -> float:
        own = self._weights_of_losses(labels, weights)
        values = labels if self._pool else np.nan_to_num(np.concatenate(labels))
        if not self._levels:
            return recipe.loss_of_constant(values, own, several=False)
        targets = self._targets(values, np.ones(len(values)) if own is None else own)
        return targets.errors(np.zeros_like(targets.values))

    def _choose(
        self, sequences: list[np.ndarray], labels: Any, weights: np.ndarray | None, number: int | None = None
    ) -> None:
        if self._pool:
            super()._choose(sequences, labels, weights, number)
            return
        if self.model != "auto":
            expected = "'auto' or 'recurrent' for numbers of rows"
            raise InputError("model", expected=expected, got=shown(self.model))
        number = len(sequences) if number is None else number
        self._adopt({"recurrent": 1.0}, [])
        self._begin(sequences[:number])
        self._train(sequences, labels, weights, num_held=len(sequences) - number)

    def _parts(self, count: int, labels: Any, seed: int, num_held: int = 0) -> tuple[np.ndarray, np.ndarray | None]:
        calibrates = bool(self._levels) and (self.model == "recurrent" or not self._pool)
        if num_held or self.early_stopping or not calibrates or count < _CALIBRATE:
            return super()._parts(count, labels, seed, num_held)
        order = np.random.default_rng(seed).permutation(count)
        held = count // _CALIBRATE
        return np.sort(order[held:]), np.sort(order[:held])

    def _calibrate(self, sequences: list[np.ndarray], labels: Any, weights: Any, held: np.ndarray | None) -> None:
        if self._pool:
            super()._calibrate(sequences, labels, weights, held)
        elif held is not None and self._levels:
            outputs = self._network_outputs(take(sequences, held))
            chosen = [labels[k] for k in held]
            own = self._weights_of_losses(chosen, None if weights is None else weights[held])
            values = np.concatenate(chosen)
            there, own = ~np.isnan(values[:, 0]), np.ones(len(values)) if own is None else own
            outputs, targets = outputs[there], self._targets(values[there], own[there])
            self._shift = ranks.array_of_first(self._comm, lambda: np.asarray(targets.shift(outputs)))

    def predict(self, X: Any, executor: Executor | None = None) -> np.ndarray | list[np.ndarray]:
        """Return the predictions for each sequence, float64, shape `(sequences,)` or `(sequences, targets)`.

        If the training had numbers of rows, the result is a list with an array of shape `(rows,)` for each sequence.

        Parameters
        ----------
        X : sequences
            As in `fit`.
        executor : concurrent.futures.Executor, optional
            It computes parts of X at the same time, with the same results: processes, Dask, an MPI pool.
        """
        sequences, found = self._found(X, executor)
        return self._shaped(sequences, found[:, :, self._levels.index(0.5) if self._levels else 0])

    @available_if(lambda self: self.loss == "quantile")
    def predict_quantiles(self, X: Any, executor: Executor | None = None) -> np.ndarray | list[np.ndarray]:
        """Return the quantiles of each sequence, float64, `(sequences, quantiles)`; only with `loss="quantile"`.

        A later quantile is never less than one before it.  With several targets, the shape is `(sequences, targets,
        quantiles)`.  If the training had numbers of rows, the result is a list of arrays `(rows, quantiles)`.

        Parameters
        ----------
        X : sequences
            As in `fit`.
        executor : concurrent.futures.Executor, optional
            As in `predict`.
        """
        sequences, found = self._found(X, executor)
        chosen = places_of(self.quantiles, self._levels)
        return self._shaped(sequences, found[:, :, chosen])

    def _found(self, X: Any, executor: Any) -> tuple[list[np.ndarray], np.ndarray]:
        """Return sequences, and their predictions, `(sequences or rows, targets, quantiles)`, in the unit of y."""
        sequences, outputs = self._outputs(X, executor)
        levels = max(1, len(self._levels))
        found = outputs.reshape(len(outputs), len(self._mean), levels) * self._scale[:, None] + self._mean[:, None]
        return sequences, np.sort(found, axis=2)

    def _shaped(self, sequences: list[np.ndarray], found: np.ndarray) -> np.ndarray | list[np.ndarray]:
        found = found[:, 0] if self._flat else found
        return found if self._pool else np.split(found, np.cumsum(list(map(len, sequences)))[:-1])

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the coefficient of determination, R2."""
        y = labels_of_data(X, y)
        if not hasattr(self, "module_") or self._pool:
            return super().score(X, y, sample_weight)
        found = self.predict(X)
        lengths = np.fromiter(map(len, found), np.int64, len(found))
        weights = self._weights(found, sample_weight)
        wanted = np.concatenate(self._numbers_of_rows(y, lengths))[:, 0]
        there, rows = ~np.isnan(wanted), None if weights is None else np.repeat(weights, lengths)
        weights = None if rows is None else rows[there]
        return r2_score(wanted[there], np.concatenate(found)[there], sample_weight=weights)

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags, which say that there may be several targets."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _label_state(self) -> dict[str, Any]:
        state = {"mean": self._mean.tolist(), "scale": self._scale.tolist(), "flat": self._flat}
        return state | {"levels": self._levels, "of_rows": not self._pool}

    def _restore_labels(self, state: dict[str, Any]) -> None:
        self._levels = check_quantiles(state["levels"]) if state["levels"] else []
        if self._levels and 0.5 not in self._levels:
            raise InputError("labels, levels", expected="0.5 among them", got=shown(self._levels))
        targets = self._num_outputs // max(1, len(self._levels))
        if targets * max(1, len(self._levels)) != self._num_outputs:
            raise InputError("labels, levels", expected=f"a divisor of {self._num_outputs}", got=len(self._levels))
        self._mean = np.array(numbers_of(state["mean"], "labels, mean", targets))
        self._scale = np.array(scales_of(state["scale"], "labels, scale", targets))
        self._flat = check_flag(state["flat"], "labels, flat")
        self._pool = () if check_flag(state["of_rows"], "labels, of_rows") else SequenceEstimator._pool
        if self._flat and targets > 1:
            raise InputError("labels, flat", expected="one target", got=targets)


class SequenceTagger(ClassifierMixin, SequenceEstimator):
    """Classify every step of sequences of unequal length with a recurrent network that is trained without padding.

    `y` is a list of arrays with one label per step; a step whose label is None or NaN does not count.  Parameters and
    attributes are as in `SequenceClassifier`; there are no convolutions.  `class_weight` applies to steps,
    `sample_weight` to sequences.  `tokens="auto"` means characters if each character has a label, otherwise words.
    Words and tokens that occur once in the training share an embedding with unknown tokens of the same spelling:
    how they begin, the last two letters, capitals and digits.  `max_epochs="auto"` trains until about 500,000 steps
    of sequences have passed.

    With `crf=True`, a conditional random field chooses the classes of all steps of a sequence together (Lafferty,
    McCallum and Pereira, 2001): each pair of neighbours has a trained score.  `predict` returns the most probable
    labelling (Viterbi, 1967), `predict_proba` the probability of each class over all labellings.  Each step needs a
    label, and `class_weight` must be None.

    Probabilities are calibrated (a temperature) if sequences are held back, by `early_stopping` or `eval_set`, and if
    there is no field.

    Examples
    --------
    >>> X = [list("abba"), list("b"), list("aab")] * 8
    >>> y = [[token == "a" for token in tokens] for tokens in X]
    >>> model = SequenceTagger("gru", 8, random_state=0, max_epochs=20).fit(X, y)
    >>> model.predict([list("ab")])
    [array([ True, False])]
    """

    _pool = ()
    _by_spelling = True
    _factor = 1.0  # of the network's outputs

    @also_takes_parameters_of(SequenceEstimator)
    def __init__(
        self,
        cell: str = "lstm",
        hidden_size: int = 64,
        *,
        lr: float = 1e-2,
        crf: bool = False,
        class_weight: Any = None,
        **params: Any,
    ) -> None:
        SequenceEstimator.__init__(self, cell, hidden_size, lr=lr, **params)
        self.crf = crf
        self.class_weight = class_weight

    def _network(self) -> Network:
        network = super()._network()
        if check_flag(self.crf, "crf"):
            network.crf = LinearChainCRF(self._num_outputs)
        return network

    def _batches(self, sequences: list[np.ndarray], train: np.ndarray, seed: int) -> Batches:
        self._rows_per_epoch = sum(len(sequences[k]) for k in train)
        return super()._batches(sequences, train, seed)

    def _epochs(self, count: int, steps_per_epoch: int) -> int:
        most = super()._epochs(count, steps_per_epoch)
        if self.max_epochs != "auto":
            return most
        least = min(most, max(_LEAST_EPOCHS, math.ceil(_LEAST_STEPS / steps_per_epoch)))
        return min(most, max(least, math.ceil(_ROWS_OF_TAGGERS / max(1, self._rows_per_epoch))))

    def _cut(self, X: Any, y: Any) -> str:
        if self.tokens != "auto" or not hasattr(y, "__len__") or as_sequences(X)[0] != "texts":
            return self.tokens
        pairs = list(zip(as_sequences(X)[1], _as_lists(y), strict=False))
        fits = lambda text, labels, cut: hasattr(labels, "__len__") and len(labels) == len(split_text(text, cut))
        count = lambda cut: sum(fits(text, labels, cut) for text, labels in pairs)
        # A few labels may be wrong: the error names their sequences.
        return "characters" if count("characters") >= max(1, count("words")) else "words"

    def _learn_labels(self, y: Any, lengths: np.ndarray, classes: Any = None) -> int:
        labels = np.concatenate(_one_per_step(y, lengths))
        known = of_one_kind(labels[_have_labels(labels)])
        if len(known):
            _check_classes(known)
        self.classes_ = _classes_among(known if classes is None else classes)
        if not len(self.classes_):
            raise InputError("y", expected="labels of some steps", got="none")
        return len(self.classes_)

    def _encode_labels(self, y: Any, lengths: np.ndarray) -> list[np.ndarray]:
        found = []
        for number, labels in enumerate(_one_per_step(y, lengths)):
            there = _have_labels(labels)
            if self.crf and not there.all():
                expected, hint = "a label for each step with crf=True", "crf=False ignores steps without a label"
                raise InputError(f"y, sequence {number}", expected=expected, got="None", hint=hint)
            numbers = np.full(len(labels), IGNORED, np.int64)
            if there.any():
                numbers[there] = _numbers_of(of_one_kind(labels[there]), self.classes_)
            found.append(numbers)
        return found

    def _weights(self, labels: list[np.ndarray], sample_weight: Any) -> np.ndarray | None:
        if self.class_weight is not None and self.crf:
            hint = "a field scores the labels of all steps of a sequence together"
            raise InputError("class_weight", expected="None with crf=True", got=shown(self.class_weight), hint=hint)
        if self.class_weight is not None:
            known = np.concatenate(labels)
            self._class_weights = _class_weights(self.class_weight, self.classes_, known[known != IGNORED])
        return super()._weights(labels, sample_weight)

    def _losses(self, outputs: Variable, labels: list[np.ndarray]) -> Variable:
        if not self.crf:
            return functional.cross_entropy(outputs, np.concatenate(labels), reduction="none")
        steps = np.fromiter((max(1, len(some)) for some in labels), np.float32, len(labels))
        return self.module_.crf(outputs, np.concatenate(labels)) / steps

    def _weights_of_losses(self, labels: list[np.ndarray], weights: np.ndarray | None) -> np.ndarray | None:
        if self.crf:  # a loss is the mean over the steps of a sequence
            steps = np.fromiter(map(len, labels), np.float32, len(labels))
            return steps if weights is None else steps * weights
        by_row = None if weights is None else np.repeat(weights, list(map(len, labels)))
        numbers = np.concatenate(labels)
        there = numbers != IGNORED
        if self.class_weight is None and there.all():
            return by_row
        by_class = (
            there.astype(np.float32)
            if self.class_weight is None
            else self._class_weights[np.where(there, numbers, 0)] * there
        )
        return by_class if by_row is None else by_class * by_row

    def _loss_of_constant(self, labels: list[np.ndarray], weights: np.ndarray | None) -> float:
        if not self.crf:
            return super()._loss_of_constant(labels, weights)
        rows = None if weights is None else np.repeat(weights, list(map(len, labels)))
        return recipe.loss_of_constant(labels, rows, several=False)

    def predict_proba(self, X: Any, executor: Executor | None = None) -> list[np.ndarray]:
        """Return a list with the probability of each class at each step, `(steps, classes)`, for each sequence.

        Parameters
        ----------
        X : sequences
            As in `fit`.
        executor : concurrent.futures.Executor, optional
            It computes parts of X at the same time, with the same results: processes, Dask, an MPI pool.
        """
        sequences, outputs = self._outputs(X, executor)
        lengths = list(map(len, sequences))
        found = self._marginals(outputs, lengths) if self.crf else _softmax(outputs)
        return np.split(found, np.cumsum(lengths)[:-1])

    def predict_log_proba(self, X: Any, executor: Executor | None = None) -> list[np.ndarray]:
        """Return the logarithms of the probabilities that `predict_proba` returns, which do not become minus infinity.

        Parameters
        ----------
        X : sequences
            As in `fit`.
        executor : concurrent.futures.Executor, optional
            As in `predict_proba`.
        """
        sequences, outputs = self._outputs(X, executor)
        lengths = list(map(len, sequences))
        if self.crf:
            found = np.log(np.maximum(self._marginals(outputs, lengths), np.finfo(np.float32).tiny))
        else:
            found = log_softmax(outputs, axis=1)
        return np.split(found, np.cumsum(lengths)[:-1])

    def _marginals(self, outputs: np.ndarray, lengths: list[int]) -> np.ndarray:
        return np.asarray(self.module_.crf.marginals(_rows_of(outputs, lengths)))

    def predict(self, X: Any, executor: Executor | None = None) -> list[np.ndarray]:
        """Return a list with the most probable class of each step, for each sequence.

        Parameters
        ----------
        X : sequences
            As in `fit`.
        executor : concurrent.futures.Executor, optional
            It computes parts of X at the same time, with the same results: processes, Dask, an MPI pool.
        """
        sequences, outputs = self._outputs(X, executor)
        lengths = list(map(len, sequences))
        best = np.asarray(self.module_.crf.decode(_rows_of(outputs, lengths))) if self.crf else outputs.argmax(axis=1)
        return np.split(self.classes_[best], np.cumsum(lengths)[:-1])

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the share of steps whose class is predicted correctly, among the steps that have a label."""
        y = labels_of_data(X, y)
        found = self.predict(X)
        lengths = np.fromiter(map(len, found), np.int64, len(found))
        labels = np.concatenate(_one_per_step(y, lengths))
        there, weights = _have_labels(labels), super()._weights(found, sample_weight)
        right = np.concatenate(found)[there] == of_one_kind(labels[there])
        return float(np.average(right, weights=None if weights is None else np.repeat(weights, lengths)[there]))

    def _outputs_of(self, sequences: list[np.ndarray], executor: Executor | None) -> np.ndarray:
        """Return the calibrated outputs of the network for each step, float32."""
        return super()._outputs_of(sequences, executor) * np.float32(self._factor)

    def _calibrate(self, sequences: list[np.ndarray], labels: Any, weights: Any, held: np.ndarray | None) -> None:
        """Choose the factor of outputs (an inverse temperature) of the least log loss on the sequences held back."""
        self._factor = 1.0
        if held is None or self.crf:
            return
        outputs, chosen = self._outputs_of(take(sequences, held), None), [labels[k] for k in held]
        own = self._weights_of_losses(chosen, None if weights is None else weights[held])
        numbers = np.concatenate(chosen)
        counted = np.ones(len(numbers)) if own is None else own.astype(np.float64)
        there = np.flatnonzero((numbers != IGNORED) & (counted > 0))
        there = there[:: len(there) // _MOST_CALIBRATING + 1]
        if len(there):
            values = 2.0 * (numbers[there, None] == np.arange(len(self.classes_))) - 1
            found = lambda: Targets(values, "classes", counted[there]).calibrated(outputs[there])[1]
            self._factor = float(ranks.array_of_first(self._comm, lambda: np.array([found()]))[0])

    def _label_state(self) -> dict[str, Any]:
        return {"classes": _saved_classes(self.classes_), "factor": self._factor}

    def _restore_labels(self, state: dict[str, Any]) -> None:
        self.classes_ = _classes_of(state["classes"], self._num_outputs)
        (self._factor,) = numbers_of([state["factor"]], "labels, factor")


def _rows_of(outputs: np.ndarray, lengths: list[int]) -> LoDTensor:
    """Return outputs of steps as the rows of sequences."""
    return LoDTensor(outputs, [np.cumsum([0, *lengths])])


def _have_labels(labels: np.ndarray) -> np.ndarray:
    """Return which steps have a label, bool; the label of the other steps is None."""
    if labels.dtype.kind != "O":
        return np.ones(len(labels), bool)
    return np.fromiter((label is not None for label in labels), bool, len(labels))


def _check_classes(labels: np.ndarray) -> None:
    """Raise if labels have several kinds or are continuous numbers, and so are no classes."""
    _check_held(labels)
    if labels.dtype.kind == "f" and (labels != np.rint(labels)).any():
        expected, hint = "classes", "SequenceRegressor takes numbers, of sequences or of their steps"
        raise InputError("y", expected=expected, got="Unknown label type: continuous numbers", hint=hint)
    try:
        check_classification_targets(labels)
    except TypeError as error:
        raise DTypeError("y", expected="labels of one kind, texts or numbers", got=shown(labels)) from error


def _check_held(labels: np.ndarray) -> None:
    """Raise unless a file can hold labels: JSON has neither dates nor bytes."""
    for label in () if labels.dtype.kind in "biufU" else labels:
        if labels.dtype.kind in "mM" or not isinstance(plain(label), (str, int, float)):
            got, hint = f"{shown(label)}, a {type(label).__name__}", "list(map(str, y)) makes texts of all"
            raise DTypeError("y", expected="texts or numbers as classes", got=got, hint=hint)


def _as_lists(y: Any) -> Any:
    """Return the labels of each sequence: the entries of a column or of a frame's only column, or sequences."""
    y = y.value if isinstance(y, Variable) else y
    if isinstance(y, LoDTensor):
        return y.to_sequences()
    if (frame := frame_of(y, "y")) is not None and len(frame.fields) == 1:
        y = frame.foreign(frame.fields[0])
    elif frame is not None:  # a column per target
        return y
    return entries_of(y) if any(hasattr(y, name) for name in ("iloc", "get_chunks", "to_pylist")) else y


def _are_of_rows(y: Any, lengths: np.ndarray) -> bool:
    """Return whether each entry of `y` is a list of numbers, as long as its sequence or of a length of its own."""
    if y is None or (isinstance(y, np.ndarray) and y.dtype.kind != "O"):  # a column per target
        return False
    entries = _as_lists(y)
    if not isinstance(entries, (list, tuple, np.ndarray)) or len(entries) != len(lengths):
        return False
    if not all(hasattr(own, "__len__") and not isinstance(own, str) for own in entries):
        return False
    own = [len(entry) for entry in entries]
    return own == lengths.tolist() or len(set(own)) > 1


def _one_per_step(y: Any, lengths: np.ndarray) -> list[np.ndarray]:
    """Return labels as a list of arrays, or raise unless each has one entry per step."""
    _check_given(y, "step")
    y = _as_lists(y)
    if not hasattr(y, "__len__") or len(y) != len(lengths):
        got = f"{len(y)} entries" if hasattr(y, "__len__") else shown(y)
        raise ShapeError("y", expected=f"{len(lengths)} entries, one per sequence", got=got)
    found = []
    for number, (labels, length) in enumerate(zip(y, lengths, strict=True)):
        try:
            array = as_array(list(labels) if isinstance(labels, str) else labels)
        except DTypeError:
            raise
        except ValueError as error:
            raise ShapeError(f"y, sequence {number}", expected="labels of steps", got=shown(labels)) from error
        if array.shape != (length,):
            expected = f"{length} labels, one per step"
            raise ShapeError(f"y, sequence {number}", expected=expected, got=f"shape {array.shape}")
        found.append(with_none(array))
    check_one_kind(label for array in found for label in (array if array.dtype == object else array[:1]).tolist())
    kind = next((array.dtype for array in found if len(array)), np.dtype(np.int64))
    return [array if len(array) else np.zeros(0, kind) for array in found]


def _classes_among(labels: Any) -> np.ndarray:
    """Return the distinct labels in sorted order, or raise if they cannot be sorted, or a file cannot hold them."""
    labels = as_array(labels)
    try:
        found = np.unique(labels)
    except TypeError as error:
        raise DTypeError("y", expected="labels of one kind, texts or numbers", got=shown(labels)) from error
    _check_held(found)
    return found


def _numbers_of(labels: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return the index of each label's class, int64, or raise if a label is no class."""
    try:
        numbers = np.searchsorted(classes, labels)
    except TypeError as error:
        raise DTypeError("y", expected=f"labels as {shown(classes[0])}", got=shown(labels)) from error
    numbers = np.minimum(numbers, len(classes) - 1)
    wrong = np.flatnonzero(classes[numbers] != labels)
    if len(wrong):
        expected = f"one of the {len(classes)} classes of the first fit"
        raise InputError("y", expected=expected, got=shown(plain(labels[wrong[0]])))
    return numbers.astype(np.int64)


def _class_weights(class_weight: Any, classes: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the weight of each class, float32; `labels` are indices of classes."""
    if isinstance(class_weight, dict):
        unknown = [name for name in class_weight if name not in classes]
        if unknown:
            raise InputError("class_weight", expected=f"classes of {shown(classes)}", got=shown(unknown[0]))
        at_least = "finite and at least 0", lambda weight: 0 <= weight < math.inf
        found = [check_number(class_weight.get(plain(name), 1.0), "class_weight", *at_least) for name in classes]
        return np.array(found, np.float32)
    if not isinstance(class_weight, str) or class_weight != "balanced":
        raise DTypeError("class_weight", expected="a dict, 'balanced' or None", got=shown(class_weight))
    there = np.unique(labels)  # with partial_fit, some classes may have no sequence yet
    weights = np.ones(len(classes), np.float32)
    weights[there] = compute_class_weight(class_weight, classes=there, y=labels)
    return weights


def _chosen(outputs: Variable, numbers: np.ndarray) -> Variable:
    """Return one output of each row, given the numbers of these outputs."""
    return (outputs * np.eye(outputs.shape[1], dtype=np.float32)[numbers]).sum(axis=1)


def _softmax(logits: np.ndarray) -> np.ndarray:
    return np.asarray(functional.softmax(logits))


def _saved_classes(classes: np.ndarray) -> dict[str, Any]:
    return {"kind": classes.dtype.str, "values": [plain(value) for value in classes]}


def _classes_of(state: dict[str, Any], size: int) -> np.ndarray:
    """Return the classes that a file holds, or raise unless they are as many as the outputs, and all different."""
    classes = np.array(state["values"], np.dtype(state["kind"]))
    if classes.shape != (size,) or classes.dtype.kind not in "biufUO":
        raise ShapeError("labels, classes", expected=f"a list of {size}", got=shown(classes))
    if len(set(classes.tolist())) != size or (classes.dtype.kind == "f" and not np.isfinite(classes).all()):
        raise InputError("labels, classes", expected="different classes", got=shown(classes))
    return classes
