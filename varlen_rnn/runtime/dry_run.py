"""Dry runs: run the library's code on placeholders, note the kernels that it calls, and make records of the notes.

For example, a dry run of `y = empty((3,), x); scale_cpu(x, 2.0, y)` has one slot, the memory of `y`, and one call.  Its
records run `scale_cpu` as often as you like, in any memory of 64 bytes, on the numbers that `x` then has.
"""

from typing import NamedTuple

import numpy as np

from varlen_rnn.runtime import parameters, records
from varlen_rnn.runtime.memory import CACHE_LINE
from varlen_rnn.runtime.numba_internals import code_for, letters_of
from varlen_rnn.runtime.placeholder import Placeholder, Slot, Unbound

_CODES: dict = {}  # {a kernel and the kinds of its arguments: its code}
_OWNS_DATA = 4  # the only flag of an array on which its type does not depend


def _code_for(kernel, arguments):
    address, kinds, is_void = code_for(kernel, arguments)
    letters = [letters_of(kind) for kind in kinds]
    return address, "".join("?" if of_kind is None else of_kind for of_kind in letters), is_void


class Call(NamedTuple):
    """A call of a kernel that a DryRun noted.

    name: the kernel's name
    letters: the types of its words
    words: the words; the address of a Placeholder is the address of its form
    slots: the Slot of each address of a Placeholder, by the position of the address among the words
    """

    name: str
    letters: str
    words: list[int]
    slots: dict[int, Slot]


class DryRun:
    """What a dry run notes: pieces of memory, and calls of kernels.

    Attributes
    ----------
    slots : list of Slot
    calls : list of Call
    kept : list
        Ordinary arrays whose addresses are among the words.
    refusal : str or None
        Why the notes cannot be run; None if they can.

    Examples
    --------
    >>> dry_run = DryRun()
    >>> x = dry_run.around(np.ones(3))
    >>> y = x.copy()
    >>> [call.name for call in dry_run.calls], y.shape
    (['copy'], (3,))
    """

    def __init__(self):
        self.slots, self.calls, self.kept, self.refusal = [], [], [], None

    def refuse(self, why):
        """Raise Unbound; from now on the dry run is refused, whatever its code does about the error."""
        self.refusal = why
        raise Unbound(why)

    def around(self, array):
        """Return a Placeholder whose memory is an array that exists already, such as a parameter."""
        return self._new(array, True)

    def empty(self, shape, dtype):
        """Return a Placeholder in new memory."""
        return self._new(np.empty(shape, dtype), False)

    def zeros(self, shape, dtype):
        """Return a Placeholder in new memory, which a run sets to zero at this point."""
        made = self.empty(shape, dtype)
        if made.size:
            self.call(records.clear, (made.reshape(-1).view(np.uint8),))
        return made

    def fill(self, out, bits):
        """Note that the elements of `out`, unsigned integers along four axes, become a number with these bits."""
        self.call(records.fill, (bits, out))

    def copy(self, x, out):
        """Note a copy of `x` to `out`; both have four axes."""
        self.call(records.copy, (x, out))

    def expect(self, found, number):
        """Note that a run stops unless the first number of an array is `number`."""
        self.call(records.expect, (number, found))

    def _new(self, form, is_outside):
        slot = Slot(form, is_outside)
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
        kinds: list[object] = [kernel]
        found = self._form(name, arguments, words, slots, kinds)
        # Numba takes most of a dry run's time to find the types of arguments.
        key = tuple(kinds)
        address, letters, is_void = _CODES.get(key) or _CODES.setdefault(key, _code_for(kernel, found))
        if len(letters) != len(words):
            self.refuse(f"kernel {name} takes arguments of other types than numbers and arrays")
        if not is_void:
            self.refuse(f"Python reads the number that kernel {name} returns")
        self.calls.append(Call(name, letters, [address, *words], slots))

    def _form(self, name, argument, words, slots, kinds):
        """Return an argument with forms in place of Placeholder arrays; append its words and its kind."""
        if isinstance(argument, tuple):
            kinds += [len(argument), tuple]
            return tuple([self._form(name, item, words, slots, kinds) for item in argument])
        if type(argument) is Placeholder:
            form, slots[len(words) + 5] = argument.form, argument.slot
        elif isinstance(argument, np.ndarray):
            form = argument
            self.kept.append(form)
            if form.size and _can_change(form):
                self.refuse(f"kernel {name} gets an array that NumPy made")
        elif type(argument) in parameters.BITS:
            words.append(parameters.BITS[type(argument)](argument))
            kinds.append(type(argument))
            return argument
        else:
            self.refuse(f"kernel {name} gets {type(argument).__name__}")
        kinds += [form.dtype, form.ndim, form.flags.num & ~_OWNS_DATA]
        words += parameters.of_array(form, form.__array_interface__["data"][0])[1]
        return form


