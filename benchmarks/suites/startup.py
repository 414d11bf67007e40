"""Start-up: what a fresh process pays for imports and for its first step of training."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import llvmlite.binding as llvm

from benchmarks.engines import OURS, installed
from benchmarks.processes import ROOT
from varlen_rnn.runtime.cache import installed_bundles, usable_bundles

COLUMNS = {
    "engine": 14, "kernels": 11, "compiled": 10, "imports": 40, "first step, s": 15, "in all, s": 11,
    "second cell, s": 15,
}  # fmt: skip


class Point(NamedTuple):
    """An engine, and where it finds kernels: nowhere ("cold"), in its cache ("warm"), or in the installation.

    Other engines have none ("").
    """

    engine: str
    cache: str

    def __str__(self):
        return f"{self.engine} {self.cache}".strip()


def points(quick, threads):
    """Return the points; compiling everything takes a quarter of a minute, too long for a quick run."""
    ours = [Point(OURS, "warm")] if quick else [Point(OURS, "cold"), Point(OURS, "warm")]
    if any(folder.path in usable_bundles() for folder in installed_bundles()):
        ours.append(Point(OURS, "installed"))
    return ours + [Point(engine, "") for engine in installed(["torch packed"])]


def run(point, patience):
    """Return the line of a point: medians over fresh processes, and how many kernels one of them compiled."""
    counted = {}
    if point.cache in ("cold", "installed"):
        # For a processor that is named, code is compiled, though the installation may have some.
        named = {"NUMBA_CPU_NAME": llvm.get_host_cpu_name()} if point.cache == "cold" else {}
        rounds = []
        for _ in range(patience.least):
            with tempfile.TemporaryDirectory() as folder:
                rounds.append(_first_step(point.engine, {"NUMBA_CACHE_DIR": folder} | named))
                counted = {"compiled": len(list(Path(folder).rglob("*.nbc")))}
    else:
        _first_step(point.engine, {})  # leaves kernels in the cache, and files in memory
        rounds = [_first_step(point.engine, {}) for _ in range(patience.least)]
    imports = {name: statistics.median(its["imports"][name] for its in rounds) for name in rounds[0]["imports"]}
    steps = {name: statistics.median(its[name] for its in rounds) for name in ("first_step", "second_cell")}
    return [{"engine": point.engine, "cache": point.cache, **counted, "imports": imports, **steps}]


def _first_step(engine, variables):
    command = [sys.executable, "-m", "benchmarks.first_step", engine]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | variables, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def cells(line):
    """Return the cells of a line."""
    imports = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in line["imports"].items())
    kernels = line["cache"], line.get("compiled", "")
    return [line["engine"], *kernels, imports, line["first_step"], in_all(line), line["second_cell"]]


def in_all(line):
    """Return the seconds of imports and the first step."""
    return sum(line["imports"].values()) + line["first_step"]
