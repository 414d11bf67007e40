"""Activations as modules, lists and dicts of modules, and functions in `Sequential`, beside PyTorch's."""

import copy

import numpy as np
import pytest

import varlen_rnn as vr
from varlen_rnn import nn
from varlen_rnn.nn import functional as F

X = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
MODULES = {
    "Tanh": {}, "Sigmoid": {}, "ReLU": {}, "LeakyReLU": {"negative_slope": 0.3}, "ELU": {"alpha": 0.5},
    "GELU": {"approximate": "tanh"}, "SiLU": {}, "Softplus": {"beta": 2.0, "threshold": 1.0}, "Softmax": {},
}  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_activations_are_pytorchs(name):
    torch = pytest.importorskip("torch", reason="PyTorch is in the `parity` extra")
    x = vr.create_lod_tensor(X, [[2, 0, 3]])
    for options in ({}, MODULES[name]):
        ours = getattr(nn, name)(**options)
        theirs = getattr(torch.nn, name)(**options or ({"dim": -1} if name == "Softmax" else {}))
        found = ours(x)
        assert found.lod() == x.lod()
        np.testing.assert_allclose(found, theirs(torch.tensor(X)).numpy(), rtol=2e-6, atol=1e-7)
        assert repr(ours) == repr(theirs).replace("dim=-1", "").replace("dim=None", "") or options or not MODULES[name]


def test_constants_are_shown_and_checked():
    model = nn.Sequential(nn.LeakyReLU(0.3), nn.ELU(), nn.GELU("tanh"), nn.Softplus(2.0, 3.0))
    text = repr(model)
    for part in ("negative_slope=0.3", "alpha=1.0", "approximate='tanh'", "beta=2.0, threshold=3.0"):
        assert part in text
    for make in (lambda: nn.GELU("erf"), lambda: nn.Softplus(0.0), lambda: nn.ELU(np.nan), lambda: nn.LeakyReLU("a")):
        with pytest.raises(vr.InputError):
            make()


def test_functions_in_sequential():
    model = nn.Sequential(nn.Linear(3, 4), F.relu, lambda x: x * 2.0, nn.Dropout(0.5), nn.Linear(4, 2))
    assert [name for name, _ in model.named_parameters()] == ["0.weight", "0.bias", "4.weight", "4.bias"]
    assert "(1): relu\n  (2): <lambda>" in repr(model)
    wanted = getattr(model, "4")(F.relu(getattr(model, "0")(X)) * 2.0)
    for run in (copy.deepcopy(model).eval(), model.prepare()):
        assert np.array_equal(run(X), wanted)
    with pytest.raises(vr.DTypeError, match=r"Sequential, entry 1: expected a Module or a function.*nn.Tanh\(\)"):
        nn.Sequential(nn.Linear(3, 4), nn.Tanh)


class Model(nn.Module):
    def __init__(self, kind=nn):
        super().__init__()
        self.layers = kind.ModuleList([kind.Linear(3, 3), kind.Tanh()])
        self.layers.append(kind.Linear(3, 3))
        self.heads = kind.ModuleDict({"tag": kind.Linear(3, 2), "stars": kind.Linear(3, 1)})
        self.scales = kind.ParameterList([self.scale(kind), self.scale(kind)])

    def scale(self, kind):
        return nn.Parameter(np.ones(3, np.float32))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        for scale in self.scales:
            x = x * scale
        return [head(x) for head in self.heads.values()]


