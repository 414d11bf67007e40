"""Modules, modes, dropout, the four troubles through every recurrent layer, and losses."""

import copy
import itertools

import numpy as np
import pytest

import varlen_rnn as vr
from varlen_rnn.nn import functional as F
from varlen_rnn.recurrence import layer as recurrence_layer
from varlen_rnn.runtime import threads
from varlen_rnn.tape import gradient


class Tied(vr.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = vr.nn.Linear(3, 3)
        self.second = vr.nn.Sequential(vr.nn.Linear(3, 3), vr.nn.Dropout(0.5))
        self.tied = self.first.weight


def test_parameters_have_dotted_names_and_are_listed_once():
    model = Tied()
    names = [name for name, _ in model.named_parameters()]
    assert names == ["tied", "first.bias", "second.0.weight", "second.0.bias"]
    assert len(model.parameters()) == 4
    assert "(second): Sequential" in repr(model)


class Stack(vr.nn.Module):
    def __init__(self):
        self.layers = [vr.nn.Linear(2, 2) for _ in range(2)]
        self.scales = (vr.nn.Parameter([1.0]), vr.nn.Parameter([2.0]))


def test_lists_of_modules_and_parameters_are_found():
    names = [name for name, _ in Stack().named_parameters()]
    assert names == ["scales.0", "scales.1", "layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias"]
    assert [name for name, _ in Stack().eval().named_children()] == ["layers.0", "layers.1"]


def test_modules_are_listed_once_from_the_outermost_on():
    shared = vr.nn.Linear(2, 2)
    model = vr.nn.Sequential(shared, vr.nn.Sequential(vr.nn.Tanh(), shared))
    assert [type(module).__name__ for module in model.modules()] == ["Sequential", "Linear", "Sequential", "Tanh"]
    assert model.children() == [shared, model[1]]
    assert model.modules()[1] is shared
    assert [name for name, _ in model.named_modules()] == ["", "0", "1", "1.0"]
    assert [name for name, _ in model.named_modules("net")] == ["net", "net.0", "net.1", "net.1.0"]
    assert [module for _, module in model.named_modules()] == model.modules()
    assert [name for name, _ in Stack().named_modules()] == ["", "layers.0", "layers.1"]


def test_a_module_is_frozen_and_thawed():
    model = vr.nn.Sequential(vr.nn.Embedding(3, 2), vr.nn.Linear(2, 1))
    assert model[0].requires_grad_(False) is model[0]
    assert [parameter.requires_grad for parameter in model.parameters()] == [False, True, True]
    model(np.array([0, 1])).sum().backward()
    assert model[0].weight.grad is None
    model.requires_grad_()
    assert all(parameter.requires_grad for parameter in model.parameters())
    model[0].weight = vr.nn.Parameter(np.zeros((3, 2), np.float16), requires_grad=False)
    model[1].requires_grad_(False)
    with pytest.raises(vr.DTypeError, match="float16"):
        model.requires_grad_()
    assert not any(parameter.requires_grad for parameter in model.parameters())
    with pytest.raises(vr.DTypeError):
        model.requires_grad_(np.ones(2))


def test_zero_grad_of_a_module_drops_all_gradients():
    model = vr.nn.Sequential(vr.nn.Linear(2, 3), vr.nn.Linear(3, 1))
    model(np.ones((4, 2), np.float32)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    model.zero_grad()
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.twins
@pytest.mark.parametrize("of_module", [True, False])
def test_gradients_are_dropped_or_zero(device, of_module):
    model = vr.nn.Sequential(vr.nn.Embedding(3, 2), vr.nn.Linear(2, 1))
    place = vr.Variable(vr.LoDTensor(device.put(np.zeros(1)))).device
    model.to(place)
    owner = model if of_module else vr.optim.SGD(model.parameters(), lr=1.0)
    ids = vr.Variable(np.array([0, 1])).to(place)

    def table():
        gradient = model[0].weight.grad
        return device.get(gradient.to_dense())

    model(ids).sum().backward()
    once, seen = table(), model[1].weight.grad
    kept = device.get(seen).copy()
    owner.zero_grad(set_to_none=False)
    assert isinstance(model[0].weight.grad, vr.SelectedRows)
    for parameter in model[1].parameters():
        assert parameter.grad.shape == parameter.shape
        assert not device.get(parameter.grad).any()
    assert not table().any()
    np.testing.assert_array_equal(device.get(seen), kept)  # a gradient that someone keeps stays
    model(ids).sum().backward()
    np.testing.assert_array_equal(table(), once)
    owner.zero_grad(set_to_none=True)
    assert all(parameter.grad is None for parameter in model.parameters())
    owner.zero_grad(set_to_none=False)
    assert all(parameter.grad is None for parameter in model.parameters())
    with pytest.raises(vr.DTypeError):
        owner.zero_grad(set_to_none=np.ones(2))


class Grid(vr.nn.Module):
    def __init__(self):
        self.layers = {"a": vr.nn.Linear(2, 2), "b": [vr.nn.Linear(2, 2)], 3: (vr.nn.Parameter([1.0]),)}
        self.grid = [[vr.nn.Linear(2, 2)], [vr.nn.Linear(2, 2), {"deep": vr.nn.Dropout(0.5)}]]
        self.names = ["one", ["two"]]
        self.names.append(self.names)

    def forward(self, x):
        for layer in (self.layers["a"], *self.layers["b"], self.grid[0][0], self.grid[1][0]):
            x = layer(x)
        return x * self.layers[3][0].sum()


def test_dicts_and_nested_lists_are_found_trained_and_saved():
    model, other = Grid(), Grid()
    layers = ["layers.a", "layers.b.0", "grid.0.0", "grid.1.0"]
    names = ["layers.3.0", *(f"{layer}.{name}" for layer in layers for name in ("weight", "bias"))]
    assert [name for name, _ in model.named_parameters()] == names
    x = np.ones((3, 2), np.float32)
    with pytest.raises(vr.CheckpointError):
        other.load_state_dict({"grid.0.0.weight": np.zeros((2, 2), np.float32)})
    model.layers[3] = (vr.nn.Parameter(np.ones(1, np.float32)),)
    model(x).sum().backward()
    vr.optim.SGD(model.parameters(), lr=0.1).step()
    other.layers[3] = (vr.nn.Parameter(np.ones(1, np.float32)),)
    other.load_state_dict(model.state_dict())
    assert np.array_equal(other(x), model(x))
    assert not model.eval().grid[1][1]["deep"].training


def test_two_parameters_of_one_name_are_an_error():
    model = vr.nn.Module()
    model.layers = {1: vr.nn.Parameter([1.0]), "1": vr.nn.Parameter([2.0])}
    with pytest.raises(vr.ProgramError, match=r"parameter 'layers\.1': expected one parameter of this name"):
        model.state_dict()


def test_modes_reach_all_modules():
    model = Tied()
    assert model.eval() is model
    assert not model.second.children()[1].training
    assert model.train().second.children()[1].training


def test_state_dicts_are_copies_and_strict():
    model = vr.nn.Linear(3, 2)
    state = model.state_dict()
    state["weight"][:] = 7
    assert not (model.weight.data == 7).any()
    model.load_state_dict(state)
    assert (model.weight.data == 7).all()
    with pytest.raises(vr.CheckpointError, match="bias"):
        model.load_state_dict({"weight": state["weight"]})
    keys = model.load_state_dict({"weight": state["weight"] + 1, "more": state["bias"]}, strict=False)
    assert (model.weight.data == 8).all()
    assert keys == (["bias"], ["more"])
    assert (keys.missing_keys, keys.unexpected_keys) == (["bias"], ["more"])
    assert model.load_state_dict(state) == ([], [])


def test_the_seed_decides_parameters_and_dropout():
    results = []
    for _ in range(2):
        vr.manual_seed(3)
        layer = vr.nn.LSTM(2, 3, num_layers=2, dropout=0.5)
        y, _ = layer(vr.create_lod_tensor(np.ones((4, 2), np.float32), [[4]]))
        results.append(np.asarray(y))
    assert np.array_equal(*results)


def test_dropout_scales_what_it_keeps():
    vr.manual_seed(0)
    x = np.ones((1000, 10), np.float32)
    y = np.asarray(F.dropout(x, 0.25))
    assert set(np.unique(y)) == {0, np.float32(1 / 0.75)}
    assert abs(y.mean() - 1) < 0.05
    assert np.array_equal(np.asarray(F.dropout(x, 0.25, training=False)), x)
    assert not np.asarray(F.dropout(x, 1.0)).any()


@pytest.mark.parametrize("lengths", [[], [0], [0, 0], [0, 2, 0], [1, 1, 1], [3, 3], [1, 0, 9]], ids=str)
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_the_four_troubles_pass_states_and_gradients_through(kind, lengths):
    layer = getattr(vr.nn, kind)(3, 4, num_layers=2, bidirectional=True, dtype=np.float64)
    x = vr.Variable(vr.create_lod_tensor(np.ones((sum(lengths), 3)), [lengths]), requires_grad=True)
    starts = np.random.default_rng(0).standard_normal((len(layer.cell.states), 4, len(lengths), 4))
    states = [vr.Variable(start, requires_grad=True) for start in starts]
    y, last = layer(x, states if kind == "LSTM" else states[0])
    last = last if kind == "LSTM" else (last,)
    assert y.lod() == x.lod()
    loss = y.sum()
    for value in last:
        loss = loss + (value * 3.0).sum()
    loss.backward()
    empty = np.array(lengths, int) == 0
    for state, start, value in zip(states, starts, last, strict=True):
        assert np.array_equal(np.asarray(value)[:, empty], start[:, empty])
        assert (state.grad[:, empty] == 3).all()
    assert x.grad.shape == x.shape
    assert all(np.isfinite(parameter.grad).all() for parameter in layer.parameters())


def test_the_recurrence_runs_over_the_last_level_and_keeps_all():
    vr.manual_seed(0)
    layer = vr.nn.GRU(2, 3)
    rows = np.random.default_rng(0).standard_normal((6, 2)).astype(np.float32)
    y, h_n = layer(vr.create_lod_tensor(rows, [[2, 1], [1, 2, 3]]))
    flat, flat_h = layer(vr.create_lod_tensor(rows, [[1, 2, 3]]))
    assert y.lod() == [[0, 2, 3], [0, 1, 3, 6]]
    assert np.array_equal(y, flat)
    assert np.array_equal(h_n, flat_h)


def test_inference_keeps_nothing_and_computes_the_same():
    layer = vr.nn.LSTM(2, 3, bidirectional=True)
    x = vr.create_lod_tensor(np.ones((5, 2), np.float32), [[2, 3]])
    y, _ = layer(x)
    with vr.no_grad():
        z, _ = layer(x)
    assert y.record is not None
    assert z.record is None
    assert np.array_equal(y, z)


def test_pooling_two_levels_keeps_the_first():
    x = vr.create_lod_tensor(np.array([1.0, 3, 2, 4, 6, 5, 1]), [[2, 0, 3], [1, 2, 1, 0, 3]])
    y = vr.sequence_pool(x, "sum")
    assert np.asarray(y).tolist() == [1, 5, 4, 0, 12]
    assert y.lod() == [[0, 2, 2, 5]]


def test_losses_weigh_rows_or_sequences():
    logits = vr.create_lod_tensor(np.array([[0.0, 0], [2, 0], [2, 0], [2, 0]]), [[1, 3, 0]])
    labels = np.array([0, 1, 1, 1])
    each = np.asarray(F.cross_entropy(logits, labels, "none"))
    assert F.cross_entropy(logits, labels).item() == pytest.approx(each.mean())
    by_sequence = [each[0], each[1:].mean(), 0]
    found = F.cross_entropy(logits, labels, per="sequence").item()
    assert found == pytest.approx(np.mean(by_sequence[:2]))  # the empty one has no loss
    assert F.cross_entropy(logits, labels, "sum", per="sequence").item() == pytest.approx(sum(by_sequence))
    assert F.cross_entropy(logits, labels, "none").lod() == [[0, 1, 4, 4]]


@pytest.mark.parametrize("per", ["row", "sequence"])
def test_the_loss_of_an_empty_batch_is_zero(per):
    x = vr.Variable(vr.create_lod_tensor(np.zeros((0, 2)), [[]]), requires_grad=True)
    loss = F.cross_entropy(x, np.zeros(0, int), per=per)
    loss.backward()
    assert loss.item() == 0
    assert x.grad.shape == (0, 2)


class Tagger(vr.nn.Module):
    def __init__(self):
        self.embedding = vr.nn.Embedding(30, 7)
        self.lstm = vr.nn.LSTM(7, 11, num_layers=2, bidirectional=True)
        self.gru = vr.nn.GRU(22, 19)
        self.output = vr.nn.Linear(19, 5)

    def forward(self, ids):
        return self.output(self.gru(self.lstm(self.embedding(ids))[0])[0])


def test_a_models_batch_equals_its_sequences_one_by_one_bitwise():
    vr.manual_seed(0)
    model = Tagger()
    sequences = [np.random.default_rng(n).integers(0, 30, n) for n in (4, 0, 13, 1, 7, 7, 2)]
    batch = np.asarray(model(vr.LoDTensor.from_sequences(sequences)))
    alone = [np.asarray(model(vr.LoDTensor.from_sequences([sequence], dtype=np.int64))) for sequence in sequences]
    assert np.array_equal(batch, np.concatenate(alone))


def test_a_models_gradients_do_not_depend_on_the_number_of_threads_bitwise(monkeypatch):
    monkeypatch.setattr(threads, "SMALL_WORK", 0)
    vr.manual_seed(0)
    model = Tagger()
    ids = vr.LoDTensor.from_sequences([np.random.default_rng(n).integers(0, 30, n) for n in (40, 3, 0, 90, 17)])
    results = []
    for number in (1, 2, 5):
        vr.set_num_threads(number)
        F.cross_entropy(model(ids), ids.data % 5).backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        results.append([g.to_dense() if isinstance(g, vr.SelectedRows) else g for g in gradients])
        for parameter in model.parameters():
            parameter.grad = None
    for other in results[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_a_copy_of_a_parameter_forgets_when_it_was_updated(monkeypatch):
    class Named(vr.nn.Parameter):
        pass

    p = Named([1.0])
    p.assign([2.0])
    p.note = "kept"
    monkeypatch.setattr(gradient, "_numbers", itertools.count())  # as in another process
    other = copy.deepcopy(p)
    (other * other).sum().backward()
    assert other.grad.tolist() == [4]
    assert other.note == "kept"


@pytest.mark.parametrize("values", [None, "1.0", [1j]])
def test_a_parameter_is_assigned_numbers(values):
    p = vr.nn.Parameter([1.0])
    with pytest.raises(vr.DTypeError, match="assign"):
        p.assign(values)
    assert p.data.tolist() == [1]


def test_sizes_may_be_small_integers_of_numpy():
    n = np.uint8(200)
    assert vr.nn.LSTM(3, n, np.uint8(2), bidirectional=True).weight_ih_l1.shape == (800, 400)
    assert vr.nn.Linear(n, n).weight.shape == (200, 200)
    assert vr.nn.Embedding(n, n, padding_idx=np.int8(-1)).padding_idx == 199


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_frozen_layers_cost_no_gradient_of_weights(kind, monkeypatch):
    layer = getattr(vr.nn, kind)(3, 4, bidirectional=True, dtype=np.float64)
    x = vr.Variable(vr.create_lod_tensor(np.random.default_rng(0).random((5, 3)), [[2, 3]]), requires_grad=True)
    layer(x)[0].sum().backward()
    wanted, x.grad = x.grad.data, None
    for p in layer.parameters():
        p.requires_grad, p.grad = False, None
    monkeypatch.setattr(recurrence_layer, "row_products", None)
    layer(x)[0].sum().backward()
    np.testing.assert_array_equal(x.grad.data, wanted)
    assert all(p.grad is None for p in layer.parameters())


def test_an_array_does_not_take_the_place_of_a_parameter():
    layer = vr.nn.Linear(2, 3)
    with pytest.raises(vr.DTypeError, match=r"Linear.weight: expected a Parameter, or None, got ndarray"):
        layer.weight = np.zeros((3, 2), np.float32)
    layer.weight = vr.nn.Parameter(np.ones((3, 2), np.float32))
    layer.bias = None
    assert [name for name, _ in layer.named_parameters()] == ["weight"]
