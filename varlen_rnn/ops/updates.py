"""The updates of optimizers: operators that change a parameter in place by a dense or a sparse gradient.

For a dense gradient, the kernels treat the whole parameter as one row.  A sparse gradient (SelectedRows) changes the
same rows as in Fluid: `sgd`, `adagrad`, and `adam` with `lazy` change only the listed rows.  `momentum` and `adam`
change all rows, because momentum decays everywhere.  A sparse gradient without rows is a gradient of zeros, and its
update is a step, too.  So all shards of a table decay equally, even if a batch reads no row of a shard.

Operators are declared from `varlen_rnn.kernels.updates`, where each update names its operands.  Only `adam` is
written out here, because its numbers change from step to step.
"""

import functools
import inspect
import math

import numpy as np

from varlen_rnn.errors import DTypeError, OutOfRangeError, ShapeError
from varlen_rnn.kernels import updates
from varlen_rnn.kernels.arithmetic import decayed
from varlen_rnn.ops.indices import INT64, rows_at
from varlen_rnn.rows.checks import read_only
from varlen_rnn.rows.selected_rows import SelectedRows
from varlen_rnn.runtime.device import as_operand, empty, on_device
from varlen_rnn.runtime.placeholder import first_of
from varlen_rnn.tape.checks import check_float, check_like
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import TensorSpec

ONE_ROW = read_only(np.zeros(1, np.int64))  # read-only as the rows of SelectedRows, so that Numba compiles one kernel
_NUMBER = TensorSpec((), np.dtype(np.float64))  # spec of the learning rate
_COUNT = TensorSpec((), INT64)  # spec of the number of steps taken
_STATES = tuple(f"states[{number}]" for number in range(9))


def _operands(gradient, listed_only, *tensors):
    """Return the positions of the rows to update, and a list of matrices: the gradient, and a view of each tensor.

    If `listed_only`, a sparse gradient updates only its own rows; otherwise, it is made dense first.
    """
    if isinstance(gradient, SelectedRows):
        if listed_only:
            width = math.prod(gradient.shape[1:])  # computed, because `reshape` refuses -1 if there are no rows
            value = as_operand(gradient.value).reshape(len(gradient.rows), width)
            return gradient.rows, [value, *(tensor.data.reshape(gradient.height, width) for tensor in tensors)]
        gradient = gradient.to_dense()
    else:
        gradient = gradient.data
    return ONE_ROW, [array.reshape(1, -1) for array in (as_operand(gradient), *(tensor.data for tensor in tensors))]


def _decayed(gradient, rows, parameter, weight_decay):
    """Return the gradient plus `weight_decay` times the rows of the parameter at the positions `rows`."""
    if not weight_decay:
        return gradient
    if rows is not ONE_ROW:  # otherwise, the whole parameter is one row
        parameter = rows_at(parameter, as_operand(rows))
    return decayed(gradient, parameter, weight_decay)


def _in_memory(lr):
    """Return the learning rate as an array of one float64 on the host."""
    return as_operand(np.array(lr.data.item()) if on_device(lr.data) else lr.data).reshape(1)


def _rate(lr, parameter):
    """Return the learning rate for a kernel: an array on the host, where kernels read it, a number on a device."""
    return lr.data.item() if on_device(parameter) else _in_memory(lr)


def _merged(gradient):
    return gradient.merge() if isinstance(gradient, SelectedRows) else gradient


