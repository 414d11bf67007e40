"""What a context does with the operators that it applies: remember them for a gradient, or describe them in a program.

Modes are context variables: two Python threads that train two models never meet.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any, TypeVar

T = TypeVar("T")

GRAD_ENABLED: contextvars.ContextVar[bool] = contextvars.ContextVar("grad_enabled", default=True)
RECORDER: contextvars.ContextVar[Any] = contextvars.ContextVar("recorder", default=None)


def grad_enabled() -> bool:
    """Return whether operators of this context are recorded for a backward pass.

    Examples
    --------
    >>> with no_grad(): grad_enabled()
    False
    """
    return GRAD_ENABLED.get()


@contextlib.contextmanager
def no_grad() -> Iterator[None]:
    """Record nothing in this context: inference keeps nothing for a backward pass."""
    token = GRAD_ENABLED.set(False)
    try:
        yield
    finally:
        GRAD_ENABLED.reset(token)


def recorder() -> Any:
    """Return the recorder of the program that this context describes, or None where operators run."""
    return RECORDER.get()


@contextlib.contextmanager
def recording(into: Any) -> Iterator[None]:
    """Describe operators instead of running them: `into.append` takes them."""
    token = RECORDER.set(into)
    try:
        yield
    finally:
        RECORDER.reset(token)


def recorded(variable: T) -> T:
    """Return what stands for a leaf Variable in the program being recorded; without one, itself."""
    into = RECORDER.get()
    return variable if into is None else into.admit(variable)
