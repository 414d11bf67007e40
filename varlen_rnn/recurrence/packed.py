"""Inference with weights that are packed once; few sequences run on one thread, without a schedule.

The loop is the loop of `layer.forward`, so results are the same to the bit.
"""

import numpy as np

from varlen_rnn.errors import ProgramError
from varlen_rnn.recurrence.cpu import loop_of, none_of, plain_weights
from varlen_rnn.recurrence.phases import shape_of
from varlen_rnn.recurrence.schedule import alone, run, run_alone
from varlen_rnn.recurrence.sharing import PACKED
from varlen_rnn.runtime.device import empty
from varlen_rnn.runtime.jit import engine_kernel
from varlen_rnn.runtime.threads import count_shards

FEW = 64  # up to so many sequences, a compiled insertion sort makes the plan


@engine_kernel
def _write_plan(offsets, num_rows, starts, seq_lens, order):
    """Write the plan of the sequences that `offsets` delimit, longest first; return False if `offsets` are not valid.

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
    """A plan of up to `capacity` sequences; `write` overwrites it in place, so that calls need no new memory.

    starts, seq_lens, order: (capacity,) int64
    views: read-only views of these arrays, because kernels are compiled for the read-only arrays of a plan
    """

    def __init__(self, capacity):
        self.capacity = capacity
        self.starts, self.seq_lens, self.order = columns = [np.zeros(capacity, np.int64) for _ in range(3)]
        self.views = tuple(column.view() for column in columns)
        for view in self.views:
            view.flags.writeable = False

    def write(self, offsets, num_rows):
        """Write the plan of the sequences that int64 offsets delimit; return False if these do not cover `num_rows`."""
        return _write_plan(offsets, num_rows, self.starts, self.seq_lens, self.order)


class Packed:
    """A direction of a layer with packed copies of its weights, so later changes of the weights have no effect.

    Its cell has no row inputs.  `features` are the features of a row, and `reverse` says whether each sequence runs
    from its last row to its first.
    """

    def __init__(self, cell, direction, features, reverse):
        dtype = direction.weight_hh.dtype
        self.cell, self.reverse, self.dtype = cell, reverse, dtype
        self.shape = shape_of(cell, np.empty((0, features), dtype), direction)
        self.products = direction.weight_ih.size + direction.weight_hh.size  # multiply-adds of a row
        self._loop, self._none = loop_of(cell, dtype, self.shape), none_of(dtype)
        self._panels = empty((self._loop.panel_rows, self._loop.width), self._none)
        self._weights = plain_weights(self._loop, direction)
        nothing = np.empty((len(cell.states), 0, self.shape.hidden), dtype)
        self.run_few(self.memory(FewSequences(1), packed=0), 0, self._none, nothing, False, nothing, self._none, 0)
        *_, vectors = self._weights  # the panels hold all other weights
        self._weights = self._none, self._none, *[np.empty(0, dtype)] * 2, self._none, vectors.copy()

    def __reduce__(self):
        hint = "pickle the layer itself, and call prepare() or stream() after loading it"
        expected, got = "an object without compiled code", "a prepared layer or a stream, which holds compiled code"
        raise ProgramError("pickle", expected=expected, got=got, hint=hint)

    def __deepcopy__(self, memo):
        return self  # a Packed never changes, so it needs no copy

    def memory(self, few, packed=PACKED):
        """Return the memory for calls with the plan `few`, a `FewSequences`: a Batch as a plain tuple, and an Alone."""
        return (*few.views, self.reverse), alone(self._loop, few.capacity, self._none, self._panels, packed)

    def is_little(self, num_rows, num_sequences):
        """Return whether one thread should do the work, because it is too little to share."""
        return count_shards(num_rows * self.products, num_sequences * self._loop.unit_blocks) == 1

    def run_few(self, memory, count, x, initial, begins, last, y, column):
        """Run the sequences of a plan on this thread.

        No other call may use `memory` meanwhile.  `initial` and `last`, (states, sequences, hidden), may be one array,
        since a state is read before it is written; `begins` says whether initial states are given, otherwise they are
        zeros.  This direction writes its outputs to `y` from `column` on.
        """
        run_alone(
            self._loop, memory[1], memory[0], count, self._task(x, initial, begins, y, column), last, False, False
        )

    def run(self, plan, x, initial, begins, last, y, column):
        """Run the sequences of `plan`, a SortedSeqs, on one or more threads; see `run_few` for other arguments."""
        task, products = self._task(x, initial, begins, y, column), len(x) * self.products
        run(self._loop, plan, self.reverse, products, y, task, last, False, False, panels=self._panels)

    def _task(self, x, initial, begins, y, column):
        """Return a `Task` as the plain tuple that kernels take."""
        none = self._none
        return x, self._weights, initial, begins, self.shape.outputs, y, column, none, none, self.cell.proj_clip
