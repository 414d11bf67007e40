"""`Prepared`, a recurrent layer for inference on whole sequences, with packed weights and without gradients."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from varlen_rnn.errors import ShapeError
from varlen_rnn.nn.recurrent.packed_layers import Arrays, packed_directions, records_of
from varlen_rnn.recurrence.packed import FEW, Few
from varlen_rnn.rows.lod import LoD, LoDTensor, levels_of, rows_of
from varlen_rnn.rows.plan import plan_of_rows
from varlen_rnn.tape.variable import Variable, required
from varlen_rnn.typing import Offsets, Rows

_IN_ORDER = np.empty(0, np.int64)


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
        self._idle: list[list[list[Few]]] = []  # memory of calls that have ended
        self._most_rows = min(directions[0].most_rows for directions in self._layers)
        self._merge, self._num_directions = layer.merge, layer.num_directions
        self._arrays = Arrays(layer)

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
        if isinstance(x, (LoDTensor, Variable)):
            tensor = x.value if isinstance(x, Variable) else x
            lod, rows = tensor.structure, rows_of(tensor)
        rows = self._arrays.rows(rows, "prepared")
        if lod is not None and lod.num_levels:
            plain = levels_of(lod)[-1].copy()  # the kernel is compiled for arrays that are not read-only
        elif lod is not None or offsets is None:
            raise ShapeError("prepared, offsets", expected="offsets of sequences, as x has no LoD", got="None")
        else:
            plain = np.asarray(offsets)
            if plain.ndim != 1 or plain.dtype != np.int64 or not plain.flags.carray:
                plain = np.array(LoD([offsets]).levels[0])
        y, last = self._run(rows, plain, self._arrays.initial(states, len(plain) - 1, "prepared"))
        return y if lod is None else LoDTensor.wrap(y, lod), self._arrays.given_back(last)

    def __deepcopy__(self, memo: dict[int, Any]) -> Prepared:
        made = copy.copy(self)
        made._idle = []
        return made

    def of_variables(self, x: Rows, states: Any = None, *, rows: None = None) -> tuple[Variable, Any]:
        """Return the layer's results as Variables, so that it can replace the layer's `forward` inside a model."""
        y, last = self(required(x, "prepared, x").value, states)
        return Variable(y), tuple(map(Variable, last)) if isinstance(last, tuple) else Variable(last)

    def _run(self, rows: np.ndarray, offsets: np.ndarray, initial: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Return outputs and last states; the states have the layout of `Arrays.initial`."""
        count = len(offsets) - 1
        sizes = self._arrays.num_rows_of_states, self._arrays.num_states, max(count, 0), self._arrays.hidden_size
        is_little = len(rows) <= self._most_rows or all(one[0].is_little(len(rows), count) for one in self._layers)
        if count > FEW or not is_little:
            return self._over(rows, initial, sizes, offsets, plan_of_rows(self._checked(offsets, rows)), None)
        try:
            records = self._idle.pop()  # atomic, so two threads never get the same memory
        except IndexError:
            records = records_of(self._layers, FEW)
        try:
            return self._over(rows, initial, sizes, offsets, None, records)
        finally:
            self._idle.append(records)

    def _checked(self, offsets: np.ndarray, rows: np.ndarray) -> LoD:
        """Return the LoD with these offsets; raise unless the last offset is the number of rows."""
        lod = LoD([offsets])
        if lod.num_rows != len(rows):
            expected = f"the last offset {len(rows)}, the number of rows"
            raise ShapeError("prepared, offsets", expected=expected, got=lod.num_rows)
        return lod

    def _over(
        self, rows: np.ndarray, initial: Any, sizes: Any, offsets: np.ndarray, plan: Any, records: Any
    ) -> tuple[np.ndarray, np.ndarray]:
        """Run all layers: with `plan`, or by `records` if `plan` is None."""
        last = np.zeros(sizes, rows.dtype) if initial is None else np.empty(sizes, rows.dtype)
        start, begins, place = last if initial is None else initial, initial is not None, 0
        for number, directions in enumerate(self._layers):
            width = directions[0].shape.outputs
            y = np.empty((len(rows), width * len(directions)), rows.dtype)
            for way, packed in enumerate(directions):
                its_last = last[place]
                arguments = rows, start[place] if begins else its_last, begins, its_last, y
                if plan is not None:
                    packed.run(plan, *arguments, way * width)
                elif not packed.run_few(records[number][way], offsets, _IN_ORDER, *arguments):
                    self._checked(offsets, rows)
                place += 1
            rows = y if len(directions) == 1 else self._merged(y)
        return rows, last

    def _merged(self, y: np.ndarray) -> np.ndarray:
        if self._merge == "concat":
            return y
        half = y.shape[1] // 2
        both = y[:, :half] + y[:, half:]
        return both if self._merge == "sum" else both / both.dtype.type(2)
