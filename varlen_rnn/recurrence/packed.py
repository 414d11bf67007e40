"""Inference with weights that are packed once; few sequences run on one thread, without a schedule.

The loop is the loop of `layer.forward`, so results are the same to the bit.  A call of few sequences is a record
(`runtime.records`): compiled code writes a dozen words, while converting the 18 arrays of a call takes 3 us.  It also
checks the arrays, and reads their forms where NumPy keeps them (`runtime.forms`), which would take Python 2 us.
"""

from typing import Any, NamedTuple

import numpy as np

from varlen_rnn.errors import ProgramError
from varlen_rnn.recurrence.cpu import loop_of, none_of, packed_panels, plain_weights
from varlen_rnn.recurrence.phases import shape_of
from varlen_rnn.recurrence.schedule import alone, run
from varlen_rnn.recurrence.sharing import PACKED
from varlen_rnn.runtime.dry_run import DryRun
from varlen_rnn.runtime.forms import HEADER, PLAIN
from varlen_rnn.runtime.jit import cpu_inlined, cpu_kernel
from varlen_rnn.runtime.memory import address_of
from varlen_rnn.runtime.precision import get_float32_matmul_precision
from varlen_rnn.runtime.records import call_record, trampoline, words_at
from varlen_rnn.runtime.threads import SMALL_WORK, count_shards

FEW = 64  # up to so many sequences, a compiled insertion sort makes the plan
INT64 = np.dtype(np.int64)
_HALF = (1 << 32) - 1

# Positions in the block of a Few: of the words of an array object's header, of the ids of the data types of rows and
# offsets, of the number of features, of the direction's number, of the trampoline's address, of the positions of words
# that differ between calls, of the addresses of the plan's columns and of the only group's line; where the words begin.
_HEADER, _DTYPE, _INT64, _FEATURES, _PLACE, _TRAMPOLINE, _BEGINS, _X, _INITIAL, _LAST, _Y = range(11)
_STARTS, _SEQ_LENS, _ORDER, _LINE, _WORDS = range(11, 16)


@cpu_kernel
def run_few(few, x, offsets, slots, begins, states, y):
    """Run one direction over the sequences that offsets delimit, on this thread; all arguments are numbers.

    Return 1 if `x`, `offsets` or `slots` has another form or data type, or if the offsets do not cover the rows; 2 if
    the kernel raised, otherwise 0.  In the plan, the longest sequence comes first, and sequences of equal lengths stay
    in their order.

    few: the address of the block of a Few, which no other call may use meanwhile
    x, offsets: ids of arrays, (rows, features) and (sequences + 1,) int64
    slots: id of an int64 array, or 0; if all sequences have one length, it can list the entry of `states` for each
        sequence, instead of 0, 1, 2 ...
    begins: whether `states` has initial states; if it is 0, they are zeros
    states: id of an array, (states, directions, sequences, hidden): initial states, and then the last ones
    y: id of an array, (rows, columns); this direction writes the columns for which the Few was made
    """
    block: Any = words_at(few)  # type: ignore[call-arg]  # Numba passes the context
    header = block[_HEADER]
    if not _is_plain(x, header, 2, block[_DTYPE]) or not _is_plain(offsets, header, 1, block[_INT64]):
        return 1
    if slots and not _is_plain(slots, header, 1, block[_INT64]):
        return 1
    num_rows, count = _shape(x, header)[0], _shape(offsets, header)[0] - 1
    at = words_at(words_at(offsets)[header])  # type: ignore[call-arg]
    if _shape(x, header)[1] != block[_FEATURES] or count < 0 or at[0] != 0 or at[count] != num_rows:
        return 1
    starts, seq_lens = words_at(block[_STARTS]), words_at(block[_SEQ_LENS])  # type: ignore[call-arg]
    order, line = words_at(block[_ORDER]), words_at(block[_LINE])  # type: ignore[call-arg]
    for i in range(count):
        length, place = at[i + 1] - at[i], i
        if length < 0:
            return 1
        while place > 0 and seq_lens[place - 1] < length:
            starts[place], seq_lens[place], order[place] = starts[place - 1], seq_lens[place - 1], order[place - 1]
            place -= 1
        starts[place], seq_lens[place], order[place] = at[i], length, i
    if slots:
        given = words_at(words_at(slots)[header])  # type: ignore[call-arg]
        for i in range(count):
            order[i] = given[i]
    line[0], line[1], line[2], line[3] = 0, 0, count, 0  # finished steps, first sequence, end of sequences, rows left
    words = words_at(few + 8 * _WORDS)  # type: ignore[call-arg]
    words[block[_BEGINS]] = begins
    _set_rows(words, block[_X], x, header)
    _set_rows(words, block[_Y], y, header)
    _set_states(words, block[_INITIAL], states, header, block[_PLACE])
    _set_states(words, block[_LAST], states, header, block[_PLACE])
    return 2 * call_record(block[_TRAMPOLINE], few + 8 * _WORDS)  # type: ignore[call-arg]


