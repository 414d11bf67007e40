"""The table of docs/clients.md, from `benchmarks/results/clients.jsonl`."""

import json
from pathlib import Path

from benchmarks.tables import markdown, show

ROOT = Path(__file__).parents[2]
PATH, RESULTS = ROOT / "docs" / "clients.md", ROOT / "benchmarks" / "results" / "clients.jsonl"
BEGIN, END = "<!-- `python -m benchmarks.clients` writes this table. -->\n", "<!-- End of the table. -->\n"
HEADER = ["package", "version", "a call", "before, ms", "after, ms", "times", "largest difference"]


def read():
    """Return the lines of the results."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()]


def times(line):
    """Return how many times as much CPU time a package took before."""
    before, after = line["seconds"]
    return before / after


def cells(line):
    """Return the cells of a line of results."""
    version = next(iter(line["versions"].values()))
    milliseconds = [show(1e3 * seconds) for seconds in line["seconds"]]
    return [line["client"], version, line["does"], *milliseconds, show(times(line)), f"{line['difference']:.0e}"]


def caption(lines):
    """Return when, where and with which versions the lines were measured."""
    dates = sorted({line["date"] for line in lines})
    named = {"PyTorch": "torch", "NumPy": "numpy", "Numba": "numba"}
    versions = [f"{name} {joined(line['versions'][key] for line in lines)}" for name, key in named.items()]
    where, python = (joined(line[key] for line in lines) for key in ("processor", "python"))
    return f"{' to '.join(dates[:: max(1, len(dates) - 1)])}, {where}; {', '.join(versions)}, Python {python}."


def joined(names):
    """Return the different names, in their order, as text."""
    return " or ".join(dict.fromkeys(names))


def page():
    """Return the page with the table as the results are now."""
    lines = read()
    before, _, rest = PATH.read_text().partition(BEGIN)
    table = markdown(HEADER, map(cells, lines))
    return f"{before}{BEGIN}\n{table}\n\n{caption(lines)}\n\n{END}{rest.partition(END)[2]}"
