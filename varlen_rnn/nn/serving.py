"""Recurrent layers for inference, whose weights are packed once: of whole sequences, and of one row at a time."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from varlen_rnn.errors import DTypeError, OutOfRangeError, ShapeError, check_int, shown
from varlen_rnn.lod import LoD, LoDTensor
from varlen_rnn.lod_input import as_indices, as_rows
from varlen_rnn.ops.layer_inputs import layer_of, operands_of
from varlen_rnn.plan import plan_of_rows
from varlen_rnn.recurrence.packed import FEW, FewSequences, Packed
from varlen_rnn.tape.variable import Variable, required
from varlen_rnn.typing import Offsets, Rows

_ONES = LoD([[0]])


def _packed(layer: Any, what: str) -> list[list[Packed]]:
    """Return the directions of each layer, packed."""
    if layer.cell.rows:
        hint = "inputs of rows, such as the masks of zoneout and recurrent_dropout, are those of a batch"
        raise ShapeError(f"{what}, layer", expected="a cell without them", got=layer.cell.name, hint=hint)
    found, none = [], [None] * len(layer.cell.states)
    for number in range(layer.num_layers):
        given = [weight for suffix in layer.suffixes(number) for weight in layer.present_weights(suffix)]
        features = layer.input_size if number == 0 else layer.output_size * layer.num_directions
        features = layer.output_size if number and layer.merge != "concat" else features
        x = LoDTensor.wrap(np.empty((0, features), layer.dtype), _ONES)
        of_layer = layer_of(layer.cell, [x, *none, *(None if weight is None else weight.value for weight in given)])
        directions = operands_of(layer.cell, of_layer, plan_of_rows(_ONES))[1]
        found.append(
            [Packed(layer.cell, w, features, bool(way)) for w, way in zip(directions, layer.reverse, strict=True)]
        )
    return found


class _Room:
    """What one call at a time works in: a plan, and memory of every direction."""

    def __init__(self, layers: list[list[Packed]], capacity: int) -> None:
        self.few = FewSequences(capacity)
        self.memory = [[packed.memory(self.few) for packed in directions] for directions in layers]


class Prepared:
    """A recurrent layer for inference: its weights as they are now, packed once, and no tape.

    Any number of threads may call it at the same time.  Results are those of the layer to the bit.

    Parameters
    ----------
    layer : nn.Recurrent
        RNN, LSTM, GRU, or one of a cell of your own, without zoneout and recurrent dropout; `layer.prepare()` makes it.

    Examples
    --------
    >>> from varlen_rnn.nn import GRU
    >>> run = GRU(3, 4).prepare()
    >>> y, h_n = run(np.ones((5, 3), np.float32), offsets=[0, 2, 2, 5])
    >>> y.shape, h_n.shape
    ((5, 4), (1, 3, 4))
    """

    def __init__(self, layer: Any) -> None:
        self._layers = _packed(layer, "prepare")
        self._rooms: list[_Room] = []
        self._merge, self._num_directions = layer.merge, layer.num_directions
        self._form = _Form(layer)

    def __call__(self, x: Rows, states: Any = None, *, offsets: Offsets | None = None) -> tuple[Any, Any]:
        """Return the outputs, and the last states, as a call of the layer does.

        Parameters
        ----------
        x : LoDTensor, Variable, or array with `offsets`, shape `(rows, input_size)`
        states : array, or a tuple of them, optional
            Initial states, as those of a call of the layer; zeros by default.
        offsets : sequence of int, optional
            Where each sequence of an array begins and ends.

        Returns
        -------
        y : array `(rows, columns)`; a LoDTensor where `x` is one
        last : array, or a tuple of them, shaped as the initial states

        Raises
        ------
        ShapeError, DTypeError, LoDError
            Rows, states or offsets that do not fit.
        """
        lod, rows = None, x
        if isinstance(x, (LoDTensor, Variable)):
            tensor = x.value if isinstance(x, Variable) else x
            lod, rows = tensor.structure, tensor.data
        rows = self._form.rows(rows, "prepared, x")
        if lod is not None:
            offsets = lod.levels[-1] if lod.num_levels else None
        if offsets is None:
            raise ShapeError("prepared, offsets", expected="those of the sequences of x", got="None")
        plain = np.asarray(offsets)
        if plain.ndim != 1 or plain.dtype != np.int64 or not plain.flags.carray:
            plain = np.array(LoD([offsets]).levels[0])  # of the one type that the kernel is compiled for
        y, last = self._run(rows, plain, self._form.initial(states, len(plain) - 1, "prepared"))
        return y if lod is None else LoDTensor.wrap(y, lod), self._form.given_back(last)

    def of_variables(self, x: Rows, states: Any = None, *, rows: None = None) -> tuple[Variable, Any]:
        """Return what the layer returns of Variables, as a model calls it."""
        if isinstance(states, (tuple, list)) and all(state is None for state in states):
            states = None
        y, last = self(required(x, "prepared, x").value, states)
        return Variable(y), tuple(map(Variable, last)) if isinstance(last, tuple) else Variable(last)

    def _run(self, rows: np.ndarray, offsets: np.ndarray, initial: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Return outputs, and last states of every layer and direction, as `_Form.initial` returns them."""
        count = len(offsets) - 1
        sizes = self._form.num_rows_of_states, self._form.num_states, max(count, 0), self._form.hidden_size
        if count > FEW or not self._is_little(len(rows), count):
            return self._over(rows, initial, sizes, plan_of_rows(self._checked(offsets, rows)), None)
        try:
            room = self._rooms.pop()  # of list, one call of C
        except IndexError:
            room = _Room(self._layers, FEW)
        try:
            if not room.few.write(offsets, len(rows)):
                self._checked(offsets, rows)
            return self._over(rows, initial, sizes, None, room)
        finally:
            self._rooms.append(room)

    def _checked(self, offsets: np.ndarray, rows: np.ndarray) -> LoD:
        """Return the LoD of offsets, or raise what is wrong with them."""
        lod = LoD([offsets])
        if lod.num_rows != len(rows):
            raise ShapeError("prepared, offsets", expected=f"a last one of {len(rows)}, the rows", got=lod.num_rows)
        return lod

    def _is_little(self, num_rows: int, count: int) -> bool:
        return all([packed.is_little(num_rows, count) for directions in self._layers for packed in directions[:1]])

    def _over(self, rows: np.ndarray, initial: Any, sizes: Any, plan: Any, room: Any) -> tuple[np.ndarray, np.ndarray]:
        """Run all layers, with the plan of a schedule or in a room."""
        last = np.zeros(sizes, rows.dtype) if initial is None else np.empty(sizes, rows.dtype)
        start, begins, place = last if initial is None else initial, initial is not None, 0
        for number, directions in enumerate(self._layers):
            width = directions[0].shape.outputs
            y = np.empty((len(rows), width * len(directions)), rows.dtype)
            for way, packed in enumerate(directions):
                arguments = rows, start[place], begins, last[place], y, way * width
                if plan is None:
                    packed.run_few(room.memory[number][way], sizes[2], *arguments)
                else:
                    packed.run(plan, *arguments)
                place += 1
            rows = y if len(directions) == 1 else self._merged(y)
        return rows, last

    def _merged(self, y: np.ndarray) -> np.ndarray:
        if self._merge == "concat":
            return y
        half = y.shape[1] // 2
        both = y[:, :half] + y[:, half:]
        return both if self._merge == "sum" else both / both.dtype.type(2)


