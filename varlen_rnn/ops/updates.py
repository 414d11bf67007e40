"""The optimizers' updates, each one operator that takes a dense or a SelectedRows gradient, in place on the parameter.

A dense update is the update of all rows: the kernels see one row as long as the parameter.  Which rows a sparse
gradient touches is Fluid's rule: `sgd` and `adagrad` only those listed, `momentum` and `adam` all of them, for
momentum decays everywhere; `adam` with `lazy` only those listed.  An empty sparse gradient updates nothing.
"""

import functools
import math

import numpy as np

from varlen_rnn.errors import DTypeError, OutOfRangeError, ShapeError
from varlen_rnn.kernels import updates
from varlen_rnn.rows.selected_rows import SelectedRows
from varlen_rnn.runtime.device import as_operand
from varlen_rnn.tape.checks import check_float, check_like
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import TensorSpec

_ONE_ROW = np.zeros(1, np.int64)
_ONE_ROW.flags.writeable = False  # as the rows of SelectedRows: one compiled kernel serves both
_NUMBER = TensorSpec((), np.dtype(np.float64))  # the learning rate
_MOST_STEPS = 2**63 - 1
_COUNT = TensorSpec((), np.dtype(np.int64))  # steps taken
_STATES = tuple(f"states[{number}]" for number in range(3))


def _operands(gradient, listed_only, *tensors):
    """Return `rows`, the gradient and views of the tensors that fit them; no rows where nothing is to be done."""
    if isinstance(gradient, SelectedRows):
        if len(gradient.rows) == 0:
            return gradient.rows, [np.empty((0, 0), gradient.dtype)] * (1 + len(tensors))
        if listed_only:
            shape = (gradient.height, -1)
            value = as_operand(gradient.value).reshape(len(gradient.rows), -1)
            return gradient.rows, [value, *(tensor.data.reshape(shape) for tensor in tensors)]
        gradient = gradient.to_dense()
    else:
        gradient = gradient.data
    return _ONE_ROW, [array.reshape(1, -1) for array in (as_operand(gradient), *(tensor.data for tensor in tensors))]


def _decayed(gradient, rows, parameter, weight_decay):
    """Return the gradient, plus the weight decay of the rows that are touched."""
    return gradient + weight_decay * parameter[rows] if weight_decay else gradient


def _merged(gradient):
    return gradient.merge() if isinstance(gradient, SelectedRows) else gradient


def _update(**constants):
    """Give an update what all have: `infer`, for gradient and states are like the parameter, and examples."""

    def give(made):
        made.infer(functools.partial(_infer, made.op.type))

        @made.examples
        def examples(rng):
            states = [np.array(2) if name == "step" else rng.random((3, 2)) for name in made.op.inputs[3:]]
            for gradient in (rng.standard_normal((3, 2)), SelectedRows([1, 1], rng.standard_normal((2, 2)), 3)):
                yield [rng.standard_normal((3, 2)), gradient, np.array(0.1), *states], constants

        return made

    return give


def _infer(op, parameter, gradient, lr, *states, **attrs):
    check_float(op, parameter=parameter)
    if gradient.dtype != parameter.dtype:
        raise DTypeError(f"{op}, gradient", expected=str(parameter.dtype), got=gradient.dtype)
    if gradient.shape != parameter.shape:
        raise ShapeError(f"{op}, gradient", expected=f"shape {parameter.shape}", got=f"shape {gradient.shape}")
    for name in ("beta1", "beta2", "alpha", "rho"):
        if not 0 <= attrs.get(name, 0) < 1:
            raise OutOfRangeError(f"{op}, {name}", expected=f"0 <= {name} < 1", got=attrs[name])
    check_like(op, "lr", lr, _NUMBER)
    for number, state in enumerate(states):
        check_like(op, _STATES[number], state, _COUNT if op == "adam" and number == 0 else parameter)
    return parameter, *states


@_update(weight_decay=0.25)
@operator(outputs=("parameter",), in_place=True)
def sgd(parameter, gradient, lr, weight_decay: float):
    """Update by `p -= lr g`."""
    # Rows that are listed twice decay once; without decay, they need not be merged.
    rows, (value, p) = _operands(_merged(gradient) if weight_decay else gradient, True, parameter)
    updates.sgd(rows, _decayed(value, rows, p, weight_decay), lr.data.item(), p)
    return parameter


