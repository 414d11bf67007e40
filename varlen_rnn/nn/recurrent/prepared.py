"""`Prepared`, a recurrent layer for inference on whole sequences, with packed weights and without gradients."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from varlen_rnn.errors import ShapeError
from varlen_rnn.nn.recurrent.packed_layers import Arrays, Records, packed_directions
from varlen_rnn.recurrence.packed import FEW, run_few
from varlen_rnn.rows.lod import LoD, LoDTensor, levels_of, rows_of
from varlen_rnn.rows.plan import plan_of_rows
from varlen_rnn.runtime.forms import is_readable
from varlen_rnn.tape.variable import Variable, required
from varlen_rnn.typing import Offsets, Rows

_ARRAY = np.ndarray


class Prepared:
    """A copy of a recurrent layer for inference, with weights packed once and without gradients.

    Any number of threads may call it at the same time.  Its results equal the layer's results to the bit.

    Parameters
    ----------
    layer : nn.Recurrent
        Any recurrent layer without zoneout and recurrent dropout; `layer.prepare()` makes a `Prepared` of it.

    Examples
    --------
    >>> from varlen_rnn.nn import GRU
    >>> run = GRU(3, 4).prepare()
    >>> y, h_n = run(np.ones((5, 3), np.float32), offsets=[0, 2, 2, 5])
    >>> y.shape, h_n.shape
    ((5, 4), (1, 3, 4))
    """

    def __init__(self, layer: Any) -> None:
        self._layers = packed_directions(layer, "prepare")
        self._idle: list[Records] = []  # memory of calls that have ended
        self._most_rows = min(directions[0].most_rows for directions in self._layers)
        self._most_sequences = FEW if is_readable() else -1
        self._merge, self._num_directions = layer.merge, layer.num_directions
        self._arrays = arrays = Arrays(layer)
        self._features, self._dtype, self._given_back = layer.input_size, arrays.dtype, arrays.given_back
        self._sizes = arrays.num_states, arrays.num_rows_of_states, arrays.hidden_size

    def __call__(self, x: Rows, states: Any = None, *, offsets: Offsets | None = None) -> tuple[Any, Any]:
        """Return the outputs, and the last states, as a call of the layer does.

        Parameters
        ----------
        x : LoDTensor, Variable, or array with `offsets`, shape `(rows, input_size)`
        states : array, or a tuple of them, optional
            Initial states, as in a call of the layer; zeros by default.
        offsets : sequence of int, optional
            For an array `x`: sequence i has the rows `offsets[i]` to `offsets[i + 1]`.

        Returns
        -------
        y : array `(rows, columns)`, or a LoDTensor if `x` has a LoD
        last : array or tuple of arrays, with the shapes of the initial states

        Raises
        ------
        ShapeError, DTypeError, LoDError
            If rows, states or offsets do not fit the layer.
        """
        lod, rows = None, x
        if type(x) is not _ARRAY and isinstance(x, (LoDTensor, Variable)):
            tensor = x.value if isinstance(x, Variable) else x
            lod, rows = tensor.structure, rows_of(tensor)
            offsets = levels_of(lod)[-1] if levels_of(lod) else None
        found = None
        if states is None and type(rows) is _ARRAY and type(offsets) is _ARRAY:  # compiled code checks most calls
            found = self._at_once(rows, offsets, None, False)
        y, last = found or self._checked(rows, states, offsets)
        return y if lod is None else LoDTensor.wrap(y, lod), self._given_back(last)

    def __deepcopy__(self, memo: dict[int, Any]) -> Prepared:
        made = copy.copy(self)
        made._idle = []
        return made

    def of_variables(self, x: Rows, states: Any = None, *, rows: None = None) -> tuple[Variable, Any]:
        """Return the layer's results as Variables, so that it can replace the layer's `forward` inside a model."""
        y, last = self(required(x, "prepared, x").value, states)
        return Variable(y), tuple(map(Variable, last)) if isinstance(last, tuple) else Variable(last)

    def _at_once(
        self, rows: np.ndarray, offsets: np.ndarray, states: np.ndarray | None, begins: bool
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Return outputs and last states of few sequences; None if arrays do not fit, or the work is not little.

        states, begins: as `Arrays.initial` returns them; or None and False
        """
        num_rows, count = rows.size // self._features, offsets.size - 1
        if not 0 <= count <= self._most_sequences:
            return None
        if num_rows > self._most_rows and not all(one[0].is_little(num_rows, count) for one in self._layers):
            return None
        try:
            records = self._idle.pop()  # atomic, so two threads never get the same memory
        except IndexError:
            records = Records(self._layers, FEW)
        try:
            if states is None:
                num_states, places, hidden = self._sizes
                states = np.zeros((num_states, places, count, hidden), self._dtype)
            for columns, addresses in records.layers:
                y = np.empty((num_rows, columns), self._dtype)
                for few in addresses:
                    if run_few(few, id(rows), id(offsets), 0, begins, id(states), id(y)):
                        return None
                rows = y if len(addresses) == 1 else self._merged(y)
            return rows, states
        finally:
            self._idle.append(records)

    def _checked(self, rows: Any, states: Any, offsets: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return outputs and last states; raise if arguments do not fit the layer."""
        rows = self._arrays.rows(rows, "prepared")
        if offsets is None:
            raise ShapeError("prepared, offsets", expected="offsets of sequences, as x has no LoD", got="None")
        lod = LoD([offsets])
        if lod.num_rows != len(rows):
            expected = f"the last offset {len(rows)}, the number of rows"
            raise ShapeError("prepared, offsets", expected=expected, got=lod.num_rows)
        level = levels_of(lod)[-1]
        initial, begins = self._arrays.initial(states, len(level) - 1, "prepared")
        return self._at_once(rows, level, initial, begins) or self._scheduled(rows, lod, initial, begins)

    def _scheduled(self, rows: np.ndarray, lod: LoD, last: np.ndarray, begins: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return outputs and last states, computed on one or more threads; `last` has initial states."""
        plan, place = plan_of_rows(lod), 0
        for directions in self._layers:
            width = directions[0].shape.outputs
            y = np.empty((len(rows), width * len(directions)), rows.dtype)
            for way, packed in enumerate(directions):
                states = np.ascontiguousarray(last[:, place])
                packed.run(plan, rows, states, begins, y, way * width)
                last[:, place] = states
                place += 1
            rows = y if len(directions) == 1 else self._merged(y)
        return rows, last

    def _merged(self, y: np.ndarray) -> np.ndarray:
        if self._merge == "concat":
            return y
        half = y.shape[1] // 2
        both = y[:, :half] + y[:, half:]
        return both if self._merge == "sum" else both / both.dtype.type(2)
