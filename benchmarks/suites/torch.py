"""The layers of `varlen_rnn.torch` beside our own and PyTorch's: what its autograd and its layouts cost."""

from benchmarks import results
from benchmarks.engines import IN_TORCH, OF_STEPS, OURS, PYTORCH
from benchmarks.layers import Case
from benchmarks.lengths import equal, lognormal, pareto
from benchmarks.suites.layers import Point
from benchmarks.suites.recurrent import MAIN_SIZES, equal_and_lognormal

ONE_STEP = "one step"  # the lengths of batches that are one step of each sequence
COLUMNS = {"cell": 5, "B,D,H": 13, "lengths": 10, "rows": 7, "padded": 8, "mode": 10, "ms": 9}
COLUMNS |= {engine: len(engine) + 2 for engine in (*IN_TORCH, *PYTORCH, *OF_STEPS)}


def points(quick, threads):
    """Return the points: LSTM and GRU, training and inference, equal and unequal lengths, and one step per call."""
    engines = (OURS, *IN_TORCH, *PYTORCH)
    steps = [Point(Case(cell, 64, 64, equal(16, 1), ONE_STEP), threads, (OURS, *OF_STEPS)) for cell in ("LSTM", "GRU")]
    if quick:
        return [Point(Case("LSTM", 32, 32, lognormal(8), "lognormal"), threads, engines), *steps[:1]]
    batch_size, *width = MAIN_SIZES[0]
    cases = [case for cell in ("LSTM", "GRU") for case in equal_and_lognormal(cell, batch_size, *width)]
    cases += [Case("LSTM", *width, pareto(batch_size), "pareto")]
    cases += [case for size in MAIN_SIZES[1:2] for case in equal_and_lognormal("LSTM", *size)]
    return [*(Point(case, threads, engines) for case in cases), *steps]


def cells(line):
    """Return the cells of a line: our own layer's time, then how many times as long each of the others takes."""
    padding = line["padded_rows"] / line["rows"]
    size = ",".join(map(str, line["size"]))
    names = [line["cell"], size, line["lengths"], line["rows"], padding, line["mode"]]
    if "failed" in line:
        return [*names, *[None] * (len(COLUMNS) - len(names))]
    ours = results.seconds(line, OURS) * 1e3
    return [*names, ours, *(results.ratio(line, engine) for engine in (*IN_TORCH, *PYTORCH, *OF_STEPS))]
