"""Recurrent layers over rows: RNN, LSTM, GRU and any cell of your own, any number of layers, one or two directions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import DTypeLike

from varlen_rnn.cells import GRU as GRU_CELL
from varlen_rnn.cells import LSTM as LSTM_CELL
from varlen_rnn.cells import RNN_RELU, RNN_TANH, Cell, find_cell
from varlen_rnn.errors import DTypeError, ProgramError, ShapeError, check_choice, check_flag, check_int, shown
from varlen_rnn.nn.functional import check_probability, concat, dropout
from varlen_rnn.nn.layers import uniform
from varlen_rnn.nn.module import Module, Parameter, check_dtype
from varlen_rnn.ops.recurrent import WEIGHTS
from varlen_rnn.tape.modes import grad_enabled
from varlen_rnn.tape.spec import sizes_fit
from varlen_rnn.tape.variable import Variable, apply, as_variable, required
from varlen_rnn.typing import Rows

_MOST_LAYERS = 1000  # far more than learn anything: a number that is none would fill the memory


def _check_layers(num_layers: int) -> int:
    num_layers = check_int(num_layers, "num_layers", 1)
    if num_layers > _MOST_LAYERS:
        raise ShapeError("num_layers", expected=f"at most {_MOST_LAYERS}", got=shown(num_layers))
    return num_layers


class Recurrent(Module):
    """A recurrent network of one kind of cell over rows with a LoD; the last level's sequences are its batch.

    Parameters
    ----------
    cell : cells.Cell
        One of `varlen_rnn.cells`, or your own.
    input_size, hidden_size : int
        Features of a row, and units of a layer and direction.
    num_layers : int
    bias : bool
    dropout : float
        Probability of zeroing an element between layers, in training.
    bidirectional : bool
        Whether a second direction runs each sequence from its last row to its first.
    dtype : data type
        float32 or float64.

    Attributes
    ----------
    weight_ih_l{k}[_reverse] : (gates * hidden_size, input_size or directions * hidden_size)
    weight_hh_l{k}[_reverse] : (gates * hidden_size, hidden_size)
    bias_ih_l{k}[_reverse], bias_hh_l{k}[_reverse] : (gates * hidden_size,), or None

    Examples
    --------
    >>> from varlen_rnn.cells import GRU
    >>> from varlen_rnn.lod import create_lod_tensor
    >>> y, h_n = Recurrent(GRU, 3, 4)(create_lod_tensor(np.zeros((5, 3), np.float32), [[2, 0, 3]]))
    >>> y.shape, h_n.shape
    ((5, 4), (1, 3, 4))
    """

    def __init__(
        self,
        cell: Cell,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        dropout: float = 0.0,
        bidirectional: bool = False,
        dtype: DTypeLike = np.float32,
    ) -> None:
        if not isinstance(cell, Cell):
            raise DTypeError("cell", expected="a cells.Cell", got=type(cell).__name__)
        self.cell = cell
        # The ints of Python from here on: NumPy's small ones overflow.
        self.input_size = input_size = check_int(input_size, "input_size", 1)
        self.hidden_size = hidden_size = check_int(hidden_size, "hidden_size", 1)
        self.num_layers = num_layers = _check_layers(num_layers)
        check_probability(dropout)
        self.dropout, self.bidirectional = dropout, check_flag(bidirectional, "bidirectional")
        bias, self._dtype = check_flag(bias, "bias"), check_dtype(dtype)
        rows = len(self.cell.gates) * hidden_size
        for layer in range(num_layers):
            width = hidden_size * self.num_directions if layer else input_size
            shapes = [(rows, width), (rows, hidden_size), (rows,), (rows,)]
            for suffix in self.suffixes(layer):
                for name, shape in zip(WEIGHTS, shapes, strict=True):
                    present = bias or not name.startswith("bias")
                    setattr(self, name + suffix, uniform(shape, hidden_size, self._dtype) if present else None)

    if TYPE_CHECKING:  # which parameters there are depends on the arguments, and whether biases are None

        def __getattr__(self, name: str) -> Parameter | Any: ...

    @property
    def num_directions(self) -> int:
        """1, or 2 when bidirectional."""
        return 2 if self.bidirectional else 1

    def suffixes(self, layer: int) -> list[str]:
        """Return the endings of the names of a layer's parameters, one per direction."""
        return [f"_l{layer}", f"_l{layer}_reverse"][: self.num_directions]

    def forward(self, x: Rows, states: Any = None) -> tuple[Variable, Any]:
        """Return the outputs, and the last states: one Variable, or a tuple where the cell has several.

        Parameters
        ----------
        x : Variable or LoDTensor, shape `(rows, input_size)`
        states : initial states, optional
            One, or a tuple where the cell has several; each
            `(num_layers * num_directions, num_sequences, hidden_size)`, in the caller's order; zeros by default.

        Returns
        -------
        y : Variable, shape `(rows, num_directions * hidden_size)`, with the LoD of `x`
        last : Variable, or a tuple of them, shaped as the initial states; of an empty sequence, its initial states
        """
        y, last = self._run(x, self.each_state(states))
        return y, last if len(last) > 1 else last[0]

    def each_state(self, states: Any) -> tuple[Rows | None, ...]:
        """Return an initial value, or None, for each state, as a tuple."""
        count = len(self.cell.states)
        if states is None or count == 1:
            return (states,) * count
        if not isinstance(states, (tuple, list)) or len(states) != count:
            expected = f"({', '.join(f'{name}_0' for name in self.cell.states)})"
            raise ShapeError(f"{type(self).__name__}, states", expected=expected, got=type(states).__name__)
        return tuple(states)

    def _run(self, x: Rows, states: tuple[Rows | None, ...]) -> tuple[Variable, tuple[Variable, ...]]:
        """Return the outputs and the last states of `x` from one initial value, or None, for each state."""
        x = required(x, f"{type(self).__name__}, x")
        states = [as_variable(state) for state in states]
        self.check(x, states)
        last = []
        for layer in range(self.num_layers):
            if layer:
                x = dropout(x, self.dropout, self.training)
            first = layer * self.num_directions
            of_layer = [None if s is None else s[first : first + self.num_directions] for s in states]
            weights = [getattr(self, name + suffix) for suffix in self.suffixes(layer) for name in WEIGHTS]
            x, *outputs = apply("recurrent", x, *of_layer, *weights, cell=self.cell.name, keep=grad_enabled())
            last.append(outputs[: len(states)])
        return x, tuple(concat(list(of_state), axis=0) for of_state in zip(*last, strict=True))

    def check(self, x: Variable, states: Sequence[Variable | None]) -> None:
        """Raise unless the rows and the initial states, None or Variables, fit this layer."""
        if find_cell(self.cell.name) is not self.cell:
            hint = "make the layer again, or give the other cell a name of its own"
            raise ProgramError(f"cell {self.cell.name!r}", expected="the layer's", got="another one", hint=hint)
        if x.dtype != self._dtype:
            hint = "data types are never mixed silently: use astype"
            raise DTypeError(f"{type(self).__name__}, x", expected=self._dtype, got=x.dtype, hint=hint)
        for name, state in zip(self.cell.states, states, strict=True):
            if state is None:
                continue
            num_sequences = x.value.num_elements(-1) if x.value.num_levels else -1
            shape = (self.num_layers * self.num_directions, num_sequences, self.hidden_size)
            if state.dtype != self._dtype or not sizes_fit(state.shape, shape) or state.shape[0] != shape[0]:
                raise ShapeError(
                    f"{type(self).__name__}, {name}_0",
                    expected=f"{shape} {self._dtype}",
                    got=f"{state.shape} {state.dtype}",
                    hint="(num_layers * num_directions, num_sequences, hidden_size)",
                )

    def extra_repr(self) -> str:
        """Return the cell, where the class does not tell it, and the sizes."""
        cell = f"{self.cell.name!r}, " if type(self) is Recurrent else ""
        text = f"{cell}{self.input_size}, {self.hidden_size}, num_layers={self.num_layers}"
        return text + f", dropout={self.dropout}, bidirectional={self.bidirectional}"


