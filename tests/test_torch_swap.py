"""Models of torch whose recurrent layers are replaced: the same numbers, gradients and state dicts."""

import copy
import io
import random

import numpy as np
import pytest

import varlen_rnn as vr

torch = pytest.importorskip("torch")
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence  # noqa: E402

import varlen_rnn.torch as vt  # noqa: E402


class Random(torch.nn.Module):
    """An embedding, recurrent layers of all kinds over each other, attention of some to them, and a classifier."""

    def __init__(self, choose):
        super().__init__()
        self.table = torch.nn.Embedding(20, 6)
        self.layers, width = torch.nn.ModuleList(), 6
        for _ in range(choose.randint(1, 3)):
            kind, units, both = choose.choice(["RNN", "GRU", "LSTM"]), choose.randint(1, 9), choose.random() < 0.5
            options = {"num_layers": choose.randint(1, 2), "bias": choose.random() < 0.8, "bidirectional": both}
            if kind == "LSTM" and units > 1 and choose.random() < 0.4:
                options["proj_size"] = units - 1
            if kind == "RNN":
                options["nonlinearity"] = choose.choice(["tanh", "relu"])
            self.layers.append(getattr(torch.nn, kind)(width, units, batch_first=True, **options))
            width = options.get("proj_size", units) * (1 + both)
        self.attention = torch.nn.MultiheadAttention(width, 1, batch_first=True) if choose.random() < 0.5 else None
        self.behind = torch.nn.Linear(width, 3)

    def forward(self, ids, lengths):
        x = self.table(ids)
        for layer in self.layers:
            packed, _ = layer(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
            x, _ = pad_packed_sequence(packed, batch_first=True)
        beyond = torch.arange(x.shape[1]) >= lengths[:, None]
        if self.attention is not None:
            x, _ = self.attention(x, x, x, key_padding_mask=beyond)
        return self.behind(x.masked_fill(beyond[..., None], 0).sum(dim=1))


def numbers(model, ids, lengths):
    """Return the outputs of a model, and the gradients of its parameters."""
    model.zero_grad()
    output = model(ids, lengths)
    torch.nn.functional.cross_entropy(output, torch.arange(len(lengths)) % 3).backward()
    return [output, *(parameter.grad.clone() for parameter in model.parameters())]


@pytest.mark.parametrize("seed", range(100))
def test_random_models(seed):
    choose = random.Random(seed)
    torch.manual_seed(seed)
    model = Random(choose).double()
    lengths = torch.tensor([choose.randint(1, 12) for _ in range(choose.randint(1, 6))])
    ids = torch.randint(20, (len(lengths), int(lengths.max())))
    theirs, state, parameters = numbers(model, ids, lengths), model.state_dict(), list(model.parameters())
    assert vt.replace(model) is model
    assert all(type(layer).__module__ == "varlen_rnn.torch.layers" for layer in model.layers)
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    for ours, other in zip(numbers(model, ids, lengths), theirs, strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-9, atol=1e-11)
    fresh = Random(random.Random(seed)).double()
    fresh.load_state_dict(model.state_dict())
    model.load_state_dict(state)
    vt.restore(model)
    for other in (fresh, model):
        assert all(map(torch.equal, numbers(other, ids, lengths), theirs))


def test_what_is_replaced():
    class Own(torch.nn.LSTM):
        def forward(self, x):
            return super().forward(x)[0]

    own, shared = Own(3, 3), torch.nn.GRU(3, 3)
    model = torch.nn.ModuleDict({"own": own, "one": shared, "other": shared, "cell": torch.nn.LSTMCell(3, 3)})
    seen = []
    handle = shared.register_forward_hook(lambda *_: seen.append(1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(UserWarning, match=r"^replace: 1 recurrent layer keeps torch's code: 'own' \(Own has its own fo"):
        vt.replace(model)
    assert type(own) is Own
    assert type(shared) is vt.GRU
    assert model["one"] is model["other"] is shared
    before = shared.weight_hh_l0.clone()
    shared(torch.ones(4, 2, 3))[0].sum().backward()
    optimizer.step()
    assert seen
    assert not torch.equal(shared.weight_hh_l0, before)
    handle.remove()
    assert type(vt.restore(copy.deepcopy(model))["one"]) is torch.nn.GRU
    for call in (vt.replace, vt.restore):
        with pytest.raises(vr.errors.DTypeError, match=r"expected a torch.nn.Module, got list"):
            call([shared])


class Named(torch.nn.GRU):
    """A subclass that inherits `forward`."""

    def __init__(self, *sizes):
        super().__init__(*sizes, batch_first=True)
        self.note = "kept"


def test_a_subclass_that_inherits_forward():
    layer, x = Named(3, 4), torch.randn(2, 5, 3)
    wanted = layer(x)[0]
    vt.replace(layer)
    assert type(layer) is not Named
    assert isinstance(layer, (vt.GRU, Named))
    assert repr(layer) == repr(Named(3, 4))
    assert type(vt.replace(layer)) is type(vt.replace(Named(3, 4)))
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    for other in (layer, copy.deepcopy(layer), torch.load(file, weights_only=False)):
        assert other.note == "kept"
        assert type(other) is type(layer)
        torch.testing.assert_close(other(x)[0], wanted)
        assert other(x[0], offsets=[0, 5])[0].shape == (5, 4)
        assert type(vt.restore(other)) is Named
        vt.replace(other)


def test_what_is_left_alone_is_named():
    class OfStates(torch.nn.LSTM):
        def permute_hidden(self, hx, permutation):
            return super().permute_hidden(hx, permutation)

    own, states = torch.nn.GRU(3, 3), OfStates(3, 3)
    own.forward = own.forward
    computed = torch.nn.utils.parametrizations.weight_norm(torch.nn.LSTM(3, 3), "weight_hh_l0")
    model = torch.nn.ModuleDict({"own": own, "states": states, "computed": computed, "base": torch.nn.RNN(3, 3)})
    before = [type(layer) for layer in model.values()]
    with pytest.warns(UserWarning, match="^replace: 3 recurrent layers keep torch's code: ") as caught:
        vt.replace(model)
    (one,) = caught
    assert one.filename == __file__
    for text in (
        "'own' (the layer itself has its own forward)", "'states' (OfStates has its own permute_hidden)",
        "'computed' (parametrised before: replace first, then parametrise)",
    ):  # fmt: skip
        assert text in str(one.message)
    assert [type(layer) for layer in model.values()] == [*before[:3], vt.RNN]
    with pytest.warns(UserWarning, match=r"12 recurrent layers .*'9' .* and 2 more$"):
        vt.replace(torch.nn.Sequential(*(OfStates(1, 1) for _ in range(12))))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_a_scripted_layer_is_named():
    model = torch.nn.ModuleDict({"layer": torch.jit.script(torch.nn.GRU(3, 4))})
    with pytest.warns(UserWarning, match=r"'layer' \(compiled by torch.jit"):
        vt.replace(model)


def test_weights_that_are_computed():
    for norm in (torch.nn.utils.parametrizations.weight_norm, torch.nn.utils.parametrizations.spectral_norm):
        layer = norm(vt.LSTM(3, 4), "weight_hh_l0")
        reference = torch.nn.LSTM(3, 4)
        reference.load_state_dict({name: getattr(layer, name).detach() for name in dict(reference.named_parameters())})
        layer.eval()
        x = torch.randn(5, 2, 3)
        torch.testing.assert_close(layer(x)[0], reference(x)[0])
        layer(x)[0].sum().backward()
        assert all(parameter.grad is not None for parameter in layer.parameters())


def test_in_a_pipeline_of_skorch():
    skorch = pytest.importorskip("skorch")
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import FunctionTransformer

    class Classifier(torch.nn.Module):
        def __init__(self, is_ours):
            super().__init__()
            self.table, self.layer = torch.nn.Embedding(10, 8, padding_idx=0), torch.nn.GRU(8, 16, batch_first=True)
            self.behind = torch.nn.Linear(16, 2)
            if is_ours:
                vt.replace(self)

        def forward(self, ids):
            lengths = (ids > 0).sum(dim=1)
            packed = pack_padded_sequence(self.table(ids), lengths, batch_first=True, enforce_sorted=False)
            return self.behind(self.layer(packed)[1][0])

    make = np.random.default_rng(0)
    sequences = [make.integers(1, 10, make.integers(1, 9)) for _ in range(60)]
    y = np.array([int(s[0] > 5) for s in sequences])

    def padded(sequences):
        return np.array([np.pad(s, (0, 8 - len(s))) for s in sequences], np.int64)

    losses = []
    for is_ours in (True, False):
        torch.manual_seed(0)
        net = skorch.NeuralNetClassifier(
            Classifier, module__is_ours=is_ours, criterion=torch.nn.CrossEntropyLoss, max_epochs=8, lr=0.3, verbose=0
        )
        pipeline = Pipeline([("pad", FunctionTransformer(padded)), ("net", net)]).fit(sequences, y)
        losses.append(pipeline["net"].history[:, "train_loss"])
        assert pipeline.predict_proba(sequences).shape == (60, 2)
    np.testing.assert_allclose(*losses, rtol=1e-4)