class Stream:
    """A recurrent layer for sequences that arrive row by row: its weights packed once, and states that stay in place.

    A stream has a slot for each sequence.  Rows go to all slots, or to some; a slot begins anew when it is `reset`.
    Results are those of the layer over the whole sequence, to the bit.  Calls of several threads take turns.

    Parameters
    ----------
    layer : nn.Recurrent
        Forward only; else as of `Prepared`.  `layer.stream(num_sequences)` makes it.
    num_sequences : int
        Slots.

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
        if layer.direction != "forward":
            hint = "a backward direction begins at the end of a sequence, which has not arrived yet"
            raise ShapeError("stream, layer", expected="direction 'forward'", got=repr(layer.direction), hint=hint)
        self.num_sequences = check_int(num_sequences, "stream, num_sequences", 1)
        self._layers = [directions[0] for directions in _packed(layer, "stream")]
        self._form, self._turn = _Form(layer), threading.Lock()
        self._states = np.zeros(
            (layer.num_layers, self._form.num_states, num_sequences, layer.hidden_size), layer.dtype
        )
        self._all = np.arange(num_sequences)
        self._room = _Room([[packed] for packed in self._layers], num_sequences)
        self._room.few.starts[:], self._room.few.seq_lens[:] = self._all, 1
        self._lods: dict[int, LoD] = {}

    def __call__(self, rows: ArrayLike, at: Sequence[int] | np.ndarray | None = None) -> np.ndarray:
        """Return the outputs of one more row of each sequence, or of some.

        Parameters
        ----------
        rows : array, shape `(sequences, input_size)`, or `(input_size,)` for one
        at : sequence of int, optional
            The slot of each row, each once; all of them, in their order, by default.

        Returns
        -------
        array, shape `(sequences, columns)`, or `(columns,)`

        Raises
        ------
        ShapeError, DTypeError, OutOfRangeError
            Rows that do not fit, slots that are not there, or twice the same.
        """
        if at is None and type(rows) is np.ndarray and rows.ndim == 1 and self.num_sequences == 1:
            return self._step(self._form.rows(rows[None], "stream, rows"), self._all)[0]
        rows = self._form.rows(rows, "stream, rows")
        slots = self._all if at is None else self._slots(at)
        if len(rows) != len(slots):
            raise ShapeError("stream, rows", expected=f"{len(slots)} rows, one for each slot", got=len(rows))
        return self._step(rows, slots)

    def _slots(self, at: Any) -> np.ndarray:
        slots = as_indices(at, self.num_sequences, "stream, at")
        if len(set(slots.tolist())) < len(slots):
            raise OutOfRangeError("stream, at", expected="slots, each once", got=shown(at))
        return slots

    def _step(self, rows: np.ndarray, slots: np.ndarray) -> np.ndarray:
        count = len(slots)
        with self._turn:
            if self._layers[0].is_little(count, count):
                self._room.few.order[:count] = slots
                for number, packed in enumerate(self._layers):
                    y, states = np.empty((count, packed.shape.outputs), rows.dtype), self._states[number]
                    packed.run_few(self._room.memory[number][0], count, rows, states, True, states, y, 0)
                    rows = y
                return rows
            return self._scheduled(rows, slots)

    def _scheduled(self, rows: np.ndarray, slots: np.ndarray) -> np.ndarray:
        """Return what `_step` does, on several threads."""
        count = len(slots)
        plan = plan_of_rows(self._lods.setdefault(count, LoD([np.arange(count + 1)])))
        for number, packed in enumerate(self._layers):
            y, states = np.empty((count, packed.shape.outputs), rows.dtype), self._states[number].take(slots, axis=1)
            packed.run(plan, rows, states, True, states, y, 0)
            self._states[number][:, slots] = states
            rows = y
        return rows

    def reset(self, slots: Sequence[int] | np.ndarray | None = None, states: Any = None) -> None:
        """Begin sequences anew, in some slots or in all: from zeros, or from states.

        Parameters
        ----------
        slots : sequence of int, optional
            Each once.
        states : array, or a tuple of them, optional
            As those of a call of the layer, for as many sequences as there are slots.
        """
        places = self._all if slots is None else self._slots(slots)
        initial = self._form.initial(states, len(places), "stream, reset")
        with self._turn:
            self._states[:, :, places] = 0 if initial is None else initial

    @property
    def states(self) -> Any:
        """The states of all slots, `(num_layers, num_sequences, hidden_size)`: a copy; a tuple where there are several.

        Setting them is `reset(states=...)`.
        """
        with self._turn:
            return self._form.given_back(self._states.copy())


class _Form:
    """What rows and states of a layer look like."""

    def __init__(self, layer: Any) -> None:
        self.dtype, self.input_size, self.hidden_size = layer.dtype, layer.input_size, layer.hidden_size
        self.num_states, self.num_rows_of_states = len(layer.cell.states), layer.num_layers * layer.num_directions
        self.output_size = layer.output_size

    def rows(self, rows: Any, what: str) -> np.ndarray:
        """Return rows as kernels take them, or raise."""
        array = rows if type(rows) is np.ndarray else as_rows(rows, what)
        if array.dtype != self.dtype or array.ndim != 2 or array.shape[1] != self.input_size:
            expected, got = f"(rows, {self.input_size}) {self.dtype}", f"{array.shape} {array.dtype}"
            error = ShapeError if array.dtype == self.dtype else DTypeError
            raise error(what, expected=expected, got=got)
        return array if array.flags.carray else np.array(array, order="C")

    def initial(self, states: Any, count: int, what: str) -> np.ndarray | None:
        """Return initial states as `(layers and directions, states, sequences, hidden)`, or None; or raise."""
        if states is None:
            return None
        given = states if isinstance(states, (tuple, list)) else (states,)
        if len(given) != self.num_states:
            raise ShapeError(f"{what}, states", expected=f"{self.num_states}", got=len(given))
        full = np.zeros((self.num_rows_of_states, self.num_states, count, self.hidden_size), self.dtype)
        for number, state in enumerate(given):
            part = full[:, number, :, : self.hidden_size if number else self.output_size]
            array = as_rows(state, f"{what}, states")
            if array.shape != part.shape or array.dtype != self.dtype:
                expected, got = f"{part.shape} {self.dtype}", f"{array.shape} {array.dtype}"
                raise ShapeError(f"{what}, states[{number}]", expected=expected, got=got)
            part[...] = array
        return full

    def given_back(self, states: np.ndarray) -> Any:
        """Return states as a call of the layer does: one, or a tuple."""
        first = states[:, 0, :, : self.output_size]
        return first if self.num_states == 1 else (first, *(states[:, n] for n in range(1, self.num_states)))
