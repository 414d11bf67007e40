"""Random numbers for initialisation and dropout, from one generator per thread or context; see `manual_seed`."""

from __future__ import annotations

import contextlib
import contextvars
import json
from collections.abc import Iterator

import numpy as np

from varlen_rnn.errors import CheckpointError, check_int, shown

_generator: contextvars.ContextVar[np.random.Generator | None] = contextvars.ContextVar("generator", default=None)


def generator() -> np.random.Generator:
    """Return this context's random generator; a new one is seeded from the system's entropy."""
    current = _generator.get()
    if current is None:
        current = np.random.default_rng()
        _generator.set(current)
    return current


def manual_seed(seed: int) -> None:
    """Seed this context's random numbers, which initialise parameters and draw dropout masks.

    Each thread has its own generator, seeded from the system's entropy unless the thread calls this function.

    Parameters
    ----------
    seed : int
        At least 0.

    Examples
    --------
    >>> manual_seed(0); a = generator().random()
    >>> manual_seed(0); a == generator().random()
    True
    """
    _generator.set(np.random.default_rng(check_int(seed, "seed", 0)))


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Use a generator with this seed inside a `with` block; restore the context's own generator after it.

    Examples
    --------
    >>> with seeded(3): a = generator().random()
    >>> with seeded(3): a == generator().random()
    True
    """
    before = _generator.get()
    try:
        _generator.set(np.random.default_rng(seed))
        yield
    finally:
        _generator.set(before)


def get_state() -> str:
    """Return the state of this context's generator as JSON text, which can be saved with a model."""
    return json.dumps(generator().bit_generator.state)


def set_state(state: str) -> None:
    """Set this context's generator to a state that `get_state` returned."""
    fresh = np.random.default_rng()
    try:
        fresh.bit_generator.state = json.loads(state)
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise CheckpointError("random state", expected="a text from random.get_state()", got=shown(state)) from error
    _generator.set(fresh)
