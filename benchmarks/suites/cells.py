"""Any cell beside the built-in one, and beside what PyTorch offers for it: a loop of Python over padded steps."""

import dataclasses
from typing import NamedTuple

from benchmarks import results
from benchmarks.cells import Case
from benchmarks.cells.case import KINDS
from benchmarks.engines import BUILT_IN, LOOPS, OURS, installed
from benchmarks.lengths import lognormal
from benchmarks.measure import Patience, measure
from benchmarks.suites.layers import late

SIZES = [(64, 256, 256), (32, 512, 512)]
STEPS_SIZE = (32, 128, 128)  # of steps of ordinary operators, and of the LSTM beside them
PATIENCE = Patience(least=5, most=11, seconds=40)
COMPILED = ("LSTM", "GRU")
COLUMNS = {"cell": 23, "B,D,H": 13, "lengths": 11, "rows": 8, "padded": 8, "ms": 9, "of peak": 9, "of built-in": 13}
COLUMNS |= {engine: len(engine) + 2 for engine in LOOPS}


class Point(NamedTuple):
    """A layer, and the threads of everyone who runs it."""

    case: Case
    threads: int

    def __str__(self):
        return f"{self.case.cell} {(len(self.case.lengths), self.case.input_size, self.case.hidden_size)}"

    def engines(self):
        """Return who runs it: a built-in cell has no built-in beside it, and only those are compiled by PyTorch."""
        kind = self.case.cell
        built_in = (BUILT_IN,) if KINDS[kind].built_in else ()
        return (OURS, *built_in, *(LOOPS if kind in COMPILED else LOOPS[:1]))


def points(quick, threads):
    """Return the points: training of every cell that this version has, lognormal lengths."""
    return [
        Point(Case(kind, *width, lognormal(batch_size), "lognormal"), threads)
        for kind in (["CIFG"] if quick else KINDS)
        for batch_size, *width in ([(8, 32, 32)] if quick else sizes_of(kind))
    ]


def sizes_of(kind):
    """Return sequences, features and units of the points of a cell."""
    return [STEPS_SIZE] if kind.startswith("DynamicRNN") else SIZES


def run(point, patience):
    """Return the line of a point."""
    case, engines = point.case, installed(point.engines())
    found = measure(
        "cells", dataclasses.asdict(case), engines, point.threads, patience, ("training",), others=(BUILT_IN,)
    )["training"]
    line = {**case.summary(), "mode": "training", "threads": point.threads, "flops": case.flops("training"), **found}
    if case.of_built_in():
        line["flops of built-in"] = case.of_built_in().flops("training")
    return [line | late(engines, line)]


def of_built_in(line):
    """Return the rate of our products over that of the built-in layer beside us, or None.

    Examples
    --------
    >>> engines = {"varlen_rnn": {"seconds": 2.0}, "varlen_rnn built-in": {"seconds": 2.0}}
    >>> of_built_in({"engines": engines, "flops": 75, "flops of built-in": 100})
    0.75
    """
    ratio = results.ratio(line, BUILT_IN)
    return ratio and ratio * line["flops"] / line["flops of built-in"]


def cells(line):
    """Return the cells of a line."""
    padding = line["padded_rows"] / line["rows"]
    names = [line["cell"], ",".join(map(str, line["size"])), line["lengths"], line["rows"], padding]
    if "failed" in line:
        return [*names, *[None] * (len(COLUMNS) - len(names))]
    ours = results.seconds(line, OURS) * 1e3
    theirs = ["late" if engine in line.get("late", ()) else results.ratio(line, engine) for engine in LOOPS]
    return [*names, ours, results.efficiency(line), of_built_in(line), *theirs]
