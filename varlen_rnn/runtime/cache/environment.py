"""Compute a digest of everything on which all machine code depends: sources, versions, processor and settings.

A fingerprint is a text for one function: its bytecode, the values that it closes over, and the functions that it calls.
"""

import functools
import hashlib
import os
import platform
import sys
import types
from pathlib import Path
from typing import NamedTuple

import llvmlite
import llvmlite.binding as llvm
import numba
import numpy as np
from numba import config

from varlen_rnn.runtime.cache.level import TARGET
from varlen_rnn.runtime.numba_internals import target

# The sources on which machine code depends.  A change of other sources, such as a layer, must not cause a compilation.
# `cli/workload.py` is in the list because it decides which kernels an installation has.
SOURCES = (
    *("attention", "cells", "kernels", "linear_attention", "products", "recurrence"),
    *("runtime/cache", "runtime/jit.py", "runtime/numba_internals.py", "runtime/processor.py", "runtime/records.py"),
    *("runtime/forms.py", "cli/workload.py"),
)

# Settings of Numba that change machine code, besides the settings of the processor.  USING_SVML is in the list because
# code that calls Intel's vector library crashes a process without this library.
_SETTINGS = (
    *("OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "BOUNDSCHECK", "DEBUGINFO_DEFAULT", "EXTEND_VARIABLE_LIFETIMES"),
    *("USING_SVML", "LLVM_REFPRUNE_PASS", "LLVM_REFPRUNE_FLAGS"),
)

# Whether kernels check their indices; it is read once at import, because compiled kernels do not change.
CHECKED = os.environ.get("VARLEN_RNN_CHECK", "0") not in ("", "0")


class Environment(NamedTuple):
    """An environment: its digest, which is its folder's name, and a line that describes it to people."""

    name: str
    description: str


def _digest_of_sources():
    """Return the digest of the sources, or None if they cannot be read, for example in an archive."""
    digest, package = hashlib.sha256(), Path(__file__).parents[2]
    try:
        for source in SOURCES:
            for path in sorted((package / source).rglob("*.py")) or [package / source]:
                digest.update(path.read_bytes())
    except OSError:
        return None
    return digest.hexdigest()


# The digest is computed at import, because a process runs the sources that it imported, even if they change on disk.
_IMPORTED = _digest_of_sources()


def sources_known():
    """Return whether the sources can be read and have not changed since this process imported them."""
    return _IMPORTED is not None and _digest_of_sources() == _IMPORTED


@functools.cache
def this_environment():
    """Return the Environment of this process."""
    if TARGET:
        return environment_of_level(TARGET)
    triple, processor, features = target()
    versions = f"Numba {numba.__version__}, LLVM binding {llvmlite.__version__}, NumPy {np.__version__}"
    python = f"{platform.python_implementation()} {platform.python_version()}"
    # Host features determine the width of a tile even if the user hides them from Numba, so the digest includes them.
    host = llvm.get_host_cpu_features().flatten()
    words = f"sources {str(_IMPORTED)[:8]}, {versions}, {python}, {processor}{', checked' * CHECKED}"
    return _environment((versions, python, triple, processor, features, host), words)


@functools.cache
def environment_of_level(level):
    """Return the Environment of kernels that were compiled for a level of processors instead of one host.

    It names only the major version of NumPy and the minor version of Python, because kernels get arrays in Numba's own
    layout and call only functions that do not change between patch releases.  LLVM's triple ends with the release of
    macOS, which machine code does not depend on.
    """
    system = llvm.get_process_triple().rstrip("0123456789.")
    return _environment(("level", *_versions_of_bundle(), system, level), f"{prefix_of_bundle()}{level}")


def prefix_of_bundle():
    """Return how the description of every bundle with this process's versions begins; the level follows."""
    return f"sources {str(_IMPORTED)[:8]}, {', '.join(_versions_of_bundle())}{', checked' * CHECKED}, "


def _versions_of_bundle():
    compiler = f"Numba {numba.__version__}", f"LLVM binding {llvmlite.__version__}"
    python = f"{platform.python_implementation()} {'.'.join(platform.python_version_tuple()[:2])}"
    return *compiler, f"NumPy {np.__version__.split('.')[0]}", f"{python}{getattr(sys, 'abiflags', '')}"


def _environment(parts, description):
    settings = [*(str(getattr(config, name, None)) for name in _SETTINGS), str(CHECKED)]
    name = hashlib.sha256("\0".join((str(_IMPORTED), *parts, *settings)).encode()).hexdigest()[:32]
    return Environment(name, description)


def fingerprint(value, seen=()):
    """Return a text that differs whenever the machine code compiled from `value` could differ."""
    function = getattr(value, "py_func", value)
    if isinstance(function, types.FunctionType):
        if function in seen:
            return "recursive"
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        parts = [function.__code__, function.__defaults__, *cells, *_used_globals(function)]
        inner = [fingerprint(part, (*seen, function)) for part in parts]
        return f"{function.__module__}.{function.__qualname__} {inner}"
    if isinstance(value, types.CodeType):
        return f"{value.co_code.hex()} {value.co_names} {[fingerprint(item, seen) for item in value.co_consts]}"
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, (int, float, str, bytes, np.generic, np.dtype, type(None))):
        return repr(value)
    if isinstance(value, tuple):
        return str([fingerprint(item, seen) for item in value])
    return type(value).__name__  # the digest of sources covers any other value


def _used_globals(function):
    """Return the globals whose names occur in a function, and the members of global modules whose names occur in it."""
    names = function.__code__.co_names
    used = [function.__globals__[name] for name in names if name in function.__globals__]
    modules = [value for value in used if isinstance(value, types.ModuleType)]
    return used + [getattr(module, name) for module in modules for name in names if hasattr(module, name)]
