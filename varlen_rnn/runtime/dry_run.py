"""Dry runs: run the library's code on placeholders, note the kernels that it calls, and make records of the notes.

For example, a dry run of `y = empty((3,), x); scale_cpu(x, 2.0, y)` has one slot, the memory of `y`, and one call.  Its
records run `scale_cpu` as often as you like, in any memory of 64 bytes, on the numbers that `x` then has.
"""

from typing import Any, NamedTuple

import numpy as np

from varlen_rnn.runtime import parameters, records
from varlen_rnn.runtime.affine import fit
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

    operator: the name of the operator that calls it, or None
    name: the kernel's name
    letters: the types of its words
    words: the words; the address of a Placeholder is the address of its form
    slots: the Slot of each address of a Placeholder, by the position of the address among the words
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
    kept : list
        Ordinary arrays whose addresses are among the words.
    constants : list of (array, bytes)
        Copies of ordinary arrays, outside of the memory of a run, and their content.
    refusal : str or None
        Why the notes cannot be run; None if they can.
    drawn : Placeholder or None
        What `draw` returned, if it was called.
    operator : str or None
        The name of the operator whose calls follow, if whoever makes the dry run sets it.

    Examples
    --------
    >>> dry_run = DryRun()
    >>> x = dry_run.around(np.ones(3))
    >>> y = x.copy()
    >>> [call.name for call in dry_run.calls], y.shape
    (['copy'], (3,))
    """

    def __init__(self):
        self.slots, self.calls, self.kept, self.constants = [], [], [], []
        self.refusal = self.drawn = self.operator = None

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
        unread: list[int] = []
        kinds: list[object] = [kernel]
        found = self._form(name, arguments, words, slots, unread, kinds)
        # Numba takes most of a dry run's time to find the types of arguments.
        key = tuple(kinds)
        address, letters, is_void = _CODES.get(key) or _CODES.setdefault(key, _code_for(kernel, found))
        if len(letters) != len(words):
            self.refuse(f"kernel {name} takes arguments of other types than numbers and arrays")
        if not is_void:
            self.refuse(f"Python reads the number that kernel {name} returns")
        self.calls.append(Call(self.operator, name, letters, [address, *words], slots, unread))

    def _form(self, name, argument, words, slots, unread, kinds):
        """Return an argument with forms in place of Placeholder arrays; append its words and its kind."""
        if isinstance(argument, tuple):
            kinds += [len(argument), tuple]
            return tuple([self._form(name, item, words, slots, unread, kinds) for item in argument])
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
        unread += _strides_unread(form, len(words) + 1)
        return form


class Place:
    """Where runs have the array that a Placeholder stands for, or the Placeholders of one array in several dry runs.

    Attributes
    ----------
    outside : array or None
        The array that the dry run was given, such as a parameter; None if runs have the array in their own memory.
    varies : bool
        Whether counts change where the array begins, its shape or its strides.
    """

    __slots__ = ("_array", "_dtype", "_ndim", "_numbers", "_rows", "outside", "varies")

    def __init__(self, slot, form, numbers):
        """`numbers` is the Affine of where the array begins in its slot, in bytes, its shape and its strides."""
        self.outside = slot.form if slot.is_outside else None
        self.varies, self._dtype, self._ndim = len(numbers.varying) > 0, form.dtype, form.ndim
        self._array = form if slot.is_outside else None
        self._numbers = numbers.constants.tolist()
        self._numbers[0] += 0 if slot.is_outside else slot.offset
        bases = numbers.bases + (0 if slot.is_outside else slot.offset) * (numbers.varying == 0)
        self._rows = list(zip(numbers.varying.tolist(), bases.tolist(), numbers.coefficients.tolist(), strict=True))

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
        begin = _address(array) + copy.shift - _address(copy.memory)
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
    shift = _address(memory) + start - low
    copy = np.ndarray(array.shape, array.dtype, memory, _address(array) + shift - _address(memory), array.strides)
    copy[...] = array
    copy.flags.writeable = array.flags.writeable
    return Copy(copy, memory, shift)


class Records:
    """The records of DryRuns that differ in counts alone, which run in `size` bytes of memory that `place` names.

    Parameters
    ----------
    dry_run : DryRun
    others : list of DryRun
    points : list of tuple of int
        The counts of `dry_run` and of each of `others`, which call the same kernels: a corner of a box of counts, then
        points that differ from it in one count each, then other points with all corners.  Records run in all the box.

    Raises
    ------
    Unbound
        If a word is not affine in the counts.

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

    def __init__(self, dry_run, others=(), points=((),)):
        self._points, all_runs = np.array(points, np.int64).reshape(1 + len(others), -1), [dry_run, *others]
        flat = np.array([_numbers_of(one) for one in all_runs], np.int64)
        found, wrong = fit(self._points, flat, np.array(list(map(_unread_of, all_runs))))
        letters = "".join("q" + call.letters for call in dry_run.calls)
        floats = (position for position in found.varying.tolist() if letters[position : position + 1] in ("d", "f"))
        if wrong is not None or (wrong := next(floats, None)) is not None:
            raise Unbound(_told(dry_run, wrong))
        self.size = _put_in_order(dry_run.slots, flat[:, len(flat[0]) - len(dry_run.slots) :].max(axis=0).tolist())
        self.names = tuple((call.name, call.letters) for call in dry_run.calls)
        self._constants = dry_run.constants
        self._kept = [dry_run.kept, [slot.form for slot in dry_run.slots if slot.is_outside]]
        self.outside, places, starts, end = [], [], [], 0
        for call in dry_run.calls:
            starts.append(end)
            for position, slot in call.slots.items():
                at = end + position
                if slot.is_outside:
                    self.outside.append((at, id(slot.form)))
                else:
                    places.append(at)
                shift = _address(slot.form) if slot.is_outside else slot.offset
                found.constants[at] += shift
                found.bases[found.varying == at] += shift
            end += len(call.words)
        self.words, self.starts, self.places = (
            found.part(0, end),
            np.array(starts, np.int64),
            np.array(places, np.int64),
        )
        self._prepare()

    def _prepare(self):
        """Make the block of words.  Its first record sets the words that vary."""
        varying = self.words.varying
        self.counts = np.zeros(self._points.shape[1], np.int64)
        self._words, self._bases = self.words.constants.copy(), self.words.bases.copy()
        self._places_that_vary = np.nonzero(np.isin(varying, self.places))[0]
        setting = DryRun()
        given = self._words, varying, self._bases, self.words.coefficients, self.counts
        setting.call(records.set_words, tuple(map(setting.around, given)))
        (first,) = setting.calls
        self._setting, self._given = np.array(first.words, np.int64), given
        letters = [first.letters, *(letters for _, letters in self.names)]
        self._trampolines = np.array(list(map(records.trampoline, letters)), np.int64)
        self._at = np.array([_address(self._setting), *(_address(self._words) + 8 * self.starts)], np.int64)

    def place(self, memory):
        """From now on, run in `memory`, an array of at least `size` bytes that begins at a cache line."""
        begin = _address(memory)
        self._words[self.places] = self.words.constants[self.places] + begin
        self._bases[self._places_that_vary] = self.words.bases[self._places_that_vary] + begin

    def run(self, copies=None):
        """Run all records for `counts`; return the number of the first whose kernel raised, or -1 if none did.

        copies: {id of an array outside of the memory of a run: the Copy that takes its place in this run}
        """
        if not copies:
            stopped = records.run_records(self._trampolines, self._at)
            return stopped - (stopped > 0)
        records.set_words(*self._given)
        words = self._words.copy()
        for position, outside in self.outside:
            if outside in copies:
                words[position] += copies[outside].shift
        return records.run_records(self._trampolines[1:], self._at[1:] + (_address(words) - _address(self._words)))

    def restore_constants(self):
        """Restore the constants that runs have changed; return whether there were any."""
        changed = [(array, content) for array, content in self._constants if array.tobytes() != content]
        for array, content in changed:
            array[...] = np.frombuffer(content, array.dtype).reshape(array.shape)
        return bool(changed)

    def place_of(self, *placeholders):
        """Return the Place of the array that a Placeholder of each dry run stands for."""
        first = placeholders[0]
        if len({(one.slot.is_outside, one.dtype, one.ndim) for one in placeholders}) > 1:
            raise Unbound("a result is another array for another size")
        found, wrong = _fit_views(self._points, placeholders)
        if wrong is not None or (first.slot.is_outside and len(found.varying)):
            raise Unbound("the shape of a result is not affine in the sizes of feeds")
        return Place(first.slot, first.form, found)


