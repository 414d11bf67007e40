"""Random numbers of a thread or context: a generator for initialisation, and draws for dropout; see `manual_seed`.

A draw identifies a random operation by three numbers: the seed, the training step, and the number of the call in that
step.  Kernels compute its random numbers from these three and from each number's place in the batch (`kernels.philox`).
So they do not depend on threads, on other sequences, or on the processes among which a batch is divided.
"""

from __future__ import annotations

import contextlib
import contextvars
import json
from collections.abc import Callable, Iterator

import numpy as np

from varlen_rnn.errors import CheckpointError, check_int, shown

_MOST = 2**63  # seeds, steps and numbers of calls are below it


class _Source:
    """The generator of a context, and the three numbers that identify its next draw."""

    __slots__ = ("call", "generator", "seed", "step")

    def __init__(self, seed: int | None = None) -> None:
        entropy = np.random.SeedSequence(seed)
        self.generator = np.random.default_rng(entropy)
        # This key differs from the generator's, so that the two streams have nothing in common.
        self.seed = int(entropy.spawn(1)[0].generate_state(1, np.uint64)[0] >> np.uint64(1))
        self.step = self.call = 0


_source: contextvars.ContextVar[_Source | None] = contextvars.ContextVar("source", default=None)


def _current() -> _Source:
    current = _source.get()
    if current is None:
        current = _Source()
        _source.set(current)
    return current


def generator() -> np.random.Generator:
    """Return this context's random generator, seeded from the system's entropy unless `manual_seed` was called."""
    return _current().generator


def next_draw() -> tuple[int, int, int]:
    """Return the seed, the step and the number of the call that identify this context's next random operation."""
    draw = upcoming()
    advance(1)
    return draw


def upcoming() -> tuple[int, int, int]:
    """Return the numbers of the next draw, without drawing."""
    source = _current()
    return source.seed, source.step, source.call


def advance(count: int) -> None:
    """Count random operations that were drawn from `upcoming` on."""
    _current().call += count


def next_step() -> None:
    """Begin a new step, so that the next draw is the first of its step.

    An optimizer's `step` calls it, and so does a run of a program that updates parameters.  So processes that train
    together draw the same numbers at each step, even if one of them drew more in an earlier step.
    """
    source = _current()
    source.step, source.call = source.step + 1, 0


def drawn() -> tuple[int, int]:
    """Return the current step of this context, and the number of random operations in this step so far."""
    source = _current()
    return source.step, source.call


def rewind(call: int) -> None:
    """Number the next draw of this step `call`, so that each part of a batch can repeat the draws of the first."""
    _current().call = call


def manual_seed(seed: int) -> None:
    """Seed this context's random numbers, which initialise parameters and draw dropout masks.

    Each thread has its own numbers, seeded from the system's entropy unless the thread calls this function.

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
    _source.set(_Source(check_int(seed, "seed", 0)))


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Use random numbers with this seed inside a `with` block; restore the context's own after it."""
    before = _source.get()
    try:
        _source.set(_Source(seed))
        yield
    finally:
        _source.set(before)


class _Noting:
    """In place of a source in a context that only notes draws: each other use calls a function, which raises."""

    def __init__(self, refuse: Callable[[], object]) -> None:
        self._refuse, self.seed, self.step, self.call = refuse, 0, 0, 0

    def __getattr__(self, name: str) -> None:
        self._refuse()


def note_draws(refuse: Callable[[], object]) -> None:
    """From now on, only count draws in this context, and call `refuse`, which raises, if the generator is used."""
    _source.set(_Noting(refuse))  # type: ignore[arg-type]


def get_state() -> str:
    """Return the state of this context's random numbers as JSON text, which can be saved with a model."""
    source = _current()
    draw = {"seed": source.seed, "step": source.step, "call": source.call}
    return json.dumps({"generator": source.generator.bit_generator.state, "draw": draw})


def set_state(state: str) -> None:
    """Set this context's random numbers to a state that `get_state` returned."""
    fresh = _Source(0)
    try:
        found = json.loads(state)
        fresh.generator.bit_generator.state = found["generator"]
        for name in ("seed", "step", "call"):
            value = found["draw"][name]
            if type(value) is not int or not 0 <= value < _MOST:
                raise ValueError(value)
            setattr(fresh, name, value)
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise CheckpointError("random state", expected="a text from random.get_state()", got=shown(state)) from error
    _source.set(fresh)
