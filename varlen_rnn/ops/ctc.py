"""The loss of connectionist temporal classification (CTC), for targets whose alignment with the steps is unknown."""

import numpy as np

from varlen_rnn.errors import LoDError, OutOfRangeError, ShapeError
from varlen_rnn.kernels.arithmetic import divide
from varlen_rnn.kernels.copies import astype
from varlen_rnn.kernels.ctc import ctc, places_of
from varlen_rnn.ops.cost import per_input_element
from varlen_rnn.rows.lod import LoD, LoDTensor, levels_of
from varlen_rnn.runtime.device import as_operand, beside, empty, host_numbers
from varlen_rnn.tape.checks import check_float, check_integer, check_lod_level, check_rank
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import TensorSpec


def _run(log_probs, targets, blank, scales, d):
    """Check the targets and return the loss of each sequence; write the gradient to `d` if it has rows."""
    offsets, ends = levels_of(log_probs.structure)[-1], levels_of(targets.structure)[-1]
    if len(offsets) != len(ends):
        raise LoDError("ctc_loss, targets", expected=f"{len(offsets) - 1} sequences, as log_probs", got=len(ends) - 1)
    labels, classes = host_numbers(targets.data).reshape(-1).astype(np.int64), log_probs.shape[1]
    if labels.size and (labels.min() < 0 or labels.max() >= classes or (labels == blank).any()):
        expected = f"classes 0 to {classes - 1}, but the blank, {blank}"
        raise OutOfRangeError("ctc_loss, targets", expected=expected, got=f"{labels.min()} to {labels.max()}")
    rows = as_operand(log_probs.data)
    places, losses = places_of(offsets, ends), empty((len(offsets) - 1,), rows)
    if scales is not None and scales.shape != losses.shape:
        raise ShapeError("ctc_loss_grad, d_out", expected=f"{len(losses)} sequences", got=scales.shape)
    scratch, scales = empty((int(places[-1]),), rows), losses if scales is None else as_operand(scales)
    ctc(rows, offsets, labels, ends, blank, scratch, places, losses, scales, d)
    return losses


@operator(name="ctc_loss", cost=per_input_element, rows="batch")
def ctc_losses(log_probs, targets, blank: int, per_label: bool):
    """Return minus the logarithm of each target's probability, which is the sum over all alignments with the steps.

    If `per_label`, each loss is divided by the number of labels of its target, or by 1 if there is no label.
    """
    losses = _run(log_probs, targets, blank, None, empty((0, log_probs.shape[1]), log_probs.data))
    return LoDTensor.wrap(divide(losses, _labels(targets, losses)) if per_label else losses)


def _labels(targets, like):
    return astype(beside(np.maximum(1, np.diff(levels_of(targets.structure)[-1])), like), like.dtype)


@ctc_losses.infer
def _infer(log_probs, targets, blank, per_label):
    check_float("ctc_loss", log_probs=log_probs)
    check_integer("ctc_loss", targets=targets)
    check_rank("ctc_loss", "log_probs", log_probs, 2)
    for name, given in (("log_probs", log_probs), ("targets", targets)):
        check_lod_level("ctc_loss", name, given)
    if len(targets.shape) != 1 and targets.shape[1:] != (1,):
        raise ShapeError("ctc_loss, targets", expected="one class per row", got=f"shape {targets.shape}")
    if log_probs.shape[1] != -1 and not 0 <= blank < log_probs.shape[1]:
        raise OutOfRangeError("ctc_loss, blank", expected=f"a class, 0 to {log_probs.shape[1] - 1}", got=blank)
    return TensorSpec((-1,), log_probs.dtype)


@ctc_losses.backward("log_probs")
def _backward(log_probs, targets, d_out, blank, per_label):
    d, labels = empty(log_probs.shape, log_probs.data), _labels(targets, log_probs.data)
    if d_out.shape != labels.shape:
        raise ShapeError("ctc_loss_grad, d_out", expected=f"{len(labels)} sequences", got=d_out.shape)
    _run(log_probs, targets, blank, divide(d_out.data, labels) if per_label else d_out.data, d)
    return log_probs.like(d)


@ctc_losses.examples
def _examples(rng):
    lods = [LoD.from_lengths([lengths]) for lengths in ([5, 3, 4, 1], [2, 0, 3, 1])]
    logits = rng.standard_normal((13, 4))
    log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    yield (
        [LoDTensor(log_probs, lods[0]), LoDTensor(np.array([1, 1, 3, 2, 3, 2]), lods[1])],
        {"blank": 0, "per_label": False},
    )
    none = LoDTensor(np.zeros(0, np.int64), [[0, 0, 0]])
    yield [LoDTensor(log_probs[:3], [[0, 3, 3]]), none], {"blank": 3, "per_label": True}
    yield (
        [LoDTensor(log_probs[:0], [[0]]), LoDTensor(np.zeros((0, 1), np.int32), [[0]])],
        {"blank": 0, "per_label": True},
    )
