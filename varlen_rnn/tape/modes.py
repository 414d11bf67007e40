"""What a context does with the operators that it applies: remember them for a gradient, or describe them in a program.

Modes are context variables: two Python threads that train two models never meet.  A mode is set within the `try` that
sets it back: an interrupt (Ctrl-C) may come as soon as it is set, before a token of it could be kept.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any, TypeVar

T = TypeVar("T")

# Whether operators are recorded: True, or the list, false and nobody else's, of the `no_grad` that set it.
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
    except GeneratorExit:  # an interrupt came as `__exit__` began: this runs when its traceback goes
        is_late = True
        raise
    finally:
        if not is_late or GRAD_ENABLED.get() is mine:  # else a mode around this one has ended before it
            GRAD_ENABLED.set(before)


def recorder() -> Any:
    """Return the recorder of the program that this context describes, or None where operators run."""
    return RECORDER.get()


@contextlib.contextmanager
def recording(into: Any) -> Iterator[None]:
    """Describe operators instead of running them: `into.append` takes them."""
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
