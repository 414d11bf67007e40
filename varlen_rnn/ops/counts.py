"""Counts that metrics add up over batches: correct rows, confusions of classes, errors and scores, in float64."""

import math

import numpy as np

from varlen_rnn.errors import DTypeError, LoDError, OutOfRangeError, ShapeError
from varlen_rnn.kernels.arithmetic import absolute, divide, equal, multiply, subtract, where
from varlen_rnn.kernels.copies import astype, full, joined
from varlen_rnn.kernels.largest import top
from varlen_rnn.kernels.reductions import argmax_over, max_over, sum_over
from varlen_rnn.kernels.rows import mark
from varlen_rnn.ops.cost import per_input_element
from varlen_rnn.ops.examples import rows
from varlen_rnn.ops.indices import indices, rows_at
from varlen_rnn.products.row_sums import row_product
from varlen_rnn.rows.lod import levels_of
from varlen_rnn.runtime.device import beside, empty, host_numbers, on_device, to_host
from varlen_rnn.tape.checks import check_float, check_integer, check_rank, check_shape, check_tensor, shared_lod
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import TensorSpec

_FLOAT64 = np.dtype(np.float64)
# A confusion matrix of so many classes takes 128 MiB; without a limit, a program could request any amount of memory.
MOST_CLASSES = 4096


def _weights(op, x, target, weight, counted, per_sequence):
    """Return the weight of each row in float64: its own, or its share of its sequence's weight; 0 if not counted."""
    lod = shared_lod(op, x, target, names=("predictions", "targets"))
    given = None if weight is None else to_host(weight.data).astype(_FLOAT64)
    if given is not None and (wrong := np.flatnonzero(~((given >= 0) & (given < np.inf)))).size:
        what = f"{op}, sample_weight, entry {wrong[0]}"
        raise OutOfRangeError(what, expected="finite and at least 0", got=given[wrong[0]])
    if not per_sequence:
        found = np.ones(len(counted)) if given is None else given
    else:
        if not lod.num_levels:
            hint = "give the rows their lengths with create_lod_tensor"
            raise LoDError(f"{op}, per='sequence'", expected="rows with a LoD", got="none", hint=hint)
        offsets, before = levels_of(lod)[-1], np.concatenate([[0], np.cumsum(counted)])
        sizes = before[offsets[1:]] - before[offsets[:-1]]
        given = np.ones(len(sizes)) if given is None else given
        if len(given) != len(sizes):
            expected = f"{len(sizes)}, one for each sequence"
            raise ShapeError(f"{op}, sample_weight", expected=expected, got=len(given))
        found = np.repeat(given / np.maximum(sizes, 1), np.diff(offsets))
    return np.where(counted, found, 0.0)


def _that_weigh(weights, *arrays):
    """Drop the rows with weight 0 from the weights and the arrays, because these rows may hold NaN."""
    kept = weights != 0
    return (weights, *arrays) if kept.all() else (weights[kept], *(array[kept] for array in arrays))


def _check_weight(op, weight, num_rows, per_sequence=False):
    if weight is not None:
        check_tensor(op, "sample_weight", weight)
        if weight.dtype.kind not in "fiub":
            raise DTypeError(f"{op}, sample_weight", expected="numbers", got=weight.dtype)
        shape = (-1,) if per_sequence else (num_rows,)
        check_shape(op, "sample_weight", weight, shape, "one for each row, or for each sequence if per='sequence'")


def _check_classes(op, predictions, labels):
    """Raise unless predictions are one class for each row, or scores of all classes, and labels are classes."""
    check_tensor(op, "predictions", predictions)
    if predictions.dtype.kind in "iu":
        check_rank(op, "predictions", predictions, 1, "scores of classes are floats, one column for each class")
    else:
        check_float(op, predictions=predictions)
        hint = "of one score for each row, (scores > 0).astype(int) are classes"
        check_rank(op, "predictions", predictions, 2, hint)
        if predictions.shape[1] == 0:
            raise ShapeError(f"{op}, predictions", expected="at least one class", got=f"shape {predictions.shape}")
    check_integer(op, targets=labels)
    check_shape(op, "targets", labels, predictions.shape[:1], "one class for each row")


