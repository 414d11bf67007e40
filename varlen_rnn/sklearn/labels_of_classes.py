"""Labels that are classes: `Classes` of sequences, and `Tags` of their steps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets

from varlen_rnn.data.labels import IGNORED
from varlen_rnn.errors import NOT_NEGATIVE, DTypeError, InputError, ShapeError, check_flag, check_number, listed, shown
from varlen_rnn.nn import functional
from varlen_rnn.sklearn import recipe
from varlen_rnn.sklearn.gaps import as_array, of_one_kind
from varlen_rnn.sklearn.labels import Labels, chosen_of, classes_of_each, have_labels, one_per_step
from varlen_rnn.sklearn.linear import Targets
from varlen_rnn.tape.variable import Variable

# A tagger learns from each step of a sequence.  max_epochs="auto" trains on _ROWS_OF_TAGGERS steps, for at least
# _LEAST_STEPS updates and _LEAST_EPOCHS epochs.
_ROWS_OF_TAGGERS, _LEAST_STEPS, _LEAST_EPOCHS = 500_000, 300, 6
_MOST_CALIBRATING = 20_000  # steps of held-back sequences, which are enough to calibrate one factor


class Classes(Labels):
    """Labels that are one class per sequence, or several."""

    def __init__(self, classes: np.ndarray, several: bool = False) -> None:
        self.classes, self.several = classes, several
        self.num_outputs = len(classes)
        self._class_weights: np.ndarray | None = None

    @classmethod
    def learned(cls, y: Any, number: int, classes: Any, class_weight: Any) -> Classes:
        """Return the Classes of `y`; `classes` has all classes that can occur, or is None for the classes in `y`."""
        labels = classes_of_each(y, number)
        if labels.ndim == 1:
            _check_classes(labels)
            if classes is not None and not len(as_array(classes)):
                raise InputError("classes", expected="at least one class", got="an empty list")
            return cls(_classes_among(labels if classes is None else classes))
        if class_weight is not None:
            expected = "None, because a sequence can have several classes"
            raise InputError("class_weight", expected=expected, got=shown(class_weight))
        return cls(np.arange(labels.shape[1]) if classes is None else np.asarray(classes), several=True)

    @classmethod
    def restored(cls, state: dict[str, Any], num_outputs: int) -> Classes:
        """Return the Classes that `state` describes, or raise unless there is one class per output."""
        classes = np.array(state["classes"]["values"], np.dtype(state["classes"]["kind"]))
        if classes.shape != (num_outputs,) or classes.dtype.kind not in "biufUO":
            raise ShapeError("labels, classes", expected=f"a list of {num_outputs} classes", got=shown(classes))
        if len(set(classes.tolist())) != num_outputs or (classes.dtype.kind == "f" and not np.isfinite(classes).all()):
            raise InputError("labels, classes", expected="different classes", got=shown(classes))
        return cls(classes, check_flag(state.get("several", False), "labels, several"))

    def encode(self, y: Any, lengths: np.ndarray) -> Any:
        """Return the index of each sequence's class, int64; for several classes, zeros and ones."""
        labels = classes_of_each(y, len(lengths))
        if labels.shape[1:] != ((len(self.classes),) if self.several else ()):
            expected = f"a column for each of {len(self.classes)} classes" if self.several else "a class per sequence"
            raise ShapeError("y", expected=f"{expected}, as in the first fit", got=f"shape {labels.shape}")
        return labels if self.several else self._numbers_of(labels)

    def _numbers_of(self, labels: np.ndarray) -> np.ndarray:
        """Return the index of each label's class, int64, or raise if a label is no class."""
        try:
            numbers = np.searchsorted(self.classes, labels)
        except TypeError as error:
            expected = f"labels of the type of {shown(self.classes[0])}, as in the first fit"
            raise DTypeError("y", expected=expected, got=shown(labels)) from error
        numbers = np.minimum(numbers, len(self.classes) - 1)
        wrong = np.flatnonzero(self.classes[numbers] != labels)
        if len(wrong):
            expected = f"one of the {len(self.classes)} classes of the first fit"
            raise InputError("y", expected=expected, got=shown(plain(labels[wrong[0]])))
        return numbers.astype(np.int64)

    def weigh(self, labels: Any, class_weight: Any) -> None:
        """Learn the weight of each class, float32."""
        self._class_weights = None
        if class_weight is not None:
            self._class_weights = _class_weights(class_weight, self.classes, labels)

    def weights_of_losses(self, labels: Any, weights: np.ndarray | None) -> np.ndarray | None:
        """Return the weights of sequences, times the weights of their classes."""
        if self._class_weights is None:
            return weights
        by_class = self._class_weights[labels]
        return by_class if weights is None else by_class * weights

    def arrays(self, labels: Any) -> tuple[np.ndarray, ...]:
        """Return the labels of a batch, which are one array already."""
        return (labels,)

    def losses(self, outputs: Variable, arrays: Any, field: Any) -> Variable:
        """Return the cross entropy of each sequence."""
        if self.several:
            return functional.binary_cross_entropy_with_logits(outputs, arrays[0], reduction="none").mean(axis=1)
        return functional.cross_entropy(outputs, arrays[0], reduction="none")

    def targets(self, labels: Any, weights: np.ndarray) -> Targets:
        """Return the targets of a ridge: 1 for each class that a sequence has, and -1 for each class that it lacks."""
        own = labels if self.several else labels[:, None] == np.arange(len(self.classes))
        return Targets(2.0 * own - 1, "several classes" if self.several else "classes", weights)

    def numbers_of_target(self, target: Any, outputs: np.ndarray) -> np.ndarray:
        """Return the index of the class `target` for each sequence, or of its most probable class if that is None."""
        if target is None:
            return outputs.argmax(axis=1)
        numbers = [k for k, name in enumerate(self.classes.tolist()) if np.isscalar(target) and name == target]
        if not numbers:
            expected = f"one of the classes, {listed(self.classes.tolist())}"
            raise InputError("integrated_gradients, target", expected=expected, got=shown(target))
        return np.full(len(outputs), numbers[0])

    def scores(self, outputs: Variable, numbers: np.ndarray) -> Variable:
        """Return the logarithm of the probability of a class for each sequence."""
        if self.several:
            return functional.log_sigmoid(chosen_of(outputs, numbers))
        return -functional.cross_entropy(outputs, numbers, reduction="none")

    def attributes(self) -> dict[str, Any]:
        """Return the classes, as `classes_`."""
        return {"classes_": self.classes}

    def state(self) -> dict[str, Any]:
        """Return the classes, and whether a sequence may have several, as values that JSON can hold."""
        named = {"kind": self.classes.dtype.str, "values": [plain(value) for value in self.classes]}
        return {"classes": named, "several": self.several}


