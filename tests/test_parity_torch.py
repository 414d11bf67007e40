"""PyTorch's packed modules as the truth: outputs, final states and every gradient."""

import numpy as np
import pytest

import varlen_rnn as vr

torch = pytest.importorskip("torch", reason="PyTorch is in the `parity` extra")

KINDS = ["RNN", "RNN-relu", "LSTM", "GRU"]
TOLERANCE = {np.float64: 1e-9, np.float32: 1e-5}


def make(kind, dtype, num_layers, bidirectional, bias=True):
    """Return our layer and PyTorch's, with the same weights."""
    name, _, nonlinearity = kind.partition("-")
    options = {"num_layers": num_layers, "bidirectional": bidirectional, "bias": bias}
    if nonlinearity:
        options["nonlinearity"] = nonlinearity
    torch.manual_seed(0)
    theirs = getattr(torch.nn, name)(5, 11, **options, dtype=getattr(torch, dtype.__name__))
    ours = getattr(vr.nn, name)(5, 11, **options, dtype=dtype)
    ours.load_state_dict({name: tensor.numpy() for name, tensor in theirs.state_dict().items()})
    return ours, theirs


def assert_close(name, ours, theirs, dtype):
    ours, theirs = np.asarray(ours), theirs.detach().numpy()
    assert ours.shape == theirs.shape, name
    assert ours.dtype == dtype, name
    assert np.linalg.norm(ours - theirs) <= TOLERANCE[dtype] * max(1, np.linalg.norm(theirs)), name


@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("with_states", [False, True], ids=["zeros", "states"])
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one", "two"])
@pytest.mark.parametrize("num_layers", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_recurrent_layer(kind, num_layers, bidirectional, with_states, dtype):
    bias = num_layers != 2 or not with_states
    ours, theirs = make(kind, dtype, num_layers, bidirectional, bias)
    rng = np.random.default_rng(num_layers)
    lengths = rng.integers(1, 12, 7).tolist()
    rows = rng.standard_normal((sum(lengths), 5)).astype(dtype)
    shape = (num_layers * (1 + bidirectional), len(lengths), 11)
    num_states = 2 if kind == "LSTM" else 1
    starts = [rng.standard_normal(shape).astype(dtype) for _ in range(num_states)]
    w_y = rng.standard_normal((len(rows), 11 * (1 + bidirectional))).astype(dtype)
    w_last = [rng.standard_normal(shape).astype(dtype) for _ in range(num_states)]

    x = vr.Variable(vr.create_lod_tensor(rows, [lengths]), requires_grad=True)
    states = [vr.Variable(start, requires_grad=True) for start in starts]
    given = (states if kind == "LSTM" else states[0],) if with_states else ()
    y, last = ours(x, *given)
    last = last if kind == "LSTM" else (last,)
    loss = (y * w_y).sum()
    for value, weight in zip(last, w_last, strict=True):
        loss = loss + (value * weight).sum()
    loss.backward()

    t_x = torch.tensor(rows, requires_grad=True)
    t_states = [torch.tensor(start, requires_grad=True) for start in starts]
    packed = torch.nn.utils.rnn.pack_sequence(torch.split(t_x, lengths), enforce_sorted=False)
    t_given = (tuple(t_states) if kind == "LSTM" else t_states[0],) if with_states else ()
    t_y, t_last = theirs(packed, *t_given)
    t_last = t_last if kind == "LSTM" else (t_last,)
    t_y = torch.cat(torch.nn.utils.rnn.unpack_sequence(t_y))
    t_loss = (t_y * torch.tensor(w_y)).sum()
    for value, weight in zip(t_last, w_last, strict=True):
        t_loss = t_loss + (value * torch.tensor(weight)).sum()
    t_loss.backward()

    assert_close("y", y, t_y, dtype)
    for value, t_value in zip(last, t_last, strict=True):
        assert_close("last state", value, t_value, dtype)
    assert_close("x.grad", x.grad, t_x.grad, dtype)
    for state, t_state in zip(states if with_states else [], t_states, strict=with_states):
        assert_close("initial state's grad", state.grad, t_state.grad, dtype)
    t_parameters = dict(theirs.named_parameters())
    assert [name for name, _ in ours.named_parameters()] == list(t_parameters)
    for name, parameter in ours.named_parameters():
        assert_close(name, parameter.grad, t_parameters[name].grad, dtype)


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_a_feature_that_nobody_scaled_saturates_gates(kind):
    """The gradients of gates at 1, 0 and -1 are 0, not almost 0 times a million."""
    ours, theirs = make(kind, np.float32, 1, False)
    rows = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)
    for unscaled in ([0, 4], range(6)):
        rows[unscaled, 2] = 1e6
        y, _ = ours(vr.Variable(vr.create_lod_tensor(rows, [[4, 2]])))
        packed = torch.nn.utils.rnn.pack_sequence(torch.split(torch.tensor(rows), [4, 2]))
        t_y = torch.cat(torch.nn.utils.rnn.unpack_sequence(theirs(packed)[0]))
        (y * y).sum().backward()
        (t_y * t_y).sum().backward()
        assert_close("y", y, t_y, np.float32)
        for name, t_parameter in theirs.named_parameters():
            parameter = getattr(ours, name)
            assert_close(name, parameter.grad, t_parameter.grad, np.float32)
            assert len(unscaled) < 6 or not np.any(parameter.grad)
            parameter.grad = t_parameter.grad = None


