"""Operators on sequences, beside PyTorch's on padded batches, on rows and on nested tensors, and NumPy's."""

import dataclasses
from typing import NamedTuple

from benchmarks import lengths, results
from benchmarks.engines import FORMS, MODES, OURS, installed
from benchmarks.measure import Patience, measure
from benchmarks.sequence import Case
from benchmarks.sequence.case import KINDS

PATIENCE = Patience(least=3, most=5, seconds=3.0)
COLUMNS = {"operator": 17, "lengths": 10, "rows": 7, "padded": 8, "mode": 10, "ns a row": 10}
COLUMNS |= {engine: len(engine) + 2 for engine in FORMS}


class Point(NamedTuple):
    """An operator, and the threads of everyone who runs it."""

    case: Case
    threads: int

    def __str__(self):
        return f"{self.case.operator} {self.case.distribution}"


def points(quick, threads):
    """Return each operator on equal, lognormal and Pareto lengths; in a quick run, on four equal ones."""
    return [
        Point(Case(operator, its, distribution), threads)
        for operator in KINDS
        for distribution, its in distributions(4 if quick else sequences_of(operator), quick).items()
    ]


def sequences_of(operator):
    """Return the sequences of the batch of an operator."""
    return 32 if operator == "attention" else 64


def distributions(sequences, quick):
    """Return lengths by what they are called."""
    if quick:
        return {"equal": lengths.equal(sequences, 5)}
    its = {"equal": lengths.equal(sequences, 80)}
    return its | {"lognormal": lengths.lognormal(sequences), "pareto": lengths.pareto(sequences)}


def run(point, patience):
    """Return a line for each mode of a point."""
    case = point.case
    engines = installed((OURS, *KINDS[case.operator].peers))
    found = measure("sequence", dataclasses.asdict(case), engines, point.threads, patience, MODES)
    return [{**case.summary(), "mode": mode, "threads": point.threads, **its} for mode, its in found.items()]


def best(line):
    """Return the time of the fastest peer over ours, or None where no peer has figures.

    Examples
    --------
    >>> times = {"varlen_rnn": {"seconds": 2.0}, "torch rows": {"seconds": 3.0}, "NumPy": {"seconds": 8.0}}
    >>> best({"engines": times})
    1.5
    """
    ratios = [ratio for engine in FORMS if (ratio := results.ratio(line, engine)) is not None]
    return min(ratios, default=None)


def cells(line):
    """Return the cells of a line: our time per row, then how many times as long each peer takes."""
    padding = line["padded_rows"] / line["rows"]
    names = [line["operator"], line["lengths"], line["rows"], padding, line["mode"]]
    if "failed" in line:
        return [*names, *[None] * (len(COLUMNS) - len(names))]
    ours = results.seconds(line, OURS) / line["rows"] * 1e9
    return [*names, ours, *(results.ratio(line, engine) for engine in FORMS)]
