"""Dry runs: run the library's code on placeholders, note the kernels that it calls, and make records of the notes.

For example, a dry run of `y = empty((3,), x); scale_cpu(x, 2.0, y)` has one slot, the memory of `y`, and one call.  Its
records run `scale_cpu` as often as you like, in any memory of 64 bytes, on the numbers that `x` then has.
"""

from typing import Any, NamedTuple

import numpy as np

from varlen_rnn.runtime import parameters, records
from varlen_rnn.runtime.forms import header_of_arrays
from varlen_rnn.runtime.memory import CACHE_LINE, address_of
from varlen_rnn.runtime.notes import Notes, fit_notes, strides_unread
from varlen_rnn.runtime.numba_internals import code_for, letters_of
from varlen_rnn.runtime.placeholder import Placeholder, Slot, Unbound

_CODES: dict = {}  # {a kernel and the kinds of its arguments: its code}
_OWNS_DATA = 4  # the only flag of an array on which Numba's type of it does not depend


def _code_for(kernel, arguments):
    address, kinds, is_void = code_for(kernel, _forms(arguments))
    letters = [letters_of(kind) for kind in kinds]
    return address, "".join("?" if of_kind is None else of_kind for of_kind in letters), is_void


def _forms(argument):
    if isinstance(argument, tuple):
        return tuple(map(_forms, argument))
    return argument.form if type(argument) is Placeholder else argument


class Call(NamedTuple):
    """A call of a kernel that a DryRun noted.

    operator: the name of the operator that calls it, or None
    name: the kernel's name
    letters: the types of its words
    words: the words; the address of an array is its distance from the begin of its slot, in bytes
    slots: the Slot of each array, by the position of the array's address among the words
    unread: positions of strides along axes with one element
    """

    operator: str | None
    name: str
    letters: str
    words: list[int]
    slots: dict[int, Slot]
    unread: list[int]


class DryRun:
    """What a dry run notes: pieces of memory, and calls of kernels.

    Attributes
    ----------
    slots : list of Slot
    calls : list of Call
    constants : list of (array, bytes)
        Copies of ordinary arrays, outside of the memory of a run, and their content.
    refusal : str or None
        Why the notes cannot be run; None if they can.
    drawn : Placeholder or None
        What `draw` returned, if it was called.
    operator : str or None
        The name of the operator whose calls follow, if whoever makes the dry run sets it.
    once : dict or None
        Results of work on constants alone, for this dry run and later ones; None if there are no constants.

    Examples
    --------
    >>> dry_run = DryRun()
    >>> x = dry_run.around(np.ones(3))
    >>> y = x.copy()
    >>> [call.name for call in dry_run.calls], y.shape
    (['copy'], (3,))
    """

    def __init__(self, once=None):
        self.once, self.slots, self.calls, self.constants = once, [], [], []
        self._ordinary = {}  # {id of an ordinary array that a kernel takes: its Slot}
        self.refusal = self.drawn = self.operator = None

    def refuse(self, why):
        """Raise Unbound; from now on the dry run is refused, whatever its code does about the error."""
        self.refusal = why
        raise Unbound(why)

    def around(self, array, is_constant=False):
        """Return a Placeholder whose memory is an array that exists already, such as a parameter.

        `is_constant` says whether its numbers never change, so that work on them alone is done in the dry run.
        """
        return self._new(array, True, is_constant)

    def empty(self, shape, dtype):
        """Return a Placeholder in new memory."""
        return self._new(np.empty(shape, dtype), False)

    def zeros(self, shape, dtype):
        """Return a Placeholder in new memory, which a run sets to zero at this point."""
        made = self.empty(shape, dtype)
        if made.size:
            self.call(records.clear, (made.reshape(-1).view(np.uint8),))
        return made

    def draw(self):
        """Return a Placeholder of three integers, which identify the first draw of a run."""
        if self.drawn is None:
            self.drawn = self.empty((3,), np.dtype(np.int64))
        return self.drawn

    def fill(self, out, bits):
        """Note that the elements of `out`, unsigned integers along four axes, become a number with these bits."""
        self.call(records.fill, (bits, out))

    def copy(self, x, out):
        """Note a copy of `x` to `out`; both have four axes."""
        self.call(records.copy, (x, out))

    def take(self, x, index, out):
        """Note that the rows of `out` become the rows of `x` at integers; `x` and `out` have two axes."""
        self.call(records.take, (x, index, out))

    def expect(self, found, number):
        """Note that a run stops unless the first number of an array is `number`."""
        self.call(records.expect, (number, found))

    def _new(self, form, is_outside, is_constant=False):
        slot = Slot(form, is_outside, is_constant)
        self.slots.append(slot)
        return Placeholder(self, slot, form[...], Placeholder(self, slot, form, None))

    def call(self, kernel, arguments):
        """Note the call of a kernel.

        Raise Unbound if it returns a number, because Python would read it, or if it could write to an ordinary array,
        because a run would not make that array anew.
        """
        name = kernel.py_func.__name__
        words: list[int] = []
        slots: dict[int, Slot] = {}
        unread: list[int] = []
        kinds: list[object] = [kernel]
        self._add(name, arguments, words, slots, unread, kinds)
        # Numba takes most of a dry run's time to find the types of arguments.
        key = tuple(kinds)
        address, letters, is_void = _CODES.get(key) or _CODES.setdefault(key, _code_for(kernel, arguments))
        if len(letters) != len(words):
            self.refuse(f"kernel {name} takes arguments of other types than numbers and arrays")
        if not is_void:
            self.refuse(f"Python reads the number that kernel {name} returns")
        self.calls.append(Call(self.operator, name, letters, [address, *words], slots, unread))

    def _add(self, name, arguments, words, slots, unread, kinds):
        """Append the words of arguments and their kinds; add the slots of arrays, and strides that nobody reads."""
        for argument in arguments:
            its_type = type(argument)
            if its_type in parameters.BITS:
                words.append(parameters.BITS[its_type](argument))
                kinds.append(its_type)
                continue
            if isinstance(argument, tuple):
                kinds += (len(argument), tuple)
                self._add(name, argument, words, slots, unread, kinds)
                continue
            if its_type is Placeholder:
                form, slot = argument.form, argument.slot
            elif isinstance(argument, np.ndarray):
                form, slot = argument, self._slot_of(name, argument)
            else:
                self.refuse(f"kernel {name} gets {its_type.__name__}")
            slots[len(words) + 5], its_address = slot, address_of(form) - slot.address
            words += (0, 0, form.size, form.itemsize, its_address, *form.shape, *form.strides)
            kinds += (form.dtype, form.ndim, form.flags.num & ~_OWNS_DATA)
            unread += strides_unread(form, len(words) + 1)

    def _slot_of(self, name, array):
        """Return the slot of an ordinary array; raise Unbound if somebody could write to it."""
        if array.size and _can_change(array):
            self.refuse(f"kernel {name} gets an array that NumPy made")
        if id(array) not in self._ordinary:
            self._ordinary[id(array)] = self._new(array, True).slot
        return self._ordinary[id(array)]


