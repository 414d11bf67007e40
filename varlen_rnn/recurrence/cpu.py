"""The recurrence on the CPU: the two loops, and the memory that they keep.

Rows stay where they are: products read inputs, and the gradients of gates, through the offsets of their rows.
"""

import functools

import numpy as np

from varlen_rnn.device import empty
from varlen_rnn.memory import CACHE_LINE
from varlen_rnn.products.gemm import code_of
from varlen_rnn.products.vectors import panel_width
from varlen_rnn.recurrence import backward_loop, forward_loop
from varlen_rnn.recurrence.equations import backward_equations, forward_equations
from varlen_rnn.recurrence.phases import backward_table, forward_table, norms_of, shape_of, sizes_of
from varlen_rnn.recurrence.schedule import Loop, run

_NON_TEMPORAL = 16 * 2**20  # bytes of what is kept, from which on no cache is trusted to hold it until the gradient
_LONG = 16  # cache lines of a row of slots that are worth one more
_SHAPES = 256  # of layers, whose tables are remembered


@functools.lru_cache(maxsize=_SHAPES)
def _compiled(cell, dtype, shape, equations, table_of):
    """Return the Code of a loop, as the tuple that kernels take, its Sizes, its table, and the rows of its panels."""
    addresses = [equations(cell, number, dtype) for number in range(len(cell.phases))]
    table, panel_rows = table_of(cell, shape, panel_width(dtype), addresses)
    return tuple(code_of(dtype)), sizes_of(cell, shape.projects), table, panel_rows


def kept_of_rows(x, columns):
    """Return memory for what the rows of `x` keep, each `columns` numbers and perhaps some that `forward` clears.

    Long rows that fill cache lines get one more where that makes their number odd: rows that are a multiple of 4 KB
    apart would all be in one set of a first-level cache, and tiles read several at once.
    """
    line = CACHE_LINE // x.itemsize
    odd = columns + line if columns >= _LONG * line and columns % (2 * line) == 0 else columns
    return empty((len(x), odd), x)


def _past_caches(kept, whole_panels):
    """Return whether to write what is kept past the caches: they would lose it before the gradient asks for it."""
    if kept.nbytes < _NON_TEMPORAL or not whole_panels:
        return False
    return kept.__array_interface__["data"][0] % CACHE_LINE == 0


@functools.cache
def _none(dtype):
    """Return what stands for a weight that a layer has not."""
    return np.empty((0, 0), dtype)


def _plain(task, row):
    """Return a task as the plain tuple that kernels take, its vectors as long as a `row` of whole panels."""
    *weights, weight_hr, vectors, rows = task.weights
    none = _none(task.y.dtype)
    if vectors is not None:
        vectors = np.pad(vectors, ((0, 0), (0, row - vectors.shape[1])))
    weights = *weights, none if weight_hr is None else weight_hr, none if vectors is None else vectors
    return task.x, weights, *task[2:-1], none if rows is None else rows


def _may_meet(cell, shape):
    """Return whether threads may share units: not where a thread needs all of them."""
    return not shape.projects and not norms_of(cell)


def forward(cell, task, last, plan, reverse, keep):
    """Run a task: write its outputs, the last states, and, to `keep` it, what its rows keep."""
    shape, width = shape_of(task.x, task.weights), panel_width(task.y.dtype)
    code, sizes, table, panel_rows = _compiled(cell, task.y.dtype, shape, forward_equations, forward_table)
    unit_blocks = -(-shape.hidden // width)
    memory_of = functools.partial(forward_loop.memory_of, sizes)
    carry_rows = (1 + len(table)) * forward_loop.output_blocks(unit_blocks) + (len(cell.states) - 1) * unit_blocks
    run(
        Loop(forward_loop.forward, memory_of, width, carry_rows, panel_rows, _may_meet(cell, shape)), plan, reverse,
        len(task.x) * sum(w.size for w in task.weights[:2]), unit_blocks, task.y,
        code, tuple(sizes), table, _plain(task, unit_blocks * width), last, keep,
        keep and _past_caches(task.kept, shape.hidden % width == 0),
    )  # fmt: skip


def backward(cell, task, weight_rows, d_y, d_others, d_last, d_initial, d_vectors, plan, reverse):
    """Overwrite the slots of a task with gradients of gates.

    Column k of those of products has row `weight_rows[k]` of its phase's part of `weight_hh`.
    """
    shape, width = shape_of(task.x, task.weights), panel_width(task.y.dtype)
    code, sizes, table, panel_rows = _compiled(cell, task.y.dtype, shape, backward_equations, backward_table)
    unit_blocks = -(-shape.hidden // width)
    memory_of = functools.partial(backward_loop.memory_of, sizes)
    d_others = _none(task.y.dtype) if d_others is None else d_others
    carry_rows = (sizes.carried + 3 * sizes.vectors) * unit_blocks
    run(
        Loop(backward_loop.backward, memory_of, width, carry_rows, panel_rows, _may_meet(cell, shape)),
        plan, reverse, len(task.y) * task.weights.weight_hh.size, unit_blocks, task.y,
        code, tuple(sizes), table, _plain(task, unit_blocks * width), weight_rows, d_y, d_others, d_last, d_initial,
        d_vectors,
    )  # fmt: skip
