"""The lines of a process that has to compile: how long it takes here, and why installed kernels are not used."""

import ast
import contextlib
import functools
import inspect
import os
import sys
import time

from varlen_rnn.runtime.cache import bundles, folders
from varlen_rnn.runtime.cache.environment import prefix_of_bundle

COLD_START = (
    "varlen_rnn: compiling kernels for this machine, once; a layer's first training step takes about {seconds} s "
    "(ahead of time: python -m varlen_rnn cache warm; silence: VARLEN_RNN_QUIET=1)"
)
FOREIGN = "varlen_rnn: the kernels of the installation are for {theirs}; this process has {ours}, and does not use them"

# How many times as long the first step of an LSTM takes as `_read`, which is work of the same kind: measured.
_STEPS = 800


@functools.cache
def announce_compiling(folder):
    """Say why the first step takes long, on the standard error, when no kernel is at hand yet."""
    quiet = os.environ.get("VARLEN_RNN_QUIET", "0") not in ("", "0")
    if sys.stderr is None or quiet or any(map(folders.has_kernels, (folder, *bundles.usable_bundles()))):
        return
    lines = [COLD_START.format(seconds=seconds_of_first_step())]
    theirs = bundles.foreign_bundles()
    if theirs:
        lines.append(FOREIGN.format(theirs=" and ".join(theirs), ours=prefix_of_bundle().rstrip(", ")))
    with contextlib.suppress(OSError, ValueError):  # a closed one
        print(*lines, sep="\n", file=sys.stderr, flush=True)


def seconds_of_first_step():
    """Return about how many seconds this host compiles for a first training step, as busy as it is now."""
    try:
        source = inspect.getsource(sys.modules[__name__])
    except OSError:  # an archive without sources
        source = "print(0)\n" * 100
    began = time.perf_counter()
    _read(source)
    return max(1, round((time.perf_counter() - began) * _STEPS))


def _read(source):
    """Work for some ten milliseconds, long enough to be interrupted by others as compiling is."""
    for _ in range(25):
        ast.dump(ast.parse(source))
