"""The driver's end of the engines' processes."""

import argparse
import contextlib
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.engines import LIMITED

ROOT = Path(__file__).parent.parent
BUILD_SECONDS = 60.0  # of engines that are limited
# Read when a library is loaded, so they are set before the process begins; sgemm is NumPy's, whatever its BLAS.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


class EngineError(RuntimeError):
    """An engine's process ended; what it said stands above, on stderr."""


class Process:
    """A process that answers requests about one engine, as `benchmarks.worker` has them.

    Its label tells it from others of the same engine; `variables` are more variables of its environment.
    """

    def __init__(self, engine, threads, label=None, variables=()):
        self.engine, self.threads, self.label = engine, threads, label or engine
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.worker"],
            cwd=ROOT,
            env=environment(threads) | dict(variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid

    def send(self, do, **request):
        """Ask without waiting for the reply."""
        try:
            print(json.dumps({"do": do, **request}), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise EngineError(f"{self.engine}: its process ended") from None

    def replies(self, end):
        """Return whether the reply to the request sent last begins before a time of `time.monotonic`."""
        return bool(select.select([self._process.stdout], [], [], max(0.0, end - time.monotonic()))[0])

    def receive(self):
        """Return the reply to the request sent last."""
        line = self._process.stdout.readline()
        if not line:
            raise EngineError(f"{self.engine}: its process ended")
        return json.loads(line)

    def ask(self, do, **request):
        """Return the reply to a request."""
        self.send(do, **request)
        return self.receive()

    def send_build(self, task, case):
        """Ask to build the engine of a case, given as the fields of its `Case`."""
        self.send("build", task=task, engine=self.engine, case=case, threads=self.threads)

    def stop(self):
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


def environment(threads):
    """Return the environment of a process whose libraries use this many threads."""
    return os.environ | dict.fromkeys(THREAD_VARIABLES, str(threads))


def output_of(*words, threads=1):
    """Return what Python prints that runs these words from the root of the repository, with this many threads."""
    command = [sys.executable, *words]
    ran = subprocess.run(command, cwd=ROOT, env=environment(threads), stdout=subprocess.PIPE, text=True, check=True)
    return ran.stdout


def options(about, **added):
    """Return the options of the command line: `added`, {name: arguments of argparse}, and `--write`."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write what is printed to the file of results")
    for name, arguments in added.items():
        parser.add_argument(f"--{name}", **arguments)
    return parser.parse_args()


@contextlib.contextmanager
def started(task, case, engines, threads):
    """Yield the processes of engines that have built a case: {process: its modes}.

    One that is limited and takes longer than `BUILD_SECONDS` is stopped, and not among them.
    """
    processes, built = [], {}
    try:
        for engine in engines:
            processes.append(Process(engine, threads))
            processes[-1].send_build(task, case)
        end = time.monotonic() + BUILD_SECONDS
        for process in processes:
            if process.engine in LIMITED and not process.replies(end):
                process.stop()
            else:
                built[process] = process.receive()
        yield built
    finally:
        for process in processes:
            process.stop()
