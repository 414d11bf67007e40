"""The recurrent layer that keeps its states at every k-th step alone: its gradient computes the rest again.

The steps of a batch are cut into chunks of k.  A chunk is a batch of its own, of the sequences that are still alive in
the order of the plan, with the states that the chunk before left as its initial ones.
"""

import functools
import math
from typing import NamedTuple

import numpy as np

from varlen_rnn import recurrence
from varlen_rnn.cells import CELLS, find_cell
from varlen_rnn.errors import ShapeError
from varlen_rnn.ops.cost import Cost
from varlen_rnn.ops.examples import LOD, rows
from varlen_rnn.ops.recurrent.inputs import (
    flat,
    full_states,
    layer_of,
    names_of_inputs,
    of_outputs,
    operands_of,
    ways_of,
    weight_shapes,
)
from varlen_rnn.ops.recurrent.operator import (
    by_sequence,
    cost_of_gradient,
    cost_of_layer,
    like_states_and_weights,
    recurrent,
)
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.rows.plan import SortedSeqs, plan_of_rows
from varlen_rnn.runtime.device import as_operand
from varlen_rnn.tape.checks import check_like
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import spec_of_tensor
from varlen_rnn.tape.variable import apply_list


class _Chunk(NamedTuple):
    """Some steps of one direction: their rows in the batch, their own plan, and how many sequences have any."""

    rows: np.ndarray
    plan: SortedSeqs
    alive: int


def _chunks(plan, every, backward):
    """Yield the chunks of a direction, `every` steps each: 0 is the square root of the longest length."""
    steps = every or math.isqrt(max(0, plan.max_seq_len - 1)) + 1
    starts, lengths = plan.starts, plan.seq_lens
    for first in range(0, plan.max_seq_len, steps):
        alive = int(np.count_nonzero(lengths > first))
        sizes = np.minimum(lengths[:alive] - first, steps)
        begins = starts[:alive] + (lengths[:alive] - first - sizes if backward else first)
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        taken = np.arange(offsets[-1]) + np.repeat(begins - offsets[:-1], sizes)
        yield _Chunk(taken, SortedSeqs(offsets), alive)


def _run(cell, operands, plan, every, y, last, checkpoints=None):
    """Run one direction, which writes its outputs and last states; note the states at which chunks begin.

    `operands` are the rows, the Direction, and whether it runs backward; `last` holds the initial states.
    """
    x, direction, backward = operands
    order = plan.sorted_indices
    states = last[:, order]  # by rank
    for chunk in _chunks(plan, every, backward):
        begin = states[:, : chunk.alive].copy()  # what follows overwrites it
        if checkpoints is not None:
            checkpoints.append(begin.reshape(-1, begin.shape[2]))
        part, end, _ = recurrence.forward(
            cell, x[chunk.rows], [direction], begin[:, None], chunk.plan, False, (backward,)
        )
        y[chunk.rows] = part
        states[:, : chunk.alive] = end[:, 0]
    last[:, order] = states


def _forward(*inputs, cell, keep, reverse, every):
    cell = find_cell(cell)
    layer = layer_of(cell, inputs)
    plan = plan_of_rows(layer.x.structure)
    x, weights, initial = operands_of(cell, layer, plan)
    shape = len(cell.states), len(weights), plan.num_sequences, layer.hidden
    last = np.zeros(shape, x.dtype) if initial is None else initial
    y = np.empty((x.shape[0], len(weights) * layer.outputs), x.dtype)
    kept = []
    for number, (direction, way) in enumerate(zip(weights, ways_of(reverse, len(weights)), strict=True)):
        columns = y[:, number * layer.outputs : (number + 1) * layer.outputs]
        checkpoints = [np.empty((0, layer.hidden), x.dtype)]
        _run(cell, (x, direction, way), plan, every, columns, last[:, number], checkpoints if keep else None)
        kept.append(LoDTensor.wrap(np.concatenate(checkpoints)))
    outputs = [LoDTensor.wrap(state) for state in of_outputs(layer, last)]
    return [LoDTensor.wrap(y, layer.x.structure), *outputs, *(kept if keep else ())]


def _infer(*inputs, cell, keep, reverse, every):
    if every < 0:
        raise ShapeError("recomputed_recurrent, every", expected="0 or more steps", got=every)
    if find_cell(cell).rows:
        hint = "recompute=False keeps what they need"
        raise ShapeError("recomputed_recurrent", expected="a cell without inputs of rows", got=cell, hint=hint)
    *outputs, _ = recurrent.op.infer(*inputs, cell=cell, keep=False, reverse=reverse)
    layer = layer_of(find_cell(cell), inputs)
    kept = spec_of_tensor((-1, layer.hidden), layer.x.dtype)
    return [*outputs, *([kept] * len(layer.directions) if keep else ())]


