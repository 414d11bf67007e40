"""The only place with Numba options: `body`, `cpu_kernel`, `cuda_kernel`, and a disk cache that never breaks an import.

An equation is a `body`: a plain function of scalars, inlined into a CPU loop (`cpu_kernel`) and a CUDA loop
(`cuda_kernel`) that stand side by side.  Without a GPU, `NUMBA_ENABLE_CUDASIM=1 NUMBA_DISABLE_JIT=1` runs the
CUDA loops in Numba's simulator.

Why a cache of our own: Numba's refuses, at import, to work where no folder is writable; does not see a change in
a called helper; can mix two signatures that two processes compile at once; raises for ever on a truncated file;
and never finds a loop that was built for a cell by a factory.  Here a file's name is the digest of everything
that its machine code depends on, so a stale or foreign file cannot be met, and a damaged one is compiled again.
"""

import functools
import hashlib
import os
import pickle
import sys
import tempfile
import types
from pathlib import Path

import numba
import numpy as np
from numba import cuda
from numba.core import caching, compiler, config, dispatcher

# `contract` lets a multiply and an add become one instruction and keeps NaN and infinity as they are.
_OPTIONS = {"nogil": True, "error_model": "numpy", "fastmath": {"contract"}}


def body(function):
    """Compile an equation that CPU and CUDA loops inline; constants take the type of their argument."""
    return numba.njit(inline="always", error_model="numpy", fastmath={"contract"})(function)


def cpu_kernel(function):
    """Compile a CPU loop: without the GIL, without threads of its own, cached on disk."""
    return _cached(numba.njit(**_OPTIONS)(function))


def cpu_inlined(function):
    """Compile a step of a CPU loop so that it becomes part of its callers: a call with arrays costs 20 ns."""
    return numba.njit(forceinline=True, **_OPTIONS)(function)


def cpu_reduction(function):
    """Compile a CPU loop whose sums may be reordered so that they vectorise; the order is fixed at compile time."""
    return _cached(numba.njit(**_OPTIONS | {"fastmath": {"contract", "reassoc"}})(function))


def cuda_kernel(function):
    """Compile a CUDA loop: one thread an element of the last argument, unless its docstring says otherwise."""
    return cuda.jit(function)


def cache_folder():
    """Return the folder of compiled kernels: `NUMBA_CACHE_DIR`, else `varlen_rnn` in the user's cache folder."""
    if config.CACHE_DIR:
        return Path(config.CACHE_DIR) / "varlen_rnn"
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "varlen_rnn"


def _cached(kernel):
    if isinstance(kernel, dispatcher.Dispatcher):  # a plain function when NUMBA_DISABLE_JIT=1
        kernel._cache = _DiskCache(kernel.py_func)
    return kernel


class _DiskCache(caching._Cache):
    """One file for one function and signature, named by the digest of all that the machine code depends on."""

    def __init__(self, function):
        self._function = function
        self._enabled = True

    @property
    def cache_path(self):
        return str(cache_folder())

    def enable(self):
        self._enabled = True

    def disable(self):
        self._enabled = False

    def flush(self):
        """Forget nothing: a digest never names stale code."""

    def load_overload(self, signature, target_context):
        if not self._enabled:
            return None
        target_context.refresh()
        path = self._path(signature, target_context)
        try:
            payload = path.read_bytes()
        except OSError:
            return None
        try:
            return compiler.CompileResult._rebuild(target_context, *pickle.loads(payload))
        except Exception:  # damaged in any way: the kernel is compiled again and the file replaced
            return None

    def save_overload(self, signature, compiled):
        if not self._enabled or compiled.library.has_dynamic_globals or compiled.lifted:
            return
        path = self._path(signature, compiled.target_context)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent)
            with os.fdopen(handle, "wb") as file:
                file.write(caching.dumps(compiled._reduce()))
            os.replace(temporary, path)
        except OSError:  # read-only, full, or gone: the cache is a convenience
            return

    def _path(self, signature, target_context):
        parts = (_environment(), str(target_context.codegen().magic_tuple()), str(signature))
        digest = hashlib.sha256("\0".join(parts).encode())
        digest.update(_fingerprint(self._function).encode())
        return cache_folder() / f"{self._function.__name__}-{digest.hexdigest()[:32]}.nbc"


@functools.cache
def _environment():
    """Return the digest of the sources of compiled code, and the versions that it depends on."""
    digest, here = hashlib.sha256(Path(__file__).read_bytes()), Path(__file__).parent
    for folder in ("kernels", "cells", "recurrence"):
        for path in sorted((here / folder).glob("*.py")):
            digest.update(path.read_bytes())
    return f"{digest.hexdigest()} {numba.__version__} {np.__version__} {sys.version}"


def _fingerprint(value, seen=()):
    """Return text that changes whenever the code that `value` compiles to may change."""
    function = getattr(value, "py_func", value)
    if isinstance(function, types.FunctionType):
        if function in seen:
            return "recursive"
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        parts = [function.__code__, *cells, *_used_globals(function)]
        inner = [_fingerprint(part, (*seen, function)) for part in parts]
        return f"{function.__module__}.{function.__qualname__} {inner}"
    if isinstance(value, types.CodeType):
        return f"{value.co_code.hex()} {value.co_names} {[_fingerprint(item, seen) for item in value.co_consts]}"
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, (int, float, str, bytes, np.generic, np.dtype, type(None))):
        return repr(value)
    if isinstance(value, tuple):
        return str([_fingerprint(item, seen) for item in value])
    return type(value).__name__  # covered by the versions


def _used_globals(function):
    """Return the globals that a function names, and what it may name in modules among them."""
    names = function.__code__.co_names
    used = [function.__globals__[name] for name in names if name in function.__globals__]
    modules = [value for value in used if isinstance(value, types.ModuleType)]
    return used + [getattr(module, name) for module in modules for name in names if hasattr(module, name)]