class Place(NamedTuple):
    """Where a run has the array that a Placeholder of its dry run stands for.

    array: the array, if it is outside of the memory of the run
    outside: the array that the dry run was given; `array` is a view of it
    begin: otherwise, where it begins in that memory, in bytes
    """

    array: np.ndarray | None
    outside: np.ndarray | None
    begin: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype

    def view(self, memory):
        """Return the array, given the memory of the run."""
        if self.array is not None:
            return self.array
        return np.ndarray(self.shape, self.dtype, memory, self.begin, self.strides)

    def view_of_copy(self, copy):
        """Return the array, given a Copy of `outside`."""
        begin = _address(self.array) + copy.shift - _address(copy.memory)
        return np.ndarray(self.shape, self.dtype, copy.memory, begin, self.strides)


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
    shift = _address(memory) + start - low
    copy = np.ndarray(array.shape, array.dtype, memory, _address(array) + shift - _address(memory), array.strides)
    copy[...] = array
    copy.flags.writeable = array.flags.writeable
    return Copy(copy, memory, shift)


class Records:
    """The records of a DryRun, which run in `size` bytes of memory that `place` names.

    Attributes
    ----------
    size : int
        Bytes that a run needs.
    names : tuple of (str, str)
        The name of each record's kernel, and the letters of its words.
    """

    def __init__(self, dry_run):
        self.size = _put_in_order(dry_run.slots)
        self._begin, self.names = 0, tuple((call.name, call.letters) for call in dry_run.calls)
        self._kept = [dry_run.kept, [slot.form for slot in dry_run.slots if slot.is_outside]]
        words: list[int] = []
        starts, places = [], []
        self._outside: list[tuple[int, int]] = []  # positions of addresses among the words, and ids of their arrays
        for call in dry_run.calls:
            starts.append(len(words))
            for position, slot in call.slots.items():
                if not slot.is_outside:
                    places.append(len(words) + position)
                    call.words[position] += slot.offset - _address(slot.form)
                else:
                    self._outside.append((len(words) + position, id(slot.form)))
            words += call.words
        self._words, self._places = np.array(words, np.int64), np.array(places, np.int64)
        self._trampolines = np.array([records.trampoline(call.letters) for call in dry_run.calls], np.int64)
        self._at = _address(self._words) + 8 * np.array(starts, np.int64)

    def place(self, memory):
        """From now on, run in `memory`, an array of at least `size` bytes that begins at a cache line."""
        begin = _address(memory)
        self._words[self._places] += begin - self._begin
        self._begin = begin

    def run(self, copies=None):
        """Run all records; return the number of the first whose kernel raised, or -1 if none did.

        copies: {id of an array outside of the memory of a run: the Copy that takes its place in this run}
        """
        if not copies:
            return records.run_records(self._trampolines, self._at)
        words = self._words.copy()
        for position, outside in self._outside:
            if outside in copies:
                words[position] += copies[outside].shift
        return records.run_records(self._trampolines, self._at + (_address(words) - _address(self._words)))


def place_of(placeholder):
    """Return the Place of a Placeholder, after `Records` were made of its dry run."""
    form, slot = placeholder.form, placeholder.slot
    begin = 0 if slot.is_outside else slot.offset + _address(form) - _address(slot.form)
    array, outside = (form, slot.form) if slot.is_outside else (None, None)
    return Place(array, outside, begin, form.shape, form.strides, form.dtype)


def room(size):
    """Return memory of `size` bytes that begins at a cache line."""
    memory = np.empty(size + CACHE_LINE, np.uint8)
    begin = -_address(memory) % CACHE_LINE
    return memory[begin : begin + size]


def _can_change(array):
    """Return whether somebody can write to the memory of an array."""
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return True
        array = array.base
    return not (array is None or type(array) is bytes)


def _put_in_order(slots):
    """Set where each slot begins in the memory of a run; return how many bytes all take."""
    end = 0
    for slot in slots:
        if not slot.is_outside:
            slot.offset = end
            end += -(-slot.form.nbytes // CACHE_LINE) * CACHE_LINE
    return end


def _address(array):
    return array.__array_interface__["data"][0]
