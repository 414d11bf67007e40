"""Run one step of few sequences on one thread; the kernels' memory and constant arguments are made only once.

Loops that decode call a layer for one step at a time.  A step of a small layer takes about ten microseconds; a schedule
and new memory would take longer.  The kernels are the same as for any other batch, so results are equal to the bit.
"""

import functools
from typing import NamedTuple

import numpy as np

from varlen_rnn.products.gemm import ROW_BLOCK, addresses_of, product_cpu
from varlen_rnn.products.packing import ALL_ROWS
from varlen_rnn.products.row_sums import code_of_sums, memory_of, row_products_cpu
from varlen_rnn.products.sync import COUNTER
from varlen_rnn.products.vectors import TILE_ROWS, panel_width
from varlen_rnn.recurrence.cpu import kept_of_rows, loop_of, none_of
from varlen_rnn.recurrence.schedule import alone, run_alone
from varlen_rnn.recurrence.task import Direction
from varlen_rnn.rows.plan import SortedSeqs, ranks_of
from varlen_rnn.runtime.device import empty
from varlen_rnn.runtime.threads import SMALL_WORK

MOST_SEQUENCES = ROW_BLOCK  # up to this number, no product divides the rows of a step among threads
# The most numbers of a layer's weights.  Larger weights would hold much memory, and their step is so much work that two
# threads could share it.
_MOST_WEIGHTS = SMALL_WORK // MOST_SEQUENCES


class _Products(NamedTuple):
    """The memory of the products of a gradient, for one call at a time.

    panels, counters: arguments of the product with the weights of the inputs: see `product_cpu`
    cut, numbers, totals, integers: arguments of the row products: see `row_products_cpu`
    """

    panels: np.ndarray
    counters: np.ndarray
    cut: tuple
    numbers: np.ndarray
    totals: np.ndarray
    integers: np.ndarray


