"""The driver: computes the lines of results that are missing, one in a process of its own, until the time is over."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from benchmarks import machine, results
from benchmarks.processes import ROOT, environment
from benchmarks.quality.models import MODELS, OWN, lacking, seeds_of
from benchmarks.quality.page import write_page
from benchmarks.quality.sets import SETS, models_for

LONGEST = 900  # seconds of one fit and its predictions
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
        known = [line for line in known if line.get("model") not in OWN]
    if given.again or not known:
        results.write(PATH, known or [machine.describe(given.threads)])
    done = {(line["set"], line["model"], line["seed"]) for line in known if "set" in line}
    end = time.monotonic() + 60 * given.minutes
    for name, model in points(given.sets, given.models):
        seeds = [seed for seed in range(seeds_of(model)) if (name, model, seed) not in done]
        lacks = lacking(model, folder is not None) or (SETS[name].of_aeon and folder is None)
        if not seeds or lacks:
            continue
        if time.monotonic() > end:
            print("the time is over; the same command goes on", flush=True)
            return
        for line in computed(name, model, seeds, folder, given, end):
            with open(PATH, "a") as file:
                file.write(json.dumps(results.rounded(line)) + "\n")
            print(f"{name}, {model}, seed {line['seed']}: {line.get('error', line.get('failed'))}", flush=True)


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
    """Return the pairs to measure: the models of each set that are among `models`.

    Examples
    --------
    >>> points(["names"], ["CRF", "n-grams, SVM", "PyTorch LSTM"])
    [('names', 'n-grams, SVM'), ('names', 'PyTorch LSTM')]
    """
    return [(name, model) for name in names for model in models_for(name) if model in models]


def data_folder(aeon):
    """Return the folder of the series in aeon's environment, or None if there is no environment."""
    found = sorted(aeon.glob("lib/python*/site-packages/aeon/datasets/data"))
    return found[0] if found else None


def computed(name, model, seeds, folder, given, end):
    """Yield the line of each seed as it comes; if the process fails, a line that says why.

    At the time `end` the process is stopped, and seeds that it did not finish have no line.
    """
    python = given.aeon / "bin" / "python" if "aeon" in MODELS[model].needs else sys.executable
    command = [str(python), "-m", "benchmarks.quality.worker", name, model, str(folder), *map(str, seeds)]
    variables = environment(given.threads) | {"VARLEN_RNN_NUM_THREADS": str(given.threads)}
    left = list(seeds)
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=errors, text=True)
        allowed = min(LONGEST * len(seeds), end - time.monotonic())
        timer = threading.Timer(max(allowed, 1.0), process.kill)
        timer.start()
        try:
            for text in process.stdout:
                yield json.loads(text)
                left.pop(0)
        finally:
            timer.cancel()
            process.kill()
            process.wait()
            process.stdout.close()
        errors.seek(0)
        said = errors.read().strip().splitlines()
    if left and time.monotonic() < end:
        why = said[-1][:200] if said else f"took more than {LONGEST} s"
        yield {"set": name, "model": model, "seed": left[0], "kind": SETS[name].kind, "failed": why}


def read(path):
    """Return the lines of a file, the machine's first; none if there is no file."""
    return list(map(json.loads, path.read_text().splitlines())) if path.exists() else []