class LSTM(Recurrent):
    """Long short-term memory over rows; the parameters are those of `Recurrent`.

    Examples
    --------
    >>> from varlen_rnn.lod import create_lod_tensor
    >>> x = create_lod_tensor(np.zeros((5, 3), np.float32), [[2, 0, 3]])
    >>> y, (h_n, c_n) = LSTM(3, 4)(x)
    >>> y.shape, y.lod(), h_n.shape
    ((5, 4), [[0, 2, 2, 5]], (1, 3, 4))

    Source: the equations in `varlen_rnn.cells.lstm`; names, shapes and gate order i f g o of `torch.nn.LSTM`.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        dropout: float = 0.0,
        bidirectional: bool = False,
        dtype: DTypeLike = np.float32,
    ) -> None:
        super().__init__(LSTM_CELL, input_size, hidden_size, num_layers, bias, dropout, bidirectional, dtype)

    if TYPE_CHECKING:  # two states

        def forward(
            self, x: Rows, states: Sequence[Rows | None] | None = None
        ) -> tuple[Variable, tuple[Variable, Variable]]:
            """Return `y, (h_n, c_n)`; shapes as those of `Recurrent.forward`."""


class GRU(Recurrent):
    """Gated recurrent units over rows, reset after the product; the parameters are those of `Recurrent`.

    Examples
    --------
    >>> from varlen_rnn.lod import create_lod_tensor
    >>> y, h_n = GRU(3, 4, bidirectional=True)(create_lod_tensor(np.zeros((5, 3), np.float32), [[2, 3]]))
    >>> y.shape, h_n.shape
    ((5, 8), (2, 2, 4))

    Source: the equations in `varlen_rnn.cells.gru`; names, shapes and gate order r z n of `torch.nn.GRU`.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        dropout: float = 0.0,
        bidirectional: bool = False,
        dtype: DTypeLike = np.float32,
    ) -> None:
        super().__init__(GRU_CELL, input_size, hidden_size, num_layers, bias, dropout, bidirectional, dtype)

    def forward(self, x: Rows, h_0: Rows | None = None) -> tuple[Variable, Variable]:
        """Return `y, h_n`; shapes as those of `Recurrent.forward`."""
        return super().forward(x, h_0)