def _classes_and_counted(op, labels, num_classes, ignore_index):
    """Return the class of each label, 0 if the label is ignored, and whether each label counts."""
    numbers = host_numbers(labels.data)
    counted = np.ones(len(numbers), bool) if ignore_index is None else numbers != ignore_index
    kept = labels.like(np.where(counted, numbers, labels.dtype.type(0)))
    return indices(f"{op}, targets", kept, num_classes, "class"), counted


@operator(cost=per_input_element)
def accuracy_counts(
    predictions, targets, sample_weight=None, *, top_k: int, ignore_index: int | None, per_sequence: bool
):
    """Return the total weight of the correctly predicted rows, and the total weight of all rows that count."""
    op = "accuracy_counts"
    labels = host_numbers(targets.data)
    if predictions.data.ndim == 1:
        counted = np.ones(len(labels), bool) if ignore_index is None else labels != ignore_index
        right = equal(predictions.data, targets.data)
    else:
        classes, counted = _classes_and_counted(op, targets, predictions.shape[1], ignore_index)
        right = _are_among_largest(predictions.data, classes, top_k)
    weights = _weights(op, predictions, targets, sample_weight, counted, per_sequence)
    if on_device(right):
        return _both_sums(multiply(beside(weights, right), astype(right, _FLOAT64)), weights)
    return np.array([weights[right].sum(), weights.sum()])


def _are_among_largest(scores, classes, k):
    """Return whether each row's class has one of the `k` largest scores of the row.

    Of two equal scores, the score of the earlier class ranks first.  NaN ranks before all numbers.
    """
    if k == 1:
        return equal(argmax_over(scores, 1), beside(classes, scores))
    if on_device(scores):
        found = equal(top(scores, k, 1)[1], beside(classes[:, None], scores))
        return astype(max_over(astype(found, np.int64), 1), np.bool_)
    own, is_nan = scores[np.arange(len(scores)), classes][:, None], np.isnan(scores)
    above = (scores > own) | (is_nan & ~np.isnan(own))
    ties = (scores == own) | (is_nan & np.isnan(own))
    before = np.arange(scores.shape[1]) < classes[:, None]
    return np.count_nonzero(above | (ties & before), axis=1) < k


@accuracy_counts.infer
def _infer_accuracy(predictions, targets, sample_weight, top_k, ignore_index, per_sequence):
    _check_classes("accuracy_counts", predictions, targets)
    most = 1 if len(predictions.shape) == 1 else predictions.shape[1]
    if top_k < 1 or top_k > most != -1:
        raise ShapeError("accuracy_counts, top_k", expected=f"1 to {most}, as many as are predicted", got=top_k)
    _check_weight("accuracy_counts", sample_weight, predictions.shape[0], per_sequence)
    return TensorSpec((2,), _FLOAT64)


@accuracy_counts.examples
def _examples_of_accuracy(rng):
    labels = np.array([0, -1, 1, 1, 0, 2])
    for per_sequence, weight in ((False, None), (False, rng.random(6)), (True, None), (True, rng.random(4))):
        options = {"ignore_index": -1, "per_sequence": per_sequence}
        yield [rows(rng, 3), labels, weight], {"top_k": 2, **options}
        yield [rows(rng).like(np.zeros(6, int)), labels, weight], {"top_k": 1, **options}


@operator(cost=per_input_element)
def confusion_counts(predictions, targets, sample_weight=None, *, num_classes: int, ignore_index: int | None):
    """Return the confusion matrix: entry (i, j) sums the weights of the rows of class i that were predicted as j."""
    op = "confusion_counts"
    classes, counted = _classes_and_counted(op, targets, num_classes, ignore_index)
    weights = _weights(op, predictions, targets, sample_weight, counted, False)
    if predictions.data.ndim == 1:
        kept = predictions.like(np.where(counted, host_numbers(predictions.data), predictions.dtype.type(0)))
        found = indices(f"{op}, predictions", kept, num_classes, "class")
    else:
        found = argmax_over(predictions.data, 1)
    if on_device(predictions.data):
        return _confusion_on_device(classes, found, weights, num_classes, predictions.data)
    matrix = np.bincount(classes * num_classes + found, weights, num_classes**2).reshape(num_classes, num_classes)
    return matrix.astype(_FLOAT64, copy=False)  # NumPy returns integers if there are no rows


