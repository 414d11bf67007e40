"""The estimators: `SequenceClassifier`, `SequenceRegressor` and `SequenceTagger`."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np
from scipy.special import log_expit, log_softmax
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.metaestimators import available_if

from varlen_rnn.data import Dataset
from varlen_rnn.data.tables import differences
from varlen_rnn.data.vocabulary import split_text
from varlen_rnn.errors import InputError, check_flag, shown
from varlen_rnn.nn import functional
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.sklearn.base import SequenceEstimator
from varlen_rnn.sklearn.choosing import ChoosingEstimator
from varlen_rnn.sklearn.gaps import of_one_kind
from varlen_rnn.sklearn.inputs import as_sequences
from varlen_rnn.sklearn.labels import Labels, as_lists, classes_of_each, have_labels, one_per_step, weights_like
from varlen_rnn.sklearn.labels_of_classes import Classes, Tags, repeated
from varlen_rnn.sklearn.labels_of_numbers import QUANTILES, Numbers
from varlen_rnn.sklearn.options import CLASS_WEIGHT, MODEL, listed_in_docstring, option
from varlen_rnn.sklearn.quantiles import places_of
from varlen_rnn.sklearn.restored import numbers_of
from varlen_rnn.training import Callback  # noqa: F401  annotations of inherited options name it

_OF_SEQUENCES = """

Parameters
----------
X : sequences
    As in `fit`.
executor : concurrent.futures.Executor, optional
    It computes parts of X at the same time, with the same results: processes, Dask, an MPI pool.
"""


def _of_sequences(method: Any) -> Any:
    """Return a method whose docstring describes the parameters X and `executor`."""
    if method.__doc__ is not None:
        method.__doc__ = inspect.cleandoc(method.__doc__) + _OF_SEQUENCES
    return method


class _Classifying(ClassifierMixin, SequenceEstimator):
    """Predictions of classes, of sequences or of their steps."""

    classes_: np.ndarray

    @_of_sequences
    def predict_proba(self, X: Any, executor: Executor | None = None) -> Any:
        """Return the probability of each class, `(sequences, classes)`, in the order of `classes_`.

        A tagger returns a list with an array `(steps, classes)` for each sequence.
        """
        sequences, outputs = self._outputs(X, executor)
        return self._by_sequence(sequences, self._probabilities(sequences, outputs))

    @_of_sequences
    def predict_log_proba(self, X: Any, executor: Executor | None = None) -> Any:
        """Return the logarithm of each probability of `predict_proba`, which does not become minus infinity."""
        sequences, outputs = self._outputs(X, executor)
        if self._labels.has_field:
            found = np.log(np.maximum(self._probabilities(sequences, outputs), np.finfo(np.float32).tiny))
        else:
            found = log_expit(outputs) if self._labels.several else log_softmax(outputs, axis=1)
        return self._by_sequence(sequences, found)

    @_of_sequences
    def predict(self, X: Any, executor: Executor | None = None) -> Any:
        """Return the most probable class of each sequence; for several classes, 0 or 1 for each class.

        A tagger returns a list with an array of the classes of all steps for each sequence.
        """
        sequences, outputs = self._outputs(X, executor)
        if self._labels.several:
            return (outputs > 0).astype(np.int64)
        if self._labels.has_field:
            best = np.asarray(self.module_.crf.decode(_steps_of(sequences, outputs)))
        else:
            best = outputs.argmax(axis=1)
        return self._by_sequence(sequences, self.classes_[best])

    def _probabilities(self, sequences: list[np.ndarray], outputs: np.ndarray) -> np.ndarray:
        if self._labels.has_field:
            return np.asarray(self.module_.crf.marginals(_steps_of(sequences, outputs)))
        return np.asarray((functional.sigmoid if self._labels.several else functional.softmax)(outputs))


@listed_in_docstring
@dataclasses.dataclass(eq=False, repr=False, match_args=False, kw_only=True)
class SequenceClassifier(_Classifying, ChoosingEstimator):
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
    {options}

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

    model: str = option(*MODEL)
    class_weight: Any = option(*CLASS_WEIGHT)  # noqa: RUF009

    def _learned_labels(self, y: Any, lengths: np.ndarray, classes: Any) -> Labels:
        return Classes.learned(y, len(lengths), classes, self.class_weight)

    def _restored_labels(self, state: dict[str, Any], num_outputs: int) -> Labels:
        return Classes.restored(state, num_outputs)

    def _given_labels(self, X: Any, y: Any) -> Any:
        if y is None and isinstance(X, Dataset) and X.label_kind == "classes of rows":
            differ = [len(set(np.ravel(labels).tolist())) > 1 for labels in X.labels or ()]
            got = differences(X.ids or list(map(str, range(len(X)))), differ) if any(differ) else "classes of rows"
            hint = "for a class per row, use SequenceTagger; data.read(label_kind='classes') names rows that differ"
            raise InputError("X, labels of the data set", expected="a class per sequence", got=got, hint=hint)
        return super()._given_labels(X, y)

    @_of_sequences
    def decision_function(self, X: Any, executor: Executor | None = None) -> np.ndarray:
        """Return scores, shape `(sequences, classes)`; for two classes `(sequences,)`, positive for `classes_[1]`.

        The probabilities are their softmax, or sigmoid if there are two classes or a sequence may have several.
        """
        outputs = self._outputs(X, executor)[1]
        return outputs[:, 1] - outputs[:, 0] if len(self.classes_) == 2 and not self._labels.several else outputs

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the share of sequences whose class, or all of whose classes, are predicted correctly."""
        found = self.predict(X)
        wanted = classes_of_each(self._given_labels(X, y), len(found))
        return accuracy_score(wanted, found, sample_weight=sample_weight)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags


