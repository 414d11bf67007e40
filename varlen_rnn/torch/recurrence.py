"""Run one recurrent layer with torch's autograd; the kernels work on the memory of tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from varlen_rnn import recurrence
from varlen_rnn.cells import Cell
from varlen_rnn.errors import DTypeError, ProgramError, ShapeError
from varlen_rnn.ops.recurrent.inputs import weight_shapes
from varlen_rnn.recurrence import Direction
from varlen_rnn.rows.lod import LoD
from varlen_rnn.rows.plan import plan_of_rows
from varlen_rnn.runtime.precision import at_precision, get_float32_matmul_precision
from varlen_rnn.torch.eager import needs_gradient, saves_elsewhere


class Step(NamedTuple):
    """The constants of a layer: its cell, whether each direction is reversed, and arrays of its weights."""

    cell: Cell
    reverse: tuple[bool, ...]  # for each direction
    directions: list[Direction] | None = None  # arrays of the weights; if None, each call makes them


class Operands(NamedTuple):
    """The arrays that the engine takes; they share the memory of tensors."""

    axes: tuple[int, ...]  # sizes of the input's axes before the features: (rows,), or (steps, sequences)
    x: np.ndarray
    directions: list[Direction]
    initial: np.ndarray | None  # (states, directions, sequences, hidden)


def layer(step: Step, lod: LoD, *operands: Tensor | None) -> list[Tensor]:
    """Return outputs and last states from the inputs of the operator `recurrent`; torch records the call if needed."""
    if needs_gradient(*operands):
        return list(_Recurrence.apply(step, lod, *operands))
    return _forward(step, lod, arrays_of(step, operands), keep=False)[0]


class _Recurrence(torch.autograd.Function):
    """The torch Function of a layer.  Its backward pass overwrites saved values, so a second pass recomputes them."""

    @staticmethod
    def forward(ctx: Any, step: Step, lod: LoD, *operands: Tensor | None) -> tuple[Tensor, ...]:
        keep, arrays = not saves_elsewhere(), arrays_of(step, operands)
        tensors, kept = _forward(step, lod, arrays, keep)
        ctx.step, ctx.lod, ctx.kept = step, lod, (arrays, kept) if keep else None
        ctx.precision = get_float32_matmul_precision()  # torch's threads, which run the gradient, have their own
        ctx.save_for_backward(tensors[0], *operands)
        ctx.set_materialize_grads(False)
        return tuple(tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return at_precision(ctx.precision, _Recurrence._backward, ctx, gradients)

    @staticmethod
    def _backward(ctx: Any, gradients: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
        y, *operands = ctx.saved_tensors  # raises if a tensor was changed or freed meanwhile
        (step, lod), (found, ctx.kept) = (ctx.step, ctx.lod), (ctx.kept, None)
        if found is None:
            arrays = arrays_of(step._replace(directions=None), operands)  # hooks may have saved copies
            found = arrays, _forward(step, lod, arrays, keep=True)[1]
        arrays, kept = found
        needs, first = ctx.needs_input_grad[2:], 1 + len(step.cell.states)
        need_x, need_weights = needs[0], any(needs[first:])
        d_x, of_states, found_weights = gradients_of(step, lod, arrays, y, kept, gradients, (need_x, need_weights))
        of_weights: list[Any] = list(found_weights) or [None] * len(needs[first:])
        wanted = [
            torch.from_numpy(array) if need and array is not None else None
            for array, need in zip([d_x, *of_states, *of_weights], needs, strict=True)
        ]
        return None, None, *once([*gradients, *operands], wanted)


def gradients_of(
    step: Step, lod: LoD, arrays: Operands, y: Tensor, kept: list[np.ndarray], arriving: Sequence[Tensor | None],
    needs: Sequence[bool],
) -> tuple[np.ndarray | None, list[np.ndarray], list[np.ndarray]]:  # fmt: skip
    """Return the gradients of inputs, initial states and weights; this overwrites the saved columns `kept`.

    `arriving` has the gradients of the outputs and last states.  `needs` says whether to compute the gradients of the
    inputs, which are None otherwise, and of the weights, whose list is empty otherwise.
    """
    d_y, *d_last = map(_array, arriving)
    d_y = np.zeros(y.shape, arrays.x.dtype) if d_y is None else d_y
    d_last = _full_states(step.cell, arrays.x, arrays.directions, len(lod.levels[0]) - 1, d_last)
    saved, into = recurrence.Saved(_rows(_array(y)), kept), recurrence.Arriving(_rows(d_y), d_last)
    d_x, d_directions, d_initial = recurrence.backward(
        step.cell, arrays.x, arrays.directions, arrays.initial, plan_of_rows(lod), saved, into,
        need_x=needs[0], need_weights=needs[1], reverse=step.reverse,
    )  # fmt: skip
    d_x = None if d_x is None else d_x.reshape(*arrays.axes, d_x.shape[1])
    of_weights = [array for direction in d_directions for array in _apart(direction)]
    return d_x, _cut(arrays, d_initial), of_weights


def once(sources: Sequence[Tensor | None], gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return the same gradients, for which torch raises an error when it differentiates them again."""
    if not torch.is_grad_enabled():
        return list(gradients)
    by = [source for source in sources if source is not None and source.requires_grad]
    present = [gradient for gradient in gradients if gradient is not None]
    marked = iter(_Once.apply(len(by), *by, *present))
    return [gradient if gradient is None else next(marked) for gradient in gradients]


