"""Run a step that was lowered to a cell.

Before the run, blocks of captured values are joined into the weights of a layer.  Their gradients are split likewise.
"""

from typing import Any, NamedTuple

import numpy as np

from varlen_rnn import recurrence
from varlen_rnn.kernels.arithmetic import add
from varlen_rnn.runtime.device import as_operand, contiguous, copy_into, empty, joined, stacked, unstacked, zeros
from varlen_rnn.runtime.precision import at_precision
from varlen_rnn.steps.lower import Part


class Run(NamedTuple):
    """The values that the gradient needs from the forward run of a lowered step."""

    lowered: Any
    direction: recurrence.Direction
    initial: np.ndarray
    kept: list


def forward(lowered, x, states, captured, plan, keep):
    """Return the outputs, the last states, and the Run.

    `x` is (rows, input).  `states` has the initial states, each (sequences, hidden).  States are given and returned in
    the order of the memories.  If `keep`, the Run saves the numbers that the gradient needs.
    """
    hidden = states[0].shape[1]
    vectors = [_part(captured, part, hidden) for part in lowered.vectors]
    direction = recurrence.Direction(
        weight_ih=_weight(lowered.of_x, captured, hidden, x.shape[1], x),
        weight_hh=_weight(lowered.of_h, captured, hidden, hidden, x),
        bias_ih=_bias(lowered.of_x, captured, hidden, x),
        bias_hh=_bias(lowered.of_h, captured, hidden, x),
        vectors=stacked(vectors) if vectors else None,
    )
    initial = stacked([states[number] for number in lowered.states])[:, None]
    given = lowered.cell, as_operand(x), [direction], initial, plan, keep
    y, last, kept = at_precision(lowered.precision, recurrence.forward, *given)
    last = [last[lowered.states.index(number), 0] for number in range(len(states))]
    return y, last, Run(lowered, direction, initial, kept)


def backward(run, x, y, plan, d_y, d_last, captured, need_x):
    """Return the gradients of x (None unless `need_x`), of the initial states, and of captured values.

    `x` and `y` are the input and the output of the forward pass.  `d_last` has the gradients of the last states, in the
    order of the memories.
    """
    lowered = run.lowered
    d_states = stacked([d_last[number] for number in lowered.states])[:, None]
    # The first backward pass overwrites the saved numbers, so a second pass over the same run computes them again.
    given = lowered.cell, x, [run.direction], run.initial, plan
    kept = [run.kept.pop()] if run.kept else at_precision(lowered.precision, recurrence.forward, *given)[2]
    given = *given, recurrence.Saved(y, kept), recurrence.Arriving(d_y, d_states)
    d_x, (d,), d_initial = at_precision(lowered.precision, recurrence.backward, *given, need_x=need_x)
    totals, hidden = [zeros(value.shape, value) for value in captured], d_states.shape[-1]
    for products, d_weight, d_bias in ((lowered.of_x, d.weight_ih, d.bias_ih), (lowered.of_h, d.weight_hh, d.bias_hh)):
        for number, product in enumerate(products):
            rows = slice(number * hidden, (number + 1) * hidden)
            _add_to(_rows_of(totals, product.weight, hidden), d_weight[rows])
            if product.bias is not None:
                _add_to(_part(totals, product.bias, hidden), d_bias[rows])
    for part, d_vector in zip(lowered.vectors, () if d.vectors is None else unstacked(d.vectors), strict=True):
        _add_to(_part(totals, part, hidden), d_vector)
    return d_x, [d_initial[lowered.states.index(number), 0] for number in range(len(d_last))], totals


def _add_to(total, more):
    copy_into(total, add(total, more))


def _rows_of(captured, part, hidden):
    """Return a view of the block of a captured weight that `part` names, one row per unit."""
    weight = captured[part.number] if part.transposed else captured[part.number].T
    return weight[part.block * hidden : (part.block + 1) * hidden, part.begin : part.end]


def _part(captured, part, hidden):
    """Return a view of the numbers of a captured vector that `part` names, one per unit."""
    return captured[part.number].reshape(-1)[part.block * hidden : (part.block + 1) * hidden]


def _weight(products, captured, hidden, depth, like):
    parts = [product.weight for product in products]
    if not parts:
        return empty((0, depth), like)
    whole = captured[parts[0].number]
    blocks = [Part(parts[0].number, block, True, 0, depth) for block in range(len(whole) // hidden)]
    if parts == blocks and whole.shape[1] == depth:
        return as_operand(whole)
    # If the weights are transposed, the joined array has contiguous columns, but the cell reads contiguous rows.
    return contiguous(joined([_rows_of(captured, part, hidden) for part in parts]))


def _bias(products, captured, hidden, like):
    nothing = zeros((hidden,), like)
    parts = [nothing if p.bias is None else _part(captured, p.bias, hidden) for p in products]
    return joined(parts) if parts else empty((0,), like)
