"""`MatrixRecurrent`, the base of layers whose states are matrices: blocks in several layers and directions.

A block is one layer in one direction.  A layer of two heads of four numbers, which reads rows of three features:

    block = Block(3, 8, 2)      # makes its parameters
    y, *last = block(x)         # y has 8 columns, and there is a state for each sequence
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from varlen_rnn.errors import NO_BATCH_AXIS, NO_DEVICE, DTypeError, ShapeError, check_flag, check_int, hinting, shown
from varlen_rnn.nn import functional
from varlen_rnn.nn.layers import Linear, drawn, uniform
from varlen_rnn.nn.matrix.stream import MatrixStream
from varlen_rnn.nn.module import Module, Parameter, check_dtype
from varlen_rnn.nn.recurrent.carries import together
from varlen_rnn.nn.recurrent.layers import check_direction, check_layers
from varlen_rnn.nn.recurrent.options import Way
from varlen_rnn.ops.recurrent.inputs import Form
from varlen_rnn.ops.sequence.along import sequence_reverse
from varlen_rnn.ops.sequence.causal_conv import causal_conv
from varlen_rnn.random import generator
from varlen_rnn.tape.checks import check_lod_level
from varlen_rnn.tape.spec import describe, sizes_fit
from varlen_rnn.tape.variable import Variable, as_variable, required
from varlen_rnn.typing import Rows

Shapes: TypeAlias = tuple[tuple[str, tuple[int, ...]], ...]


class Block(Module):
    """One layer in one direction: `forward(x, *states)` returns outputs and the states after the last rows.

    A state is None if it begins as zeros.
    """

    state_shapes: Shapes  # the name and the shape of each state of a sequence

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        self.hidden_size, self.num_heads, self.head_size = hidden_size, num_heads, hidden_size // num_heads

    def heads(self, x: Variable) -> Variable:
        """Return rows of `hidden_size` numbers as rows of heads."""
        return x.reshape(-1, self.num_heads, self.head_size)

    def units(self, x: Variable) -> Variable:
        """Return rows whose heads have length 1, as rows of heads: x / sqrt(sum of x^2 + 1e-6)."""
        return functional.rms_norm(self.heads(x), eps=1e-6 / self.head_size) * self.head_size**-0.5


class ShortConvolution(Module):
    """A causal convolution of each channel, whose window is carried; silu follows."""

    def __init__(self, channels: int, width: int, bias: bool, dtype: np.dtype) -> None:
        self.channels, self.width = channels, check_int(width, "conv_size", 1)
        self.weight = uniform((channels, 1, self.width), self.width, dtype)
        self.bias = uniform((channels,), self.width, dtype) if bias else None

    def forward(self, x: Rows, state: Rows | None = None) -> tuple[Variable, Variable]:
        """Return rows and the last windows."""
        return causal_conv(x, self.weight.reshape(self.channels, self.width), self.bias, state, "silu")


class ThreeConvolutions(Block):
    """A block with convolutions of queries, keys and values, whose windows are one state."""

    def __init__(self, input_size: int, hidden_size: int, num_heads: int, conv_size: int, dtype: np.dtype) -> None:
        super().__init__(hidden_size, num_heads)
        for name in "qkv":
            setattr(self, f"{name}_proj", Linear(input_size, hidden_size, bias=False, dtype=dtype))
        for name in "qkv":
            setattr(self, f"{name}_conv1d", ShortConvolution(hidden_size, conv_size, False, dtype))
        state = num_heads, self.head_size, self.head_size
        self.state_shapes = ("state", state), ("window", (int(conv_size) - 1, 3 * hidden_size))

    def convolved(self, x: Rows, window: Variable | None) -> tuple[list[Variable], Variable]:
        """Return queries, keys and values, and the last windows."""
        before = [None] * 3 if window is None else functional.split(window, [self.hidden_size] * 3)
        found = [
            getattr(self, f"{name}_conv1d")(getattr(self, f"{name}_proj")(x), part)
            for name, part in zip("qkv", before, strict=True)
        ]
        return [rows for rows, _ in found], functional.concat([last for _, last in found])


def log_rates(num_heads: int, dtype: np.dtype) -> Parameter:
    """Return logarithms of decay rates, drawn from 1 to 16, as in Mamba-2."""
    return Parameter(np.log(drawn((num_heads,), lambda shape: generator().uniform(1, 16, shape))).astype(dtype))


def biases_of_steps(num_heads: int, dtype: np.dtype) -> Parameter:
    """Return biases whose softplus is a step of 0.001 to 0.1, drawn uniformly on a logarithmic scale, as in Mamba."""
    steps = np.exp(drawn((num_heads,), lambda shape: generator().uniform(np.log(0.001), np.log(0.1), shape)))
    return Parameter((steps + np.log(-np.expm1(-steps))).astype(dtype))


class MatrixRecurrent(Module):
    """The base of `GatedDeltaNet`, `DeltaNet`, `Mamba2`, `MLSTM` and `GatedLinearAttention`.

    A block, a module inside of the layer, has the parameters of a layer and direction: `l0` and `l0_reverse` for the
    first layer.  Parameters of a block have the names of the package that the class gives as its source.
    """

    _block: Callable[[int], Block]  # returns a block that reads rows of so many columns; subclasses define it

    @hinting(batch_first=NO_BATCH_AXIS, device=NO_DEVICE)
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_heads: int = 4,
        num_layers: int = 1,
        *,
        dropout: float = 0.0,
        bidirectional: bool = False,
        direction: Way | None = None,
        dtype: DTypeLike = np.float32,
    ) -> None:
        self.input_size = check_int(input_size, "input_size", 1)
        self.hidden_size = check_int(hidden_size, "hidden_size", 1)
        self.num_heads = check_int(num_heads, "num_heads", 1)
        if self.hidden_size % self.num_heads:
            expected = f"a number that divides hidden_size={self.hidden_size}"
            raise ShapeError("num_heads", expected=expected, got=shown(self.num_heads))
        self.num_layers = check_layers(num_layers)
        functional.check_probability(dropout)
        self.dropout, self._dtype = dropout, check_dtype(dtype)
        self.direction: Way = check_direction(direction, check_flag(bidirectional, "bidirectional"))
        self._ways = {"forward": (False,), "backward": (True,), "both": (False, True)}[self.direction]
        for layer in range(self.num_layers):
            columns = self.hidden_size * len(self._ways) if layer else self.input_size
            for name in self._names(layer):
                setattr(self, name, self._block(columns))
        self._form = Form(self._dtype, self.input_size, tuple((f"{name}_0", 0) for name, _ in self.state_shapes))

    def _names(self, layer: int) -> list[str]:
        return [f"l{layer}{'_reverse' if backward else ''}" for backward in self._ways]

    @property
    def dtype(self) -> np.dtype:
        """The data type of rows and weights."""
        return self._dtype

    @property
    def bidirectional(self) -> bool:
        """Whether the layer runs in both directions."""
        return self.direction == "both"

    @property
    def state_shapes(self) -> Shapes:
        """The name of each state, and its shape for a sequence."""
        block: Block = getattr(self, self._names(0)[0])
        return block.state_shapes

    def each_state(self, states: Any) -> tuple[Rows | None, ...]:
        """Return the initial value of each state as a tuple; None for a state that is not given."""
        return self._form.each(type(self).__name__, "states", states)

    def forward(self, x: Rows, states: Any = None) -> tuple[Variable, Any]:
        """Return the outputs, and the states after the last rows.

        Parameters
        ----------
        x : Variable or LoDTensor, shape `(rows, input_size)`
        states : tuple of Variable or array, optional
            States before the first rows, zeros by default.  Each has the shape `(num_layers * num_directions,
            num_sequences, ...)`, and ends with its shape in `state_shapes`.

        Returns
        -------
        y : Variable, shape `(rows, hidden_size)`, with the LoD of `x`
            Twice as many columns if the layer is bidirectional.
        last : tuple of Variable, with the shapes of the initial states
            An empty sequence keeps its initial states.
        """
        x = required(x, f"{type(self).__name__}, x")
        given = [None if state is None else as_variable(state) for state in self.each_state(states)]
        self._form.check_rows(type(self).__name__, x)
        check_lod_level(type(self).__name__, "x", describe(x.value))
        self.check_states(type(self).__name__, given, x.value.num_elements(-1))
        last: list[list[Variable]] = []
        for layer in range(self.num_layers):
            if layer:
                x = functional.dropout(x, self.dropout, self.training)
            sides = []
            for name, backward in zip(self._names(layer), self._ways, strict=True):
                of_block = [None if state is None else state[len(last)] for state in given]
                y, *after = getattr(self, name)(sequence_reverse(x) if backward else x, *of_block)
                sides.append(sequence_reverse(y) if backward else y)
                last.append(after)
            x = functional.concat(sides)
        return x, together([functional.stack(list(of_state)) for of_state in zip(*last, strict=True)])

    def check_states(self, where: str, states: Sequence[Any], num_sequences: int = -1) -> None:
        """Raise unless initial states fit this layer and the number of sequences; -1 is any number, and None fits."""
        for (name, shape), state in zip(self.state_shapes, states, strict=True):
            wanted = self.num_layers * len(self._ways), num_sequences, *shape
            if state is None:
                continue
            if state.dtype != self._dtype:
                raise DTypeError(f"{where}, {name}", expected=str(self._dtype), got=state.dtype)
            if not sizes_fit(state.shape, wanted) or state.shape[0] != wanted[0]:
                sizes = ", ".join("num_sequences" if size == -1 else str(size) for size in wanted)
                raise ShapeError(f"{where}, {name}", expected=f"shape ({sizes})", got=f"shape {state.shape}")

    def stream(self, num_sequences: int = 1) -> MatrixStream:
        """Return a copy of the layer for sequences that arrive row by row, with stored states.

        Raises
        ------
        PlaceError
            If the layer is on a device.
        """
        return MatrixStream(self, num_sequences)

    def extra_repr(self) -> str:
        """Return the sizes and options as text for `repr`."""
        text = f"{self.input_size}, {self.hidden_size}, num_heads={self.num_heads}, num_layers={self.num_layers}"
        return f"{text}, dropout={self.dropout}, direction={self.direction!r}"
