"""Points and lines of the suites that time one recurrent layer."""

import dataclasses
from typing import NamedTuple

from benchmarks import results
from benchmarks.engines import ENGINES, GROUPED, LIMITED, MODES, OURS, installed
from benchmarks.layers import Case
from benchmarks.measure import measure

TIMED = (*ENGINES, GROUPED)
PEERS = [engine for engine in TIMED if engine != OURS]
COLUMNS = {"cell": 5, "B,D,H": 13, "lengths": 15, "rows": 7, "padded": 8, "mode": 10, "threads": 8, "ms": 10}
COLUMNS |= {"of peak": 9} | {engine: len(engine) + 2 for engine in PEERS} | {"groups": 7}


class Point(NamedTuple):
    """A layer, who runs it, and how.

    `section` is the part of the suite that it belongs to; `witnesses` are the engines that are compared, not timed.
    """

    case: Case
    threads: int
    engines: tuple = TIMED
    modes: tuple = MODES
    section: str | None = None
    witnesses: tuple = ()

    def __str__(self):
        size = (len(self.case.lengths), self.case.input_size, self.case.hidden_size)
        section = f"{self.section}: " if self.section else ""
        return f"{section}{self.case.cell} {size} {self.case.distribution}, threads {self.threads}"


def run(point, patience):
    """Return a line of results for each mode of a point."""
    case, threads = point.case, point.threads
    engines = installed(point.engines)
    found = measure("layers", dataclasses.asdict(case), engines, threads, patience, point.modes, point.witnesses)
    lines = [
        {"section": point.section, **case.summary(), "mode": mode, "threads": threads, "flops": case.flops(mode), **its}
        for mode, its in found.items()
    ]
    return [line | late(engines, line) for line in lines]


def late(engines, line):
    """Return which limited engines have no figures on a line that has some, for they were late."""
    missing = [its for its in LIMITED if its in engines and its not in line.get("engines", {its})]
    return {"late": missing} if missing else {}


def groups_of(line):
    """Return the number of groups that was the best, or None where nobody ran groups."""
    return line.get("engines", {}).get(GROUPED, {}).get("groups")


def cells(line):
    """Return the cells of a line: our time and efficiency, then how many times as long each peer takes."""
    size = ",".join(map(str, line["size"]))
    padding = line["padded_rows"] / line["rows"]
    names = [line["cell"], size, line["lengths"], line["rows"], padding, line["mode"], line["threads"]]
    if "failed" in line:
        return [*names, *[None] * (len(COLUMNS) - len(names))]
    ours = results.seconds(line, OURS) * 1e3
    return [*names, ours, results.efficiency(line), *(results.ratio(line, engine) for engine in PEERS), groups_of(line)]
