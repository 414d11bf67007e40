"""The process of one engine: requests on stdin, replies on stdout, a line of JSON each.

    {"do": "build", "task": "layers", "engine": "torch packed", "case": {...}, "threads": 2}
    {"do": "outputs", "mode": "training", "path": "a.npz"}
    {"do": "seconds", "mode": "training", "clock": "perf_counter"}

Between requests it waits in a read, its threads asleep or soon to be, so only one engine computes at a time.
"""

import importlib
import json
import os
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.clock import peak_bytes, seconds_of_pieces, seconds_per_step, sgemm_rate
from benchmarks.engines import MODES, build
from benchmarks.quiet import TOLERATED

SETTLED_SECONDS, MOST_WINDOWS = 0.05, 20


class Worker:
    """Answers requests about one engine; each method is a request, and returns what JSON can hold."""

    def look_in(self, folder):
        """Take varlen_rnn from a folder from now on; return the folder of the package that is then found."""
        sys.path.insert(0, folder)
        return str(Path(importlib.import_module("varlen_rnn").__file__).parent)

    def build(self, task, engine, case, threads):
        """Build an engine, in place of the one before; return the modes that it has."""
        self.engine, self.threads = build(task, engine, case, threads), threads
        return [mode for mode in MODES if hasattr(self.engine, mode)]

    def outputs(self, mode, path):
        """Run a step and write its results to a file, by name."""
        np.savez(path, **self.engine.arrays(getattr(self.engine, mode)()))

    def seconds(self, mode, clock="perf_counter"):
        """Return the seconds of a step, by a function of `time`."""
        return seconds_per_step(getattr(self.engine, mode), clock)

    def notes(self, mode):
        """Return what an engine has to say of its steps in a mode, by name; most have nothing."""
        return getattr(self.engine, "notes", {}).get(mode, {})

    def pieces(self):
        """Return the seconds of the pieces of a training step, by name."""
        return seconds_of_pieces(self.engine.forward, self.engine.backward)

    def multiply_add(self):
        """Return the multiply-add rate of the threads; a peer's process never loads a compiler for it."""
        return importlib.import_module("benchmarks.peak").multiply_add_rate(self.threads)

    def sgemm(self):
        """Return this process's own sgemm rate."""
        return sgemm_rate()

    def peak(self, mode):
        """Return the bytes that a step takes at its peak."""
        return peak_bytes(getattr(self.engine, mode))


def settle():
    """Wait until the threads of this process take less than a quarter of a core, a second at most.

    Those of BLAS and OpenMP spin after their last product, OpenBLAS's for longer than a window, on cores that the next
    request needs.
    """
    spent = time.process_time()
    for _ in range(MOST_WINDOWS):
        time.sleep(SETTLED_SECONDS)
        before, spent = spent, time.process_time()
        if spent - before <= TOLERATED * SETTLED_SECONDS:
            return


def main():
    # Replies have a descriptor of their own, so that whatever a library prints does not mix with them.
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    worker = Worker()
    for line in sys.stdin:
        request = json.loads(line)
        reply = getattr(worker, request.pop("do"))(**request)
        settle()
        print(json.dumps(reply), file=replies)


if __name__ == "__main__":
    main()
