"""The tables of docs/clients.md, from `clients.jsonl` and `clients_tests.jsonl` in `benchmarks/results/`."""

import json
from pathlib import Path

from benchmarks.tables import markdown, show

ROOT = Path(__file__).parents[2]
PATH, RESULTS, TESTS = (
    ROOT / name
    for name in ("docs/clients.md", "benchmarks/results/clients.jsonl", "benchmarks/results/clients_tests.jsonl")
)
BEGIN, END = "<!-- `python -m benchmarks.clients` writes this table. -->\n", "<!-- End of the table. -->\n"
OF_TESTS = "<!-- `python -m benchmarks.clients.own_tests` writes this table. -->\n"
HEADER = ["package", "version", "a call", "before, ms", "after, ms", "times", "largest difference"]


def read(path=RESULTS):
    """Return the lines of results."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def add(path, line):
    """Put a line in place of the last one of its client, and write the page."""
    found = {other["client"]: other for other in read(path)} | {line["client"]: line}
    path.write_text("".join(json.dumps(found[name]) + "\n" for name in sorted(found)))
    PATH.write_text(page())


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


def of_tests(line):
    """Return the cells of a line of tests."""
    return [
        line["client"],
        line["version"],
        ", ".join(f"`{file}`" for file in line["files"]),
        line["tests"],
        *line["passed"],
    ]


def page():
    """Return the page with the tables as the results are now."""
    lines = read()
    tests = markdown(["package", "version", "files", "tests", "passed before", "after"], map(of_tests, read(TESTS)))
    text = PATH.read_text()
    for begin, table in ((BEGIN, f"{markdown(HEADER, map(cells, lines))}\n\n{caption(lines)}"), (OF_TESTS, tests)):
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n{table}\n\n{END}{rest.partition(END)[2]}"
    return text
