"""The timed lines of the README's table alone: they take minutes, so a new release of a peer is soon in the table."""

from benchmarks.engines import OURS, PEERS
from benchmarks.layers import Case
from benchmarks.lengths import equal, lognormal
from benchmarks.measure import Patience
from benchmarks.suites.layers import Point
from benchmarks.suites.recurrent import MAIN_SIZES, STEPS

PATIENCE = Patience(seconds=20.0, wait=30.0)


def points(quick, threads):
    """Return the points: LSTM and GRU of the first main size, and the LSTM on equal lengths."""
    if quick:
        return [_point("LSTM", (8, 32, 32), lognormal(8), "lognormal", threads)]
    size = MAIN_SIZES[0]
    return [
        _point("LSTM", size, lognormal(size[0]), "lognormal", threads, ("training", "inference")),
        _point("GRU", size, lognormal(size[0]), "lognormal", threads),
        _point("LSTM", size, equal(size[0], STEPS), "equal", threads),
    ]


def _point(cell, size, lengths, name, threads, modes=("training",)):
    return Point(Case(cell, *size[1:], lengths, name), threads, (OURS, *PEERS), modes)
