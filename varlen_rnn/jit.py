"""The only place with Numba options: `body`, `cpu_kernel`, `cuda_kernel`.

An equation is a `body`: a plain function of scalars, inlined into a CPU loop (`cpu_kernel`) and a CUDA loop
(`cuda_kernel`) that stand side by side.  Without a GPU, `NUMBA_ENABLE_CUDASIM=1 NUMBA_DISABLE_JIT=1` runs the
CUDA loops in Numba's simulator.
"""

import numba
from numba import cuda
from numba.core import dispatcher

from varlen_rnn.cache import CHECKED, DiskCache
from varlen_rnn.forks import let_forks_wait

# `contract` lets a multiply and an add become one instruction and keeps NaN and infinity as they are.
_OPTIONS = {"nogil": True, "error_model": "numpy", "fastmath": {"contract"}}
let_forks_wait()


def body(function):
    """Compile an equation that CPU and CUDA loops inline; constants take the type of their argument."""
    return numba.njit(inline="always", error_model="numpy", fastmath={"contract"})(function)


def cpu_kernel(function):
    """Compile a CPU loop: without the GIL, without threads of its own, cached on disk.

    With `VARLEN_RNN_CHECK=1`, those that other code may call check their indices.  Those of the engine do not: they
    take what we have made, and a loop with checks is vectorised in another way: results would depend on the batch.
    """
    checked = CHECKED and function.__module__.startswith("varlen_rnn.kernels.")
    kernel = numba.njit(boundscheck=checked or None, **_OPTIONS)(function)
    if isinstance(kernel, dispatcher.Dispatcher):  # a plain function when NUMBA_DISABLE_JIT=1
        kernel._cache = DiskCache(kernel.py_func)
    return kernel


def cpu_inlined(function):
    """Compile a step of a CPU loop so that it becomes part of its callers: a call with arrays costs 20 ns."""
    return numba.njit(forceinline=True, **_OPTIONS)(function)


def cuda_kernel(function):
    """Compile a CUDA loop: one thread an element of the last argument, unless its docstring says otherwise."""
    return cuda.jit(function)
