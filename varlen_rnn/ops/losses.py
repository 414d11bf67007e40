"""Losses: softmax and binary cross entropy, focal loss, squared error and Huber loss; also weights of labels."""

import math

import numpy as np

from varlen_rnn.errors import ShapeError
from varlen_rnn.kernels import functions
from varlen_rnn.kernels.arithmetic import exp, expm1, log1p, maximum, minimum, power
from varlen_rnn.kernels.elementwise import elementwise
from varlen_rnn.kernels.losses import cross_entropy_grad, negative_log_likelihood, sum_by_class
from varlen_rnn.kernels.softmax import log_softmax
from varlen_rnn.ops.elementwise import grad_like
from varlen_rnn.ops.equations import forward
from varlen_rnn.ops.examples import rows
from varlen_rnn.ops.indices import indices, rows_at
from varlen_rnn.ops.traits import beside
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.runtime.device import as_operand, empty, zeros
from varlen_rnn.tape.array_methods import operand
from varlen_rnn.tape.checks import check_float, check_integer, check_like, check_rank, check_shape, shared_lod
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import TensorSpec
from varlen_rnn.tape.variable import apply


@operator(outputs=("loss", "log_probabilities"), intermediate=("log_probabilities",), rows="each")
def cross_entropy(logits, labels, ignore_index: int | None = None):
    """Return minus the log-softmax of each row at its label, or 0 if the label is `ignore_index`."""
    classes = _classes(labels, ignore_index, logits.shape[1])
    shared_lod("cross_entropy", logits, labels, names=("logits", "labels"))
    log_probabilities, lod = as_operand(log_softmax(logits.data)), logits.structure
    loss = empty((len(classes),), log_probabilities)
    negative_log_likelihood(log_probabilities, classes, loss)
    return LoDTensor.wrap(loss, lod), LoDTensor.wrap(log_probabilities, lod)


def _classes(labels, ignore_index, num_classes):
    """Return the class of each row, -1 where the label is ignored; raise if any other label is not a class."""
    return indices("cross_entropy, labels", labels, num_classes, "class", ignored=ignore_index)


@cross_entropy.infer
def _infer_cross_entropy(logits, labels, ignore_index=None):
    check_float("cross_entropy", logits=logits)
    check_rank("cross_entropy", "logits", logits, 2)
    if logits.shape[1] == 0:
        raise ShapeError("cross_entropy, logits", expected="at least one class", got=f"shape {logits.shape}")
    check_integer("cross_entropy", labels=labels)
    check_shape("cross_entropy", "labels", labels, logits.shape[:1], "one class for each row of logits")
    return TensorSpec(logits.shape[:1], logits.dtype, logits.lod_level), logits


def _rows_of_grad(specs, axes, ignore_index=None):
    return "each" if axes[1] != 1 else None  # otherwise rows are the axis of classes, over which softmax sums


@cross_entropy.backward("logits", rows=_rows_of_grad)
def _cross_entropy_grad(labels, log_probabilities, d_loss, ignore_index: int | None = None):
    """Return the softmax of each row minus its one-hot label, times the gradient of the row's loss."""
    classes, data = _classes(labels, ignore_index, log_probabilities.shape[1]), as_operand(log_probabilities.data)
    d = empty(data.shape, data)
    cross_entropy_grad(data, classes, as_operand(d_loss.data), d)
    return log_probabilities.like(d)


@_cross_entropy_grad.infer
def _infer_cross_entropy_grad(labels, log_probabilities, d_loss, ignore_index=None):
    loss, _ = _infer_cross_entropy(log_probabilities, labels, ignore_index)
    check_like("cross_entropy_grad", "d_loss", d_loss, loss)
    return log_probabilities


@cross_entropy.examples
def _examples_of_classes(rng):
    yield [rows(rng, 3), np.array([0, 2, 1, 1, 0, 2])], {}
    yield [rows(rng, 3), np.array([0, -100, 1, 1, -100, 2])], {"ignore_index": -100}


@operator(rows=beside("each", 1))
def label_weights(labels, weight, ignore_index: int):
    """Return the weight of each row in a mean: the weight of its class, or 0 if the row is ignored."""
    return labels.like(rows_at(as_operand(weight.data), _classes(labels, ignore_index, len(weight.data))))


@label_weights.infer
def _infer_label_weights(labels, weight, ignore_index):
    check_float("label_weights", weight=weight)
    check_rank("label_weights", "weight", weight, 1)
    check_integer("label_weights", labels=labels)
    check_rank("label_weights", "labels", labels, 1)
    return TensorSpec(labels.shape, weight.dtype, labels.lod_level)


@label_weights.backward("weight")
def _label_weights_grad(labels, weight, d_out, ignore_index: int):
    """Return, for each class, the sum of the gradients of its rows."""
    sums = empty(weight.shape, weight.data)
    sum_by_class(as_operand(d_out.data), _classes(labels, ignore_index, len(sums)), sums)
    return weight.like(sums)


@label_weights.examples
def _examples_of_label_weights(rng):
    yield [np.array([0, 2, -1, 1, 0, 2]), rng.random(3)], {"ignore_index": -1}
    yield [np.array([0, 2, 1, 1, 0, 2]), rng.random(3)], {"ignore_index": -1}


@elementwise(lambda loss, gamma: power(-expm1(-loss), gamma) * loss, numbers=1)
def focal_loss(loss, gamma):
    """Return a cross entropy times `(1 - p) ** gamma`, where `p = exp(-loss)`."""
    return math.pow(-functions.expm1(-loss), gamma) * loss


