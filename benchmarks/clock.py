"""What an engine's own process can measure of itself: seconds per step, its sgemm rate, the memory of a step."""

import ctypes
import functools
import time
from pathlib import Path

import numpy as np

ROUND_SECONDS = 0.1
SGEMM_SIZE = 2048


def seconds_per_step(step, clock="perf_counter"):
    """Return the seconds of a step, the mean over as many as fill a round of 0.1 s, after a first round.

    The clock is a function of `time`.
    Threads that slept begin wherever the system puts them, some systems on one core: the first round counts for nobody.
    """
    _fill_round(step)
    return _fill_round(step, clock)


def seconds_of_pieces(forward, backward):
    """Return the seconds of `y = forward()`, of `backward(y)` and of both: medians over a round, after a first one."""
    pieces = []

    def step():
        began = time.perf_counter()
        y = forward()
        between = time.perf_counter()
        backward(y)
        ended = time.perf_counter()
        pieces.append((between - began, ended - between, ended - began))

    _fill_round(step)
    pieces.clear()
    _fill_round(step)
    return dict(zip(("forward", "backward", "step"), np.median(pieces, axis=0).tolist(), strict=True))


def _fill_round(step, clock="perf_counter"):
    now = getattr(time, clock)
    steps, elapsed, began = 0, 0.0, now()
    while elapsed < ROUND_SECONDS:
        step()
        steps += 1
        elapsed = now() - began
    return elapsed / steps


def seconds_in_turns(works, rounds):
    """Return the seconds of the processor that each function takes, medians of rounds in which all take turns."""
    times = []
    for _ in range(rounds):
        of_round = [time.process_time()]
        for work in works:
            work()
            of_round.append(time.process_time())
        times.append(np.diff(of_round))
    return np.median(times, axis=0).tolist()


def sgemm_rate():
    """Return the rate of a large product of float32 matrices in NumPy, in operations per second."""
    a = _square()
    return 2 * SGEMM_SIZE**3 / seconds_per_step(lambda: a @ a)


def peak_bytes(step):
    """Return by how many bytes the resident memory of this process rises at most during a step.

    Linux only: writing 5 to `clear_refs` sets the high-water mark back to what is resident now.  What was freed before,
    the inputs' float64 draws for one, is given back first: the step would take it again, and nobody would see it.
    """
    _trim()
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    step()
    return _status("VmHWM") - before


def _trim():
    """Have the C library give freed memory back to the system, where it is one that can (glibc)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


@functools.cache
def _square():
    a = np.random.default_rng(0).standard_normal((SGEMM_SIZE, SGEMM_SIZE), np.float32)
    a @ a  # the first product of a process starts BLAS's threads, and is slower
    return a


def _status(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))