def _fit_views(points, placeholders):
    """Fit the first byte of each array in its slot, its shape and its strides."""
    forms = [one.form for one in placeholders]
    starts = [_address(one.form) - _address(one.slot.form) for one in placeholders]
    numbers = np.array([(start, *form.shape, *form.strides) for start, form in zip(starts, forms, strict=True)])
    unread = np.zeros(numbers.shape, bool)
    for row, form in zip(unread, forms, strict=True):
        row[_strides_unread(form, numbers.shape[1])] = True
    return fit(points, numbers, unread)


def _strides_unread(form, end):
    """Return the positions of strides along axes with one element, given where the strides of all axes end."""
    return [end - form.ndim + axis for axis, size in enumerate(form.shape) if size == 1]


def check_same_kernels(one, other):
    """Raise Unbound if two dry runs differ in more than numbers."""
    for (name, *its), (other_name, *others) in zip(_calls_of(one), _calls_of(other), strict=False):
        if (name, *its) != (other_name, *others):
            raise Unbound(f"another size calls kernel {other_name} in place of {name}, or with other arrays")
    counts = {(len(found.calls), len(found.slots)) for found in (one, other)}
    if len(counts) > 1 or not all(map(_is_same_slot, one.slots, other.slots)):
        raise Unbound("another size calls more kernels, or has other constants")