class Place:
    """Where runs have the array that a Placeholder of each dry run stands for.

    Attributes
    ----------
    outside : array or None
        The array that the dry run was given, such as a parameter; None if runs have the array in their own memory.
    varies : bool
        Whether counts change where the array begins, its shape or its strides.
    rows : (int, int) or None
        If counts change only its rows, a number and which count is added to it; otherwise None.
    """

    __slots__ = ("_array", "_dtype", "_ndim", "_numbers", "_rows", "outside", "rows", "varies")

    def __init__(self, placeholder, offset, numbers):
        """Make the Place of a Placeholder of one dry run.

        offset: where its slot begins in the memory of a run, in bytes
        numbers: the Affine of its numbers, as Notes have them
        """
        slot, form = placeholder.slot, placeholder.form
        self.outside = slot.form if slot.is_outside else None
        self.varies, self._dtype, self._ndim = len(numbers.varying) > 0, form.dtype, form.ndim
        if slot.is_outside and self.varies:
            raise Unbound("a result is a part of another array that depends on the sizes of feeds")
        self._array = form if slot.is_outside else None
        self._numbers = numbers.constants.tolist()
        self._numbers[0] += offset
        bases = numbers.bases + offset * (numbers.varying == 0)
        self._rows = list(zip(numbers.varying.tolist(), bases.tolist(), numbers.coefficients.tolist(), strict=True))
        self.rows = None
        if numbers.varying.tolist() == [1]:
            (_, number, coefficients), *_ = self._rows
            if sorted(coefficients) == [0] * (len(coefficients) - 1) + [1]:
                self.rows = number, coefficients.index(1)

    def view(self, memory, counts=()):
        """Return the array, given the memory of the run."""
        if self._array is not None:
            return self._array
        numbers, last = self._numbers, 1 + self._ndim
        for position, number, coefficients in self._rows:
            for coefficient, count in zip(coefficients, counts, strict=True):
                number += coefficient * count
            numbers[position] = number
        return np.ndarray(numbers[1:last], self._dtype, memory, numbers[0], numbers[last:])

    def view_of_copy(self, copy):
        """Return the array, given a Copy of `outside`."""
        array: Any = self._array
        begin = address_of(array) + copy.shift - address_of(copy.memory)
        return np.ndarray(array.shape, array.dtype, copy.memory, begin, array.strides)


