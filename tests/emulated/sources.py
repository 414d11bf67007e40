"""From a kernel of Numba and the types of its arguments to PTX, by NVVM, without a GPU."""

import contextlib
import functools
import hashlib
import types as python_types
from importlib import metadata
from types import SimpleNamespace
from unittest import mock

import numpy as np
from numba import types

from tests.emulated.folder import kept
from varlen_rnn.runtime.cuda import numba_cuda

COMPUTE_CAPABILITY = 9, 0


def ptx_of(function, signature):
    """Return the PTX of a function for argument types, from the folder if it is there.

    Parameters
    ----------
    function : function
        As numba-cuda takes it: its globals name `numba.cuda`.
    signature : tuple of types of Numba
    """
    text = repr((digest_of(function), signature, COMPUTE_CAPABILITY, _versions()))
    name = f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.ptx"
    return kept(name, lambda path: path.write_text(_compiled(function, signature))).read_text()


@functools.cache
def _versions():
    names = "numba", "numba-cuda", "nvidia-nvvm", "nvidia-cuda-nvcc-cu12"
    return [(found.name, found.version) for found in metadata.distributions() if found.name in names]


def _compiled(function, signature):
    from numba.cuda import dispatcher

    # The compiler asks for a device only to learn its compute capability.
    device = SimpleNamespace(compute_capability=COMPUTE_CAPABILITY, id=0)
    with mock.patch.object(dispatcher, "get_current_device", return_value=device):
        ptx, _ = numba_cuda().compile(
            function, types.void(*signature), device=False, abi="numba", cc=COMPUTE_CAPABILITY, output="ptx"
        )
    return ptx


def digest_of(function):
    """Return a digest of all that a function is made of: its code, what it closes over, the globals that it names."""
    out = hashlib.sha256()
    _add(function, set(), out)
    return out.hexdigest()


def _add(value, seen, out):
    if id(value) in seen:
        return
    if isinstance(value, int | float | str | bytes | None | np.generic):
        out.update(repr(value).encode())
    elif isinstance(value, tuple | list):
        out.update(f"{len(value)} items".encode())
        for item in value:
            _add(item, seen, out)
    elif isinstance(value, np.ndarray):
        out.update(f"{value.dtype} {value.shape}".encode() + value.tobytes())
    elif isinstance(value, python_types.CodeType):
        out.update(value.co_code + repr((value.co_names, value.co_varnames, value.co_freevars)).encode())
        _add(value.co_consts, seen, out)
    elif isinstance(value, python_types.FunctionType):
        seen.add(id(value))
        _add_function(value, seen, out)
    elif isinstance(value, python_types.ModuleType):
        out.update(value.__name__.encode())
    elif isinstance(value, type):
        out.update(f"{value.__module__}.{value.__qualname__}".encode())
    elif hasattr(value, "py_func"):
        _add(value.py_func, seen, out)
    elif hasattr(value, "_defn"):  # an intrinsic
        _add(value._defn, seen, out)
    else:
        out.update(f"{type(value).__module__}.{type(value).__qualname__}".encode())


def _add_function(function, seen, out):
    _add(function.__code__, seen, out)
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # an empty cell
            _add(cell.cell_contents, seen, out)
    for name in _names_in(function.__code__):
        if name in function.__globals__:
            _add(function.__globals__[name], seen, out)


def _names_in(code):
    """Return the names of globals and attributes in the code of a function and of the functions inside it."""
    inner = [const for const in code.co_consts if isinstance(const, python_types.CodeType)]
    return [*code.co_names, *(name for const in inner for name in _names_in(const))]
