"""Optimizers against plain NumPy, dense and sparse; which rows move; clipping; the cost of a sparse step."""

import tracemalloc

import numpy as np
import pytest

import varlen_rnn as vr
from tests.oracles import optim as oracle

OPTIMIZERS = {
    "sgd": (lambda p: vr.optim.SGD(p, lr=0.1), lambda *a: oracle.sgd(*a, lr=0.1)),
    "momentum": (lambda p: vr.optim.Momentum(p, lr=0.1), lambda *a: oracle.momentum(*a, lr=0.1)),
    "nesterov": (
        lambda p: vr.optim.Momentum(p, lr=0.1, nesterov=True),
        lambda *a: oracle.momentum(*a, lr=0.1, nesterov=True),
    ),
    "adagrad": (lambda p: vr.optim.Adagrad(p, lr=0.1), lambda *a: oracle.adagrad(*a, lr=0.1)),
    "adam": (lambda p: vr.optim.Adam(p, lr=0.1), lambda *a: oracle.adam(*a, lr=0.1)),
}
ROWS = [[4, 1, 4], [0, 4], [2, 1, 2, 2]]  # unsorted, with duplicates


@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_equals_the_oracle_over_several_steps(name, sparse, dtype):
    make, reference = OPTIMIZERS[name]
    rng = np.random.default_rng(0)
    start = rng.standard_normal((6, 3)).astype(dtype)
    parameter, expected, state = vr.nn.Parameter(start), start.astype(np.float64), {}
    optimizer = make([parameter])
    for rows in ROWS:
        gradient = vr.SelectedRows(rows, rng.standard_normal((len(rows), 3)).astype(dtype), 6)
        dense = np.zeros((6, 3))
        np.add.at(dense, rows, gradient.value.astype(np.float64))
        parameter.grad = gradient if sparse else dense.astype(dtype)
        optimizer.step()
        expected, state = reference(expected, dense, state)
    assert parameter.dtype == dtype
    np.testing.assert_allclose(parameter.data, expected, rtol=1e-12 if dtype == np.float64 else 1e-5, atol=1e-6)


def test_lazy_adam_moves_only_listed_rows():
    start = np.random.default_rng(0).standard_normal((6, 3))
    parameter, expected, state = vr.nn.Parameter(start), start.copy(), {}
    optimizer = vr.optim.Adam([parameter], lr=0.1, lazy=True)
    for t, rows in enumerate(ROWS):
        gradient = vr.SelectedRows(rows, np.ones((len(rows), 3)), 6)
        dense = gradient.to_dense()
        state = {"t": t, "m": state.get("m", np.zeros((6, 3))), "v": state.get("v", np.zeros((6, 3)))}
        moved, new = oracle.adam(expected, dense, state, lr=0.1)
        listed = np.isin(np.arange(6), rows)[:, None]
        expected = np.where(listed, moved, expected)
        state = {key: np.where(listed, new[key], state[key]) for key in "mv"}
        parameter.grad = gradient
        optimizer.step()
    np.testing.assert_allclose(parameter.data, expected, rtol=1e-12)
    assert np.array_equal(parameter.data[[3, 5]], start[[3, 5]])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_empty_sparse_gradient_updates_nothing(name):
    parameter = vr.nn.Parameter(np.ones((6, 3)))
    optimizer = OPTIMIZERS[name][0]([parameter])
    parameter.grad = np.ones((6, 3))
    optimizer.step()
    before, states = parameter.data.copy(), optimizer.state_dict()
    parameter.grad = vr.SelectedRows(np.zeros(0, int), np.zeros((0, 3)), 6)
    optimizer.step()
    assert np.array_equal(parameter.data, before)
    assert all(np.array_equal(states[key], value) for key, value in optimizer.state_dict().items())


def test_fluids_numbers_for_sgd():
    value = np.ones((3, 12), np.float32)
    value[0, 0], value[2, 8] = 2, 4
    parameter = vr.nn.Parameter(np.full((10, 12), 5, np.float32))
    parameter.grad = vr.SelectedRows([0, 4, 7], value, 10)
    vr.optim.SGD([parameter], lr=2.0).step()
    expected = np.full((10, 12), 5.0)
    expected[[0, 4, 7]] = 3
    expected[0, 0], expected[7, 8] = 1, -3
    assert np.array_equal(parameter.data, expected)


