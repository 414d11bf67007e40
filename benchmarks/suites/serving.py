"""Inference on little work, with weights that are packed once, beside our layers, onnxruntime and PyTorch."""

from benchmarks import results
from benchmarks.engines import OURS
from benchmarks.layers import Case
from benchmarks.lengths import equal
from benchmarks.suites.layers import Point
from benchmarks.suites.small import TINY, WIDTH

STEP = (1, 128, 128)  # a row, its features, units
FIRST = ("stream", "torch cell", OURS)
WHOLE = ("prepared", OURS, "onnxruntime", "torch padded")
OTHERS = (OURS, "torch cell", "torch padded", "onnxruntime")
COLUMNS = {"cell": 5, "B,D,H": 13, "lengths": 8, "rows": 6, "engine": 9, "us": 8}
COLUMNS |= {engine: len(engine) + 2 for engine in OTHERS}


def points(quick, threads):
    """Return the points: a step of one sequence, tiny batches, and 8 sequences of 80 steps."""
    cells = ("LSTM",) if quick else ("LSTM", "GRU", "RNN")
    rows, *width = STEP
    found = [(Case(cell, *width, (1,) * rows, "one row"), FIRST) for cell in cells]
    found += [(Case(cell, WIDTH, WIDTH, TINY, "equal"), WHOLE) for cell in cells]
    if not quick:
        found += [(Case(cell, WIDTH, WIDTH, (2, 9, 6, 4), "ragged"), WHOLE) for cell in cells]
        found += [(Case(cell, 256, 256, equal(8, 80), "equal"), WHOLE) for cell in cells]
    return [Point(case, threads, engines, ("inference",)) for case, engines in found]


def served(line):
    """Return which of our engines for serving a line is about.

    Examples
    --------
    >>> served({"engines": {"varlen_rnn": {}, "prepared": {}}})
    'prepared'
    """
    return "stream" if "stream" in line["engines"] else "prepared"


def over(line, engine):
    """Return the time of an engine over that of ours for serving, or None.

    Examples
    --------
    >>> over({"engines": {"prepared": {"seconds": 2.0}, "onnxruntime": {"seconds": 3.0}}}, "onnxruntime")
    1.5
    """
    theirs, ours = results.seconds(line, engine), results.seconds(line, served(line))
    return theirs and ours and theirs / ours


def cells(line):
    """Return the cells of a line: microseconds of a call, then how many times as long each of the others takes."""
    names = [line["cell"], ",".join(map(str, line["size"])), line["lengths"], line["rows"], served(line)]
    if "failed" in line:
        return [*names, *[None] * (len(COLUMNS) - len(names))]
    ours = results.seconds(line, served(line)) * 1e6
    return [*names, ours, *(over(line, engine) for engine in OTHERS)]
