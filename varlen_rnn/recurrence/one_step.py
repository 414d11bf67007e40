"""One step of few sequences on one thread, with arguments and memory of the kernels that are made once.

Loops that decode call a layer for a step at a time.  A small layer's step takes some ten microseconds, and making its
schedule and its memory would take longer.  The kernels are those of `layer` and `products`, and results are the same to
the bit.
"""

import functools
from typing import NamedTuple

import numpy as np

from varlen_rnn.products.gemm import ROW_BLOCK, code_of, product_cpu
from varlen_rnn.products.packing import ALL_ROWS
from varlen_rnn.products.row_sums import NO_GROUPS, Factor, memory_of, row_products_cpu
from varlen_rnn.products.sync import COUNTER
from varlen_rnn.products.vectors import TILE_ROWS, panel_width
from varlen_rnn.recurrence.cpu import kept_of_rows, loop_of, none_of
from varlen_rnn.recurrence.equations import BLOCK_ROWS
from varlen_rnn.recurrence.schedule import ENDLESS
from varlen_rnn.recurrence.sharing import PACKING, Work
from varlen_rnn.recurrence.task import Direction
from varlen_rnn.rows.plan import SortedSeqs, ranks_of
from varlen_rnn.runtime.device import empty
from varlen_rnn.runtime.threads import SMALL_WORK

MOST_SEQUENCES = ROW_BLOCK  # so their rows are one piece of a product
_MOST_WEIGHTS = 2**18  # numbers of the weights; larger ones would take much memory, and their steps take long anyway


class _Memory(NamedTuple):
    """The memory of a loop, for one call at a time: a Work as a plain tuple, and its integers."""

    work: tuple
    integers: np.ndarray


class _Products(NamedTuple):
    """The memory of the products of a gradient, for one call at a time.

    Attributes
    ----------
    panels, counters : arrays
        Of the product with the weights of the inputs.
    cut, numbers, totals, integers : tuple and arrays
        Of the row products: see `row_products_cpu`.
    """

    panels: np.ndarray
    counters: np.ndarray
    cut: tuple
    numbers: np.ndarray
    totals: np.ndarray
    integers: np.ndarray