def _calls_of(dry_run):
    """Return the kernels, the types of their words, and which slots they use."""
    numbers = {id(slot): number for number, slot in enumerate(dry_run.slots)}
    return [
        (call.name, call.letters, [(at, numbers[id(slot)]) for at, slot in call.slots.items()])
        for call in dry_run.calls
    ]


def _is_same_slot(one, other):
    """Return whether slots of two dry runs are inside the memory of a run, or have one array, or equal constants."""
    if not (one.is_outside and other.is_outside):
        return one.is_outside == other.is_outside
    form, another = one.form, other.form
    about = [(array.shape, array.strides, array.dtype) for array in (form, another)]
    return form is another or (about[0] == about[1] and form.tobytes() == another.tobytes())


def _numbers_of(dry_run):
    """Return the words of all calls, addresses relative to their slots, and then the bytes of slots."""
    found: list[int] = []
    for call in dry_run.calls:
        begin = len(found)
        found += call.words
        for position, slot in call.slots.items():
            found[begin + position] -= _address(slot.form)
    return found + [slot.form.nbytes for slot in dry_run.slots]


def _unread_of(dry_run):
    """Return for each of the numbers that `_numbers_of` returns whether nobody reads it."""
    found: list[bool] = []
    for call in dry_run.calls:
        begin = len(found)
        found += [False] * len(call.words)
        for position in call.unread:
            found[begin + position] = True
    return found + [False] * len(dry_run.slots)


def _told(dry_run, position):
    """Return why the number at a position of `_numbers_of` is refused."""
    for call in dry_run.calls:
        if position < len(call.words):
            return f"kernel {call.name} gets a number (word {position}) that is not affine in the sizes of feeds"
        position -= len(call.words)
    return "the memory of a run is not affine in the sizes of feeds"


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


def _put_in_order(slots, sizes):
    """Set where each slot begins in the memory of a run, given its bytes; return how many bytes all take."""
    end = 0
    for slot, size in zip(slots, sizes, strict=True):
        if not slot.is_outside:
            slot.offset = end
            end += -(-size // CACHE_LINE) * CACHE_LINE
    return end


def _address(array):
    return array.__array_interface__["data"][0]
