"""The recurrence on the CPU: choose and call the two loops for each direction, and allocate the saved columns.

A column is `hidden` numbers that a row saves for the gradient.  Rows stay where they are: products read inputs and
gradients of gates through the offsets of their rows.
"""

import functools

import numpy as np

from varlen_rnn.products.gemm import code_of
from varlen_rnn.products.row_sums import add_up
from varlen_rnn.products.vectors import panel_width
from varlen_rnn.recurrence import backward_loop, forward_loop, forward_memory
from varlen_rnn.recurrence.equations import backward_equations, forward_equations
from varlen_rnn.recurrence.halves import halves_of, keep_halves, load_halves, round_halves
from varlen_rnn.recurrence.norms import copy_planes, normalise, normalise_grad
from varlen_rnn.recurrence.phases import backward_table, forward_table, sizes_of
from varlen_rnn.recurrence.schedule import Loop, alone, run, run_alone
from varlen_rnn.runtime.device import contiguous, empty, stacked, zeros
from varlen_rnn.runtime.memory import CACHE_LINE, address_of
from varlen_rnn.runtime.placeholder import Placeholder, constant_of
from varlen_rnn.runtime.precision import get_float32_matmul_precision

_NON_TEMPORAL = 16 * 2**20  # from this many bytes on, saved columns have left the caches when the gradient reads them
_LONG = 16  # from this many cache lines on, a saved row gets an odd number of lines
_SHAPES = 256  # how many Loops are remembered


