"""What each rank runs that `test_distributed.py` launches: `python -m tests.launched FOLDER` under torchrun or mpiexec.

It leaves its results in FOLDER, a file per rank.
"""

import sys
from pathlib import Path

import numpy as np

import varlen_rnn as vr
from tests.waiting import HANGS
from varlen_rnn.distributed import connect


def collectives(comm):
    """Return the result of every collective; the numbers of a rank tell which rank had them."""
    rank, size, found = comm.rank, comm.size, {}
    for name, dtype in {"f4": np.float32, "f8": np.float64, "i8": np.int64}.items():
        found[f"sum {name}"] = np.arange(5, dtype=dtype) * (rank + 1)
        comm.all_reduce(found[f"sum {name}"])
    found["max"] = np.array([rank, -rank], np.float64)
    comm.all_reduce(found["max"], "max")
    found["started"], second = np.full(3, rank + 1.0), np.full(2, 10.0 * (rank + 1))
    handles = [comm.start_all_reduce(array) for array in (found["started"], second)]
    handles[0].progress()
    for handle in handles:
        handle.wait()
    found["started second"] = second
    for name, array in {"gathered": np.full((rank, 2), rank, np.float32), "flags": np.arange(rank + 1) > 0}.items():
        for number, part in enumerate(comm.all_gather(array)):
            found[f"{name} {number}"] = part
    for number, part in enumerate(comm.all_gather(np.full((400 * rank, 3), rank, np.int16))):
        found[f"large {number}"] = part
    nothing = comm.all_gather(np.zeros((0, 3), np.float32))
    found["nothing"] = np.array([part.shape for part in nothing])
    sent = [np.full((peer + 2 * rank, 2), 10 * rank + peer, np.int64) for peer in range(size)]
    for number, part in enumerate(comm.all_to_all(sent)):
        found[f"came {number}"] = part
    found["exchanged"] = comm.exchange(np.array([[rank]], np.float32), rank ^ 1) if size == 2 else np.zeros(0)
    found["broadcast"] = np.full((2, 2), rank, np.float16)
    comm.broadcast(found["broadcast"], size - 1)
    found["number"] = np.array(float(rank + 1))
    comm.all_reduce(found["number"])
    comm.barrier()
    return found


def other_rows(comm):
    """Return the message of the error that all ranks raise when one has rows of another size."""
    found = {}
    calls = {"all_gather": comm.all_gather, "all_to_all": lambda array: comm.all_to_all([array] * comm.size)}
    for name, call in calls.items():
        try:
            call(np.zeros((1, 1 + comm.rank)))
        except ValueError as error:
            found[name] = np.array(str(error))
    return found


class Model(vr.nn.Module):
    """All kinds of gradients: sparse, dense, none, and of a number that acts on the loss alone; with dropout."""

    def __init__(self):
        self.embedding = vr.nn.Embedding(20, 5)
        self.gru = vr.nn.GRU(5, 6, num_layers=2, dropout=0.2)
        self.drop = vr.nn.Dropout(0.3)
        self.output = vr.nn.Linear(6, 3)
        self.scale = vr.nn.Parameter(np.array(0.3, np.float32))
        self.unused = vr.nn.Linear(2, 2)

    def forward(self, ids):
        y, _ = self.gru(self.embedding(ids))
        return y, self.output(self.drop(vr.sequence_pool(y, "mean")))


def data():
    """Return batches of ids of 16 sequences of 0 to 8 steps, with weights and labels; the last batch has one sequence.

    So of the parts of that batch all but one are empty.
    """
    rng = np.random.default_rng(0)
    sequences = [rng.integers(0, 20, length) for length in [*rng.integers(0, 9, 15), 4]]
    weights = rng.random(16).astype(np.float32)
    return vr.data.batches(sequences, rng.integers(0, 3, 16), static=weights, batch_size=5)


def loss_of(model, ids, weights, labels):
    """Return a loss of several means that divide by sequences, rows and weights, and of what else a loss may have."""
    y, logits = model(ids)
    cross_entropy, mse_loss = vr.nn.functional.cross_entropy, vr.nn.functional.mse_loss
    penalty = (model.output.weight * model.output.weight).sum() * 0.01
    of_columns = ((y - 0.1) ** 2).mean(axis=0).sum()
    weighted = cross_entropy(logits, labels, sample_weight=weights) * (-model.scale).exp() + model.scale
    half = vr.Variable(np.full(y.shape, 0.5, np.float32)).to(y.device)
    root = (mse_loss(y, half) + 0.01).sqrt()
    return cross_entropy(logits, labels) + weighted + 0.3 * root + of_columns + penalty + logits.sum() * 0.01


def train(comm, reproducible=None, place="cpu"):
    """Train an epoch; return losses and weights.  Without a communicator, train as a script of one process does."""
    vr.manual_seed(0 if comm is None else comm.rank)  # ranks begin with other weights
    model = Model().to(place)
    optimizer = vr.optim.Adam(model.parameters(), lr=0.05)
    losses, parts = [], [data()]
    if comm is not None:
        replica = vr.distributed.replicate(model, optimizer, comm, reproducible)
        parts = [data().part(*shard) for shard in replica.shards]
    for batches in zip(*parts, strict=True):
        optimizer.zero_grad()
        for batch in batches:
            loss = loss_of(model, *(vr.Variable(value).to(place) for value in batch))
            loss.backward()
        vr.optim.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    assert model.unused.weight.grad is None
    return {"losses": np.array(losses), **model.state_dict()}


def normalised(comm, sizes=(), place="cpu"):
    """Return losses, gradients and moments of a model that normalises batches, trained for three steps."""
    vr.manual_seed(0)
    layers = [vr.nn.Linear(3, 4, dtype=np.float64), vr.nn.BatchNorm1d(4, dtype=np.float64), vr.nn.Tanh()]
    model = vr.nn.Sequential(*layers, vr.nn.BatchNorm1d(4, affine=False, dtype=np.float64)).to(place)
    optimizer, rows = vr.optim.SGD(model.parameters(), 0.1), slice(None)
    if comm is not None:
        vr.distributed.replicate(model, optimizer, comm)
        ends = np.cumsum([0, *sizes])
        rows = slice(ends[comm.rank], ends[comm.rank + 1])
    found, x = {}, np.random.default_rng(0).standard_normal((12, 3))
    for step in range(3):
        optimizer.zero_grad()
        loss = (model(vr.Variable(x[rows]).to(place)) ** 3).mean()
        loss.backward()
        optimizer.step()
        found[f"loss {step}"] = np.array(loss.item())
    found |= {f"gradient of {name}": parameter.grad for name, parameter in model.named_parameters()}
    return found | model.state_dict()


def main():
    comm, found = connect(timeout=HANGS), {}
    if comm.size == 2:
        found = {**collectives(comm), **other_rows(comm)}
        found |= {f"train {name}": value for name, value in train(comm).items()}
        found |= {f"normalised {name}": value for name, value in normalised(comm, (12, 0)).items()}
    found |= {f"exact {name}": value for name, value in train(comm, reproducible=4).items()}
    np.savez(Path(sys.argv[1], f"rank{comm.rank}.npz"), rank=comm.rank, size=comm.size, **found)
    comm.close()


if __name__ == "__main__":
    main()
