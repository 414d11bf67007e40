"""Ranks of one thread against one process of as many threads, and the bytes that sparse gradients send."""

import statistics
from typing import NamedTuple

from benchmarks.ranks import WAYS, Case, launch

SIZES = (("lognormal", 128), ("lognormal", 512), ("lognormal", 1024), ("pareto", 512))
LOOKUPS = (1000, 4000, 16000)
COLUMNS = {
    "lengths": 11, "sequences": 10, "rows a rank": 12, "threads, ms": 12, "ranks, ms": 10, "by work": 8,
    "by counts": 10, "round robin": 12, "CPU": 6, "touched rows": 13, "bytes a row": 12,
}  # fmt: skip


class Point(NamedTuple):
    """Global batches of a distribution; if `lookups` is not 0, that many rows of a large table instead."""

    lengths: str
    sequences: int
    ranks: int
    lookups: int = 0
    quick: bool = False

    def __str__(self):
        what = f"{self.lookups} lookups" if self.lookups else f"{self.sequences} sequences, {self.lengths}"
        return f"{what}, {self.ranks} ranks"


def points(quick, threads):
    """Return the points: as many ranks as threads, but at least two."""
    ranks = max(2, threads)
    if quick:
        return [Point("lognormal", 16, ranks, quick=True), Point("", 0, ranks, 100)]
    times = [Point(lengths, sequences * ranks // 2, ranks) for lengths, sequences in SIZES]
    return times + [Point("", 0, ranks, lookups) for lookups in LOOKUPS]


def run(point, patience):
    """Return the line of a point: medians over batches of wall and CPU seconds."""
    if point.lookups:
        found = launch(point.ranks, lookups=point.lookups)
        return [{"lengths": "lookups", "sequences": point.lookups, "ranks": point.ranks, **found}]
    small = {"hidden": 16, "batches": 2} if point.quick else {}
    case = Case(point.lengths, point.sequences, wait=patience.wait, **small)
    found = launch(point.ranks, case=case._asdict())
    rows = statistics.mean(map(sum, found["lengths"])) / point.ranks
    wall, cpu = ({way: statistics.median(its[kind]) for way, its in found["ways"].items()} for kind in ("wall", "cpu"))
    names = {"lengths": point.lengths, "sequences": point.sequences, "ranks": point.ranks, "rows": round(rows)}
    return [names | {"wall": wall, "cpu": cpu, "cost": found["cost"], "exchange": found["exchange"]}]


def cells(line):
    """Return the cells of a line: for each way, the speed of ranks over the speed of one process."""
    names = [line["lengths"], line["sequences"]]
    if "touched" in line:
        return [*names, *[None] * 7, line["touched"], line["bytes"] / line["touched"]]
    wall, cpu = line["wall"], line["cpu"]
    speeds = [wall["threads"] / wall[way] for way in WAYS]
    times = [1e3 * wall["threads"], 1e3 * wall["work"]]
    return [*names, line["rows"], *times, *speeds, cpu["one thread"] / cpu["work"], None, None]
