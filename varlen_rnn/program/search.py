"""Dry runs at points of boxes, and the numbers that they have in common.

Take a box of 1 to 64 rows.  Dry runs at 64, 2 and 1 rows, and at some rows between them, must call the same kernels.
`fit_notes` finds the numbers of all rows from the runs at 64 and at 2 rows, and verifies them at the others.
"""

from __future__ import annotations

from collections.abc import Callable

from varlen_rnn.program.boxes import INSIDE, Box, Counts
from varlen_rnn.program.replay import Ran
from varlen_rnn.runtime.affine import Affine
from varlen_rnn.runtime.notes import Notes, fit_notes
from varlen_rnn.runtime.placeholder import Unbound


class Search:
    """Makes dry runs of one program, and keeps their Notes, because boxes share points.

    `inside` is the number of points inside each box at which numbers are verified.
    """

    def __init__(self, inside: int = INSIDE) -> None:
        self._inside = inside
        self._found: dict[Counts, Notes | str] = {}  # by the counts of a batch; a text says why there is no run

    def fit(self, box: Box, dry_run: Callable[[Counts], Ran]) -> tuple[Ran, Affine]:
        """Return a dry run in a box, and the Affine of the numbers of all of them; raise Unbound if there is none.

        `dry_run(counts)` makes a dry run for the counts of a batch.
        """
        points, ran = box.points(self._inside), None
        highest = box.counts_at(points[0])
        if highest not in self._found:
            ran = self._run(highest, dry_run)
        first = self._notes(highest, dry_run)
        for point in [box.lowest, *points]:  # the lowest corner differs most from the highest
            first.check_same(self._notes(box.counts_at(point), dry_run))
        numbers = fit_notes(points, [self._notes(box.counts_at(point), dry_run) for point in points])
        return ran or dry_run(highest), numbers

    def _notes(self, counts: Counts, dry_run: Callable[[Counts], Ran]) -> Notes:
        if counts not in self._found:
            self._run(counts, dry_run)
        found = self._found[counts]
        if isinstance(found, str):
            raise Unbound(found)
        return found

    def _run(self, counts: Counts, dry_run: Callable[[Counts], Ran]) -> Ran | None:
        try:
            ran = dry_run(counts)
            self._found[counts] = ran.notes()
        except Unbound as error:
            self._found[counts] = str(error)
            return None
        return ran
