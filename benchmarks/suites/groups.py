"""A layer beside PyTorch's as practitioners run it: sorted by length, and padded in groups of neighbours."""

from benchmarks import results
from benchmarks.engines import GROUPED, OF_GROUPS, OURS, PYTORCH
from benchmarks.layers import Case
from benchmarks.lengths import lognormal, pareto
from benchmarks.suites.layers import Point, groups_of

SIZES = [(48, 192, 256), (32, 512, 512)]  # sequences, features, units
PEERS = (*PYTORCH, *OF_GROUPS)
COLUMNS = {"cell": 5, "B,D,H": 13, "lengths": 11, "rows": 7, "padded": 8, "mode": 10, "ms": 9, "of peak": 9}
COLUMNS |= {engine: len(engine) + 2 for engine in PEERS} | {"groups": 8, "over each number": 34}


def points(quick, threads):
    """Return the points: LSTM and GRU on lognormal lengths, and an LSTM on those with a heavy tail."""
    if quick:
        return [_point(("LSTM", 8, 32, 32), lognormal(8), "lognormal", threads)]
    found = [
        _point((cell, *size), lognormal(size[0]), "lognormal", threads) for cell in ("LSTM", "GRU") for size in SIZES
    ]
    return [*found, _point(("LSTM", *SIZES[0]), pareto(SIZES[0][0]), "pareto", threads)]


def _point(size, lengths, name, threads):
    cell, _, input_size, hidden_size = size
    return Point(Case(cell, input_size, hidden_size, lengths, name), threads, (OURS, *PEERS))


def over_each_number(line):
    """Return the times over ours of every number of groups, as the engine found them when it chose one.

    Examples
    --------
    >>> groups = {"seconds": 3.0, "groups": 4, "seconds of groups": {"2": 5.0, "4": 3.1}}
    >>> over_each_number({"engines": {"varlen_rnn": {"seconds": 2.0}, "torch groups": groups}})
    '2: 2.50, 4: 1.55'
    """
    ours, tried = results.seconds(line, OURS), line["engines"].get(GROUPED, {}).get("seconds of groups", {})
    return ", ".join(f"{number}: {seconds / ours:.2f}" for number, seconds in tried.items()) or None


def cells(line):
    """Return the cells of a line: our time and share, then how many times as long each peer takes."""
    padding = line["padded_rows"] / line["rows"]
    names = [line["cell"], ",".join(map(str, line["size"])), line["lengths"], line["rows"], padding, line["mode"]]
    if "failed" in line:
        return [*names, *[None] * (len(COLUMNS) - len(names))]
    theirs = ["late" if engine in line.get("late", ()) else results.ratio(line, engine) for engine in PEERS]
    ours = results.seconds(line, OURS) * 1e3
    return [*names, ours, results.efficiency(line), *theirs, groups_of(line), over_each_number(line)]
