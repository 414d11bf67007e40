"""Inference with weights that are packed once; few sequences run on one thread, without a schedule.

The loop is the loop of `layer.forward`, so results are the same to the bit.  A call of few sequences is a record
(`runtime.records`): Python writes a dozen words, instead of converting the 18 arrays of a call, which takes 3 us.
"""

from typing import NamedTuple

import numpy as np

from varlen_rnn.errors import ProgramError
from varlen_rnn.recurrence.cpu import loop_of, none_of, plain_weights
from varlen_rnn.recurrence.phases import shape_of
from varlen_rnn.recurrence.schedule import alone, run, run_alone
from varlen_rnn.recurrence.sharing import PACKED
from varlen_rnn.runtime.device import empty
from varlen_rnn.runtime.dry_run import DryRun
from varlen_rnn.runtime.jit import cpu_inlined, cpu_kernel
from varlen_rnn.runtime.memory import address_of
from varlen_rnn.runtime.records import call_record, trampoline, words_at
from varlen_rnn.runtime.threads import SMALL_WORK, count_shards

FEW = 64  # up to so many sequences, a compiled insertion sort makes the plan


# Positions in the block of a Few: of the trampoline's address, of the positions of words that differ between calls, of
# the addresses of the plan's columns and of the only group's line; where the words begin.
_TRAMPOLINE, _BEGINS, _X, _INITIAL, _LAST, _Y, _STARTS, _SEQ_LENS, _ORDER, _LINE, _WORDS = range(11)


@cpu_kernel
def _run_few(block, offsets, slots, x, initial, begins, last, y):
    """Write the plan of the sequences that `offsets` delimit, and the words that differ between calls; run a record.

    Return 1 if the offsets do not cover the rows of `x`, 2 if the kernel raised, otherwise 0.  In the plan, the longest
    sequence comes first, and sequences of equal lengths stay in their order.

    block: the block of a Few
    slots: as `Packed.run_few` takes them
    """
    count = offsets.shape[0] - 1
    starts, seq_lens = words_at(block[_STARTS]), words_at(block[_SEQ_LENS])  # type: ignore[call-arg]
    order, line = words_at(block[_ORDER]), words_at(block[_LINE])  # type: ignore[call-arg]
    if count < 0 or offsets[0] != 0 or offsets[count] != x.shape[0]:
        return 1
    for i in range(count):
        length, place = offsets[i + 1] - offsets[i], i
        if length < 0:
            return 1
        while place > 0 and seq_lens[place - 1] < length:
            starts[place], seq_lens[place], order[place] = starts[place - 1], seq_lens[place - 1], order[place - 1]
            place -= 1
        starts[place], seq_lens[place], order[place] = offsets[i], length, i
    for i in range(slots.shape[0]):
        order[i] = slots[i]
    line[0], line[1], line[2], line[3] = 0, 0, count, 0  # finished steps, first sequence, end of sequences, rows left
    words = block[_WORDS:]
    words[block[_BEGINS]] = begins
    _set_array(words, block[_X], x)
    _set_array(words, block[_INITIAL], initial)
    _set_array(words, block[_LAST], last)
    _set_array(words, block[_Y], y)
    return 2 * call_record(block[_TRAMPOLINE], words.ctypes.data)  # type: ignore[call-arg]


@cpu_inlined
def _set_array(words, at, array):
    """Set the words of an array's size, address, shape and strides; `at` is the position of the address."""
    words[at - 2], words[at] = array.size, array.ctypes.data
    for axis in range(array.ndim):
        words[at + 1 + axis], words[at + 1 + array.ndim + axis] = array.shape[axis], array.strides[axis]