def test_containers_are_trained_and_saved_under_pytorchs_names():
    torch = pytest.importorskip("torch", reason="PyTorch is in the `parity` extra")

    class Theirs(torch.nn.Module):
        __init__, forward = Model.__init__, Model.forward
        scale = lambda self, kind: kind.Parameter(torch.ones(3))

    Theirs.__init__ = lambda self: (torch.nn.Module.__init__(self), fill(self))[0]

    def fill(model):
        kind = torch.nn
        model.layers = kind.ModuleList([kind.Linear(3, 3), kind.Tanh()])
        model.layers.append(kind.Linear(3, 3))
        model.heads = kind.ModuleDict({"tag": kind.Linear(3, 2), "stars": kind.Linear(3, 1)})
        model.scales = kind.ParameterList([model.scale(kind), model.scale(kind)])

    ours, theirs = Model(), Theirs()
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    ours.load_state_dict({name: tensor.numpy() for name, tensor in theirs.state_dict().items()})
    for found, wanted in zip(ours(X), theirs(torch.tensor(X)), strict=True):
        np.testing.assert_allclose(found, wanted.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_lists_and_dicts_are_lists_and_dicts():
    model = Model()
    sum((y * y).sum() for y in model(X)).backward()
    before = model.state_dict()
    vr.optim.SGD(model.parameters(), 0.1).step()
    assert all(not np.array_equal(before[name], array) for name, array in model.state_dict().items())
    assert not model.eval().layers[1].training
    assert not model.heads["tag"].training
    layers = model.layers
    assert (len(layers), isinstance(layers[:2], nn.ModuleList), layers[-1] in layers) == (3, True, True)
    last = layers.pop()
    layers.insert(0, last)
    layers[1:] = [nn.ReLU(), nn.ReLU()]
    del layers[2]
    assert [type(layer).__name__ for layer in layers] == ["Linear", "ReLU"]
    heads = model.heads
    assert ("tag" in heads, list(heads), hash(heads) == hash(heads), heads != nn.ModuleDict(heads)) == (
        True, ["tag", "stars"], True, True,
    )  # fmt: skip
    del heads["tag"]
    assert list(heads.update({"more": nn.Tanh()}) or heads) == ["stars", "more"]
    with pytest.raises(KeyError):
        heads["tag"]
    assert "(heads): ModuleDict(\n    (stars): Linear" in repr(model)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: nn.ModuleList([nn.Tanh(), F.tanh]), "ModuleList, entry: expected a Module"),
        (lambda: nn.ModuleList([nn.Tanh()])[1], "ModuleList, index: expected an index into 1 entries, got 1"),
        (
            lambda: nn.ModuleList([nn.Tanh()] * 3).__setitem__(slice(0, 3, 2), [nn.Tanh()]),
            "entries: expected 2 entries",
        ),
        (lambda: nn.ModuleList().insert("a", nn.Tanh()), "ModuleList, index: expected an integer"),
        (lambda: nn.ParameterList([np.ones(3)]), "ParameterList, entry: expected a Parameter"),
        (lambda: nn.ModuleDict({"a.b": nn.Tanh()}), "ModuleDict, name: expected a string without dots"),
        (lambda: nn.ModuleDict({"a": F.tanh}), "ModuleDict, 'a': expected a Module"),
        (lambda: nn.ModuleList([nn.Tanh()])(X), r"ModuleList\.forward: expected a method forward in this subclass"),
    ],
)
def test_what_containers_refuse(wrong, message):
    with pytest.raises(vr.InputError, match=message):
        wrong()


def test_entries_of_lists_are_found_by_identity():
    first, second = nn.Parameter([1.0]), nn.Parameter([1.0])
    scales = nn.ParameterList([first, second])
    assert (second in scales, scales.index(second), scales.count(second)) == (True, 1, 1)
    scales.remove(second)
    assert second not in scales
    with pytest.raises(ValueError, match="is no entry of this ParameterList"):
        scales.index(second)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("function", [F.softplus, F.elu, F.log_sigmoid, lambda x: F.softplus(x, 2.5, 3.0)])
