"""The recurrence on the CPU: the two loops, and the memory that they keep.

Rows stay where they are: products read inputs, and the gradients of gates, through the offsets of their rows.
"""

import functools
from typing import NamedTuple

import numpy as np

from varlen_rnn.products.gemm import code_of
from varlen_rnn.products.row_sums import address_of_sum
from varlen_rnn.products.vectors import panel_width
from varlen_rnn.recurrence import backward_loop, forward_loop
from varlen_rnn.recurrence.equations import backward_equations, forward_equations
from varlen_rnn.recurrence.norms import address_of_copy, address_of_norm, address_of_norm_grad
from varlen_rnn.recurrence.phases import backward_table, forward_table, sizes_of
from varlen_rnn.recurrence.schedule import Loop, run
from varlen_rnn.runtime.device import empty
from varlen_rnn.runtime.memory import CACHE_LINE

_NON_TEMPORAL = 16 * 2**20  # bytes of what is kept, from which on no cache is trusted to hold it until the gradient
_LONG = 16  # cache lines of a row of slots that are worth one more
_SHAPES = 256  # of layers, whose tables are remembered


class Prepared(NamedTuple):
    """What a loop takes for a cell and a shape, plain tuples for kernels: Code, Sizes, the table; and its Loop.

    A row of whole panels has `row` numbers.
    """

    code: tuple
    sizes: tuple
    table: np.ndarray
    loop: Loop
    unit_blocks: int
    row: int
    whole_panels: bool


@functools.lru_cache(maxsize=_SHAPES)
def prepared(cell, dtype, shape, backward=False):
    """Return what the forward or the backward loop takes; compiles its equations."""
    equations, table_of, loops = forward_equations, forward_table, forward_loop
    if backward:
        equations, table_of, loops = backward_equations, backward_table, backward_loop
    addresses = [equations(cell, number, dtype) for number in range(len(cell.phases))]
    width, sizes = panel_width(dtype), sizes_of(cell, shape.projects)
    table, panel_rows = table_of(cell, shape, width, addresses)
    unit_blocks = -(-shape.hidden // width)
    carry_rows, memory_of = loops.carry_rows(sizes, unit_blocks), functools.partial(loops.memory_of, sizes)
    may_meet = not shape.projects and not sizes.norms  # there a thread needs all units
    kernel = loops.backward if backward else loops.forward
    loop = Loop(kernel, memory_of, width, carry_rows, panel_rows, may_meet, sizes.products > 0)
    row = unit_blocks * width
    norm = address_of_norm_grad if backward else address_of_norm
    more = [address_of_copy(dtype) if sizes.rows else 0, norm(dtype) if sizes.norms else 0]
    more += [address_of_sum(dtype) if sizes.vectors else 0] * backward
    return Prepared((*code_of(dtype), *more), tuple(sizes), table, loop, unit_blocks, row, row == shape.hidden)


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
def none_of(dtype):
    """Return what stands for a weight that a layer has not."""
    return np.empty((0, 0), dtype)


def plain_weights(direction, row):
    """Return the weights of a direction as the plain tuple that kernels take, vectors as long as a `row` of panels."""
    *weights, weight_hr, vectors, _ = direction
    none = none_of(weights[0].dtype)
    if vectors is not None:
        vectors = np.pad(vectors, ((0, 0), (0, row - vectors.shape[1])))
    return *weights, none if weight_hr is None else weight_hr, none if vectors is None else vectors


def _plain(task, row):
    """Return a task as the plain tuple that kernels take."""
    rows = none_of(task.y.dtype) if task.weights.rows is None else task.weights.rows
    return task.x, plain_weights(task.weights, row), *task[2:-2], rows, task.bound


def forward(cell, task, shape, last, plan, reverse, keep):
    """Run a task: write its outputs, the last states, and, to `keep` it, what its rows keep."""
    it, weights = prepared(cell, task.y.dtype, shape, False), task.weights
    products = len(task.x) * (weights.weight_ih.size + weights.weight_hh.size)
    run(
        it.loop, plan, reverse, products, it.unit_blocks, task.y,
        it.code, it.sizes, it.table, _plain(task, it.row), last, keep,
        keep and _past_caches(task.kept, it.whole_panels),
    )  # fmt: skip


def backward(cell, task, shape, weight_rows, d_y, d_others, d_last, d_initial, d_vectors, plan, reverse):
    """Overwrite the slots of a task with gradients of gates.

    Column k of those of products has row `weight_rows[k]` of its phase's part of `weight_hh`.
    """
    it = prepared(cell, task.y.dtype, shape, True)
    d_others = none_of(task.y.dtype) if d_others is None else d_others
    run(
        it.loop, plan, reverse, len(task.y) * task.weights.weight_hh.size, it.unit_blocks, task.y,
        it.code, it.sizes, it.table, _plain(task, it.row), weight_rows, d_y, d_others, d_last, d_initial, d_vectors,
    )  # fmt: skip