def _grad(inputs, outputs, d_outputs, cell, keep, reverse, every):
    num_states = len(find_cell(cell).states)
    need_weights = any(w is not None and w.requires_grad for w in inputs[1 + num_states :])
    needs = {"need_x": inputs[0].requires_grad, "need_weights": need_weights}
    given = *inputs, *outputs[1 + num_states :], *d_outputs[: 1 + num_states]
    attrs = {"cell": cell, "num_forward": len(inputs), "reverse": reverse, "every": every, **needs}
    return apply_list("recomputed_recurrent_grad", *given, **attrs)


def _infer_grad(*inputs, cell, num_forward, need_x, need_weights, reverse, every):
    if not 0 < num_forward < len(inputs):
        expected = f"1 to {len(inputs) - 1}"
        raise ShapeError("recomputed_recurrent_grad, num_forward", expected=expected, got=num_forward)
    forward, given, kind = inputs[:num_forward], inputs[num_forward:], find_cell(cell)
    outputs = _infer(*forward, cell=cell, keep=True, reverse=reverse, every=every)
    at = 1 + len(kind.states)
    expected = [*outputs[at:], *outputs[:at]]
    if len(given) != len(expected) or None in given[: len(outputs) - at]:
        expected = f"{len(expected)} inputs after the layer's"
        raise ShapeError("recomputed_recurrent_grad", expected=expected, got=len(given))
    for number, (desc, like) in enumerate(zip(given, expected, strict=True)):
        if desc is not None:
            check_like("recomputed_recurrent_grad", f"rest[{number}]", desc, like)
    return [forward[0], *like_states_and_weights(kind, forward, outputs[:at])]


def _forward_grad(*inputs, cell, num_forward, need_x, need_weights, reverse, every):
    cell = find_cell(cell)
    layer = layer_of(cell, inputs[:num_forward])
    count, plan = len(layer.directions), plan_of_rows(layer.x.structure)
    kept, (d_y, *d_last) = inputs[num_forward : num_forward + count], inputs[num_forward + count :]
    x, weights, _ = operands_of(cell, layer, plan)
    d_y = np.zeros((x.shape[0], count * layer.outputs), x.dtype) if d_y is None else as_operand(d_y.data)
    names = [f"d_{state}_n" for state in cell.states]
    d_states = full_states("recomputed_recurrent_grad", layer, plan, names, d_last)
    d_x, d_weights = np.zeros_like(x) if need_x else None, []
    for number, (direction, way) in enumerate(zip(weights, ways_of(reverse, count), strict=True)):
        columns = d_y[:, number * layer.outputs : (number + 1) * layer.outputs]
        begins = _begins(cell, layer, plan, every, way, kept[number].data)
        d = _run_back(cell, (x, direction, way), begins, plan, columns, d_states[:, number], d_x, need_weights)
        d_weights.append(d)
    d_x = layer.x.like(d_x) if need_x else layer.x
    groups = d_weights if need_weights else weights
    return [d_x, *map(LoDTensor.wrap, of_outputs(layer, d_states) + flat(groups))]


def _begins(cell, layer, plan, every, way, checkpoints):
    """Return the chunks of a direction, each with the states at which it begins."""
    chunks = list(_chunks(plan, every, way))
    num_states, end, begins = len(cell.states), 0, []
    wanted = num_states * sum(chunk.alive for chunk in chunks)
    if len(checkpoints) != wanted:
        what = "recomputed_recurrent_grad, checkpoints"
        raise ShapeError(what, expected=f"{wanted} rows", got=len(checkpoints), hint="what the layer kept")
    for chunk in chunks:
        first, end = end, end + num_states * chunk.alive
        begins.append((chunk, checkpoints[first:end].reshape(num_states, 1, chunk.alive, layer.hidden)))
    return begins


