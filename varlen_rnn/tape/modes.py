"""Modes of a context: record operators for a gradient, describe them in a program, let all modules evaluate.

Modes are context variables, so two threads that train two models do not affect each other.  A mode is set inside the
`try` whose `finally` resets it, because an interrupt (Ctrl-C) can come as soon as the mode is set.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")

# True if operators are recorded.  Each `no_grad` sets it to a new empty list, which is false, and which `_held`
# recognises by its identity.  A backward pass sets it to False.
GRAD_ENABLED: contextvars.ContextVar[object] = contextvars.ContextVar("grad_enabled", default=True)
# True if modules act as in evaluation mode.  Each `evaluating` sets it to a new object, which is true.
EVALUATING: contextvars.ContextVar[object] = contextvars.ContextVar("evaluating", default=False)
RECORDER: contextvars.ContextVar[Any] = contextvars.ContextVar("recorder", default=None)


def grad_enabled() -> bool:
    """Return whether operators in this context are recorded for a backward pass.

    Examples
    --------
    >>> with no_grad(): grad_enabled()
    False
    """
    return bool(GRAD_ENABLED.get())


@contextlib.contextmanager
def no_grad() -> Iterator[None]:
    """Record no operators in this context, so that inference keeps no values for a backward pass.

    A mode belongs to one thread: threads that are started inside the `with` block begin without it.

    Examples
    --------
    >>> from varlen_rnn.tape.variable import Variable
    >>> x = Variable([1.0], requires_grad=True)
    >>> with no_grad():
    ...     y = x * 2.0
    >>> y.requires_grad
    False
    """
    yield from _held(GRAD_ENABLED, list)


@contextlib.contextmanager
def evaluating() -> Iterator[None]:
    """Let all modules act as in evaluation mode in this context; their own modes, shared by threads, do not change."""
    yield from _held(EVALUATING, object)


def _held(mode: contextvars.ContextVar[object], make: Callable[[], object]) -> Iterator[None]:
    """Set a mode to the new object that `make` returns, until the caller's `with` block ends."""
    before, mine, is_late = mode.get(), make(), False
    try:
        mode.set(mine)
        yield
    except GeneratorExit:  # an interrupt came as `__exit__` began; this runs later, when the traceback is freed
        is_late = True
        raise
    finally:
        if not is_late or mode.get() is mine:  # otherwise an outer block has ended before this one
            mode.set(before)


def recorder() -> Any:
    """Return the recorder of the program being described in this context, or None if operators run."""
    return RECORDER.get()


@contextlib.contextmanager
def recording(into: Any) -> Iterator[None]:
    """Record operators instead of running them: `into.append` gets each operator with its inputs and constants."""
    before = RECORDER.get()
    try:
        RECORDER.set(into)
        yield
    finally:
        RECORDER.set(before)


def recorded(variable: T) -> T:
    """Return the stand-in of a leaf Variable in the program being recorded, or the Variable itself outside of one."""
    into = RECORDER.get()
    return variable if into is None else into.admit(variable)
