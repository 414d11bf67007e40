"""How tests run: on all cores, without slow ones unless the command line names tests; a file alone, in one process."""

import gc
import importlib.util
import os
from pathlib import Path

import pytest

from tests.emulated.session import Gate
from tests.passed import Passed

# Doctests import their modules, and these need packages that may be missing.
_NEEDED = {"varlen_rnn/torch/*": "torch", "varlen_rnn/runtime/cuda_intrinsics.py": "numba_cuda"}
collect_ignore_glob = [files for files, package in _NEEDED.items() if importlib.util.find_spec(package) is None]

# A thread of PyTorch that waits for work spins, at the cost of the other workers: ten times the time of small models.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "0")  # tests are small on purpose

# Collecting tests and compiling kernels make objects by the million, and little garbage.  With Python's threshold, 700,
# the garbage collector takes a sixth of the time of the one, and a quarter of the other.
gc.set_threshold(50_000)

MOST_WORKERS = 8  # each takes some 2 GiB, and a quarter of a minute to collect


def pytest_addoption(parser):
    """Add the option of tests/passed.py."""
    parser.addoption("--unless-passed", action="store_true", help="leave out quick tests that passed in the last run")


def pytest_configure(config):
    """Judge the launches of CUDA kernels at the end of a run of all twin tests, and note which tests pass."""
    config.pluginmanager.register(Gate(config))
    config.pluginmanager.register(Passed(config))


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config):
    """Start a worker per core, unless the command line names files, or says how many workers there are."""
    option = config.option
    if not hasattr(option, "numprocesses") or option.dist != "no":  # no pytest-xdist, or the command line says how
        return
    if hasattr(config, "workerinput") or "PYTEST_XDIST_WORKER" in os.environ:  # a worker, or a test of one, starts none
        return
    if option.numprocesses is None and not (
        _files(option) or option.usepdb or option.collectonly or option.capture == "no"
    ):
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        option.numprocesses = min(cores, MOST_WORKERS) if cores > 1 else 0
    if option.numprocesses:
        option.dist = "worksteal"


@pytest.fixture(autouse=True)
def _names_of_examples(doctest_namespace):
    """Let examples in docstrings use NumPy and the package by their usual names."""
    import numpy as np

    import varlen_rnn as vr

    doctest_namespace |= {"np": np, "vr": vr}


def _files(option):
    """Return the files and tests that the command line names."""
    return [name for name in option.file_or_dir if not Path(name).is_dir()]


def _is_slow(item):
    return item.get_closest_marker("slow") is not None


def pytest_collection_modifyitems(config, items):
    """Leave slow tests out, unless the command line asks for tests by name or marker; let workers begin with them.

    A slow test that comes last would keep one core busy, and the others idle.
    """
    option = config.option
    if not (option.markexpr or option.keyword or getattr(option, "lf", False) or _files(option)):
        config.hook.pytest_deselected(items=[item for item in items if _is_slow(item)])
        items[:] = [item for item in items if not _is_slow(item)]
    elif hasattr(config, "workerinput"):
        items.sort(key=lambda item: not _is_slow(item))


def pytest_collection_finish():
    """Take what collecting has made, which lives as long as the process, from what the garbage collector looks at."""
    gc.collect()
    gc.freeze()
