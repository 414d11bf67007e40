"""Recurrent layers over rows: RNN, LSTM, GRU, and `Recurrent` for any cell, with several layers and directions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import DTypeLike

from varlen_rnn.cells import CELLS, Cell, find_cell, gru_cell, lstm_cell, rnn_cell, slstm_cell
from varlen_rnn.cells.family import Family
from varlen_rnn.errors import (
    NO_BATCH_AXIS,
    NO_DEVICE,
    DTypeError,
    ProgramError,
    ShapeError,
    check_choice,
    check_flag,
    check_int,
    hinting,
    shown,
)
from varlen_rnn.nn.functional import check_probability, concat, dropout
from varlen_rnn.nn.layers import uniform
from varlen_rnn.nn.losses import Per
from varlen_rnn.nn.module import Module, Parameter, check_dtype
from varlen_rnn.nn.recurrent.carries import together
from varlen_rnn.nn.recurrent.options import (
    Activation,
    GRUOptions,
    LSTMOptions,
    Merge,
    RNNOptions,
    SLSTMOptions,
    Way,
    drawn,
    layer_of,
)
from varlen_rnn.nn.recurrent.prepared import Prepared
from varlen_rnn.nn.recurrent.stream import Stream
from varlen_rnn.ops.recurrent.inputs import check_heads, form_of, weight_shapes
from varlen_rnn.runtime.place import HOST
from varlen_rnn.runtime.precision import at_precision
from varlen_rnn.tape.modes import grad_enabled, no_grad, recorder
from varlen_rnn.tape.variable import Variable, apply, as_variable, required
from varlen_rnn.typing import Rows

_MOST_LAYERS = 1000  # far more than are useful; a larger number is a mistake that would fill the memory
_REVERSE = {"forward": (0,), "backward": (1,), "both": (0, 1)}  # 1 for each direction that runs backward
_ENDS = ("", "_reverse")  # endings of parameter names, forward and backward


def check_layers(num_layers: int) -> int:
    """Return a number of layers as an int; raise unless it is a number of layers that a module can have."""
    num_layers = check_int(num_layers, "num_layers", 1)
    if num_layers > _MOST_LAYERS:
        raise ShapeError("num_layers", expected=f"at most {_MOST_LAYERS}", got=shown(num_layers))
    return num_layers


def check_direction(direction: Way | None, bidirectional: bool) -> Way:
    """Return the direction, taken from `bidirectional` if it is None; raise if the two contradict each other."""
    if direction is None:
        return "both" if bidirectional else "forward"
    check_choice(direction, "direction", *_REVERSE)
    if bidirectional and direction != "both":
        hint = "bidirectional=True means direction='both': pass only one of the two"
        raise ShapeError("direction", expected="'both', with bidirectional=True", got=repr(direction), hint=hint)
    return direction


def _check_projection(cell: Cell, proj_size: int, hidden_size: int) -> int:
    proj_size = check_int(proj_size, "proj_size", 0)
    if proj_size >= hidden_size:
        raise ShapeError("proj_size", expected=f"less than hidden_size={hidden_size}", got=shown(proj_size))
    if proj_size and not cell.may_project:
        hint = "its equations read the previous output, as with zoneout, or a later product reads its hidden units"
        expected = f"0, because the cell {cell.name!r} cannot project"
        raise ShapeError("proj_size", expected=expected, got=shown(proj_size), hint=hint)
    return proj_size


def _check_heads(cell: Cell, num_heads: int, hidden_size: int, proj_size: int) -> int:
    num_heads = check_int(num_heads, "num_heads", 1)
    if hidden_size % num_heads:
        raise ShapeError("num_heads", expected=f"a divisor of hidden_size={hidden_size}", got=shown(num_heads))
    if proj_size and num_heads > 1:
        hint = "a projection mixes the units of all heads: leave out proj_size, or use num_heads=1"
        raise ShapeError("num_heads", expected=f"1, with proj_size={proj_size}", got=shown(num_heads), hint=hint)
    check_heads("num_heads", cell, num_heads)
    return num_heads


def _check_recompute(recompute: bool | int, cell: Cell) -> bool | int:
    recompute = recompute if isinstance(recompute, bool) else check_int(recompute, "recompute", 1)
    if recompute and cell.row_inputs:
        hint = f"its inputs {cell.row_inputs} have numbers for each row, which are not cut into chunks of steps"
        raise ShapeError("recompute", expected=f"False, with the cell {cell.name!r}", got=shown(recompute), hint=hint)
    return recompute


class Recurrent(Module):
    """A recurrent network of any cell over rows with a LoD; the sequences of the last LoD level are its batch.

    Parameters
    ----------
    cell : cells.Cell
        A cell from `varlen_rnn.cells`, or your own.
    input_size : int
        Features of an input row.
    hidden_size : int
        Units of a layer in one direction.
    num_layers : int
        Layers; each further layer reads the outputs of the layer below it.
    bias : bool
        Whether the layers have biases.
    dropout : float
        Probability of zeroing an element between layers, in training.
    bidirectional : bool
        PyTorch's name for `direction="both"`.
    dtype : data type
        Data type of rows and weights: float32 or float64.
    direction : {"forward", "backward", "both"}, optional
        "backward" runs each sequence from its last row to its first; "both" runs it forward and backward.
    merge : {"concat", "sum", "mean"}
        How every layer joins the outputs of both directions: side by side, as their sum, or as their mean.
    dropout_per : {"row", "sequence"}
        Whether `dropout` draws a mask for each row or for each sequence (Gal and Ghahramani, 2016).
    proj_size : int
        The size to which a layer projects its output, less than `hidden_size`; 0 for no projection.  The recurrent
        products read the projected output.  Only for cells, such as the LSTM, whose equations read the output nowhere
        else.
    num_heads : int
        The number of heads, a divisor of `hidden_size`.  A head is `hidden_size / num_heads` neighbouring units whose
        recurrent products read only the outputs of the same head.  So the recurrent weights are block-diagonal, and
        take 1/num_heads of the memory and multiply-adds.  A layer with four heads is equal to four separate layers that
        read the same `x`, with their outputs side by side.  Not with `proj_size`, nor for cells that call `norm`.
    recompute : bool or int
        Whether to save memory in training: the forward pass saves states only every `recompute` steps, and the backward
        pass recomputes the other states, which makes a training step about 1.5 times as long.  True means the square
        root of the longest length.  A call of `all_states` saves all states.  Not for cells with row inputs, which
        zoneout and recurrent dropout need.
    precision : {"fp32", "tf32", "bf16", "bf16-avx512"}, optional
        The precision of the layer's products of float32, as in `vr.set_float32_matmul_precision`; by default the
        precision that is set when the layer is called.

    Attributes
    ----------
    weight_ih_l{k}[_reverse] : (gates * hidden_size, input_size or the columns of the layer below)
    weight_hh_l{k}[_reverse] : (gates * hidden_size, hidden_size / num_heads or proj_size)
        With heads, it has the blocks of the diagonal: after `reshape(gates, num_heads, size, size)`, where `size` is
        `hidden_size / num_heads`, entry `[g, j]` is the matrix by which gate g of head j multiplies the head's outputs.
        The rows have the same order as without heads: gate after gate, and unit after unit.
    bias_ih_l{k}[_reverse], bias_hh_l{k}[_reverse] : (gates * hidden_size,), or None
    weight_hr_l{k}[_reverse] : (proj_size, hidden_size), where there is a projection
    {vector}_l{k}[_reverse] : (hidden_size,), for each vector of the cell
        A weight that the cell does not use is None.  The names of a backward direction's parameters end with
        `_reverse`, even if there is no forward direction.

    Raises
    ------
    ShapeError
        If a size, a probability or a combination of options is not possible; in a call, if the columns of `x` or the
        shape of a state do not fit.
    DTypeError
        If `dtype` is neither float32 nor float64, or a size is no int; in a call, if `x` has another data type than the
        layer.

    Examples
    --------
    >>> from varlen_rnn.cells import GRU
    >>> from varlen_rnn.rows.lod import create_lod_tensor
    >>> y, h_n = Recurrent(GRU, 3, 4)(create_lod_tensor(np.zeros((5, 3), np.float32), [[2, 0, 3]]))
    >>> y.shape, h_n.shape
    ((5, 4), (1, 3, 4))
    >>> x = create_lod_tensor(np.zeros((5, 3), np.float32), [[2, 0, 3]])
    >>> Recurrent(GRU, 3, 4, direction="both", merge="sum")(x)[0].shape
    (5, 4)
    >>> Recurrent(GRU, 3, 4, num_heads=2).weight_hh_l0.shape
    (12, 2)

    Source: heads as in the sLSTM of Beck et al. (2024), "xLSTM: extended long short-term memory".
    """

    @hinting(batch_first=NO_BATCH_AXIS, device=NO_DEVICE)
    def __init__(
        self,
        cell: Cell,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        *,
        dropout: float = 0.0,
        bidirectional: bool = False,
        dtype: DTypeLike = np.float32,
        direction: Way | None = None,
        merge: Merge = "concat",
        dropout_per: Per = "row",
        proj_size: int = 0,
        num_heads: int = 1,
        recompute: bool | int = False,
        precision: str | None = None,
    ) -> None:
        if not isinstance(cell, Cell):
            got = shown(cell) if isinstance(cell, str) else getattr(cell, "__name__", type(cell).__name__)
            hint = "cells.LSTM is a cell; nn.LSTM and nn.LSTMCell are layers that run it"
            raise DTypeError("cell", expected="a cells.Cell", got=got, hint=hint)
        self.cell = cell
        # `check_int` returns Python ints, because products of NumPy's small ints overflow.
        self.input_size = input_size = check_int(input_size, "input_size", 1)
        self.hidden_size = hidden_size = check_int(hidden_size, "hidden_size", 1)
        self.num_layers = num_layers = check_layers(num_layers)
        check_probability(dropout)
        self.direction = check_direction(direction, check_flag(bidirectional, "bidirectional"))
        check_choice(merge, "merge", "concat", "sum", "mean")
        check_choice(dropout_per, "dropout_per", "row", "sequence")
        self.dropout, self.dropout_per, self.merge = dropout, dropout_per, merge
        self.proj_size = _check_projection(cell, proj_size, hidden_size)
        self.num_heads = _check_heads(cell, num_heads, hidden_size, self.proj_size)
        self.recompute, self.precision = _check_recompute(recompute, cell), precision
        self._every = None if self.recompute is False else int(self.recompute) * (self.recompute is not True)
        self._reverse, bias, self._dtype = _REVERSE[self.direction], check_flag(bias, "bias"), check_dtype(dtype)
        for layer in range(num_layers):
            shapes = self._shapes(layer)
            for suffix in self.suffixes(layer):
                for name, shape in shapes.items():
                    present = shape[0] and (bias or not name.startswith("bias"))
                    size = hidden_size // self.num_heads  # weights begin like the weights of separate layers
                    setattr(self, name + suffix, uniform(shape, size, self._dtype) if present else None)
        self._form = form_of(cell, self._dtype, input_size, hidden_size, self.output_size)
        # Names are built only once: building them in each call would take as long as a small layer's product.
        endings = (suffix for layer in range(num_layers) for suffix in self.suffixes(layer))
        self._named = {suffix: [name + suffix for name in shapes] for suffix in endings}

    def _shapes(self, layer: int) -> dict[str, tuple[int, ...]]:
        below = self.output_size * (self.num_directions if self.merge == "concat" else 1)
        width = below if layer else self.input_size
        return weight_shapes(self.cell, width, self.hidden_size, self.proj_size or None, self.num_heads)

    if TYPE_CHECKING:  # Which parameters exist depends on the arguments.

        def __getattr__(self, name: str) -> Parameter | Any: ...

    @property
    def num_directions(self) -> int:
        """1 for a forward or backward layer, 2 for one that runs in both directions."""
        return len(self._reverse)

    @property
    def bidirectional(self) -> bool:
        """Whether the layer runs in both directions."""
        return self.direction == "both"

    @property
    def reverse(self) -> tuple[int, ...]:
        """For each direction, 1 if it runs from the last row to the first, otherwise 0."""
        return self._reverse

    @property
    def output_size(self) -> int:
        """The output columns of one direction: `proj_size` if there is a projection, otherwise `hidden_size`."""
        return self.proj_size or self.hidden_size

    def suffixes(self, layer: int) -> list[str]:
        """Return the suffix of a layer's parameter names for each direction, such as `_l0` and `_l0_reverse`."""
        return [f"_l{layer}{_ENDS[backward]}" for backward in self._reverse]

    def weights(self, suffix: str) -> list[Variable | None]:
        """Return the weights that a forward pass uses for a layer and direction; a missing weight is None."""
        return self.present_weights(suffix)

    def present_weights(self, suffix: str) -> list[Variable | None]:
        """Return the weights of a layer and direction as stored, without weight dropout."""
        return [getattr(self, name) for name in self._named[suffix]]

    @property
    def dtype(self) -> np.dtype:
        """The data type of rows and weights."""
        return self._dtype

    def _freeze(self) -> None:
        # A layer that draws masks for each batch cannot be packed.  On a device, there is no packed form.
        if not self.cell.row_inputs and self.parameters()[0].device == HOST:
            self.forward = self.prepare().of_variables  # type: ignore[assignment, method-assign]

    def prepare(self) -> Prepared:
        """Return a copy of the layer for inference, with packed weights, without gradients; it also takes arrays.

        Later changes of the precision of products do not affect it.

        Raises
        ------
        PlaceError
            If the layer is on a device, where no weights are packed.

        Examples
        --------
        >>> run = GRU(3, 4).prepare()
        >>> run(np.ones((5, 3), np.float32), offsets=[0, 2, 5])[0].shape
        (5, 4)
        """
        return at_precision(self.precision, Prepared, self)

    def stream(self, num_sequences: int = 1) -> Stream:
        """Return a copy of the layer for sequences that arrive row by row, with packed weights and stored states.

        Later changes of the precision of products do not affect it.

        Raises
        ------
        PlaceError
            If the layer is on a device, where no weights are packed.

        Examples
        --------
        >>> stream = GRU(3, 4).stream()
        >>> stream(np.ones(3, np.float32)).shape
        (4,)
        """
        return at_precision(self.precision, Stream, self, num_sequences)

    def merged(self, y: Variable) -> Variable:
        """Return the outputs of both directions, which `y` has side by side, joined according to the option `merge`."""
        if self.merge == "concat" or self.num_directions == 1:
            return y
        sides = y.reshape(-1, 2, y.shape[1] // 2)
        return sides.sum(axis=1) if self.merge == "sum" else sides.mean(axis=1)

    @hinting(hx="its name is states: a tuple (h_0, c_0) of an LSTM")
    def forward(self, x: Rows, states: Any = None, *, rows: Mapping[str, Rows] | None = None) -> tuple[Variable, Any]:
        """Return the outputs, and the last states: one Variable, or a tuple if the cell has several states.

        Parameters
        ----------
        x : Variable or LoDTensor, shape `(rows, input_size)`
        states : initial states, optional
            One array, or a tuple if the cell has several states; zeros by default.  Each has the shape
            `(num_layers * num_directions, num_sequences, hidden_size)`, in the caller's order of sequences.  With a
            projection, the first state has `proj_size` columns.
        rows : mapping of str to Variable, shape `(rows, hidden_size)`, optional
            The cell's row inputs by name: inputs that are added without a projection.  Only for a single layer.

        Returns
        -------
        y : Variable, shape `(rows, columns)`, with the LoD of `x`
            Each direction gives `hidden_size` columns, or `proj_size`; `merge` joins the directions.
        last : Variable or tuple of Variable, with the shapes of the initial states
            For an empty sequence, these are its initial states.
        """
        y, last, _ = self._run(x, self.each_state(states), rows=rows)
        return y, together(last)

    def all_states(
        self, x: Rows, states: Any = None, *, rows: Mapping[str, Rows] | None = None
    ) -> tuple[Variable, tuple[Variable, ...], Any]:
        """Return the outputs, the cell's further states at every row (such as the LSTM's c), and the last states.

        Parameters
        ----------
        x, states, rows
            As in a call of the layer.

        Returns
        -------
        y : Variable, as in a call
        others : tuple of Variable, each of shape `(rows, columns)`, with the LoD of `x`
            The last layer's states at every row, except the first state, which is `y`; `merge` applies to them, too.
        last : as in a call

        Examples
        --------
        >>> from varlen_rnn.rows.lod import create_lod_tensor
        >>> x = create_lod_tensor(np.zeros((5, 3), np.float32), [[2, 0, 3]])
        >>> y, (c,), (h_n, c_n) = LSTM(3, 4).all_states(x)
        >>> c.shape, c.lod()
        ((5, 4), [[0, 2, 2, 5]])
        """
        if (into := recorder()) is not None:
            into.suggest(self)
        given = x, self.each_state(states), True, rows
        y, last, others = at_precision(self.precision, self._run, *given)
        return y, others, together(last)

    def each_state(self, states: Any) -> tuple[Rows | None, ...]:
        """Return the initial value of each of the cell's states as a tuple; None for a state that is not given."""
        return self._form.each(type(self).__name__, "states", states)

    def _run(
        self,
        x: Rows,
        states: tuple[Rows | None, ...],
        all_states: bool = False,
        rows: Mapping[str, Rows] | None = None,
    ) -> tuple[Variable, tuple[Variable, ...], tuple[Variable, ...]]:
        """Return outputs, last states, and the last layer's further states at every row (none without `all_states`)."""
        x = required(x, f"{type(self).__name__}, x")
        states = [as_variable(state) for state in states]
        self.check(x, states)
        given = self._given_rows(rows) if rows is not None or self.cell.row_inputs else []
        last, others, num_states = [], (), len(states)
        for layer in range(self.num_layers):
            if layer:
                x = dropout(x, self.dropout, self.training, per=self.dropout_per)
            of_all = all_states and layer == self.num_layers - 1
            first = layer * self.num_directions
            of_layer = [None if s is None else s[first : first + self.num_directions] for s in states]
            weights = self._weights(layer, x, given)
            every = None if of_all else self._every
            x, *outputs = apply(
                "recurrent", x, *of_layer, *weights, cell=self.cell.name, keep=grad_enabled(), reverse=self._reverse,
                all_states=of_all, every=every,
            )  # fmt: skip
            if self.merge != "concat":
                x = self.merged(x)
            if of_all:
                others = tuple(map(self.merged, outputs[: num_states - 1]))
                del outputs[: num_states - 1]
            last.append(outputs[:num_states])
        return x, tuple(concat(list(of_state), axis=0) for of_state in zip(*last, strict=True)), others

    def _given_rows(self, rows: Mapping[str, Rows] | None) -> list[Variable]:
        """Return the row inputs (inputs with a value per row) in the cell's order; none if the layer draws masks."""
        what = f"{type(self).__name__}, rows"
        drawn = self._masks()
        if rows is None and (drawn or not self.cell.row_inputs):
            return []
        if drawn or not isinstance(rows, Mapping) or set(rows) != set(self.cell.row_inputs):
            expected = f"a dict with the keys {self.cell.row_inputs}"
            raise ShapeError(what, expected="None: the layer draws them" if drawn else expected, got=shown(rows))
        if self.num_layers > 1:
            hint = "call several layers with num_layers=1, one after another"
            raise ShapeError(what, expected="num_layers=1", got=f"num_layers={self.num_layers}", hint=hint)
        return [required(rows[name], f"{what}, {name}") for name in self.cell.row_inputs]

    def _masks(self) -> list[tuple[float, bool]]:
        """Return a pair for each mask that the layer draws: its probability, and whether it is drawn per sequence."""
        return []

    def _weights(self, layer: int, x: Variable, given: list[Variable]) -> list[Variable | None]:
        """Return the weights and row inputs of a layer, direction by direction."""
        found: list[Variable | None] = []
        for suffix in self.suffixes(layer):
            found += self.weights(suffix)
            if not self.cell.row_inputs:
                continue
            found += given
            for p, per_sequence in self._masks():
                with no_grad():
                    mask = apply(
                        "row_mask", x, p=p, units=self.hidden_size, per_sequence=per_sequence, training=self.training
                    )
                found.append(mask)
        return found

    def check(self, x: Variable, states: Sequence[Variable | None]) -> None:
        """Raise unless the rows and the initial states fit this layer; a state may be None."""
        if find_cell(self.cell.name) is not self.cell:
            hint = "make the layer again, or give the new cell another name"
            expected, got = "the cell for which the layer was made", "a new cell of the same name"
            raise ProgramError(f"cell {self.cell.name!r}", expected=expected, got=got, hint=hint)
        self._form.check_rows(type(self).__name__, x)
        if [state for state in states if state is not None]:
            num_sequences = x.value.num_elements(-1) if x.value.num_levels else -1
            axes = self.num_layers * self.num_directions, num_sequences
            self._form.check_states(type(self).__name__, states, axes, first_known=True)

    def extra_repr(self) -> str:
        """Return the sizes and options as text for `repr`, after the cell's name if the class does not imply it."""
        implied = type(self) is not Recurrent and self.cell.name in CELLS
        cell = "" if implied else f"{self.cell.name!r}, "
        text = f"{cell}{self.input_size}, {self.hidden_size}, num_layers={self.num_layers}"
        text += f", dropout={self.dropout}, direction={self.direction!r}"
        return text + "".join(f", {name}={value!r}" for name, value in self._unusual().items())

    def _unusual(self) -> dict[str, Any]:
        """Return the options that `repr` shows because they are not at their defaults."""
        usual = {"dropout_per": "row", "merge": "concat", "proj_size": 0, "num_heads": 1, "recompute": False}
        return {name: getattr(self, name) for name, default in usual.items() if getattr(self, name) != default}


class _OfFamily(Recurrent):
    """The base of layers of a cell family, with weight dropout, and zoneout and recurrent dropout if the family can."""

    _family: Family
    zoneout: tuple[float, ...] = (0.0,)
    recurrent_dropout: float = 0.0
    weight_dropout: float

    def __init__(self, *sizes: Any, options: Mapping[str, Any]) -> None:
        for name, option in drawn(self._family).items():
            setattr(self, name, option.check(options.get(name, option.default), name))
        of_cell = {name: value for name, value in options.items() if name in self._family.options}
        of_layer = {name: value for name, value in options.items() if name not in of_cell | drawn(self._family)}
        masks = {"zoneout": any(self.zoneout), "recurrent_dropout": self.recurrent_dropout > 0}
        of_cell |= {name: value for name, value in masks.items() if name in self._family.options}
        super().__init__(self._family(**of_cell), *sizes, **of_layer)

    def weights(self, suffix: str) -> list[Variable | None]:
        """Return the weights of a layer and direction; in training, weight dropout acts on `weight_hh`."""
        found = super().weights(suffix)
        if self.weight_dropout and (weight := found[1]) is not None:  # `weight_hh` is the second of `WEIGHTS`
            found[1] = dropout(weight, self.weight_dropout, self.training)
        return found

    def _masks(self) -> list[tuple[float, bool]]:
        masks = [(p, False) for p in self.zoneout] if any(self.zoneout) else []
        return masks + [(self.recurrent_dropout, True)] * (self.recurrent_dropout > 0)

    def _unusual(self) -> dict[str, Any]:
        zoneout = self.zoneout if len(self.zoneout) > 1 else self.zoneout[0]
        found = {"zoneout": zoneout} if any(self.zoneout) else {}
        names = "recurrent_dropout", "weight_dropout"
        return super()._unusual() | found | {name: getattr(self, name) for name in names if getattr(self, name)}


@layer_of(lstm_cell, LSTMOptions, Recurrent)
class LSTM(_OfFamily):
    """Long short-term memory over rows with a LoD; the sequences of the last LoD level are the batch.

    A call `y, (h_n, c_n) = lstm(x, states)` takes rows `x` of shape `(rows, input_size)` and optional initial states
    `(h_0, c_0)`, zeros by default.  It returns the outputs `y` of shape `(rows, columns)` with the LoD of `x`, and the
    states of each sequence after its last row.  `columns` is `hidden_size`, or `proj_size` if there is a projection,
    and twice as many if `direction` is "both" and `merge` is "concat".  `h_0` and `h_n` have the shape
    `(num_layers * num_directions, sequences, hidden_size or proj_size)`, and `c_0` and `c_n` have `hidden_size` as
    their last axis.  An empty sequence keeps its initial states.

    The four gates are i, f, g and o.  Without a forget gate, and if the gates are coupled, there are three, and no
    vector `p_f`.

    Examples
    --------
    >>> from varlen_rnn.rows.lod import create_lod_tensor
    >>> x = create_lod_tensor(np.zeros((5, 3), np.float32), [[2, 0, 3]])
    >>> y, (h_n, c_n) = LSTM(3, 4)(x)
    >>> y.shape, y.lod(), h_n.shape
    ((5, 4), [[0, 2, 2, 5]], (1, 3, 4))
    >>> LSTM(3, 4, peepholes=True, clip=3.0).p_i_l0.shape
    (4,)

    Source: the equations in `varlen_rnn.cells.lstm`; names, shapes and gate order i f g o of `torch.nn.LSTM`.
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True, **options: Unpack[LSTMOptions]
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers, bias, options=options)
        if options.get("proj_clip") is not None and not self.proj_size:
            raise ShapeError("LSTM, proj_clip", expected="None, as proj_size is 0", got=shown(options["proj_clip"]))

    if TYPE_CHECKING:  # the type of a call with two states

        def forward(
            self,
            x: Rows,
            states: Sequence[Rows | None] | None = None,
            *,
            rows: Mapping[str, Rows] | None = None,
        ) -> tuple[Variable, tuple[Variable, Variable]]:
            """Return `y, (h_n, c_n)`; shapes are as in `Recurrent.forward`."""


class _OfOneState(_OfFamily):
    """The base of GRU and RNN, whose only state is `h`.

    A call `y, h_n = layer(x, h_0)` takes rows `x` of shape `(rows, input_size)` and an optional initial state, zeros by
    default.  It returns the outputs `y` of shape `(rows, columns)` with the LoD of `x`, and the state of each sequence
    after its last row.  `columns` is `hidden_size`, and twice as many if `direction` is "both" and `merge` is "concat".
    `h_0` and `h_n` have the shape `(num_layers * num_directions, sequences, hidden_size)`.  An empty sequence keeps its
    initial state.
    """

    @hinting(hx="its name is h_0")
    def forward(
        self, x: Rows, h_0: Rows | None = None, *, rows: Mapping[str, Rows] | None = None
    ) -> tuple[Variable, Variable]:
        """Return `y, h_n`; shapes are as in `Recurrent.forward`."""
        return super().forward(x, h_0, rows=rows)


@layer_of(gru_cell, GRUOptions, Recurrent)
class GRU(_OfOneState):
    """Gated recurrent units over rows with a LoD; the sequences of the last LoD level are the batch.

    The three gates are r, z and n.

    Examples
    --------
    >>> from varlen_rnn.rows.lod import create_lod_tensor
    >>> y, h_n = GRU(3, 4, bidirectional=True)(create_lod_tensor(np.zeros((5, 3), np.float32), [[2, 3]]))
    >>> y.shape, h_n.shape
    ((5, 8), (2, 2, 4))

    Source: the equations in `varlen_rnn.cells.gru`; names, shapes and gate order r z n of `torch.nn.GRU`.
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True, **options: Unpack[GRUOptions]
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers, bias, options=options)


