"""Run a recurrent layer that saves its states only at every k-th step; the gradient computes the other states again.

The steps of a batch are cut into chunks of k steps.  Each chunk runs as a separate batch of the sequences that are
still alive (longer than the steps before), in the order of the plan.  It begins with the last states of the chunk
before.
"""

import math
from typing import NamedTuple

import numpy as np

from varlen_rnn import recurrence
from varlen_rnn.errors import ShapeError
from varlen_rnn.kernels.arithmetic import add
from varlen_rnn.ops.indices import put_rows, rows_at
from varlen_rnn.rows.checks import ends_of
from varlen_rnn.rows.plan import SortedSeqs
from varlen_rnn.runtime.device import contiguous, copy_into, empty, joined, zeros


class _Chunk(NamedTuple):
    """Consecutive steps of a direction: the positions of their rows, their plan, and the number of sequences alive."""

    rows: np.ndarray
    plan: SortedSeqs
    alive: int


def _chunks(plan, every, backward):
    """Yield the chunks of a direction, `every` steps each; 0 means the square root of the longest length."""
    steps = every or math.isqrt(max(0, plan.max_seq_len - 1)) + 1
    starts, lengths = plan.starts, plan.seq_lens
    for first in range(0, plan.max_seq_len, steps):
        alive = int(np.count_nonzero(lengths > first))
        sizes = np.minimum(lengths[:alive] - first, steps)
        begins = starts[:alive] + (lengths[:alive] - first - sizes if backward else first)
        offsets = ends_of(sizes)
        taken = np.arange(offsets[-1]) + np.repeat(begins - offsets[:-1], sizes)
        yield _Chunk(taken, SortedSeqs(offsets), alive)


def forward(cell, x, directions, initial, plan, every, reverse):
    """Run a layer as `recurrence.forward` does, but save only the states with which chunks begin.

    A chunk has `every` steps; 0 means the square root of the longest length.  In place of saved columns, return for
    each direction an array of the states with which its chunks begin, chunk after chunk, one row per state of a
    sequence.
    """
    shape = recurrence.shape_of(cell, x, directions[0])
    outputs, hidden = shape.outputs, shape.hidden
    sizes = len(cell.states), len(directions), plan.num_sequences, hidden
    last = zeros(sizes, x) if initial is None else initial.copy()
    y, kept = [], []
    for number, (direction, backward) in enumerate(zip(directions, reverse, strict=True)):
        of_direction, of_ranks = empty((x.shape[0], outputs), x), _rows_of_ranks(sizes, number, plan)
        states, begins = _by_rank(last, of_ranks), [empty((0, hidden), x)]
        for chunk in _chunks(plan, every, backward):
            begin = states[:, : chunk.alive].copy()  # the next lines overwrite the states
            begins.append(begin.reshape(-1, hidden))
            part, end, _ = recurrence.forward(
                cell, rows_at(x, chunk.rows), [direction], begin[:, None], chunk.plan, False, (backward,)
            )
            put_rows(of_direction, chunk.rows, part)
            copy_into(states[:, : chunk.alive], end[:, 0])
        put_rows(last.reshape(-1, hidden), of_ranks, states.reshape(-1, hidden))
        y.append(of_direction)
        kept.append(joined(begins))
    return y[0] if len(y) == 1 else joined(y, axis=1), last, kept


def _rows_of_ranks(sizes, number, plan):
    """Return the rows of a direction in `(states, directions, sequences, hidden)`, longest sequence (rank 0) first."""
    num_states, directions, sequences, _ = sizes
    firsts = (np.arange(num_states) * directions + number) * sequences
    return np.add.outer(firsts, plan.sorted_indices).ravel()


def _by_rank(states, rows):
    """Return the states at the positions `rows` of a direction, (states, sequences, hidden), in the order of ranks."""
    num_states, _, sequences, hidden = states.shape
    return rows_at(states.reshape(-1, hidden), rows).reshape(num_states, sequences, hidden)


def backward(cell, x, directions, kept, plan, arriving, *, every, need_x, need_weights, reverse):
    """Run the gradient as `recurrence.backward` does, chunk after chunk, from the last chunk to the first.

    `kept` and `every` are from `forward`.  Raise ShapeError if the states do not fit the chunks.
    """
    outputs, d_directions = recurrence.shape_of(cell, x, directions[0]).outputs, []
    d_x, d_initial = zeros(x.shape, x) if need_x else None, arriving.d_last.copy()
    hidden = d_initial.shape[-1]
    for number, (direction, way) in enumerate(zip(directions, reverse, strict=True)):
        columns = contiguous(arriving.d_y[:, number * outputs : (number + 1) * outputs])
        of_ranks = _rows_of_ranks(d_initial.shape, number, plan)
        d_states = _by_rank(d_initial, of_ranks)
        begins = _begins(len(cell.states), plan, every, way, kept[number])
        d = _backward_of_direction(cell, (x, direction, way), begins, columns, d_states, d_x, need_weights)
        put_rows(d_initial.reshape(-1, hidden), of_ranks, d_states.reshape(-1, hidden))
        d_directions.append(d)
    return d_x, d_directions if need_weights else [], d_initial


def _begins(num_states, plan, every, backward, kept):
    """Return a list of (chunk, the states with which it begins) for a direction."""
    chunks, end, begins = list(_chunks(plan, every, backward)), 0, []
    wanted = num_states * sum(chunk.alive for chunk in chunks)
    if len(kept) != wanted:
        got, hint = f"{len(kept)} rows", "pass the states that the layer saved"
        raise ShapeError("recurrent_grad, kept", expected=f"{wanted} rows of states", got=got, hint=hint)
    for chunk in chunks:
        first, end = end, end + num_states * chunk.alive
        begins.append((chunk, kept[first:end].reshape(num_states, 1, chunk.alive, kept.shape[1])))
    return begins


def _backward_of_direction(cell, operands, begins, d_y, d_states, d_x, need_weights):
    """Return the gradients of a direction's weights, and add the gradient of the rows to `d_x`.

    `d_states`, in the order of ranks, has the gradients of the last states; they become those for initial states.
    """
    (x, direction, backward), total = operands, None
    for chunk, begin in reversed(begins):
        part, weights = rows_at(x, chunk.rows), [direction]
        y, _, kept = recurrence.forward(cell, part, weights, begin, chunk.plan, True, (backward,))
        d_end = contiguous(d_states[:, None, : chunk.alive])
        saved, arriving = recurrence.Saved(y, kept), recurrence.Arriving(rows_at(d_y, chunk.rows), d_end)
        d_part, d_weights, d_begin = recurrence.backward(
            cell, part, weights, begin, chunk.plan, saved, arriving, need_x=d_x is not None, need_weights=need_weights,
            reverse=(backward,),
        )  # fmt: skip
        copy_into(d_states[:, : chunk.alive], d_begin[:, 0])
        if d_x is not None:
            put_rows(d_x, chunk.rows, add(rows_at(d_x, chunk.rows), d_part))
        for d in d_weights:
            total = d if total is None else _of_arrays(add, total, d)
    return _of_arrays(lambda array: zeros(array.shape, array), direction) if total is None else total


def _of_arrays(function, *directions):
    """Return a Direction of the results of `function` for each array of the given Directions; None stays None."""
    return recurrence.Direction._make(
        None if arrays[0] is None else function(*arrays) for arrays in zip(*directions, strict=True)
    )
