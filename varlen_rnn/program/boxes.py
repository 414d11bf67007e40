"""Sizes of batches, as counts, and the boxes of counts for which one binding holds.

Take two feeds, sequences of ids and a label for each sequence.  Four batches came:

    rows of ids    sequences    labels
    40             4            4
    25             3            3
    61             8            8
    25             5            5

Rows and sequences are free counts.  Labels are tied to sequences: their difference is 0 in all batches.  The box has
1 to 64 rows, and 1 to 8 sequences and labels.  If all batches had 8 sequences, the box would have only 8.

Counts of a box are at least 1, because operators take other ways without rows or without sequences.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

from varlen_rnn.rows.lod import NO_LOD, LoD, LoDTensor, levels_of

MOST_FREE = 4  # free counts of a box, which has 16 corners then
INSIDE = 1  # points inside a box, chosen at random, at which numbers are verified, besides corners

Counts = tuple[int, ...]


def measure(fed: Mapping[str, Any]) -> tuple[Any, Counts] | None:
    """Return the structure of a batch and its counts; None if a feed is no LoDTensor, or has positions.

    The structure has for each feed the number of axes, the number of levels, and which feed has its LoD.  The counts
    are, for each feed, its shape, and the number of sequences of each level that no earlier feed has.
    """
    structure: list[Any] = []
    counts: list[int] = []
    lods: list[LoD] = []
    for value in fed.values():
        if type(value) is not LoDTensor:
            return None
        shape, lod, like = value.shape, value.structure, None
        counts += shape
        if lod is not NO_LOD:
            if not lod.num_levels or lod.positions is not None or shape[0] != lod.num_rows:
                return None  # an array that does not fit its LoD is refused by operators
            like = lods.index(lod) if lod in lods else len(lods)
            if like == len(lods):
                counts += [len(level) - 1 for level in levels_of(lod)]
        lods.append(lod)
        structure.append((len(shape), lod.num_levels, like))
    return tuple(structure), tuple(counts)


def sizes_of(structure: Any, counts: Counts) -> list[tuple[Counts, Counts, int | None]]:
    """Return for each feed its shape, the numbers of sequences of its own levels, and which feed has its LoD."""
    left, found = iter(counts), []
    for number, (axes, levels, like) in enumerate(structure):
        shape = tuple(itertools.islice(left, axes))
        found.append((shape, tuple(itertools.islice(left, levels if like == number else 0)), like))
    return found


class Box:
    """The counts of batches for which one binding holds.

    Attributes
    ----------
    free : tuple of int
        Positions of the free counts.
    lowest, highest : tuple of int
        The least and the greatest number of each free count.
    """

    def __init__(self, form: Sequence[tuple[int, int | None]], free: Counts, lowest: Counts, highest: Counts) -> None:
        """`form` has for each count a number, and which free count is added to it, or None."""
        self._form, self.free, self.lowest, self.highest = tuple(form), free, lowest, highest
        self._ranges = list(zip(free, lowest, highest, strict=True))
        ties = [(position, number, which) for position, (number, which) in enumerate(form) if position not in free]
        self._equal = [(position, number) for position, number, which in ties if which is None]
        self._tied = [(position, number, free[which]) for position, number, which in ties if which is not None]

    def find(self, counts: Counts) -> Counts | None:
        """Return the free counts of a batch, or None if the batch is outside of the box."""
        for position, lowest, highest in self._ranges:
            if not lowest <= counts[position] <= highest:
                return None
        for position, number in self._equal:
            if counts[position] != number:
                return None
        for position, number, other in self._tied:
            if counts[position] != number + counts[other]:
                return None
        return tuple([counts[position] for position in self.free])

    def counts_at(self, free: Counts) -> Counts:
        """Return all counts of a batch with these free counts."""
        return tuple([number if which is None else number + free[which] for number, which in self._form])

    def points(self, inside: int = INSIDE) -> list[Counts]:
        """Return free counts: the highest corner, points that differ from it in one count, corners, and points inside.

        Points that differ in one count have no count of 1 if they can, because NumPy gives axes of one element other
        strides.  One point has counts as equal as they can be, because equal counts can be a condition.
        """
        lowest, highest, choose = self.lowest, self.highest, random.Random(0)
        found = [highest]
        for j, (low, high) in enumerate(zip(lowest, highest, strict=True)):
            found.append((*highest[:j], low + (low + 1 < high), *highest[j + 1 :]))
        found += itertools.product(*zip(lowest, highest, strict=True))
        equal = min(highest, default=0)
        found.append(tuple([max(equal, one) for one in lowest]))
        for _ in range(inside):
            found.append(tuple([choose.randint(*ends) for ends in zip(lowest, highest, strict=True)]))
        return list(dict.fromkeys(found))

    def parts(self, counts: Counts) -> list[Box]:
        """Return the box, and then smaller ones around a batch, in which one free count or all at most double."""
        free = [counts[position] for position in self.free]
        which = [{j} for j in range(len(free))] + [set(range(len(free)))] * (len(free) > 1)
        return [self, *(self._octave(free, some) for some in which)]

    def _octave(self, free: Sequence[int], which: set[int]) -> Box:
        ends = list(zip(self.lowest, self.highest, strict=True))
        for j in which:
            high = max(2, _power_above(free[j]))
            ends[j] = max(ends[j][0], high // 2 + (high > 2)), high
        return self.between(*zip(*ends, strict=True))

    def between(self, lowest: Counts, highest: Counts) -> Box:
        """Return the box of batches of the same form with other least and greatest free counts."""
        return Box(self._form, self.free, lowest, highest)

    def covers(self, other: Box) -> bool:
        """Return whether all batches of another box are in this one."""
        corners = other.counts_at(other.lowest), other.counts_at(other.highest)
        return set(other.free) <= set(self.free) and all(self.find(corner) is not None for corner in corners)


def box_of(counts: Counts) -> Box:
    """Return the box that has only batches with these counts."""
    return Box([(count, None) for count in counts], (), (), ())


def box_around(seen: Sequence[Counts]) -> Box | None:
    """Return a box around the counts of batches that came; None if too many counts are free, or none is."""
    first, free = seen[0], list[int]()
    form: list[tuple[int, int | None]] = []
    for position, number in enumerate(first):
        if len({counts[position] for counts in seen}) == 1:
            form.append((number, None))
            continue
        shifts = [{counts[position] - counts[other] for counts in seen} for other in free]
        which = next((j for j, shift in enumerate(shifts) if len(shift) == 1), None)
        if which is None:
            which, shifts = len(free), [*shifts, {0}]
            free.append(position)
        form.append((min(shifts[which]), which))
    if not 0 < len(free) <= MOST_FREE:
        return None
    highest = tuple([_power_above(max(counts[position] for counts in seen)) for position in free])
    lowest = tuple([max(1, *(1 - number for number, which in form if which == j)) for j in range(len(free))])
    found = Box(form, tuple(free), lowest, highest)
    return found if all(low < high for low, high in zip(lowest, highest, strict=True)) else None


def _power_above(number: int) -> int:
    """Return the least power of two that is not below a number of at least 1."""
    return 1 << max(0, number - 1).bit_length()