def test_a_state_dict_travels_both_ways():
    ours, theirs = make("LSTM", np.float64, 2, True)
    ours.weight_hh_l1_reverse.assign(0.25)
    theirs.load_state_dict({name: torch.from_numpy(array) for name, array in ours.state_dict().items()})
    assert (theirs.weight_hh_l1_reverse == 0.25).all()


def test_linear_embedding_and_cross_entropy():
    rng = np.random.default_rng(0)
    ids, labels = rng.integers(0, 9, 20), rng.integers(0, 4, 20)
    for sparse in (False, True):
        t_table, t_linear = torch.nn.Embedding(9, 6, padding_idx=3).double(), torch.nn.Linear(6, 4).double()
        table = vr.nn.Embedding(9, 6, padding_idx=3, sparse=sparse, dtype=np.float64)
        linear = vr.nn.Linear(6, 4, dtype=np.float64)
        table.load_state_dict({"weight": t_table.weight.detach().numpy()})
        linear.load_state_dict({name: value.numpy() for name, value in t_linear.state_dict().items()})
        loss = vr.nn.functional.cross_entropy(linear(table(ids)), labels)
        t_loss = torch.nn.functional.cross_entropy(t_linear(t_table(torch.tensor(ids))), torch.tensor(labels))
        loss.backward()
        t_loss.backward()
        assert_close("loss", loss, t_loss, np.float64)
        gradient = table.weight.grad
        assert isinstance(gradient, vr.SelectedRows) == sparse
        assert_close("table", gradient.to_dense() if sparse else gradient, t_table.weight.grad, np.float64)
        assert_close("weight", linear.weight.grad, t_linear.weight.grad, np.float64)
        assert_close("bias", linear.bias.grad, t_linear.bias.grad, np.float64)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses_of_logits_and_squares(reduction):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((7, 3)) * 5, rng.random((7, 3))
    t_a, t_b = torch.tensor(a, requires_grad=True), torch.tensor(b)
    for ours, theirs in [
        (vr.nn.functional.binary_cross_entropy_with_logits, torch.nn.functional.binary_cross_entropy_with_logits),
        (vr.nn.functional.mse_loss, torch.nn.functional.mse_loss),
    ]:
        x, t_a.grad = vr.Variable(a, requires_grad=True), None
        loss, t_loss = ours(x, b, reduction), theirs(t_a, t_b, reduction=reduction)
        assert_close("loss", loss, t_loss, np.float64)
        loss.sum().backward()
        t_loss.sum().backward()
        assert_close("gradient", x.grad, t_a.grad, np.float64)
