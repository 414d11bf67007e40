"""Every device that tests run on: the CPU, the emulated device, and a GPU if this machine has one."""

import ctypes
import importlib.util

import numpy as np
import pytest

from tests.asking import declared
from varlen_rnn.runtime import cuda, device_array, threads
from varlen_rnn.runtime.device import on_device, to_device
from varlen_rnn.runtime.precision import set_float32_matmul_precision
from varlen_rnn.tape import operator


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
        array = np.asarray(array, order="C")
        return to_device(array) if self.name == "cuda" else array.copy()

    def get(self, array):
        return array.copy_to_host() if on_device(array) else array


def _has_gpu():
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return importlib.util.find_spec("numba_cuda") is not None and cuda.numba_cuda().is_available()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Skip a test that needs the emulated device if there is none; only here, because the answer compiles a kernel."""
    if item.get_closest_marker("needs_device"):
        skip_without_device()


def skip_without_device():
    """Skip the running test if this machine has no emulated device."""
    from tests.emulated.device import missing

    if reason := missing():
        pytest.skip(reason)


# A kernel's first launch on the emulated device compiles it, in seconds.
EMULATED = pytest.param("emulated", marks=pytest.mark.slow)
DEVICES = ["cpu", EMULATED, *([pytest.param("gpu", marks=pytest.mark.gpu)] if _has_gpu() else [])]


@pytest.fixture
def asking(monkeypatch):
    """Return an operator that notes the precision of products at which it runs, and its gradient."""
    return declared(monkeypatch)


@pytest.fixture
def fp32_again():
    """Set the default precision of products after a test."""
    yield
    set_float32_matmul_precision("fp32")


@pytest.fixture
def operators_before():
    """Forget the operators that a test declares after it."""
    before = [(known, dict(known)) for known in (operator.OPERATORS, operator.UFUNCS)]
    yield
    for known, entries in before:
        known.clear()
        known.update(entries)


@pytest.fixture
def no_device(monkeypatch):
    """Let a test bind programs, which a process that uses a device, as other tests do, does not."""
    monkeypatch.setattr(device_array, "in_use", False)


@pytest.fixture(params=DEVICES)
def device(request, monkeypatch):
    """Return a device; kernels on the emulated one are checked for bounds, races and figures of ptxas."""
    if request.param == "emulated":
        skip_without_device()
        from tests.emulated.device import Driver

        monkeypatch.setattr(cuda, "driver", Driver())
    return Device("cpu" if request.param == "cpu" else "cuda")
