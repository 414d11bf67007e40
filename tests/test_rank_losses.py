"""Random losses on ranks: each has the loss and the gradients of one process, or is refused."""

import collections
import contextlib

import numpy as np
import pytest

import varlen_rnn as vr
from tests.test_rank_operators import REFUSED, compared

F = vr.nn.functional
RNG = np.random.default_rng(0)
X, ROW_WEIGHTS = RNG.standard_normal((12, 3)), RNG.random(12) + 0.5
PARAMETERS = [RNG.standard_normal(shape) for shape in ((3, 4), (4, 3), (4,), ())]
LENGTHS, SEQUENCES, ROWS = [4, 1, 0, 2, 5], 2, 5  # rank 0 has 2 sequences with 5 rows
UNARY = {
    "tanh": lambda y: y.tanh(), "exp": lambda y: (y * 0.3).exp(), "square": lambda y: y * y,
    "turn": lambda y: y.transpose(0, y.ndim - 1), "softmax": lambda y: F.log_softmax(y), "abs": lambda y: y.abs(),
    "norm": lambda y: F.layer_norm(y), "first": lambda y: y[..., :1], "row": lambda y: y[0],
    "back": lambda y: y[:, ::-1], "flat": lambda y: y.reshape(-1), "pairs": lambda y: y.reshape(-1, 2),
    "cumsum": lambda y: F.cumsum(y, 0),
    "cumsum of columns": lambda y: F.cumsum(y, 1), "halves": lambda y: F.split(y, 2, y.ndim - 1)[1],
    "cut": lambda y: F.split(y, [1, y.shape[0] - 1], 0)[1], "sum": lambda y: y.sum(axis=0),
    "mean": lambda y: y.mean(axis=0, keepdims=True), "max": lambda y: y.max(axis=0), "sums": lambda y: y.sum(axis=1),
    "means": lambda y: y.mean(axis=-1), "largest": lambda y: y.max(axis=-1), "detach": lambda y: y.detach(),
    "pool": lambda y: vr.sequence_pool(y, "mean"), "reverse": lambda y: vr.sequence_reverse(y),
    "sequence softmax": lambda y: vr.sequence_softmax(y), "total": lambda y: y.sum(), "average": lambda y: y.mean(),
}  # fmt: skip
BINARY = {
    "add": lambda a, b: a + b, "multiply": lambda a, b: a * b, "divide": lambda a, b: a / (b * b + 1.0),
    "product": lambda a, b: a @ b, "concat": lambda a, b: F.concat([a, b], 0),
    "beside": lambda a, b: F.concat([a, b], 1), "expand": lambda a, b: vr.sequence_expand_as(a, b),
    "larger": lambda a, b: F.maximum(a, b),
}  # fmt: skip


def part(array, rank):
    return array if rank is None else array[:ROWS] if rank == 0 else array[ROWS:]


def sequences(array, rank):
    x = vr.create_lod_tensor(array, [LENGTHS])
    return x if rank is None else x.slice(0, *((0, SEQUENCES) if rank == 0 else (SEQUENCES, len(LENGTHS))))


def loss_of_seed(seed):
    """Return a random loss, as `compared` takes it, and the names of its operators."""
    rng, steps = np.random.default_rng(seed), []
    cut, final = (part, sequences)[rng.integers(2)], rng.integers(0, 2, 3)

    def values_of(own, rank):
        w, v, bias, scale = own
        x, mask = vr.Variable(cut(X, rank)), vr.Variable(cut(ROW_WEIGHTS, rank))
        count = mask.sum() if cut is sequences else (x @ w).sum(axis=1) * mask / mask.sum()
        if cut is part:  # without a LoD, only the use beside rows tells that a constant has rows
            x, mask = x * scale, mask * scale
        return [x @ w, x * scale, (x @ w + bias).tanh(), mask, v, bias, count, x, (x @ w).tanh() @ v]

    def add(values, name, picked):
        made = UNARY[name](values[picked[0]]) if name in UNARY else BINARY[name](*(values[n] for n in picked))
        values += [made, made]  # later ones are taken more often

    def loss_of(own, rank):
        values = values_of(own, rank)
        for step in steps:
            add(values, *step)
        loss = values[-1] * values[-1] if final[0] else values[-1]
        loss = loss if not loss.ndim else loss.mean() if final[1] else loss.sum()
        return loss + own[-1] * own[-1] * float(final[2])

    values = values_of([vr.nn.Parameter(array) for array in PARAMETERS], None)
    while len(steps) < 2 + seed % 5:
        step = str(rng.choice([*UNARY, *BINARY])), rng.integers(0, len(values), 2)
        with contextlib.suppress(vr.InputError, ValueError, IndexError, AttributeError):
            add(values, *step)
            steps.append(step)
    return loss_of if values[-1].requires_grad else None, [(name, picked.tolist()) for name, picked in steps]


def outcome_of(seed):
    """Return "equal", "wrong", "refused", or "none" if the operators do not fit."""
    loss_of, _ = loss_of_seed(seed)
    if loss_of is None:
        return "none"
    try:
        with np.errstate(all="ignore"):
            found = compared(loss_of, PARAMETERS)
    except (vr.InputError, ValueError, IndexError, AttributeError):
        return "none"
    return "refused" if found.startswith(REFUSED) else found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:backward of a replica")
def test_no_random_loss_is_wrong():
    found = {seed: outcome_of(seed) for seed in range(500)}
    assert [seed for seed, outcome in found.items() if outcome == "wrong"] == []
    assert collections.Counter(found.values())["equal"] > 200
