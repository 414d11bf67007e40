"""`Stream`, a recurrent layer for sequences that arrive row by row, with packed weights and stored states."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from varlen_rnn.errors import OutOfRangeError, ShapeError, check_int, shown
from varlen_rnn.nn.recurrent.carries import check_carries
from varlen_rnn.nn.recurrent.packed_layers import Arrays, Records, packed_directions
from varlen_rnn.recurrence.packed import run_few
from varlen_rnn.rows.checks import as_indices
from varlen_rnn.rows.lod import LoD
from varlen_rnn.rows.plan import plan_of_rows
from varlen_rnn.runtime.forks import turn
from varlen_rnn.runtime.forms import is_readable


class Stream:
    """A copy of a recurrent layer for sequences that arrive row by row; it holds the states between calls.

    A stream has a slot for each sequence.  A call takes one row for each slot, or for some slots; `reset` starts a new
    sequence in a slot.  Results equal the layer's results for the whole sequence, to the bit.  Calls from several
    threads run one after another.

    Parameters
    ----------
    layer : nn.Recurrent
        Any recurrent layer with `direction="forward"`, without zoneout and recurrent dropout;
        `layer.stream(num_sequences)` makes a `Stream` of it.
    num_sequences : int
        The number of slots.

    Examples
    --------
    >>> from varlen_rnn.nn import GRU
    >>> stream = GRU(3, 4).stream(2)
    >>> stream(np.ones((2, 3), np.float32)).shape, stream(np.ones((1, 3), np.float32), at=[1]).shape
    ((2, 4), (1, 4))
    >>> stream.reset([0])
    >>> [bool(state.any()) for state in stream.states[0]]
    [False, True]
    """

    def __init__(self, layer: Any, num_sequences: int = 1) -> None:
        check_carries("stream, layer", layer, in_parts=True)
        self.num_sequences = check_int(num_sequences, "stream, num_sequences", 1)
        self._layers = [directions[0] for directions in packed_directions(layer, "stream")]
        self._arrays, self._turn = Arrays(layer, rows="rows"), turn()
        sizes = self._arrays.num_states, layer.num_layers, num_sequences, layer.hidden_size
        self._states = np.zeros(sizes, self._arrays.dtype)
        self._all, self._offsets = np.arange(num_sequences), np.arange(num_sequences + 1)
        self._records = self._new_records()
        self._lods: dict[int, LoD] = {}

    def _new_records(self) -> Records | None:
        """Return the memory of a call; None if this NumPy has arrays of an unknown form."""
        return Records([[packed] for packed in self._layers], self.num_sequences) if is_readable() else None

    def __deepcopy__(self, memo: dict[int, Any]) -> Stream:
        """Return an independent stream that continues from the same states."""
        made = copy.copy(self)
        made._turn, made._records, made._lods = turn(), made._new_records(), {}
        with self._turn:
            made._states = self._states.copy()
        return made

    def __call__(self, rows: ArrayLike, at: Sequence[int] | np.ndarray | None = None) -> np.ndarray:
        """Return the outputs for the next row of each sequence, or of the sequences in the slots `at`.

        Parameters
        ----------
        rows : array, shape `(sequences, input_size)`, or `(input_size,)` for one
        at : sequence of int, optional
            The slot of each row, all different; by default, row i goes to slot i.

        Returns
        -------
        array, shape `(sequences, columns)`, or `(columns,)`

        Raises
        ------
        ShapeError, DTypeError, OutOfRangeError
            If rows do not fit the layer, or a slot does not exist or occurs twice.
        """
        if at is not None or type(rows) is not np.ndarray:
            return self._checked(rows, at)
        is_one = rows.ndim == self.num_sequences == 1
        given = rows[None] if is_one else rows
        found = self._at_once(given, self.num_sequences, None)  # compiled code checks most calls
        if found is None:
            found = self._checked(given, at)
        return found[0] if is_one else found

    def _checked(self, rows: Any, at: Any) -> np.ndarray:
        """Return the outputs; raise if arguments do not fit."""
        rows = self._arrays.rows(rows, "stream")
        slots = self._all if at is None else self._slots(at)
        if len(rows) != len(slots):
            raise ShapeError("stream, rows", expected=f"{len(slots)} rows, one for each slot", got=len(rows))
        found = self._at_once(rows, len(slots), slots)
        return self._scheduled(rows, slots) if found is None else found

    def _slots(self, at: Any) -> np.ndarray:
        slots = as_indices(at, self.num_sequences, "stream, at")
        if len(set(slots.tolist())) < len(slots):
            raise OutOfRangeError("stream, at", expected="slots that differ", got=shown(at))
        return slots

    def _at_once(self, rows: np.ndarray, count: int, slots: np.ndarray | None) -> np.ndarray | None:
        """Return the outputs for a row of each of `count` slots; None if arrays do not fit, or the work is not little.

        slots: None for slots 0, 1, 2 ...
        """
        first = self._layers[0]
        if self._records is None or (count > first.most_rows and not first.is_little(count, count)):
            return None
        offsets = self._offsets if count == self.num_sequences else self._offsets[: count + 1]
        at = 0 if slots is None else id(slots)
        with self._turn:
            for columns, (few,) in self._records.layers:
                y = np.empty((count, columns), self._arrays.dtype)
                if run_few(few, id(rows), id(offsets), at, True, id(self._states), id(y)):
                    return None
                rows = y
            return rows

    def _scheduled(self, rows: np.ndarray, slots: np.ndarray) -> np.ndarray:
        """Return the outputs for a row of each of some slots, computed on one or more threads."""
        count = len(slots)
        plan = plan_of_rows(self._lods.setdefault(count, LoD([np.arange(count + 1)])))
        with self._turn:
            for number, packed in enumerate(self._layers):
                y, states = np.empty((count, packed.shape.outputs), rows.dtype), self._states[:, number].take(slots, 1)
                packed.run(plan, rows, states, True, y, 0)
                self._states[:, number, slots] = states
                rows = y
            return rows

    def reset(self, slots: Sequence[int] | np.ndarray | None = None, states: Any = None) -> None:
        """Start new sequences in the given slots, or in all slots, from zeros or from `states`.

        Parameters
        ----------
        slots : sequence of int, optional
            Different slots; all slots by default.
        states : array, or a tuple of them, optional
            Initial states as in a call of the layer, with one sequence per slot.
        """
        places = self._all if slots is None else self._slots(slots)
        initial, _ = self._arrays.initial(states, len(places), "stream, reset")
        with self._turn:
            self._states[:, :, places] = initial

    @property
    def states(self) -> Any:
        """A copy of all slots' states, `(num_layers, num_sequences, hidden_size)`; a tuple if there are several states.

        Call `reset(states=...)` to set them.
        """
        with self._turn:
            return self._arrays.given_back(self._states.copy())
