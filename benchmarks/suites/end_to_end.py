"""A whole classifier on the three embedded data sets: rows per second of training."""

import dataclasses
from typing import NamedTuple

from benchmarks import results
from benchmarks.classifiers import Case
from benchmarks.engines import OURS, PYTORCH, TWIN, installed
from benchmarks.lengths import DATA_SETS
from benchmarks.measure import measure

ENGINES = (OURS, TWIN, *PYTORCH)
COLUMNS = {"data set": 11, "batch": 6, "rows": 9, "padded": 8, "rows/s": 10}
COLUMNS |= {engine: len(engine) + 2 for engine in ENGINES[1:]}


class Point(NamedTuple):
    """A data set, and the threads to train on it."""

    case: Case
    threads: int

    def __str__(self):
        return self.case.data_set


def points(quick, threads):
    """Return a point for each data set."""
    batch_size, num_batches = (4, 1) if quick else (32, 4)
    return [Point(Case(name, batch_size, num_batches), threads) for name in DATA_SETS]


def run(point, patience):
    """Return the line of a point."""
    case, threads = point.case, point.threads
    found = measure("classifiers", dataclasses.asdict(case), installed(ENGINES), threads, patience, ("training",))
    return [{**case.summary(), "threads": threads, **found["training"]}]


def cells(line):
    """Return the cells of a line: our rows per second, then how many times as long each peer takes."""
    padding = line["padded_rows"] / line["rows"]
    names = [line["data_set"], line["batch_size"], line["rows"], padding]
    if "failed" in line:
        return [*names, *[None] * len(ENGINES)]
    rate = line["rows"] / results.seconds(line, OURS)
    return [*names, rate, *(results.ratio(line, engine) for engine in ENGINES[1:])]
