"""Every device that this machine has: the CPU, and a GPU; inside Numba's simulator, the simulator alone."""

import numpy as np
import pytest
from numba import config, cuda

import varlen_rnn.runtime.device
from varlen_rnn.runtime import threads
from varlen_rnn.runtime.device import on_device, to_device

SIMULATOR = bool(config.ENABLE_CUDASIM)
config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # tests are small on purpose


@pytest.fixture(autouse=True)
def all_cores(monkeypatch):
    """Let every test begin with the number of threads that nobody has set."""
    monkeypatch.delenv(threads.VARIABLE, raising=False)
    threads._number_of_environment.cache_clear()
    yield
    threads._number_of_environment.cache_clear()
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


@pytest.fixture(params=_names())
def device(request, monkeypatch):
    if SIMULATOR:  # a thread of a block is a Python thread: small blocks are fast, and make more than one
        monkeypatch.setattr(varlen_rnn.runtime.device, "THREADS_PER_BLOCK", 8)
    return Device(request.param)
