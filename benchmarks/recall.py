"""The share of right answers of `examples/stream_recall.py` with each layer: a digit for a letter, told before.

    python -m benchmarks.recall            # print the lines
    python -m benchmarks.recall --write    # and replace results/recall.txt

Each layer trains in a process of its own, with one seed.
"""

from pathlib import Path

from benchmarks.machine import publish_as_asked
from benchmarks.processes import output_of

FILE = Path(__file__).parent / "results" / "recall.txt"
LAYERS = "GatedDeltaNet", "DeltaNet", "Mamba2", "MLSTM", "GatedLinearAttention", "LSTM", "SLSTM"
STEPS = 400


def answered(layer):
    """Return the share of right answers, as the example prints it."""
    printed = output_of("examples/stream_recall.py", "--layer", layer, "--steps", str(STEPS))
    return printed.partition("right answers: ")[2].split()[0]


def lines():
    """Yield the lines of the result."""
    yield f"64 units, {STEPS} batches of 64 sequences, seed 0; share of right answers"
    for layer in LAYERS:
        yield f"{layer}: {answered(layer)}"


if __name__ == "__main__":
    publish_as_asked(lines(), FILE, __doc__)
