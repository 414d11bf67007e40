"""The timed lines of the README's table alone: they take minutes, so a new release of a peer is soon in the table."""

from benchmarks.engines import OURS, PEERS
from benchmarks.layers import Case
from benchmarks.lengths import equal, lognormal
from benchmarks.suites.layers import Point
from benchmarks.suites.recurrent import MAIN_SIZES, STEPS


def points(quick, threads):
    """Return the points: an LSTM of the first size, the same on equal lengths, and a GRU of the last size."""
    if quick:
        return [_point("LSTM", (8, 32, 32), lognormal(8), "lognormal", threads)]
    first, last = MAIN_SIZES[0], MAIN_SIZES[-1]
    return [
        _point("LSTM", first, lognormal(first[0]), "lognormal", threads, ("training", "inference")),
        _point("LSTM", first, equal(first[0], STEPS), "equal", threads),
        _point("GRU", last, lognormal(last[0]), "lognormal", threads),
    ]


def _point(cell, size, lengths, name, threads, modes=("training",)):
    return Point(Case(cell, *size[1:], lengths, name), threads, (OURS, *PEERS), modes)
