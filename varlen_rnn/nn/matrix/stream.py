"""`MatrixStream`, a layer with states that are matrices, for sequences that arrive row by row."""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from varlen_rnn.errors import check_int
from varlen_rnn.nn.recurrent.carries import check_carries, together
from varlen_rnn.nn.recurrent.packed_layers import check_on_host, host_rows
from varlen_rnn.nn.recurrent.stream import Stream
from varlen_rnn.rows.checks import as_rows
from varlen_rnn.rows.lod import LoD, LoDTensor


class MatrixStream(Stream):
    """A copy of a layer with matrix states for sequences that arrive row by row; see `Stream`.

    Results equal the layer's results for the whole sequence to rounding: a call of the layer computes chunks of rows,
    and a stream single rows.

    Parameters
    ----------
    layer : nn.GatedDeltaNet, nn.DeltaNet, nn.Mamba2, nn.MLSTM or nn.GatedLinearAttention
        With `direction="forward"`; `layer.stream(num_sequences)` makes a stream of it.
    num_sequences : int
        The number of slots.

    Examples
    --------
    >>> from varlen_rnn.nn import DeltaNet
    >>> stream = DeltaNet(3, 4, num_heads=2).stream(2)
    >>> stream(np.ones((2, 3), np.float32)).shape, stream(np.ones((1, 3), np.float32), at=[1]).shape
    ((2, 4), (1, 4))
    >>> [state.shape for state in stream.states]
    [(1, 2, 2, 2, 2), (1, 2, 3, 12)]
    """

    def __init__(self, layer: Any, num_sequences: int = 1) -> None:
        check_carries("stream, layer", layer, in_parts=True)
        check_on_host("stream, layer", layer.parameters()[0].device, "a layer")
        self.num_sequences = check_int(num_sequences, "stream, num_sequences", 1)
        self._layer, self._run, self._turn = layer, layer.prepare(), threading.Lock()
        rows: Any = _Rows(layer)
        self._arrays, self._all, self._lods = rows, np.arange(self.num_sequences), {}
        self._of_slots = [
            np.zeros((layer.num_layers, self.num_sequences, *shape), layer.dtype) for _, shape in layer.state_shapes
        ]

    def __deepcopy__(self, memo: dict[int, Any]) -> MatrixStream:
        """Return an independent stream that continues from the same states."""
        made = copy.copy(self)
        made._turn, made._lods = threading.Lock(), {}
        with self._turn:
            made._of_slots = [states.copy() for states in self._of_slots]
        return made

    def _step(self, rows: np.ndarray, slots: np.ndarray) -> np.ndarray:
        count = len(slots)
        with self._turn:
            lod = self._lods.setdefault(count, LoD([np.arange(count + 1)]))
            before = tuple(states.take(slots, axis=1) for states in self._of_slots)
            y, last = self._run(LoDTensor.wrap(rows, lod), together(before))
            for states, after in zip(self._of_slots, self._layer.each_state(last), strict=True):
                states[:, slots] = after.value.data
        return np.asarray(y)

    def reset(self, slots: Sequence[int] | np.ndarray | None = None, states: Any = None) -> None:
        """Start new sequences in the given slots, or in all slots, from zeros or from `states`; see `Stream.reset`."""
        places = self._all if slots is None else self._slots(slots)
        given = self._layer.each_state(states)
        arrays = [None if state is None else as_rows(state, "stream, reset, states") for state in given]
        self._layer.check_states("stream, reset", arrays, len(places))
        with self._turn:
            for of_slots, array in zip(self._of_slots, arrays, strict=True):
                of_slots[:, places] = 0 if array is None else array

    @property
    def states(self) -> Any:
        """A copy of all slots' states, as a call of the layer returns them; call `reset(states=...)` to set them."""
        with self._turn:
            return together([states.copy() for states in self._of_slots])


class _Rows:
    """Checks the rows of a call, and converts them to arrays."""

    def __init__(self, layer: Any) -> None:
        self._form = layer._form._replace(rows="rows")

    def rows(self, rows: Any, where: str) -> np.ndarray:
        """Return rows as a C-contiguous array; raise if they do not fit the layer."""
        array = host_rows(rows, f"{where}, rows")
        self._form.check_rows(where, array)
        return np.ascontiguousarray(array)
