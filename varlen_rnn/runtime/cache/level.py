"""Processor levels: code for a level runs on every host that has all features of the level.

If the environment variable `VARLEN_RNN_LEVEL` names a level, the process compiles for it instead of for its host;
`cache warm --level` sets the variable.
"""

import os

import llvmlite.binding as llvm

_V3 = ("avx", "avx2", "bmi", "bmi2", "cx16", "f16c", "fma", "lzcnt", "movbe", "popcnt", "sahf", "sse4.2", "xsave")
LEVELS = {
    "x86-64-v4": (*_V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"),
    "x86-64-v3": _V3,
}


def level_of(features):
    """Return the level whose kernels a host with these features uses, or None if it must compile its own.

    A host with AVX-512 uses no kernels of a lower level, because its tiles have another shape.

    Parameters
    ----------
    features : dict of str to bool
        By LLVM's name of each feature, whether the host has it.

    Examples
    --------
    >>> level_of(dict.fromkeys(LEVELS["x86-64-v3"], True))
    'x86-64-v3'
    >>> level_of({"avx": True}) is None
    True
    """
    level = next((name for name, needed in LEVELS.items() if all(map(features.get, needed))), None)
    return None if level == "x86-64-v3" and features.get("avx512f") else level


def runs_here(level):
    """Return whether this host has all features of a level."""
    return all(map(llvm.get_host_cpu_features().get, LEVELS[level]))


# These are read once at import, because compiled kernels do not change.
TARGET = os.environ.get("VARLEN_RNN_LEVEL")
HOST_LEVEL = level_of(llvm.get_host_cpu_features())
# The features that determine the shape of tiles.
FEATURES = dict.fromkeys(LEVELS[TARGET], True) if TARGET else dict(llvm.get_host_cpu_features())
