"""Levels of processors: code for one runs on every host that has all of its features.

`VARLEN_RNN_LEVEL` names the level that a process compiles for in place of its host: `cache warm --level` sets it.
"""

import os

import llvmlite.binding as llvm

_V3 = ("avx", "avx2", "bmi", "bmi2", "cx16", "f16c", "fma", "lzcnt", "movbe", "popcnt", "sahf", "sse4.2", "xsave")
LEVELS = {
    "x86-64-v4": (*_V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"),
    "x86-64-v3": _V3,
}


def level_of(features):
    """Return the level whose kernels a host with these features takes, or None if it compiles its own.

    A host with AVX-512 takes no lower level, because tiles have another shape there.

    Parameters
    ----------
    features : dict of str to bool
        LLVM's names.

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


# At import, because kernels are compiled for good.
TARGET = os.environ.get("VARLEN_RNN_LEVEL")
HOST_LEVEL = level_of(llvm.get_host_cpu_features())
# What decides the shape of tiles.
FEATURES = dict.fromkeys(LEVELS[TARGET], True) if TARGET else dict(llvm.get_host_cpu_features())
