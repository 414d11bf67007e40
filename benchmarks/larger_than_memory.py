"""`python -m benchmarks.larger_than_memory [GIGABYTES]`: an epoch over a memory-mapped file, and its memory.

Prints seconds, and the megabytes that no file backs (RssAnon): pages of the file are the system's to drop.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import varlen_rnn as vr

FEATURES = 64


def anonymous():
    """Return the megabytes of this process that no file backs."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("RssAnon:"))


def write(path, size):
    """Write sequences of 10 to 199 rows until the file has so many bytes; the class is the sign of a first number."""
    import pyarrow as pa

    rng = np.random.default_rng(0)
    schema = pa.schema([("x", pa.list_(pa.list_(pa.float32(), FEATURES))), ("y", pa.string())])
    with pa.ipc.new_file(path, schema) as writer:
        while os.path.getsize(path) < size:
            offsets = np.concatenate([[0], np.cumsum(rng.integers(10, 200, 4000))]).astype(np.int32)
            rows = rng.standard_normal((offsets[-1], FEATURES), np.float32)
            entries = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), FEATURES)
            column = pa.ListArray.from_arrays(pa.array(offsets), entries).cast(schema[0].type)
            labels = np.where(rows[offsets[:-1], 0] > 0, "a", "b")
            writer.write_batch(pa.record_batch([column, pa.array(labels)], schema=schema))


class Model(vr.nn.Module):
    """A GRU, the maximum over each sequence, a linear layer."""

    def __init__(self):
        self.gru = vr.nn.GRU(FEATURES, 16)
        self.output = vr.nn.Linear(16, 2)

    def forward(self, x):
        """Return logits, one row per sequence."""
        return self.output(vr.sequence_pool(self.gru(x)[0], "max"))


class Peak(vr.training.Callback):
    """The most memory after any step."""

    megabytes = 0

    def on_step_end(self, trainer):
        """Measure."""
        self.megabytes = max(self.megabytes, anonymous())


def main(gigabytes=4.0):
    """Write a file, train on it for an epoch, and print what that took."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/rows.arrow"
        write(path, gigabytes * 1e9)
        data, peak, model = vr.data.read(path, sequence="x", label="y"), Peak(), Model()
        trainer = vr.training.Trainer(
            model, vr.optim.Adam(model.parameters(), lr=3e-3),
            lambda x, labels: vr.nn.functional.cross_entropy(model(x), labels),
            vr.data.batches(data.sequences, data.labels, batch_size=256, shuffle=True), callbacks=[peak],
        )  # fmt: skip
        began = time.perf_counter()
        loss = trainer.fit(epochs=1)[-1]["loss"]
        seconds, size = time.perf_counter() - began, os.path.getsize(path) / 1e9
        print(f"{size:.2f} GB, {trainer.step} steps in {seconds:.0f} s, loss {loss:.2f}; at most {peak.megabytes} MB")


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
