"""Work so small that calls, not products, take the time."""

from benchmarks.layers import Case
from benchmarks.lengths import equal
from benchmarks.suites.layers import Point

TINY = equal(4, 5)
WIDTH = 32


def points(quick, threads):
    """Return the points: 4 sequences of 5 steps, and about as many rows of unequal lengths, on 32 units."""
    cases = [Case("LSTM", WIDTH, WIDTH, TINY, "equal")]
    if not quick:
        cases += [Case(cell, WIDTH, WIDTH, TINY, "equal") for cell in ("GRU", "RNN")]
        cases += [Case(cell, WIDTH, WIDTH, (2, 9, 6, 4), "ragged") for cell in ("LSTM", "GRU", "RNN")]
    return [Point(case, threads) for case in cases]
