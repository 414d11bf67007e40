"""Time engines in turn, after they have shown that they compute the same."""

import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.engines import MODES, OURS
from benchmarks.parity import disagreement
from benchmarks.processes import started
from benchmarks.quiet import Watch, undisturbed, wait_for_quiet


class Patience(NamedTuple):
    """How long to measure a point.

    Attributes
    ----------
    least, most : int
        Rounds.
    seconds : float
        After so many no more than the least rounds are begun.
    wait : float
        Seconds to wait at most, before a round, for others to leave the machine alone.
    clock : str
        The function of `time` that times a step: "process_time" for CPU time.
    """

    least: int = 3
    most: int = 7
    seconds: float = 6.0
    wait: float = 5.0
    clock: str = "perf_counter"


QUICK = Patience(1, 3, 1.0, 0.0)


class Round(NamedTuple):
    """What an engine did in a turn.

    Attributes
    ----------
    seconds : float
        Of a step.
    rate : float
        Multiply-add rate of our process just before and just after, the mean of both; 0 in a peer's turn.
    others : float
        The cores that others took, in whichever of the three they took most.
    sgemm : float
        Rate of a product of NumPy's in our process, before them all: it is shown, and nothing is divided by it.
    """

    seconds: float
    rate: float
    others: float
    sgemm: float = 0.0


def measure(task, case, engines, threads, patience, modes=MODES, witnesses=(), others=()):
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
    witnesses : sequence of str
        Those of the engines that are only compared, not timed.
    others : sequence of str
        Those that compute something else: they are timed, not compared.
    """
    with started(task, case, engines, threads) as processes:
        return compare(processes, modes, patience, witnesses, others)


def compare(processes, modes, patience, witnesses=(), others=()):
    """Return the figures of processes that are ready; those of a mode only if all agree on its outputs."""
    able = {mode: [process for process, its in processes.items() if mode in its] for mode in modes}
    failures = {mode: check_outputs([p for p in able[mode] if p.engine not in others], mode) for mode in modes}
    sound = {
        mode: [process for process in able[mode] if process.engine not in witnesses]
        for mode in modes
        if failures[mode] is None
    }
    rounds = take_turns(sound, patience)
    notes = {mode: {process.engine: process.ask("notes", mode=mode) for process in sound[mode]} for mode in sound}
    return {
        mode: {"engines": {engine: _figures(its) | notes[mode][engine] for engine, its in rounds[mode].items()}}
        if mode in sound
        else {"failed": failures[mode]}
        for mode in modes
    }


def check_outputs(processes, mode):
    """Return why the outputs of processes are not to be trusted, or None; it warms them up as well."""
    outputs = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, process in enumerate(processes):
            path = Path(folder, f"{number}.npz")
            process.ask("outputs", mode=mode, path=str(path))
            with np.load(path) as arrays:
                outputs[process.label] = dict(arrays)
    return disagreement(outputs)


def take_turns(able, patience):
    """Return the rounds of processes that take turns: {mode: {engine: list of Round}}.

    Rates drift with the machine, so every step of ours stands between two measurements of the multiply-add rate.
    """
    rounds, began = {mode: {} for mode in able}, time.perf_counter()
    everyone = list(dict.fromkeys(process for processes in able.values() for process in processes))
    for number in range(patience.most):
        if number >= patience.least and time.perf_counter() - began > patience.seconds:
            break
        for process in everyone:
            wait_for_quiet(patience.wait)
            sgemm = process.ask("sgemm") if process.engine == OURS else 0.0
            rate, others = _rate(process)
            for mode in able:
                if process in able[mode]:
                    before, others_before = rate, others
                    seconds, others_during = watched(process, "seconds", mode=mode, clock=patience.clock)
                    rate, others = _rate(process)
                    taken = Round(seconds, (before + rate) / 2, max(others_before, others_during, others), sgemm)
                    rounds[mode].setdefault(process.engine, []).append(taken)
    return rounds


def _rate(process):
    """Return the multiply-add rate, and the cores that others took; nothing of peers, whose rates nobody asks for."""
    return watched(process, "multiply_add") if process.engine == OURS else (0.0, 0.0)


def watched(process, do, **request):
    """Return the reply to a request, and the cores that others took meanwhile."""
    watch = Watch(process.pid)
    return process.ask(do, **request), watch.others()


def _figures(rounds):
    """Return the figures of an engine: the median of its steps, and its rounds."""
    seconds, rates, others, sgemm = map(list, zip(*rounds, strict=True))
    return {
        "seconds": statistics.median(undisturbed(seconds, others)),
        "rounds": seconds,
        **({"multiply_add_rates": rates, "sgemm_rates": sgemm} if any(rates) else {}),
        "others": others,
    }
