"""Train one model in several processes: each computes the gradients of its part of a batch, without padding.

    python examples/data_parallel.py [--workers 2] [--steps 20]

The training step is recorded as a program, which every worker receives over a pipe, as bytes, and cuts in two: what
computes the gradients, and what updates the parameters.  Gradients travel back, sparse where the embedding's are, are
added up, and go to everybody, so all hold the same parameters after every step.  At the end the same steps run in one
process, and both must have learned the same.
"""

import argparse
import itertools
import multiprocessing
import operator
from functools import reduce

import numpy as np

import varlen_rnn as vr

BATCH_SIZE = 64
TOLERANCE = 1e-4  # between parameters of float32 runs that add gradients in different orders


class Classifier(vr.nn.Module):
    """Embedding, GRU, the mean over each sequence, and a linear layer."""

    def __init__(self, vocabulary_size, num_classes):
        self.embedding = vr.nn.Embedding(vocabulary_size, 32)
        self.gru = vr.nn.GRU(32, 64)
        self.output = vr.nn.Linear(64, num_classes)

    def forward(self, ids):
        """Return logits, one row per sequence."""
        return self.output(vr.sequence_pool(self.gru(self.embedding(ids))[0], "mean"))


def record(vocabulary_size, num_classes):
    """Return the program of a training step, and its model.

    The loss is a sum, so that the gradients of parts add up to those of the whole; the rate divides by the batch size.
    It is low enough for the loss to fall evenly: where it bounces, every step multiplies what rounding makes different.
    """
    vr.manual_seed(0)
    model = Classifier(vocabulary_size, num_classes)
    with vr.program_guard() as program:
        ids = vr.feed_data("ids", shape=[-1], dtype="int64", lod_level=1)
        labels = vr.feed_data("labels", shape=[-1], dtype="int64")
        loss = vr.nn.functional.cross_entropy(model(ids), labels, reduction="sum")
        loss.name = "loss"
        vr.optim.SGD(model.parameters(), lr=0.5 / BATCH_SIZE).minimize(loss)
    return program, model


def cut(program):
    """Return the part of a program that computes the gradients, the part that updates, and the gradients' names."""
    gradients = [f"{var.name}@GRAD" for var in program.desc.blocks[0].vars if var.persistable]
    gradients = [name for name in gradients if program.desc.blocks[0].var(name)]
    compute, update = program.split(at=[gradients])
    return compute, update, gradients


def work(pipe):
    """Receive a program; then, for each batch, send the loss and the gradients, receive their sums, and update."""
    compute, update, gradients = cut(vr.Program.from_bytes(pipe.recv_bytes()))
    executor = vr.Executor()
    while feed := pipe.recv_bytes():
        names = ["loss", *gradients]
        fetched = executor.run(compute, vr.values_from_bytes(feed), names)
        pipe.send_bytes(vr.values_to_bytes(dict(zip(names, fetched, strict=True))))
        executor.run(update, vr.values_from_bytes(pipe.recv_bytes()))


def train_in_parallel(program, batches, num_workers):
    """Train with workers, each in a process of its own; return the loss of every step."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for _ in range(num_workers):
        ours, theirs = context.Pipe()
        processes.append(context.Process(target=work, args=(theirs,), daemon=True))
        processes[-1].start()
        ours.send_bytes(program.to_bytes())
        pipes.append(ours)
    _, update, gradients = cut(program)
    losses = []
    for ids, labels in batches:
        for pipe, feed in zip(pipes, parts(ids, labels, num_workers), strict=True):
            pipe.send_bytes(vr.values_to_bytes(feed))
        replies = [vr.values_from_bytes(pipe.recv_bytes()) for pipe in pipes]
        sums = {name: reduce(operator.add, (reply[name] for reply in replies)) for name in ["loss", *gradients]}
        losses.append(sums.pop("loss") / BATCH_SIZE)
        for pipe in pipes:
            pipe.send_bytes(vr.values_to_bytes(sums))
        vr.Executor().run(update, sums)
    for pipe, process in zip(pipes, processes, strict=True):
        pipe.send_bytes(b"")
        process.join()
    return losses


def parts(ids, labels, count):
    """Return the feeds of some workers: as many sequences each, in order; views of the batch."""
    ends = [round(k * len(labels) / count) for k in range(count + 1)]
    return [{"ids": ids.slice(0, begin, end), "labels": labels[begin:end]} for begin, end in itertools.pairwise(ends)]


def count(text):
    """Return a number of the command line that must be at least 1."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {text}")
    return int(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=count, default=2, help="processes, at least 1; default 2")
    parser.add_argument("--steps", type=count, default=20, help="batches of the data set, at least 1; default 20")
    arguments = parser.parse_args()
    data = vr.data.unicode_names()
    every = vr.data.batches(data.sequences, data.labels, batch_size=BATCH_SIZE, shuffle=True, seed=0)
    batches = [every[k] for k in range(min(arguments.steps, len(every)))]

    program, model = record(len(data.vocabulary), len(data.classes))
    losses = train_in_parallel(program, batches, arguments.workers)
    print(
        f"{arguments.workers} workers: loss {losses[0]:.4f} at the first step, {losses[-1]:.4f} at step {len(losses)}"
    )

    alone, twin = record(len(data.vocabulary), len(data.classes))
    for ids, labels in batches:
        vr.Executor().run(alone, {"ids": ids, "labels": labels}, [])
    difference = max(np.abs(p.data - q.data).max() for p, q in zip(model.parameters(), twin.parameters(), strict=True))
    print(f"one process: parameters differ by {difference:.0e} at most")
    if not difference <= TOLERANCE:
        raise SystemExit("the workers learned something else")


if __name__ == "__main__":
    main()
