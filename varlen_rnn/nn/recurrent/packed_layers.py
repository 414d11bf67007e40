"""What layers for inference are made of: packed directions, memory of a call, and what rows and states look like."""

from __future__ import annotations

from typing import Any

import numpy as np

from varlen_rnn.errors import DTypeError, ShapeError
from varlen_rnn.ops.recurrent.inputs import layer_of, operands_of
from varlen_rnn.recurrence.packed import FewSequences, Packed
from varlen_rnn.rows.checks import as_rows
from varlen_rnn.rows.lod import LoD, LoDTensor
from varlen_rnn.rows.plan import plan_of_rows

_ONES = LoD([[0]])


def packed_directions(layer: Any, what: str) -> list[list[Packed]]:
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


class Room:
    """What one call at a time works in: a plan, and memory of every direction."""

    def __init__(self, layers: list[list[Packed]], capacity: int) -> None:
        self.few = FewSequences(capacity)
        self.memory = [[packed.memory(self.few) for packed in directions] for directions in layers]


class Form:
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