class OneStep:
    """One step of each of at most `MOST_SEQUENCES` sequences through one direction of a layer.

    Any number of threads may call it at the same time: each call takes idle memory from a list, or allocates it.

    `precision` is the precision of products of float32.  `places` is the `_Places` of `layer`: the positions of the
    gates' gradients in a saved row.
    """

    def __init__(self, cell, dtype, precision, shape, places):
        self._cell, self._dtype, self._shape, self._places, self._precision = cell, dtype, shape, places, precision
        self._forward_loop, self._none = loop_of(cell, dtype, precision, shape), none_of(dtype)
        of_pairs = places.halved > 0
        self._code, self._few = addresses_of(dtype, precision, of_pairs)
        self._code_of_sums = tuple(code_of_sums(dtype, precision, False, of_pairs))
        self._forward_idle, self._backward_idle, self._products_idle = [], [], []
        self._before = -1 - np.arange(MOST_SEQUENCES)  # row k reads initial state k: see `Factor.initial`
        self._before.flags.writeable = False
        self._bias = np.zeros(shape.features, dtype)
        width, rows = panel_width(dtype), -(-places.num_slots // TILE_ROWS) * TILE_ROWS
        self._of_products = [(1, rows, -(-size // width) * width) for size in (shape.features, shape.hidden)]
        of_h = np.arange(*places.of_phases[0])
        if len(places.rows[0]):
            of_h = of_h[np.argsort(places.rows[0])]
        self._of_biases = np.concatenate([np.arange(*places.of_x), of_h])  # where a row holds gradients of biases

    @functools.cached_property
    def _backward_loop(self):  # made at the first gradient, because inference needs none
        return loop_of(self._cell, self._dtype, self._precision, self._shape, True)

    @staticmethod
    def fits(cell, shape):
        """Return whether the layer is small, and has one phase and no vectors, row inputs, projection or heads."""
        others = len(cell.phases) > 1 or cell.vectors or cell.row_inputs or shape.projects or shape.heads > 1
        gates = (len(cell.x_gates) + len(cell.h_gates)) * shape.hidden
        weights = gates * max(shape.features, shape.hidden)
        return not others and min(len(cell.x_gates), len(cell.h_gates), shape.features) > 0 and weights < _MOST_WEIGHTS

    def forward(self, x, weights, initial, keep):
        """Return outputs, last states and saved columns; the arguments and the results are as in `layer.forward`."""
        count, hidden = len(x), self._shape.hidden
        y, sizes = np.empty((count, hidden), self._dtype), (len(self._cell.states), count, hidden)
        last = np.zeros(sizes, self._dtype) if initial is None else np.empty(sizes, self._dtype)
        start = last if initial is None else np.ascontiguousarray(initial[:, 0])
        kept = kept_of_rows(x, self._places.kept) if keep else y[:0]
        task = self._task(x, weights, start, initial is not None, y, kept)
        self._run(self._forward_loop, self._forward_idle, count, task, last, keep, False)
        return y, last[:, None], [kept] if keep else []

    def backward(self, x, weights, initial, saved, arriving, need_x, need_weights):
        """Return the gradients of inputs, weights and initial states, as `layer.backward` does."""
        y, (kept,) = saved
        sizes = len(self._cell.states), len(x), self._shape.hidden
        start = np.zeros(sizes, self._dtype) if initial is None else np.ascontiguousarray(initial[:, 0])
        d_initial, d_vectors = np.empty(sizes, self._dtype), np.empty((0, *sizes[1:]), self._dtype)
        d_last = np.ascontiguousarray(arriving.d_last[:, 0])
        gradients = arriving.d_y, self._none, d_last, d_initial, d_vectors
        task = self._task(x, weights, start, True, y, kept)
        self._run(self._backward_loop, self._backward_idle, len(x), task, self._places.all_rows, gradients)
        memory = _taken(self._products_idle, self._products)
        d_x = self._gradient_of_inputs(memory, weights.weight_ih, kept) if need_x else None
        d_weights = [self._gradient_of_weights(memory, x, kept, y, start[0])] if need_weights else []
        self._products_idle.append(memory)
        return d_x, d_weights, d_initial[:, None]

    def _task(self, x, weights, initial, begins, y, kept):
        none = self._none
        return (
            x, (*weights[:4], none, none), initial, begins, self._shape.hidden, y, 0, kept, none, self._cell.proj_clip
        )  # fmt: skip

    def _run(self, loop, idle, count, *arguments):
        memory = _taken(idle, lambda: alone(loop, MOST_SEQUENCES, self._none))
        run_alone(loop, memory, _batch(count), count, *arguments)
        idle.append(memory)

    def _products(self):
        width, places = panel_width(self._dtype), self._places
        first, end = places.of_x
        panels = empty((-(-self._shape.features // width), end - first + 1, width), self._none)
        padded = [of_side[2] for of_side in self._of_products]
        memory = memory_of(MOST_SEQUENCES, 0, places.num_slots, padded, self._none, 1)
        return _Products(panels, np.zeros(3 * COUNTER, np.int64), *memory)

    def _gradient_of_inputs(self, memory, weight, kept):
        d_x = np.empty((len(kept), self._shape.features), self._dtype)
        memory.counters.fill(0)
        it = (
            kept,
            self._places.of_x[0] >> self._places.halved,
            weight,
            False,
            self._bias,
            memory.panels,
            d_x,
            0,
            False,
            ROW_BLOCK,
            self._few,
            ALL_ROWS,
        )
        product_cpu(0, 1, self._code, memory.counters, it)
        return d_x

    def _gradient_of_weights(self, memory, x, kept, y, before):
        (features, hidden, *_), places = self._shape, self._places
        (first, end), (first_h, end_h) = places.of_x, places.of_phases[0]
        of_x = first, end, x, 0, features, x[:0], ALL_ROWS, ALL_ROWS, 1
        of_h = first_h, end_h, y, 0, hidden, before, self._before[: len(x)], places.rows[0], 1
        d_ih, d_hh = products = [np.empty(sizes, self._dtype) for sizes in self._of_products]
        memory.totals[0].fill(0)
        memory.integers[0].fill(0)
        row_products_cpu(
            0, 1, self._code_of_sums, memory.cut, kept, (of_x, of_h), tuple(products), memory.numbers, memory.totals,
            memory.integers,
        )  # fmt: skip
        biases = memory.totals[0].take(self._of_biases).astype(self._dtype)
        d_ih = np.ascontiguousarray(d_ih[0, first:end, :features])
        d_hh = np.ascontiguousarray(d_hh[0, first_h:end_h, :hidden])
        return Direction(d_ih, d_hh, biases[: end - first], biases[end - first :])


@functools.cache
def _batch(count):
    """Return the Batch of `count` sequences with one step each, as a plain tuple."""
    return *ranks_of(SortedSeqs(np.arange(count + 1))), False


def _taken(idle, make):
    try:
        return idle.pop()  # atomic, so two threads never get the same memory
    except IndexError:
        return make()
