"""Every device that this machine has: the CPU, and a GPU; inside Numba's simulator, the simulator alone."""

import os
import sys

import numpy as np
import pytest
from numba import config, cuda

import varlen_rnn.runtime.device
from varlen_rnn.runtime import threads
from varlen_rnn.runtime.device import on_device, to_device

SIMULATOR = bool(config.ENABLE_CUDASIM)
LAUNCHED = "VARLEN_RNN_TEST_LAUNCHED"  # names the file of the names of CUDA loops that tests launch
config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # tests are small on purpose
if SIMULATOR and hasattr(os, "sched_setaffinity"):
    # Threads of the simulator take turns: on several cores, each turn wakes another core.
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


@pytest.fixture(autouse=True)
def all_cores(monkeypatch):
    """Let every test begin with the number of threads that nobody has set."""
    monkeypatch.delenv(threads.VARIABLE, raising=False)
    monkeypatch.delenv(threads.OPENMP_VARIABLE, raising=False)
    read_once = threads._number_of_environment, threads._share_of_cores
    for function in read_once:
        function.cache_clear()
    yield
    for function in read_once:
        function.cache_clear()
    threads._own_number.set(None)
    threads._last_number = None


class Device:
    """Moves arrays: `put` copies one to the device, `get` brings it back."""

    def __init__(self, name):
        self.name = name

    def put(self, array):
        array = np.ascontiguousarray(array)
        return to_device(array) if self.name == "cuda" else array.copy()

    def get(self, array):
        return array.copy_to_host() if on_device(array) else array


def _names():
    if SIMULATOR:
        return ["cuda"]
    return ["cpu", "cuda"] if cuda.is_available() else ["cpu"]


class _Calls:
    """Names of the loops that the main thread runs: CPU loops, and CUDA loops that it launches in the simulator.

    CUDA loops run in threads of the simulator, so they are not slower for it.
    """

    def __init__(self):
        self.cpu, self.cuda = set(), set()

    def __call__(self, frame, event, argument):
        if event == "call":
            name = frame.f_code.co_name
            if name == "launch":
                self.cuda.add(frame.f_locals["kernel"].py_func.__name__)
            elif name.endswith("_cpu"):
                self.cpu.add(name)


@pytest.fixture(params=_names())
def device(request, monkeypatch):
    """Return a device; inside the simulator, fail a test whose kernels run on the CPU unnoticed."""
    if not SIMULATOR:
        yield Device(request.param)
        return
    # A thread of a block is a Python thread: small blocks are fast, and make more than one.
    monkeypatch.setattr(varlen_rnn.runtime.device, "THREADS_PER_BLOCK", 8)
    calls, before = _Calls(), sys.getprofile()
    sys.setprofile(calls)
    yield Device(request.param)
    sys.setprofile(before)
    if LAUNCHED in os.environ:
        with open(os.environ[LAUNCHED], "a") as names:
            names.writelines(f"{name}\n" for name in calls.cuda)
    assert not calls.cpu, f"this test of CUDA ran CPU loops: {sorted(calls.cpu)}; is the output on the device?"
