"""Train the same model unpadded and padded, same seed, same batches: equal losses, and what each costs.

    python examples/compare_padding.py [--steps N] [--out DIR]

Three data sets that every Python carries: character names, sentences, functions of the standard library.  Each in
random batches, and in batches of like length (bucketed), which is how padding is made cheaper.
"""

import argparse
import time
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

import varlen_rnn as vr

LONGEST = 1000  # rows of a sequence; padding one function of 16,000 characters would take most of a minute
TOLERANCE = 1e-4  # between the losses of float32 runs that add in different orders


class Model(vr.nn.Module):
    """Embedding, LSTM, mean over each sequence, linear; the LSTM padded or not."""

    def __init__(self, vocabulary_size, num_classes, padded):
        self.embedding = vr.nn.Embedding(vocabulary_size, 64)
        self.lstm = vr.nn.LSTM(64, 128)
        self.run_lstm = vr.baselines.Padded(self.lstm) if padded else self.lstm
        self.output = vr.nn.Linear(128, num_classes)

    def forward(self, ids):
        """Return logits, one row per sequence."""
        y, _ = self.run_lstm(self.embedding(ids))
        return self.output(vr.sequence_pool(y, "mean"))


class Trainer:
    """A model, its optimizer, and the time that its steps took."""

    def __init__(self, data, padded):
        vr.manual_seed(0)
        self.model = Model(len(data.vocabulary), len(data.classes), padded)
        self.optimizer = vr.optim.Adam(self.model.parameters(), lr=1e-3, lazy=True)
        self.seconds = 0.0

    def step(self, ids, labels):
        """Learn from a batch; return the loss."""
        began = time.perf_counter()
        loss = vr.nn.functional.cross_entropy(self.model(ids), labels)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.seconds += time.perf_counter() - began
        return loss.item()


class Result(NamedTuple):
    """A line of the table; seconds of all steps, rows through the LSTM."""

    name: str
    order: str
    steps: int
    rows: int
    padded_rows: int
    seconds: float
    padded_seconds: float
    difference: float


def compare(data, bucket, num_steps):
    """Train both, a step of each in turn, so that whatever else the machine does slows both; losses must agree."""
    sequences = [sequence[:LONGEST] for sequence in data.sequences]
    batches = vr.data.batches(sequences, data.labels, batch_size=32, shuffle=True, bucket=bucket, seed=0)
    num_steps = min(num_steps, len(batches))
    for padded in (False, True):
        Trainer(data, padded).step(*batches[0])  # compile, or load, the kernels
    unpadded, padded = Trainer(data, False), Trainer(data, True)
    rows, padded_rows, difference = 0, 0, 0.0
    name, order = data.name.partition(" (")[0], "bucketed" if bucket else "random"
    for k in tqdm(range(num_steps), desc=f"{name}, {order}", leave=False):
        ids, labels = batches[k]
        rows, padded_rows = rows + len(ids.data), padded_rows + vr.baselines.Padded.rows(ids)
        difference = max(difference, abs(unpadded.step(ids, labels) - padded.step(ids, labels)))
    if not difference <= TOLERANCE:
        raise SystemExit(f"{name}: losses differ by {difference:.1e}, more than rounding")
    return Result(name, order, num_steps, rows, padded_rows, unpadded.seconds, padded.seconds, difference)


def show(results):
    """Print the table."""
    print("data                       batches      rows     padded ratio  ms/step   padded ratio  losses differ by")
    for r in results:
        print(
            f"{r.name:26} {r.order:8} {r.rows:>8,} {r.padded_rows:>10,} {r.padded_rows / r.rows:>5.2f} "
            f"{r.seconds / r.steps * 1e3:>8.1f} {r.padded_seconds / r.steps * 1e3:>8.1f} "
            f"{r.padded_seconds / r.seconds:>5.2f}  {r.difference:.0e}"
        )


def draw(results, path):
    """Write a picture, everything for one row of data: microseconds, and rows through the LSTM."""
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        print("No picture: matplotlib is not installed (pip install matplotlib).")
        return
    times = [r.seconds / r.rows * 1e6 for r in results], [r.padded_seconds / r.rows * 1e6 for r in results]
    rows = [1.0] * len(results), [r.padded_rows / r.rows for r in results]
    places, names = range(len(results)), [f"{r.name.replace('_', ' ')}, {r.order}" for r in results]
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained", sharey=True)
    titles = ("microseconds per row of data", "rows through the LSTM, per row of data")
    for axis, (unpadded, padded), title in zip(axes, (times, rows), titles, strict=True):
        for shift, values, label in ((-0.2, unpadded, "unpadded"), (0.2, padded, "padded")):
            bars = axis.barh([place + shift for place in places], values, 0.4, label=label)
            axis.bar_label(bars, fmt="%.2f", padding=2, fontsize=8)
        axis.set_title(title)
        axis.margins(x=0.12)
    axes[0].set_yticks(places, names)
    axes[0].invert_yaxis()
    axes[1].legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)
    print(f"picture: {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60, help="steps of each run, at least 1; default 60")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder of the picture")
    arguments = parser.parse_args()
    sets = (vr.data.unicode_names(), vr.data.documentation_sentences(), vr.data.standard_library_functions())
    results = [compare(data, bucket, max(1, arguments.steps)) for data in sets for bucket in (False, True)]
    show(results)
    print(f"Largest difference between the losses: {max(r.difference for r in results):.0e}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    draw(results, arguments.out / "compare_padding.png")


if __name__ == "__main__":
    main()
