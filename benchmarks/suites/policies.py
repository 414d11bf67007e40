"""An update of a policy with memory, over rollouts in which episodes begin: rows trained per second."""

import dataclasses
from typing import NamedTuple

from benchmarks import results
from benchmarks.engines import OF_POLICIES, OURS, PYTORCH, installed
from benchmarks.measure import Patience, measure
from benchmarks.policies import Case
from benchmarks.policies.case import PASSES

PATIENCE = Patience(least=7, wait=0.5, clock="process_time")
ENGINES = (OURS, *PYTORCH, *OF_POLICIES)
COLUMNS = {"episodes": 9, "N,T,H": 12, "rows": 7, "padded": 8, "rows/s": 10}
COLUMNS |= {engine: len(engine) + 2 for engine in ENGINES[1:]}
SIZES = ((16, 128, 64), (16, 128, 256), (8, 512, 128))  # rollouts, steps, units


class Point(NamedTuple):
    """Rollouts, and the threads to train on them."""

    case: Case
    threads: int

    def __str__(self):
        return f"{self.case.episodes} {self.case.hidden_size}"


def points(quick, threads):
    """Return the points: short and long episodes, small and large layers."""
    if quick:
        return [Point(Case("T-mazes", 3, 50, 8), threads)]
    return [Point(Case(name, *size), threads) for name in ("T-mazes", "falls") for size in SIZES]


def run(point, patience):
    """Return the line of a point."""
    case, threads = point.case, point.threads
    found = measure("policies", dataclasses.asdict(case), installed(ENGINES), threads, patience, ("training",))
    return [{**case.summary(), "threads": threads, **found["training"]}]


def cells(line):
    """Return the cells of a line: our rows per second, then how many times as long each peer takes."""
    names = [line["episodes"], ",".join(map(str, line["size"])), line["rows"], line["padded_rows"] / line["rows"]]
    if "failed" in line:
        return [*names, *[None] * len(ENGINES)]
    rate = PASSES * line["rows"] / results.seconds(line, OURS)
    return [*names, rate, *(results.ratio(line, engine) for engine in ENGINES[1:])]