def declare(name):
    """Declare and return the operator of an update; its constants are the update's constants and `weight_decay`.

    `weight_decay` times the parameter is added to the gradient, unless the update itself has a constant `weight_decay`.
    """
    update = updates.UPDATES[name]

    def forward(parameter, gradient, lr, *states, weight_decay, **constants):
        decay = 0.0 if "weight_decay" in update.constants else weight_decay
        # Sum repeated rows, so that each row decays once.  Without decay, updates of "repeated" rows need no sums.
        if update.rows == "listed" or (update.rows == "repeated" and decay):
            gradient = _merged(gradient)
        rows, (value, *views, p) = _operands(gradient, update.rows != "all", *states, parameter)
        constants["weight_decay"] = weight_decay
        numbers = [constants[name] for name in update.constants]
        update.kernel(rows, _decayed(value, rows, p, decay), _rate(lr, p), *numbers, *views, p)
        return parameter, *states

    kinds = {name: type(value) for name, value in update.constants.items()} | {"weight_decay": float}
    place, inputs = inspect.Parameter, ("parameter", "gradient", "lr", *update.states)
    parameters = [place(name, place.POSITIONAL_OR_KEYWORD) for name in inputs]
    parameters += [place(name, place.KEYWORD_ONLY, annotation=kind) for name, kind in kinds.items()]
    forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    forward.__module__, forward.__name__, forward.__qualname__ = update.kernel.__module__, name, name
    forward.__doc__ = (update.kernel.__doc__ or "").partition("\n")[0]  # `python -OO` drops docstrings
    made = operator(outputs=("parameter", *update.states), in_place=True)(forward)
    return _completed(made, update)


def _completed(made, update, **more):
    """Declare `infer` and examples for the operator `made` of an update, and return it."""
    made.infer(functools.partial(_infer, made.op, update.fractions))

    @made.examples
    def examples(rng):
        states = [np.array(2) if name == "step" else rng.random((3, 2)) for name in made.op.inputs[3:]]
        for gradient in (rng.standard_normal((3, 2)), SelectedRows([1, 1], rng.standard_normal((2, 2)), 3)):
            inputs = [rng.standard_normal((3, 2)), gradient, np.array(0.1), *states]
            yield inputs, {"weight_decay": 0.25} | update.constants | more

    return made


def _infer(op, fractions, parameter, gradient, lr, *states, **attrs):
    check_float(op.type, parameter=parameter)
    if gradient.dtype != parameter.dtype:
        raise DTypeError(f"{op.type}, gradient", expected=str(parameter.dtype), got=gradient.dtype)
    if gradient.shape != parameter.shape:
        raise ShapeError(f"{op.type}, gradient", expected=f"shape {parameter.shape}", got=f"shape {gradient.shape}")
    for name in fractions:
        if not 0 <= attrs[name] < 1:
            raise OutOfRangeError(f"{op.type}, {name}", expected=f"0 <= {name} < 1", got=attrs[name])
    check_like(op.type, "lr", lr, _NUMBER)
    for name, given, state in zip(_STATES, op.inputs[3:], states, strict=False):
        check_like(op.type, name, state, _COUNT if given == "step" else parameter)
    return parameter, *states


for _name in updates.UPDATES:
    if _name != "adam":
        declare(_name)


@operator(outputs=("parameter", "step", "moment1", "moment2"), in_place=True)
def adam(
    parameter, gradient, lr, step, moment1, moment2, *,
    beta1: float, beta2: float, epsilon: float, corrected: bool, lazy: bool, weight_decay: float, decoupled: bool,
):  # fmt: skip
    """Update by adaptive moments with bias correction; `corrected` adds epsilon to the bias-corrected root."""
    rows, (value, m1, m2, p) = _operands(_merged(gradient), lazy, moment1, moment2, parameter)
    rate, numbers, found = _in_memory(lr), empty((3,), step.data, _NUMBER.dtype), empty((1,), step.data)
    updates.numbers_of_adam(rate, step.data.reshape(1), beta1, beta2, epsilon, corrected, weight_decay, numbers, found)
    if first_of(found, -1) >= 0:
        raise OutOfRangeError("adam, step", expected="at least 0, and less than 2**63 - 1", got=int(step.data))
    if decoupled and weight_decay:
        share = 1 - numbers[2:]
        updates.shrink(rows, share.item() if on_device(p) else share, p)
    else:
        value = _decayed(value, rows, p, weight_decay)
    rate, epsilon = numbers[:2].tolist() if on_device(p) else (numbers[:1], numbers[1:2])
    updates.adam(rows, value, rate, beta1, beta2, epsilon, m1, m2, p)
    return parameter, step, moment1, moment2


_completed(adam, updates.UPDATES["adam"], corrected=True, lazy=False, decoupled=False)