def test_fused_activations_lose_no_digits_of_small_numbers(function, dtype):
    """`log(1 + e**x)` of -20 is 0 in float32, unless it is computed as what it is nearly, `e**x`."""
    numbers = np.array([-30, -20, -17, -4.2, -4.1, -0.016, -0.0155, -1e-3, -1e-9, 0, 1e-9, 0.5, 17, 20], dtype)[:, None]
    numbers = np.concatenate([numbers, -numbers])
    x = vr.Variable(vr.create_lod_tensor(numbers, [[1] * len(numbers)]), requires_grad=True)
    weight, zero = np.ones((1, 1), dtype), np.zeros((1, 1), dtype)
    step = nn.DynamicRNN(lambda x, h: (function(x @ weight + h @ zero),) * 2)
    y, _ = step(x, [(1,)])
    assert step.explain().startswith("runs fused")
    y.sum().backward()
    alone = vr.Variable(numbers, requires_grad=True)
    wanted = function(alone)
    wanted.sum().backward()
    tolerance = {"rtol": 100 * np.finfo(dtype).eps, "atol": 0}
    np.testing.assert_allclose(y, wanted, **tolerance)
    np.testing.assert_allclose(np.asarray(x.grad), alone.grad, **tolerance)


@pytest.mark.parametrize(
    "function",
    [
        F.softplus, F.elu, F.leaky_relu, F.log_sigmoid, lambda x: x.clip(-0.5, 0.5),
        lambda x: x.clip(vr.Variable([-0.5, -0.25, 0.0]), 0.5),
    ],
)  # fmt: skip
def test_activations_are_fused_in_steps(function):
    rng = np.random.default_rng(0)
    w = vr.Variable(rng.standard_normal((3, 3)), requires_grad=True)
    x = vr.create_lod_tensor(rng.standard_normal((6, 3)), [[2, 0, 4]])
    step = nn.DynamicRNN(lambda x, h: (function(x @ w + h @ w),) * 2)
    y, _ = step(x, [(3,)])
    assert step.explain().startswith("runs fused")
    y.sum().backward()
    found, w.grad = w.grad, None
    wanted = []
    for sequence in (x.data[:2], x.data[2:]):
        h = vr.Variable(np.zeros((1, 3)))
        for row in sequence:
            h = function(vr.Variable(row[None]) @ w + h @ w)
            wanted.append(h)
    np.testing.assert_allclose(y, np.concatenate([h.numpy() for h in wanted]), rtol=1e-12)
    F.concat(wanted, axis=0).sum().backward()
    np.testing.assert_allclose(found, w.grad, rtol=1e-10)


def test_a_module_is_not_put_into_itself():
    listed, named, inner = nn.ModuleList(), nn.ModuleDict(), nn.ModuleList()
    listed.append(inner)
    outer = nn.Sequential(nn.Linear(2, 2))
    for put in (
        lambda: listed.append(listed),
        lambda: inner.append(listed),
        lambda: listed.__setitem__(slice(0, 1), [listed]),
        lambda: named.__setitem__("a", named),
        lambda: named.__setitem__("a", nn.ModuleList([named])),
        lambda: setattr(outer, "again", nn.Sequential(outer)),
        lambda: setattr(outer, "layers", [outer]),
        lambda: setattr(outer, "layers", {"a": (nn.Linear(2, 2), [nn.Sequential(outer)])}),
    ):
        with pytest.raises(vr.ProgramError, match=r"expected a Module without this \w+ inside, got"):
            put()
    assert (len(listed), len(inner), len(named), len(outer.children())) == (1, 0, 0, 1)
    outer.layers = []
    outer.layers.append(outer)
    with pytest.raises(vr.ProgramError, match=r"layers\.0: expected a Module without this Sequential inside"):
        outer.parameters()


def test_entries_of_a_sequential_are_read_by_number_or_slice():
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    assert [type(entry) for entry in model] == [nn.Linear, nn.Tanh, nn.Linear]
    assert model[-1] is model[2]
    assert list(model[1:]) == [model[1], model[2]]
    for index, error in ((3, vr.OutOfRangeError), ("0", vr.errors.DTypeError)):
        with pytest.raises(error, match="Sequential, index: expected an index into 3 entries"):
            model[index]
