"""Losses that ranks can compute are those of one process; others raise the same error on all ranks."""

import numpy as np
import pytest

import varlen_rnn as vr
from tests.rank_threads import run_ranks
from varlen_rnn.distributed import replicate

F = vr.nn.functional
LENGTHS = [3, 0, 2, 4, 1, 2]
ENDS = np.cumsum([0, *LENGTHS])
RNG = np.random.default_rng(0)
ROWS, TARGETS, STATES = RNG.standard_normal((12, 3)), RNG.standard_normal((12, 4)), RNG.standard_normal((2, 6, 4))
NEAR = RNG.standard_normal((4, 3))


class Model(vr.nn.Module):
    def __init__(self):
        self.linear, self.gru = vr.nn.Linear(3, 4, dtype=np.float64), vr.nn.GRU(3, 4, num_layers=2, dtype=np.float64)
        self.scale, self.of_row = vr.nn.Parameter(np.array(0.7)), vr.nn.Parameter(np.array([[0.3, 0.1, 0.7]]))
        self.shift = vr.nn.Parameter(np.array([0.3, -0.2, 0.1, 0.4]))
        self.matrix = vr.nn.module.Buffer(np.arange(16.0).reshape(4, 4))


def gradients(loss_of, comm=None, cuts=()):
    """Return the loss and the gradients for all sequences, or those of a rank."""
    vr.manual_seed(0)
    model, first, end = Model(), 0, len(LENGTHS)
    if comm is not None:
        replicate(model, vr.optim.SGD(model.parameters(), 0.1), comm)
        first, end = cuts[comm.rank], cuts[comm.rank + 1]
    rows = slice(ENDS[first], ENDS[end])
    x, lod = ROWS[rows], ENDS[first : end + 1] - ENDS[first]
    loss = loss_of(model, model.linear(x), x, TARGETS[rows], (vr.LoDTensor(x, [lod]), STATES[:, first:end]))
    loss.backward()
    return loss.item(), *(parameter.grad for parameter in model.parameters())


RIGHT = {
    "columns": lambda m, y, x, t, s: (y[:, 0] * y[:, 1]).mean(),
    "chosen rows": lambda m, y, x, t, s: (y[t[:, 0] > 0] ** 2).mean(),
    "rows of axis 1": lambda m, y, x, t, s: y.T.mean(axis=1).exp().sum(),
    "features of axis 0": lambda m, y, x, t, s: (y.T**2).sum(axis=0).sqrt().mean(),
    "a norm over rows": lambda m, y, x, t, s: (y**2).sum(axis=0).sqrt().sum(),
    "log of a sum": lambda m, y, x, t, s: y.exp().sum().log(),
    "a quotient of sums": lambda m, y, x, t, s: (y * t).sum() / (y**2).sum(),
    "a learned number times a mean": lambda m, y, x, t, s: m.scale * (y**2).mean() * m.shift.exp().sum(),
    "rows joined with features": lambda m, y, x, t, s: (y.reshape(-1) ** 2).mean(),
    "a new first axis": lambda m, y, x, t, s: (y.reshape(1, -1, 4).sum(axis=1) ** 2).sum(),
    "near constants": lambda m, y, x, t, s: (y**2).mean() + ((m.linear.weight - NEAR) ** 2).sum(),
    "a loss of constants": lambda m, y, x, t, s: (y**2).mean() + F.mse_loss(m.linear.weight, NEAR, "sum"),
    "times constants": lambda m, y, x, t, s: (y**2).mean() + (m.shift * np.arange(4.0)).sum(),
    "times a matrix": lambda m, y, x, t, s: (y**2).mean() + ((m.linear.weight @ np.eye(3)) ** 2).sum(),
    "a buffer": lambda m, y, x, t, s: (y**2).mean() + (m.matrix @ m.linear.weight).sum(),
    "rows of a parameter": lambda m, y, x, t, s: (y**2).mean() + m.linear.weight[np.array([0, 1])].sum(),
    "the largest weight": lambda m, y, x, t, s: (y**2).mean() + m.linear.weight.abs().max(),
    "batches of one row": lambda m, y, x, t, s: ((m.of_row * x) ** 2).sum() + (m.scale * x[:, 0]).sum(),
    "last states": lambda m, y, x, t, s: (m.gru(*s)[1].mean(axis=1) ** 2).sum(),
    "states of the last layer": lambda m, y, x, t, s: (m.gru(*s)[1][-1] ** 2).mean(axis=0).sqrt().sum(),
    "a sum over layers": lambda m, y, x, t, s: (m.gru(*s)[1].sum(axis=0) ** 2).mean(),
    "learned weights of rows": lambda m, y, x, t, s: F.mse_loss(m.gru(*s)[0], t, sample_weight=y[:, 0].exp()),
    "pooled": lambda m, y, x, t, s: (vr.sequence_pool(m.gru(*s)[0], "max") ** 2).mean(),
}  # fmt: skip


