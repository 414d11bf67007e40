"""Code that `Prepared` and `Stream` share: packed weights, the memory of a call, and checks of rows and states."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

import numpy as np

from varlen_rnn.errors import PlaceError
from varlen_rnn.nn.recurrent.carries import check_cell
from varlen_rnn.ops.recurrent.inputs import layer_of, operands_of
from varlen_rnn.recurrence.packed import Few, Packed
from varlen_rnn.rows.checks import as_rows
from varlen_rnn.rows.lod import LoD, LoDTensor
from varlen_rnn.rows.plan import plan_of_rows
from varlen_rnn.runtime.device import place_of
from varlen_rnn.runtime.place import HOST, Place

_ONES = LoD([[0]])


def packed_directions(layer: Any, what: str) -> list[list[Packed]]:
    """Return, for each layer, a list of the packed weights of its directions."""
    check_cell(f"{what}, layer", layer)
    check_on_host(f"{what}, layer", layer.parameters()[0].device, "a layer")
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


def check_on_host(what: str, place: Place, noun: str) -> None:
    """Raise unless a place is the host."""
    if place != HOST:
        raise PlaceError(what, expected=f"{noun} on cpu", got=f"{noun} on {place}", hint="move it by to('cpu')")


class Records:
    """The memory of one call of at most `capacity` sequences, for the given directions of each layer.

    Attributes
    ----------
    layers : list of (int, list of int)
        For each layer, the columns of its outputs, and the address of a Few for each direction.
    """

    def __init__(self, layers: list[list[Packed]], capacity: int) -> None:
        self.layers: list[tuple[int, list[int]]] = []
        self._fews: list[Few] = []  # keep the memory at the addresses
        for directions in layers:
            width, addresses = directions[0].shape.outputs, []
            for way, packed in enumerate(directions):
                few = packed.few(capacity, len(self._fews), width * len(directions), way * width)
                self._fews.append(few)
                addresses.append(few.address)
            self.layers.append((width * len(directions), addresses))


class Arrays:
    """Checks the arrays of a call, converts them to the layout of kernels, and converts the resulting states back."""

    def __init__(self, layer: Any, rows: str = "x") -> None:
        self.form = layer._form._replace(rows=rows)
        self.dtype = np.dtype(layer.dtype.char)  # the object that NumPy gives arrays
        self.hidden_size, self.output_size = layer.hidden_size, layer.output_size
        self.num_states, self.num_rows_of_states = len(layer.cell.states), layer.num_layers * layer.num_directions
        # Returns states in the form of the layer's results: one array, or a tuple if the cell has several states.
        self.given_back = self._cut if self.output_size < self.hidden_size else itemgetter(*range(self.num_states))

    def rows(self, rows: Any, where: str) -> np.ndarray:
        """Return rows as an array that kernels take; raise if they do not fit the layer."""
        array = rows if type(rows) is np.ndarray else host_rows(rows, f"{where}, {self.form.rows}")
        self.form.check_rows(where, array)
        return np.require(array, self.dtype, ["C", "A", "W"])

    def initial(self, states: Any, count: int, where: str) -> tuple[np.ndarray, bool]:
        """Return states as a new array `(states, layers * directions, sequences, hidden)`, and whether any is given."""
        given = self.form.each(where, "states", states)
        arrays = [None if state is None else host_rows(state, f"{where}, states") for state in given]
        self.form.check_states(where, arrays, (self.num_rows_of_states, count))
        full = np.zeros((self.num_states, self.num_rows_of_states, count, self.hidden_size), self.dtype)
        for number, array in enumerate(arrays):
            if array is not None:
                full[number, :, :, : array.shape[2]] = array
        return full, any(array is not None for array in arrays)

    def _cut(self, states: np.ndarray) -> Any:
        first = states[0, ..., : self.output_size]
        return first if self.num_states == 1 else (first, *states[1:])


def host_rows(rows: Any, what: str) -> np.ndarray:
    """Return rows as an array; raise unless they are on the host."""
    array = as_rows(rows, what)
    check_on_host(what, place_of(array), "an array")
    return array
