"""Compile the C++ of a kernel by g++ and launch it.

Kernel(ptx).launch((1,), (32,), [x, out, 3])
"""

import ctypes
import functools
import hashlib
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from tests.emulated.folder import kept
from tests.emulated.ptx import Source
from tests.emulated.translation import translate
from varlen_rnn.runtime.parameters import ArrayKind, Parameters, of_array

_HERE = Path(__file__).parent
_RUNTIME = ("runtime.h", "threads.h", "scheduler.cpp", "races.cpp", "meetings.cpp")
# Contraction would fuse what PTX keeps apart; a fortified longjmp refuses to change stacks.
_COMMAND = ["g++", "-std=c++17", "-shared", "-fPIC", "-w", "-mfma", "-ffp-contract=off", "-fno-strict-aliasing"]
_COMMAND += ["-U_FORTIFY_SOURCE"]
_OF_KERNELS = "-O1"
_ERROR_BYTES = 400


class LaunchError(RuntimeError):
    """What a launch did wrong: an access out of bounds, a race, a deadlock."""


@dataclass(frozen=True)
class Schedule:
    """How the threads of a launch take turns.

    Attributes
    ----------
    races : bool
        Whether data races are errors.
    seed : int
        Of the order of threads; 0 is the order of their numbers.
    preempt : int
        A thread gives way before about every `preempt`-th access; 0 for never, except where it waits.
    limit : int
        The number of switches between threads after which a launch is an error.
    """

    races: bool = True
    seed: int = 0
    preempt: int = 0
    limit: int = 1 << 40


class _Given(ctypes.Structure):
    """The structure of the same name in `runtime.h`."""

    _fields_ = [
        ("params", ctypes.c_void_p),
        ("grid", ctypes.c_int * 3),
        ("ntid", ctypes.c_int * 3),
        ("cluster", ctypes.c_int),
        ("racecheck", ctypes.c_int),
        ("shared_bytes", ctypes.c_uint64),
        ("ranges", ctypes.c_void_p),
        ("num_ranges", ctypes.c_uint64),
        ("seed", ctypes.c_uint64),
        ("preempt", ctypes.c_uint64),
        ("limit", ctypes.c_uint64),
    ]


def _compile(path, *arguments):
    """Write what g++ makes of its arguments."""
    command = [*_COMMAND, *arguments, f"-I{_HERE}", "-o", str(path)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        raise RuntimeError(run.stderr[:3000])


def _library(name, *arguments):
    """Load a shared library that g++ makes if it is not in the folder."""
    path = kept(f"{name}.so", lambda path: _compile(path, *arguments))
    return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


@functools.cache
def _runtime():
    """Load the scheduler, compiled once for all kernels.

    Returns
    -------
    text : str
        The header that kernels include.
    folder : Path
        Where g++ finds it parsed already, which saves a quarter of the time of a kernel.
    """
    digest = hashlib.sha256("".join((_HERE / name).read_text() for name in _RUNTIME).encode()).hexdigest()[:16]
    _library(f"runtime-{digest}", "-O2", *(str(_HERE / name) for name in _RUNTIME if name.endswith(".cpp")))
    header = _HERE / "runtime.h"
    name = f"runtime-{digest}/runtime.h.gch"
    parsed = kept(name, lambda path: _compile(path, _OF_KERNELS, "-x", "c++-header", str(header)))
    return header.read_text(), parsed.parent


class Kernel:
    """The kernel of a PTX text, ready to run."""

    def __init__(self, ptx):
        self.source = Source(ptx)
        code, (header, parsed) = translate(self.source), _runtime()
        digest = hashlib.sha256((code + header).encode()).hexdigest()[:20]
        source = kept(f"{digest}.cpp", lambda path: path.write_text(code))
        self._library = _library(digest, f"-I{parsed}", _OF_KERNELS, str(source))
        found = (ctypes.c_uint64 * (2 * len(self.source.tables) + 1))()
        self._tables = list(found[: 2 * self._library.tables(found)])

    def launch(self, grid, block, arguments, **options):
        """Run the kernel on arrays of the host, and numbers, with the options of `run`."""
        return self.run(grid, block, Parameters(tuple(map(_of_host, arguments))), **options)

    def run(self, grid, block, parameters, shared_bytes=0, cluster=0, schedule=Schedule()):
        """Run the kernel, and return the number of switches between threads.

        Parameters
        ----------
        grid, block : tuple of up to three int
            Blocks, and threads in a block.
        parameters : Parameters
        shared_bytes : int
            Size of the dynamic shared memory.
        cluster : int
            Blocks in a cluster, or 0 without clusters.
        schedule : Schedule
        """
        if len(parameters.numbers) != len(self.source.params):
            raise TypeError(f"expected {len(self.source.params)} parameters of PTX, got {len(parameters.numbers)}")
        ranges = [*self._tables, *spans_of(parameters)]
        spans = (ctypes.c_uint64 * max(1, len(ranges)))(*ranges)
        given = _Given(
            params=parameters.address,
            grid=(ctypes.c_int * 3)(*grid, *[1] * (3 - len(grid))),
            ntid=(ctypes.c_int * 3)(*block, *[1] * (3 - len(block))),
            cluster=cluster,
            racecheck=schedule.races,
            shared_bytes=self.source.static_bytes + shared_bytes,
            ranges=ctypes.addressof(spans),
            num_ranges=len(ranges) // 2,
            seed=schedule.seed,
            preempt=schedule.preempt,
            limit=schedule.limit,
        )
        error, switches = ctypes.create_string_buffer(_ERROR_BYTES), ctypes.c_uint64()
        if self._library.run(ctypes.byref(given), error, ctypes.byref(switches)):
            raise LaunchError(error.value.decode())
        return switches.value


def _of_host(argument):
    """Return an argument as launches take it: an array of the host with its parameters."""
    if not isinstance(argument, np.ndarray):
        return argument
    return SimpleNamespace(parameters=of_array(argument, argument.ctypes.data), array=argument)


def spans_of(parameters):
    """Return where the memory of each array begins and ends, as a kernel finds the array in its parameters."""
    spans, left = [], list(parameters.numbers)
    for kind in _flat(parameters.kinds):
        if not isinstance(kind, ArrayKind):
            del left[0]
            continue
        _, _, size, itemsize, at, *sizes = left[: 5 + 2 * kind.ndim]
        del left[: 5 + 2 * kind.ndim]
        shape, strides = sizes[: kind.ndim], sizes[kind.ndim :]
        reach = [(n - 1) * step for n, step in zip(shape, strides, strict=True)] if size else []
        spans += [at + sum(min(0, r) for r in reach), at + sum(max(0, r) for r in reach) + itemsize * bool(size)]
    return spans


def _flat(kinds):
    for kind in kinds:
        if isinstance(kind, tuple) and not isinstance(kind, ArrayKind):
            yield from _flat(kind)
        else:
            yield kind