def _run_back(cell, operands, begins, plan, d_y, d_states, d_x, need_weights):
    """Return the gradients of the weights of a direction; add those of its rows, and overwrite those of its states."""
    x, direction, backward = operands
    order, total = plan.sorted_indices, None
    d_now = d_states[:, order]
    for chunk, begin in reversed(begins):
        part, weights, begin = x[chunk.rows], [direction], np.ascontiguousarray(begin)
        y, _, kept = recurrence.forward(cell, part, weights, begin, chunk.plan, True, (backward,))
        d_end = np.ascontiguousarray(d_now[:, None, : chunk.alive])
        d_part, d_weights, d_begin = recurrence.backward(
            cell, part, weights, begin, chunk.plan, y, kept, d_y[chunk.rows], d_end, d_x is not None, need_weights,
            (backward,),
        )  # fmt: skip
        d_now[:, : chunk.alive] = d_begin[:, 0]
        if d_x is not None:
            d_x[chunk.rows] += d_part
        if need_weights:
            total = d_weights[0] if total is None else _added(total, d_weights[0])
    d_states[:, order] = d_now
    return _zeros_like(direction) if total is None else total


def _added(total, more):
    """Return the sums of the gradients of two chunks."""
    return recurrence.Direction._make(None if a is None else a + b for a, b in zip(total, more, strict=True))


def _zeros_like(direction):
    return recurrence.Direction._make(None if array is None else np.zeros_like(array) for array in direction)


@functools.lru_cache
def _places(num_inputs, num_outputs, cell, keep, reverse, every):
    """Return the names of inputs, and of outputs: y, the last states, the states at which chunks begin."""
    cell = find_cell(cell)
    inputs, ends = names_of_inputs(cell, num_inputs)
    return inputs, ("y", *(f"{state}_n" for state in cell.states), *("checkpoints" + end for end in ends if keep))


def _places_grad(num_inputs, num_outputs, cell, num_forward, need_x, need_weights, reverse, every):
    inputs, outputs = _places(num_forward, 0, cell, True, reverse, every)
    at = 1 + len(find_cell(cell).states)
    return [*inputs, *outputs[at:], *(f"d_{name}" for name in outputs[:at])], [f"d_{name}" for name in inputs]


def _cost(inputs, outputs, cell, keep, reverse, every):
    """That of `recurrent`."""
    return cost_of_layer(inputs, outputs, cell=cell, keep=False)


def _cost_of_grad(inputs, outputs, cell, num_forward, need_x, need_weights, reverse, every):
    """Those of `recurrent` and its gradient."""
    attrs = {"num_forward": num_forward, "need_x": need_x, "need_weights": need_weights}
    again = cost_of_layer(inputs[:num_forward], outputs, cell=cell, keep=True)
    back = cost_of_gradient(inputs, outputs, cell=cell, **attrs)
    return Cost(again.flops + back.flops, again.bytes + back.bytes)


@operator(
    outputs=("*y",),
    intermediate=("checkpoints", "checkpoints_reverse"),
    may_miss=("states_and_weights",),
    cost=_cost,
    inference={"keep": False},
    places=_places,
    rows=by_sequence,
)
def recomputed_recurrent(x, *states_and_weights, cell: str, keep: bool, reverse: tuple[int, ...], every: int):
    """Return what `recurrent` does, and keep the states of every so many steps: its gradient computes the others."""
    return _forward(x, *states_and_weights, cell=cell, keep=keep, reverse=reverse, every=every)


recomputed_recurrent.infer(_infer)
recomputed_recurrent.grad(_grad)


@recomputed_recurrent.examples
def _examples(rng):
    sequences, hidden = len(LOD.levels[-1]) - 1, 4
    for name, outputs, reverse, every in (("lstm", 3, (0, 1), 2), ("gru", None, (1,), 0), ("rnn_tanh", None, (0,), 1)):
        cell = CELLS[name]
        units = [outputs or hidden, *[hidden] * (len(cell.states) - 1)]
        states = [rng.standard_normal((len(reverse), sequences, size)) for size in units]
        shapes = [*weight_shapes(cell, 3, hidden, outputs).values()] * len(reverse)
        constants = {"cell": name, "keep": True, "reverse": reverse, "every": every}
        yield [rows(rng, 3), *states, *map(rng.standard_normal, shapes)], constants


@operator(outputs=("*d",), may_miss=("rest",), cost=_cost_of_grad, places=_places_grad)
def recomputed_recurrent_grad(
    x,
    *rest,
    cell: str,
    num_forward: int,
    need_x: bool,
    need_weights: bool,
    reverse: tuple[int, ...],
    every: int,
):
    """Return the gradients of the inputs of `recomputed_recurrent`, chunk after chunk from the last to the first."""
    constants = {"num_forward": num_forward, "need_x": need_x, "need_weights": need_weights}
    return _forward_grad(x, *rest, cell=cell, reverse=reverse, every=every, **constants)


recomputed_recurrent_grad.infer(_infer_grad)
