"""Sequences that arrive in pieces: the last states of one chunk are the initial ones of the next."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np

from varlen_rnn.errors import DTypeError, ProgramError, ShapeError, check_list, shown
from varlen_rnn.nn.module import Module
from varlen_rnn.nn.recurrent.layers import Recurrent
from varlen_rnn.tape.modes import recorder
from varlen_rnn.tape.variable import Variable, required
from varlen_rnn.typing import Rows


class Stateful(Module):
    """Run a recurrent layer over chunks of sequences, whose states it carries from chunk to chunk, without a gradient.

    Sequences are told by keys.  One that was in the chunk before goes on where it ended there; one that was not begins
    with zeros; one that is not in a chunk has ended, and is forgotten.  `backward` ends where a chunk begins, as in
    truncated backpropagation through time.  Masks of dropout and zoneout are drawn anew for each chunk.

    Parameters
    ----------
    layer : nn.Recurrent
        RNN, LSTM, GRU, or one of a cell of your own, forward only.

    Examples
    --------
    >>> from varlen_rnn.rows.lod import create_lod_tensor
    >>> from varlen_rnn.nn import GRU
    >>> run = Stateful(GRU(3, 4))
    >>> y, h_n = run(create_lod_tensor(np.ones((5, 3), np.float32), [[2, 3]]), keys=["a", "b"])
    >>> y, h_n = run(create_lod_tensor(np.ones((3, 3), np.float32), [[1, 2]]), keys=["b", "c"])
    >>> run.keys
    ('b', 'c')

    Source: Williams and Peng, "An efficient gradient-based algorithm for on-line training of recurrent network
    trajectories", 1990; `stateful=True` of Keras, for a batch that never changes.
    """

    def __init__(self, layer: Recurrent) -> None:
        if not isinstance(layer, Recurrent):
            expected = "an nn.RNN, nn.LSTM, nn.GRU or nn.Recurrent"
            raise DTypeError("Stateful, layer", expected=expected, got=type(layer).__name__)
        if layer.direction != "forward":
            hint = "a backward direction begins at the end of a sequence, which has not arrived yet"
            raise ShapeError("Stateful, layer", expected="direction 'forward'", got=repr(layer.direction), hint=hint)
        self.layer = layer
        self.reset()

    @property
    def keys(self) -> tuple[Hashable, ...]:
        """The sequences of the last chunk."""
        return tuple(self._places)

    def reset(self) -> None:
        """Forget all sequences."""
        self._places: dict[Hashable, int] = {}
        self._last: list[np.ndarray] = []

    def forward(self, x: Rows, keys: Iterable[Hashable]) -> tuple[Variable, Any]:
        """Run the layer, starting from the states at which its sequences ended in the chunk before.

        Parameters
        ----------
        x : Variable or LoDTensor, shape `(rows, input_size)`
        keys : sequence of hashable
            One for each sequence of `x`, each once.

        Raises
        ------
        DTypeError, ShapeError
            Keys that are not one for each sequence, twice the same, or not hashable.
        ProgramError
            Under `program_guard`: a program carries no states; feed and fetch them.
        """
        if recorder() is not None:
            hint = "feed the initial states of the layer, and fetch its last ones"
            raise ProgramError("Stateful", expected="values", got="a program that is recorded", hint=hint)
        x = required(x, "Stateful, x")
        places = _places(keys, x.value.num_elements(-1) if x.value.num_levels else 0)
        y, last = self.layer(x, self._initial(places))
        self._places = places
        self._last = [np.array(state) for state in (last if isinstance(last, tuple) else (last,))]
        return y, last

    def _initial(self, places: dict[Hashable, int]) -> Any:
        """Return the states before a chunk: of sequences that go on, those that they ended with, else zeros."""
        going_on = [key for key in places if key in self._places]
        if not going_on:
            return None
        to, source = [places[key] for key in going_on], [self._places[key] for key in going_on]
        states = []
        for before in self._last:
            state = np.zeros((before.shape[0], len(places), before.shape[2]), before.dtype)
            state[:, to] = before[:, source]
            states.append(state)
        return tuple(states) if len(states) > 1 else states[0]

    def extra_repr(self) -> str:
        """Return how many sequences it carries."""
        return f"{len(self._places)} sequences"


def _places(keys: Iterable[Hashable], num_sequences: int) -> dict[Hashable, int]:
    """Return the place of each key, or raise unless they are one for each sequence."""
    keys = check_list(keys, "Stateful, keys", "a sequence of keys")
    try:
        places = {key: place for place, key in enumerate(keys)}
    except TypeError as error:
        raise DTypeError("Stateful, keys", expected="a key that a dict takes", got=str(error)) from error
    if len(places) != len(keys) or len(keys) != num_sequences:
        expected = f"{num_sequences}, one for each sequence, each once"
        raise ShapeError("Stateful, keys", expected=expected, got=shown(keys))
    return places
