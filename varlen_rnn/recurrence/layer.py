"""Run a layer forward and backward: the loop over the steps of each direction, and the large products of gradients.

On the CPU, the loop also projects the inputs.
"""

import functools
from typing import NamedTuple

import numpy as np

from varlen_rnn.kernels.pool import pool_sum
from varlen_rnn.kernels.rows import gather_rows
from varlen_rnn.kernels.sums import sum_rows_in_float64
from varlen_rnn.products.gemm import product
from varlen_rnn.products.packing import ALL_ROWS
from varlen_rnn.products.row_sums import Factor, row_products
from varlen_rnn.recurrence import cpu, cuda
from varlen_rnn.recurrence.halves import halves_of
from varlen_rnn.recurrence.one_step import MOST_SEQUENCES, OneStep
from varlen_rnn.recurrence.phases import kept_numbers, shape_of
from varlen_rnn.recurrence.task import Call, Direction
from varlen_rnn.rows.checks import read_only
from varlen_rnn.runtime.device import contiguous, empty, joined, on_device, zeros
from varlen_rnn.runtime.placeholder import Placeholder
from varlen_rnn.runtime.precision import get_float32_matmul_precision

_REVERSE = False, True
_STEPS = 32  # how many OneSteps (with arguments and memory for single steps) are remembered


def forward(cell, x, directions, initial, plan, keep=True, reverse=None):
    """Return the outputs and last states of one layer, and the columns saved for its gradient.

    Parameters
    ----------
    cell : Cell
    x : (rows, input) C-contiguous, float32 or float64
    directions : list of Direction
        One, or two.
    initial : (states, directions, sequences, hidden), or None for zeros; in the caller's order
        With a projection, the first state has fewer units than `hidden`; zeros fill its other places.
    plan : SortedSeqs
    keep : bool
        Whether to save columns for the gradient; inference saves none.
    reverse : tuple of bool, optional
        Whether each direction runs from the last row of a sequence to its first; by default only the second does.

    Returns
    -------
    y : (rows, directions * outputs)
    last : as `initial`; the last states of an empty sequence are its initial states
    kept : list of (rows, columns of the cell * hidden or more), one per direction; empty unless `keep`
    """
    if (step := _one_step(cell, x, directions, plan)) is not None:
        return step.forward(x, directions[0], initial, keep)
    shape, engine = shape_of(cell, x, directions[0]), cuda if on_device(x) else cpu
    call = Call(cell, x, directions, initial, plan, reverse or _REVERSE[: len(directions)], shape)
    return engine.forward(call, _places_of(cell, shape, x).kept, keep)


def backward(cell, x, directions, initial, plan, saved, arriving, *, need_x=True, need_weights=True, reverse=None):
    """Return the gradients of one layer's inputs, weights and initial states; this overwrites the saved columns.

    `need_x` and `need_weights` say whether to compute the gradients of `x` and of the weights.

    Returns
    -------
    d_x : (rows, input), or None
    d_directions : list of Direction
        Empty unless `need_weights`.  The gradients of both biases can share memory.
    d_initial : (states, directions, sequences, hidden)
    """
    if arriving.d_others is None and (step := _one_step(cell, x, directions, plan)) is not None:
        return step.backward(x, directions[0], initial, saved, arriving, need_x, need_weights)
    shape, engine = shape_of(cell, x, directions[0]), cuda if on_device(x) else cpu
    call = Call(cell, x, directions, initial, plan, reverse or _REVERSE[: len(directions)], shape)
    places = _places_of(cell, shape, x)
    d_initial, d_vectors = engine.backward(call, saved, arriving, places.all_rows)
    d_x = empty(x.shape, x) if need_x else None
    d_directions = []
    for number, (direction, slots) in enumerate(zip(directions, saved.kept, strict=True)):
        if need_x:
            weight = direction.weight_ih
            if len(places.x_rows):
                weight = _rows_in_order(weight, places.x_rows)
            column, of_pairs = places.of_x[0] >> places.halved, places.halved > 0
            product(slots, weight, d_x, a_column=column, accumulate=number > 0, of_pairs=of_pairs)
        if need_weights:
            first = zeros(call.sizes[1:], x) if initial is None else contiguous(initial[0, number])
            before = saved.y, number * shape.outputs, first, plan.previous_rows(call.reverse[number])
            d_directions.append(_weight_gradients(cell, shape, places, x, slots, before, d_vectors[number]))
    return d_x, d_directions, d_initial


