"""Helpers of the operators of metrics: which rows count, their weights, and checks of predictions and targets."""

import numpy as np

from varlen_rnn.errors import DTypeError, LoDError, OutOfRangeError, ShapeError
from varlen_rnn.kernels.copies import joined
from varlen_rnn.kernels.reductions import sum_over
from varlen_rnn.ops.indices import indices
from varlen_rnn.rows.checks import ends_of
from varlen_rnn.rows.lod import levels_of
from varlen_rnn.runtime.device import beside, host_numbers, to_host
from varlen_rnn.tape.checks import check_float, check_integer, check_rank, check_shape, check_tensor, shared_lod

FLOAT64 = np.dtype(np.float64)


def weights_of(op, x, target, weight, counted=True, per_sequence=False):
    """Return the weight of each row, float64: as given, or a share of its sequence's weight; 0 if it does not count."""
    lod = shared_lod(op, x, target, names=("predictions", "targets"))
    given = None if weight is None else to_host(weight.data).astype(FLOAT64)
    if given is not None and (wrong := np.flatnonzero(~((given >= 0) & (given < np.inf)))).size:
        what = f"{op}, sample_weight, entry {wrong[0]}"
        raise OutOfRangeError(what, expected="a finite number of at least 0", got=given[wrong[0]])
    if not per_sequence:
        found = np.ones(len(x.data)) if given is None else given
    else:
        if not lod.num_levels:
            hint = "create_lod_tensor(rows, [lengths]) has a LoD"
            raise LoDError(f"{op}, per='sequence'", expected="rows with a LoD", got="rows without a LoD", hint=hint)
        offsets, before = levels_of(lod)[-1], ends_of(np.broadcast_to(counted, len(x.data)))
        sizes = before[offsets[1:]] - before[offsets[:-1]]
        given = np.ones(len(sizes)) if given is None else given
        if len(given) != len(sizes):
            expected = f"{len(sizes)} weights, one for each sequence"
            raise ShapeError(f"{op}, sample_weight", expected=expected, got=f"{len(given)} weights")
        found = np.repeat(given / np.maximum(sizes, 1), np.diff(offsets))
    return np.where(counted, found, 0.0)


def that_weigh(weights, *arrays):
    """Drop the rows with weight 0 from the weights and the arrays, because these rows may hold NaN."""
    kept = weights != 0
    return (weights, *arrays) if kept.all() else (weights[kept], *(array[kept] for array in arrays))


def check_weight(op, weight, num_rows, per_sequence=False):
    """Raise unless `weight` is None, or has a number for each row, or for each sequence if `per_sequence`."""
    if weight is not None:
        check_tensor(op, "sample_weight", weight)
        if weight.dtype.kind not in "fiub":
            raise DTypeError(f"{op}, sample_weight", expected="numbers", got=weight.dtype)
        shape = (-1,) if per_sequence else (num_rows,)
        hint = "one weight for each row, or for each sequence if per='sequence'"
        check_shape(op, "sample_weight", weight, shape, hint)


def check_classes(op, predictions, labels):
    """Raise unless predictions are one class for each row, or scores of all classes, and labels are classes."""
    check_tensor(op, "predictions", predictions)
    if predictions.dtype.kind in "iu":
        check_rank(op, "predictions", predictions, 1, "scores of classes are floats, one column for each class")
    else:
        check_float(op, predictions=predictions)
        hint = "if each row has one score, pass classes: (scores > 0).astype(int)"
        check_rank(op, "predictions", predictions, 2, hint)
        if predictions.shape[1] == 0:
            raise ShapeError(f"{op}, predictions", expected="at least one class", got=f"shape {predictions.shape}")
    check_integer(op, targets=labels)
    check_shape(op, "targets", labels, predictions.shape[:1], "one class for each row")


def check_numbers(op, predictions, targets):
    """Raise unless predictions and targets are rows of numbers, with the same shape."""
    for name, spec in (("predictions", predictions), ("targets", targets)):
        check_tensor(op, name, spec)
        if spec.dtype.kind not in "fiu":
            raise DTypeError(f"{op}, {name}", expected="numbers", got=spec.dtype)
        if not spec.shape:
            raise ShapeError(f"{op}, {name}", expected="an array of rows", got="a single number")
    check_shape(op, "targets", targets, predictions.shape)


def classes_and_counted(op, labels, num_classes, ignore_index):
    """Return two arrays: the class of each label (0 if the label is ignored), and whether each label counts."""
    numbers = host_numbers(labels.data)
    counted = np.ones(len(numbers), bool) if ignore_index is None else numbers != ignore_index
    kept = labels.like(np.where(counted, numbers, labels.dtype.type(0)))
    return indices(f"{op}, targets", kept, num_classes, "class"), counted


def both_sums(numbers, weights):
    """Return an array of two sums, on the device of `numbers`: the sum of the numbers, and the sum of the weights."""
    rows = [row.reshape((1, len(weights))) for row in (numbers, beside(weights, numbers))]
    return sum_over(joined(rows, 0), 1)