class Copy(NamedTuple):
    """A copy of an array, with its strides.

    array: the copy
    memory: the bytes in which it lies
    shift: the distance from an address in the original to the same place in the copy, in bytes
    """

    array: np.ndarray
    memory: np.ndarray
    shift: int


def copy_of(array):
    """Return the Copy of an array."""
    low, high = np.lib.array_utils.byte_bounds(array)
    start = low % CACHE_LINE
    memory = room(start + high - low)
    shift = address_of(memory) + start - low
    copy = np.ndarray(array.shape, array.dtype, memory, address_of(array) + shift - address_of(memory), array.strides)
    copy[...] = array
    copy.flags.writeable = array.flags.writeable
    return Copy(copy, memory, shift)


class Records:
    """The records of DryRuns that differ in counts alone, which run in `size` bytes of memory that `place` names.

    Parameters
    ----------
    dry_run : DryRun
    numbers : Affine or None
        The numbers of the Notes of all dry runs; None if there is only one.
    points : list of tuple of int
        Counts among which each slot is largest.
    kept : iterable of Placeholder, optional
        Arrays that are written before a run, or read after it; by default, all of them.  Others share memory with
        arrays that no call needs at the same time, which keeps a run in the processor's caches.
    lent : iterable of Slot, optional
        Slots that have no place in the memory of a run: `lend` gives runs arrays in their place.

    Attributes
    ----------
    size : int
        Bytes that a run needs.
    names : tuple of (str, str)
        The name of each record's kernel, and the letters of its words.
    starts : (r,) array of int64
        Where each record's words begin among `words`.
    words : Affine
        The words of all records, for memory at the address 0.
    places : array of int64
        Positions of words that are addresses in the memory of a run.
    outside : list of (int, int)
        Positions of words that are addresses in arrays outside of that memory, and the ids of the arrays.
    """

    def __init__(self, dry_run, numbers=None, points=((),), kept=None, lent=()):
        numbers = fit_notes(points, [Notes(dry_run)]) if numbers is None else numbers
        self.names = tuple((call.name, call.letters) for call in dry_run.calls)
        self._constants = dry_run.constants
        self._kept = [slot.form for slot in dry_run.slots if slot.is_outside]
        self.starts = np.cumsum([0, *(len(call.words) for call in dry_run.calls)])
        end = int(self.starts[-1])
        self.words, sizes = numbers.part(0, end), numbers.part(end, end + len(dry_run.slots))
        largest = np.max([sizes.at(one) for one in points], axis=0).tolist()
        kept = dry_run.slots if kept is None else [one.slot for one in kept]
        numbers_of_lent = {slot: number for number, slot in enumerate(lent)}
        inside = {slot: size for slot, size in zip(dry_run.slots, largest, strict=True) if slot not in numbers_of_lent}
        self._offsets, self.size = _offsets_of(dry_run, inside, kept)
        self.outside, shifts = [], np.zeros(end, np.int64)
        places: list[int] = []
        borrowing: list[tuple[int, int]] = []  # positions of words that are addresses in lent arrays, and which array
        for call, start in zip(dry_run.calls, self.starts.tolist(), strict=False):
            for position, slot in call.slots.items():
                if slot.is_outside:
                    self.outside.append((start + position, id(slot.form)))
                    shifts[start + position] = slot.address
                elif slot in numbers_of_lent:
                    borrowing.append((start + position, numbers_of_lent[slot]))
                else:
                    places.append(start + position)
                    shifts[start + position] = self._offsets[slot]
        self.words = self.words._replace(
            constants=self.words.constants + shifts, bases=self.words.bases + shifts[self.words.varying]
        )
        self.starts, self.places = self.starts[:-1], np.array(places, np.int64)
        self._prepare(len(numbers_of_lent), np.array(borrowing, np.int64).reshape(-1, 2).T.copy())

    def _prepare(self, num_lent, borrowing):
        """Make the block of words.  Its first record sets the words that vary, and the addresses of lent arrays."""
        self.words = self.words.also_varying(borrowing[0])
        self._lent = np.zeros(num_lent, np.int64)
        self._set_lent = self._lent.data.__setitem__
        self._number_of = id if header_of_arrays() >= 0 else address_of
        varying = self.words.varying
        counts = np.zeros(self.words.coefficients.shape[1], np.int64)
        self._set_count = counts.data.__setitem__  # it takes a third of the time of an array's
        self._words, self._bases = self.words.constants.copy(), self.words.bases.copy()
        self._places_that_vary = np.nonzero(np.isin(varying, self.places))[0]
        setting = DryRun()
        given = self._words, varying, self._bases, self.words.coefficients, counts, self._lent, *borrowing
        setting.call(records.set_words, (*map(setting.around, given), header_of_arrays()))
        (first,) = setting.calls
        self._setting, self._given = np.array(first.words, np.int64), given  # the words have these arrays' addresses
        for position, slot in first.slots.items():
            self._setting[position] += slot.address
        letters = [first.letters, *(letters for _, letters in self.names)]
        self._trampolines = np.array(list(map(records.trampoline, letters)), np.int64)
        self._at = np.array([address_of(self._setting), *(address_of(self._words) + 8 * self.starts)], np.int64)

    def place(self, memory):
        """From now on, run in `memory`, an array of at least `size` bytes that begins at a cache line."""
        begin = address_of(memory)
        self._words[self.places] = self.words.constants[self.places] + begin
        self._bases[self._places_that_vary] = self.words.bases[self._places_that_vary] + begin

    def set_counts(self, counts):
        """From now on, run for batches with these counts, a tuple of int."""
        for number, count in enumerate(counts):
            self._set_count(number, count)

    def lend(self, number, array):
        """From now on, use an array, which is C-contiguous, for slot `number` of the lent ones.

        The caller keeps the array alive until no run needs it.
        """
        self._set_lent(number, self._number_of(array))

    def run(self, copies=None):
        """Run all records; return the number of the first whose kernel raised, or -1 if none did.

        copies: {id of an array outside of the memory of a run: the Copy that takes its place in this run}
        """
        if not copies:
            stopped = records.run_records(self._trampolines, self._at)
            return stopped - (stopped > 0)
        records.run_records(self._trampolines[:1], self._at[:1])
        words = self._words.copy()
        for position, outside in self.outside:
            if outside in copies:
                words[position] += copies[outside].shift
        return records.run_records(self._trampolines[1:], self._at[1:] + (address_of(words) - address_of(self._words)))

    def restore_constants(self):
        """Restore the constants that runs have changed; return whether there were any."""
        changed = [(array, content) for array, content in self._constants if array.tobytes() != content]
        for array, content in changed:
            array[...] = np.frombuffer(content, array.dtype).reshape(array.shape)
        return bool(changed)

    def place_of(self, placeholder, numbers=None):
        """Return the Place of a Placeholder of the dry run; `numbers` is the Affine of its numbers, if they vary."""
        if numbers is None:
            notes = Notes(placeholder.dry_run, [placeholder])
            (place,) = notes.places
            numbers = fit_notes([()], [notes]).part(*place)
        return Place(placeholder, self._offsets[placeholder.slot], numbers)


