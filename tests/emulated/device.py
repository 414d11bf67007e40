"""The driver that runs launches of the package on the CPU, from the PTX that a GPU would get."""

import collections
import functools
import importlib.util
import platform
import shutil
import threading

import pytest
from numba import types

from tests.emulated.arrays import MemoryOfHost
from tests.emulated.figures import faults_of, find_ptxas
from tests.emulated.kernels import Kernel, LaunchError, Schedule
from tests.emulated.ledger import LAUNCH, count
from tests.emulated.sources import digest_of, ptx_of
from varlen_rnn.runtime.cuda import Limits
from varlen_rnn.runtime.parameters import types_of

MOST_THREADS = 1024  # of a block
_stream = threading.RLock()  # launches of several threads of Python run one after another
LAUNCHED = collections.Counter()  # of (module, name, digest, signature)


@functools.cache
def missing():
    """Return why this machine has no emulated device, or None if it has one."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return "the emulated device needs Linux on x86-64"
    if importlib.util.find_spec("numba_cuda") is None:
        return "the emulated device needs numba-cuda: pip install numba-cuda[cu13]"
    if find_ptxas() is None:
        return "the emulated device needs ptxas: pip install nvidia-cuda-nvcc"
    if shutil.which("g++") is None:
        return "the emulated device needs g++"
    return _refusal()


def _refusal():
    """Return what NVVM or ptxas says against a kernel that does nothing, or None if both take it."""
    try:
        faults = faults_of(ptx_of(_nothing, ()), True)
    except Exception as error:  # numba-cuda finds no NVVM, or cannot use it: its errors have no common type
        return f"the emulated device needs an NVVM that compiles: pip install numba-cuda[cu13]; got {error}"
    hint = "pip install --upgrade nvidia-cuda-nvcc nvidia-nvvm"
    return (
        f"the emulated device needs a ptxas as new as NVVM: {hint}; {find_ptxas()} says {faults[0]}" if faults else None
    )


def _nothing():
    pass


# Of tests that need the device, on which a kernel is compiled before its first launch, in seconds.
MARKS = [pytest.mark.slow, pytest.mark.needs_device]


def float_types(signature):
    """Return the names of the types of floats in arrays, or, if no array has any, of numbers."""
    kinds = [part for kind in signature for part in (kind if isinstance(kind, types.BaseTuple) else [kind])]
    floats = [kind.dtype for kind in kinds if isinstance(kind, types.Array) and isinstance(kind.dtype, types.Float)]
    return {str(kind) for kind in floats or [kind for kind in kinds if isinstance(kind, types.Float)]}


@functools.cache
def _digest_of(kernel):
    return digest_of(kernel.py_func)


@functools.cache
def _compiled(kernel, signature):
    """Return a kernel for argument types; figures of ptxas that no kernel should have are an error."""
    ptx = ptx_of(kernel.source, signature)
    if faults := faults_of(ptx, float_types(signature) == {"float32"}):
        raise AssertionError(f"{kernel.py_func.__qualname__}{signature}: {'; '.join(faults)}")
    return Kernel(ptx)


class Driver(MemoryOfHost):
    """Stands in the place of `varlen_rnn.runtime.cuda.driver`.

    Parameters
    ----------
    schedule : Schedule, optional
        How the threads of all launches take turns; if not given, in order, and races are errors.
    """

    def __init__(self, schedule=None):
        super().__init__()
        self.schedule = schedule or Schedule()

    limits = Limits((9, 0), multiprocessors=8, shared=64 * 1024)

    def function(self, kernel, parameters):
        """Return a kernel and the signature for which it is compiled."""
        return kernel, types_of(parameters.kinds)

    def run(self, function, blocks, threads, parameters, shared=0, together=False):
        """Run a kernel; its blocks always run together."""
        if not (0 < threads <= MOST_THREADS and blocks > 0):
            raise LaunchError(f"expected 1 to {MOST_THREADS} threads a block, and blocks, got {blocks}, {threads}")
        if together:
            assert blocks <= self.limits.multiprocessors
            assert shared <= self.limits.shared
        (kernel, signature), code = function, function[0].py_func
        count(LAUNCH)
        LAUNCHED[code.__module__, code.__qualname__, _digest_of(kernel), signature] += 1
        try:
            with _stream:
                compiled = self.compiled(kernel, signature)
                compiled.run((blocks,), (threads,), parameters, shared, schedule=self.schedule)
        except LaunchError as error:
            raise LaunchError(f"{code.__qualname__}{signature}: {error}") from None

    def compiled(self, kernel, signature):
        """Return a kernel for types of arguments."""
        return _compiled(kernel, signature)
