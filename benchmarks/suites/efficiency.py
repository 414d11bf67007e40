"""How near a training step comes to the machine's multiply-add rate: ours alone is timed, round after round."""

import statistics

import numpy as np

from benchmarks import results
from benchmarks.engines import OURS
from benchmarks.measure import Patience
from benchmarks.quiet import undisturbed
from benchmarks.suites.layers import Point
from benchmarks.suites.recurrent import MAIN_SIZES, equal_and_lognormal

PATIENCE = Patience(least=15, most=15)
WITNESS = "torch padded"  # nobody is believed alone
COLUMNS = {"cell": 5, "B,D,H": 13, "lengths": 11, "rows": 8, "threads": 9, "ms": 8, "peak, GFLOP/s": 15}
COLUMNS |= {"of peak": 9, "of sgemm": 10, "lower quartile": 16, "upper quartile": 16, "rounds": 8}


def points(quick, threads):
    """Return the points: training at the main sizes, equal and lognormal lengths."""
    sizes = [("LSTM", 8, 32, 32)] if quick else [(cell, *size) for cell in ("LSTM", "GRU") for size in MAIN_SIZES]
    return [
        Point(case, threads, (OURS, WITNESS), ("training",), witnesses=(WITNESS,))
        for size in sizes
        for case in equal_and_lognormal(*size)
    ]


def cells(line):
    """Return the cells of a line: medians and quartiles of the rounds that count, and how many those are."""
    names = [line["cell"], ",".join(map(str, line["size"])), line["lengths"], line["rows"], line["threads"]]
    if "failed" in line:
        return [*names, *[None] * (len(COLUMNS) - len(names))]
    ours, shares = line["engines"][OURS], results.shares(line)
    spread, peak = [None, None], None
    if shares:  # lines of before the rate was measured have none
        peak = statistics.median(undisturbed(ours["multiply_add_rates"], ours["others"])) / 1e9
        spread = np.quantile(shares, (0.25, 0.75)).tolist()
    of = results.efficiency(line), results.efficiency(line, "sgemm_rates")
    return [*names, ours["seconds"] * 1e3, peak, *of, *spread, len(undisturbed(ours["rounds"], ours["others"]))]
