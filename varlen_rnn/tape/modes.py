"""What a context does with the operators that it applies: remember them for a gradient, or describe them in a program.

Modes are context variables: two Python threads that train two models never meet.
"""

import contextlib
import contextvars

GRAD_ENABLED = contextvars.ContextVar("grad_enabled", default=True)
RECORDER = contextvars.ContextVar("recorder", default=None)


def grad_enabled():
    """Return whether operators of this context are recorded for a backward pass.

    Examples
    --------
    >>> with no_grad(): grad_enabled()
    False
    """
    return GRAD_ENABLED.get()


@contextlib.contextmanager
def no_grad():
    """Record nothing in this context: inference keeps nothing for a backward pass.

    A mode is that of one thread: threads that are started inside begin without it.
    """
    token = GRAD_ENABLED.set(False)
    try:
        yield
    finally:
        GRAD_ENABLED.reset(token)


def recorder():
    """Return the recorder of the program that this context describes, or None where operators run."""
    return RECORDER.get()


@contextlib.contextmanager
def recording(into):
    """Describe operators instead of running them: `into.append` takes them."""
    token = RECORDER.set(into)
    try:
        yield
    finally:
        RECORDER.reset(token)


def recorded(variable):
    """Return what stands for a leaf Variable in the program being recorded; without one, itself."""
    into = RECORDER.get()
    return variable if into is None else into.admit(variable)