@_update(momentum=0.9, nesterov=True, weight_decay=0.25)
@operator(outputs=("parameter", "velocity"), in_place=True)
def momentum(parameter, gradient, lr, velocity, momentum: float, nesterov: bool, weight_decay: float):
    """Update by `v = momentum v + g; p -= lr v`, or with Nesterov's `p -= lr (g + momentum v)`."""
    rows, (value, v, p) = _operands(gradient, False, velocity, parameter)
    value = _decayed(value, rows, p, weight_decay)
    updates.momentum(rows, value, lr.data.item(), momentum, nesterov, v, p)
    return parameter, velocity


@_update(epsilon=1e-6, weight_decay=0.25)
@operator(outputs=("parameter", "moment"), in_place=True)
def adagrad(parameter, gradient, lr, moment, epsilon: float, weight_decay: float):
    """Update by `m += g^2; p -= lr g / (sqrt(m) + epsilon)`."""
    rows, (value, m, p) = _operands(_merged(gradient), True, moment, parameter)
    value = _decayed(value, rows, p, weight_decay)
    updates.adagrad(rows, value, lr.data.item(), epsilon, m, p)
    return parameter, moment


@_update(beta1=0.9, beta2=0.99, epsilon=1e-8, corrected=True, lazy=False, weight_decay=0.25, decoupled=False)
@operator(outputs=("parameter", "step", "moment1", "moment2"), in_place=True)
def adam(
    parameter, gradient, lr, step, moment1, moment2,
    beta1: float, beta2: float, epsilon: float, corrected: bool, lazy: bool, weight_decay: float, decoupled: bool,
):  # fmt: skip
    """Update by adaptive moments, corrected for their start at zero; epsilon is added to roots `corrected` or not."""
    rows, (value, m1, m2, p) = _operands(_merged(gradient), lazy, moment1, moment2, parameter)
    if not len(rows):
        return parameter, step, moment1, moment2
    t, rate = int(step.data) + 1, lr.data.item()
    if not 0 < t <= _MOST_STEPS:
        raise OutOfRangeError("adam, step", expected="at least 0, and less than 2**63 - 1", got=t - 1)
    step.data[...] = t
    if decoupled and weight_decay:
        p[rows] *= 1 - rate * weight_decay
    else:
        value = _decayed(value, rows, p, weight_decay)
    # The kernel divides by the uncorrected root: both sides of the quotient times the root of the correction.
    root = math.sqrt(1 - beta2**t)
    epsilon = epsilon * root if corrected else epsilon
    updates.adam(rows, value, rate * root / (1 - beta1**t), beta1, beta2, epsilon, m1, m2, p)
    return parameter, step, moment1, moment2


@_update(alpha=0.9, momentum=0.5, epsilon=1e-8, weight_decay=0.25)
@operator(outputs=("parameter", "square", "velocity"), in_place=True)
def rmsprop(
    parameter, gradient, lr, square, velocity, alpha: float, momentum: float, epsilon: float, weight_decay: float
):
    """Update by `s = alpha s + (1 - alpha) g^2; v = momentum v + g / (sqrt(s) + epsilon); p -= lr v`."""
    rows, (value, s, v, p) = _operands(gradient, False, square, velocity, parameter)
    value = _decayed(value, rows, p, weight_decay)
    updates.rmsprop(rows, value, lr.data.item(), alpha, momentum, epsilon, s, v, p)
    return parameter, square, velocity


@_update(rho=0.9, epsilon=1e-6, weight_decay=0.25)
@operator(outputs=("parameter", "square", "delta"), in_place=True)
def adadelta(parameter, gradient, lr, square, delta, rho: float, epsilon: float, weight_decay: float):
    """Update by `s = rho s + (1 - rho) g^2; d = g sqrt(a + epsilon) / sqrt(s + epsilon); p -= lr d`."""
    rows, (value, s, a, p) = _operands(gradient, False, square, delta, parameter)
    value = _decayed(value, rows, p, weight_decay)
    updates.adadelta(rows, value, lr.data.item(), rho, epsilon, s, a, p)
    return parameter, square, delta
