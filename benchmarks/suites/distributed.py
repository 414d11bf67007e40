"""Ranks of one thread against one process of as many threads, and the bytes that sparse gradients send."""

import statistics
from typing import NamedTuple

from benchmarks.ranks import WAYS, Case
from benchmarks.survival import engines
from benchmarks.turns import compare, look_up

SIZES = (("lognormal", 128), ("lognormal", 512), ("lognormal", 1024), ("pareto", 512))
LOOKUPS = (1000, 4000, 16000)
COLUMNS = {
    "engine": 7, "lengths": 11, "sequences": 10, "rows a rank": 12, "threads, ms": 12, "ranks, ms": 10, "by work": 8,
    "by counts": 10, "round robin": 12, "CPU": 6, "touched rows": 13, "bytes a row": 12,
}  # fmt: skip


class Point(NamedTuple):
    """Global batches of a distribution; if `lookups` is not 0, that many rows of a large table instead."""

    engine: str
    lengths: str
    sequences: int
    ranks: int
    lookups: int = 0
    quick: bool = False

    def __str__(self):
        what = f"{self.lookups} lookups" if self.lookups else f"{self.sequences} sequences, {self.lengths}"
        return f"{what}, {self.ranks} ranks of {self.engine}"


def points(quick, threads):
    """Return the points: as many ranks as threads, but at least two."""
    ranks = max(2, threads)
    found = engines()
    if quick:
        return [Point(engine, "lognormal", 16, ranks, quick=True) for engine in found] + [
            Point(engine, "", 0, ranks, 100) for engine in found[:1]
        ]
    times = [Point(engine, kind, count * ranks // 2, ranks) for engine in found for kind, count in SIZES]
    return times + [Point(engine, "", 0, ranks, lookups) for engine in found[:1] for lookups in LOOKUPS]


def run(point, patience):
    """Return the line of a point: medians over batches of wall and CPU seconds."""
    names = {"engine": point.engine, "lengths": point.lengths, "sequences": point.sequences, "ranks": point.ranks}
    if point.lookups:
        found = look_up(point.engine, point.ranks, point.lookups)
        return [names | {"lengths": "lookups", "sequences": point.lookups, **found}]
    small = {"hidden": 16, "batches": 2} if point.quick else {}
    case = Case(point.lengths, point.sequences, wait=patience.wait, **small)
    found = compare(point.engine, point.ranks, case)
    rows = statistics.mean(map(sum, found["lengths"])) / point.ranks
    wall, cpu = ({way: statistics.median(its[kind]) for way, its in found["ways"].items()} for kind in ("wall", "cpu"))
    return [names | {"rows": round(rows), "wall": wall, "cpu": cpu, "cost": found["cost"]}]


def cells(line):
    """Return the cells of a line: for each way, the speed of ranks over the speed of one process."""
    names = [line["engine"], line["lengths"], line["sequences"]]
    if "touched" in line:
        return [*names, *[None] * 7, line["touched"], line["bytes"] / line["touched"]]
    wall, cpu = line["wall"], line["cpu"]
    speeds = [wall["threads"] / wall[way] for way in WAYS]
    times = [1e3 * wall["threads"], 1e3 * wall["work"]]
    return [*names, line["rows"], *times, *speeds, cpu["one thread"] / cpu["work"], None, None]
