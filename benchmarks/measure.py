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
from benchmarks.quiet import TOLERATED, Watch, wait_for_quiet


class Patience(NamedTuple):
    """How long to measure a case.

    Attributes
    ----------
    least, most : int
        Rounds.
    seconds : float
        After so many no more than the least rounds are begun.
    wait : float
        Seconds to wait at most, before a round, for others to leave the machine alone.
    """

    least: int = 3
    most: int = 7
    seconds: float = 6.0
    wait: float = 5.0


QUICK = Patience(1, 3, 1.0, 0.0)


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
    rounds = take_turns(sound, patience)
    return {
        mode: {"engines": _figures(rounds, mode)} if mode in sound else {"failed": failures[mode]} for mode in modes
    }


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
    """Return the rounds of each engine: {engine: {mode or "sgemm": a list of values and of the cores others took}}."""
    rounds, began = {}, time.perf_counter()
    everyone = list(dict.fromkeys(process for processes in able.values() for process in processes))
    for number in range(patience.most):
        if number >= patience.least and time.perf_counter() - began > patience.seconds:
            break
        for process in everyone:
            wait_for_quiet(patience.wait)
            requests = {mode: {"do": "seconds", "mode": mode} for mode in able if process in able[mode]}
            for name, request in {**requests, "sgemm": {"do": "sgemm"}}.items():
                watch = Watch(process.pid)
                value = process.ask(**request)
                rounds.setdefault(process.engine, {}).setdefault(name, []).append((value, watch.others()))
    return rounds


def _figures(rounds, mode):
    """Return the figures of each engine in a mode: medians, and the rounds of its steps."""
    return {
        engine: {
            "seconds": median_of_quiet(its[mode]),
            "sgemm": median_of_quiet(its["sgemm"]),
            "rounds": [seconds for seconds, _ in its[mode]],
            "others": [others for _, others in its[mode]],
        }
        for engine, its in rounds.items()
        if mode in its
    }


def median_of_quiet(rounds):
    """Return the median of the rounds that nobody disturbed, or of all if there is none.

    Examples
    --------
    >>> median_of_quiet([(1.0, 0.0), (5.0, 0.9), (2.0, 0.1)])
    1.5
    """
    quiet = [value for value, others in rounds if others <= TOLERATED]
    return statistics.median(quiet or [value for value, _ in rounds])
