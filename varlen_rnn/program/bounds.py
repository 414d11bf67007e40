"""Which sizes of batches are bound, and when: boxes of counts first, and otherwise single sizes that come again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from varlen_rnn.program.boxes import Box, Counts, box_around, box_of
from varlen_rnn.program.replay import Bound, Ran
from varlen_rnn.program.search import Search
from varlen_rnn.runtime.placeholder import Unbound

_MOST_SIZES = 1024  # sizes of batches whose records are kept
_MOST_REFUSALS = 4  # sizes without records, beyond the number of runs by records, after which no more are tried
_MOST_WAYS = 8  # lists of kernels; a program that takes another way at each size is not worth binding
_MOST_BYTES = 2**26  # of the memory of a run: larger batches spend their time in kernels
_DRY_RUNS = 8  # dry runs of single sizes that are always allowed
_RUNS_EACH = 256  # runs by operators that allow one more dry run, so that dry runs take less than a tenth of their time
_RECORDS_EACH = 32  # runs by records that allow one more dry run, so that dry runs take less than they have saved
_OFTEN = 32  # times that a size comes after which its dry run is allowed in any case
_MOST_BOXES = 8  # boxes whose records are kept
_LEAST_SEEN = 3  # sizes that come before a box is made, so that few counts are tied by accident
_BOXES = 2  # attempts to bind a box that are always allowed
_RUNS_PER_BOX = 128  # runs that allow one more attempt

Size = tuple[Any, Counts]  # the structure of a batch, and its counts, as `measure` returns them
DryRunAt = Callable[[Any, Counts], Ran]


class Bounds:
    """The boxes and the single sizes of one program's batches that have records, and those that were refused.

    Attributes
    ----------
    refusal : str or None
        Why the last size that was tried has no records; None if it has them, or none was tried.
    others : int
        How many runs were made by operators.
    is_given_up : bool
        Whether no more sizes are tried, because too many were refused.
    """

    def __init__(self) -> None:
        self.refusal: str | None = None
        self.others, self.is_given_up = 0, False
        self._refusals = self._dry_runs = self._boxes_tried = 0
        self._sizes: dict[Size, Bound | str] = {}
        self._boxes: list[tuple[Any, Bound]] = []  # pairs of a structure and its Bound, the last used first
        self._searches: dict[Any, Search] = {}  # {a structure: the dry runs in its boxes}
        self._without: dict[Any, str] = {}  # {a structure whose boxes are not tried again: why}
        self._ways: set[Any] = set()
        self._seen: dict[Size, int] = {}  # {a size without records: how many times it came}

    def see(self, size: Size | None) -> int:
        """Note that a batch came whose size is not bound; return how many times it came."""
        if size is None:
            return 0
        if len(self._seen) >= 4 * _MOST_SIZES:
            self._seen.clear()
        times = self._seen[size] = self._seen.get(size, 0) + 1
        return times

    def forget(self, seen: bool = False) -> None:
        """Forget all records, because parameters are other arrays; also which sizes came, if `seen`."""
        self._sizes, self._boxes, self._searches, self._without = {}, [], {}, {}
        if seen:
            self._seen.clear()

    def find(self, size: Size) -> tuple[Bound, Counts] | None:
        """Return the Bound of a size, and its free counts; None if there is none."""
        structure, counts = size
        for number, (its_structure, bound) in enumerate(self._boxes):
            if its_structure == structure and (free := bound.box.find(counts)) is not None:
                if number:
                    self._boxes = [self._boxes[number], *self._boxes[:number], *self._boxes[number + 1 :]]
                return bound, free
        found = self._sizes.get(size)
        if isinstance(found, str):
            self.refusal = found
        return (found, ()) if isinstance(found, Bound) else None

    def bind(self, size: Size, dry_run: DryRunAt, runs: int) -> tuple[Bound, Counts] | None:
        """Bind a size without records, if dry runs are worth their time; return its Bound and free counts, or None.

        `runs` is the number of runs that were made by records.
        """
        times, (structure, counts) = self.see(size), size
        if size in self._sizes:
            return None
        if all(counts) and structure not in self._without:
            if self._boxes_tried < _BOXES + (runs + self.others) // _RUNS_PER_BOX:
                self._bind_box(structure, counts, dry_run)
        allowed = _DRY_RUNS + self.others // _RUNS_EACH + runs // _RECORDS_EACH
        found = self.find(size)
        if found is None and times > 1 and (times > _OFTEN or self._dry_runs < allowed):
            self._bind_size(size, dry_run, runs)
            found = self.find(size)
        return found

    def _bind_box(self, structure: Any, counts: Counts, dry_run: DryRunAt) -> None:
        """Bind a box around all sizes that came, or else a part of it around `counts`."""
        seen = [
            its_counts
            for its_structure, its_counts in list(self._seen)
            if its_structure == structure and all(its_counts)
        ]
        if len(seen) < _LEAST_SEEN:
            return
        for its_structure, bound in self._boxes:
            if its_structure == structure:
                seen += [bound.box.counts_at(bound.box.lowest), bound.box.counts_at(bound.box.highest)]
        box = box_around(seen)
        if box is None:
            return
        self._boxes_tried += 1
        for part in box.parts(counts):
            try:
                bound = self._made(structure, part, dry_run)
            except Unbound as error:
                refusal = str(error)
                continue
            self._boxes = [one for one in self._boxes if one[0] != structure or not part.covers(one[1].box)]
            self._boxes = [(structure, bound), *self._boxes[: _MOST_BOXES - 1]]
            return
        self._without[structure] = self.refusal = refusal

    def _made(self, structure: Any, box: Box, dry_run: DryRunAt) -> Bound:
        """Return the Bound of a box; raise Unbound if there is none."""
        search = self._searches.setdefault(structure, Search()) if box.free else Search()
        bound = Bound(box, *search.fit(box, functools.partial(dry_run, structure)))
        if bound.records.size > _MOST_BYTES:
            raise Unbound(f"a run takes {bound.records.size} bytes, more than {_MOST_BYTES}")
        return bound

    def _bind_size(self, size: Size, dry_run: DryRunAt, runs: int) -> None:
        if len(self._sizes) >= _MOST_SIZES:
            oldest = next(iter(self._sizes))
            del self._sizes[oldest]
            self._seen.pop(oldest, None)  # so that sizes do not replace each other at each run
        self._dry_runs += 1
        structure, counts = size
        try:
            bound = self._made(structure, box_of(counts), dry_run)
            self._ways.add(bound.records.names)
            if len(self._ways) > _MOST_WAYS:
                raise Unbound(f"more than {_MOST_WAYS} lists of kernels")
            self._sizes[size] = bound
        except Unbound as error:
            self._sizes[size] = self.refusal = str(error)
            self._refusals += 1
            self.is_given_up = self._refusals > _MOST_REFUSALS + runs