def saved_columns(cell, shape, itemsize):
    """Return how many numbers `forward` saves at most for a row and direction on the CPU, at any precision.

    `itemsize` is the number of bytes of a number.
    """
    return cpu.padded_columns(kept_numbers(cell, shape), itemsize)


def saved_numbers(cell, shape, dtype):
    """Return how many numbers `forward` saves for a row and direction, in the precision in force, without padding."""
    return kept_numbers(cell, shape) - halves_of(cell, shape, dtype).spared


def _one_step(cell, x, directions, plan):
    """Return the OneStep for a batch of few sequences with one row each, or None for any other batch."""
    if type(x) is Placeholder:  # records run other batches, too, in the way that all batches can take
        return None
    if len(directions) > 1 or not 0 < x.shape[0] == plan.num_sequences <= MOST_SEQUENCES or plan.max_seq_len > 1:
        return None
    return (
        None
        if on_device(x)
        else _made_once(cell, x.dtype, get_float32_matmul_precision(), shape_of(cell, x, directions[0]))
    )


@functools.lru_cache(maxsize=_STEPS)
def _made_once(cell, dtype, precision, shape):
    """Return the OneStep of a cell, data type, precision and Shape, or None if a OneStep cannot run that layer."""
    places = _places(cell, shape, halves_of(cell, shape, dtype, precision))
    if not OneStep.fits(cell, shape) or len(places.x_rows):
        return None
    return OneStep(cell, dtype, precision, shape, places)


def _weight_gradients(cell, shape, places, x, slots, before, d_vectors):
    """Return the gradients of a direction's weights as a Direction, given the gradients of gates in `slots`.

    The operand of the first phase's product is the output of the step before.  `before` says where it is: the outputs
    `y`, this direction's first column in `y`, the initial outputs, and the previous row of each row.
    """
    (y, column, first, previous), hidden, windows = before, shape.hidden, places.of_phases
    if shape.projects:
        first = contiguous(first[:, : shape.outputs])
    of_x = Factor(
        first=places.of_x[0], end=places.of_x[1], b=x, column=0, columns=x.shape[1], initial=x[:0], rows=ALL_ROWS,
        targets=places.x_rows,
    )  # fmt: skip
    of_h = Factor(
        first=windows[0][0], end=windows[0][1], b=y, column=column, columns=shape.outputs, initial=first,
        rows=previous, targets=places.rows[0], heads=shape.heads,
    )  # fmt: skip
    d_weight_ih, d_weight_hh, sums = row_products(slots, of_x, of_h, places.num_slots, places.halved > 0)
    d_bias_ih = _scatter(sums[slice(*places.of_x)], places.x_rows)
    d_bias_hh = _scatter(sums[slice(*windows[0])], places.rows[0])
    d_weight_hr = None
    if len(windows) > 1:
        d_weight_hh, d_bias_hh = _of_later_phases(cell, places, shape, slots, sums, d_weight_hh, d_bias_hh)
    if shape.projects:
        operand = cell.num_kept * hidden
        d_weight_hr = _product_of_columns(slots, operand + hidden, operand + hidden + shape.outputs, operand, hidden)
    d_vectors = _sum_of_sequences(cell, d_vectors) if cell.vectors else None
    d_rows = _columns(slots, cell.row_slots, hidden) if cell.row_inputs else None
    return Direction(
        weight_ih=d_weight_ih, weight_hh=d_weight_hh, bias_ih=d_bias_ih, bias_hh=d_bias_hh, weight_hr=d_weight_hr,
        vectors=d_vectors, rows=d_rows,
    )  # fmt: skip


def _of_later_phases(cell, places, shape, slots, sums, d_weight, d_bias):
    """Return the gradients of `weight_hh` and `bias_hh`, given their first phase's rows, `d_weight` and `d_bias`."""
    weights, biases, hidden = [d_weight], [d_bias], shape.hidden
    operand = (len(cell.slots) + len(cell.states) - 1) * hidden
    for window, rows in zip(places.of_phases[1:], places.rows[1:], strict=True):
        if window[1] > window[0]:
            weights.append(_product_of_columns(slots, *window, operand, hidden, rows, shape.heads))
            biases.append(_scatter(sums[slice(*window)], rows))
            operand += hidden
    return _joined(weights), _joined(biases)


