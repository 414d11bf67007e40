"""Results: JSON lines in files, and the ratios that are read off a line.

A line holds what was computed, and either `failed`, why nobody is believed, or `engines`, the figures of each.  Ratios
are not stored: a line cannot contradict itself.
"""

import json
import os
import statistics
import tempfile
from pathlib import Path

from benchmarks.engines import OURS
from benchmarks.quiet import TOLERATED, undisturbed


def write(path, lines):
    """Write dictionaries as JSON lines; the file is replaced when all are written, or left as it was."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".partial")
    try:
        with os.fdopen(handle, "w") as file:
            file.writelines(json.dumps(rounded(line)) + "\n" for line in lines)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def read(path):
    """Return the machine and the list of results of a file."""
    machine, *lines = map(json.loads, Path(path).read_text().splitlines())
    return machine, lines


def rounded(value):
    """Return a value with its floats cut to 4 digits, which is more than a clock on a shared machine knows.

    Examples
    --------
    >>> rounded({"a": [1.23456789, 3]})
    {'a': [1.235, 3]}
    """
    if isinstance(value, dict):
        return {name: rounded(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(part) for part in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def seconds(line, engine):
    """Return the seconds of a step of an engine, or None where it has none."""
    figures = line.get("engines", {}).get(engine)
    return figures and figures["seconds"]


def ratio(line, engine):
    """Return how many times as long as ours an engine takes, or None; above 1 we are faster.

    Examples
    --------
    >>> ratio({"engines": {"varlen_rnn": {"seconds": 2.0}, "torch packed": {"seconds": 3.0}}}, "torch packed")
    1.5
    """
    ours, theirs = seconds(line, OURS), seconds(line, engine)
    return theirs / ours if ours and theirs else None


def best_ratio(line, engines):
    """Return the ratio of the fastest of some engines, or None if any of them has none."""
    ratios = [ratio(line, engine) for engine in engines]
    return None if None in ratios else min(ratios)


def shares(line, rates="multiply_add_rates"):
    """Return what share of a rate the products of our step reach, in each round that counts.

    Lines of before the multiply-add rate was measured have "sgemm_rates" alone, and no share of it.

    Examples
    --------
    >>> ours = {"rounds": [1.0, 2.0, 9.0], "multiply_add_rates": [100.0, 60.0, 100.0], "others": [0.0, 0.0, 1.0]}
    >>> shares({"flops": 90, "engines": {"varlen_rnn": ours}})
    [0.9, 0.75]
    >>> shares({"flops": 90, "engines": {"varlen_rnn": ours}}, "sgemm_rates")
    []
    """
    ours = line.get("engines", {}).get(OURS, {})
    if rates not in ours:
        return []
    steps = zip(ours["rounds"], ours[rates], strict=True)
    return undisturbed([line["flops"] / seconds / rate for seconds, rate in steps], ours["others"])


def efficiency(line, rates="multiply_add_rates"):
    """Return the median share of a rate, or None."""
    found = shares(line, rates)
    return statistics.median(found) if found else None


def disturbed(line):
    """Return the engines of a line in whose every round others ran on the machine, so that the median is of those."""
    engines = line.get("engines", {})
    return [engine for engine, its in engines.items() if "others" in its and min(its["others"]) > TOLERATED]