class _Once(torch.autograd.Function):
    """Returns gradients unchanged, but connects them with their sources, so that a second derivative raises."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensor.view_as(tensor) for tensor in tensors[count:])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> None:
        hint = "torch's own layers have second derivatives: call varlen_rnn.torch.restore(model)"
        raise ProgramError("gradient", expected="a first derivative", got="a second derivative", hint=hint)


def _array(tensor: Tensor | None) -> Any:
    """Return a C-contiguous array; it shares the memory of the tensor if the tensor is contiguous."""
    if tensor is None:
        return None
    plain = tensor.detach() if tensor.requires_grad else tensor
    return (plain if plain.is_contiguous() else plain.contiguous()).numpy()


def _rows(array: np.ndarray) -> np.ndarray:
    return array.reshape(math.prod(array.shape[:-1]), array.shape[-1])


def arrays_of(step: Step, operands: Sequence[Tensor | None]) -> Operands:
    """Return the operands as arrays; raise unless the weights have the right shapes and data type."""
    first = 1 + len(step.cell.states)
    x, *states = map(_array, operands[:first])
    axes, x = x.shape[:-1], _rows(x)
    directions = step.directions or directions_of(step, x.shape[1], x.dtype, operands[first:])
    if states[0] is None:
        return Operands(axes, x, directions, None)
    if len(states) == 1 and directions[0].weight_hr is None:
        return Operands(axes, x, directions, states[0][None])
    return Operands(axes, x, directions, _full_states(step.cell, x, directions, states[0].shape[1], states))


def directions_of(step: Step, features: int, dtype: Any, weights: Sequence[Tensor | None]) -> list[Direction]:
    """Return arrays of the weights of each direction; raise unless they fit rows with the given number of features."""
    arrays, own = list(map(_array, weights)), len(weights) // len(step.reverse)
    return [_direction(step.cell, features, dtype, arrays[at : at + own]) for at in range(0, len(arrays), own)]


def _direction(cell: Cell, features: int, dtype: Any, weights: Sequence[Any]) -> Direction:
    """Return the weights of a direction, with zeros for missing biases; raise unless they fit.

    A cell whose gates arrive projected has its row inputs, side by side, as the last of the weights.
    """
    weights, rows = (weights[:-1], weights[-1]) if cell.row_inputs else (weights, None)
    weight_hr = weights[4] if len(weights) > 4 else None
    height, outputs = weights[1].shape
    heads = recurrence.heads_of(height, outputs, len(cell.h_gates))
    hidden = heads * outputs if weight_hr is None else weight_hr.shape[1]
    shapes = weight_shapes(cell, features, hidden, None if weight_hr is None else outputs, heads)
    found = []
    for weight, (name, shape) in zip(weights, shapes.items(), strict=True):
        if weight is None:
            weight = np.zeros(shape, dtype)
        elif weight.shape != shape:
            raise ShapeError(name, expected=f"shape {shape}", got=f"shape {weight.shape}")
        elif weight.dtype != dtype:
            raise DTypeError(name, expected=dtype, got=weight.dtype)
        found.append(weight)
    return Direction(*found)._replace(rows=rows)


def _full_states(
    cell: Cell, x: np.ndarray, directions: Sequence[Direction], count: int, given: Sequence[np.ndarray | None]
) -> np.ndarray:
    """Return states of `count` sequences, or their gradients, as one array, with zeros for missing states and units."""
    hidden = recurrence.shape_of(cell, x, directions[0]).hidden
    full = np.zeros((len(given), len(directions), count, hidden), x.dtype)
    for number, state in enumerate(given):
        if state is not None:
            full[number, ..., : state.shape[2]] = state
    return full


def _cut(arrays: Operands, states: np.ndarray) -> list[np.ndarray]:
    """Return states, or their gradients, as a list; a projection cuts the first state to the projected units."""
    found, projection = list(states), arrays.directions[0].weight_hr
    if projection is not None:
        found[0] = np.ascontiguousarray(found[0][..., : len(projection)])
    return found


def _apart(gradient: Direction) -> list[np.ndarray]:
    """Return the gradients of a direction's weights; no two share memory, because torch adds to each in place."""
    weight_ih, weight_hh, bias_ih, bias_hh, weight_hr, _, rows = gradient
    if np.may_share_memory(bias_ih, bias_hh):
        bias_hh = bias_hh.copy()
    return [weight_ih, weight_hh, bias_ih, bias_hh, *(found for found in (weight_hr, rows) if found is not None)]


def ran(step: Step, lod: LoD, arrays: Operands, keep: bool) -> tuple[np.ndarray, list[Tensor], list[np.ndarray]]:
    """Run a layer; return outputs, last states as tensors, and the columns saved for the backward pass if `keep`."""
    y, last, kept = recurrence.forward(
        step.cell, arrays.x, arrays.directions, arrays.initial, plan_of_rows(lod), keep, step.reverse
    )
    return y, list(map(torch.from_numpy, _cut(arrays, last))), kept


def _forward(step: Step, lod: LoD, arrays: Operands, keep: bool) -> tuple[list[Tensor], list[np.ndarray]]:
    """Run a layer; return outputs and last states as tensors, and the columns saved for the backward pass."""
    y, last, kept = ran(step, lod, arrays, keep)
    return [torch.from_numpy(y.reshape(*arrays.axes, y.shape[1])), *last], kept
