"""What a layer does: the loop over the steps of each direction, and the big products of its gradients.

The loop projects its own inputs on the CPU.
"""

import functools

import numpy as np

from varlen_rnn.device import empty, on_device, to_device, to_host, zeros
from varlen_rnn.products.gemm import product
from varlen_rnn.products.packing import ALL_ROWS
from varlen_rnn.products.row_sums import Factor, row_products
from varlen_rnn.recurrence import cpu, cuda
from varlen_rnn.recurrence.task import Direction, Task


def forward(cell, x, directions, initial, plan, keep=True):
    """Return the outputs and last states of one layer, and what it keeps for its gradient.

    Parameters
    ----------
    cell : Cell
    x : (rows, input) C-contiguous, float32 or float64
    directions : list of Direction
        One, or two: the second runs each sequence from its last row to its first.
    initial : (states, directions, sequences, hidden), or None for zeros; in the caller's order
    plan : SortedSeqs
    keep : bool
        Whether to keep what the gradient needs; without, inference keeps nothing but its outputs.

    Returns
    -------
    y : (rows, directions * hidden)
    last : (states, directions, sequences, hidden), in the caller's order; of an empty sequence, its initial states
    kept : list of (rows, cell.num_kept * hidden or more), one per direction; empty unless `keep`
    """
    hidden, num_states = directions[0].weight_hh.shape[1], len(cell.states)
    shape = (num_states, plan.num_sequences, hidden)
    y = empty((x.shape[0], len(directions) * hidden), x)
    last, kept = [], []
    engine = _engine_of(x)
    for number, direction in enumerate(directions):
        # Where states begin as zeros, they do so where they will end: a state is read there before it is written.
        end = zeros(shape, x) if initial is None else empty(shape, x)
        start = end if initial is None else _of_direction(initial, number)
        kept_rows = engine.kept_of_rows(x, cell.num_kept * hidden) if keep or engine is cuda else y[:0]
        task = Task(x, direction, start, initial is not None, y, number * hidden, kept_rows)
        engine.forward(cell, task, end, plan, number == 1, keep)
        last.append(end)
        if keep:
            kept.append(kept_rows)
    return y, _stack_directions(last), kept


def backward(cell, x, directions, initial, plan, y, kept, d_y, d_last, need_x=True, need_weights=True):
    """Return the gradients of one layer's inputs, weights and initial states; overwrites what was `kept`.

    Parameters
    ----------
    d_y : (rows, directions * hidden)
    d_last : (states, directions, sequences, hidden)
    need_x : bool
        Whether the gradient of `x` is wanted.
    need_weights : bool
        Whether those of the weights are.

    Returns
    -------
    d_x : (rows, input), or None
    d_directions : list of Direction
        The gradients of both biases may be views of one memory; empty unless `need_weights`.
    d_initial : (states, directions, sequences, hidden)
    """
    hidden, num_states = directions[0].weight_hh.shape[1], len(cell.states)
    num_gates = len(cell.gates) * hidden
    shape = (num_states, plan.num_sequences, hidden)
    d_x = empty(x.shape, x) if need_x else None
    d_directions, d_initial = [], []
    engine = _engine_of(x)
    for number, (direction, slots) in enumerate(zip(directions, kept, strict=True)):
        start = zeros(shape, x) if initial is None else _of_direction(initial, number)
        d_start, column, reverse = empty(shape, x), number * hidden, number == 1
        task, weight_rows = Task(x, direction, start, True, y, column, slots), _weight_rows(cell.h_gates, hidden)
        engine.backward(cell, task, weight_rows, d_y, _of_direction(d_last, number), d_start, plan, reverse)
        x_column = cell.x_slot * hidden
        if need_x:
            product(slots, direction.weight_ih, d_x, a_column=x_column, accumulate=number > 0)
        d_initial.append(d_start)
        if not need_weights:
            continue
        of_x = Factor(x_column, x_column + num_gates, x, 0, x.shape[1], x[:0], ALL_ROWS)
        of_h = Factor(0, num_gates, y, column, hidden, start[0], plan.previous_rows(reverse), weight_rows)
        d_weight_ih, d_weight_hh, sums = row_products(slots, of_x, of_h)
        d_bias_ih, d_bias_hh = sums[x_column : x_column + num_gates], _scatter(sums[:num_gates], weight_rows)
        d_directions.append(Direction(d_weight_ih, d_weight_hh, d_bias_ih, d_bias_hh))
    return d_x, d_directions, _stack_directions(d_initial)


def _engine_of(x):
    """Return the module that runs the steps of a direction where `x` is."""
    return cuda if on_device(x) else cpu


def _of_direction(states, number):
    """Return the states of one direction, (states, sequences, hidden), C-contiguous."""
    if on_device(states):
        return to_device(states.copy_to_host()[:, number])
    return np.ascontiguousarray(states[:, number])


def _stack_directions(states):
    """Return (states, directions, sequences, hidden) from one array per direction."""
    if on_device(states[0]):
        return to_device(np.stack([part.copy_to_host() for part in states], axis=1))
    return np.stack(states, axis=1) if len(states) > 1 else states[0][:, None]


@functools.lru_cache
def _weight_rows(h_gates, hidden):
    """Return the row of `weight_hh` that each column of the slots belongs to; none, where it is that of its number."""
    rows = np.add.outer(np.multiply(h_gates, hidden), np.arange(hidden)).ravel()
    rows.flags.writeable = False
    return ALL_ROWS if np.array_equal(rows, np.arange(len(rows))) else rows


def _scatter(values, places):
    """Return a vector whose entry `places[k]` is `values[k]`; the values themselves where there are no places."""
    if not len(places):
        return values
    host = to_host(values)
    scattered = np.empty_like(host)
    scattered[places] = host
    return to_device(scattered) if on_device(values) else scattered
