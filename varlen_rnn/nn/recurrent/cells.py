"""RNNCell, LSTMCell and GRUCell: one step of a recurrent layer, for use in your own loop or in a DynamicRNN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike

from varlen_rnn.cells import GRU as GRU_CELL
from varlen_rnn.cells import LSTM as LSTM_CELL
from varlen_rnn.cells import RNN_RELU, RNN_TANH, Cell
from varlen_rnn.errors import NO_DEVICE, check_choice, check_flag, check_int, hinting
from varlen_rnn.nn.layers import uniform
from varlen_rnn.nn.module import Module, Parameter, check_dtype
from varlen_rnn.ops.recurrent.inputs import Form, weight_shapes
from varlen_rnn.ops.sequence.steps import single_rows
from varlen_rnn.tape.modes import grad_enabled
from varlen_rnn.tape.spec import describe
from varlen_rnn.tape.variable import Variable, apply, as_variable, required
from varlen_rnn.typing import Rows


class Step(Module):
    """One step of a cell, computed by the `recurrent` operator on sequences of one row each."""

    weight_ih: Parameter
    weight_hh: Parameter
    bias_ih: Parameter | None
    bias_hh: Parameter | None

    def __init__(self, cell: Cell, input_size: int, hidden_size: int, bias: bool, dtype: DTypeLike) -> None:
        self._cell = cell
        self.input_size = input_size = check_int(input_size, "input_size", 1)
        self.hidden_size = hidden_size = check_int(hidden_size, "hidden_size", 1)
        bias, dtype = check_flag(bias, "bias"), check_dtype(dtype)
        self._form = Form(dtype, input_size, tuple((name, hidden_size) for name in cell.states), is_step=True)
        for name, shape in weight_shapes(cell, input_size, hidden_size).items():
            present = bias or not name.startswith("bias")
            setattr(self, name, uniform(shape, hidden_size, dtype) if present else None)

    def _next(self, x: Rows, hx: Any) -> tuple[Variable, ...]:
        """Return the states after one step, with the LoD of `x`; if `x` is a single row, the states are single rows."""
        name, initial = type(self).__name__, [None] * len(self._cell.states)
        x = required(x, f"{name}, x")
        self._form.check_rows(name, x)
        batch = x.shape[:-1]
        if hx is not None:
            given = [as_variable(state) for state in self._form.each(name, "hx", hx)]
            self._form.check_states(name, given, batch)
            initial = [None if state is None else state.reshape(1, -1, self.hidden_size) for state in given]
        rows = single_rows(x.reshape(-1, self.input_size) if x.ndim == 1 else x)
        weights = self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh
        attrs = {"cell": self._cell.name, "keep": grad_enabled(), "reverse": (0,), "all_states": False}
        _, *outputs = apply("recurrent", rows, *initial, *weights, **attrs)
        shape = (*([-1] if batch else []), self.hidden_size)
        last = [state.reshape(shape) for state in outputs[: len(initial)]]
        if describe(x.value).lod_level:
            last = [apply("lod_reset", state, x, target_lod=None) for state in last]
        return tuple(last)

    def extra_repr(self) -> str:
        """Return the sizes as text for `repr`."""
        return f"{self.input_size}, {self.hidden_size}, bias={self.bias_ih is not None}"


class RNNCell(Step):
    """One step of Elman's recurrent network.

    Parameters
    ----------
    input_size, hidden_size : int
    bias : bool
    nonlinearity : {"tanh", "relu"}
    dtype : data type
        float32 or float64.

    Attributes
    ----------
    weight_ih : (hidden_size, input_size)
    weight_hh : (hidden_size, hidden_size)
    bias_ih, bias_hh : (hidden_size,), or None

    Examples
    --------
    >>> cell = RNNCell(3, 4)
    >>> h = cell(np.zeros((2, 3), np.float32))
    >>> cell(np.ones((2, 3), np.float32), h).shape, cell(np.ones(3, np.float32)).shape
    ((2, 4), (4,))

    Source: the names and shapes of `torch.nn.RNNCell`.
    """

    @hinting(device=NO_DEVICE)
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: Literal["tanh", "relu"] = "tanh",
        *,
        dtype: DTypeLike = np.float32,
    ) -> None:
        check_choice(nonlinearity, "nonlinearity", "tanh", "relu")
        super().__init__(RNN_TANH if nonlinearity == "tanh" else RNN_RELU, input_size, hidden_size, bias, dtype)

    def forward(self, x: Rows, hx: Rows | None = None) -> Variable:
        """Return the next state.

        Parameters
        ----------
        x : Variable or array, shape `(batch, input_size)` or `(input_size,)`
        hx : Variable or array, shape `(batch, hidden_size)` or `(hidden_size,)`, optional
            The state before the step; zeros by default.

        Returns
        -------
        Variable, with the shape of `hx`

        Raises
        ------
        ShapeError
            If sizes or data types do not fit.
        """
        return self._next(x, hx)[0]


class GRUCell(Step):
    """One step of a gated recurrent unit; parameters are as in `RNNCell`, with three gates in the order r z n.

    Examples
    --------
    >>> GRUCell(3, 4)(np.zeros((2, 3), np.float32)).shape
    (2, 4)

    Source: the names, shapes and gate order of `torch.nn.GRUCell`.
    """

    @hinting(device=NO_DEVICE)
    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, *, dtype: DTypeLike = np.float32) -> None:
        super().__init__(GRU_CELL, input_size, hidden_size, bias, dtype)

    def forward(self, x: Rows, hx: Rows | None = None) -> Variable:
        """Return the next state; shapes are as in `RNNCell.forward`."""
        return self._next(x, hx)[0]


class LSTMCell(Step):
    """One step of a long short-term memory; parameters are as in `RNNCell`, with four gates in the order i f g o.

    Examples
    --------
    >>> cell = LSTMCell(3, 4)
    >>> h, c = cell(np.zeros((2, 3), np.float32))
    >>> h, c = cell(np.ones((2, 3), np.float32), (h, c))
    >>> h.shape, c.shape
    ((2, 4), (2, 4))

    Source: the names, shapes and gate order of `torch.nn.LSTMCell`.
    """

    @hinting(device=NO_DEVICE)
    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, *, dtype: DTypeLike = np.float32) -> None:
        super().__init__(LSTM_CELL, input_size, hidden_size, bias, dtype)

    @hinting(c="hx is a tuple (h, c)")
    def forward(self, x: Rows, hx: Sequence[Rows | None] | None = None) -> tuple[Variable, Variable]:
        """Return the next `h, c`, given the previous pair `hx`; shapes are as in `RNNCell.forward`."""
        h, c = self._next(x, hx)
        return h, c
