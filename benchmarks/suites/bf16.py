"""One layer with products in bfloat16, beside float32 and PyTorch's bfloat16."""

from benchmarks import results
from benchmarks.engines import BFLOAT16, OF_BFLOAT16, OURS, PYTORCH
from benchmarks.measure import Patience
from benchmarks.suites import layers
from benchmarks.suites.layers import Point
from benchmarks.suites.recurrent import MAIN_SIZES, equal_and_lognormal

PATIENCE = Patience(least=3, most=5, seconds=4.0, wait=1.0)
ON_EQUAL = (OURS, *OF_BFLOAT16, *PYTORCH)
ON_RAGGED = (OURS, BFLOAT16, "torch padded bfloat16", "torch groups bfloat16")  # packed ones take seconds a step
PEERS = [engine for engine in (*PYTORCH, *OF_BFLOAT16, "torch groups bfloat16") if engine != BFLOAT16]
COLUMNS = {"cell": 5, "B,D,H": 13, "lengths": 11, "mode": 10, "threads": 8, "float32, ms": 12, "bfloat16, ms": 13}
COLUMNS |= {"of float32": 11} | {engine: len(engine) + 2 for engine in PEERS}


def points(quick, threads):
    """Return the points: an LSTM on equal and lognormal lengths, on one thread and on all."""
    if quick:
        return [Point(equal_and_lognormal("LSTM", 8, 32, 32)[0], 1, ON_EQUAL)]
    cases = [case for size in MAIN_SIZES for case in equal_and_lognormal("LSTM", *size)]
    return [
        Point(case, number, ON_EQUAL if case.distribution == "equal" else ON_RAGGED)
        for number in sorted({1, threads})
        for case in cases
    ]


def run(point, patience):
    """Return a line of results for each mode of a point; steps of one thread are timed by the CPU's clock."""
    return layers.run(point, patience._replace(clock="process_time") if point.threads == 1 else patience)


def over_ours(line, engine):
    """Return the time of an engine over the time of ours in bfloat16, or None if there is no such figure.

    Examples
    --------
    >>> over_ours({"engines": {BFLOAT16: {"seconds": 2.0}, OURS: {"seconds": 3.0}}}, OURS)
    1.5
    """
    ours, theirs = results.seconds(line, BFLOAT16), results.seconds(line, engine)
    return theirs / ours if ours and theirs else None


def cells(line):
    """Return the cells of a line: our times, then how many times as long as ours in bfloat16 each peer takes."""
    names = [line["cell"], ",".join(map(str, line["size"])), line["lengths"], line["mode"], line["threads"]]
    if "failed" in line:
        return [*names, *[None] * (len(COLUMNS) - len(names))]
    ours = [results.seconds(line, engine) * 1e3 for engine in (OURS, BFLOAT16)]
    return [*names, *ours, ours[1] / ours[0], *(over_ours(line, engine) for engine in PEERS)]
