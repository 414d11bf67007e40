"""Levels (classes of processors): code for a level runs on every host that has all features of the level.

If the environment variable `VARLEN_RNN_LEVEL` names a level, the process compiles for it instead of for its host;
`cache warm --level` sets the variable.
"""

import os

import llvmlite.binding as llvm

from varlen_rnn.errors import InputError
from varlen_rnn.runtime.processor import PROCESSORS, processor_of, rows_of

VARIABLE = "VARLEN_RNN_LEVEL"  # environment variable


def levels_of(triple):
    """Return the levels of the architecture of a triple, as a dict `{name: Level}`."""
    return {row.level.name: row.level for row in rows_of(triple) if row.level}


def level_of(triple, features):
    """Return the name of the level whose kernels a host uses, or None if the host must compile its own kernels.

    A host with AVX-512 uses no kernels of a lower level, because its tiles have another shape.
    """
    level = processor_of(triple, features).level
    return level.name if level and all(map(features.get, level.features)) else None


def check_level(name, what):
    """Return `name` if this architecture has a level with this name; otherwise raise an InputError about `what`."""
    if name in LEVELS:
        return name
    foreign = name in {row.level.name for row in PROCESSORS.values() if row.level}
    hint = "that level belongs to another architecture: run the command on a machine with it" if foreign else None
    raise InputError(what, expected=known_levels(), got=name, hint=hint)


def known_levels():
    """Return the words by which an error names the levels of this architecture."""
    return f"a level of this architecture, {' or '.join(LEVELS) or 'which has none'}"


def runs_here(level):
    """Return whether this host has all features of a level of its architecture."""
    return all(map(llvm.get_host_cpu_features().get, LEVELS[level].features))


def variables_of(level):
    """Return the environment variables that make a process compile kernels for a level.

    On a host that lacks the level, each kernel is compiled for the level and again for this host.
    """
    chosen = {VARIABLE: level}
    return chosen | {"NUMBA_CPU_NAME": LEVELS[level].cpu, "NUMBA_CPU_FEATURES": ""} if runs_here(level) else chosen


# The following are computed once at import, because compiled kernels do not change.
_TRIPLE, _FEATURES = llvm.get_process_triple(), llvm.get_host_cpu_features()
LEVELS = levels_of(_TRIPLE)  # the levels of this architecture
HOST_LEVEL = level_of(_TRIPLE, _FEATURES)
_wanted = os.environ.get(VARIABLE)
TARGET = check_level(_wanted, VARIABLE) if _wanted else None
# The processor that this process compiles for.
PROCESSOR = processor_of(_TRIPLE, dict.fromkeys(LEVELS[TARGET].features, True) if TARGET else _FEATURES)