class RNN(Recurrent):
    """Elman's recurrent network over rows; the parameters are those of `Recurrent`.

    And `nonlinearity`, "tanh" or "relu".

    Examples
    --------
    >>> from varlen_rnn.lod import create_lod_tensor
    >>> y, h_n = RNN(3, 4, nonlinearity="relu")(create_lod_tensor(np.zeros((5, 3), np.float32), [[2, 3]]))
    >>> y.shape, h_n.shape
    ((5, 4), (1, 2, 4))

    Source: the equations in `varlen_rnn.cells.rnn`; names and shapes of `torch.nn.RNN`.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: Literal["tanh", "relu"] = "tanh",
        bias: bool = True,
        dropout: float = 0.0,
        bidirectional: bool = False,
        dtype: DTypeLike = np.float32,
    ) -> None:
        check_choice(nonlinearity, "nonlinearity", "tanh", "relu")
        cell = RNN_TANH if nonlinearity == "tanh" else RNN_RELU
        super().__init__(cell, input_size, hidden_size, num_layers, bias, dropout, bidirectional, dtype)

    def forward(self, x: Rows, h_0: Rows | None = None) -> tuple[Variable, Variable]:
        """Return `y, h_n`; shapes as those of `Recurrent.forward`."""
        return super().forward(x, h_0)
