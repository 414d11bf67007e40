"""`Stateful`, a recurrent layer over sequences that arrive in chunks: it carries states from chunk to chunk."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from varlen_rnn.errors import DTypeError, ProgramError, ShapeError, check_list, shown
from varlen_rnn.nn.module import Module
from varlen_rnn.nn.recurrent.carries import Carries, check_carries, together
from varlen_rnn.ops.indices import rows_at
from varlen_rnn.runtime.device import moved
from varlen_rnn.runtime.place import Place
from varlen_rnn.tape.modes import recorder
from varlen_rnn.tape.variable import Variable, required
from varlen_rnn.typing import Rows


class _Carried(NamedTuple):
    """The states that one chunk hands to the next.

    places: dict of hashable to int, the position of each sequence among the states
    states: list of array, shape `(layers, sequences, ...)`, the last states of the layer
    """

    places: Mapping[Hashable, int]
    states: Sequence[Any]


_NOTHING = _Carried({}, [])


class Stateful(Module):
    """Run a recurrent layer over chunks (consecutive parts of sequences), and carry the states from chunk to chunk.

    Keys identify sequences.  A sequence whose key was in the previous chunk continues from its last states there; a new
    sequence starts from zeros.  A sequence that is missing in a chunk has ended, and its states are dropped.  Gradients
    stop at the beginning of a chunk, as in truncated backpropagation through time.  Masks of dropout and zoneout are
    drawn anew for each chunk.

    Calls in evaluation mode carry separate states, so that a validation does not change the states of the training.  A
    call in training mode forgets these, so that the next validation begins anew.

    Parameters
    ----------
    layer : nn.Recurrent
        Any recurrent layer with `direction="forward"`, or a module that carries states in the same way.

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

    def __init__(self, layer: Carries) -> None:
        check_carries("Stateful, layer", layer, in_parts=True)
        self.layer = layer
        self._carried: dict[bool, _Carried] = {}

    @property
    def keys(self) -> tuple[Hashable, ...]:
        """The keys of the sequences of the last chunk in the current mode."""
        return tuple(self._of_mode().places)

    def reset(self) -> None:
        """Forget all sequences; in evaluation mode, forget only those that were seen in evaluation mode."""
        if self.training:
            self._carried = {}
        else:
            self._carried.pop(False, None)

    def _of_mode(self) -> _Carried:
        return self._carried.get(self.training, _NOTHING)

    def forward(self, x: Rows, keys: Iterable[Hashable]) -> tuple[Variable, Any]:
        """Run the layer, starting each sequence from its last states in the previous chunk.

        Return the outputs and the last states, as a call of the layer does.

        Parameters
        ----------
        x : Variable or LoDTensor, shape `(rows, input_size)`
        keys : sequence of hashable
            A different key for each sequence of `x`.

        Raises
        ------
        DTypeError, ShapeError
            If there is not one key per sequence, or a key occurs twice or is not hashable.
        ProgramError
            Under `program_guard`, because a program carries no states; feed and fetch them instead.
        """
        if recorder() is not None:
            hint = "in a program, feed the initial states of the layer, and fetch its last states"
            raise ProgramError("Stateful", expected="eager mode", got="a call while a program is recorded", hint=hint)
        x = required(x, "Stateful, x")
        places = _places(keys, x.value.num_elements(-1) if x.value.num_levels else 0)
        y, last = self.layer(x, self._initial(places, x.device))
        states: Any = self.layer.each_state(last)
        carried = _Carried(places, [state.value.data.copy() for state in states])
        if self.training:
            self._carried = {True: carried}  # this drops the states of a finished validation
        else:
            self._carried[False] = carried
        return y, last

    def _initial(self, places: dict[Hashable, int], device: Place) -> Any:
        """Return the states before a chunk: the last states of sequences that continue, zeros for new sequences."""
        carried = self._of_mode()
        sources = np.array([carried.places.get(key, -1) for key in places], np.int64)
        if not (sources >= 0).any():
            return None
        states = []
        for before in carried.states:
            layers, sequences, *sizes = before.shape
            index = np.where(sources < 0, -1, np.arange(layers)[:, None] * sequences + sources)
            rows = rows_at(moved(before, device).reshape(layers * sequences, math.prod(sizes)), index.ravel())
            states.append(rows.reshape(layers, len(places), *sizes))
        return together(states)

    def extra_repr(self) -> str:
        """Return the number of sequences whose states are carried, as text for `repr`."""
        return f"{len(self.keys)} sequences"


def _places(keys: Iterable[Hashable], num_sequences: int) -> dict[Hashable, int]:
    """Return {key: its position}; raise unless there is a different key for each sequence."""
    keys = check_list(keys, "Stateful, keys", "a sequence of keys")
    try:
        places = {key: place for place, key in enumerate(keys)}
    except TypeError as error:
        raise DTypeError("Stateful, keys", expected="hashable keys, such as strings", got=str(error)) from error
    if len(places) != len(keys) or len(keys) != num_sequences:
        expected = f"{num_sequences} different keys, one for each sequence"
        raise ShapeError("Stateful, keys", expected=expected, got=shown(keys))
    return places