class Tags(Classes):
    """Labels that are a class per step, or None for a step without a class.

    With `has_field`, a conditional random field scores the classes of all steps of a sequence together.
    """

    by_row = True

    @classmethod
    def tagged(cls, y: Any, lengths: np.ndarray, classes: Any, has_field: bool) -> Tags:
        """Return the Tags of `y`; `classes` has all classes that can occur, or is None for the classes in `y`."""
        labels = np.concatenate(one_per_step(y, lengths))
        known = of_one_kind(labels[have_labels(labels)])
        if len(known):
            _check_classes(known)
        found = cls(_classes_among(known if classes is None else classes))
        if not found.num_outputs:
            raise InputError("y", expected="a label for at least one step", got="no labels")
        found.has_field = has_field
        return found

    def encode(self, y: Any, lengths: np.ndarray) -> Any:
        """Return the index of the class of each step, int64, or `IGNORED` for a step without a label."""
        found = []
        for number, labels in enumerate(one_per_step(y, lengths)):
            there = have_labels(labels)
            if self.has_field and not there.all():
                expected = "a label for each step, because of crf=True"
                hint = "crf=False ignores steps without a label"
                raise InputError(f"y, sequence {number}", expected=expected, got="None", hint=hint)
            numbers = np.full(len(labels), IGNORED, np.int64)
            if there.any():
                numbers[there] = self._numbers_of(of_one_kind(labels[there]))
            found.append(numbers)
        return found

    def weigh(self, labels: Any, class_weight: Any) -> None:
        """Learn the weight of each class, float32."""
        if class_weight is not None and self.has_field:
            expected = "None, because of crf=True, which scores all steps of a sequence together"
            raise InputError("class_weight", expected=expected, got=shown(class_weight))
        known = np.concatenate(labels)
        super().weigh(known[known != IGNORED], class_weight)

    def weights_of_losses(self, labels: Any, weights: np.ndarray | None) -> np.ndarray | None:
        """Return the weight of each step, 0 if it has no label; with a conditional random field, of each sequence."""
        if self.has_field:  # because a loss is the mean over the steps of a sequence
            steps = np.fromiter(map(len, labels), np.float32, len(labels))
            return steps if weights is None else steps * weights
        by_row, numbers = repeated(weights, labels), np.concatenate(labels)
        there = numbers != IGNORED
        if self._class_weights is not None:
            by_class = self._class_weights[np.where(there, numbers, 0)] * there
        elif there.all():
            return by_row
        else:
            by_class = there.astype(np.float32)
        return by_class if by_row is None else by_class * by_row

    def arrays(self, labels: Any) -> tuple[np.ndarray, ...]:
        """Return the labels of all steps; with a conditional random field, also the number of each sequence's steps."""
        if not self.has_field:
            return (np.concatenate(labels),)
        return np.concatenate(labels), np.fromiter((max(1, len(some)) for some in labels), np.float32, len(labels))

    def losses(self, outputs: Variable, arrays: Any, field: Any) -> Variable:
        """Return the cross entropy of each step; with a conditional random field, a sequence's loss over its steps."""
        if not self.has_field:
            return super().losses(outputs, arrays, field)
        labels, steps = arrays
        return field(outputs, labels) / steps

    @property
    def calibrates(self) -> bool:
        """Whether sequences that are held back calibrate outputs; False with a conditional random field."""
        return not self.has_field

    def targets_of_rows(self, labels: Any, weights: np.ndarray | None) -> tuple[np.ndarray, Targets]:
        """Return the indices of the rows that calibrate outputs, and the Targets of these rows."""
        numbers = np.concatenate(labels)
        counted = np.ones(len(numbers)) if weights is None else weights.astype(np.float64)
        places = np.flatnonzero((numbers != IGNORED) & (counted > 0))
        places = places[:: len(places) // _MOST_CALIBRATING + 1]
        return places, self.targets(numbers[places], counted[places])

    def loss_of_constant(self, labels: Any, weights: np.ndarray | None) -> float:
        """Return the least mean loss that is possible if all steps have the same outputs."""
        own = repeated(weights, labels) if self.has_field else self.weights_of_losses(labels, weights)
        return recipe.loss_of_constant(labels, own, several=False)

    def epochs(self, most: int, steps_per_epoch: int, rows: int) -> int:
        """Return the number of epochs in which about 500,000 rows are trained on, but at most `most`."""
        least = min(most, max(_LEAST_EPOCHS, math.ceil(_LEAST_STEPS / steps_per_epoch)))
        return min(most, max(least, math.ceil(_ROWS_OF_TAGGERS / max(1, rows))))


def repeated(weights: np.ndarray | None, labels: list[np.ndarray]) -> np.ndarray | None:
    """Return the weight of each row, given the weights of sequences."""
    return None if weights is None else np.repeat(weights, list(map(len, labels)))


def plain(value: Any) -> Any:
    """Return a NumPy scalar as a Python number; return any other value unchanged."""
    return value.item() if isinstance(value, np.generic) else value


def _check_classes(labels: np.ndarray) -> None:
    """Raise if labels cannot be classes, because they have several kinds or are continuous numbers."""
    _check_held(labels)
    if labels.dtype.kind == "f" and (labels != np.rint(labels)).any():
        expected, hint = "classes", "for numbers, of sequences or of their steps, use SequenceRegressor"
        raise InputError("y", expected=expected, got="Unknown label type: continuous numbers", hint=hint)
    try:
        check_classification_targets(labels)
    except TypeError as error:
        raise DTypeError("y", expected="labels of one kind, texts or numbers", got=shown(labels)) from error


def _check_held(labels: np.ndarray) -> None:
    """Raise unless a file can hold labels: JSON has neither dates nor bytes."""
    for label in () if labels.dtype.kind in "biufU" else labels:
        if labels.dtype.kind in "mM" or not isinstance(plain(label), (str, int, float)):
            got, hint = f"{shown(label)}, a {type(label).__name__}", "list(map(str, y)) turns all labels into texts"
            raise DTypeError("y", expected="classes that are texts or numbers", got=got, hint=hint)


def _classes_among(labels: Any) -> np.ndarray:
    """Return the distinct labels in sorted order, or raise if they cannot be sorted, or a file cannot hold them."""
    labels = as_array(labels)
    try:
        found = np.unique(labels)
    except TypeError as error:
        raise DTypeError("y", expected="labels of one kind, texts or numbers", got=shown(labels)) from error
    _check_held(found)
    return found


def _class_weights(class_weight: Any, classes: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the weight of each class, float32; `labels` are indices of classes."""
    if isinstance(class_weight, dict):
        unknown = [name for name in class_weight if name not in classes]
        if unknown:
            expected = f"keys that are classes, {shown(classes)}"
            raise InputError("class_weight", expected=expected, got=f"the key {shown(unknown[0])}")
        found = [check_number(class_weight.get(plain(name), 1.0), "class_weight", *NOT_NEGATIVE) for name in classes]
        return np.array(found, np.float32)
    if not isinstance(class_weight, str) or class_weight != "balanced":
        raise DTypeError("class_weight", expected="a dict, 'balanced' or None", got=shown(class_weight))
    there = np.unique(labels)  # because with partial_fit, some classes may have no sequence yet
    weights = np.ones(len(classes), np.float32)
    weights[there] = compute_class_weight(class_weight, classes=there, y=labels)
    return weights
