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
    "adagrad": (lambda p: vr.optim.Adagrad(p, lr=0.1, epsilon=1e-6), lambda *a: oracle.adagrad(*a, lr=0.1)),
    "adam": (lambda p: vr.optim.Adam(p, lr=0.1, epsilon=1e-8), lambda *a: oracle.adam(*a, lr=0.1)),
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
    optimizer = vr.optim.Adam([parameter], lr=0.1, lazy=True, epsilon=1e-8)
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


OF_LISTED_ROWS = {
    "sgd": lambda p: vr.optim.SGD(p, lr=0.1, weight_decay=0.1),
    "adagrad": lambda p: vr.optim.Adagrad(p, lr=0.1, weight_decay=0.1),
    "lazy adam": lambda p: vr.optim.Adam(p, lr=0.1, lazy=True, weight_decay=0.1),
    "lazy adamw": lambda p: vr.optim.AdamW(p, lr=0.1, lazy=True),
}
OF_ALL_ROWS = {
    "momentum": lambda p: vr.optim.Momentum(p, lr=0.1),
    "adam": lambda p: vr.optim.Adam(p, lr=0.1, weight_decay=0.1),
    "adamw": lambda p: vr.optim.AdamW(p, lr=0.1),
    "rmsprop": lambda p: vr.optim.RMSprop(p, lr=0.1, momentum=0.5),
    "adadelta": lambda p: vr.optim.Adadelta(p, weight_decay=0.1),
}


def steps_of(make, gradients):
    """Return a parameter and the states of its optimizer after steps with these gradients."""
    parameter = vr.nn.Parameter(np.random.default_rng(0).standard_normal((6, 3)))
    optimizer = make([parameter])
    for gradient in gradients:
        parameter.grad = gradient
        optimizer.step()
    return {"parameter": parameter.data} | optimizer.state_dict()


def without_rows(height=6):
    return vr.SelectedRows(np.zeros(0, int), np.zeros((0, 3)), height)


def assert_same(first, second):
    assert first.keys() == second.keys()
    for name in first:
        assert np.array_equal(first[name], second[name]), name


@pytest.mark.parametrize("make", OF_ALL_ROWS.values(), ids=OF_ALL_ROWS)
def test_a_sparse_gradient_without_rows_is_a_step_of_zeros(make):
    other = vr.SelectedRows([4, 1, 4], np.ones((3, 3)), 6)
    zeros = np.zeros((6, 3))
    assert_same(steps_of(make, [other, without_rows(), other]), steps_of(make, [other, zeros, other]))
    assert not np.array_equal(
        steps_of(make, [other, without_rows()])["parameter"], steps_of(make, [other])["parameter"]
    )


@pytest.mark.parametrize("make", OF_LISTED_ROWS.values(), ids=OF_LISTED_ROWS)
def test_a_sparse_gradient_without_rows_moves_no_listed_row_and_counts(make):
    other = vr.SelectedRows([4, 1, 4], np.ones((3, 3)), 6)
    after, before = steps_of(make, [other, without_rows()]), steps_of(make, [other])
    assert after.pop("0.step", 2) == before.pop("0.step", 1) + 1
    assert_same(after, before)


