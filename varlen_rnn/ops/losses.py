"""Losses, one number a row: softmax cross entropy and binary cross entropy, from logits."""

import numpy as np

from varlen_rnn.errors import ShapeError
from varlen_rnn.kernels.rows import negative_log_likelihood
from varlen_rnn.lod import LoDTensor
from varlen_rnn.ops.checks import check_float, check_integer, check_like, check_rank, check_shape, indices, shared_lod
from varlen_rnn.ops.elementwise import grad_like, log_softmax
from varlen_rnn.tape.operator import Op, register
from varlen_rnn.tape.spec import TensorSpec
from varlen_rnn.tape.variable import apply


def _infer_softmax(logits, labels):
    check_float("cross_entropy", logits=logits)
    check_rank("cross_entropy", "logits", logits, 2)
    if logits.shape[1] == 0:
        raise ShapeError("cross_entropy, logits", expected="at least one class", got=f"shape {logits.shape}")
    check_integer("cross_entropy", labels=labels)
    check_shape("cross_entropy", "labels", labels, logits.shape[:1], "one class a row of logits")
    return [TensorSpec(logits.shape[:1], logits.dtype, logits.lod_level), logits]


def _checked_classes(labels, num_classes):
    return indices("cross_entropy, labels", labels, num_classes, "class")


def _softmax(logits, labels):
    classes = _checked_classes(labels, logits.shape[1])
    shared_lod("cross_entropy", logits, labels, names=("logits", "labels"))
    log_probabilities, lod = np.ascontiguousarray(log_softmax(logits.data)), logits.structure
    loss = np.empty(len(classes), log_probabilities.dtype)
    negative_log_likelihood(log_probabilities, classes, loss)
    return [LoDTensor.wrap(loss, lod), LoDTensor.wrap(log_probabilities, lod)]


def _softmax_grad(inputs, outputs, d_outputs):
    return [apply("cross_entropy_grad", inputs[1], outputs[1], d_outputs[0]), None]


def _softmax_grad_forward(labels, log_probabilities, d_loss):
    """Softmax minus the one-hot label, times the gradient of the row's loss."""
    d = np.exp(log_probabilities.data)
    d[np.arange(len(d)), _checked_classes(labels, d.shape[1])] -= 1
    d *= d_loss.data[:, None]
    return [log_probabilities.like(d)]


def _infer_softmax_grad(labels, log_probabilities, d_loss):
    loss, _ = _infer_softmax(log_probabilities, labels)
    check_like("cross_entropy_grad", "d_loss", d_loss, loss)
    return [log_probabilities]


_PLACES = ("loss", "log_probabilities")
register(Op("cross_entropy", ("logits", "labels"), _infer_softmax, _softmax, _softmax_grad, _PLACES))
register(
    Op("cross_entropy_grad", ("labels", "log_probabilities", "d_loss"), _infer_softmax_grad, _softmax_grad_forward)
)


def _infer_binary(logits, targets):
    check_float("binary_cross_entropy", logits=logits, targets=targets)
    check_shape("binary_cross_entropy", "targets", targets, logits.shape, "one target a logit")
    return [logits]


def _binary(logits, targets):
    shared_lod("binary_cross_entropy", logits, targets, names=("logits", "targets"))
    x, y = logits.data, targets.data
    # log(1 + exp(-|x|)) + max(x, 0) - x y: no exponential of a large number.
    return [logits.like(np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0) - x * y)]


def _binary_grad(inputs, outputs, d_outputs):
    logits, targets = inputs
    d_logits = d_targets = None
    if logits.requires_grad:
        d_logits = grad_like((apply("sigmoid", logits) - targets) * d_outputs[0], logits)
    if targets.requires_grad:
        d_targets = grad_like(-(logits * d_outputs[0]), targets)
    return [d_logits, d_targets]


register(Op("binary_cross_entropy", ("logits", "targets"), _infer_binary, _binary, _binary_grad))


def _infer_squared(x, target):
    check_float("mse_loss", x=x, target=target)
    check_shape("mse_loss", "target", target, x.shape)
    return [x._replace(lod_level=max(x.lod_level, target.lod_level))]


def _squared(x, target):
    lod = shared_lod("mse_loss", x, target, names=("x", "target"))
    difference = np.asarray(x.data - target.data)
    return [LoDTensor.wrap(difference * difference, lod)]


def _squared_grad(inputs, outputs, d_outputs):
    x, target = inputs
    half = (x - target) * d_outputs[0]
    d = half + half
    return [grad_like(d, x) if x.requires_grad else None, grad_like(-d, target) if target.requires_grad else None]


register(Op("squared_error", ("x", "target"), _infer_squared, _squared, _squared_grad))
