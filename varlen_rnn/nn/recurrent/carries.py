"""The protocol of layers that carry states over the steps of sequences; other modules check it instead of a class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from varlen_rnn.cells import Cell
from varlen_rnn.errors import DTypeError, ShapeError
from varlen_rnn.nn.recurrent.options import Way
from varlen_rnn.tape.variable import Variable
from varlen_rnn.typing import Rows


@runtime_checkable
class Carries(Protocol):
    """A layer that carries states from step to step: every `Recurrent`, and any module with the same methods.

    A state has the shape (layers, sequences, ...), with the sequences in the caller's order.  A call on sequences of
    one row each is one step.
    """

    direction: Way

    def each_state(self, states: Any) -> tuple[Rows | None, ...]:
        """Return a tuple with an entry per state, given states as a call takes them; None for a missing state."""

    def __call__(self, x: Rows, states: Any = None) -> tuple[Variable, Any]:
        """Return the outputs and the last states; the initial states are `states`, or zeros if None."""


def check_carries(where: str, layer: Any, in_parts: bool = False) -> None:
    """Raise if a layer carries no states; with `in_parts`, raise also if its sequences cannot arrive in parts."""
    if not isinstance(layer, Carries):
        expected = "an nn.RNN, nn.LSTM, nn.GRU or nn.Recurrent"
        raise DTypeError(where, expected=expected, got=type(layer).__name__)
    if in_parts and layer.direction != "forward":
        hint = "a backward direction begins at the end of a sequence, which has not arrived yet"
        raise ShapeError(where, expected="direction 'forward'", got=repr(layer.direction), hint=hint)


def check_cell(where: str, layer: Any) -> None:
    """Raise unless a layer runs a cell that reads only `x` and states, without inputs such as masks for each row."""
    check_carries(where, layer)
    if not isinstance(getattr(layer, "cell", None), Cell):
        raise DTypeError(where, expected="a layer with one cell, such as nn.LSTM", got=type(layer).__name__)
    if layer.cell.row_inputs:
        got = f"{layer.cell.name!r}, which reads also {layer.cell.row_inputs}"
        expected, hint = "a cell that reads only x and states", "masks of zoneout and recurrent_dropout fit one batch"
        raise ShapeError(where, expected=expected, got=got, hint=hint)


def together(states: Sequence[Any]) -> Any:
    """Return states in the form that a layer's call takes and returns: a single state, or a tuple of several."""
    return tuple(states) if len(states) > 1 else states[0]
