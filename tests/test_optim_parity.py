"""Optimizers, groups and schedules against PyTorch, over 100 steps in float64; sparse gradients against dense."""

import json

import numpy as np
import pytest

import varlen_rnn as vr
from varlen_rnn.optim import lr_scheduler as S

torch = pytest.importorskip("torch")

# Ours, PyTorch's, and the options of both.
CASES = {
    "sgd": ("SGD", "SGD", {"lr": 0.1}),
    "sgd, decay": ("SGD", "SGD", {"lr": 0.1, "weight_decay": 0.05}),
    "sgd, momentum": ("SGD", "SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05}),
    "sgd, nesterov": ("SGD", "SGD", {"lr": 0.1, "momentum": 0.8, "nesterov": True}),
    "momentum": ("Momentum", "SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    "adagrad": ("Adagrad", "Adagrad", {"lr": 0.1}),
    "adagrad, options": ("Adagrad", "Adagrad", {"weight_decay": 0.1, "eps": 1e-3, "initial_accumulator_value": 0.5}),
    "adam": ("Adam", "Adam", {}),
    "adam, options": ("Adam", "Adam", {"lr": 0.1, "betas": (0.5, 0.7), "eps": 1e-2, "weight_decay": 0.05}),
    "adamw": ("AdamW", "AdamW", {}),
    "adamw, options": ("AdamW", "AdamW", {"lr": 0.1, "betas": (0.5, 0.7), "eps": 1e-2, "weight_decay": 0.3}),
    "rmsprop": ("RMSprop", "RMSprop", {}),
    "rmsprop, options": (
        "RMSprop", "RMSprop", {"lr": 0.1, "alpha": 0.8, "eps": 1e-2, "momentum": 0.9, "weight_decay": 0.05},
    ),
    "adadelta": ("Adadelta", "Adadelta", {}),
    "adadelta, options": ("Adadelta", "Adadelta", {"lr": 0.5, "rho": 0.7, "eps": 1e-2, "weight_decay": 0.05}),
}  # fmt: skip


def gradients(seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((6, 3)) * 10 ** rng.uniform(-6, 1) for _ in range(100)]


def start(number=2):
    return [np.random.default_rng(k + 7).standard_normal((6, 3)) for k in range(number)]


def make(case, groups=False):
    """Return our parameters and optimizer, and PyTorch's."""
    ours, theirs, options = CASES[case]
    p, q = [vr.nn.Parameter(value) for value in start()], [torch.nn.Parameter(torch.tensor(v)) for v in start()]
    own = {"lr": 0.03, "weight_decay": 0.2}
    of_p = [{"params": p[:1]}, {"params": p[1:], **own}] if groups else p
    of_q = [{"params": q[:1]}, {"params": q[1:], **own}] if groups else q
    return p, getattr(vr.optim, ours)(of_p, **options), q, getattr(torch.optim, theirs)(of_q, **options)


def step(p, optimizer, gradient):
    for k, parameter in enumerate(p):
        parameter.grad = gradient * (k + 1)
    optimizer.step()


def step_of_torch(q, optimizer, gradient):
    for k, parameter in enumerate(q):
        parameter.grad = torch.tensor(gradient * (k + 1))
    optimizer.step()


def assert_close(p, q):
    for ours, theirs in zip(p, q, strict=True):
        np.testing.assert_allclose(ours.data, theirs.detach().numpy(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("groups", [False, True], ids=["one group", "two groups"])
@pytest.mark.parametrize("case", CASES)
def test_a_hundred_steps_are_pytorchs(case, groups):
    p, ours, q, theirs = make(case, groups)
    for gradient in gradients():
        step(p, ours, gradient)
        step_of_torch(q, theirs, gradient)
    assert_close(p, q)


@pytest.mark.parametrize("case", CASES)
def test_a_sparse_gradient_of_all_rows_is_the_dense_one(case):
    p, ours, _, _ = make(case)
    q, other, _, _ = make(case)
    for gradient in gradients():
        step(p, ours, gradient)
        order, halves = [3, 0, 1, 2, 5, 4, 1], gradient.copy()
        halves[1] /= 2  # listed twice
        for k, parameter in enumerate(q):
            parameter.grad = vr.SelectedRows(order, halves[order] * (k + 1), 6)
        other.step()
    for a, b in zip(p, q, strict=True):
        np.testing.assert_allclose(a.data, b.data, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("case", ["sgd, decay", "adagrad, options", "lazy"])
def test_rows_that_a_sparse_gradient_does_not_list_do_not_decay(case):
    p = vr.nn.Parameter(start()[0])
    make_lazy = lambda p: vr.optim.AdamW(p, lr=0.1, weight_decay=0.5, lazy=True)
    optimizer = make_lazy([p]) if case == "lazy" else getattr(vr.optim, CASES[case][0])([p], **CASES[case][2])
    p.grad = vr.SelectedRows([4, 1, 4], np.ones((3, 3)), 6)
    optimizer.step()
    moved = (p.data != start()[0]).any(axis=1)
    assert moved.tolist() == [False, True, False, False, True, False]


@pytest.mark.parametrize("case", [case for case in CASES if case != "sgd"])
def test_groups_in_a_program_are_those_of_the_optimizer(case, tmp_path):
    """Recorded, saved and loaded: the same bits; a rate that is set reaches the recorded program."""
    p, ours, _, _ = make(case, groups=True)
    eager, other, _, _ = make(case, groups=True)
    with vr.program_guard() as program:
        x = vr.feed_data("x", [6, 3], "float64")
        ours.minimize((x * p[0] + x * p[1] * p[1]).sum())
    program.save(tmp_path / "train.program")
    executor, values = vr.Executor(), gradients(3)[:5]
    for k, value in enumerate(values):
        ours.param_groups[1]["lr"] = other.param_groups[1]["lr"] = 0.01 * (k + 1)
        executor.run(program, {"x": value})
        other.minimize((vr.Variable(value) * eager[0] + vr.Variable(value) * eager[1] * eager[1]).sum())
    for a, b in zip(p, eager, strict=True):
        np.testing.assert_array_equal(a.data, b.data)
    loaded = vr.Program.load(tmp_path / "train.program")
    rates = [name for name in loaded.persistables if "learning_rate" in name]
    for k, value in enumerate(values):
        loaded.persistables[sorted(rates)[-1]].data[...] = 0.01 * (k + 1)
        executor.run(loaded, {"x": value})
    for name, value in program.persistables.items():
        np.testing.assert_array_equal(loaded.persistables[name].data, value.data)


@pytest.mark.parametrize("case", CASES)
def test_a_run_resumed_from_its_state_has_the_same_bits(case):
    groups = case != "sgd"
    p, ours, _, _ = make(case, groups)
    q, other, _, _ = make(case, groups)
    values = gradients()
    for gradient in values[:10]:
        step(p, ours, gradient)
    ours.param_groups[-1]["lr"] = 0.007
    for a, b in zip(q, p, strict=True):
        a.assign(b.data)
    other.load_state_dict(ours.state_dict())
    assert other.param_groups[-1]["lr"] == 0.007
    for gradient in values[10:20]:
        step(p, ours, gradient)
        step(q, other, gradient)
    for a, b in zip(p, q, strict=True):
        np.testing.assert_array_equal(a.data, b.data)


def test_gradients_of_several_passes_add_up():
    """Dense and sparse, as PyTorch sums them, until they are dropped."""
    table, weight = vr.nn.Embedding(5, 3, dtype="float64"), vr.nn.Parameter(start()[0][:, :1])
    for ids in ([0, 3, 3], [1, 3]):
        (table(np.array(ids)) * 2.0).sum().backward()
        (weight * float(len(ids))).sum().backward()
    np.testing.assert_array_equal(table.weight.grad.to_dense()[:, 0], [2, 2, 0, 6, 0])
    np.testing.assert_array_equal(weight.grad, np.full((6, 1), 5.0))


def test_param_groups_are_dicts():
    p = [vr.nn.Parameter(value) for value in start()]
    optimizer = vr.optim.AdamW([{"params": p[0], "lr": 0.5}], lr=0.1, weight_decay=0.0)
    optimizer.add_param_group({"params": [p[1]], "betas": [0.5, 0.75]})
    first, second = optimizer.param_groups
    assert (first["lr"], second["lr"], optimizer.lr) == (0.5, 0.1, 0.5)
    assert second["betas"] == (0.5, 0.75)
    assert dict(second)["params"] == [p[1]]
    optimizer.lr = 0.25
    assert (first["lr"], second["lr"]) == (0.25, 0.25)
    assert "weight_decay=0.0" in repr(first)
    with pytest.raises(vr.ShapeError, match="weight_decay: expected finite and at least 0"):
        first["weight_decay"] = -1
    with pytest.raises(vr.InputError, match=r"param_groups: expected an option, one of .*, got 'momentum'"):
        first["momentum"] = 0.5
    with pytest.raises(vr.InputError, match="add_param_group"):
        first["params"] = []
    with pytest.raises(vr.DTypeError, match="options that are only set"):
        del first["lr"]
    with pytest.raises(vr.ShapeError, match="different Parameters, got a Parameter twice"):
        optimizer.add_param_group({"params": [p[0]]})
    with pytest.raises(vr.InputError, match=r"parameters, group 2, parameters: expected options among .*, got 'rate'"):
        optimizer.add_param_group({"params": [vr.nn.Parameter([1.0])], "rate": 1})
    with pytest.raises(vr.DTypeError, match="dicts with the key 'params'"):
        vr.optim.SGD([{"params": [p[0]]}, p[1]], lr=0.1)
    assert len(optimizer.param_groups) == 2
    assert len(optimizer.parameters) == 2


def test_a_momentum_that_is_set_later_starts_from_zero():
    p = vr.nn.Parameter([1.0])
    optimizer = vr.optim.SGD([p], lr=0.5)
    for momentum in (0.0, 0.5, 0.5):
        optimizer.param_groups[0]["momentum"] = momentum
        p.grad = np.array([1.0])
        optimizer.step()
    np.testing.assert_allclose(p.data, [1 - 0.5 - 0.5 - 0.75])


T = torch.optim.lr_scheduler
SCHEDULES = {
    "lambda": (lambda o: S.LambdaLR(o, lambda t: 0.9**t), lambda o: T.LambdaLR(o, lambda t: 0.9**t)),
    "step": (lambda o: S.StepLR(o, 7, 0.5), lambda o: T.StepLR(o, 7, 0.5)),
    "multi": (lambda o: S.MultiStepLR(o, [30, 5, 5], 0.3), lambda o: T.MultiStepLR(o, [30, 5, 5], 0.3)),
    "exponential": (lambda o: S.ExponentialLR(o, 0.95), lambda o: T.ExponentialLR(o, 0.95)),
    "linear": (lambda o: S.LinearLR(o), lambda o: T.LinearLR(o)),
    "linear down": (lambda o: S.LinearLR(o, 1.0, 0.0, 40), lambda o: T.LinearLR(o, 1.0, 0.0, 40)),
    "cosine": (lambda o: S.CosineAnnealingLR(o, 30, 1e-4), lambda o: T.CosineAnnealingLR(o, 30, 1e-4)),
    "one cycle": (
        lambda o: S.OneCycleLR(o, 0.5, total_steps=101),
        lambda o: T.OneCycleLR(o, 0.5, total_steps=101, cycle_momentum=False),
    ),
    "one cycle, options": (
        lambda o: S.OneCycleLR(o, [0.5, 0.1], epochs=5, steps_per_epoch=21, pct_start=0.15, anneal_strategy="linear",
                               div_factor=10, final_div_factor=100),
        lambda o: T.OneCycleLR(o, [0.5, 0.1], epochs=5, steps_per_epoch=21, pct_start=0.15, anneal_strategy="linear",
                               div_factor=10, final_div_factor=100, cycle_momentum=False),
    ),
    "warm-up, then cosine": (
        lambda o: S.SequentialLR(o, [S.LinearLR(o, 0.1, total_iters=10), S.CosineAnnealingLR(o, 80)], [10]),
        lambda o: T.SequentialLR(o, [T.LinearLR(o, 0.1, total_iters=10), T.CosineAnnealingLR(o, 80)], [10]),
    ),
}  # fmt: skip


def two_groups():
    p, ours, q, theirs = make("sgd, decay", groups=True)
    return p, ours, q, theirs


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_is_pytorchs(name):
    p, ours, q, theirs = two_groups()
    a, b = SCHEDULES[name][0](ours), SCHEDULES[name][1](theirs)
    for gradient in gradients():
        np.testing.assert_allclose(a.get_last_lr(), b.get_last_lr(), rtol=1e-10, atol=1e-14)
        step(p, ours, gradient)
        step_of_torch(q, theirs, gradient)
        a.step()
        b.step()
    assert_close(p, q)


def test_schedules_in_schedules_follow_from_the_first_rate():
    _, ours, _, _ = two_groups()
    inner = S.SequentialLR(ours, [S.StepLR(ours, 3), S.StepLR(ours, 4, gamma=0.5)], [6])
    whole = S.SequentialLR(ours, [S.LinearLR(ours, 0.1, total_iters=4), inner], [4])
    rates = []
    for _ in range(16):
        rates.append(ours.param_groups[0]["lr"])
        whole.step()
    warm = [0.1 * (0.1 + 0.9 * k / 4) for k in range(4)]
    first, second = [0.1 * 0.1 ** (k // 3) for k in range(6)], [0.1 * 0.5 ** (k // 4) for k in range(6)]
    np.testing.assert_allclose(rates, warm + first + second, rtol=1e-12)
    for wrong in ({"base_lrs": [None, None], "last_epoch": 1}, {"base_lrs": [0.1, 0.1], "last_epoch": 1.5}):
        with pytest.raises(vr.CheckpointError, match="state of a schedule"):
            whole.load_state_dict(wrong)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_resumes_from_its_state(name):
    _, ours, _, _ = two_groups()
    a = SCHEDULES[name][0](ours)
    for _ in range(37):
        a.step()
    _, other, _, _ = two_groups()
    b = SCHEDULES[name][0](other)
    b.load_state_dict(json.loads(json.dumps(a.state_dict())))
    other.load_state_dict(ours.state_dict())
    for _ in range(40):
        assert a.get_last_lr() == b.get_last_lr()
        a.step()
        b.step()


@pytest.mark.parametrize(
    "options",
    [{}, {"patience": 2}, {"patience": 0, "factor": 0.5, "cooldown": 2}, {"mode": "max", "patience": 1},
     {"threshold": 0.3, "threshold_mode": "abs", "patience": 1}, {"patience": 0, "min_lr": 1e-3},
     {"patience": 0, "factor": 0.9, "eps": 0.02}],
)  # fmt: skip
def test_a_plateau_is_pytorchs(options):
    _, ours, _, theirs = two_groups()
    a, b = S.ReduceLROnPlateau(ours, **options), T.ReduceLROnPlateau(theirs, **options)
    rng = np.random.default_rng(1)
    for k in range(100):
        value = float(1 + 1 / (1 + k // 7) + 0.1 * rng.random() * (k % 5 == 0))
        if k == 50:
            state = json.loads(json.dumps(a.state_dict()))
            a = S.ReduceLROnPlateau(ours, **options)
            a.load_state_dict(state)
        a.step(value)
        b.step(value)
        np.testing.assert_allclose(a.get_last_lr(), [group["lr"] for group in theirs.param_groups], rtol=1e-12)


def test_wrong_schedules_are_named():
    _, ours, _, _ = two_groups()
    _, other, _, _ = two_groups()
    with pytest.raises(vr.DTypeError, match="optimizer: expected an optimizer of varlen_rnn"):
        S.StepLR(None, 3)
    with pytest.raises(vr.ShapeError, match="step_size: expected at least 1"):
        S.StepLR(ours, 0)
    with pytest.raises(vr.InputError, match="expected total_steps, or epochs and steps_per_epoch"):
        S.OneCycleLR(ours, 0.1, epochs=3)
    with pytest.raises(vr.ShapeError, match="max_lr: expected 2 rates, one per group, got 3 rates"):
        S.OneCycleLR(ours, [0.1] * 3, total_steps=3)
    with pytest.raises(vr.ShapeError, match="lr_lambda: expected 2 functions, one per group, got 1 function"):
        S.LambdaLR(ours, [lambda t: 1.0])
    with pytest.raises(vr.DTypeError, match="schedulers, entry 1: expected a schedule of the same optimizer"):
        S.SequentialLR(ours, [S.LinearLR(ours), S.LinearLR(other)], [3])
    with pytest.raises(vr.ShapeError, match="milestones: expected 0 rising steps, one fewer than the schedules"):
        S.SequentialLR(ours, [S.LinearLR(ours)], [3])
    schedule = S.OneCycleLR(ours, 0.1, total_steps=3)
    for _ in range(3):
        schedule.step()
    with pytest.raises(vr.OutOfRangeError, match="OneCycleLR, step: expected at most 3"):
        schedule.step()
    with pytest.raises(vr.CheckpointError, match="state of a schedule: expected"):
        schedule.load_state_dict({"other": 1})
    with pytest.raises(vr.CheckpointError, match="state of a schedule, 'base_lrs'"):
        schedule.load_state_dict({"last_epoch": 1, "base_lrs": [0.1]})


@pytest.mark.parametrize("decay", [0.9, None])
def test_averages_of_weights_are_pytorchs(decay):
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    ours, theirs = vr.nn.Linear(3, 2, dtype="float64"), torch.nn.Linear(3, 2).double()
    a = vr.optim.AveragedModel(ours, decay)
    b = AveragedModel(theirs, multi_avg_fn=None if decay is None else get_ema_multi_avg_fn(decay))
    for k, value in enumerate(start(20)):
        ours.weight.assign(value[:2])
        theirs.weight.data = torch.tensor(value[:2])
        a.update()
        b.update_parameters(theirs)
        if k == 10:
            state = a.state_dict()
            a = vr.optim.AveragedModel(ours, decay)
            a.load_state_dict(state)
    with a.applied():
        np.testing.assert_allclose(ours.weight.data, b.module.weight.detach().numpy(), rtol=1e-12)
    np.testing.assert_array_equal(ours.weight.data, start(20)[-1][:2])
    with pytest.raises(ZeroDivisionError), a.applied():
        raise ZeroDivisionError
    np.testing.assert_array_equal(ours.weight.data, start(20)[-1][:2])
    with pytest.raises(vr.CheckpointError, match="AveragedModel, 'bias': expected"):
        a.load_state_dict({name: value for name, value in a.state_dict().items() if name != "bias"})
