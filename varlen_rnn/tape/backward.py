"""Begin a backward pass: `backward`, and the check of the gradient that the pass begins with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from varlen_rnn.errors import DTypeError, PlaceError, ProgramError, ShapeError
from varlen_rnn.rows.lod import NO_LOD, LoDTensor
from varlen_rnn.rows.selected_rows import SelectedRows
from varlen_rnn.runtime.device import beside, on_device
from varlen_rnn.runtime.place import CUDA
from varlen_rnn.tape.array_methods import operand
from varlen_rnn.tape.gradient import Pass
from varlen_rnn.tape.modes import GRAD_ENABLED, RECORDER
from varlen_rnn.tape.spec import Symbol
from varlen_rnn.tape.variable import Variable, apply, variables_of
from varlen_rnn.typing import Rows


def backward(loss: Variable, gradient: Rows | None = None) -> None:
    """Add the gradient of `loss` to the `grad` of every leaf Variable that requires one.

    In a program, the gradient of a variable is a variable named `name@GRAD`.

    Several threads can call it at the same time, also for the same leaves: no gradient is lost, but the order of the
    additions varies.  If two passes reach the same record, one of them raises.  Setting `grad` to None during a pass
    drops the gradients that arrived before.  Parameters must not change until the pass ends.  After an error or an
    interrupt during a pass, only some leaves have gradients: set `grad` to None, and compute the loss again.

    Parameters
    ----------
    loss : Variable
        A single number, unless `gradient` is given.
    gradient : array_like or number, optional
        The gradient of `loss`, with its shape and data type, or a Python number.  By default 1.

    Raises
    ------
    ProgramError
        If nothing requires a gradient, if the records were passed before, or if a parameter was updated since the
        forward pass by an optimizer, `assign`, `load_state_dict` or an `Executor`.  A direct change of the array, such
        as `p.data[...] = 0`, cannot be seen: the gradient is then computed from the new values.
    ShapeError, DTypeError
        If `loss` is not a Variable with a single number, if `gradient` has another shape or data type than `loss`, or
        if the `grad` of a leaf was set to something that is no gradient.

    Examples
    --------
    >>> x = Variable([1.0, 2.0], requires_grad=True)
    >>> backward((x * x).sum()); x.grad
    array([2., 4.])
    >>> backward(x * x, gradient=[1.0, 10.0]); x.grad
    array([ 4., 44.])
    """
    if RECORDER.get() is not None:
        _check_no_hooks(RECORDER.get().leaves())
    propagate([loss], [first_gradient(loss, gradient, "backward")])


def _check_no_hooks(leaves: Mapping[str, Variable]) -> None:
    """Raise if a leaf of a program has a hook or is replicated, because a run of the program would ignore both."""
    for name, leaf in leaves.items():
        if leaf.hooks is not None and leaf.hooks.watcher is not None:
            got, hint = f"{name!r}, which is replicated", "distributed.ReplicatedProgram runs a program on ranks"
            raise ProgramError("backward in a program", expected="leaves of one process", got=got, hint=hint)
        if leaf.hooks:
            got, hint = f"a hook of {name!r}", "remove it, or add an operator that changes the gradient"
            raise ProgramError("backward in a program", expected="leaves without hooks", got=got, hint=hint)


def propagate(
    targets: Sequence[Variable], gradients: Sequence[Variable | None], pass_of: Callable[..., Any] = Pass
) -> Any:
    """Send gradients of Variables (None if there is none) back to the leaves; return the Pass that `pass_of` made."""
    pairs = [(v, d) for v, d in zip(targets, gradients, strict=True) if d is not None and v.requires_grad]
    before = GRAD_ENABLED.get()
    try:  # like `no_grad`, but three times as fast
        GRAD_ENABLED.set(False)
        made = pass_of(apply, variables_of, _gradient_like)
        made.run(pairs)
        return made
    finally:
        GRAD_ENABLED.set(before)


def first_gradient(loss: Variable, gradient: Rows | None, function: str) -> Variable:
    """Return the gradient that a pass from `loss` begins with, or raise; errors name the public `function`."""
    if not isinstance(loss, Variable):
        raise DTypeError(f"{function}, loss", expected="a Variable", got=type(loss).__name__)
    if isinstance(loss.value, Symbol) and RECORDER.get() is None:
        got, hint = "a variable of a program, outside of its program_guard", "call it under vr.program_guard"
        raise ProgramError(f"{function}, {loss.name!r}", expected="a variable with a value", got=got, hint=hint)
    if not loss.requires_grad:
        hint = "no input of the loss requires a gradient, or the loss was computed under no_grad"
        raise ProgramError(function, expected="a variable computed from leaves that require gradients", hint=hint)
    if gradient is None:
        if any(size != 1 for size in loss.shape):
            hint = "reduce the loss with sum() or mean(), or give its gradient"
            raise ShapeError(function, expected="a single number", got=f"shape {loss.shape}", hint=hint)
        if RECORDER.get() is not None:
            return apply("fill_constant", shape=loss.shape, value=1.0, dtype=str(loss.dtype))
        one = beside(np.ones((), loss.dtype), loss.value.data).reshape(loss.shape)
        return Variable(LoDTensor.wrap(one, loss.value.structure))
    if isinstance(gradient, Variable) and isinstance(gradient.value, Symbol):
        return gradient
    if isinstance(gradient, SelectedRows):
        hint = "gradient.to_dense() is an array"
        raise DTypeError(f"{function}, gradient", expected="an array", got="SelectedRows", hint=hint)
    return _gradient_like(gradient, loss, f"{function}, gradient")


def _gradient_like(given: Any, like: Variable, name: str) -> Variable:
    """Return a gradient as a Variable with the shape, data type and device of `like`, or raise if it has others."""
    value = given.value if isinstance(given, Variable) else given
    if not isinstance(value, SelectedRows) and (type(value) is not np.ndarray or value.dtype != like.dtype):
        other = operand(value, like)
        value = other.value.data if isinstance(other, Variable) else other.data
    if value.dtype != like.dtype:
        hint = "x.astype(dtype) converts; the library never mixes data types silently"
        raise DTypeError(name, expected=like.dtype, got=value.dtype, hint=hint)
    if value.shape != like.shape:
        raise ShapeError(name, expected=f"shape {like.shape}", got=f"shape {value.shape}")
    if isinstance(value, SelectedRows):
        return Variable(value)
    if on_device(value) != (like.device == CUDA):
        if value.ndim or on_device(value):
            raise PlaceError(name, expected=f"a gradient on {like.device}", got="a gradient on another device")
        value = beside(value, like.value.data)  # a single number on the host is copied to the device
    return Variable(LoDTensor.wrap(value, NO_LOD if isinstance(like.value, SelectedRows) else like.value.structure))


Variable._send_back = backward