@pytest.mark.parametrize("make", (OF_ALL_ROWS | OF_LISTED_ROWS).values(), ids=OF_ALL_ROWS | OF_LISTED_ROWS)
def test_shards_of_a_table_take_the_steps_of_the_whole_table(make):
    """Rows of a table of 6 on three ranks, by id modulo 3; the second step touches no row of rank 0."""
    rng = np.random.default_rng(1)
    steps = [(rows, rng.standard_normal((len(rows), 3))) for rows in ([4, 1, 4, 3, 0], [1, 5, 5], [0, 2, 0])]
    start = rng.standard_normal((6, 3))
    whole = vr.nn.Parameter(start)
    shards = [vr.nn.Parameter(start[rank::3]) for rank in range(3)]
    optimizers = [make([parameter]) for parameter in (whole, *shards)]
    for rows, value in steps:
        rows = np.array(rows)
        whole.grad = vr.SelectedRows(rows, value, 6)
        for rank, shard in enumerate(shards):
            own = rows % 3 == rank
            shard.grad = vr.SelectedRows(rows[own] // 3, value[own], 2)
        for optimizer in optimizers:
            optimizer.step()
    for rank, shard in enumerate(shards):
        assert np.array_equal(shard.data, whole.data[rank::3]), rank


@pytest.mark.parametrize("make", (OF_ALL_ROWS | OF_LISTED_ROWS).values(), ids=OF_ALL_ROWS | OF_LISTED_ROWS)
def test_a_table_without_rows_takes_steps(make):
    parameter = vr.nn.Parameter(np.zeros((0, 3)))
    parameter.grad = without_rows(0)
    make([parameter]).step()
    assert parameter.shape == (0, 3)


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
    optimizer = vr.optim.Adam([parameter], lr=0.1, betas=betas, epsilon=1e-8)
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


def model_of_three(name):
    """Return three parameters that stepped once, with gradients for a second step, and their optimizer."""
    parameters = [vr.nn.Parameter(np.full((3, 2), number + 1.0)) for number in range(3)]
    optimizer = OPTIMIZERS[name][0](parameters)
    for p in parameters:
        p.grad = np.ones((3, 2))
    optimizer.step()
    parameters[1].grad = vr.SelectedRows([1, 1], np.ones((2, 2)), 3)
    return parameters, optimizer


def snapshot(parameters, optimizer):
    return [p.data.tolist() for p in parameters], {k: v.tolist() for k, v in optimizer.state_dict().items()}


def strided(p):
    p.value = vr.LoDTensor(np.ones((2, 3)).T)


def of_a_program():
    with vr.program_guard():
        return vr.feed_data("g", [3, 2], "float64")


SPOILS = {
    "shape": lambda p: setattr(p, "grad", np.ones((2, 3))),
    "data type": lambda p: setattr(p, "grad", np.ones((3, 2), np.float32)),
    "integers": lambda p: setattr(p, "grad", np.ones((3, 2), int)),
    "text": lambda p: setattr(p, "grad", "rubbish"),
    "list": lambda p: setattr(p, "grad", [[1], [1, 2]]),
    "object": lambda p: setattr(p, "grad", object()),
    "sparse": lambda p: setattr(p, "grad", vr.SelectedRows([0], np.ones((1, 2)), 4)),
    "plan": lambda p: setattr(p, "grad", vr.Variable(vr.sort_by_seq_len([0, 3]))),
    "program": lambda p: setattr(p, "grad", of_a_program()),
    "read-only": lambda p: p.data.setflags(write=False),
    "strided": strided,
}


@pytest.mark.parametrize("spoil", SPOILS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_is_all_or_nothing(name, spoil):
    parameters, optimizer = model_of_three(name)
    SPOILS[spoil](parameters[2])
    before = snapshot(parameters, optimizer)
    with pytest.raises(vr.InputError, match=r"^parameters, entry 2, "):
        optimizer.step()
    assert snapshot(parameters, optimizer) == before


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_first_step_that_fails_makes_no_states(name):
    parameters = [vr.nn.Parameter(np.ones(2)) for _ in range(2)]
    optimizer = OPTIMIZERS[name][0](parameters)
    parameters[0].grad, parameters[1].grad = np.ones(2), np.ones(3)
    with pytest.raises(vr.ShapeError, match=r"entry 1, .*gradient: expected shape \(2,\), got shape \(3,\)"):
        optimizer.step()
    assert list(optimizer.state_dict()) == ["lr"]
    assert parameters[0].data.tolist() == [1, 1]


def test_a_step_of_a_program_is_described_whole_or_not_at_all():
    first, second = vr.nn.Parameter(np.ones(2)), vr.nn.Parameter(np.ones(2))
    optimizer = vr.optim.SGD([first, second], lr=0.1)
    with vr.program_guard() as program:
        (first * second).sum().backward()
        program.recorder.admit(second).grad = np.ones(3)
        ops = len(program.desc.blocks[0].ops)
        with pytest.raises(vr.ShapeError, match="parameters, entry 1, sgd, gradient"):
            optimizer.step()
        assert len(program.desc.blocks[0].ops) == ops


def test_minimize_that_fails_updates_nothing():
    p, q = vr.nn.Parameter(np.ones(2)), vr.nn.Parameter(np.ones(2))
    optimizer = vr.optim.Adam([p, q], lr=0.1)
    for loss in (vr.Variable(1.0), p * 2.0, 3.0, None):
        with pytest.raises(vr.InputError, match="backward"):
            optimizer.minimize(loss)
    loss = (p * q).sum()
    q.data.setflags(write=False)
    with pytest.raises(vr.ShapeError, match="updated in place"):
        optimizer.minimize(loss)
    assert p.data.tolist() == q.data.tolist() == [1, 1]
    assert list(optimizer.state_dict()) == ["lr"]


@pytest.mark.parametrize("spoil", ["text", "integers", "list", "plan"])
def test_clipping_is_all_or_nothing(spoil):
    parameters, _ = model_of_three("sgd")
    SPOILS[spoil](parameters[2])
    before = [p.grad for p in parameters]
    with pytest.raises(vr.InputError):
        vr.optim.clip_grad_norm_(parameters, 0.1)
    assert all(p.grad is gradient for p, gradient in zip(parameters, before, strict=True))


def test_clipping_to_nothing_and_to_anything():
    p = vr.nn.Parameter([0.0, 0.0])
    p.grad = np.array([3.0, 4.0])
    assert vr.optim.clip_grad_norm_([p], float("inf")) == 5.0
    assert p.grad.tolist() == [3, 4]
    assert vr.optim.clip_grad_norm_([p], 0) == 5.0
    assert p.grad.tolist() == [0, 0]


@pytest.mark.parametrize("step", [-1, -(2**63), 2**63 - 1])
def test_a_step_counter_that_cannot_be_is_refused(step):
    p = vr.nn.Parameter([1.0])
    optimizer = vr.optim.Adam([p], lr=0.1)
    p.grad = np.ones(1)
    optimizer.step()
    state, before = optimizer.state_dict(), snapshot([p], optimizer)
    with pytest.raises(vr.CheckpointError, match=r"state '0\.step': expected a number of steps from 0 to 2"):
        optimizer.load_state_dict(state | {"0.step": np.array(step)})
    with pytest.raises(vr.CheckpointError, match=r"state '0\.step': expected an array of shape \(\) and type int64"):
        optimizer.load_state_dict(state | {"0.step": np.array(1.0)})
    assert snapshot([p], optimizer) == before
    with vr.program_guard() as program:
        optimizer.minimize((p * 2.0).sum())
    program.persistables["parameter.step"].data[...] = step
    with pytest.raises(vr.OutOfRangeError, match="adam, step: expected at least 0"):
        vr.Executor().run(program)
    assert p.data.tolist() == before[0][0]


def test_a_counter_as_large_as_can_be_and_states_that_are_no_numbers_are_loaded():
    """As in PyTorch: what is not finite is the user's."""
    p = vr.nn.Parameter([1.0])
    optimizer = vr.optim.Adam([p], lr=0.1)
    optimizer.load_state_dict(
        {"lr": np.array(0.1), "0.step": np.array(2**63 - 2), "0.moment1": np.array([np.nan]), "0.moment2": np.ones(1)}
    )
    p.grad = np.ones(1)
    optimizer.step()
    assert np.isnan(p.data).all()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_frozen_parameter_is_left_alone(name):
    frozen, other = vr.nn.Parameter([1.0, 2.0]), vr.nn.Parameter([1.0, 2.0])
    frozen.requires_grad = False
    optimizer = OPTIMIZERS[name][0]([frozen, other])

    def step():
        optimizer.zero_grad()
        (frozen * other).sum().backward()
        optimizer.step()

    step()
    assert frozen.grad is None
    assert frozen.data.tolist() == [1, 2]
    assert other.data.tolist() != [1, 2]
    assert not [key for key in optimizer.state_dict() if key.startswith("0.")]
    frozen.requires_grad = True  # thawed
    step()
    moved = frozen.data.tolist()
    assert moved != [1, 2]
    frozen.requires_grad = False  # frozen again, with a gradient and states from before
    frozen.grad, states = np.ones(2), optimizer.state_dict()
    optimizer.step()
    assert frozen.data.tolist() == moved
    after = optimizer.state_dict()
    assert all(np.array_equal(states[key], after[key]) for key in states if key.startswith("0."))
    optimizer.zero_grad()
    assert frozen.grad is None


def test_a_frozen_parameter_is_left_alone_by_a_program():
    model = vr.nn.Linear(2, 1)
    model.weight.requires_grad = False
    before = model.state_dict()
    with vr.program_guard() as program:
        loss = model(vr.feed_data("x", [-1, 2], "float32")).sum()
        vr.optim.Adam(model.parameters(), lr=0.1).minimize(loss)
    vr.Executor().run(program, {"x": np.ones((3, 2), np.float32)})
    assert np.array_equal(model.weight.data, before["weight"])
    assert not np.array_equal(model.bias.data, before["bias"])


def test_what_pytorch_takes_is_taken():
    p = vr.nn.Parameter([1.0])
    optimizer = vr.optim.Momentum([p], lr=1.0, momentum=1)
    for wanted in (0.0, -2.0, -5.0):  # velocities 1, 2, 3
        p.grad = np.ones(1)
        optimizer.step()
        assert p.data.tolist() == [wanted]
    p.grad = np.ones(1)
    vr.optim.Adam([p], lr=0, betas=(0, 0), epsilon=0).step()
    assert p.data.tolist() == [-5]
    assert np.array_equal(vr.nn.functional.dropout(np.ones(3), p=1), np.zeros(3))


@pytest.mark.parametrize(("before", "after"), [(0.9, 0.0), (0.0, 0.9)])
def test_a_momentum_that_comes_or_goes_leaves_a_state_that_is_saved_and_loaded(before, after):
    def stepped(lr, *momenta):
        optimizer = vr.optim.SGD([vr.nn.Parameter([1.0])], lr=lr)
        for momentum in momenta:
            optimizer.param_groups[0]["momentum"] = momentum
            if momentum is not momenta[-1] or len(momenta) == 1:
                optimizer.parameters[0].grad = np.ones(1)
                optimizer.step()
        return optimizer

    changed, fresh = stepped(0.5, before, after), stepped(0.25, after)
    assert set(changed.state_dict()) == {"lr"}  # the next step begins anew
    changed.load_state_dict(fresh.state_dict())
    assert changed.state_dict() == fresh.state_dict()
    changed.parameters[0].grad = np.ones(1)
    changed.step()
    assert changed.parameters[0].data.tolist() == [0.5 - 0.25 * (1 + after)]


@pytest.mark.parametrize(("mode", "worst"), [("min", np.inf), ("max", -np.inf)])
def test_a_plateau_that_begins_at_the_worst_number_is_one_as_in_pytorch(mode, worst):
    optimizer = vr.optim.SGD([vr.nn.Parameter([1.0])], lr=1.0)
    vr.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode, factor=0.5, patience=0).step(worst)
    assert optimizer.lr == 0.5