def _confusion_on_device(classes, found, weights, num_classes, like):
    """Return the confusion matrix, as a product of one-hot rows."""
    given, taken = (empty((len(classes), num_classes), like, _FLOAT64) for _ in range(2))
    mark(classes, given)
    mark(found, taken)
    return row_product(multiply(given, beside(weights[:, None], like)), taken)


@confusion_counts.infer
def _infer_confusion(predictions, targets, sample_weight, num_classes, ignore_index):
    _check_classes("confusion_counts", predictions, targets)
    if not 1 <= num_classes <= MOST_CLASSES:
        raise ShapeError("confusion_counts, num_classes", expected=f"1 to {MOST_CLASSES}", got=num_classes)
    if len(predictions.shape) == 2:
        shape = (predictions.shape[0], num_classes)
        check_shape("confusion_counts", "predictions", predictions, shape, "one column for each class")
    _check_weight("confusion_counts", sample_weight, predictions.shape[0])
    return TensorSpec((num_classes, num_classes), _FLOAT64)


@confusion_counts.examples
def _examples_of_confusion(rng):
    labels = np.array([0, -1, 1, 1, 0, 2])
    for weight in (None, rng.random(6)):
        yield [rows(rng, 3), labels, weight], {"num_classes": 3, "ignore_index": -1}
        yield [rows(rng).like(rng.integers(0, 3, 6)), labels, weight], {"num_classes": 3, "ignore_index": -1}


@operator(cost=per_input_element)
def error_counts(predictions, targets, sample_weight=None, *, squared: bool, per_sequence: bool):
    """Return the weighted sum of each row's mean error, absolute or squared, and the sum of the weights."""
    counted = np.ones(len(predictions.data), bool)
    weights = _weights("error_counts", predictions, targets, sample_weight, counted, per_sequence)
    if on_device(predictions.data):
        return _errors_on_device(predictions.data, targets.data, weights, squared)
    weights, x, y = _that_weigh(weights, predictions.data, targets.data)
    difference = x.astype(_FLOAT64) - y
    errors = difference * difference if squared else np.abs(difference)
    width = math.prod(errors.shape[1:])
    return np.array([weights @ errors.reshape(len(errors), width).sum(axis=1) / max(1, width), weights.sum()])


def _errors_on_device(x, y, weights, squared):
    """Compute `error_counts` on a device; rows without weight count as 0, because they may hold NaN."""
    difference = subtract(astype(x, _FLOAT64), astype(y, _FLOAT64))
    errors = multiply(difference, difference) if squared else absolute(difference)
    width = math.prod(x.shape[1:])
    of_rows = divide(sum_over(errors.reshape((len(x), width)), 1), np.array(float(max(1, width))))
    of_rows = where(beside(weights != 0, x), of_rows, np.array(0.0))
    return _both_sums(multiply(beside(weights, x), of_rows), weights)


def _both_sums(numbers, weights):
    """Return the sum of numbers on a device, and of the weights."""
    rows = [row.reshape((1, len(weights))) for row in (numbers, beside(weights, numbers))]
    return sum_over(joined(rows, 0), 1)


def _check_numbers(op, predictions, targets):
    for name, spec in (("predictions", predictions), ("targets", targets)):
        check_tensor(op, name, spec)
        if spec.dtype.kind not in "fiu":
            raise DTypeError(f"{op}, {name}", expected="numbers", got=spec.dtype)
        if not spec.shape:
            raise ShapeError(f"{op}, {name}", expected="rows", got="one number")
    check_shape(op, "targets", targets, predictions.shape)


@error_counts.infer
def _infer_error(predictions, targets, sample_weight, squared, per_sequence):
    _check_numbers("error_counts", predictions, targets)
    _check_weight("error_counts", sample_weight, predictions.shape[0], per_sequence)
    return TensorSpec((2,), _FLOAT64)


@error_counts.examples
def _examples_of_error(rng):
    for squared in (False, True):
        yield [rows(rng, 3), rng.random((6, 3)), rng.random(6)], {"squared": squared, "per_sequence": False}
        yield [rows(rng), rng.integers(0, 3, 6), rng.random(4)], {"squared": squared, "per_sequence": True}