@listed_in_docstring
@dataclasses.dataclass(eq=False, repr=False, match_args=False, kw_only=True)
class SequenceRegressor(RegressorMixin, ChoosingEstimator):
    """Predict numbers from sequences of unequal length, without padding, by the best of a few models.

    `y` has one or more numbers per sequence.  If it is a list of arrays as long as the sequences, it has a number per
    row, or several in arrays `(rows, targets)`; then `predict` returns such a list, and the estimator is always a
    network, without convolutions.  A number of a row that is None or NaN does not count.

    Targets are standardised.  In place of the product of probabilities, the mean of both predictions is weighted by
    their precisions (the inverse losses).  The network and attributes are as in `SequenceClassifier`, except for
    `classes_`.  Sequences are never stretched, because a number may depend on their length.

    Parameters
    ----------
    {options}

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

    model: str = option(*MODEL)
    loss: str = option(
        "squared",
        '{"squared", "mae", "quantile"}',
        '"squared", the squared error, predicts means; "mae", the mean absolute error, medians; "quantile", the '
        "pinball loss, `quantiles`, and `predict` returns medians.  The last two are calibrated on sequences left out: "
        'those that choose between models, or with `model="recurrent"` and for numbers of rows a fifth that the '
        "network is not trained on (with `early_stopping` the validation set, with `eval_set` its sequences).  A share "
        "of about `q` of new numbers then lies below the quantile `q` (conformalized quantile regression, arXiv "
        '1905.03222).  `partial_fit` does not calibrate.  scikit-learn\'s names "squared_error" and "absolute_error" '
        "are taken, too.",
    )
    quantiles: Sequence[float] = option(
        QUANTILES,
        "list of float",
        'Rising numbers between 0 and 1 for `loss="quantile"`; the default is an interval of 80 % and the median.',
    )

    def _learned_labels(self, y: Any, lengths: np.ndarray, classes: Any) -> Labels:
        found = Numbers.learned(y, lengths, self.loss, self.quantiles)
        if found.by_row and self.model not in ("auto", "recurrent"):
            expected = "'auto' or 'recurrent', because y has numbers of rows"
            raise InputError("model", expected=expected, got=shown(self.model))
        return found

    def _restored_labels(self, state: dict[str, Any], num_outputs: int) -> Labels:
        return Numbers.restored(state, num_outputs)

    @_of_sequences
    def predict(self, X: Any, executor: Executor | None = None) -> np.ndarray | list[np.ndarray]:
        """Return the predictions for each sequence, float64, shape `(sequences,)` or `(sequences, targets)`.

        If the training had numbers of rows, the result is a list with an array of shape `(rows,)` or `(rows, targets)`
        for each sequence.
        """
        return self._numbers(X, executor)

    @available_if(lambda self: self.loss == "quantile")
    @_of_sequences
    def predict_quantiles(self, X: Any, executor: Executor | None = None) -> np.ndarray | list[np.ndarray]:
        """Return the quantiles of each sequence, float64, `(sequences, quantiles)`; only with `loss="quantile"`.

        A later quantile is never less than one before it.  With several targets, the shape is `(sequences, targets,
        quantiles)`.  If the training had numbers of rows, the result is a list of such arrays, with an entry per row.
        """
        return self._numbers(X, executor, of_quantiles=True)

    def _numbers(self, X: Any, executor: Any, of_quantiles: bool = False) -> np.ndarray | list[np.ndarray]:
        """Return predictions in the unit of y: means or medians, or the chosen quantiles."""
        (sequences, outputs), levels = self._outputs(X, executor), self._labels.levels
        places = places_of(self.quantiles, levels) if of_quantiles else levels.index(0.5) if levels else 0
        found = self._labels.numbers(outputs)[:, :, places]
        return self._by_sequence(sequences, found[:, 0] if self._labels.is_flat else found)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the coefficient of determination, R2, or its mean over several targets."""
        y, found = self._given_labels(X, y), self.predict(X)
        if not self._labels.by_row:
            return r2_score(y, found, sample_weight=sample_weight)
        weights = repeated(weights_like(found, sample_weight), found)
        wanted = np.concatenate(self._labels.of_rows(y, np.array(list(map(len, found)))))
        found = np.concatenate(found).reshape(wanted.shape)
        scores = []
        for one, other in zip(wanted.T, found.T, strict=True):
            there = ~np.isnan(one)
            own = None if weights is None else weights[there]
            scores.append(r2_score(one[there], other[there], sample_weight=own))
        return float(np.mean(scores))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


