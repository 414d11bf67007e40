"""Modes: whether applied operators are remembered for a gradient, or described in a program instead of run.

Modes are context variables, so two threads that train two models do not affect each other.  A mode is set inside the
`try` whose end resets it, because an interrupt (Ctrl-C) may come as soon as it is set, before its token is stored.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any, TypeVar

T = TypeVar("T")

# True if operators are recorded.  Each `no_grad` sets it to an empty list of its own: false, and known by identity.
GRAD_ENABLED: contextvars.ContextVar[object] = contextvars.ContextVar("grad_enabled", default=True)
RECORDER: contextvars.ContextVar[Any] = contextvars.ContextVar("recorder", default=None)


def grad_enabled() -> bool:
    """Return whether operators of this context are recorded for a backward pass.

    Examples
    --------
    >>> with no_grad(): grad_enabled()
    False
    """
    return bool(GRAD_ENABLED.get())


@contextlib.contextmanager
def no_grad() -> Iterator[None]:
    """Record nothing in this context: inference keeps nothing for a backward pass.

    A mode belongs to one thread: threads that are started inside begin without it.

    Examples
    --------
    >>> from varlen_rnn.tape.variable import Variable
    >>> x = Variable([1.0], requires_grad=True)
    >>> with no_grad():
    ...     y = x * 2.0
    >>> y.requires_grad
    False
    """
    before, mine, is_late = GRAD_ENABLED.get(), list[None](), False
    try:
        GRAD_ENABLED.set(mine)
        yield
    except GeneratorExit:  # an interrupt came as `__exit__` began, so this runs when the traceback is freed
        is_late = True
        raise
    finally:
        if not is_late or GRAD_ENABLED.get() is mine:  # otherwise an outer `no_grad` has ended before this one
            GRAD_ENABLED.set(before)


def recorder() -> Any:
    """Return the recorder of the program being described in this context, or None if operators run."""
    return RECORDER.get()


@contextlib.contextmanager
def recording(into: Any) -> Iterator[None]:
    """Describe operators instead of running them; `into.append` receives the descriptions."""
    before = RECORDER.get()
    try:
        RECORDER.set(into)
        yield
    finally:
        RECORDER.set(before)


def recorded(variable: T) -> T:
    """Return the stand-in of a leaf Variable in the program being recorded, or the Variable itself if there is none."""
    into = RECORDER.get()
    return variable if into is None else into.admit(variable)
