"""Train the same model unpadded and padded, same seed, same batches: equal losses, and what each costs.

    python examples/compare_padding.py [--steps N] [--out DIR]

Three data sets that every Python carries: character names, sentences, functions of the standard library.
"""

import argparse
import time
from pathlib import Path

import numpy as np
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
        """Return logits, a row a sequence."""
        y, _ = self.run_lstm(self.embedding(ids))
        return self.output(vr.sequence_pool(y, "mean"))


def train(data, padded, num_steps):
    """Return the losses, the median seconds a step, and the rows that the LSTM saw."""
    vr.manual_seed(0)
    model = Model(len(data.vocabulary), len(data.classes), padded)
    optimizer = vr.optim.Adam(model.parameters(), lr=1e-3, lazy=True)
    sequences = [sequence[:LONGEST] for sequence in data.sequences]
    batches = vr.data.batches(sequences, data.labels, batch_size=32, shuffle=True, seed=0)
    losses, seconds, rows = [], [], 0
    label = f"{data.name}, {'padded' if padded else 'unpadded'}"
    for k in tqdm(range(min(num_steps, len(batches))), desc=label, leave=False):
        ids, labels = batches[k]
        began = time.perf_counter()
        loss = vr.nn.functional.cross_entropy(model(ids), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - began)
        losses.append(loss.item())
        rows += vr.baselines.Padded.rows(ids) if padded else len(ids.data)
    return np.array(losses), float(np.median(seconds)), rows


def compare(data, num_steps):
    """Return a line of the table; the losses must agree."""
    train(data, True, 1), train(data, False, 1)  # compile, or load, the kernels
    losses, unpadded, rows = train(data, False, num_steps)
    padded_losses, padded, padded_rows = train(data, True, num_steps)
    difference = float(np.max(np.abs(losses - padded_losses)))
    if difference > TOLERANCE:
        raise SystemExit(f"{data.name}: losses differ by {difference:.1e}, more than rounding")
    return data.name.partition(" (")[0], rows, padded_rows, unpadded, padded, difference


def draw(results, path):
    """Write a picture: milliseconds a step, unpadded beside padded."""
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        print('No picture: matplotlib is not installed (pip install "varlen-rnn[plot]").')
        return
    figure, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
    places, names = np.arange(len(results)), [result[0].replace("_", "\n") for result in results]
    rows, seconds = (
        [[r[1] for r in results], [r[2] for r in results]],
        [[r[3] for r in results], [r[4] for r in results]],
    )
    for axis, (unpadded, padded), title, scale in zip(
        axes, (seconds, rows), ("milliseconds a step", "thousand rows in all"), (1e3, 1e-3), strict=True
    ):
        axis.bar(places - 0.2, np.array(unpadded) * scale, 0.4, label="unpadded")
        axis.bar(places + 0.2, np.array(padded) * scale, 0.4, label="padded")
        axis.set_xticks(places, names, fontsize=8)
        axis.set(title=title, yscale="log")
    axes[0].legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)
    print(f"picture: {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path("out"))
    arguments = parser.parse_args()
    sets = (vr.data.unicode_names(), vr.data.documentation_sentences(), vr.data.standard_library_functions())
    results = [compare(data, arguments.steps) for data in sets]
    print("data                         rows     padded  ratio   ms/step   padded  ratio  loss differs by")
    for name, rows, padded_rows, unpadded, padded, difference in results:
        print(
            f"{name:26} {rows:>8,} {padded_rows:>10,} {padded_rows / rows:>6.2f} {unpadded * 1e3:>9.1f} "
            f"{padded * 1e3:>8.1f} {padded / unpadded:>6.2f}  {difference:.0e}"
        )
    arguments.out.mkdir(parents=True, exist_ok=True)
    draw(results, arguments.out / "compare_padding.png")


if __name__ == "__main__":
    main()
