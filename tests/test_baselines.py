"""The padded twin computes what the layer computes."""

import numpy as np
import pytest

import varlen_rnn as vr

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