class Few(NamedTuple):
    """A record of a direction's kernel, and the memory of a call of few sequences on one thread.

    block: int64 numbers for `_run_few`: positions and addresses up to `_LINE`, then the words of the record
    kept: keeps arrays alive whose addresses are in the block
    """

    block: np.ndarray
    kept: object


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
        self.most_rows = (SMALL_WORK - 1) // max(1, self.products)  # with more rows, threads may share the work
        self._loop, self._none = loop_of(cell, dtype, self.shape), none_of(dtype)
        self._panels = empty((self._loop.panel_rows, self._loop.width), self._none)
        self._weights = plain_weights(self._loop, direction)
        nothing = np.empty((len(cell.states), 0, self.shape.hidden), dtype)
        memory, batch = self._memory(1, 0), (*([_read_only(np.zeros(1, np.int64))] * 3), reverse)
        run_alone(
            self._loop, memory, batch, 0, self._task(self._none, nothing, False, self._none, 0), nothing, False, False
        )
        *_, vectors = self._weights  # the panels hold all other weights
        self._weights = self._none, self._none, *[np.empty(0, dtype)] * 2, self._none, vectors.copy()

    def __reduce__(self):
        hint = "pickle the layer itself, and call prepare() or stream() after loading it"
        expected, got = "an object without compiled code", "a prepared layer or a stream, which holds compiled code"
        raise ProgramError("pickle", expected=expected, got=got, hint=hint)

    def __deepcopy__(self, memo):
        return self  # a Packed never changes, so it needs no copy

    def _memory(self, capacity, packed):
        return alone(self._loop, capacity, self._none, self._panels, packed)

    def few(self, capacity, columns, column):
        """Return a Few for at most `capacity` sequences; this direction writes columns of `y` from `column` on."""
        plan, memory, dry_run = np.zeros((3, capacity), np.int64), self._memory(capacity, PACKED), DryRun()
        x, y = (dry_run.around(np.empty((2, size), self.dtype)) for size in (self.shape.features, columns))
        initial, last = (
            dry_run.around(np.empty((len(self.cell.states), 2, self.shape.hidden), self.dtype)) for _ in range(2)
        )
        batch, ways = (*map(_read_only, plan), self.reverse), (False, True)
        for begins in ways:
            task = self._task(x, initial, begins, y, column)
            given = 0, 1, memory.work, batch, self._loop.cell, task, last, False, False
            dry_run.call(self._loop.kernel, _around(dry_run, given))
        (call, *_), (words, others) = dry_run.calls, (np.array(call.words, np.int64) for call in dry_run.calls)
        at = {slot: position for position, slot in call.slots.items()}
        of_arrays = [at[one.slot] for one in (x, initial, last, y)]
        addresses = list(map(address_of, (*plan, memory.integers)))
        begins = np.nonzero(words != others)[0]
        for position, slot in call.slots.items():
            words[position] += slot.address
        block = np.array([trampoline(call.letters), *begins, *of_arrays, *addresses, *words], np.int64)
        return Few(block, (plan, memory, dry_run))

    def is_little(self, num_rows, num_sequences):
        """Return whether one thread should do the work, because it is too little to share."""
        return count_shards(num_rows * self.products, num_sequences * self._loop.unit_blocks) == 1

    def run_few(self, few, offsets, slots, x, initial, begins, last, y):
        """Run the sequences that int64 offsets delimit on this thread; return False if these do not cover the rows.

        No other call may use `few`, a `Few` of this direction, meanwhile.  `initial` and `last`, (states, sequences,
        hidden), may be one array, since a state is read before it is written; `begins` says whether initial states are
        given, otherwise they are zeros.  If all sequences have one length, `slots` can list the entry of `initial` and
        `last` for each sequence; an empty list stands for 0, 1, 2 ...
        """
        stopped = _run_few(few.block, offsets, slots, x, initial, begins, last, y)
        if stopped == 2:
            raise RuntimeError("a kernel failed")
        return stopped == 0

    def run(self, plan, x, initial, begins, last, y, column):
        """Run the sequences of `plan`, a SortedSeqs, on one or more threads; see `run_few` for other arguments.

        This direction writes its outputs to `y` from `column` on.
        """
        task, products = self._task(x, initial, begins, y, column), len(x) * self.products
        run(self._loop, plan, self.reverse, products, y, task, last, False, False, panels=self._panels)

    def _task(self, x, initial, begins, y, column):
        """Return a `Task` as the plain tuple that kernels take."""
        none = self._none
        return x, self._weights, initial, begins, self.shape.outputs, y, column, none, none, self.cell.proj_clip


def _read_only(array):
    """Return a read-only view, because kernels are compiled for the read-only arrays of a plan."""
    view = array.view()
    view.flags.writeable = False
    return view


def _around(dry_run, argument):
    """Return an argument with Placeholders in place of its arrays."""
    if isinstance(argument, tuple):
        return tuple([_around(dry_run, item) for item in argument])
    return dry_run.around(argument) if type(argument) is np.ndarray else argument
