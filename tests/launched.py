"""What each rank runs that `test_distributed.py` launches: `python -m tests.launched FOLDER` under torchrun or mpiexec.

It leaves its results in FOLDER, a file per rank.
"""

import sys
from pathlib import Path

import numpy as np

import varlen_rnn as vr
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
    handles[0].test()
    for handle in handles:
        handle.wait()
    found["started second"] = second
    for name, array in {"gathered": np.full((rank, 2), rank, np.float32), "flags": np.arange(rank + 1) > 0}.items():
        for number, part in enumerate(comm.all_gather(array)):
            found[f"{name} {number}"] = part
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
    """All kinds of gradients: sparse, dense, none, and of a number that acts on the loss alone."""

    def __init__(self):
        self.embedding = vr.nn.Embedding(20, 5)
        self.gru = vr.nn.GRU(5, 6, num_layers=2)
        self.output = vr.nn.Linear(6, 3)
        self.scale = vr.nn.Parameter(np.array(0.3, np.float32))
        self.unused = vr.nn.Linear(2, 2)

    def forward(self, ids):
        y, _ = self.gru(self.embedding(ids))
        return y, self.output(vr.sequence_pool(y, "mean"))


SEQUENCES = 16


def data():
    """Return sequences of 0 to 8 ids, labels and weights."""
    rng = np.random.default_rng(0)
    sequences = [rng.integers(0, 20, length) for length in rng.integers(0, 9, SEQUENCES)]
    return sequences, rng.integers(0, 3, SEQUENCES), rng.random(SEQUENCES).astype(np.float32)


def ids_of(sequences, chosen):
    offsets = np.cumsum([0, *(len(sequences[k]) for k in chosen)])
    return vr.LoDTensor(np.concatenate([np.zeros(0, np.int64), *(sequences[k] for k in chosen)]), [offsets])


def loss_of(model, chosen):
    """Return a loss of several means that divide by sequences, rows and weights, and of what else a loss may have."""
    sequences, labels, weights = data()
    y, logits = model(ids_of(sequences, chosen))
    cross_entropy, mse_loss = vr.nn.functional.cross_entropy, vr.nn.functional.mse_loss
    penalty = (model.output.weight * model.output.weight).sum() * 0.01
    of_columns = ((y - 0.1) ** 2).mean(axis=0).sum()
    weighted = cross_entropy(logits, labels[chosen], sample_weight=weights[chosen]) * (-model.scale).exp() + model.scale
    root = mse_loss(y, np.full(y.shape, 0.5, np.float32)).sqrt()
    return cross_entropy(logits, labels[chosen]) + weighted + 0.3 * root + of_columns + penalty + logits.sum() * 0.01


def train(comm, reproducible=None, steps=4):
    """Train some steps; return losses and weights."""
    vr.manual_seed(comm.rank)  # ranks begin with other weights
    model = Model()
    optimizer = vr.optim.Adam(model.parameters(), lr=0.05)
    replica = vr.distributed.replicate(model, optimizer, comm, reproducible)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        for shard in replica.shards:
            chosen = np.arange(shard.rank, SEQUENCES, shard.size)
            if step == 2:  # one rank has all sequences, the others none
                chosen = np.arange(SEQUENCES if shard.rank == 0 else 0)
            loss = loss_of(model, chosen)
            loss.backward()
        vr.optim.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    assert model.unused.weight.grad is None
    return {"losses": np.array(losses), **model.state_dict()}


def main():
    comm, found = connect(timeout=60), {}
    if comm.size == 2:
        found = {**collectives(comm), **other_rows(comm)}
        found |= {f"train {name}": value for name, value in train(comm).items()}
    found |= {f"exact {name}": value for name, value in train(comm, reproducible=4).items()}
    np.savez(Path(sys.argv[1], f"rank{comm.rank}.npz"), rank=comm.rank, size=comm.size, **found)
    comm.close()


if __name__ == "__main__":
    main()
