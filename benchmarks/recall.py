"""The share of right answers of `examples/stream_recall.py` with each layer: a digit for a letter, told before.

    python -m benchmarks.recall            # print the lines
    python -m benchmarks.recall --write    # and replace results/recall.txt

Each layer trains in a process of its own, with one seed.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from benchmarks.machine import publish
from benchmarks.processes import ROOT, environment

FILE = Path(__file__).parent / "results" / "recall.txt"
LAYERS = "GatedDeltaNet", "DeltaNet", "Mamba2", "MLSTM", "GatedLinearAttention", "LSTM", "SLSTM"
STEPS = 400


def answered(layer):
    """Return the share of right answers, as the example prints it."""
    command = [sys.executable, "examples/stream_recall.py", "--layer", layer, "--steps", str(STEPS)]
    ran = subprocess.run(command, cwd=ROOT, env=environment(1), stdout=subprocess.PIPE, text=True, check=True)
    return ran.stdout.partition("right answers: ")[2].split()[0]


def lines():
    """Yield the lines of the result."""
    yield f"64 units, {STEPS} batches of 64 sequences, seed 0; share of right answers"
    for layer in LAYERS:
        yield f"{layer}: {answered(layer)}"


def main():
    """Print the figures, and write them if asked to."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recall", description=__doc__)
    parser.add_argument("--write", action="store_true", help="replace the file of results")
    given = parser.parse_args()
    publish(lines(), FILE if given.write else None)


if __name__ == "__main__":
    main()