@operator(cost=per_input_element)
def variance_counts(predictions, targets, sample_weight=None):
    """Return, for each column, the total weight, the targets' mean, and the sums of squared deviations and errors.

    The deviations are of the targets from their mean; the errors are predictions minus targets.  Rows are weighted.
    """
    counted = np.ones(len(predictions.data), bool)
    weights = _weights("variance_counts", predictions, targets, sample_weight, counted, False)
    x, y = (v.data if v.data.ndim == 2 else v.data[:, None] for v in (predictions, targets))
    if on_device(x):
        return _variance_on_device(x, y, weights)
    weights, x, y = _that_weigh(weights, x, y)
    total = weights.sum()
    mean = weights @ y / total if total else np.zeros(y.shape[1])
    deviation, error = y - mean, x.astype(_FLOAT64) - y
    return np.stack([np.full(y.shape[1], total), mean, weights @ deviation**2, weights @ error**2])


def _variance_on_device(x, y, weights):
    """Compute `variance_counts` on a device; rows without weight count as 0, because they may hold NaN."""
    total, of_rows, counts = np.array(weights.sum()), beside(weights[:, None], x), beside(weights[:, None] != 0, x)
    x, y = (where(counts, astype(rows, _FLOAT64), np.array(0.0)) for rows in (x, y))
    mean = divide(sum_over(multiply(of_rows, y), 0), np.maximum(total, np.finfo(_FLOAT64).tiny))
    deviation, error = subtract(y, mean), subtract(x, y)
    squares = [sum_over(multiply(of_rows, multiply(each, each)), 0) for each in (deviation, error)]
    parts = full(mean.shape, float(total), mean), mean, *squares
    return joined([part.reshape((1, *mean.shape)) for part in parts], 0)


@variance_counts.infer
def _infer_variance(predictions, targets, sample_weight):
    _check_numbers("variance_counts", predictions, targets)
    if len(predictions.shape) > 2:
        raise ShapeError("variance_counts, predictions", expected="rank 1 or 2", got=f"shape {predictions.shape}")
    _check_weight("variance_counts", sample_weight, predictions.shape[0])
    return TensorSpec((4, predictions.shape[1] if len(predictions.shape) == 2 else 1), _FLOAT64)


@variance_counts.examples
def _examples_of_variance(rng):
    yield [rows(rng, 3), rng.random((6, 3)), rng.random(6)], {}
    yield [rows(rng), rng.integers(0, 3, 6), None], {}


@operator(cost=per_input_element)
def score_counts(predictions, targets, sample_weight=None, *, ignore_index: int | None):
    """Return three rows: the scores, the labels (0 or 1), and the weights of all rows whose weight is not 0."""
    labels, counted = _classes_and_counted("score_counts", targets, 2, ignore_index)
    weights = _weights("score_counts", predictions, targets, sample_weight, counted, False)
    if on_device(predictions.data):  # positions of rows whose weight is not 0, because scores are not on the host
        kept = np.flatnonzero(weights)
        weights, scores, labels = weights[kept], rows_at(predictions.data, kept), labels[kept]
        has_nan = len(kept) > 0 and np.isnan(to_host(max_over(scores, None)))
    else:
        weights, scores, labels = _that_weigh(weights, predictions.data, labels)
        has_nan = np.isnan(scores).any()
    if has_nan:
        raise OutOfRangeError("score_counts, predictions", expected="numbers that can be ordered", got="NaN")
    if on_device(scores):
        columns = astype(scores, _FLOAT64), beside(labels.astype(_FLOAT64), scores), beside(weights, scores)
        return joined([column.reshape((1, len(labels))) for column in columns], 0)
    return np.stack([scores.astype(_FLOAT64), labels, weights])


@score_counts.infer
def _infer_scores(predictions, targets, sample_weight, ignore_index):
    check_float("score_counts", predictions=predictions)
    hint = "one score for each row; of two classes, scores[:, 1] - scores[:, 0]"
    check_rank("score_counts", "predictions", predictions, 1, hint)
    check_integer("score_counts", targets=targets)
    check_shape("score_counts", "targets", targets, predictions.shape, "one label, 0 or 1, for each row")
    _check_weight("score_counts", sample_weight, predictions.shape[0])
    return TensorSpec((3, -1), _FLOAT64)


@score_counts.examples
def _examples_of_scores(rng):
    for weight in (None, rng.random(6)):
        yield [rows(rng), np.array([0, 1, -1, 1, 0, 0]), weight], {"ignore_index": -1}