def test_clipping_counts_duplicates_once_summed():
    sparse, dense = vr.nn.Parameter(np.zeros((4, 1))), vr.nn.Parameter(np.zeros(1))
    sparse.grad = vr.SelectedRows([2, 2], np.array([[1.0], [2.0]]), 4)
    dense.grad = np.array([4.0])
    assert vr.optim.clip_grad_norm_([sparse, dense, vr.nn.Parameter([1.0])], 1.0) == 5.0
    np.testing.assert_allclose(sparse.grad.to_dense().ravel(), [0, 0, 0.6, 0])
    np.testing.assert_allclose(dense.grad, [0.8])
    assert vr.optim.clip_grad_norm_([sparse, dense], 10.0) == pytest.approx(1.0)
    np.testing.assert_allclose(dense.grad, [0.8])


def test_clipping_counts_a_parameter_listed_twice_once():
    p = vr.nn.Parameter([0.0, 0.0])
    p.grad = np.array([3.0, 4.0])
    assert vr.optim.clip_grad_norm_(iter([p, p]), 1.0) == 5.0
    np.testing.assert_allclose(p.grad, [0.6, 0.8])


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.9, 0.9999999), (0.9, 1 - 1e-12), (1 - 1e-8, 0.999)])
def test_adam_in_float32_knows_betas_that_float32_does_not(betas):
    """As float32, the last two are 1."""
    parameter, expected, state = vr.nn.Parameter(np.ones(3, np.float32)), np.ones(3), {}
    optimizer = vr.optim.Adam([parameter], lr=0.1, betas=betas)
    for gradient in np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32):
        parameter.grad = gradient
        optimizer.step()
        expected, state = oracle.adam(expected, gradient.astype(np.float64), state, 0.1, *betas)
    np.testing.assert_allclose(parameter.data, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("gradient", "norm", "clipped"),
    [
        ([3e20, 4e20], 5e20, [0.6, 0.8]),
        ([3e-30, 4e-30], 5e-30, [3e-30, 4e-30]),
        ([np.inf, 1.0], np.inf, [np.nan, 0.0]),
        ([np.nan, 1e9], np.nan, [np.nan, np.nan]),
    ],
)
def test_clipping_of_extreme_gradients(gradient, norm, clipped):
    """Squares of float32 have no end from 1.8e19 on; what has no norm is clipped as PyTorch does."""
    p = vr.nn.Parameter(np.zeros(2, np.float32))
    p.grad = np.array(gradient, np.float32)
    np.testing.assert_allclose(vr.optim.clip_grad_norm_([p], 1.0), norm, rtol=1e-6)
    np.testing.assert_allclose(p.grad, clipped, rtol=1e-6)


@pytest.mark.parametrize("name", ["SGD", "Adagrad", "Adam"])
def test_a_sparse_step_costs_the_ids_not_the_table(name):
    """A table of 1,000,000 x 64 is 256 MB; a step of 2,000 ids must touch and allocate a small part of that."""
    table = vr.nn.Embedding(1_000_000, 64)
    optimizer = getattr(vr.optim, name)(table.parameters(), lr=0.1, **({"lazy": True} if name == "Adam" else {}))
    ids = np.random.default_rng(0).integers(0, 1_000_000, 2000)

    def step():
        (table(ids) * 1.0).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()  # states of the table's size are made once
    untouched = np.setdiff1d(np.arange(1000), ids)
    before = table.weight.data[untouched].copy(), table.weight.data[ids[0]].copy()
    tracemalloc.start()
    step()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 * 2**20
    assert np.array_equal(table.weight.data[untouched], before[0])
    assert not np.array_equal(table.weight.data[ids[0]], before[1])


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_update_that_would_be_lost_is_an_error(name, sparse):
    frozen = np.zeros((3, 2))
    frozen.flags.writeable = False
    for value in (np.zeros((2, 3)).T, frozen):
        p = vr.nn.Parameter(np.zeros((3, 2)))
        optimizer = OPTIMIZERS[name][0]([p])
        p.value = vr.LoDTensor(value)
        p.grad = vr.SelectedRows([1], np.ones((1, 2)), 3) if sparse else np.ones((3, 2))
        with pytest.raises(vr.ShapeError, match="updated in place"):
            optimizer.step()


@pytest.mark.parametrize("lr", [None, float("nan"), "nan", -1.0, float("inf"), np.ones(2), True])
def test_a_learning_rate_is_checked_when_it_is_set(lr):
    optimizer = vr.optim.SGD([vr.nn.Parameter([1.0])], lr=0.5)
    with pytest.raises(vr.InputError, match="lr: expected"):
        optimizer.lr = lr
    assert optimizer.lr == 0.5
    optimizer.lr = np.float32(0.25)
    assert optimizer.lr == 0.25
