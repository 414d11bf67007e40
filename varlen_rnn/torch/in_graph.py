"""Run a layer while PyTorch compiles or exports: torch traces this code, so it only uses torch and our operators."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import dropout
from torch.nn.utils.rnn import PackedSequence

from varlen_rnn.torch import (
    compiled,  # noqa: F401  registers the operators
    packing,
)

_FLOATS = torch.float32, torch.float64
_INTEGERS = torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8


class _Rows(NamedTuple):
    """The rows of a batch in a graph."""

    rows: Tensor  # (rows, features)
    offsets: Tensor  # (sequences + 1,)
    whole: bool  # whether the last offset is the number of rows; otherwise rows without a sequence follow
    back: Tensor | None = None  # the row of each place in a padded batch, -1 if it is padding
    places: Tensor | None = None  # the inverse of `back`


def run(
    layer: Any, input: Any, hx: Any = None, *, lengths: Any = None, offsets: Any = None
) -> tuple[Tensor, Any] | None:
    """Return outputs and last states, as the layer's `forward` does; None if the layer must run outside of the graph.

    That is the case for a layout or type that no graph has, and for arguments that do not fit: outside, they raise.
    """
    if isinstance(input, PackedSequence) or not isinstance(input, Tensor) or input.is_nested or packing.in_use:
        return None
    if lengths is None and offsets is None and torch.compiler.is_exporting():
        return None  # torch's own layer, which needs no operator of ours to run
    states = [] if hx is None else list(hx) if isinstance(hx, (tuple, list)) else [hx]
    if torch.is_autocast_enabled("cpu"):
        input, *states = map(layer._of_enough_bits, (input, *states))
    number, given = _integers(lengths), _integers(offsets)
    if not _fits(layer, input, states, number, given):
        return None
    batch = _rows_of(layer, input, number, given)
    if input.dim() == 2 and given is None:
        states = [state.unsqueeze(1) for state in states]
    rows, last = _over(layer, batch, states)
    if input.dim() == 2 and given is None:
        last = [state.squeeze(1) for state in last]
    return _shaped(layer, input, batch, rows), tuple(last) if layer.mode == "LSTM" else last[0]


def _integers(given: Any) -> Tensor | None:
    return given if given is None or isinstance(given, Tensor) else torch.as_tensor(given)


def _fits(layer: Any, input: Tensor, states: list[Any], lengths: Tensor | None, offsets: Tensor | None) -> bool:
    """Return whether data types, devices and shapes fit the layer, so far as a graph knows them."""
    weight = layer.weight_ih_l0
    axes = 2 if offsets is not None else 3
    if (
        (lengths is not None and offsets is not None)
        or input.dim() not in (2, 3)
        or input.shape[-1] != layer.input_size
    ):
        return False
    numbers = lengths if offsets is None else offsets
    if numbers is not None and (input.dim() != axes or numbers.dim() != 1 or numbers.dtype not in _INTEGERS):
        return False
    if weight.dtype not in _FLOATS or len(states) not in (0, layer._num_states):
        return False
    middle = [input.shape[not layer.batch_first]] if input.dim() == 3 else []
    if offsets is not None:
        if offsets.shape[0] == 0:
            return False
        middle = [offsets.shape[0] - 1]
    if lengths is not None and lengths.shape[0] != middle[0]:
        return False
    for state, size in zip(states, (layer.proj_size or layer.hidden_size, layer.hidden_size), strict=False):
        if not isinstance(state, Tensor) or state.dtype != weight.dtype or state.device != weight.device:
            return False
        if list(state.shape) != [layer.num_layers * layer._num_directions, *middle, size]:
            return False
    return input.dtype == weight.dtype and input.device.type == weight.device.type == "cpu"


def _rows_of(layer: Any, input: Tensor, lengths: Tensor | None, offsets: Tensor | None) -> _Rows:
    if offsets is not None:
        return _Rows(input, offsets, True)
    if input.dim() == 2:
        return _Rows(input, torch.arange(2) * input.shape[0], True)
    sequences, steps = input.shape[not layer.batch_first], input.shape[layer.batch_first]
    if lengths is None:
        by_sequence = input if layer.batch_first else input.transpose(0, 1)
        rows = by_sequence.reshape(sequences * steps, input.shape[2])
        return _Rows(rows, torch.arange(sequences + 1) * steps, True)
    places, back, starts = torch.ops.varlen_rnn.padded_places(lengths, sequences, steps, layer.batch_first)
    rows = torch.ops.varlen_rnn.taken(input.reshape(sequences * steps, input.shape[2]), places, back)
    return _Rows(rows, starts, False, back, places)


def _over(layer: Any, batch: _Rows, states: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Run all layers; return the outputs of all rows, and the last states."""
    rows, count = batch.rows, layer._num_directions
    weights = [getattr(layer, name) for name in layer._flat_weights_names]
    own, ends = len(weights) // (layer.num_layers * count), []
    tensors = [rows, *states, *weights]
    keep = torch.is_grad_enabled() and not torch.compiler.is_exporting() and any([t.requires_grad for t in tensors])
    for number in range(layer.num_layers):
        if number and layer.dropout:
            rows = dropout(rows, layer.dropout, layer.training)
        of_layer = [state[number * count : (number + 1) * count] for state in states]
        of_weights: list[Tensor] = []
        for way in range(number * count, (number + 1) * count):
            weight_ih, weight_hh, *others = weights[way * own : (way + 1) * own]
            zeros = [] if layer.bias else [weight_ih.new_zeros(weight_ih.shape[0])] * 2
            of_weights += [weight_ih, weight_hh, *zeros, *others]
        rows, last, _ = torch.ops.varlen_rnn.recurrent_2(
            rows, batch.offsets, of_layer, of_weights, layer.mode, batch.whole, keep
        )
        ends.append(last)
    return rows, [torch.cat([last[k] for last in ends]) for k in range(layer._num_states)]


def _shaped(layer: Any, input: Tensor, batch: _Rows, rows: Tensor) -> Tensor:
    """Return rows in the layout of the input."""
    if input.dim() == 2:
        return rows
    if batch.back is not None:
        rows = torch.ops.varlen_rnn.taken(rows, batch.back, batch.places)
    elif not layer.batch_first:
        return rows.reshape(input.shape[1], input.shape[0], rows.shape[1]).transpose(0, 1).contiguous()
    return rows.reshape(input.shape[0], input.shape[1], rows.shape[1])
