"""The driver: computes the lines of results that are missing, one in a process of its own, until the time is over."""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import machine, results
from benchmarks.processes import ROOT, environment
from benchmarks.quality.models import MODELS, OURS, RECURRENT, lacking, models_of
from benchmarks.quality.page import write_page
from benchmarks.quality.sets import SETS

SEEDS, LONGEST = 5, 900  # seconds of one fit and its predictions
PATH = ROOT / "benchmarks" / "results" / "quality.jsonl"


def main(arguments):
    """`python -m benchmarks quality [--minutes 30] [--sets ...] [--models ...] [--again]`, or `quality page`."""
    given = _parser().parse_args(arguments)
    if given.action == "page":
        write_page(PATH, ROOT / "docs")
        return
    folder = data_folder(given.aeon)
    known = read(PATH)
    if given.again:
        known = [line for line in known if line.get("model") not in (OURS, RECURRENT)]
    results.write(PATH, known or [machine.describe(given.threads)])
    done = {(line["set"], line["model"], line["seed"]) for line in known if "set" in line}
    end = time.monotonic() + 60 * given.minutes
    for name, model, seed in points(given.sets, given.models):
        lacks = lacking(model, folder is not None) or (SETS[name].of_aeon and folder is None)
        if (name, model, seed) in done or lacks:
            continue
        if time.monotonic() > end:
            print("the time is over; the same command goes on", flush=True)
            return
        line = compute(name, model, seed, folder, given)
        with open(PATH, "a") as file:
            file.write(json.dumps(results.rounded(line)) + "\n")
        print(f"{name}, {model}, seed {seed}: {line.get('error', line.get('failed'))}", flush=True)


def _parser():
    parser = argparse.ArgumentParser(prog="python -m benchmarks quality", description=main.__doc__)
    parser.add_argument("action", nargs="?", choices=["run", "page"], default="run")
    parser.add_argument("--minutes", type=float, default=600.0, help="begin no result after this time")
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS), metavar="SET")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS), metavar="MODEL")
    parser.add_argument("--again", action="store_true", help="compute the estimators' results anew")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of every model; default all cores")
    parser.add_argument("--aeon", type=Path, default=ROOT / "out" / "aeon", help="aeon's environment; default out/aeon")
    return parser


def points(names, models):
    """Return what is computed: (set, model, seed), every model's first seed before the second of any.

    Examples
    --------
    >>> points(["names"], ["n-grams, SVM", "PyTorch LSTM"])[:3]
    [('names', 'n-grams, SVM', 0), ('names', 'PyTorch LSTM', 0), ('names', 'PyTorch LSTM', 1)]
    """
    return [
        (name, model, seed)
        for seed in range(SEEDS)
        for name in names
        for model in models_of(SETS[name].kind)
        if model in models and (MODELS[model].seeded or seed == 0)
    ]


def data_folder(aeon):
    """Return the folder of the series in aeon's environment, or None if there is no environment."""
    found = sorted(aeon.glob("lib/python*/site-packages/aeon/datasets/data"))
    return found[0] if found else None


def compute(name, model, seed, folder, given):
    """Return the line of a result; if its process fails, a line that says why."""
    python = given.aeon / "bin" / "python" if "aeon" in MODELS[model].needs else sys.executable
    command = [str(python), "-m", "benchmarks.quality.worker", name, model, str(seed), str(folder)]
    variables = environment(given.threads) | {"VARLEN_RNN_NUM_THREADS": str(given.threads)}
    line = {"set": name, "model": model, "seed": seed, "kind": SETS[name].kind}
    try:
        found = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=LONGEST)
    except subprocess.TimeoutExpired:
        return line | {"failed": f"took more than {LONGEST} s"}
    if found.returncode:
        return line | {"failed": (found.stderr.strip().splitlines() or [f"exit status {found.returncode}"])[-1][:200]}
    return json.loads(found.stdout.splitlines()[-1])


def read(path):
    """Return the lines of a file, the machine's first; none if there is no file."""
    return list(map(json.loads, path.read_text().splitlines())) if path.exists() else []
