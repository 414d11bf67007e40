"""Inference with weights that are packed once, with a short way for few sequences that makes no schedule.

The loop is the one of `layer.forward`, and results are the same to the bit.
"""

from typing import NamedTuple

import numpy as np

from varlen_rnn.errors import ProgramError
from varlen_rnn.products.sync import COUNTER
from varlen_rnn.recurrence.cpu import loop_of, none_of, plain_weights
from varlen_rnn.recurrence.equations import BLOCK_ROWS
from varlen_rnn.recurrence.phases import shape_of
from varlen_rnn.recurrence.schedule import ENDLESS, run
from varlen_rnn.recurrence.sharing import PACKED, PACKING, Work
from varlen_rnn.runtime.device import empty
from varlen_rnn.runtime.jit import engine_kernel
from varlen_rnn.runtime.threads import count_shards

FEW = 64  # the most sequences whose plan is made by a compiled insertion sort


@engine_kernel
def _write_plan(offsets, num_rows, starts, seq_lens, order):
    """Write the plan of the sequences between offsets, longest first; return False if the offsets are not valid.

    Sequences of equal lengths stay in their order.  `starts`, `seq_lens` and `order` have room for all sequences.
    """
    count = offsets.shape[0] - 1
    if count < 0 or offsets[0] != 0 or offsets[count] != num_rows:
        return False
    for i in range(count):
        length, place = offsets[i + 1] - offsets[i], i
        if length < 0:
            return False
        while place > 0 and seq_lens[place - 1] < length:
            starts[place], seq_lens[place], order[place] = starts[place - 1], seq_lens[place - 1], order[place - 1]
            place -= 1
        starts[place], seq_lens[place], order[place] = offsets[i], length, i
    return True


class FewSequences:
    """A plan of up to `capacity` sequences that `write` overwrites, so that calls need no new memory.

    Attributes
    ----------
    starts, seq_lens, order : (capacity,) int64
    views : tuple
        Read-only views of these arrays: kernels are compiled for the read-only arrays of a plan.
    """

    def __init__(self, capacity):
        self.capacity = capacity
        self.starts, self.seq_lens, self.order = columns = [np.zeros(capacity, np.int64) for _ in range(3)]
        self.views = tuple(column.view() for column in columns)
        for view in self.views:
            view.flags.writeable = False

    def write(self, offsets, num_rows):
        """Write the plan of the sequences between int64 offsets; return False if these do not cover `num_rows` rows."""
        return _write_plan(offsets, num_rows, self.starts, self.seq_lens, self.order)


class Memory(NamedTuple):
    """The memory of `Packed.run_few`, for one call at a time.

    batch, work: a `Batch` and a `Work` as plain tuples
    integers: the integers of the work, which each call writes anew
    """

    batch: tuple
    work: tuple
    integers: np.ndarray


class Packed:
    """A direction of a layer with packed weights, which later changes of the weights do not reach.

    Parameters
    ----------
    cell : Cell
        A cell without row inputs.
    direction : Direction
    features : int
        Features of a row.
    reverse : bool
        Whether each sequence runs from its last row to its first.
    """

    def __init__(self, cell, direction, features, reverse):
        dtype = direction.weight_hh.dtype
        self.cell, self.reverse, self.dtype = cell, reverse, dtype
        self.shape = shape_of(np.empty((0, features), dtype), direction)
        self.products = direction.weight_ih.size + direction.weight_hh.size  # multiply-adds of a row
        self._loop, self._none = loop_of(cell, dtype, self.shape), none_of(dtype)
        self._panels = empty((self._loop.panel_rows, self._loop.width), self._none)
        self._weights = plain_weights(self._loop, direction)
        nothing = np.empty((len(cell.states), 0, self.shape.hidden), dtype)
        self.run_few(self._memory(FewSequences(1), 0), 0, self._none, nothing, False, nothing, self._none, 0)
        *_, vectors = self._weights  # the panels hold all other weights
        self._weights = self._none, self._none, *[np.empty(0, dtype)] * 2, self._none, vectors.copy()

    def __reduce__(self):
        hint = "pickle the layer, and call its prepare() or stream() where it is loaded; a stream's states are arrays"
        got = "one that holds addresses of compiled code, and weights packed for this processor"
        raise ProgramError("pickle of a prepared layer, or of a stream", expected="a layer", got=got, hint=hint)

    def __deepcopy__(self, memo):
        return self  # it never changes

    def memory(self, few):
        """Return the Memory for calls with the plan `few`, a `FewSequences`."""
        return self._memory(few, PACKED)

    def _memory(self, few, packed):
        loop = self._loop
        rows, offsets = loop.memory_of(loop.unit_blocks, few.capacity)
        numbers = empty((few.capacity * loop.carry_rows + rows, loop.width), self._none)
        integers = np.zeros((1 + PACKING) * COUNTER + offsets + COUNTER, np.int64)
        integers[COUNTER : (1 + PACKING) * COUNTER] = packed
        work = Work(
            groups=1, parts=1, turn=ENDLESS, block_rows=BLOCK_ROWS, carry_rows=loop.carry_rows, panels=self._panels,
            numbers=numbers, integers=integers,
        )  # fmt: skip
        return Memory((*few.views, self.reverse), tuple(work), integers)

    def is_little(self, num_rows, num_sequences):
        """Return whether the work is so little that one thread should do it."""
        return count_shards(num_rows * self.products, num_sequences * self._loop.unit_blocks) == 1

    def run_few(self, memory, count, x, initial, begins, last, y, column):
        """Run the sequences of a plan on this thread.

        Parameters
        ----------
        memory : Memory
            The memory of this `Packed`; no other call may use it meanwhile.
        count : int
            The number of sequences in the plan of the memory.
        x : (rows, features) C-contiguous
        initial, last : (states, sequences, hidden) C-contiguous
            Both may be one array, since a state is read before it is written.
        begins : bool
            Whether initial states are given; otherwise they are zeros.
        y : (rows, columns) C-contiguous
            The outputs; this direction writes from `column` on.
        """
        loop, task = self._loop, self._task(x, initial, begins, y, column)
        # The line of the only group: its finished steps, its first sequence, its end, its rows left.
        memory.integers[:4] = 0, 0, count, 0
        loop.kernel(0, 1, memory.work, memory.batch, loop.cell, task, last, False, False)

    def run(self, plan, x, initial, begins, last, y, column):
        """Run the sequences of `plan`, a SortedSeqs, on as many threads as pay; other arguments are as in `run_few`."""
        task, products = self._task(x, initial, begins, y, column), len(x) * self.products
        run(self._loop, plan, self.reverse, products, y, task, last, False, False, panels=self._panels)

    def _task(self, x, initial, begins, y, column):
        """Return a `Task` as the plain tuple that kernels take."""
        none = self._none
        return x, self._weights, initial, begins, self.shape.outputs, y, column, none, none, self.cell.proj_clip