def room(size):
    """Return memory of `size` bytes that begins at a cache line."""
    memory = np.empty(size + CACHE_LINE, np.uint8)
    begin = -address_of(memory) % CACHE_LINE
    return memory[begin : begin + size]


def _can_change(array):
    """Return whether somebody can write to the memory of an array."""
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return True
        array = array.base
    return not (array is None or type(array) is bytes)


def _offsets_of(dry_run, sizes, kept):
    """Return where each slot begins in the memory of a run, 0 if it is elsewhere, and how many bytes all take.

    sizes: the bytes of each slot that can be inside
    kept: slots that share no memory; others do if the last call that uses one is before the first that uses the other
    """
    lives: dict[Any, tuple[int, int]] = {}  # the numbers of the first and the last call that use a slot
    for number, call in enumerate(dry_run.calls):
        for slot in call.slots.values():
            lives[slot] = lives.get(slot, (number, number))[0], number
    lives |= dict.fromkeys(kept, (-1, len(dry_run.calls)))
    offsets = dict.fromkeys(dry_run.slots, 0)
    placed: list[tuple[int, int, tuple[int, int]]] = []  # where slots begin and end, and their lives
    inside = [slot for slot in sizes if slot in lives and not slot.is_outside]
    for slot in sorted(inside, key=lambda slot: -sizes[slot]):
        life, begin, needed = lives[slot], 0, -(-sizes[slot] // CACHE_LINE) * CACHE_LINE
        beside = [(a, b) for a, b, other in placed if other[0] <= life[1] and life[0] <= other[1]]
        for its_begin, its_end in sorted(beside):
            if begin + needed <= its_begin:
                break
            begin = max(begin, its_end)
        offsets[slot] = begin
        placed.append((begin, begin + needed, life))
    return offsets, max([end for _, end, _ in placed], default=0)