@cpu_inlined
def _shape(array, header):
    return words_at(words_at(array)[header + 2])


@cpu_inlined
def _is_plain(array, header, axes, dtype):
    """Return whether an array has so many axes, a data type, and its numbers in order."""
    words = words_at(array)
    return words[header + 1] & _HALF == axes and words[header + 5] == dtype and words[header + 6] & PLAIN == PLAIN


@cpu_inlined
def _set_rows(words, at, array, header):
    """Set the words of an array of two axes; `at` is the position of its address, and its size comes two before."""
    shape, strides = _shape(array, header), words_at(words_at(array)[header + 3])
    words[at - 2], words[at] = shape[0] * shape[1], words_at(array)[header]
    words[at + 1], words[at + 2], words[at + 3], words[at + 4] = shape[0], shape[1], strides[0], strides[1]


@cpu_inlined
def _set_states(words, at, states, header, place):
    """Set the words of the states of direction `place`, as an array (states, sequences of all directions, hidden).

    Kernels read its address and its shape alone: states are `shape[1] * shape[2]` numbers apart.
    """
    shape, strides = _shape(states, header), words_at(words_at(states)[header + 3])
    words[at] = words_at(states)[header] + place * strides[1]
    words[at + 1], words[at + 2], words[at + 3] = shape[0], shape[1] * shape[2], shape[3]


class Few(NamedTuple):
    """A record of a direction's kernel, and the memory of a call of few sequences on one thread.

    address: the address of a block of int64 numbers for `run_few`.  Positions and addresses come first, up to `_LINE`,
        and then the words of the record.
    kept: keeps the block alive, and the arrays whose addresses are in it
    """

    address: int
    kept: object


class Packed:
    """A direction of a layer with packed copies of its weights, so later changes of the weights have no effect.

    Its cell has no row inputs.  `features` are the features of a row, and `reverse` says whether each sequence runs
    from its last row to its first.
    """

    def __init__(self, cell, direction, features, reverse):
        dtype = np.dtype(direction.weight_hh.dtype.char)  # the only object of this data type that NumPy gives arrays
        self.cell, self.reverse, self.dtype = cell, reverse, dtype
        self.shape = shape_of(cell, np.empty((0, features), dtype), direction)
        self.products = direction.weight_ih.size + direction.weight_hh.size  # multiply-adds of a row
        self.most_rows = (SMALL_WORK - 1) // max(1, self.products)  # with more rows, threads may share the work
        self._loop, self._none = loop_of(cell, dtype, get_float32_matmul_precision(), self.shape), none_of(dtype)
        weights = plain_weights(self._loop, direction)
        self._panels = packed_panels(cell, self.shape, self._loop, weights)
        *_, vectors = weights  # the panels hold all other weights
        self._weights = self._none, self._none, *[np.empty(0, dtype)] * 2, self._none, vectors.copy()

    def __reduce__(self):
        hint = "pickle the layer itself, and call prepare() or stream() after loading it"
        expected, got = "an object without compiled code", "a prepared layer or a stream, which holds compiled code"
        raise ProgramError("pickle", expected=expected, got=got, hint=hint)

    def __deepcopy__(self, memo):
        return self  # a Packed never changes, so it needs no copy

    def few(self, capacity, place, columns, column):
        """Return a Few for at most `capacity` sequences; arrays have to be readable (`runtime.forms`).

        This direction, number `place` of the layer, writes columns of `y` from `column` on.
        """
        plan, dry_run = np.zeros((3, capacity), np.int64), DryRun()
        memory = alone(self._loop, capacity, self._none, self._panels, PACKED)
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
        about = HEADER, id(self.dtype), id(INT64), self.shape.features, place, trampoline(call.letters)
        block = np.array([*about, *begins, *of_arrays, *addresses, *words], np.int64)
        return Few(address_of(block), (block, plan, memory, dry_run))

    def is_little(self, num_rows, num_sequences):
        """Return whether one thread should do the work, because it is too little to share."""
        return count_shards(num_rows * self.products, num_sequences * self._loop.unit_blocks) == 1

    def run(self, plan, x, states, begins, y, column):
        """Run the sequences of `plan`, a SortedSeqs, on one or more threads.

        `states`, (states, sequences, hidden), has initial states, which are zeros if `begins` is False, and then the
        last ones.  This direction writes its outputs to `y` from `column` on.
        """
        task, products = self._task(x, states, begins, y, column), len(x) * self.products
        run(self._loop, plan, self.reverse, products, y, task, states, False, False, panels=self._panels)

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
