"""Train a Gated DeltaNet to look up digits by letters, and let it answer row by row, without padding.

    python examples/stream_recall.py                # train, and stream one sequence
    python examples/stream_recall.py --layer LSTM   # the same with an LSTM, or another layer

A sequence tells pairs of a letter and a digit, such as c7 a2 f7, and asks for the digits of its letters in another
order.  A state that is a matrix can write each digit under its letter.  The sequences are drawn at random, and have
unequal lengths.  A trained layer answers as the letters arrive: `stream` holds the state between calls.
"""

import argparse
import string
import time

import numpy as np

import varlen_rnn as vr
from varlen_rnn.nn import functional as F

LETTERS, DIGITS = string.ascii_lowercase[:16], string.digits
LAYERS = "GatedDeltaNet", "DeltaNet", "Mamba2", "MLSTM", "GatedLinearAttention", "LSTM", "SLSTM"


class Recall(vr.nn.Module):
    """Characters to the digit of each."""

    def __init__(self, layer, size):
        self.embedding = vr.nn.Embedding(len(LETTERS) + len(DIGITS), size)
        self.reader = getattr(vr.nn, layer)(size, size)
        self.output = vr.nn.Linear(size, len(DIGITS))

    def forward(self, ids):
        """Return the scores of digits, one row per character."""
        return self.output(self.reader(self.embedding(ids))[0])


def sequence(rng, most):
    """Return the ids of a sequence, and the digit of each character, -100 where none is asked for."""
    letters = rng.permutation(len(LETTERS))[: rng.integers(2, most + 1)]
    digits, asked = rng.integers(len(DIGITS), size=len(letters)), rng.permutation(len(letters))
    told = np.stack([letters, len(LETTERS) + digits], axis=1).ravel()
    nothing = np.full(len(told), -100)
    return np.concatenate([told, letters[asked]]), np.concatenate([nothing, digits[asked]])


def batch(rng, count, most):
    """Return a batch of ids, and the digits of all its rows."""
    ids, digits = zip(*(sequence(rng, most) for _ in range(count)), strict=True)
    return vr.LoDTensor.from_sequences(list(ids), num_levels=1), np.concatenate(digits)


def accuracy(model, ids, digits):
    """Return the share of questions that are answered rightly."""
    with vr.no_grad():
        found = np.asarray(model(ids)).argmax(axis=1)
    return (found == digits)[digits >= 0].mean()


def answers(model, ids):
    """Yield each character, and the digit that a model finds most probable after it, row by row."""
    reader = model.reader.stream()
    for at in ids:
        y = reader(model.embedding.weight.numpy()[at])
        with vr.no_grad():
            yield (LETTERS + DIGITS)[at], DIGITS[np.asarray(model.output(y[None])).argmax()]


def main():
    """Train, measure, and stream."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layer", choices=LAYERS, default=LAYERS[0], help=f"default {LAYERS[0]}")
    parser.add_argument("--size", type=int, default=64, help="units; default 64")
    parser.add_argument("--steps", type=int, default=600, help="batches of 64 sequences; default 600")
    parser.add_argument("--most", type=int, default=12, help="pairs of a sequence, at most; default 12")
    settings = parser.parse_args()
    vr.manual_seed(0)
    rng, model = np.random.default_rng(0), Recall(settings.layer, settings.size)
    optimizer, began = vr.optim.Adam(model.parameters(), lr=0.003), time.perf_counter()
    for step in range(settings.steps):
        ids, digits = batch(rng, 64, settings.most)
        loss = F.cross_entropy(model(ids), digits, ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % 100 == 0:
            print(f"step {step + 1}: loss {loss.item():.3f}, {time.perf_counter() - began:.0f} s")
    test = batch(np.random.default_rng(1), 200, settings.most)
    print(f"right answers: {accuracy(model.eval(), *test):.3f}")
    ids, digits = sequence(np.random.default_rng(2), settings.most)
    found = list(answers(model, ids))
    told = len(ids) - (digits >= 0).sum()
    print("told:", "".join(letter for letter, _ in found[:told]))
    print("asked and answered:", " ".join(map("".join, found[told:])))


if __name__ == "__main__":
    main()
