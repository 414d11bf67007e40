"""The layers inside compiled and exported graphs: custom operators of torch, with shapes for tracing and gradients.

A graph has one operator `varlen_rnn::recurrent_2` for each layer of an LSTM, GRU or RNN.  For example, two sequences of
3 and 2 rows are an operator of 5 rows and the offsets 0, 3 and 5.  A padded batch of 2 sequences and 4 steps with these
lengths becomes 8 rows: first the 5 rows of the sequences, then 3 rows of zeros, which no step reads.  So the sizes in a
graph depend on the sizes of its inputs only, never on the lengths.

Torch keeps compiled graphs on disk, by the names of their operators.  So an operator whose arguments or results change
gets another name, with the next number: a graph of an older version would give it wrong arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from varlen_rnn.cells import CELLS
from varlen_rnn.errors import ShapeError
from varlen_rnn.ops.sequence.taken import rows_taken
from varlen_rnn.recurrence import Shape, saved_columns
from varlen_rnn.rows.lod import LoD
from varlen_rnn.runtime.precision import PRECISIONS, float32_matmul_precision, get_float32_matmul_precision
from varlen_rnn.torch.layouts import lod_of_offsets, places_of_padded
from varlen_rnn.torch.recurrence import Step, arrays_of, gradients_of, ran

_MOST = 5  # a direction has at most five weights: of inputs and states, two biases, and a projection


def _step(mode: str, states: Sequence[Tensor], weights: Sequence[Tensor]) -> tuple[Step, list[Tensor | None]]:
    """Return the Step of a layer, and the operands behind its rows: states, or None for each if they are zeros."""
    cell = CELLS[mode.lower()]
    given: list[Any] = list(states) or [None] * len(cell.states)
    return Step(cell, (False, True)[: _directions(weights)]), [*given, *weights]


def _directions(weights: Sequence[Tensor]) -> int:
    return 2 if len(weights) > _MOST else 1


def _lod(offsets: Tensor, rows: Tensor, whole: bool) -> LoD:
    """Return the LoD of offsets; raise unless it has as many rows as there are, or at most as many if not `whole`."""
    lod = lod_of_offsets(offsets.numpy().astype(np.int64).tobytes())
    if lod.num_rows > len(rows) or (whole and lod.num_rows < len(rows)):
        expected = f"shape ({lod.num_rows}, features), because the last offset is {lod.num_rows}"
        raise ShapeError("input", expected=expected, got=f"shape {tuple(rows.shape)}")
    return lod


def _shape(rows: Tensor, weights: Sequence[Tensor], mode: str) -> Shape:
    hidden = weights[1].shape[0] // len(CELLS[mode.lower()].h_gates)
    return Shape(rows.shape[1], hidden, weights[1].shape[1])


def _saved(rows: Tensor, weights: Sequence[Tensor], mode: str) -> int:
    """Return how many columns a row of a direction has for its gradient, at any precision."""
    return saved_columns(CELLS[mode.lower()], _shape(rows, weights, mode), rows.element_size())


def _of_capacity(array: np.ndarray, rows: int, columns: int = 0) -> Tensor:
    """Return a tensor that begins with the rows of an array, whose other numbers are zeros.

    It has `rows` rows, and at least `columns` columns.
    """
    columns = max(columns, array.shape[1])
    if array.shape == (rows, columns):
        return torch.from_numpy(array)
    full = np.zeros((rows, columns), array.dtype)
    full[: len(array), : array.shape[1]] = array
    return torch.from_numpy(full)


@torch.library.custom_op(
    "varlen_rnn::recurrent_2",
    mutates_args=(),
    device_types="cpu",
    schema="(Tensor rows, Tensor offsets, Tensor[] states, Tensor[] weights, str mode, bool whole, bool keep)"
    " -> (Tensor, Tensor[], Tensor[])",
)
def _recurrent(
    rows: Tensor, offsets: Tensor, states: list[Tensor], weights: list[Tensor], mode: str, whole: bool, keep: bool
) -> Any:
    """Run one layer; return outputs, last states, and if `keep`, the columns of each direction and the precision.

    The gradient needs the columns, and the number of the precision in force.  A graph does not know the precision, so
    columns are as wide as in float32, although fewer are filled in bfloat16.  Rows behind the last offset, which are
    allowed unless `whole`, are not read, and their outputs are zeros.
    """
    step, others = _step(mode, states, weights)
    lod = _lod(offsets, rows, whole)
    y, last, kept = ran(step, lod, arrays_of(step, [rows[: lod.num_rows], *others]), keep)
    capacity = len(rows)
    found = [_of_capacity(slots, capacity, _saved(rows, weights, mode)) for slots in kept]
    found += [torch.tensor(PRECISIONS.index(get_float32_matmul_precision()))] if keep else []
    return _of_capacity(y, capacity), last, found


@_recurrent.register_fake
def _(rows: Tensor, offsets: Tensor, states: Any, weights: Any, mode: str, whole: bool, keep: bool) -> Any:
    count, shape = _directions(weights), _shape(rows, weights, mode)
    units = (shape.outputs, shape.hidden)[: len(CELLS[mode.lower()].states)]
    last = [rows.new_empty(count, offsets.shape[0] - 1, size) for size in units]
    columns = _saved(rows, weights, mode)
    kept = [rows.new_empty(rows.shape[0], columns) for _ in range(count if keep else 0)]
    kept += [rows.new_empty((), dtype=torch.int64)] if keep else []
    return rows.new_empty(rows.shape[0], count * shape.outputs), last, kept


@torch.library.custom_op(
    "varlen_rnn::recurrent_gradient_2",
    mutates_args=(),
    device_types="cpu",
    schema="(Tensor rows, Tensor offsets, Tensor[] states, Tensor[] weights, str mode, Tensor y, Tensor[] kept,"
    " Tensor d_y, Tensor[] d_last, bool[] needs) -> Tensor[]",
)
def _gradient(
    rows: Tensor, offsets: Tensor, states: list[Tensor], weights: list[Tensor], mode: str,
    y: Tensor, kept: list[Tensor], d_y: Tensor, d_last: list[Tensor], needs: list[bool],
) -> list[Tensor]:  # fmt: skip
    """Return the gradients of initial states; then of rows and of all weights, if `needs` says so of them.

    They are computed at the precision of the forward pass.  Without saved columns, as in an exported graph, the layer
    runs forward once more, at the precision in force.
    """
    step, others = _step(mode, states, weights)
    lod = _lod(offsets, rows, whole=False)
    count, capacity = lod.num_rows, len(rows)
    arrays = arrays_of(step, [rows[:count], *others])
    arriving = [d_y[:count], *d_last]
    with float32_matmul_precision(PRECISIONS[int(kept[-1])] if kept else get_float32_matmul_precision()):
        # The gradient overwrites saved columns, but torch may pass a graph again, so it gets a copy.
        slots = [of_one[:count].numpy().copy() for of_one in kept[:-1]] or ran(step, lod, arrays, True)[2]
        d_x, d_states, d_weights = gradients_of(step, lod, arrays, y[:count], slots, arriving, needs)
    found = [torch.from_numpy(array) for array in d_states]
    if d_x is not None:
        found.append(_of_capacity(d_x, capacity))
    return [*found, *map(torch.from_numpy, d_weights)]


@_gradient.register_fake
def _(
    rows: Tensor, offsets: Tensor, states: Any, weights: Any, mode: str,
    y: Tensor, kept: Any, d_y: Tensor, d_last: Any, needs: list[bool],
) -> list[Tensor]:  # fmt: skip
    of = [*d_last, *([rows] if needs[0] else []), *(weights if needs[1] else [])]
    return [tensor.new_empty(tensor.shape) for tensor in of]


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    rows, offsets, states, weights, ctx.mode, *_ = inputs
    y, _, kept = output
    ctx.sizes = len(states), len(weights), len(kept)
    ctx.save_for_backward(rows, offsets, *states, *weights, y, *kept)


def _backward(ctx: Any, d_y: Tensor, d_last: list[Tensor], _: Any) -> tuple[Any, ...]:
    rows, offsets, *saved = ctx.saved_tensors
    num_states, num_weights, _ = ctx.sizes
    states, weights = saved[:num_states], saved[num_states : num_states + num_weights]
    y, *kept = saved[num_states + num_weights :]
    needs = [ctx.needs_input_grad[0], any(ctx.needs_input_grad[3])]
    found = torch.ops.varlen_rnn.recurrent_gradient_2(
        rows, offsets, states, weights, ctx.mode, y, kept, d_y, d_last, needs
    )
    d_states, others = found[: len(d_last)], list(found[len(d_last) :])
    d_rows = others.pop(0) if needs[0] else None
    return d_rows, None, d_states[:num_states], others or [None] * num_weights, None, None, None


_recurrent.register_autograd(_backward, setup_context=_save)


@torch.library.custom_op(
    "varlen_rnn::padded_places",
    mutates_args=(),
    device_types="cpu",
    schema="(Tensor lengths, SymInt sequences, SymInt steps, bool batch_first) -> (Tensor, Tensor, Tensor)",
)
def _padded_places(lengths: Tensor, sequences: int, steps: int, batch_first: bool) -> Any:
    """Return places in a padded batch of its rows, places in the rows of a padded batch, and offsets; -1 is nowhere."""
    given = lengths.numpy().astype(np.int64)
    places = places_of_padded(given, sequences, steps, batch_first)
    forth, back = np.full((2, sequences * steps), -1)
    forth[: len(places)] = places
    back[places] = np.arange(len(places))
    return torch.from_numpy(forth), torch.from_numpy(back), torch.from_numpy(np.cumsum([0, *given]))


@_padded_places.register_fake
def _(lengths: Tensor, sequences: int, steps: int, batch_first: bool) -> Any:
    sizes = sequences * steps, sequences * steps, sequences + 1
    return tuple(lengths.new_empty(size, dtype=torch.int64) for size in sizes)


@torch.library.custom_op(
    "varlen_rnn::taken",
    mutates_args=(),
    device_types="cpu",
    schema="(Tensor rows, Tensor places, Tensor back) -> Tensor",
)
def _taken(rows: Tensor, places: Tensor, back: Tensor) -> Tensor:
    """Gather the rows at `places`, none twice, with zeros for -1; the gradient gathers at the inverse `back`."""
    return torch.from_numpy(rows_taken(rows.contiguous().numpy(), places.numpy()))


@_taken.register_fake
def _(rows: Tensor, places: Tensor, back: Tensor) -> Tensor:
    return rows.new_empty(places.shape[0], rows.shape[1])


def _save_places(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[1:])


def _taken_backward(ctx: Any, gradient: Tensor) -> Any:
    places, back = ctx.saved_tensors
    return torch.ops.varlen_rnn.taken(gradient, back, places), None, None


_taken.register_autograd(_taken_backward, setup_context=_save_places)
