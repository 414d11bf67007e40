"""Two examples on ranks of both engines, and on one: `python -m benchmarks.examples_on_ranks`.

Each command is one that its example documents, with some options more.  The results, the last lines that tell how well
the model does, stand in `results/examples_on_ranks.txt`.  Ranks have one thread each.
"""

import os
import subprocess
import sys
import tempfile

from benchmarks.machine import describe
from benchmarks.processes import ROOT
from benchmarks.survival import command

RESULTS = ROOT / "benchmarks" / "results" / "examples_on_ranks.txt"
EXAMPLES = {
    "classify_names.py": (["--steps", "500"], "held-out accuracy"),
    "recommend.py": (["--epochs", "20"], "trained"),
}
LAUNCHES = [(None, 1), ("gloo", 2), ("mpi", 2), ("mpi", 4)]


def result_of(engine, ranks, example):
    """Return the line of an example's output that has its result."""
    options, words = EXAMPLES[example]
    with tempfile.TemporaryDirectory() as folder:
        out = ["--out", folder] if example == "classify_names.py" else []
        script = [ROOT / "examples" / example, *options, *out]
        launch = command(engine, ranks, *script) if engine else [sys.executable, *map(str, script)]
        environment = os.environ | {"VARLEN_RNN_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"}
        done = subprocess.run(launch, env=environment, check=True, capture_output=True, text=True)
    return next(line for line in done.stdout.splitlines() if words in line)


def main():
    """Run all, print a line each, and write them."""
    machine = describe(1)
    lines = [f"date {machine['date']}, commit {machine['commit']}, processor {machine['processor']}"]
    for example in EXAMPLES:
        for engine, ranks in LAUNCHES:
            where = f"{ranks} ranks of {engine}" if engine else "one process"
            lines.append(f"{example}, {where}: {result_of(engine, ranks, example).strip()}")
            print(lines[-1], flush=True)
    RESULTS.write_text("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    main()
