"""`backward` applies the operators of the gradient: it runs them, or describes them in the program being recorded.

It releases the records that it has passed, for the recurrence reuses their buffers for gradients.
"""

import numpy as np

from varlen_rnn.errors import DTypeError, ProgramError, ShapeError
from varlen_rnn.lod import LoDTensor
from varlen_rnn.lod_input import as_rows
from varlen_rnn.program.block import Variable, apply, no_grad, recorder
from varlen_rnn.program.spec import Symbol
from varlen_rnn.selected_rows import SelectedRows

SUFFIX = "@GRAD"  # of the name of a gradient in a program


def backward(loss, gradient=None):
    """Leave the gradient of `loss` in the `grad` of every leaf Variable that requires one, added to what is there.

    In a program, the gradient of a variable is a variable named `name@GRAD`.

    Parameters
    ----------
    loss : Variable
        A single number, unless `gradient` is given.
    gradient : array_like, optional
        The gradient of `loss`, of its shape; by default 1.

    Raises
    ------
    ProgramError
        Nothing to differentiate; a second pass through the same records; a parameter updated since the forward pass.
    """
    if not isinstance(loss, Variable):
        raise DTypeError("backward, loss", expected="a Variable", got=type(loss).__name__)
    if isinstance(loss.value, Symbol) and recorder() is None:
        got, hint = "one of a program, outside of it", "call it under vr.program_guard"
        raise ProgramError(f"backward, {loss.name!r}", expected="a variable with a value", got=got, hint=hint)
    if not loss.requires_grad:
        hint = "no input requires a gradient, or it was computed under no_grad"
        raise ProgramError("backward", expected="a variable computed from leaves that require gradients", hint=hint)
    propagate([loss], [_first_gradient(loss, gradient)])


def propagate(targets, gradients):
    """Send the gradients of several Variables, None where there is none, back to the leaves that require one."""
    pairs = [(v, d) for v, d in zip(targets, gradients, strict=True) if d is not None and v.requires_grad]
    records = _reachable([variable for variable, _ in pairs])
    for record in records:
        record.check()
    arrived, owned = {}, {}
    with no_grad():
        for variable, gradient in pairs:
            if not isinstance(gradient.value, Symbol):
                own(gradient.value, owned)  # the caller's
            _send(arrived, variable, gradient, owned)
        for record in records:
            _pass(record, arrived, owned)


def _first_gradient(loss, gradient):
    if gradient is None:
        if any(size != 1 for size in loss.shape):
            hint = "reduce it with sum() or mean(), or give its gradient"
            raise ShapeError("backward", expected="a single number", got=f"shape {loss.shape}", hint=hint)
        if recorder() is not None:
            return apply("fill_constant", shape=loss.shape, value=1.0, dtype=str(loss.dtype))
        return Variable(LoDTensor.wrap(np.ones(loss.shape, loss.dtype), loss.value.structure))
    if isinstance(gradient, Variable) and isinstance(gradient.value, Symbol):
        return gradient
    rows = as_rows(gradient, "gradient")
    if rows.shape != loss.shape or rows.dtype != loss.dtype:
        raise ShapeError("gradient", expected=f"{loss.shape} {loss.dtype}", got=f"{rows.shape} {rows.dtype}")
    return Variable(LoDTensor.wrap(rows, loss.value.structure))


def _reachable(targets):
    """Return the records that led to the targets, last first: each comes after all that used its outputs."""
    found, stack = {}, [variable.record for variable in targets if variable.record]
    while stack:
        record = stack.pop()
        if record.number not in found:
            found[record.number] = record
            stack.extend(v.record for v in record.inputs or () if v is not None and v.record is not None)
    return [found[number] for number in sorted(found, reverse=True)]


def _send(arrived, variable, gradient, owned):
    """Add a gradient to those that arrived at `variable`; a leaf keeps the sum in `grad`."""
    if variable.record is not None:
        arrived.setdefault((variable.record.number, variable._slot), []).append(gradient)
        return
    total = gradient if variable.grad is None else apply("sum", variable.grad, gradient)
    if isinstance(total.value, Symbol):
        # A gradient that several variables share has its name from the first of them.
        variable.grad = apply("assign", total) if SUFFIX in total.name else total
        variable.grad.value.take_name(variable.name + SUFFIX)
        return
    variable.grad = plain(total.value if variable.grad is not None else own(gradient.value, owned))


def plain(value):
    """Return a value as users hold it: an array, or a LoDTensor where there is a LoD, or SelectedRows."""
    return value.data if isinstance(value, LoDTensor) and not value.num_levels else value


def memory_of(value):
    """Return the array at the bottom of the views that a value is made of; None of what nobody changes."""
    if not isinstance(value, (LoDTensor, SelectedRows)):
        return None
    array = value.value if isinstance(value, SelectedRows) else value.data
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def own(value, owned):
    """Return a value that its holder may change in place: a copy if another has its memory, as gradients of `x + y`.

    `owned` holds the memory of all that was given out, by identity.
    """
    array = memory_of(value)
    if array is None:
        return value
    if id(array) in owned:
        return value.copy()
    owned[id(array)] = array
    return value


def _pass(record, arrived, owned):
    """Turn the gradients that arrived at a record's outputs into those of its inputs."""
    try:
        _pass_on(record, arrived, owned)
    finally:
        # After an error too: the operator may have written over what it kept, and a second pass would read that.
        record.release()


def _pass_on(record, arrived, owned):
    gradients = [arrived.pop((record.number, slot), None) for slot in range(len(record.values))]
    if any(gradients):
        outputs = record.outputs()
        summed = [g and (g[0] if len(g) == 1 else apply("sum", *g)) for g in gradients]
        for output, gradient in zip(outputs, summed, strict=True):
            if gradient is not None and isinstance(gradient.value, Symbol) and SUFFIX not in gradient.name:
                gradient.value.take_name(output.name + SUFFIX)
        given = record.op.grad(record.inputs, outputs, summed, **record.attrs)
        for variable, gradient in zip(record.inputs, given, strict=True):
            if gradient is not None and variable is not None and variable.requires_grad:
                _send(arrived, variable, gradient, owned)
