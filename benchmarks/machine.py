"""The machine, the versions and the moment that results belong to."""

import datetime
import functools
import itertools
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np

import varlen_rnn as vr
from benchmarks.processes import options

PACKAGES = ("numpy", "numba", "torch", "onnxruntime")
BFLOAT16 = {"avx512bf16": "AVX512-BF16", "amx-bf16": "AMX-BF16"}  # instructions on bfloat16, by LLVM's names


def describe(threads):
    """Return the first line of a file of results."""
    blas = np.show_config("dicts")["Build Dependencies"]["blas"]
    return {
        "date": datetime.date.today().isoformat(),
        "processor": _processor(),
        "bfloat16": [name for feature, name in BFLOAT16.items() if llvm.get_host_cpu_features().get(feature)],
        "cores": vr.get_num_threads(),  # nobody has set it here
        "threads": threads,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "varlen_rnn": vr.__version__,
        "commit": _commit(),
        **{package: _version(package) for package in PACKAGES},
        "blas": f"{blas['name']} {blas['version']}",
    }


def publish(lines, path=None):
    """Print where one thread measured lines, and each line when it comes; write them to a file if there is a path."""
    found = []
    for line in itertools.chain([str(describe(1))], lines):
        found.append(line)
        print(line, flush=True)
    if path is not None:
        path.write_text("\n".join(found) + "\n")


def publish_as_asked(lines, path, about):
    """Publish lines, also in a file of results if the command line has `--write`."""
    publish(lines, path if options(about).write else None)


def _processor():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _version(package):
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit():
    code = ".", ":!benchmarks/results", ":!docs", ":!README.md"  # without what measurements write, line by line
    run = functools.partial(subprocess.run, cwd=Path(__file__).parents[1], capture_output=True, text=True)
    try:
        found = run(["git", "describe", "--always"]).stdout.strip()
        is_dirty = run(["git", "diff", "--quiet", "HEAD", "--", *code]).returncode == 1
    except OSError:
        return None
    return f"{found}{'-dirty' * is_dirty}" or None