def _focal_grad_on_host(x, d_y, gamma):
    wrong = -expm1(-x)  # 1 - p, the probability of a wrong class
    inner = np.where(wrong > 0, power(wrong, gamma - 1), 0) if gamma else zeros(x.shape, x)
    return d_y * (power(wrong, gamma) + x.dtype.type(gamma) * inner * exp(-x) * x)


@elementwise(_focal_grad_on_host, numbers=1)
def focal_loss_grad(x, d_y, gamma):
    """Return the gradient of `focal_loss`."""
    zero, one, wrong = type(x)(0), type(x)(1), -functions.expm1(-x)
    inner = math.pow(wrong, gamma - one) if wrong > zero and gamma != zero else zero
    return d_y * (math.pow(wrong, gamma) + gamma * inner * functions.exp(-x) * x)


@operator(rows="each")
def focal(loss, gamma: float):
    """Return a cross entropy times `(1 - p) ** gamma`, where `p = exp(-loss)` is the probability of the label."""
    return loss.like(focal_loss(loss.data, gamma))


@focal.infer
def _infer_focal(loss, gamma):
    check_float("focal", loss=loss)
    if not 0 <= gamma < np.inf:
        raise ShapeError("focal_loss, gamma", expected="finite and at least 0", got=gamma)
    return loss


@focal.backward("loss")
def _focal_grad(loss, d_out, gamma: float):
    """Return the gradient of `loss`, the cross entropy that is the input of `focal`."""
    return loss.like(focal_loss_grad(loss.data, d_out.data, gamma))


@focal.examples
def _examples_of_focal(rng):
    for gamma in (0.0, 0.5, 2.0):
        yield [rows(rng, positive=True)], {"gamma": gamma}


@forward
def logistic_loss(x, y):
    """Return the binary cross entropy of the logit `x` and the target `y`; exponentials cannot overflow."""
    return log1p(exp(-abs(x))) + maximum(x, 0) - x * y


@operator(rows="each")
def binary_cross_entropy(logits, targets):
    """Return the binary cross entropy of each element against a target between 0 and 1."""
    shared_lod("binary_cross_entropy", logits, targets, names=("logits", "targets"))
    return logits.like(logistic_loss(logits.data, targets.data))


@binary_cross_entropy.infer
def _infer_binary(logits, targets):
    check_float("binary_cross_entropy", logits=logits, targets=targets)
    check_shape("binary_cross_entropy", "targets", targets, logits.shape, "one target for each logit")
    return logits


@binary_cross_entropy.grad
def _grad_of_binary(inputs, outputs, d_outputs):
    logits, targets = inputs
    d_logits = d_targets = None
    if logits.requires_grad:
        d_logits = grad_like((apply("sigmoid", logits) - targets) * d_outputs[0], logits)
    if targets.requires_grad:
        d_targets = grad_like(-(logits * d_outputs[0]), targets)
    return [d_logits, d_targets]


@forward
def squared_difference(x, target):
    """Return the squared difference."""
    difference = x - target
    return difference * difference


@operator(rows="each")
def squared_error(x, target):
    """Return the squared difference of `x` and `target`, element by element."""
    lod = shared_lod("mse_loss", x, target, names=("x", "target"))
    return LoDTensor.wrap(squared_difference(x.data, target.data), lod)


@squared_error.infer
def _infer_squared(x, target):
    check_float("mse_loss", x=x, target=target)
    check_shape("mse_loss", "target", target, x.shape)
    return x._replace(lod_level=max(x.lod_level, target.lod_level))


@squared_error.grad
def _grad_of_squared(inputs, outputs, d_outputs):
    x, target = inputs
    half = (x - target) * d_outputs[0]
    d = half + half
    return [grad_like(d, x) if x.requires_grad else None, grad_like(-d, target) if target.requires_grad else None]


@forward
def huber_loss(x, target, delta: float):
    """Return half the squared difference; where the difference exceeds `delta`, a straight line continues the curve."""
    distance = abs(x - target)
    near = minimum(distance, delta)
    return near * (distance - 0.5 * near)


@operator(rows="each")
def huber(x, target, delta: float):
    """Return half the squared difference of each element, or a straight line where the difference exceeds `delta`."""
    lod = shared_lod("huber_loss", x, target, names=("x", "target"))
    return LoDTensor.wrap(huber_loss(x.data, target.data, delta), lod)


@huber.infer
def _infer_huber(x, target, delta):
    check_float("huber_loss", x=x, target=target)
    if not 0 < delta <= float(np.finfo(x.dtype).max):
        raise ShapeError("huber_loss, delta", expected=f"a number above 0 that {x.dtype} can hold", got=delta)
    check_shape("huber_loss", "target", target, x.shape)
    return x._replace(lod_level=max(x.lod_level, target.lod_level))


@huber.grad
def _grad_of_huber(inputs, outputs, d_outputs, delta):
    x, target = inputs
    difference = x - target
    below = apply("minimum", difference, operand(delta, difference))
    d = apply("maximum", below, operand(-delta, difference)) * d_outputs[0]
    return [grad_like(d, x) if x.requires_grad else None, grad_like(-d, target) if target.requires_grad else None]


@huber.examples
def _examples_of_huber(rng):
    for delta in (0.5, 2.0):
        yield [rows(rng, 3), rng.standard_normal((6, 3))], {"delta": delta}
    yield [rng.standard_normal((6, 3)), rows(rng, 3)], {"delta": 1.0}


@binary_cross_entropy.examples
@squared_error.examples
def _examples_of_two(rng):
    x = rows(rng, 3)
    yield [x, rng.random((6, 3))], {}
    yield [rng.standard_normal((6, 3)), rows(rng, 3)], {}
    yield [x, rows(rng, 3)], {}
