"""Print to standard error how long compiling will take, and which products are emulated."""

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
    "(to compile ahead of time: python -m varlen_rnn cache warm; to hide this message: VARLEN_RNN_QUIET=1)"
)
FOREIGN = (
    "varlen_rnn: the kernels of the installation are for {theirs}; this process has {ours}, and does not use them "
    "(install kernels for its versions: {command})"
)

EMULATED = (
    "varlen_rnn: products at precision {precision!r} are emulated, because {reason}, and take much longer than at "
    "'fp32' (to hide this message: VARLEN_RNN_QUIET=1)"
)

# An LSTM's first step takes so many times as long as `_read`, as measured; both mostly run Python's own code.
_STEPS = 800


@functools.cache
def announce_compiling(folder):
    """Print to standard error why the first step takes long, unless compiled kernels are available."""
    if _is_quiet() or any(map(folders.has_kernels, (folder, *bundles.usable_bundles()))):
        return
    lines = [COLD_START.format(seconds=seconds_of_first_step())]
    theirs = bundles.foreign_bundles()
    if theirs:
        from varlen_rnn.runtime.cache.again import command_for_kernels  # imports modules that few processes need

        ours = prefix_of_bundle().rstrip(", ")
        lines.append(FOREIGN.format(theirs=" and ".join(theirs), ours=ours, command=command_for_kernels()))
    _print(lines)


@functools.cache
def announce_emulation(precision, reason):
    """Print to standard error, once a process, that products at a precision are emulated, and why."""
    if not _is_quiet():
        _print([EMULATED.format(precision=precision, reason=reason)])


def _is_quiet():
    return sys.stderr is None or os.environ.get("VARLEN_RNN_QUIET", "0") not in ("", "0")


def _print(lines):
    with contextlib.suppress(OSError, ValueError):  # standard error may be closed
        print(*lines, sep="\n", file=sys.stderr, flush=True)


def seconds_of_first_step():
    """Estimate how many seconds a first training step takes to compile on this host, under its present load."""
    try:
        source = inspect.getsource(sys.modules[__name__])
    except OSError:  # the package may be in an archive without sources
        source = "print(0)\n" * 100
    began = time.perf_counter()
    _read(source)
    return max(1, round((time.perf_counter() - began) * _STEPS))


def _read(source):
    """Work for about ten milliseconds: long enough that other processes slow it down as much as compiling."""
    for _ in range(25):
        ast.dump(ast.parse(source))
