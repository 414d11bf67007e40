"""The recurrence on the CPU: choose and call the two loops for each direction, and allocate the saved columns.

Rows stay where they are: products read inputs and gate gradients through the offsets of their rows.
"""

import functools

import numpy as np

from varlen_rnn.products.gemm import code_of
from varlen_rnn.products.row_sums import add_up
from varlen_rnn.products.vectors import panel_width
from varlen_rnn.recurrence import backward_loop, forward_loop
from varlen_rnn.recurrence.equations import backward_equations, forward_equations
from varlen_rnn.recurrence.norms import copy_planes, normalise, normalise_grad
from varlen_rnn.recurrence.phases import backward_table, forward_table, sizes_of
from varlen_rnn.recurrence.schedule import Loop, run
from varlen_rnn.recurrence.task import Gradients, Task
from varlen_rnn.runtime.device import contiguous, empty, stacked, zeros
from varlen_rnn.runtime.memory import CACHE_LINE

_NON_TEMPORAL = 16 * 2**20  # saved columns of so many bytes have left the caches when the gradient reads them
_LONG = 16  # the fewest cache lines of a saved row for which an extra line, to make their number odd, pays
_SHAPES = 256  # shapes of layers whose Loops are remembered


@functools.lru_cache(maxsize=_SHAPES)
def loop_of(cell, dtype, shape, backward=False):
    """Return the forward or the backward Loop of a cell and a shape; compiles the cell's equations."""
    equations, table_of, loops = forward_equations, forward_table, forward_loop
    if backward:
        equations, table_of, loops = backward_equations, backward_table, backward_loop
    addresses = [equations(cell, number, dtype) for number in range(len(cell.phases))]
    width, sizes = panel_width(dtype), sizes_of(cell, shape.projects)
    table, panel_rows = table_of(cell, shape, width, addresses)
    unit_blocks = -(-shape.hidden // width)
    carry_rows, memory_of = loops.carry_rows(sizes, unit_blocks), functools.partial(loops.memory_of, sizes)
    may_meet = not shape.projects and not sizes.norms  # both need all units of a row in one thread
    norm = normalise_grad if backward else normalise
    more = [copy_planes.address(dtype) if sizes.rows else 0, norm.address(dtype) if sizes.norms else 0]
    more += [add_up.address(dtype) if sizes.vectors else 0] * backward
    return Loop(
        kernel=loops.backward if backward else loops.forward, cell=((*code_of(dtype), *more), tuple(sizes), table),
        memory_of=memory_of, width=width, unit_blocks=unit_blocks, carry_rows=carry_rows, panel_rows=panel_rows,
        may_meet=may_meet, meets=sizes.products > 0,
    )  # fmt: skip


def kept_of_rows(x, columns):
    """Return memory for the saved columns of the rows of `x`.  A row has `columns` numbers, then padding.

    A long row that fills an even number of cache lines gets one more line.  Otherwise rows might be a multiple of 4 KB
    apart and all fall into one set of a first-level cache, and tiles read several rows at once.  `forward` clears the
    padding.
    """
    line = CACHE_LINE // x.itemsize
    odd = columns + line if columns >= _LONG * line and columns % (2 * line) == 0 else columns
    return empty((len(x), odd), x)


def _past_caches(kept, whole_panels):
    """Return whether to write saved columns past the caches, which would evict them before the gradient reads them."""
    if kept.nbytes < _NON_TEMPORAL or not whole_panels:
        return False
    return kept.__array_interface__["data"][0] % CACHE_LINE == 0


@functools.cache
def none_of(dtype):
    """Return the empty array that replaces a missing weight."""
    return np.empty((0, 0), dtype)


def plain_weights(loop, direction):
    """Return the weights of a direction as the plain tuple that kernels take, vectors padded to whole panels."""
    *weights, weight_hr, vectors, _ = direction
    none = none_of(weights[0].dtype)
    if vectors is not None:
        vectors = np.pad(vectors, ((0, 0), (0, loop.unit_blocks * loop.width - vectors.shape[1])))
    return *weights, none if weight_hr is None else weight_hr, none if vectors is None else vectors


def _plain(loop, task):
    """Return a task as the plain tuple that kernels take."""
    rows = none_of(task.y.dtype) if task.weights.rows is None else task.weights.rows
    return task.x, plain_weights(loop, task.weights), *task[2:-2], rows, task.bound


def forward(cell, x, directions, initial, plan, shape, columns, reverse, keep):
    """Run a layer forward, one direction after another, as `layer.forward` says; `columns` of a row are saved."""
    y, sizes = empty((len(x), len(directions) * shape.outputs), x), (len(cell.states), plan.num_sequences, shape.hidden)
    last, kept = [], []
    for number, (direction, backwards) in enumerate(zip(directions, reverse, strict=True)):
        # Without initial states, the array of last states begins as zeros and serves for both: each state is read there
        # before it is written.
        end = zeros(sizes, x) if initial is None or shape.projects else empty(sizes, x)
        start = end if initial is None else _of_direction(initial, number)
        kept_rows = kept_of_rows(x, columns) if keep else y[:0]
        task = Task(
            x=x, weights=direction, initial=start, begins=initial is not None, outputs=shape.outputs, y=y,
            column=number * shape.outputs, kept=kept_rows, given=direction.rows, bound=cell.proj_clip,
        )  # fmt: skip
        _run_forward(cell, task, shape, end, plan, backwards, keep)
        last.append(end)
        if keep:
            kept.append(kept_rows)
    return y, _stack_directions(last), kept


def _run_forward(cell, task, shape, last, plan, reverse, keep):
    """Run a task forward: write its outputs, last states and, if `keep`, the saved columns."""
    loop, weights = loop_of(cell, task.y.dtype, shape, False), task.weights
    products = len(task.x) * (weights.weight_ih.size + weights.weight_hh.size)
    past_caches = keep and _past_caches(task.kept, loop.unit_blocks * loop.width == shape.hidden)
    run(loop, plan, reverse, products, task.y, _plain(loop, task), last, keep, past_caches)


def backward(cell, x, directions, initial, plan, shape, weight_rows, y, kept, d_y, d_last, d_others, reverse):
    """Run a layer backward: replace the slots in `kept` by the gradients of gates.

    Column k of the gradients of products belongs to row `weight_rows[k]` of its phase's part of `weight_hh`.

    Returns
    -------
    d_initial : (states, directions, sequences, hidden)
    d_vectors : list of (vectors of the cell, sequences, hidden), one per direction
        The gradients of the cell's vectors, for each sequence, in the order of phases.
    """
    sizes = len(cell.states), plan.num_sequences, shape.hidden
    d_initial, d_vectors = [], []
    for number, (direction, slots) in enumerate(zip(directions, kept, strict=True)):
        start = zeros(sizes, x) if initial is None else _of_direction(initial, number)
        task = Task(
            x=x, weights=direction, initial=start, begins=True, outputs=shape.outputs, y=y,
            column=number * shape.outputs, kept=slots, given=direction.rows, bound=cell.proj_clip,
        )  # fmt: skip
        gradients = Gradients(
            d_y=d_y, d_others=None if d_others is None else d_others[number], d_last=_of_direction(d_last, number),
            d_initial=empty(sizes, x), d_vectors=empty((len(cell.vectors), *sizes[1:]), x),
        )  # fmt: skip
        _run_backward(cell, task, shape, weight_rows, gradients, plan, reverse[number])
        d_initial.append(gradients.d_initial)
        d_vectors.append(gradients.d_vectors)
    return _stack_directions(d_initial), d_vectors


def _run_backward(cell, task, shape, weight_rows, gradients, plan, reverse):
    """Run the backward loop of a task: replace its slots, and write the gradients of initial states and vectors."""
    loop, products = loop_of(cell, task.y.dtype, shape, True), len(task.y) * task.weights.weight_hh.size
    d_y, d_others, *others = gradients
    d_others = none_of(task.y.dtype) if d_others is None else d_others
    run(loop, plan, reverse, products, task.y, _plain(loop, task), weight_rows, (d_y, d_others, *others))


def _of_direction(states, number):
    """Return the states of one direction, (states, sequences, hidden), C-contiguous."""
    return contiguous(states[:, number])


def _stack_directions(states):
    """Stack one array per direction into (states, directions, sequences, hidden)."""
    return stacked(states, axis=1) if len(states) > 1 else states[0][:, None]
