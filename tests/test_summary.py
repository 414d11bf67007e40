"""`nn.summary`: shapes, parameters and operations of a model's layers for a batch."""

import numpy as np
import pytest

import varlen_rnn as vr
from varlen_rnn import nn
from varlen_rnn.nn import functional as F

LOD = [[0, 20, 20, 50]]


class Tagger(nn.Module):
    def __init__(self):
        self.table = nn.Embedding(1000, 32)
        self.lstm = nn.LSTM(32, 64, bidirectional=True, dropout=0.5, num_layers=2)
        self.norm = nn.BatchNorm1d(128)
        self.head = nn.Sequential(nn.Linear(128, 8), F.relu, nn.Linear(8, 3))
        self.step, self.unused = nn.Linear(128, 128), nn.Linear(2, 2)
        self.tied = self.unused

    def forward(self, ids):
        y, _ = self.lstm(self.table(ids))
        y, _ = nn.DynamicRNN(lambda row, h: (self.step(row + h).tanh(),) * 2)(self.norm(y), [(128,)])
        return self.head(vr.sequence_pool(y, "mean"))


def test_every_layer_has_its_shapes_parameters_and_operations():
    model = Tagger()
    before = model.state_dict()
    found = nn.summary(model, LOD)
    layers = {layer.name: layer for layer in found.layers}
    assert list(layers) == ["", "table", "lstm", "norm", "head", "head.0", "head.2", "step", "unused"]
    assert layers["lstm"].shapes == ((50, 128), (4, 3, 64), (4, 3, 64))
    assert (layers["table"].shapes, layers["head"].shapes, layers["unused"].shapes) == (((50, 32),), ((3, 3),), ())
    assert found.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert layers["head.0"].operations == 3 * (2 * 128 + 1) * 8, "of three pooled rows"
    assert layers["head"].operations == 3 * 8, "of relu"
    products = 50 * 2 * (2 * (32 + 64) + 2 * (128 + 64)) * 4 * 64
    assert layers["lstm"].operations == products, "of its products"
    assert layers[""].operations > 50 * 2 * 128 * 128, "of the step, in which a layer has no cost of its own"
    assert found.operations == sum(layer.operations for layer in found.layers)
    assert (found.rows, found.sequences) == (50, 3)
    assert model.training
    assert "forward" not in vars(model)
    for name, array in model.state_dict().items():
        assert np.array_equal(array, before[name])


def test_it_prints_as_a_table():
    lines = repr(nn.summary(nn.Sequential(nn.Embedding(1000, 8), nn.Linear(8, 2)), [[0, 2], [0, 2, 5]])).splitlines()
    assert lines == [
        "5 rows in 2 sequences, in evaluation mode",
        "layer  kind        output  parameters  operations",
        "       Sequential  (5, 2)           0           0",
        "0      Embedding   (5, 8)       8,000           0",
        "1      Linear      (5, 2)          18         170",
        "total                           8,018         170",
    ]
    assert "not called" in repr(nn.summary(Tagger(), [[0]]))


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Sequential(nn.Tanh(), nn.LayerNorm(4, dtype=np.float64)), (5, 4)),
        (nn.GRU(6, 2), (5, 2)),
        (nn.AdditiveAttention(3, 3, 2), (5, 3)),
    ],
    ids=["features", "input_size", "in_features"],
)
def test_rows_are_as_the_first_layer_takes_them(model, shape):
    if isinstance(model, nn.AdditiveAttention):
        model.forward = lambda x, forward=model.forward: forward(x, x)
    assert nn.summary(model, [[0, 2, 5]]).layers[0].shapes[0] == shape


def test_rows_may_be_given():
    x = vr.create_lod_tensor(np.ones((5, 3)), [[2, 3]])
    for given in (x, vr.Variable(x)):
        found = nn.summary(nn.Tanh(), given)
        assert (found.layers[0].shapes, found.operations, found.parameters) == (((5, 3),), 15, 0)


def test_what_it_refuses():
    for make, error, message in (
        (lambda: nn.summary(F.tanh, LOD), vr.DTypeError, "summary, model: expected a Module"),
        (
            lambda: nn.summary(nn.Tanh(), LOD),
            vr.ProgramError,
            r"expected a layer that fixes the number of columns.*rows with a",
        ),
        (
            lambda: nn.summary(nn.MultiheadAttention(8, 2), LOD),
            vr.ProgramError,
            r"summary, model: expected a forward with one argument.* got forward\(query.*a Module of your own",
        ),
        (lambda: nn.summary(nn.Linear(2, 2), []), vr.LoDError, "expected at least one level"),
    ):
        with pytest.raises(error, match=message):
            make()
    with vr.program_guard(), pytest.raises(vr.ProgramError, match="summary: expected eager mode"):
        nn.summary(nn.Linear(2, 2), LOD)