@listed_in_docstring
@dataclasses.dataclass(eq=False, repr=False, match_args=False, kw_only=True)
class SequenceTagger(_Classifying):
    """Classify every step of sequences of unequal length with a recurrent network that is trained without padding.

    `y` is a list of arrays with one label per step; a step whose label is None or NaN does not count.  The network and
    attributes are as in `SequenceClassifier`; there are no convolutions.  `class_weight` applies to steps,
    `sample_weight` to sequences.  Words and tokens that occur once in the training share an embedding with unknown
    tokens of the same pattern of capitals and digits and the same last two letters, or of the same pattern only.

    Probabilities are calibrated (a temperature) if sequences are held back, by `early_stopping` or `eval_set`, and if
    there is no conditional random field.

    Parameters
    ----------
    {options}

    Examples
    --------
    >>> X = [list("abba"), list("b"), list("aab")] * 8
    >>> y = [[token == "a" for token in tokens] for tokens in X]
    >>> model = SequenceTagger("gru", 8, random_state=0, max_epochs=20).fit(X, y)
    >>> model.predict([list("ab")])
    [array([ True, False])]
    """

    _by_spelling = True

    lr: float = option(1e-2, "float", "The learning rate of AdamW.")
    crf: bool = option(
        False,
        "bool",
        "Whether a conditional random field chooses the classes of all steps of a sequence together (Lafferty, "
        "McCallum and Pereira, 2001): each pair of neighbours has a trained score.  `predict` returns the most "
        "probable labelling (Viterbi, 1967), `predict_proba` the probability of each class over all labellings.  Each "
        "step needs a label, and `class_weight` must be None.",
    )
    class_weight: Any = option(*CLASS_WEIGHT)  # noqa: RUF009

    def _cut(self, X: Any, y: Any) -> str:
        if self.tokens != "auto" or not hasattr(y, "__len__") or as_sequences(X)[0] != "texts":
            return self.tokens
        pairs = list(zip(as_sequences(X)[1], as_lists(y), strict=False))
        fits = lambda text, labels, cut: hasattr(labels, "__len__") and len(labels) == len(split_text(text, cut))
        count = lambda cut: sum(fits(text, labels, cut) for text, labels in pairs)
        # Majority vote: a few sequences can have the wrong number of labels, which a later error reports.
        return "characters" if count("characters") >= max(1, count("words")) else "words"

    def _learned_labels(self, y: Any, lengths: np.ndarray, classes: Any) -> Labels:
        return Tags.tagged(y, lengths, classes, check_flag(self.crf, "crf"))

    def _restored_labels(self, state: dict[str, Any], num_outputs: int) -> Labels:
        labels = Tags.restored(state, num_outputs)
        labels.has_field = check_flag(self.crf, "crf")
        return labels

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the share of steps whose class is predicted correctly, among the steps that have a label."""
        y, found = self._given_labels(X, y), self.predict(X)
        labels = np.concatenate(one_per_step(y, np.array(list(map(len, found)))))
        there, weights = have_labels(labels), repeated(weights_like(found, sample_weight), found)
        right = np.concatenate(found)[there] == of_one_kind(labels[there])
        return float(np.average(right, weights=None if weights is None else weights[there]))

    def _label_state(self) -> dict[str, Any]:
        return {"classes": self._labels.state()["classes"], "factor": self._shares["recurrent"]}

    def _restore_candidates(self, saved: dict[str, Any]) -> None:
        super()._restore_candidates(saved)
        (self._shares["recurrent"],) = numbers_of([saved["labels"]["factor"]], "labels, factor")


def _steps_of(sequences: list[np.ndarray], outputs: np.ndarray) -> LoDTensor:
    return LoDTensor(outputs, [np.cumsum([0, *map(len, sequences)])])
