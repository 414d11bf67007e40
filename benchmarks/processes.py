"""The driver's end of the engines' processes."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Read when a library is loaded, so they are set before the process begins; sgemm is NumPy's, whatever its BLAS.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


class EngineError(RuntimeError):
    """An engine's process ended; what it said stands above, on stderr."""


class Process:
    """A process that answers requests about one engine, as `benchmarks.worker` has them.

    Its label tells it from others of the same engine.
    """

    def __init__(self, engine, threads, label=None):
        self.engine, self.threads, self.label = engine, threads, label or engine
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.worker"],
            cwd=ROOT,
            env=environment(threads),
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
        self._process.communicate()


def environment(threads):
    """Return the environment of a process whose libraries use this many threads."""
    return os.environ | dict.fromkeys(THREAD_VARIABLES, str(threads))


@contextlib.contextmanager
def started(task, case, engines, threads):
    """Yield the processes of engines that have built a case: {process: its modes}."""
    processes = []
    try:
        for engine in engines:
            processes.append(Process(engine, threads))
            processes[-1].send_build(task, case)
        yield {process: process.receive() for process in processes}
    finally:
        for process in processes:
            process.stop()
