"""What the machine code of every kernel depends on: our sources, the versions below them, the host and its settings."""

import functools
import hashlib
import os
import platform
import sys
from pathlib import Path
from typing import NamedTuple

import llvmlite
import llvmlite.binding as llvm
import numba
import numpy as np
from numba import config

from varlen_rnn.runtime.cache.level import TARGET
from varlen_rnn.runtime.numba_internals import target

# All that machine code is made of, and nothing else: a change in a layer costs nobody a compilation.
SOURCES = (
    *("attention", "cells", "kernels", "products", "recurrence"),
    *("runtime/cache", "runtime/jit.py", "runtime/numba_internals.py"),
)

# Settings of Numba that change machine code, besides the settings of the host.  Code that calls Intel's vector library
# ends a process that does not have it.
_SETTINGS = ("OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "BOUNDSCHECK", "DEBUGINFO_DEFAULT", "USING_SVML")

# Whether the kernels that other code may call check their indices; at import, for they are compiled for good.
CHECKED = os.environ.get("VARLEN_RNN_CHECK", "0") not in ("", "0")


class Environment(NamedTuple):
    """The digest of an environment, which is its name, and a line that describes it."""

    name: str
    description: str


def _digest_of_sources():
    """Return the digest of the sources, or None if they cannot be read: gone, being replaced, or in an archive."""
    digest, package = hashlib.sha256(), Path(__file__).parents[2]
    try:
        for source in SOURCES:
            for path in sorted((package / source).rglob("*.py")) or [package / source]:
                digest.update(path.read_bytes())
    except OSError:
        return None
    return digest.hexdigest()


# At import, since the process runs the sources that it imported, even after an upgrade.
_IMPORTED = _digest_of_sources()


def sources_known():
    """Return whether the sources can be read and are those that this process has imported."""
    return _IMPORTED is not None and _digest_of_sources() == _IMPORTED


@functools.cache
def this_environment():
    """Return the Environment of this process.

    Examples
    --------
    >>> len(this_environment().name), "Numba" in this_environment().description
    (32, True)
    """
    if TARGET:
        return environment_of_level(TARGET)
    triple, processor, features = target()
    versions = f"Numba {numba.__version__}, LLVM binding {llvmlite.__version__}, NumPy {np.__version__}"
    python = f"{platform.python_implementation()} {platform.python_version()}"
    # The tile takes its width from the host's own features, which a user may have hidden from Numba.
    host = llvm.get_host_cpu_features().flatten()
    words = f"sources {str(_IMPORTED)[:8]}, {versions}, {python}, {processor}{', checked' * CHECKED}"
    return _environment((versions, python, triple, processor, features, host), words)


@functools.cache
def environment_of_level(level):
    """Return the Environment of kernels that were compiled for a level of processors, not for a host.

    Several releases of NumPy and Python share it, because kernels know arrays as Numba passes them, and call functions
    that are the same in all releases of a minor version of Python.
    """
    return _environment(
        ("level", *_versions_of_bundle(), llvm.get_process_triple(), level), f"{prefix_of_bundle()}{level}"
    )


def prefix_of_bundle():
    """Return how the descriptions begin of all levels that this process could use on the right host."""
    return f"sources {str(_IMPORTED)[:8]}, {', '.join(_versions_of_bundle())}{', checked' * CHECKED}, "


def _versions_of_bundle():
    compiler = f"Numba {numba.__version__}", f"LLVM binding {llvmlite.__version__}"
    python = f"{platform.python_implementation()} {'.'.join(platform.python_version_tuple()[:2])}"
    return *compiler, f"NumPy {np.__version__.split('.')[0]}", f"{python}{getattr(sys, 'abiflags', '')}"


def _environment(parts, description):
    settings = [*(str(getattr(config, name, None)) for name in _SETTINGS), str(CHECKED)]
    name = hashlib.sha256("\0".join((str(_IMPORTED), *parts, *settings)).encode()).hexdigest()[:32]
    return Environment(name, description)