def _sum_of_sequences(cell, d_vectors):
    """Sum the gradients of vectors over sequences, and return them in the order of the cell's vectors.

    `d_vectors` has the shape (vectors, sequences, hidden), with vectors in the order in which phases use them.
    """
    if on_device(d_vectors):
        count, sequences, hidden = d_vectors.shape
        total, ones = empty((count, hidden), d_vectors), np.ones(count, d_vectors.dtype)
        pool_sum(d_vectors.reshape(-1, hidden), np.arange(count + 1) * sequences, ones, total)
        return _rows_in_order(total, np.argsort(cell.vector_order))
    total = empty((len(d_vectors), d_vectors.shape[2]), d_vectors)
    for number, place in enumerate(cell.vector_order):
        sum_rows_in_float64(d_vectors[number], total[place])
    return total


def _columns(slots, columns, hidden):
    """Return the listed columns of `slots` side by side.  Column -1 stands for zeros: its row input has no gradient."""
    none = zeros((len(slots), hidden), slots)
    return joined([none if k < 0 else slots[:, k * hidden : (k + 1) * hidden] for k in columns], axis=1)


def _product_of_columns(kept, first, end, column, columns, targets=ALL_ROWS, heads=1):
    """Return the product A^T B: A has the columns of `kept` from `first` to `end`, B has `columns` from `column` on."""
    none = Factor(first=0, end=0, b=kept[:0], column=0, columns=0, initial=kept[:0], rows=ALL_ROWS)
    factor = none._replace(first=first, end=end, b=kept, column=column, columns=columns, targets=targets, heads=heads)
    return row_products(kept, factor, none)[0]


def _joined(parts):
    """Concatenate arrays; a single array is returned as it is."""
    return parts[0] if len(parts) == 1 else joined(parts)


def _rows_in_order(array, rows):
    """Return the given rows of a matrix, on the matrix's device."""
    if type(array) is np.ndarray:
        return array[rows]
    out = empty((len(rows), array.shape[1]), array)
    gather_rows(array, rows, out)
    return out


@functools.lru_cache
def _weight_rows(order, hidden):
    """Return the weight's row for each gradient of a gate in a saved row; an empty array means row k for gradient k."""
    rows = read_only(np.add.outer(np.multiply(order, hidden), np.arange(hidden)).ravel())
    return ALL_ROWS if np.array_equal(rows, np.arange(len(rows))) else rows


class _Places(NamedTuple):
    """Where the saved numbers of a row are after the backward loop, when slots hold gradients of gates.

    of_x: (int, int), the range of the gradients of projected inputs
    of_phases: list of (int, int), for each phase, the range of the gradients of its products
    x_rows, rows, all_rows: The row of the weight for each number in these ranges: for projected inputs, for each
        phase's products, and for all phases in one array.  An empty array means row k for number k.
    num_slots, kept: how many numbers of a row are slots, and how many numbers a row saves
    halved: 1 if slots have 16 bits, so that ranges count halves of numbers; otherwise 0
    """

    of_x: tuple
    of_phases: list
    x_rows: np.ndarray
    rows: list
    all_rows: np.ndarray
    num_slots: int
    kept: int
    halved: int


def _places_of(cell, shape, x):
    return _places(cell, shape, halves_of(cell, shape, x.dtype))


@functools.lru_cache
def _places(cell, shape, halves):
    hidden, start = shape.hidden, cell.x_slot * shape.hidden
    of_phases = [(phase.h_slot * hidden, (phase.h_slot + phase.gates) * hidden) for phase in cell.phases]
    rows, all_rows = [_weight_rows(phase.order, hidden) for phase in cell.phases], ALL_ROWS
    if any(map(len, rows)):
        counted = (np.arange(phase.gates * hidden) for phase in cell.phases)
        parts = [part if len(part) else own for part, own in zip(rows, counted, strict=True)]
        all_rows = read_only(np.concatenate(parts))
    return _Places(
        of_x=(start, start + len(cell.x_gates) * hidden), of_phases=of_phases,
        x_rows=_weight_rows(cell.x_order, hidden), rows=rows, all_rows=all_rows, num_slots=len(cell.slots) * hidden,
        kept=kept_numbers(cell, shape) - halves.spared, halved=halves.halved,
    )  # fmt: skip


def _scatter(values, places):
    """Return a vector whose entry `places[k]` is `values[k]`, or `values` itself if `places` is empty."""
    if not len(places):
        return values
    if type(values) is not np.ndarray:
        return _rows_in_order(values.reshape(-1, 1), np.argsort(places)).reshape(-1)
    scattered = np.empty_like(values)
    scattered[places] = values
    return scattered
