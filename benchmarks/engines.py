"""The engines that are compared, and where each of them stands for a task.

A task is a folder (`layers`, `classifiers`) with a `Case` that says what is computed.  An engine of a task is a class:
`Engine(case, threads)` has a method for each mode it knows (`training`, `inference`), which runs one step and returns
its results by name, and `arrays`, which turns those into NumPy arrays that all engines agree on.
"""

import importlib
import importlib.util
from typing import NamedTuple

OURS, TWIN = "varlen_rnn", "varlen_rnn padded"
MODES = ("training", "inference")


class Engine(NamedTuple):
    """Module and class of an engine within the folder of a task, and the packages that it needs, lowest first."""

    module: str
    name: str
    needs: tuple


ENGINES = {
    OURS: Engine("ours", "Unpadded", ("numba", "varlen_rnn")),
    TWIN: Engine("ours", "Padded", ("numba", "varlen_rnn")),
    "torch packed": Engine("pytorch", "Packed", ("torch",)),
    "torch padded": Engine("pytorch", "Padded", ("torch",)),
    "onnxruntime": Engine("ort", "Session", ("onnx", "onnxruntime")),
}
PYTORCH = ("torch packed", "torch padded")
PEERS = (*PYTORCH, "onnxruntime")


def build(task, engine, case, threads):
    """Return an engine of a task, ready for its first step.

    Parameters
    ----------
    task : str
        The folder: "layers" or "classifiers".
    engine : str
        A key of `ENGINES`.
    case : dict
        The fields of the task's `Case`.
    threads : int
    """
    found = ENGINES[engine]
    make_case = importlib.import_module(f"benchmarks.{task}").Case
    return getattr(importlib.import_module(f"benchmarks.{task}.{found.module}"), found.name)(make_case(**case), threads)


def lacking(engine):
    """Return the packages that an engine needs and this Python does not have."""
    return [package for package in ENGINES[engine].needs if importlib.util.find_spec(package) is None]


def installed(engines):
    """Return those of the engines that can run here."""
    return [engine for engine in engines if not lacking(engine)]
