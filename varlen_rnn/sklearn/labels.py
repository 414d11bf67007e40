"""`Labels`, the meaning of y to an estimator; and functions that turn each form of y into arrays of labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from sklearn.utils.validation import column_or_1d

from varlen_rnn.data import Dataset
from varlen_rnn.data.frames import entries_of, frame_of
from varlen_rnn.data.labels import IGNORED
from varlen_rnn.errors import DTypeError, InputError, ShapeError, shown
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.sklearn import recipe
from varlen_rnn.sklearn.gaps import as_array, check_one_kind, is_absent, of_one_kind, with_none
from varlen_rnn.sklearn.linear import Targets
from varlen_rnn.tape.variable import Variable


class Labels:
    """The meaning of y: how labels are encoded, the loss of outputs, and the predictions that outputs mean.

    Encoded labels are an array with an entry per sequence, or a list with an array per sequence if each row has
    outputs.
    """

    num_outputs: int
    by_row = False  # whether each row of a sequence has outputs
    levels: Sequence[float] = ()  # the quantiles that are predicted
    several = False  # whether a sequence may have several classes
    has_field = False  # whether a conditional random field scores the classes of all steps together

    # Subclasses define `encode(y, lengths)`, `arrays(labels)`, which returns the encoded labels of a batch as the loss
    # takes them, and `losses(outputs, arrays, field)`, which returns the loss of each sequence of a batch, or of each
    # row; `vr.bound` records it, so it reads no numbers.  `targets(labels, weights)` returns
    # the Targets of a ridge; `targets_of_rows` returns the indices of the rows that calibrate outputs, and their
    # Targets.  `state()` returns values that JSON can hold.  For attributions, `numbers_of_target(target, outputs)`
    # returns the index of an output for each sequence, and `scores(outputs, numbers)` the predictions by these outputs.
    encode: Callable[[Any, np.ndarray], Any]
    losses: Callable[[Variable, Any, Any], Variable]
    arrays: Callable[[Any], tuple[np.ndarray, ...]]
    targets: Callable[[Any, np.ndarray], Targets]
    targets_of_rows: Callable[[Any, np.ndarray | None], tuple[np.ndarray, Targets]]
    state: Callable[[], dict[str, Any]]

    def weigh(self, labels: Any, class_weight: Any) -> None:
        """Learn the weights of classes from encoded labels."""

    def weights_of_losses(self, labels: Any, weights: np.ndarray | None) -> np.ndarray | None:
        """Return the weight of each loss, given the weights of sequences; None if all weights are equal."""
        return weights

    @property
    def calibrates(self) -> bool:
        """Whether sequences that are held back calibrate outputs."""
        return True

    def loss_of_constant(self, labels: Any, weights: np.ndarray | None) -> float:
        """Return the least mean loss that is possible if all sequences have the same outputs."""
        return recipe.loss_of_constant(labels, self.weights_of_losses(labels, weights), self.several)

    def epochs(self, most: int, steps_per_epoch: int, rows: int) -> int:
        """Return the number of epochs; `most` is the number for labels of sequences, `rows` the rows in an epoch."""
        return most

    def attributes(self) -> dict[str, Any]:
        """Return attributes that describe y, by the names that scikit-learn's estimators give them."""
        return {}


def chosen_of(outputs: Variable, numbers: np.ndarray) -> Variable:
    """Return one output of each row: for row k, the output with the index `numbers[k]`."""
    return (outputs * np.eye(outputs.shape[1], dtype=np.float32)[numbers]).sum(axis=1)


def weights_like(labels: Any, sample_weight: Any) -> np.ndarray | None:
    """Return the weight of each sequence, float32; None if all weights are equal."""
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


def labels_of_data(X: Any, y: Any) -> Any:
    """Return `y`; if it is None, return the labels of the data set `X`, with names of classes in place of indices."""
    if y is not None or not isinstance(X, Dataset) or X.labels is None:
        return y
    if not X.classes or X.label_kind == "several classes":
        return X.labels
    names = np.array(X.classes)
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


