"""The padded twin computes what the layer computes."""

import numpy as np
import pytest

import varlen_rnn as vr
from varlen_rnn.tape.variable import apply

LENGTHS = {
    "ragged": [3, 1, 7],
    "equal": [4, 4],
    "one step": [1, 1, 1],
    "empty among others": [0, 3, 0, 5, 0],
    "all empty": [0, 0],
    "none": [],
}


def loss_and_gradients(run, layer, x, states, weights):
    for variable in (x, *states, *layer.parameters()):
        variable.grad = None
    y, h_n = run(x, states)
    ((y * weights[0]).sum() + (h_n * weights[1]).sum()).backward()
    gradients = [variable.grad for variable in (x, *states, *layer.parameters())]
    return [np.asarray(value) for value in (y, h_n, *gradients)]


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("shape", [(1, False), (1, True), (2, True)], ids=["plain", "two directions", "two layers"])
def test_outputs_and_gradients_equal_the_layers(kind, shape, lengths):
    num_layers, bidirectional = shape
    vr.manual_seed(1)
    rng = np.random.default_rng(0)
    layer = getattr(vr.nn, kind)(3, 4, num_layers, bidirectional=bidirectional, dtype=np.float64)
    num_states = len(layer.cell.states)
    x = vr.Variable(vr.create_lod_tensor(rng.standard_normal((sum(lengths), 3)), [lengths]), requires_grad=True)
    first = (num_layers * (1 + bidirectional), len(lengths), 4)
    states = [vr.Variable(rng.standard_normal(first), requires_grad=True) for _ in range(num_states)]
    weights = rng.standard_normal((sum(lengths), 4 * (1 + bidirectional))), rng.standard_normal(first)

    def unpadded(x, states):
        y, last = layer(x, states if num_states > 1 else states[0])
        return y, last[0] if num_states > 1 else last

    def padded(x, states):
        return vr.baselines.Padded(layer)(x, states if num_states > 1 else states[0])

    ours = loss_and_gradients(unpadded, layer, x, states, weights)
    theirs = loss_and_gradients(padded, layer, x, states, weights)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-12, atol=1e-12)


def test_the_rectangle_is_counted():
    x = vr.create_lod_tensor(np.zeros((11, 1)), [[3, 1, 7]])
    assert vr.baselines.Padded.rows(x) == 21


@pytest.mark.parametrize(
    "options", [{"dropout": 0.5}, {"dropout": 0.5, "dropout_per": "sequence"}, {"weight_dropout": 0.5}], ids=str
)
def test_dropout_draws_the_same_mask(options):
    vr.manual_seed(0)
    layer = vr.nn.GRU(3, 4, 2, bidirectional=True, dtype=np.float64, **options)
    x = vr.create_lod_tensor(np.random.default_rng(0).standard_normal((6, 3)), [[2, 0, 4]])
    vr.manual_seed(1)
    y, _ = layer(x)
    vr.manual_seed(1)
    np.testing.assert_allclose(vr.baselines.Padded(layer)(x)[0], y, rtol=1e-12, atol=1e-12)


def test_without_bias_and_below_an_upper_level():
    layer = vr.nn.RNN(3, 4, nonlinearity="relu", bias=False, dtype=np.float64)
    x = vr.create_lod_tensor(np.random.default_rng(0).standard_normal((6, 3)), [[2, 1], [2, 0, 4]])
    y, h_n = layer(x)
    padded_y, padded_h_n = vr.baselines.Padded(layer)(x)
    assert padded_y.lod() == y.lod()
    np.testing.assert_allclose(padded_y, y, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(padded_h_n, h_n, rtol=1e-12, atol=1e-12)


def test_where_nothing_is_padded_no_row_moves():
    x = vr.Variable(vr.create_lod_tensor(np.arange(12.0).reshape(6, 2), [[1, 1], [3, 3]]), requires_grad=True)
    there, back, *_ = apply("rectangle", x, reverse=False)
    padded = apply("take_rows", x, there)
    y = apply("take_rows", padded, back)
    assert padded.lod() == [[0, 3, 6]]
    assert y.lod() == x.lod()
    assert np.shares_memory(y.value.data, x.value.data)
    given = np.ones((6, 2))
    y.backward(given)
    assert x.grad.lod() == x.lod()
    np.testing.assert_array_equal(x.grad, given)
    assert not np.shares_memory(x.grad.data, given)  # the leaf may change what it holds


def test_equal_sequences_are_reversed():
    x = vr.create_lod_tensor(np.arange(4.0)[:, None], [[2, 2]])
    there, *_ = apply("rectangle", x, reverse=True)
    assert np.asarray(apply("take_rows", x, there)).ravel().tolist() == [1, 0, 3, 2]


def test_only_recurrent_layers_have_a_twin():
    with pytest.raises(vr.DTypeError, match=r"nn\.LSTM, nn\.GRU or nn\.Recurrent"):
        vr.baselines.Padded(vr.nn.Linear(2, 3))
    with pytest.raises(vr.ShapeError, match="Padded, layer: expected a cell that reads only x and states"):
        vr.baselines.Padded(vr.nn.GRU(2, 3, zoneout=0.1))


@pytest.mark.parametrize("index", [[0, 2], [-2]])
def test_rows_that_are_not_there_are_refused(index):
    with pytest.raises(vr.OutOfRangeError, match="take_rows"):
        apply("take_rows", np.zeros((2, 3)), np.array(index))
