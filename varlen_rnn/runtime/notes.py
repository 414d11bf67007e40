"""Notes of dry runs: calls of kernels, which are equal for all sizes in a box, and numbers, which are affine in sizes.

Take a dry run that calls `scale_cpu(x, 2.0, y)` for 9 rows, and another one for 5 rows.  Both Notes have one call of
`scale_cpu`, with `x` and `y` in the slots 0 and 1.  Their numbers differ: a slot has 72 bytes in the first and 40 in
the second.  `fit_notes` finds that a slot has 8 bytes a row.
"""

from typing import Any

import numpy as np

from varlen_rnn.runtime.affine import fit
from varlen_rnn.runtime.memory import address_of
from varlen_rnn.runtime.placeholder import Placeholder, Unbound


class Notes:
    """The calls of a dry run, and their numbers, without the memory of the run.

    Parameters
    ----------
    dry_run : DryRun
    arrays : list of array
        Placeholders whose places are wanted, or ordinary arrays, which must be equal for all sizes.
    about : object
        Whatever else must be equal for all sizes.

    Attributes
    ----------
    numbers : (n,) array of int64
        The words of all calls, then the bytes of slots, then, for each Placeholder, its distance from the begin of its
        slot, in bytes, its shape and its strides.
    unread : list of int
        Positions of numbers that nobody reads: strides along axes with one element.
    sizes : int
        Where the bytes of slots begin.
    places : list of (int, int) or None
        For each of the arrays, where its numbers begin and end; None for an ordinary array.
    """

    def __init__(self, dry_run, arrays=(), about=None):
        which = {id(slot): number for number, slot in enumerate(dry_run.slots)}
        numbers: list[int] = []
        self.places: list[Any] = []
        self.unread, self.calls, self.arrays = [], [], []
        for call in dry_run.calls:
            begin = len(numbers)
            numbers += call.words
            self.unread += [begin + position for position in call.unread]
            slots = [(position, which[id(slot)]) for position, slot in call.slots.items()]
            self.calls.append((call.name, call.letters, slots, call.operator))
        self.slots, self.about = [slot.form if slot.is_outside else None for slot in dry_run.slots], about
        self.sizes = len(numbers)
        numbers += [slot.form.nbytes for slot in dry_run.slots]
        for array in arrays:
            is_placeholder, begin = type(array) is Placeholder, len(numbers)
            if is_placeholder:
                numbers += [address_of(array.form) - array.slot.address, *array.shape, *array.strides]
                self.unread += strides_unread(array.form, len(numbers))
            self.places.append((begin, len(numbers)) if is_placeholder else None)
            content = which[id(array.slot)] if is_placeholder else (array.shape, array.tobytes())
            self.arrays.append((content, array.dtype, array.ndim))
        self.numbers = np.array(numbers, np.int64)

    def check_same(self, other):
        """Raise Unbound if the notes of another size differ in more than numbers."""
        for one, another in zip(self.calls, other.calls, strict=False):
            if one != another:
                got = f"another size calls kernel {another[0]} in place of {one[0]}, or with other arrays"
                raise Unbound(_by(one[3], got))
        sizes = {(len(notes.calls), len(notes.slots)) for notes in (self, other)}
        if len(sizes) > 1 or not all(map(_is_same_slot, self.slots, other.slots)):
            raise Unbound("another size calls more kernels, or has other constants")
        if (self.about, self.arrays) != (other.about, other.arrays):
            raise Unbound("a result is another array, has another LoD, or follows from the sizes of feeds alone")

    def why(self, position):
        """Return why the number at a position is refused."""
        for name, letters, _, operator in self.calls:
            if position <= len(letters):
                got = f"kernel {name} gets a number (word {position}) that is not affine in the sizes of feeds"
                return _by(operator, got)
            position -= 1 + len(letters)
        what = "the memory of a run" if position < len(self.slots) else "the shape of a result"
        return f"{what} is not affine in the sizes of feeds"


def fit_notes(points, notes):
    """Return the Affine of the numbers of Notes at points of a box; raise Unbound if there is none.

    points: a list of tuples of counts, as `fit` takes them
    """
    first, *others = notes
    for other in others:
        first.check_same(other)
    unread = np.zeros((len(notes), len(first.numbers)), bool)
    for row, one in zip(unread, notes, strict=True):
        row[one.unread] = True
    points = np.array(points, np.int64).reshape(len(notes), -1)
    found, wrong = fit(points, np.array([one.numbers for one in notes]), unread)
    letters = "".join("q" + call[1] for call in first.calls)
    floats = (position for position in found.varying.tolist() if letters[position : position + 1] in ("d", "f"))
    if wrong is None:
        wrong = next(floats, None)
    if wrong is not None:
        raise Unbound(first.why(wrong))
    return found


def strides_unread(form, end):
    """Return the positions of strides along axes with one element, given where the strides of all axes end."""
    shape = form.shape
    return [end - len(shape) + axis for axis, size in enumerate(shape) if size == 1] if 1 in shape else []


def _by(operator, text):
    return text if operator is None else f"operator {operator!r}: {text}"


def _is_same_slot(form, another):
    """Return whether slots of two dry runs are inside the memory of a run, or have one array, or equal constants."""
    if form is another or form is None or another is None:
        return form is another
    about = [(array.shape, array.strides, array.dtype) for array in (form, another)]
    return about[0] == about[1] and form.tobytes() == another.tobytes()
