"""What the machine code of every kernel depends on: our sources, the versions below them, the host and its settings."""

import functools
import hashlib
import os
import platform
from pathlib import Path
from typing import NamedTuple

import llvmlite
import llvmlite.binding as llvm
import numba
import numpy as np
from numba import config

from varlen_rnn.runtime.numba_internals import target

# All that machine code is made of, and nothing else: a change in a layer costs nobody a compilation.
SOURCES = (
    *("attention", "cells", "kernels", "products", "recurrence"),
    *("runtime/cache", "runtime/jit.py", "runtime/numba_internals.py"),
)

# Settings of Numba that change machine code, besides the settings of the host.
_SETTINGS = ("OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "BOUNDSCHECK", "DEBUGINFO_DEFAULT")

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
    triple, processor, features = target()
    settings = [*(str(getattr(config, name, None)) for name in _SETTINGS), str(CHECKED)]
    versions = f"Numba {numba.__version__}, LLVM binding {llvmlite.__version__}, NumPy {np.__version__}"
    python = f"{platform.python_implementation()} {platform.python_version()}"
    sources = str(_IMPORTED)
    # The tile takes its width from the host's own features, which a user may have hidden from Numba.
    host = llvm.get_host_cpu_features().flatten()
    parts = (sources, versions, python, triple, processor, features, host, *settings)
    name = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    return Environment(name, f"sources {sources[:8]}, {versions}, {python}, {processor}{', checked' * CHECKED}")
