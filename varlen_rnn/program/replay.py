"""Run the records of a program for the sizes of batches in a box: lend the feeds, run the records, return the fetches.

Records read a feed where it is.  They write a fetch of a fixed shape, such as a gradient, to an array that the caller
gets (`loans`).  Other fetches are copied out of the memory of the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from varlen_rnn import random
from varlen_rnn.program.boxes import Box
from varlen_rnn.program.loans import Form, Loans
from varlen_rnn.rows.checks import read_only
from varlen_rnn.rows.lod import NO_LOD, LoD, LoDTensor, levels_of, rows_of
from varlen_rnn.rows.selected_rows import SelectedRows
from varlen_rnn.runtime.affine import Affine
from varlen_rnn.runtime.dry_run import Copy, DryRun, Place, Records
from varlen_rnn.runtime.forms import PLAIN
from varlen_rnn.runtime.memory import address_of
from varlen_rnn.runtime.notes import Notes
from varlen_rnn.runtime.placeholder import Placeholder, Slot
from varlen_rnn.tape.values import plain


class Ran(NamedTuple):
    """What a dry run of a program leaves.

    fed: the array of each feed, and its own levels
    lods: the names of feeds, by the id of their LoD
    fetches: the value of each fetch; its arrays are Placeholders, or ordinary arrays that depend on sizes alone
    first_update: how many calls of kernels came before the first operator that updates a persistable
    draws: how many random operations a run has
    """

    dry_run: DryRun
    fed: dict[str, tuple[Any, list[Any]]]
    lods: dict[int, str]
    fetches: list[LoDTensor | SelectedRows]
    first_update: int
    draws: int

    def groups(self) -> list[Sequence[Any]]:
        """Return the arrays of each feed, the array that identifies draws, and the arrays of each fetch."""
        drawn = [] if self.dry_run.drawn is None else [self.dry_run.drawn]
        of_feeds = [(rows, *levels) for rows, levels in self.fed.values()]
        return [*of_feeds, drawn, *(_parts_of(value, self.lods)[0] for value in self.fetches)]

    def notes(self) -> Notes:
        """Return the Notes of the run, which have the arrays of all groups."""
        lengths = [len(group) for group in self.groups()]
        about = lengths, self.first_update, self.draws, [_parts_of(value, self.lods)[1:] for value in self.fetches]
        return Notes(self.dry_run, [array for group in self.groups() for array in group], about)


class Fetch(NamedTuple):
    """What a run leaves for a fetch.

    arrays: the Places of its rows or values, and then of the levels of its own LoD, or of the listed rows; an ordinary
        array depends on sizes alone
    lod: the name of the feed whose LoD it has, or None
    height: of SelectedRows, otherwise None
    """

    arrays: tuple[Place | np.ndarray, ...]
    lod: str | None
    height: int | None

    def made(self, arrays: list[np.ndarray], fed: Mapping[str, LoDTensor]) -> Any:
        """Return the value of new arrays."""
        first, *others = arrays
        if self.height is None:
            if self.lod is None and not others:
                return first
            own = LoD.trusted(map(read_only, others)) if others else NO_LOD
            return plain(LoDTensor.wrap(first, own if self.lod is None else fed[self.lod].structure))
        rows = others[0]
        is_listed = rows >= 0  # the others are there because a dry run cannot know how many rows are listed
        if not is_listed.all():
            rows, first = rows[is_listed], first[is_listed]
        return SelectedRows.wrap(rows, first, self.height)


def _parts_of(value: LoDTensor | SelectedRows, lods: dict[int, str]) -> tuple[tuple[Any, ...], str | None, int | None]:
    """Return the arrays of a fetch, in the order of `Fetch.arrays`, the feed that has its LoD, and its height."""
    if isinstance(value, SelectedRows):
        return (value.value, value.rows), None, value.height
    lod = lods.get(id(value.structure))
    return (rows_of(value), *(levels_of(value.structure) if lod is None else ())), lod, None


class Bound:
    """The records of a program for a box of sizes.

    Parameters
    ----------
    box : Box
    ran : Ran
        A dry run at one of its points.
    numbers : Affine
        The numbers of the Notes of dry runs in the box.

    Raises
    ------
    Unbound
        If a result is a part of a parameter that depends on the counts.
    """

    def __init__(self, box: Box, ran: Ran, numbers: Affine) -> None:
        self.box, self.first_update, self.draws = box, ran.first_update, ran.draws
        groups, names, found = ran.groups(), list(ran.fed), list[tuple[Any, ...]]()
        first = len(names) + 1  # the group of the first fetch
        feeds, slots = _lent_feeds(groups, len(names)), _lent_fetches(groups, first, ran, numbers)
        kept = [array for group in groups for array in group if type(array) is Placeholder]
        lent = [array.slot for number in feeds for array in groups[number]]
        self.records = Records(ran.dry_run, numbers, box.points(), kept, [*lent, *slots])
        places = iter(ran.notes().places)
        for group in groups:
            pairs = zip(group, places, strict=False)
            found.append(tuple([self._place_of(array, numbers, place) for array, place in pairs]))
        # The places of each feed that is copied: of its rows, and of each level that is its own.
        self._copied = {name: found[number] for number, name in enumerate(names) if number not in feeds}
        self._lent = [(names[number], len(groups[number]) > 1) for number in feeds]
        self._drawn, parts = found[first - 1], [_parts_of(value, ran.lods)[1:] for value in ran.fetches]
        self._fetches = [Fetch(arrays, *about) for arrays, about in zip(found[first:], parts, strict=True)]
        self._loans = Loans(
            [_form_of(groups[which[0]][0]) for which in slots.values()],
            lambda number, memory: self.records.lend(len(lent) + number, memory),
        )
        # For each fetch, the number of its loan, and whether an earlier fetch has the same; None if it has no loan.
        self._loan_of: list[Any] = [None] * len(self._fetches)
        for number, which in enumerate(slots.values()):
            for which_group in which:
                self._loan_of[which_group - first] = number, which_group > which[0]
        # As in most training steps, so that results take a fraction of the time.
        self._are_loans = None not in self._loan_of and all(fetch.lod is None for fetch in self._fetches)
        self.copies_feeds = bool(self._copied)
        self.is_compared = False  # whether a run was compared with the operators
        self._memory: np.ndarray | None = None
        self._counts: Any = None

    def _place_of(self, array: Any, numbers: Affine, place: tuple[int, int] | None) -> Place | np.ndarray:
        return array.copy() if place is None else self.records.place_of(array, numbers.part(*place))

    def place(self, memory: np.ndarray, counts: tuple[int, ...]) -> None:
        """From now on, run in `memory`, on batches whose free counts are `counts`."""
        if memory is not self._memory:
            self._counts = self._memory = None  # in case of an interrupt
            self.records.place(memory)
            inputs = {name: _views(places, memory, counts) for name, places in self._copied.items()}
            self._draw = _views(self._drawn, memory, counts)
            self._outputs = [
                _views(fetch.arrays, memory, counts) if loan is None else []
                for fetch, loan in zip(self._fetches, self._loan_of, strict=True)
            ]
            pairs = [*zip(inputs.values(), self._copied.values(), strict=True)]
            pairs += [(arrays, fetch.arrays) for arrays, fetch in zip(self._outputs, self._fetches, strict=True)]
            self._inputs, self._varying = list(inputs.items()), []
            for arrays, places in pairs:
                for number, place in enumerate(places):
                    if type(place) is Place and place.varies:
                        which, most = place.rows, place.view(memory, self.box.highest)
                        self._varying.append((arrays, number, place, which, most))
            self._memory = memory
        if counts != self._counts:
            self._counts = None
            self.records.set_counts(counts)
            for arrays, number, place, which, most in self._varying:
                # A slice takes a fifth of the time of a new array.
                arrays[number] = place.view(memory, counts) if which is None else most[: which[0] + counts[which[1]]]
            self._counts = counts

    def run(self, fed: Mapping[str, LoDTensor], copies: Mapping[int, Copy] | None = None) -> int:
        """Run the records on the feeds; return the number of the record that failed, or -1.

        copies: as `Records.run` takes it
        """
        for array in self._draw:
            array[:] = random.upcoming()
        for name, arrays in self._inputs:
            value = fed[name]
            arrays[0][...] = rows_of(value)
            if len(arrays) > 1:
                for target, level in zip(arrays[1:], levels_of(value.structure), strict=True):
                    target[...] = level
        number, lend, copied = 0, self.records.lend, []  # copies live until the run ends
        for name, has_levels in self._lent:
            value = fed[name]
            rows = rows_of(value)
            if rows.flags.num & PLAIN != PLAIN:
                rows = rows.copy()
                copied.append(rows)
            lend(number, rows)
            number += 1
            if has_levels:
                for level in levels_of(value.structure):
                    lend(number, level)
                    number += 1
        self._loans.renew()
        return self.records.run(copies)

    def results(self, fed: Mapping[str, LoDTensor], copies: Mapping[int, Copy] | None = None) -> list[Any]:
        """Return the fetches of the last run, which had the same arguments, as the Executor returns them."""
        loans, outputs = self._loans.arrays, self._outputs
        if self._are_loans:
            return [loans[number].copy() if is_again else loans[number] for number, is_again in self._loan_of]
        if copies:
            outputs = [
                [place.view_of_copy(copies[id(place.outside)])
                 if type(place) is Place and id(place.outside) in copies else array
                 for array, place in zip(arrays, fetch.arrays, strict=False)]
                for arrays, fetch in zip(outputs, self._fetches, strict=True)
            ]  # fmt: skip
        found: list[Any] = []
        for fetch, arrays, loan in zip(self._fetches, outputs, self._loan_of, strict=True):
            if loan is not None:
                number, is_again = loan
                arrays = [loans[number].copy() if is_again else loans[number]]
                if fetch.lod is None:
                    found += arrays
                    continue
            found.append(fetch.made(list(map(np.array, arrays)) if loan is None else arrays, fed))
        return found


def _form_of(array: Placeholder) -> Form:
    """Return the Form of an array in its slot."""
    return Form(array.slot.form.nbytes, address_of(array.form) - array.slot.address, array.shape, array.dtype)


def _lent_feeds(groups: Sequence[Sequence[Any]], count: int) -> list[int]:
    """Return which of the first `count` groups, the feeds, have arrays that no other group shares."""
    uses = Counter(array.slot for group in groups for array in group if type(array) is Placeholder)
    return [number for number in range(count) if all(uses[array.slot] == 1 for array in groups[number])]


def _lent_fetches(groups: Sequence[Sequence[Any]], first: int, ran: Ran, numbers: Affine) -> dict[Slot, list[int]]:
    """Return the slots that a run writes to lent memory, and which of the groups, the fetches from `first` on, have it.

    Such a slot has one size in all runs.  All groups that have it are one array, in one place.
    """
    notes, varying = ran.notes(), set[Any](numbers.varying.tolist())
    found: dict[Slot, list[int]] = {}
    forms: dict[Slot, set[Any]] = {}
    which = [number for number, group in enumerate(groups) for _ in group]
    arrays = [array for group in groups for array in group]
    contents: list[Any] = [content for content, *_ in notes.arrays]
    for number, array, place, content in zip(which, arrays, notes.places, contents, strict=True):
        if place is not None:
            form: Any = address_of(array.form), array.shape, array.dtype
            is_plain = number >= first and len(groups[number]) == 1 and array.form.flags.c_contiguous
            if array.slot.is_outside or not (is_plain and varying.isdisjoint((notes.sizes + content, *range(*place)))):
                form = None
            forms.setdefault(array.slot, set()).add(form)
            found.setdefault(array.slot, []).append(number)
    return {slot: numbers for slot, numbers in found.items() if len(forms[slot]) == 1 and None not in forms[slot]}


def _views(places: Sequence[Place | np.ndarray], memory: np.ndarray, counts: tuple[int, ...]) -> list[Any]:
    return [place.view(memory, counts) if type(place) is Place else place for place in places]
