"""`MatrixStream`, a layer with states that are matrices, for sequences that arrive row by row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from varlen_rnn.nn.recurrent.carries import check_carries, together
from varlen_rnn.nn.recurrent.packed_layers import check_on_host, host_rows
from varlen_rnn.program.guard import feed_data, program_guard
from varlen_rnn.rows.checks import as_rows


class MatrixStream:
    """A copy of a layer with matrix states for sequences that arrive row by row, with the methods of `Stream`.

    A step runs as a program, which is bound to its kernels at the fourth call.  Results equal the layer's results for
    the whole sequence to rounding: a call of the layer computes chunks of rows, and a stream single rows.

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
        self._layer, self._form = layer, layer._form._replace(rows="rows")
        self._names = [name for name, _ in layer.state_shapes]
        with program_guard() as program:
            rows = feed_data("rows", [-1, layer.input_size], layer.dtype, lod_level=1)
            first = [feed_data(name, [layer.num_layers, -1, *shape], layer.dtype) for name, shape in layer.state_shapes]
            y, last = layer.prepare()(rows, together(first))
        later = layer.each_state(last)
        carried = {name: state.name for name, state in zip(self._names, later, strict=True)}
        self._stream = program.prune([y, *later]).stream(carried, num_sequences)
        self.num_sequences: int = self._stream.num_sequences

    def __call__(self, rows: ArrayLike, at: Sequence[int] | np.ndarray | None = None) -> np.ndarray:
        """Return the outputs for the next row of each sequence, or of the sequences in the slots `at`; see `Stream`."""
        array = host_rows(rows, "stream, rows")
        is_one = array.ndim == 1 and self.num_sequences == 1 and at is None
        array = array[None] if is_one else array
        self._form.check_rows("stream", array)
        (y,) = self._stream({"rows": np.ascontiguousarray(array)}, at)
        return y[0] if is_one else y

    def reset(self, slots: Sequence[int] | np.ndarray | None = None, states: Any = None) -> None:
        """Start new sequences in the given slots, or in all slots, from zeros or from `states`; see `Stream.reset`."""
        each = self._layer.each_state(states)
        given = [None if state is None else as_rows(state, "stream, reset, states") for state in each]
        self._layer.check_states("stream, reset", given)
        named = zip(self._names, given, strict=True)
        self._stream.reset(slots, {name: state for name, state in named if state is not None})

    @property
    def states(self) -> Any:
        """A copy of all slots' states, as a call of the layer returns them; call `reset(states=...)` to set them."""
        return together([*self._stream.states.values()])