def one_per_sequence(y: Any, number: int) -> np.ndarray:
    """Return labels as an array, or raise unless it has one entry per sequence."""
    _check_given(y, "sequence")
    y = y.value if isinstance(y, Variable) else y
    try:
        labels = as_array(y)
    except DTypeError:
        raise
    except ValueError as error:
        hint = "for labels of steps, use SequenceTagger; for several classes, columns of 0 and 1 (MultiLabelBinarizer)"
        raise ShapeError("y", expected="entries of one shape", got=shown(y), hint=hint) from error
    if labels.ndim == 0 or len(labels) != number:
        expected, hint = f"{number} entries, one per sequence", None
        if labels.ndim and len(labels) < number:
            hint = "for a row per step, call fit(varlen_rnn.data.read(frame, id=..., time=..., label=...))"
        raise ShapeError("y", expected=expected, got=f"shape {labels.shape}", hint=hint)
    absent = [is_absent(label) for label in labels.ravel()] if labels.dtype.kind in "fOmM" else []
    if any(absent):
        got = "NaN" if isinstance(labels.flat[absent.index(True)], float) else "None"
        raise InputError(f"y, entry {absent.index(True)}", expected="a label", got=got)
    if labels.dtype.kind == "c":
        raise DTypeError("y", expected="labels", got="Complex data not supported")
    return of_one_kind(labels)


def classes_of_each(y: Any, number: int) -> np.ndarray:
    """Return labels `(sequences,)`; for several classes, float32 zeros and ones, `(sequences, classes)`.

    A column `(sequences, 1)` is flattened with scikit-learn's warning.
    """
    labels = one_per_sequence(y, number)
    if labels.ndim < 2 or labels.shape[1:] == (1,):
        return column_or_1d(labels, warn=True)
    if labels.ndim > 2 or labels.dtype.kind not in "fiub" or not np.isin(labels, (0, 1)).all():
        expected = "a class per sequence, or a column of 0 and 1 per class"
        raise InputError("y", expected=expected, got=f"{shown(labels)} of shape {labels.shape}")
    return labels.astype(np.float32)


def one_per_step(y: Any, lengths: np.ndarray, width: int | None = None) -> list[np.ndarray]:
    """Return labels as a list of arrays, or raise unless each has one entry per step: a label, or `width` numbers."""
    _check_given(y, "step")
    y = as_lists(y)
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
        if width is not None and not length and not array.size:
            array = np.zeros((0, width))
        if array.shape != (length,) if width is None else array.shape != (length, width):
            expected = f"{length} labels, one per step" if width is None else f"shape {(int(length), width)}"
            raise ShapeError(f"y, sequence {number}", expected=expected, got=f"shape {array.shape}")
        found.append(with_none(array) if width is None else array)
    check_one_kind(label for array in found for label in (array if array.dtype == object else array[:1]).tolist())
    kind = next((array.dtype for array in found if len(array)), np.dtype(np.int64))
    return [array if len(array) else np.zeros(array.shape, kind) for array in found]


def have_labels(labels: np.ndarray) -> np.ndarray:
    """Return a bool for each step: whether its label is not None."""
    if labels.dtype.kind != "O":
        return np.ones(len(labels), bool)
    return np.fromiter((label is not None for label in labels), bool, len(labels))


def are_of_rows(y: Any, lengths: np.ndarray) -> bool:
    """Return whether `y` has labels of rows: lists as long as the sequences, or lists of different lengths.

    The result is False for an array of two axes, because its columns are targets of sequences.
    """
    if y is None or (isinstance(y, np.ndarray) and y.dtype.kind != "O" and y.ndim != 3):
        return False
    entries = as_lists(y)
    if not isinstance(entries, (list, tuple, np.ndarray)) or len(entries) != len(lengths):
        return False
    if not all(hasattr(own, "__len__") and not isinstance(own, str) for own in entries):
        return False
    own = [len(entry) for entry in entries]
    return own == lengths.tolist() or len(set(own)) > 1


def as_lists(y: Any) -> Any:
    """Return a list with the labels of each sequence, given a LoDTensor, a column, or a frame of one column."""
    y = y.value if isinstance(y, Variable) else y
    if isinstance(y, LoDTensor):
        return y.to_sequences()
    if (frame := frame_of(y, "y")) is not None and len(frame.fields) == 1:
        y = frame.foreign(frame.fields[0])
    elif frame is not None:  # a frame with a column per target
        return y
    return entries_of(y) if any(hasattr(y, name) for name in ("iloc", "get_chunks", "to_pylist")) else y


def _check_given(y: Any, unit: str) -> None:
    if y is None:
        expected = f"a label per {unit}: requires y to be passed, but the target y is None"
        raise InputError("y", expected=expected, got="None")
