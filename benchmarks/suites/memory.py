"""Memory of a training step: how far the resident set of a fresh process rises."""

import dataclasses
from pathlib import Path

from benchmarks.engines import OURS, PYTORCH, installed
from benchmarks.layers import Case
from benchmarks.layers.case import GATES, STATES
from benchmarks.lengths import equal, lognormal
from benchmarks.measure import check_outputs
from benchmarks.processes import started
from benchmarks.suites.layers import Point
from benchmarks.suites.recurrent import MAIN_SIZES, STEPS

ENGINES = (OURS, *PYTORCH)
MIB = 2**20
SMALL_WIDTH = 32  # features and units of the layer that loads the code
COLUMNS = {"cell": 5, "B,D,H": 13, "lengths": 11, "rows": 7, "padded": 8, "MiB": 9, "gates, states": 15}
COLUMNS |= {f"{engine} MiB": len(engine) + 6 for engine in PYTORCH} | {"of packed": 11}


def points(quick, threads):
    """Return the points: the main sizes, lognormal lengths."""
    if not Path("/proc/self/clear_refs").exists():
        raise SystemExit("memory: measured through Linux's /proc/self/clear_refs, which is not here")
    sizes = [("LSTM", 8, 64, 64)] if quick else [("LSTM", *size) for size in MAIN_SIZES] + [("GRU", *MAIN_SIZES[0])]
    return [Point(Case(cell, *width, lognormal(batch_size), "lognormal"), threads, ENGINES, ("training",))
            for cell, batch_size, *width in sizes]  # fmt: skip


def run(point, patience):
    """Return the line of a point: the peak of each engine, and the bytes that gates and states fill.

    Processes have loaded the code that they need by steps of a small layer, whose blocks of memory are of no use to the
    step that is measured: the first one of its size.
    """
    case = point.case
    kept = 4 * case.rows * (GATES[case.cell] + STATES[case.cell]) * case.hidden_size
    line = {**case.summary(), "mode": "training", "threads": point.threads, "kept": kept}
    with started("layers", dataclasses.asdict(small(case.cell)), installed(point.engines), point.threads) as processes:
        for process in processes:
            process.ask("seconds", mode="training")
            process.send_build("layers", dataclasses.asdict(case))
            process.receive()
        peaks = {process.engine: {"bytes": process.ask("peak", mode="training")} for process in processes}
        failed = check_outputs(processes, "training")
    return [line | ({"failed": failed} if failed else {"engines": peaks})]


def small(cell):
    """Return a case that runs the same code as large ones, on all threads, and takes about a megabyte."""
    return Case(cell, SMALL_WIDTH, SMALL_WIDTH, equal(16, STEPS), "equal")


def of_packed(line):
    """Return our bytes for each byte of PyTorch's packed layer, or None."""
    figures = line.get("engines", {})
    if not {OURS, "torch packed"} <= set(figures):
        return None
    return figures[OURS]["bytes"] / figures["torch packed"]["bytes"]


def cells(line):
    """Return the cells of a line."""
    names = [line["cell"], ",".join(map(str, line["size"])), line["lengths"], line["rows"]]
    figures = line.get("engines", {})
    ours, *theirs = (figures[engine]["bytes"] / MIB if engine in figures else None for engine in ENGINES)
    return [*names, line["padded_rows"] / line["rows"], ours, line["kept"] / MIB, *theirs, of_packed(line)]