@layer_of(rnn_cell, RNNOptions, Recurrent)
class RNN(_OfOneState):
    """Elman's recurrent network over rows with a LoD; the sequences of the last LoD level are the batch.

    There is one gate.

    Examples
    --------
    >>> from varlen_rnn.rows.lod import create_lod_tensor
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
        nonlinearity: Activation = "tanh",
        bias: bool = True,
        **options: Unpack[RNNOptions],
    ) -> None:
        given = {**options, "activation": nonlinearity}
        super().__init__(input_size, hidden_size, num_layers, bias, options=given)


@layer_of(slstm_cell, SLSTMOptions, Recurrent)
class SLSTM(_OfFamily):
    """The scalar LSTM of xLSTM, with heads, over rows with a LoD; the sequences of the last LoD level are the batch.

    A call `y, (h_n, c_n, n_n, m_n) = slstm(x, states)` takes rows `x` of shape `(rows, input_size)` and optional
    initial states, zeros by default.  It returns the outputs `y` of shape `(rows, columns)` with the LoD of `x`, and
    the states of each sequence after its last row: the output, the cell, the normaliser and the stabiliser.  `columns`
    is `hidden_size`, and twice as many if `direction` is "both" and `merge` is "concat".  Each state has the shape
    `(num_layers * num_directions, sequences, hidden_size)`.  An empty sequence keeps its initial states.  If you give
    initial states, the normaliser `n` must be positive where `c` is not 0.

    The four gates are i, f, z and o.

    Examples
    --------
    >>> from varlen_rnn.rows.lod import create_lod_tensor
    >>> layer = SLSTM(3, 8, num_heads=4, forget="sigmoid")
    >>> y, (h_n, c_n, n_n, m_n) = layer(create_lod_tensor(np.zeros((5, 3), np.float32), [[2, 3]]))
    >>> y.shape, n_n.shape, layer.weight_hh_l0.shape
    ((5, 8), (1, 2, 8), (32, 2))

    Source: the equations in `varlen_rnn.cells.slstm`.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_heads: int = 4,
        num_layers: int = 1,
        bias: bool = True,
        **options: Unpack[SLSTMOptions],
    ) -> None:
        given = {**options, "num_heads": num_heads}
        super().__init__(input_size, hidden_size, num_layers, bias, options=given)
