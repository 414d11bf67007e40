"""Stop ranks of a training at random moments, on MPI and on torchrun: does it always end with the same weights?

    python -m benchmarks.survival --runs 50

A run has one to three accidents: a rank is killed, raises, sleeps for ever, or is stopped by SIGSTOP.  One launch of
torchrun survives all of them (`--max-restarts`); under MPI the same command is run again.  A run is wrong if a launch
hangs, if an attempt does not begin with a whole checkpoint of about the step of the accident, or if the weights of any
rank at the end are not, to the bit, those of a training that nothing disturbed.  Results:
benchmarks/results/survival.txt.
"""

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from benchmarks import machine
from benchmarks.processes import ROOT
from benchmarks.survivor import EVERY, KINDS, STEPS, Accident

MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
# A rank that waits spins, which needs a core of its own: on few cores it shall yield.
OPEN_MPI = ("--allow-run-as-root", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1")
HANGS = 600  # seconds for a launch: its accidents, each with its timeout, and starts on a busy machine
RANKS = 2
SPARE = 2  # more restarts than accidents: on a busy machine, a rank may be late without being asleep


def engines():
    """Return the engines that are installed."""
    found = {"gloo": find_spec("torch") is not None, "mpi": bool(MPIEXEC and find_spec("mpi4py"))}
    return [engine for engine, is_there in found.items() if is_there]


def options_of_mpi():
    """Return the options of `mpiexec` for few cores; other MPIs than Open MPI need none."""
    told = subprocess.run([MPIEXEC, "--version"], capture_output=True, text=True, check=False).stdout
    return OPEN_MPI if "Open MPI" in told else ()


def command(engine, ranks, *arguments, restarts=0):
    """Return the command that launches ranks of an engine, given what follows `python`."""
    if engine == "gloo":
        options = ["--standalone", "--nproc-per-node", ranks, "--max-restarts", restarts]
        words = [sys.executable, "-m", "torch.distributed.run", *options, *arguments]
    else:
        words = [MPIEXEC, "-n", ranks, *options_of_mpi(), sys.executable, "-m", "mpi4py", *arguments]
    return list(map(str, words))


class Outcome(NamedTuple):
    """What a run of accidents led to.

    Attributes
    ----------
    digests : list of str
        Of each rank's weights.
    steps : list of int
        The steps that the rank had taken when its accident happened.
    began : list of int
        The step with which rank 0 began after each accident.
    seconds : list of float
        From each accident to the beginning of the next attempt's training, its start included.
    text : str
        The output of all launches.
    """

    digests: list
    steps: list
    began: list
    seconds: list
    text: str


def survive(engine, accidents, folder, timeout):
    """Launch the training again and again until it is complete; raise `TimeoutError` if a launch hangs."""
    words = ["-m", "benchmarks.survivor", folder, *accidents, "--timeout", timeout]
    restarts = len(accidents) + SPARE
    launch, text = command(engine, RANKS, *words, restarts=restarts), ""
    for _ in range(1 if engine == "gloo" else restarts + 1):
        status, output = run(launch)
        text += output
        if status == 0:
            break
    else:
        raise RuntimeError(text)
    logs = [[json.loads(line) for line in (folder / f"rank-{r}.jsonl").read_text().splitlines()] for r in range(RANKS)]
    starts = [line for line in logs[0] if "began" in line]
    told = [(folder / f"accident-{n}").read_text().split() for n in range(len(accidents))]
    happened, steps = [float(when) for when, _ in told], [int(step) for _, step in told]
    after = [next(line for line in starts if line["time"] > when) for when in happened]
    seconds = [line["time"] - when for line, when in zip(after, happened, strict=True)]
    return Outcome([log[-1].get("digest") for log in logs], steps, [line["began"] for line in after], seconds, text)


def run(words):
    """Run a command in a session of its own; return its status and output.  Nothing of it is left running."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "VARLEN_RNN_QUIET": "1"}
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            words, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status = process.wait(HANGS)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{' '.join(words)} hangs") from None
        finally:
            end_session(process.pid)
            process.wait()
        output.seek(0)
        return status, output.read()


def end_session(number):
    """Kill what is left of a session: launchers put ranks into process groups of their own."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == number:
                os.kill(int(path.parent.name), signal.SIGKILL)
        except (OSError, ValueError):
            pass  # it ended meanwhile


def check(outcome, accidents, digest):
    """Return what is wrong with an outcome, or None."""
    if set(outcome.digests) != {digest}:
        return f"digests {outcome.digests}, not {digest}"
    for accident, step, began in zip(accidents, outcome.steps, outcome.began, strict=True):
        # The newest checkpoint may not be whole yet, or be one that the other rank goes on to write.
        newest = step // EVERY * EVERY
        if began not in (newest, max(0, newest - EVERY), (step + 1) // EVERY * EVERY):
            return f"after {accident} in step {step} it began with step {began}"
    return None


def planned(rng):
    """Return one to three random accidents, at different steps."""
    steps = sorted(rng.sample(range(1, STEPS - 1), rng.randint(1, 3)))
    return [Accident(step, rng.randrange(RANKS), rng.choice(KINDS), rng.random()) for step in steps]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="of the accidents")
    parser.add_argument("--timeout", type=float, default=20.0, help="seconds that a rank waits for the others")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no run after so many")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results" / "survival.txt")
    arguments = parser.parse_args()
    rng, began, wrong = random.Random(arguments.seed), time.perf_counter(), 0
    wanted, lines, seconds = {}, [], {kind: [] for kind in KINDS}
    for engine in engines():
        with tempfile.TemporaryDirectory() as folder:
            outcome = survive(engine, [], Path(folder), arguments.timeout)
        wanted[engine] = outcome.digests[0]
        lines.append(f"{engine}, undisturbed: weights {wanted[engine][:16]}")
        print(lines[-1], flush=True)
    for number in range(arguments.runs):
        if time.perf_counter() - began > 60 * arguments.minutes:
            break
        engine, accidents = engines()[number % len(engines())], planned(rng)
        with tempfile.TemporaryDirectory() as folder:
            try:
                outcome = survive(engine, accidents, Path(folder), arguments.timeout)
                found = check(outcome, accidents, wanted[engine])
            except (TimeoutError, RuntimeError) as error:
                outcome, found = None, f"{error}"[-2000:]
        wrong += found is not None
        for accident, took in zip(accidents, outcome.seconds if outcome else (), strict=False):
            seconds[accident.kind].append(took)
        steps = (
            f"after steps {outcome.steps} it began with {outcome.began}, weights {outcome.digests[0][:16]}"
            if outcome
            else "no outcome"
        )
        lines.append(f"run {number + 1}, {engine}: {' '.join(map(str, accidents))}: {steps}: {found or 'right'}")
        print(lines[-1], flush=True)
    lines.insert(0, summary(len(lines) - len(wanted), wrong, seconds, arguments.timeout))
    print(lines[0])
    arguments.results.write_text("\n".join(lines) + "\n")
    raise SystemExit(wrong > 0)


def summary(runs, wrong, seconds, timeout):
    """Return the lines that stand above all runs."""
    where = machine.describe(1)
    lines = [
        f"{runs} runs on {' and '.join(engines())}, {where['processor']}, {where['date']}, commit {where['commit']}: "
        f"{wrong} wrong.  A rank waits {timeout:.0f} s for the others.",
        "An accident is step:rank:kind:moment.  Seconds from an accident to the next attempt's first step:",
    ]
    for kind, found in seconds.items():
        if found:
            middle = statistics.median(found)
            lines.append(f"  {kind:9} {len(found):3} times, median {middle:5.1f}, at most {max(found):5.1f}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