@functools.lru_cache(maxsize=_SHAPES)
def loop_of(cell, dtype, precision, shape, backward=False):
    """Return the forward or the backward Loop (kernel and sizes) of a cell and a Shape; compile its equations.

    `precision` is the precision of products of float32.
    """
    equations, table_of, kernel, memory = forward_equations, forward_table, forward_loop.forward, forward_memory
    if backward:
        equations, table_of, kernel, memory = backward_equations, backward_table, backward_loop.backward, backward_loop
    addresses = [equations(cell, number, dtype) for number in range(len(cell.phases))]
    width, sizes = panel_width(dtype), sizes_of(cell, shape.projects)
    halves = halves_of(cell, shape, dtype, precision)
    table, panel_rows = table_of(cell, shape, width, addresses)
    unit_blocks = -(-shape.hidden // width)
    carry_rows, memory_of = memory.carry_rows(sizes, unit_blocks), functools.partial(memory.memory_of, sizes)
    may_meet = not shape.projects and not sizes.norms  # projections and norms need all units of a row in one thread
    norm = normalise_grad if backward else normalise
    more = [copy_planes.address(dtype) if sizes.rows else 0, norm.address(dtype) if sizes.norms else 0]
    more += [add_up.address(dtype) if sizes.vectors else 0] * backward
    of_halves = (load_halves, round_halves) if backward else (keep_halves,)
    more += [move.address(dtype) if halves.halved else 0 for move in of_halves]
    code = code_of(dtype, precision, backward and halves.halved > 0)  # the backward loop multiplies gradients of gates
    return Loop(
        kernel=kernel, cell=((*code, *more), tuple(sizes._replace(**halves._asdict())), table),
        memory_of=memory_of, width=width, unit_blocks=unit_blocks, carry_rows=carry_rows, panel_rows=panel_rows,
        may_meet=may_meet, meets=sizes.products > 0,
    )  # fmt: skip


def kept_of_rows(x, columns):
    """Return memory for the saved columns of the rows of `x`; `forward` clears the padding behind the columns."""
    return empty((len(x), padded_columns(columns, x.itemsize)), x)


def padded_columns(columns, itemsize):
    """Return how many numbers a row has that saves `columns` numbers: these, then padding.

    A long row that fills an even number of cache lines gets one more line.  Otherwise rows could be a multiple of 4 KB
    apart.  Then all rows that a tile reads would fall into one set of the first-level cache.
    """
    line = CACHE_LINE // itemsize
    return columns + line if columns >= _LONG * line and columns % (2 * line) == 0 else columns


def _past_caches(kept, is_whole):
    """Return whether to write saved columns past the caches, because the caches cannot hold them until the gradient.

    Such writes need columns of whole panels; `is_whole` says whether columns have whole panels.
    """
    return is_whole and kept.nbytes >= _NON_TEMPORAL and address_of(kept) % CACHE_LINE == 0


@functools.cache
def none_of(dtype):
    """Return the empty array that kernels get in place of a missing array."""
    return np.empty((0, 0), dtype)


def plain_weights(loop, direction):
    """Return the weights of a direction as the plain tuple that kernels take; vectors are padded to whole panels."""
    *weights, weight_hr, vectors, _ = direction
    none = none_of(weights[0].dtype)
    if vectors is not None:
        vectors = np.pad(vectors, ((0, 0), (0, loop.unit_blocks * loop.width - vectors.shape[1])))
    return *weights, none if weight_hr is None else weight_hr, none if vectors is None else vectors


def _task(call, number, loop, initial, begins, y, kept):
    """Return the Task of a direction as the plain tuple that kernels take."""
    direction, outputs = call.directions[number], call.shape.outputs
    rows = none_of(y.dtype) if direction.rows is None else direction.rows
    weights, bound = plain_weights(loop, direction), call.cell.proj_clip
    return call.x, weights, initial, begins, outputs, y, number * outputs, kept, rows, bound


def packed_panels(cell, shape, loop, weights):
    """Return the packed weights of a direction, for any number of calls; `plain_weights` returns `weights`."""
    none, one = none_of(weights[0].dtype), np.zeros(1, np.int64)
    one.flags.writeable = False
    panels = empty((loop.panel_rows, loop.width), none)
    nothing = np.empty((len(cell.states), 0, shape.hidden), none.dtype)
    task = none, weights, nothing, False, shape.outputs, none, 0, none, none, cell.proj_clip
    run_alone(loop, alone(loop, 1, none, panels), (one, one, one, False), 0, task, nothing, False, False)
    return panels


def _constant_panels(call, loop, direction):
    """Return packed weights in a dry run whose weights never change; None in any other dry run."""
    dry_run, weights = call.x.dry_run, tuple(map(constant_of, plain_weights(loop, direction)))
    if dry_run.once is None or any(weight is None for weight in weights):
        return None
    key = call.cell, call.shape, loop.cell[0], *map(address_of, weights)
    if key not in dry_run.once:
        dry_run.once[key] = packed_panels(call.cell, call.shape, loop, weights)
    return dry_run.around(dry_run.once[key], is_constant=True)


def forward(call, columns, keep):
    """Run a Call forward, one direction after another, as `layer.forward` says; a row saves `columns` numbers."""
    x, shape, loop = call.x, call.shape, loop_of(call.cell, call.x.dtype, get_float32_matmul_precision(), call.shape)
    y, last, kept = empty((len(x), len(call.directions) * shape.outputs), x), [], []
    is_whole, begins = loop.unit_blocks * loop.width == shape.hidden, call.initial is not None
    for number, (direction, backwards) in enumerate(zip(call.directions, call.reverse, strict=True)):
        # Without initial states, the array of last states begins as zeros and also serves as the initial states,
        # because a state is read before it is written.
        end = empty(call.sizes, x) if begins and not shape.projects else zeros(call.sizes, x)
        rows = kept_of_rows(x, columns) if keep else y[:0]
        task = _task(call, number, loop, _of_direction(call.initial, number) if begins else end, begins, y, rows)
        products = len(x) * (direction.weight_ih.size + direction.weight_hh.size)
        past_caches = keep and _past_caches(rows, is_whole)
        panels = _constant_panels(call, loop, direction) if type(x) is Placeholder else None
        run(loop, call.plan, backwards, products, y, task, end, keep, past_caches, panels=panels)
        last.append(end)
        kept.append(rows)
    return y, _stack_directions(last), kept if keep else []


def backward(call, saved, arriving, weight_rows):
    """Run a Call backward: replace the slots (saved numbers) by the gradients of gates.

    Column k of the gradients of products belongs to row `weight_rows[k]` of its phase's part of `weight_hh`.

    Return the gradients of initial states, and a list with an array per direction, (vectors of the cell, sequences,
    hidden): the gradients of the cell's vectors for each sequence, in the order in which phases use the vectors.
    """
    (y, kept), x, sizes = saved, call.x, call.sizes
    loop, none = loop_of(call.cell, y.dtype, get_float32_matmul_precision(), call.shape, True), none_of(y.dtype)
    d_initial, d_vectors = [], []
    for number, (direction, slots) in enumerate(zip(call.directions, kept, strict=True)):
        start = zeros(sizes, x) if call.initial is None else _of_direction(call.initial, number)
        d_others = none if arriving.d_others is None else arriving.d_others[number]
        d_initial.append(empty(sizes, x))
        d_vectors.append(empty((len(call.cell.vectors), *sizes[1:]), x))
        gradients = arriving.d_y, d_others, _of_direction(arriving.d_last, number), d_initial[-1], d_vectors[-1]
        task, products = _task(call, number, loop, start, True, y, slots), len(y) * direction.weight_hh.size
        run(loop, call.plan, call.reverse[number], products, y, task, weight_rows, gradients)
    return _stack_directions(d_initial), d_vectors


def _of_direction(states, number):
    return contiguous(states[:, number])


def _stack_directions(states):
    """Stack one array per direction into (states, directions, sequences, hidden)."""
    return stacked(states, axis=1) if len(states) > 1 else states[0][:, None]
