"""Time engines in turn, after they have shown that they compute the same."""

import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.engines import MODES
from benchmarks.parity import disagreement
from benchmarks.processes import started


class Patience(NamedTuple):
    """Rounds of a case: at least, at most, and the seconds after which no more than the least are begun."""

    least: int = 3
    most: int = 7
    seconds: float = 6.0


QUICK = Patience(1, 3, 1.0)


def measure(task, case, engines, threads, patience, modes=MODES):
    """Return what a case gave in each mode: {mode: {"failed": why} or {"engines": {engine: figures}}}.

    Parameters
    ----------
    task : str
        The folder of the task.
    case : dict
        The fields of its `Case`.
    engines : sequence of str
        All installed; the first is the one that others are compared with.
    threads : int
    patience : Patience
    modes : sequence of str
    """
    with started(task, case, engines, threads) as processes:
        return compare(processes, modes, patience)


def compare(processes, modes, patience):
    """Return the figures of processes that are ready; those of a mode only if all agree on its outputs."""
    able = {mode: [process for process, its in processes.items() if mode in its] for mode in modes}
    failures = {mode: check_outputs(able[mode], mode) for mode in modes}
    sound = {mode: able[mode] for mode in modes if failures[mode] is None}
    figures = _figures(*take_turns(sound, patience))
    return {mode: {"engines": figures[mode]} if mode in sound else {"failed": failures[mode]} for mode in modes}


def check_outputs(processes, mode):
    """Return why the outputs of processes are not to be trusted, or None; it warms them up as well."""
    outputs = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, process in enumerate(processes):
            path = Path(folder, f"{number}.npz")
            process.ask("outputs", mode=mode, path=str(path))
            with np.load(path) as arrays:
                outputs[process.engine] = dict(arrays)
    return disagreement(outputs)


def take_turns(able, patience):
    """Return the seconds of steps, {(mode, engine): a list}, and sgemm rates, {engine: a list}: a value a round."""
    seconds, rates, began = {}, {}, time.perf_counter()
    everyone = list(dict.fromkeys(process for processes in able.values() for process in processes))
    for number in range(patience.most):
        if number >= patience.least and time.perf_counter() - began > patience.seconds:
            break
        for process in everyone:
            for mode, processes in able.items():
                if process in processes:
                    seconds.setdefault((mode, process.engine), []).append(process.ask("seconds", mode=mode))
            rates.setdefault(process.engine, []).append(process.ask("sgemm"))
    return seconds, rates


def _figures(seconds, rates):
    """Return {mode: {engine: medians, and the rounds that they are of}}."""
    figures = {}
    for (mode, engine), rounds in seconds.items():
        figures.setdefault(mode, {})[engine] = {
            "seconds": statistics.median(rounds),
            "sgemm": statistics.median(rates[engine]),
            "rounds": rounds,
        }
    return figures
