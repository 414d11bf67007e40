"""Subclasses of torch's RNN, LSTM and GRU that run on the kernels of this library, without padding."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.functional import dropout
from torch.nn.utils.rnn import PackedSequence

from varlen_rnn.cells import CELLS
from varlen_rnn.errors import DTypeError, InputError, ProgramError, ShapeError
from varlen_rnn.ops.recurrent.inputs import Form
from varlen_rnn.torch.eager import eager_unless, is_transformed
from varlen_rnn.torch.in_graph import run
from varlen_rnn.torch.layouts import Batch, lod_of_equal, of_equal, of_jagged, of_one, of_packed, of_padded, of_rows
from varlen_rnn.torch.packing import is_packed, packed_lod
from varlen_rnn.torch.recurrence import Step, directions_of, layer

_CELLS = {name.upper(): cell for name, cell in CELLS.items()}  # by torch's `mode`
_STEPS = {mode: Step(cell, (False,)) for mode, cell in _CELLS.items()}
_made: Any = weakref.WeakKeyDictionary()  # {layer: (signature of its weights, Step with arrays of them)}
_FLOATS = {torch.float32: np.dtype(np.float32), torch.float64: np.dtype(np.float64)}
_Base: Any = torch.nn.RNNBase if TYPE_CHECKING else object  # a mixin; torch's layer follows it among the bases


class _Unpadded(_Base):
    """A mixin that replaces the `forward` of a torch layer; everything else is inherited from torch."""

    @eager_unless(run)
    def forward(self, input: Any, hx: Any = None, *, lengths: Any = None, offsets: Any = None) -> tuple[Any, Any]:
        """Return the outputs in the layout of the input, and the last states.

        Parameters
        ----------
        input : PackedSequence or Tensor
            As in torch's layers, a PackedSequence, sequences of equal lengths, or one sequence.  In addition, a jagged
            nested tensor, a padded batch with `lengths`, or the rows of all sequences with `offsets`.
        hx : Tensor, or for an LSTM a pair of them, optional
            Initial states, as in torch's layers; zeros by default.
        lengths : integers, shape (sequences,), optional
            The lengths of the sequences in a padded batch.  The padding is not read, and outputs there are zeros.
        offsets : integers, shape (sequences + 1,), optional
            Sequence i has the rows `offsets[i]` to `offsets[i + 1]` of `input`, whose shape is `(rows, input_size)`.

        Returns
        -------
        output : in the layout of `input`
        last : in the layout of `hx`; for an empty sequence, its initial states
        """
        for name, weight in zip(self._flat_weights_names, self._flat_weights, strict=True):
            if self._parameters.get(name) is not weight:  # this takes half the time of torch's own test
                self._update_flat_weights()
                break
        if lengths is None and offsets is None and is_packed() and isinstance(input, Tensor) and not input.is_nested:
            return self._over_sequences(input, hx)
        if lengths is None and offsets is None and (operands := self._operands_of_step(input, hx)) is not None:
            weights = self._weights(0)
            output, *last = layer(self._step(weights), *operands, *weights)
            return output, tuple(last) if self.mode == "LSTM" else last[0]
        if isinstance(input, torch.fx.Proxy):
            return self._traced(input, hx=hx, lengths=lengths, offsets=offsets)
        if not isinstance(input, (Tensor, PackedSequence)):
            raise DTypeError(self._name("input"), expected="a Tensor or a PackedSequence", got=type(input).__name__)
        states = [] if hx is None else list(hx) if isinstance(hx, (tuple, list)) else [hx]
        if torch.is_autocast_enabled("cpu"):
            input, *states = map(self._of_enough_bits, (input, *states))
        rows = input.data if isinstance(input, PackedSequence) else input
        self._refuse_gpu(rows)
        is_torchs = lengths is None and offsets is None and not rows.is_nested
        if is_torchs and not self._runs(rows):
            return super().forward(input, hx)  # another data type or device, or a tensor without values
        if not is_torchs:
            self._check_kinds(rows)
        batch = self._batch(input, lengths, offsets)
        try:
            self._check(batch, states)
        except InputError:
            if is_torchs:
                super().forward(input, hx)  # raises the error that users of torch know
            raise
        output, last = self._over(batch, [batch.sort(state) for state in states])
        last = [batch.unsort(state) for state in last]
        return batch.shaped(output), tuple(last) if self.mode == "LSTM" else last[0]

    def _over_sequences(self, input: Tensor, hx: Any) -> tuple[Tensor, Any]:
        """Return outputs and last states if the batch is one whose rows are several sequences, inside of `packed`."""
        *axes, features = input.shape if input.dim() > 2 else (1, *input.shape)
        is_swapped = input.dim() > 2 and not self.batch_first
        lod = packed_lod(type(self).__name__, axes[::-1] if is_swapped else axes)
        output, last = self.forward(input.reshape(lod.num_rows, features), hx, offsets=lod.levels[0])
        return output.view(*input.shape[:-1], output.shape[1]), last

    def _operands_of_step(self, input: Any, hx: Any) -> tuple[Any, ...] | None:
        """Return the operands if the call is one step of one layer, otherwise None; general checks would be slower."""
        if type(input) is not Tensor or input.is_nested or self.num_layers > 1 or self.bidirectional or self.proj_size:
            return None
        shape, weight, states = input.shape, self._flat_weights[0], hx if type(hx) is tuple else (hx,)
        dtype = weight.dtype
        if len(shape) != 3 or shape[self.batch_first] != 1 or shape[2] != self.input_size or input.dtype is not dtype:
            return None
        count = shape[not self.batch_first]
        for state in states:
            if type(state) is not Tensor or state.shape != (1, count, self.hidden_size) or state.dtype is not dtype:
                return None
        if len(states) != self._num_states or dtype not in _FLOATS or is_transformed() or torch.jit.is_tracing():
            return None
        if not all([tensor.is_cpu for tensor in (weight, input, *states)]):
            return None
        return lod_of_equal(count, 1), input, *states

    def _step(self, weights: Sequence[Any]) -> Step:
        """Return the Step (constants of a layer) of a single layer, with arrays of its weights.

        The arrays share the memory of the weights, so they change with the weights.  New arrays are made if a weight
        has other memory, another shape or another data type than before.
        """
        step, seen = _STEPS[self.mode], []
        for weight in weights:
            if weight is not None:
                if not weight.is_contiguous():
                    return step
                seen.append((weight.data_ptr(), weight.shape, weight.dtype))
        found = _made.get(self)
        if found is None or found[0] != seen:
            directions = directions_of(step, self.input_size, _FLOATS[weights[0].dtype], weights)
            found = _made[self] = seen, step._replace(directions=directions)
        return found[1]

    def _traced(self, proxy: Any, **named: Any) -> Any:
        """Return a `torch.fx` node that calls the whole layer, as a trace has it for torch's own layers."""
        given = {name: value for name, value in named.items() if value is not None}
        return proxy.tracer.create_proxy("call_module", proxy.tracer.path_of_module(self), (proxy,), given)

    def __prepare_scriptable__(self) -> None:
        hint = "call torch.jit.script(varlen_rnn.torch.restore(model)), or use torch.jit.trace"
        got = f"a varlen_rnn.torch.{type(self).__name__}"
        raise ProgramError("torch.jit.script", expected="layers of torch", got=got, hint=hint)

    def _of_enough_bits(self, value: Any) -> Any:
        """Convert a tensor that autocast made bfloat16 or float16 to the data type of the parameters."""
        tensor = value.data if isinstance(value, PackedSequence) else value
        is_short = isinstance(tensor, Tensor) and tensor.dtype in (torch.bfloat16, torch.float16)
        return value.to(self._flat_weights[0].dtype) if is_short else value

    def _name(self, argument: str) -> str:
        return f"{type(self).__name__}, {argument}"

    def _refuse_gpu(self, rows: Tensor) -> None:
        if rows.is_cuda or self._flat_weights[0].is_cuda:
            hint = "call model.cpu(); or varlen_rnn.torch.restore(model), because torch's own layers run on a GPU"
            expected, got = "tensors and parameters on the CPU", "a tensor or parameter on a GPU"
            raise DTypeError(self._name("input"), expected=expected, got=got, hint=hint)

    def _check_kinds(self, rows: Tensor) -> None:
        for name, tensor in (("input", rows), ("parameters", self._flat_weights[0])):
            if tensor.dtype not in _FLOATS or tensor.device.type != "cpu":
                expected, got = "float32 or float64 on the CPU", f"{tensor.dtype} on {tensor.device.type!r}"
                raise DTypeError(self._name(name), expected=expected, got=got)
        if is_transformed():
            hint = "inside torch.func and forward-mode derivatives, pass a padded batch without lengths"
            got = "a tensor inside a transform"
            raise ProgramError(self._name("input"), expected="a plain tensor", got=got, hint=hint)

    def _runs(self, rows: Tensor) -> bool:
        """Return whether the kernels can run on these rows and weights: float32 or float64 values in CPU memory."""
        weight = self._flat_weights[0]
        if type(rows) not in (Tensor, Parameter) or torch.jit.is_tracing() or is_transformed():
            return False
        return rows.device.type == weight.device.type == "cpu" and weight.dtype in _FLOATS and rows.dim() in (2, 3)

    def _batch(self, input: Any, lengths: Any, offsets: Any) -> Batch:
        if lengths is not None and offsets is not None:
            raise ShapeError(self._name("lengths, offsets"), expected="at most one of them", got="both")
        if isinstance(input, PackedSequence) or input.is_nested:
            if lengths is not None or offsets is not None:
                expected = f"None, because a {type(input).__name__} has lengths of its own"
                raise ShapeError(self._name("lengths, offsets"), expected=expected, got="numbers")
            return of_packed(input) if isinstance(input, PackedSequence) else of_jagged(input)
        if offsets is not None:
            return of_rows(input, offsets)
        if lengths is not None:
            return of_padded(input, self.batch_first, lengths)
        return of_one(input) if input.dim() == 2 else of_equal(input, self.batch_first)

    def _check(self, batch: Batch, states: Sequence[Any]) -> None:
        """Raise unless rows and initial states fit the layer."""
        name, weight = type(self).__name__, self._flat_weights[0]
        units = (self.proj_size or self.hidden_size, self.hidden_size)[: self._num_states]
        axes, rows = (self.num_layers * self._num_directions, *batch.state_axes), batch.rows
        if rows.dtype == weight.dtype and rows.shape[1:] == (self.input_size,) and len(states) in (0, len(units)):
            for state, size in zip(states, units, strict=False):
                if type(state) is not Tensor or state.dtype != weight.dtype or state.shape != (*axes, size):
                    break
                if state.device != weight.device:
                    break
            else:
                return  # the usual case takes a third of the time of the tests below
        form = Form(weight.dtype, self.input_size, tuple(zip(("h_0", "c_0"), units, strict=False)), rows="input")
        form.check_rows(name, rows)
        given = form.each(name, "hx", tuple(states) or None)
        for (state_name, _), state in zip(form.states, states, strict=False):  # no states are given if they are zeros
            if not isinstance(state, Tensor) or state.device != weight.device:
                device = weight.device.type
                got = f"a Tensor on {state.device.type!r}" if isinstance(state, Tensor) else type(state).__name__
                raise ShapeError(self._name(state_name), expected=f"a Tensor on {device!r}", got=got)
        form.check_states(name, given, axes)

    @property
    def _num_states(self) -> int:
        return 2 if self.mode == "LSTM" else 1

    @property
    def _num_directions(self) -> int:
        return 2 if self.bidirectional else 1

    def _over(self, batch: Batch, states: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Run all layers; return the outputs of all rows, and the last states of sequences in the order of the rows."""
        rows, count = batch.rows, self._num_directions
        step = Step(_CELLS[self.mode], (False, True)[:count])
        ends: list[list[Tensor]] = []
        for number in range(self.num_layers):
            if number and self.dropout:
                rows = dropout(rows, self.dropout, self.training)
            of_layer: list[Tensor | None] = list(states)
            if self.num_layers > 1:
                of_layer = [state[number * count : (number + 1) * count] for state in states]
            of_layer = of_layer or [None] * self._num_states
            rows, *last = layer(step, batch.lod, rows, *of_layer, *self._weights(number))
            ends.append(last)
        return rows, [
            of_state[0] if self.num_layers == 1 else torch.cat(of_state) for of_state in zip(*ends, strict=True)
        ]

    def _weights(self, number: int) -> list[Tensor | None]:
        """Return the weights of a layer, direction by direction, in the order of the operator `recurrent`."""
        own = 2 + 2 * self.bias + (self.proj_size > 0)
        found: list[Tensor | None] = []
        for way in range(number * self._num_directions, (number + 1) * self._num_directions):
            weight_ih, weight_hh, *others = self._flat_weights[way * own : (way + 1) * own]
            found += [weight_ih, weight_hh, *([] if self.bias else [None, None]), *others]
        return found


class RNN(_Unpadded, torch.nn.RNN):
    """`torch.nn.RNN` on the kernels of this library, without padding; arguments and state dict are torch's.

    Examples
    --------
    >>> rnn = RNN(3, 4, nonlinearity="relu")
    >>> output, h_n = rnn(torch.zeros(5, 3), offsets=[0, 2, 2, 5])
    >>> output.shape, h_n.shape
    (torch.Size([5, 4]), torch.Size([1, 3, 4]))
    """


class LSTM(_Unpadded, torch.nn.LSTM):
    """`torch.nn.LSTM` on the kernels of this library, without padding; arguments and state dict are torch's.

    Examples
    --------
    >>> lstm = LSTM(3, 4, bidirectional=True, batch_first=True)
    >>> output, (h_n, c_n) = lstm(torch.zeros(3, 9, 3), lengths=[9, 0, 4])
    >>> output.shape, h_n.shape
    (torch.Size([3, 9, 8]), torch.Size([2, 3, 4]))
    >>> words = torch.nested.nested_tensor([torch.zeros(2, 3), torch.zeros(5, 3)], layout=torch.jagged)
    >>> [len(of_one) for of_one in lstm(words)[0].unbind()]
    [2, 5]
    """


class GRU(_Unpadded, torch.nn.GRU):
    """`torch.nn.GRU` on the kernels of this library, without padding; arguments and state dict are torch's.

    Examples
    --------
    >>> from torch.nn.utils.rnn import pack_sequence
    >>> output, h_n = GRU(3, 4)(pack_sequence([torch.zeros(2, 3), torch.zeros(5, 3)], enforce_sorted=False))
    >>> output.data.shape, h_n.shape
    (torch.Size([7, 4]), torch.Size([1, 2, 4]))
    """