@pytest.mark.parametrize("cuts", [(0, 4, 6), (0, 6, 6), (0, 4, 5, 6)])  # also a rank without rows, and one of one row
@pytest.mark.parametrize("name", RIGHT)
def test_losses_of_all_ranks(name, cuts):
    wanted = gradients(RIGHT[name])
    for found in run_ranks(len(cuts) - 1, lambda comm: gradients(RIGHT[name], comm, cuts)):
        for got, expected in zip(found, wanted, strict=True):
            assert (got is None) == (expected is None)
            if got is not None:
                np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-12)


MIXED = {
    "a maximum": ("reduce_max", lambda m, y, x, t, s: y.max(axis=0).sum()),
    "products of rows": ("matmul", lambda m, y, x, t, s: (y @ y.T).mean()),
    "sums of products": ("matmul", lambda m, y, x, t, s: ((y.T @ y) ** 2).sum()),
    "less the mean": ("sub", lambda m, y, x, t, s: ((y - y.mean(axis=0)) ** 2).mean()),
    "a variance": ("sub", lambda m, y, x, t, s: y.var()),
    "a target of each row": ("sub", lambda m, y, x, t, s: ((y.mean() - t) ** 2).mean()),
    "running sums": ("cumsum", lambda m, y, x, t, s: (y.cumsum(axis=0) ** 2).mean()),
    "the first row": ("getitem", lambda m, y, x, t, s: y[0].sum()),
    "differences": ("getitem", lambda m, y, x, t, s: ((y[1:] - y[:-1]) ** 2).sum()),
    "a softmax over rows": ("log_softmax", lambda m, y, x, t, s: (F.softmax(y.T) * t.T).sum()),
    "rows that are joined": ("reshape", lambda m, y, x, t, s: (y.reshape(2, -1).mean(axis=0).exp()).sum()),
    "a bounded mean": ("where", lambda m, y, x, t, s: y.mean().clip(0, 0.1)),
}  # fmt: skip


@pytest.mark.parametrize("name", MIXED)
def test_rows_that_depend_on_each_other(name):
    operator, loss_of = MIXED[name]

    def run(comm):
        with pytest.raises(vr.ProgramError, match=f"depends on rows only by sums and means .*, got '{operator}'"):
            gradients(loss_of, comm, (0, 3, 6))

    run_ranks(2, run)


@pytest.mark.parametrize(
    "loss_of",
    [
        lambda m, y, x, t, s: (y**2).sum() / len(x),
        lambda m, y, x, t, s: (y**2).mean() / (y**2).mean().detach(),
        lambda m, y, x, t, s: m.scale * float(x.mean()),
        lambda m, y, x, t, s: m.linear.weight[np.arange(len(x)) % 3].sum(),
    ],
)
def test_constants_that_differ(loss_of):
    def run(comm):
        with pytest.raises(vr.ProgramError, match="expected the same constants in the loss"):
            gradients(loss_of, comm, (0, 4, 6))

    run_ranks(2, run)


def test_a_single_number_that_is_no_sum(monkeypatch):
    monkeypatch.setattr(vr.tape.operator, "OPERATORS", dict(vr.tape.operator.OPERATORS))

    def total(x):
        return x.data.sum()

    declared = vr.operator(total)
    declared.infer(lambda x: x._replace(shape=(), lod_level=0))

    def run(comm):
        with pytest.raises(vr.ProgramError, match="got 'total', an operator without rows='each'"):
            gradients(lambda m, y, x, t, s: declared(y), comm, (0, 3, 6))

    run_ranks(2, run)
