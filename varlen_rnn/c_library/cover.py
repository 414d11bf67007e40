"""Boxes of counts that cover all batches of a C library.

For example, an LSTM of 32 units has the word `32 * rows` in the box of 1 to 65536 rows and 1 to 4096 sequences.  A
batch without rows takes other kernels, so it is in another box.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

from varlen_rnn.program.boxes import Box, Counts
from varlen_rnn.program.replay import Ran
from varlen_rnn.program.search import Search
from varlen_rnn.runtime.affine import Affine
from varlen_rnn.runtime.placeholder import Unbound

_MOST_BOXES = 64
_INSIDE = 8  # points inside each box at which numbers are verified, because no run of C is compared with the operators


class Part(NamedTuple):
    """A box, a dry run in it, and the numbers of the Notes of dry runs in it."""

    box: Box
    ran: Ran
    numbers: Affine


def cover(whole: Box, dry_run: Callable[[Counts], Ran]) -> Iterator[Part]:
    """Yield the Parts of a box whose least counts are 0.

    `dry_run(counts)` makes a dry run for the counts of a batch.  Raise Unbound if an operator refuses some counts, or
    if too many boxes were needed.  Counts with a zero are left out if an operator refuses them when all others are 1.
    """
    parts = _Parts(dry_run)
    todo = []
    for zeros in itertools.product((True, False), repeat=len(whole.highest)):
        low = tuple(0 if zero else 1 for zero in zeros)
        if not any(zeros) or parts.at(whole.between(low, low)) is not None:
            high = tuple(0 if zero else most for zero, most in zip(zeros, whole.highest, strict=True))
            todo.append(whole.between(low, high))
    made = 0
    while todo:
        box = todo.pop()
        if (part := parts.at(box)) is not None:
            yield part
            made += 1
        elif box.lowest == box.highest or made + len(todo) > _MOST_BOXES:
            raise Unbound(parts.refusal)
        else:
            todo += parts.halves(box)


class _Parts:
    """Makes Parts; `refusal` says why the last one was refused."""

    def __init__(self, dry_run: Callable[[Counts], Ran]) -> None:
        self._dry_run, self._search, self.refusal = dry_run, Search(_INSIDE), ""

    def at(self, box: Box) -> Part | None:
        """Return the Part of a box, or None if a dry run in it is refused or has other words."""
        try:
            return Part(box, *self._search.fit(box, self._dry_run))
        except Unbound as error:
            self.refusal = str(error)
            return None

    def halves(self, box: Box) -> tuple[Box, Box]:
        """Return two boxes, cut at the count from which on the words of the lowest corner do not hold."""
        low, high = box.lowest, box.highest
        axes = sorted(range(len(low)), key=lambda axis: low[axis] - high[axis])
        ends = ((axis, self._end(box, axis)) for axis in axes)
        middle = axes[0], (low[axes[0]] + high[axes[0]]) // 2
        axis, end = next((one for one in ends if one[1] < high[one[0]]), middle)
        return box.between(_with(low, axis, end + 1), high), box.between(low, _with(high, axis, end))

    def _end(self, box: Box, axis: int) -> int:
        """Return the last count along an axis, from the lowest corner on, up to which the same words hold."""
        good, bad = box.lowest[axis], box.highest[axis] + 1
        while bad - good > 1:
            middle = (good + bad) // 2
            is_good = self.at(box.between(box.lowest, _with(box.lowest, axis, middle))) is not None
            good, bad = (middle, bad) if is_good else (good, middle)
        return good


def _with(point: Counts, axis: int, count: int) -> Counts:
    return (*point[:axis], count, *point[axis + 1 :])
