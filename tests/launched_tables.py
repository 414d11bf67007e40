"""What each rank runs that `test_sharded_tables.py` launches: it trains its part of a table with every optimizer."""

import sys
from pathlib import Path

import numpy as np

import varlen_rnn as vr
from varlen_rnn.distributed import connect

HEIGHT, WIDTH, STEPS = 23, 4, 4
OPTIMIZERS = {
    "sgd": lambda p: vr.optim.SGD(p, lr=0.1, weight_decay=0.01),
    "adagrad": lambda p: vr.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.1),
    "lazy adam": lambda p: vr.optim.Adam(p, lr=0.01, lazy=True),
    "lazy adamw": lambda p: vr.optim.AdamW(p, lr=0.01, lazy=True),
    "adam": lambda p: vr.optim.Adam(p, lr=0.01),
    "adamw": lambda p: vr.optim.AdamW(p, lr=0.01),
    "momentum": lambda p: vr.optim.Momentum(p, lr=0.1, nesterov=True),
    "rmsprop": lambda p: vr.optim.RMSprop(p, lr=0.01, momentum=0.5),
    "adadelta": lambda p: vr.optim.Adadelta(p, lr=1.0),
}


def lengths_of(step):
    """Return the lengths of the sequences of a global batch; in the last step only the second sequence has ids."""
    return [0, 3, 0, 0, 0, 0] if step == STEPS - 1 else [3, 0, 40, 2, 1, 5]


def batch(step):
    """Return the sequences of ids of a global batch, small ids often, and the weights of their rows in the loss."""
    rng, lengths = np.random.default_rng(step), lengths_of(step)
    ids = [np.minimum(rng.zipf(1.3, n), HEIGHT) - 1 for n in lengths]
    return ids, [rng.standard_normal((n, WIDTH)).astype(np.float32) for n in lengths]


def part_of(rank, size, step):
    """Return the sequences and weights of a rank: neighbours in order of ranks, of unequal numbers."""
    cuts = [0, 1, 4, 6] if size == 3 else [0, 2, 6] if size == 2 else [0, 6]
    ids, weights = batch(step)
    mine = slice(cuts[rank], cuts[rank + 1])
    rows = vr.LoDTensor.from_sequences(ids[mine], dtype=np.int64)
    return rows, np.concatenate([np.zeros((0, WIDTH), np.float32), *weights[mine]])


def trained(comm, make, uses=1, max_norm=None, steps=STEPS, layer=None, optimizer=None, first=0):
    """Return the layer and the optimizer after steps on the rank's part of global batches."""
    if layer is None:
        vr.manual_seed(3)
        layer = vr.nn.Embedding(HEIGHT, WIDTH, padding_idx=2, shard=comm)
        optimizer = make([layer.weight])
    for step in range(first, steps):
        ids, weights = part_of(comm.rank, comm.size, step)
        optimizer.zero_grad()
        sum((layer(ids) * (weights * (use + 1))).sum() for use in range(uses)).backward()
        if max_norm is not None:
            vr.optim.clip_grad_norm_([layer.weight], max_norm)
        optimizer.step()
    return layer, optimizer


def whole(comm, array):
    """Return all rows of a table, given those of each rank."""
    parts = comm.all_gather(array)
    table = np.empty((sum(map(len, parts)), *array.shape[1:]), array.dtype)
    for rank, part in enumerate(parts):
        table[rank :: comm.size] = part
    return table


def states(comm, optimizer):
    """Return the whole states of an optimizer of one table."""
    found = {name.partition("[")[0]: value for name, value in optimizer.state_dict().items()}
    return {name: whole(comm, value) if value.ndim else value for name, value in found.items()}


def main():
    comm, found = connect(timeout=60), {}
    for name, make in OPTIMIZERS.items():
        layer, optimizer = trained(comm, make)
        found[f"{name} weight"] = whole(comm, layer.weight.data)
        found |= {f"{name} {key}": array for key, array in states(comm, optimizer).items()}
    np.savez(Path(sys.argv[1], f"rank{comm.rank}.npz"), **found)
    comm.close()


if __name__ == "__main__":
    main()