class OneStep:
    """One step of each of `count` sequences through one direction of a layer.

    Any number of threads may call it at the same time: a call takes its memory from a list of idle ones.

    Parameters
    ----------
    cell : Cell
    dtype : data type
    shape : Shape
    places : Places
        The positions of gate gradients, as `layer` has them.
    count : int
    """

    def __init__(self, cell, dtype, shape, places, count):
        self._cell, self._dtype, self._shape, self._places, self._count = cell, dtype, shape, places, count
        self._batch = *ranks_of(SortedSeqs(np.arange(count + 1))), False
        self._before = -1 - np.arange(count)  # the step before the first is an initial state
        self._before.flags.writeable = False
        self._none, self._line = none_of(dtype), np.array([0, 0, count, 0])
        self._sizes = len(cell.states), count, shape.hidden
        self._bias, self._d_vectors = np.zeros(shape.features, dtype), np.empty((0, *self._sizes[1:]), dtype)
        self._forward_idle, self._backward_idle, self._products_idle = [], [], []
        self._forward_loop, self._code = loop_of(cell, dtype, shape), tuple(code_of(dtype))

        width, rows = panel_width(dtype), -(-places.num_slots // TILE_ROWS) * TILE_ROWS
        self._of_products = [(1, rows, -(-size // width) * width) for size in (shape.features, shape.hidden)]
        of_h = np.arange(*places.of_phases[0])
        if len(places.rows[0]):
            of_h = of_h[np.argsort(places.rows[0])]
        self._of_biases = np.concatenate([np.arange(*places.of_x), of_h])  # the columns of their gradients

    @functools.cached_property
    def _backward_loop(self):  # inference needs none
        return loop_of(self._cell, self._dtype, self._shape, True)

    @staticmethod
    def fits(cell, shape, count):
        """Return whether there can be a OneStep: few sequences, little work, and a cell without further inputs."""
        rows = (len(cell.x_gates) + len(cell.h_gates)) * shape.hidden
        weights = rows * max(shape.features, shape.hidden)
        if not 0 < count <= MOST_SEQUENCES or not 0 < weights <= _MOST_WEIGHTS or count * weights >= SMALL_WORK:
            return False
        others = len(cell.phases) > 1 or cell.vectors or cell.row_inputs or shape.projects
        return not others and shape.features > 0 and bool(cell.x_gates and cell.h_gates)

    def forward(self, x, weights, initial, keep):
        """Return outputs, last states and saved columns; the arguments and the results are as in `layer.forward`."""
        y = np.empty((self._count, self._shape.hidden), self._dtype)
        last = np.zeros(self._sizes, self._dtype) if initial is None else np.empty(self._sizes, self._dtype)
        start = last if initial is None else np.ascontiguousarray(initial[:, 0])
        kept = kept_of_rows(x, self._places.kept) if keep else y[:0]
        task = self._task(x, weights, start, initial is not None, y, kept)
        self._run(self._forward_loop, self._forward_idle, task, last, keep, False)
        return y, last[:, None], [kept] if keep else []

    def backward(self, x, weights, initial, y, kept, d_y, d_last, need_x, need_weights):
        """Return the gradients of inputs, weights and initial states, as `layer.backward` does."""
        start = np.zeros(self._sizes, self._dtype) if initial is None else np.ascontiguousarray(initial[:, 0])
        d_initial = np.empty(self._sizes, self._dtype)
        gradients = d_y, self._none, np.ascontiguousarray(d_last[:, 0]), d_initial, self._d_vectors
        task = self._task(x, weights, start, True, y, kept)
        self._run(self._backward_loop, self._backward_idle, task, self._places.all_rows, gradients)
        memory = _taken(self._products_idle, self._products)
        d_x = self._gradient_of_inputs(memory, weights.weight_ih, kept) if need_x else None
        d_weights = [self._gradient_of_weights(memory, x, kept, y, start[0])] if need_weights else []
        self._products_idle.append(memory)
        return d_x, d_weights, d_initial[:, None]

    def _task(self, x, weights, initial, begins, y, kept):
        """Return a Task as the plain tuple that kernels take."""
        none = self._none
        return (
            x, (*weights[:4], none, none), initial, begins, self._shape.hidden, y, 0, kept, none, self._cell.proj_clip
        )  # fmt: skip

    def _run(self, loop, idle, *arguments):
        """Run the forward or the backward loop on this thread."""
        memory = _taken(idle, lambda: self._memory(loop))
        memory.integers[:4] = self._line
        loop.kernel(0, 1, memory.work, self._batch, loop.cell, *arguments)
        idle.append(memory)

    def _memory(self, loop):
        rows, offsets = loop.memory_of(loop.unit_blocks, self._count)
        panels = empty((loop.panel_rows, loop.width), self._none)
        numbers = empty((self._count * loop.carry_rows + rows, loop.width), self._none)
        integers = np.zeros((1 + PACKING) * COUNTER + offsets + COUNTER, np.int64)
        work = Work(
            groups=1, parts=1, turn=ENDLESS, block_rows=BLOCK_ROWS, carry_rows=loop.carry_rows, panels=panels,
            numbers=numbers, integers=integers,
        )  # fmt: skip
        return _Memory(tuple(work), integers)

    def _products(self):
        (features, hidden, _), places = self._shape, self._places
        width, (first, end) = panel_width(self._dtype), places.of_x
        panels = empty((-(-features // width), end - first + 1, width), self._none)
        padded = [of_side[2] for of_side in self._of_products]
        memory = memory_of(self._count, 0, places.num_slots, padded, self._none, 1)
        return _Products(panels, np.zeros(3 * COUNTER, np.int64), *memory)

    def _gradient_of_inputs(self, memory, weight, kept):
        d_x = np.empty((self._count, self._shape.features), self._dtype)
        memory.counters.fill(0)
        it = kept, self._places.of_x[0], weight, False, self._bias, memory.panels, d_x, 0, False, ROW_BLOCK, ALL_ROWS
        product_cpu(0, 1, self._code, memory.counters, it)
        return d_x

    def _gradient_of_weights(self, memory, x, kept, y, before):
        (features, hidden, _), places = self._shape, self._places
        (first, end), (first_h, end_h) = places.of_x, places.of_phases[0]
        of_x = first, end, x, 0, features, x[:0], ALL_ROWS, ALL_ROWS
        of_h = first_h, end_h, y, 0, hidden, before, self._before, places.rows[0]
        d_ih, d_hh = products = [np.empty(sizes, self._dtype) for sizes in self._of_products]
        memory.totals[0].fill(0)
        memory.integers[0].fill(0)
        row_products_cpu(
            0, 1, NO_GROUPS, memory.cut, kept, (of_x, of_h), tuple(products), memory.numbers, memory.totals,
            memory.integers,
        )  # fmt: skip
        biases = memory.totals[0].take(self._of_biases).astype(self._dtype)
        d_ih, d_hh = d_ih[0, first:end, :features], d_hh[0, first_h:end_h, :hidden]
        return Direction(np.ascontiguousarray(d_ih), np.ascontiguousarray(d_hh), biases[: end - first], biases[end - first :])


def _taken(idle, make):
    """Return an idle memory, or a new one."""
    try:
        return idle.pop()  # atomic, so two threads never get the same memory
    except IndexError:
        return make()
