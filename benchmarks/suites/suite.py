"""What a suite is."""

from collections.abc import Callable
from typing import NamedTuple

from benchmarks.measure import Patience


class Suite(NamedTuple):
    """A list of points, each of which gives some lines of results.

    Attributes
    ----------
    points : callable(quick, threads) -> list
        Each point tells in `str` what it is.
    run : callable(point, patience) -> list of dict
        The lines of a point.
    columns : dict
        Width of each column by its heading.
    cells : callable(line) -> list
        The cells of a line, one per column.
    patience : Patience
        Of a full run.
    """

    points: Callable
    run: Callable
    columns: dict
    cells: Callable
    patience: Patience = Patience()
