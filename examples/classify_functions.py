"""Train a nested recurrence, without padding, to tell the package of a function from its lines of characters.

    python examples/classify_functions.py                          # train, and say how often it is right
    python examples/classify_functions.py --data my.jsonl          # the same on {"text": ..., "label": ...} a line

A function is a sequence of lines, and a line one of characters: two levels of a LoD.  An LSTM reads the characters of
all lines at once, one row per line goes into another LSTM, and one row per function into a linear layer.  The data is
in every Python that has its sources.
"""

import argparse
import time
from pathlib import Path

import numpy as np

import varlen_rnn as vr
from varlen_rnn.nn import functional as F

PACKAGES = ["asyncio", "email", "encodings", "idlelib", "json", "logging", "tkinter", "unittest"]
MOST_CHARACTERS = 4000  # of a function: a few are longer than all others of a batch together


class Classifier(vr.nn.Module):
    """Characters to lines, lines to functions, functions to classes."""

    def __init__(self, vocabulary_size, num_classes, embedding_size=24, hidden_size=64):
        self.embedding = vr.nn.Embedding(vocabulary_size, embedding_size)
        self.of_lines = vr.nn.LSTM(embedding_size, hidden_size, bidirectional=True)
        self.of_functions = vr.nn.LSTM(2 * hidden_size, hidden_size, bidirectional=True)
        self.dropout = vr.nn.Dropout(0.3)
        self.output = vr.nn.Linear(2 * hidden_size, num_classes)

    def forward(self, ids):
        """Return logits, one row per function, of characters with two levels."""
        characters, _ = self.of_lines(self.embedding(ids))
        lines, _ = self.of_functions(vr.sequence_pool(characters, "max"))
        return self.output(self.dropout(vr.sequence_pool(lines, "max")))


def functions_of(data):
    """Return each sequence of characters as a list of its lines."""
    texts = ["".join(data.vocabulary[number] for number in ids)[:MOST_CHARACTERS] for ids in data.sequences]
    number_of = {character: number for number, character in enumerate(data.vocabulary)}
    return [[np.array([number_of.get(c, 0) for c in line], np.int64) for line in text.split("\n")] for text in texts]


def batch_of(functions):
    """Return the characters of functions one after another, with the lengths of functions and of lines."""
    lines = [line for function in functions for line in function]
    return vr.create_lod_tensor(np.concatenate(lines), [[len(f) for f in functions], [len(line) for line in lines]])


def batches(functions, labels, batch_size, rng=None):
    """Yield batches of functions of about as many characters, and their labels; in a random order with an `rng`."""
    sizes = np.array([sum(map(len, function)) for function in functions])
    order = np.argsort(sizes * (1 if rng is None else rng.uniform(0.9, 1.1, len(sizes))), kind="stable")
    groups = [order[first : first + batch_size] for first in range(0, len(order), batch_size)]
    for group in groups if rng is None else rng.permutation(len(groups)):
        chosen = group if rng is None else groups[group]
        yield batch_of([functions[i] for i in chosen]), labels[chosen]


def accuracy(model, functions, labels):
    """Return the share of functions that the model tells right."""
    model.eval()
    right, device = 0, model.output.weight.device
    with vr.no_grad():
        for ids, wanted in batches(functions, labels, 64):
            right += (model(ids.to(device)).cpu().numpy().argmax(axis=1) == wanted).sum()
    model.train()
    return right / len(labels)


def train(model, functions, labels, settings):
    """Train a model, under a progress bar; the learning rate falls in a straight line."""
    optimizer, rng = vr.optim.Adam(model.parameters(), lr=settings.lr, lazy=True), np.random.default_rng(0)
    steps = settings.epochs * -(-len(functions) // settings.batch_size)
    falling = vr.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.05, 1 - step / steps))

    def loss(ids, wanted):
        return F.cross_entropy(model(ids.to(settings.device)), vr.Variable(wanted).to(settings.device))

    vr.training.Trainer(
        model, optimizer, loss, lambda epoch: batches(functions, labels, settings.batch_size, rng), clip_norm=1.0,
        callbacks=[vr.training.Schedule(falling), vr.training.Progress()],
    ).fit(settings.epochs)  # fmt: skip


def padded_share(functions):
    """Return how many characters a padded batch has for each that exists, of 32 neighbours in size."""
    padded = rows = 0
    for ids, _ in batches(functions, np.zeros(len(functions)), 32):
        lines, characters = ids.recursive_sequence_lengths()
        padded += len(lines) * max(lines) * max(characters)
        rows += ids.shape[0]
    return padded / rows


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, help="JSON Lines with text and label; by default Python's own functions")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where the model is trained")
    return parser.parse_args()


def main():
    """Train, and print a table."""
    settings = parse_arguments()
    vr.manual_seed(0)
    if settings.data is None:
        data = vr.data.standard_library_functions(PACKAGES, limit=250)
    else:
        data = vr.data.read_jsonl(settings.data)
    training, held_out = data.split(seed=0)
    functions, tests = functions_of(training), functions_of(held_out)
    labels, wanted = np.asarray(training.labels), np.asarray(held_out.labels)
    model = Classifier(len(data.vocabulary), len(data.classes)).to(settings.device)
    began = time.perf_counter()
    train(model, functions, labels, settings)
    share = accuracy(model, tests, wanted)
    most = np.bincount(wanted, minlength=len(data.classes)).max() / len(wanted)
    print(f"{len(functions)} functions of {np.mean([len(f) for f in functions]):.0f} lines in the mean, at most")
    print(f"{max(map(len, functions))}; padded batches would have {padded_share(functions):.1f} characters for each")
    print(f"training             {time.perf_counter() - began:6.0f} s")
    print(f"held-out accuracy    {share:6.3f}")
    print(f"the largest class    {most:6.3f}")


if __name__ == "__main__":
    main()
