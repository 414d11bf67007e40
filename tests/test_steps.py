"""One-step modules: PyTorch's, a layer step by step, and the steps of a DynamicRNN."""

import numpy as np
import pytest

import varlen_rnn as vr

KINDS = {"RNNCell": {}, "RNNCell relu": {"nonlinearity": "relu"}, "GRUCell": {}, "LSTMCell": {}}
LAYERS = {"RNNCell": vr.nn.RNN, "GRUCell": vr.nn.GRU, "LSTMCell": vr.nn.LSTM}
NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
by_kind = pytest.mark.parametrize("kind", KINDS)


def make(kind, **options):
    return getattr(vr.nn, kind.split()[0])(3, 4, **KINDS[kind], **options, dtype=np.float64)


def states_of(kind, *batch, seed=0):
    rng = np.random.default_rng(seed)
    return [vr.Variable(rng.standard_normal((*batch, 4)), requires_grad=True) for _ in range(1 + ("LSTM" in kind))]


def as_given(states):
    return tuple(states) if len(states) > 1 else states[0]


def as_tuple(result):
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("with_states", [True, False])
@pytest.mark.parametrize("batch", [(5,), (1,), ()], ids=["batch", "one in a batch", "one row"])
@by_kind
def test_steps_are_those_of_pytorch(kind, batch, with_states, bias):
    torch = pytest.importorskip("torch", reason="PyTorch is in the `parity` extra")
    torch.manual_seed(0)
    ours = make(kind, bias=bias)
    theirs = getattr(torch.nn, kind.split()[0])(3, 4, **KINDS[kind], bias=bias, dtype=torch.float64)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict({name: tensor.numpy() for name, tensor in theirs.state_dict().items()})
    x = vr.Variable(np.random.default_rng(1).standard_normal((*batch, 3)), requires_grad=True)
    states = states_of(kind, *batch) if with_states else []
    t_x, *t_states = (torch.tensor(np.asarray(v), requires_grad=True) for v in (x, *states))
    found = as_tuple(ours(x, as_given(states)) if states else ours(x))
    right = as_tuple(theirs(t_x, as_given(t_states)) if states else theirs(t_x))
    sum(((value * value).sum() for value in found), 0.0).backward()
    sum((value * value).sum() for value in right).backward()
    pairs = [*zip(found, right, strict=True), (x.grad, t_x.grad)]
    pairs += [(state.grad, other.grad) for state, other in zip(states, t_states, strict=True)]
    pairs += [(getattr(ours, name).grad, parameter.grad) for name, parameter in theirs.named_parameters()]
    for value, other in pairs:
        assert value.shape == tuple(other.shape)
        np.testing.assert_allclose(np.asarray(value), other.detach().numpy(), rtol=1e-9, atol=1e-12)


@by_kind
def test_steps_one_after_another_are_a_layer(kind):
    cell = make(kind)
    layer = LAYERS[kind.split()[0]](3, 4, **KINDS[kind], dtype=np.float64)
    layer.load_state_dict({f"{name}_l0": getattr(cell, name).data for name in NAMES})
    x = np.random.default_rng(0).standard_normal((6, 3))
    y, last = layer(vr.create_lod_tensor(x, [[6]]))
    states = None
    for row, wanted in zip(x, np.asarray(y), strict=True):
        states = cell(row, states)
        np.testing.assert_array_equal(np.asarray(as_tuple(states)[0]), wanted)
    for state, wanted in zip(as_tuple(states), as_tuple(last), strict=True):
        np.testing.assert_array_equal(np.asarray(state), np.asarray(wanted)[0, 0])


def test_a_step_of_a_dynamic_rnn_trains():
    """Its gradient, through time, is the layer's."""
    cell, layer = make("GRUCell"), vr.nn.GRU(3, 4, dtype=np.float64)
    layer.load_state_dict({f"{name}_l0": getattr(cell, name).data for name in NAMES})
    x = vr.create_lod_tensor(np.random.default_rng(0).standard_normal((6, 3)), [[2, 0, 4]])

    def step(row, h):
        h = cell(row, h)
        return h, h

    y, _ = vr.nn.DynamicRNN(step)(x, [(4,)])
    y_of_layer, _ = layer(x)
    (y * y).sum().backward()
    (y_of_layer * y_of_layer).sum().backward()
    np.testing.assert_allclose(np.asarray(y), np.asarray(y_of_layer), atol=1e-14)
    for name in NAMES:
        wanted = getattr(layer, f"{name}_l0").grad
        np.testing.assert_allclose(getattr(cell, name).grad, wanted, rtol=1e-10, atol=1e-12)


def test_no_rows_are_a_batch():
    h, c = make("LSTMCell")(np.zeros((0, 3)))
    assert h.shape == c.shape == (0, 4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda cell: cell(np.zeros((2, 4))), "LSTMCell, x: expected"),
        (lambda cell: cell(np.zeros(())), "LSTMCell, x: expected"),
        (lambda cell: cell(np.zeros((1, 2, 3))), "LSTMCell, x: expected"),
        (lambda cell: cell(np.zeros((2, 3), np.float32)), "LSTMCell, x: expected"),
        (lambda cell: cell(None), "LSTMCell, x: expected"),
        (lambda cell: cell(np.zeros((2, 3)), np.zeros((2, 4))), r"LSTMCell, hx: expected \(h, c\), got ndarray"),
        (lambda cell: cell(np.zeros((2, 3)), (np.zeros((2, 4)), np.zeros((1, 4)))), "LSTMCell, c: expected"),
        (lambda cell: cell(np.zeros((2, 3)), (np.zeros(4), np.zeros((2, 4)))), "LSTMCell, h: expected"),
    ],
)
def test_what_does_not_fit(call, message):
    with pytest.raises(vr.InputError, match=message):
        call(make("LSTMCell"))


@pytest.mark.parametrize("kind", ["RNNCell", "GRUCell", "LSTMCell"])
def test_states_keep_the_lod_of_the_rows(kind):
    x = vr.create_lod_tensor(np.ones((5, 3), np.float32), [[2, 0, 3]])
    states = getattr(vr.nn, kind)(3, 4)(x)
    for state in states if isinstance(states, tuple) else (states,):
        assert state.lod() == [[0, 2, 2, 5]]
