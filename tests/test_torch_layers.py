"""The layers of `varlen_rnn.torch` beside torch's own, and what torch's users do with a layer."""

import copy
import gc
import io
import itertools
import tracemalloc
import weakref

import numpy as np
import pytest

import varlen_rnn as vr

torch = pytest.importorskip("torch")
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence  # noqa: E402

import varlen_rnn.torch as vt  # noqa: E402

OPTIONS = [
    {},
    {"bidirectional": True, "num_layers": 2},
    {"bias": False, "batch_first": True},
    {"num_layers": 3, "batch_first": True, "bidirectional": True},
    {"nonlinearity": "relu"},
    {"proj_size": 2, "bidirectional": True, "num_layers": 2},
]
LAYERS = [
    (kind, options)
    for kind, options in itertools.product(("RNN", "GRU", "LSTM"), OPTIONS)
    if ("nonlinearity" not in options or kind == "RNN") and ("proj_size" not in options or kind == "LSTM")
]
by_layer = pytest.mark.parametrize(("kind", "options"), LAYERS, ids=str)


def pair(kind, options, inputs=3, units=5):
    """Return torch's layer and ours, of the same parameters."""
    torch.manual_seed(0)
    theirs = getattr(torch.nn, kind)(inputs, units, dtype=torch.float64, **options)
    ours = getattr(vt, kind)(inputs, units, dtype=torch.float64, **options)
    assert ours.load_state_dict(theirs.state_dict()) is not None
    return theirs, ours


def states_of(kind, options, *axes, units=5):
    """Return initial states that require a gradient."""
    count = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    make = torch.Generator().manual_seed(1)
    sizes = [options.get("proj_size", units)] + [units] * (kind == "LSTM")
    found = [torch.randn(count, *axes, n, dtype=torch.float64, generator=make, requires_grad=True) for n in sizes]
    return tuple(found) if kind == "LSTM" else found[0]


def as_tuple(states):
    return states if isinstance(states, tuple) else (states,)


def gradients(layer, output, last, *leaves):
    """Return outputs, and the gradients of leaves and parameters of a loss that weighs all numbers differently."""
    loss = sum(
        (part * torch.linspace(0.5, 1.5, part.numel(), dtype=part.dtype).reshape(part.shape)).sum()
        for part in (output, *as_tuple(last))
    )
    wanted = [leaf for leaf in leaves if leaf is not None] + list(layer.parameters())
    return [output, *as_tuple(last), *torch.autograd.grad(loss, wanted)]


def assert_close(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@by_layer
@pytest.mark.parametrize("with_states", [False, True])
@pytest.mark.parametrize("is_sorted", [False, True])
def test_packed(kind, options, with_states, is_sorted):
    theirs, ours = pair(kind, options)
    sequences = [torch.randn(n, 3, dtype=torch.float64) for n in ((7, 4, 1) if is_sorted else (4, 1, 7))]
    packed = pack_sequence(sequences, enforce_sorted=is_sorted)
    found = []
    for layer in (ours, theirs):
        data = packed.data.clone().requires_grad_()
        states = states_of(kind, options, 3) if with_states else None
        output, last = layer(packed._replace(data=data), states)
        assert type(output) is type(packed)
        assert all(a is b for a, b in zip(output[1:], packed[1:], strict=True))
        found.append(gradients(layer, output.data, last, data, *as_tuple(states)))
    assert_close(*found)


@by_layer
@pytest.mark.parametrize("shape", [(4, 3, 3), (1, 2, 3), (6, 3)])
def test_tensors_of_equal_lengths(kind, options, shape):
    theirs, ours = pair(kind, options)
    found = []
    for layer in (ours, theirs):
        x = torch.linspace(-1, 1, int(np.prod(shape)), dtype=torch.float64).reshape(shape).requires_grad_()
        batch = () if len(shape) == 2 else (shape[0] if options.get("batch_first") else shape[1],)
        states = states_of(kind, options, *batch)
        found.append(gradients(layer, *layer(x, states), x, *as_tuple(states)))
        assert layer is theirs or found[-1][0].is_contiguous()
    assert_close(*found)


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_no_sequences_and_no_steps(kind):
    for shape in ((4, 0, 3), (0, 2, 3), (0, 0, 3), (1, 0, 3), (0, 1, 3)):
        output, last = getattr(vt, kind)(3, 4, bidirectional=True)(torch.ones(shape, requires_grad=True))
        assert output.shape == (*shape[:2], 8)
        assert as_tuple(last)[0].shape == (2, shape[1], 4)
        output.sum().backward()


def one_by_one(layer, sequences, states):
    """Return outputs and last states of torch's layer on each sequence alone; of an empty one, its initial states."""
    rows, ends = [], []
    width = (layer.proj_size or layer.hidden_size) * (2 if layer.bidirectional else 1)
    for number, sequence in enumerate(sequences):
        own = [state[:, number] for state in as_tuple(states)]
        if len(sequence):
            output, last = layer(sequence, tuple(own) if len(own) > 1 else own[0])
            rows.append(output)
            ends.append(as_tuple(last))
        else:
            rows.append(sequence.new_zeros(0, width))
            ends.append(tuple(own))
    last = tuple(torch.stack(of_state, dim=1) for of_state in zip(*ends, strict=True))
    return torch.cat(rows), last if len(last) > 1 else last[0]


LENGTHS = [(2, 0, 5, 1), (0, 3), (3, 0), (1,), (4, 4, 4)]


def in_layout(layout, layer, x, lengths, states):
    """Return the rows of outputs, and the last states, of rows in a layout."""
    sequences, offsets = x.split(lengths), np.cumsum([0, *lengths])
    if layout == "offsets":
        return layer(x, states, offsets=torch.from_numpy(offsets))
    if layout == "jagged":
        output, last = layer(torch.nested.nested_tensor_from_jagged(x, torch.from_numpy(offsets)), states)
        return output.values(), last
    padded = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=layer.batch_first, padding_value=torch.nan)
    output, last = layer(padded, states, lengths=torch.tensor(lengths))
    by_sequence = output if layer.batch_first else output.transpose(0, 1)
    for of_one, n in zip(by_sequence, lengths, strict=True):
        assert not of_one[n:].any()
    return torch.cat([of_one[:n] for of_one, n in zip(by_sequence, lengths, strict=True)]), last


@by_layer
@pytest.mark.parametrize("layout", ["offsets", "jagged", "padded"])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_unequal_lengths_and_empty_sequences(kind, options, layout, lengths):
    theirs, ours = pair(kind, options)
    found = []
    for layer in (ours, theirs):
        x = torch.linspace(-1, 1, 3 * sum(lengths), dtype=torch.float64).reshape(-1, 3).requires_grad_()
        states = states_of(kind, options, len(lengths))
        if layer is ours:
            output, last = in_layout(layout, layer, x, lengths, states)
        else:
            output, last = one_by_one(layer, x.split(lengths), states)
        found.append(gradients(layer, output, last, x, *as_tuple(states)))
    assert_close(*found)


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_bits_are_those_of_our_layers(kind, dtype):
    layer = getattr(vt, kind)(3, 16, num_layers=2, bidirectional=True, dtype=dtype)
    own = getattr(vr.nn, kind)(3, 16, num_layers=2, bidirectional=True, dtype=str(dtype).removeprefix("torch."))
    own.load_state_dict({name: value.numpy() for name, value in layer.state_dict().items()})
    x = torch.randn(9, 3, dtype=dtype, requires_grad=True)
    variable = vr.Variable(vr.create_lod_tensor(x.detach().numpy(), [[2, 0, 7]]), requires_grad=True)
    output, wanted = layer(x, offsets=[0, 2, 2, 9])[0], own(variable)[0]
    output.backward(torch.ones_like(output))
    wanted.backward(np.ones(wanted.shape, wanted.dtype))
    assert np.array_equal(output.detach().numpy(), np.asarray(wanted))
    assert np.array_equal(x.grad.numpy(), np.asarray(variable.grad))
    for name, parameter in own.named_parameters():
        assert np.array_equal(layer.get_parameter(name).grad.numpy(), parameter.grad)


def test_rows_and_gradients_share_memory():
    layer, x = vt.GRU(3, 4), torch.randn(5, 3)
    before = x.data_ptr()
    batch = vt.layers.of_rows(x, [0, 2, 5])
    assert vt.recurrence._array(batch.rows).__array_interface__["data"][0] == before
    nested = torch.nested.nested_tensor_from_jagged(x, torch.tensor([0, 2, 5]))
    assert vt.layouts.of_jagged(nested).rows.data_ptr() == before
    output = layer(nested)[0]
    assert output.offsets() is nested.offsets()
    assert (output + output).shape == output.shape == (*nested.shape[:2], 4)


def test_the_gradients_of_both_biases_are_apart():
    for kind in ("RNN", "GRU", "LSTM"):
        layer = getattr(vt, kind)(3, 4)
        for _ in range(2):  # torch adds to a gradient in place
            layer(torch.ones(5, 3), offsets=[0, 5])[0].sum().backward()
        twice = [parameter.grad.clone() for parameter in layer.parameters()]
        layer.zero_grad()
        layer(torch.ones(5, 3), offsets=[0, 5])[0].sum().backward()
        assert all(torch.equal(a, 2 * p.grad) for a, p in zip(twice, layer.parameters(), strict=True))


# What torch's users do with a layer.


def test_a_graph_is_passed_again_and_again():
    layer, x = vt.LSTM(3, 4, num_layers=2, dtype=torch.float64), torch.randn(6, 3, dtype=torch.float64)
    loss = layer(x, offsets=[0, 1, 6])[0].sum()
    first = torch.autograd.grad(loss, list(layer.parameters()), retain_graph=True)
    second = torch.autograd.grad(loss, list(layer.parameters()), retain_graph=True)
    third = torch.autograd.grad(loss, list(layer.parameters()))
    assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(first, second, third, strict=True))
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("batch_first", [False, True])
def test_steps_follow_weights_that_change(kind, batch_first):
    """Single steps beside torch's, after each way in which weights change."""
    theirs, ours = pair(kind, {"batch_first": batch_first}, units=20)

    def check(theirs, ours):
        x = torch.randn((3, 1, 3) if batch_first else (1, 3, 3), dtype=torch.float64)
        states = [None, None]
        for _ in range(2):
            with torch.no_grad():
                assert_close(*(numbers(layer, x, state) for layer, state in zip((ours, theirs), states, strict=True)))
            found = [layer(x, state) for layer, state in zip((ours, theirs), states, strict=True)]
            assert_close(*(gradients(layer, *one) for layer, one in zip((ours, theirs), found, strict=True)))
            states = [tuple(s.detach() for s in last) if kind == "LSTM" else last.detach() for _, last in found]

    def turned(weight):
        """Return the transpose of each gate's square part: other strides, and for one gate the same memory."""
        return torch.cat([part.T for part in parts]) if len(parts := weight.split(20)) > 1 else weight.T

    def numbers(layer, x, state):
        output, last = layer(x, state)
        return output, *as_tuple(last)

    check(theirs, ours)
    optimizers = [torch.optim.Adam(layer.parameters(), lr=0.1) for layer in (theirs, ours)]
    for layer, optimizer in zip((theirs, ours), optimizers, strict=True):
        for parameter in layer.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    check(theirs, ours)
    changes = {
        "in place": lambda layer: [p.mul_(0.5) for p in layer.parameters()],
        "one number of .data": lambda layer: layer.weight_hh_l0.data[3].add_(1.0),
        "a bias of .data": lambda layer: layer.bias_hh_l0.data.add_(1.0),
        "by NumPy": lambda layer: layer.weight_ih_l0.detach().numpy().__imul__(2.0),
        "other memory": lambda layer: setattr(layer.weight_hh_l0, "data", layer.weight_hh_l0.data * 0.5),
        "transposed": lambda layer: setattr(layer.weight_hh_l0, "data", turned(layer.weight_hh_l0.data)),
        "transposed, in place": lambda layer: layer.weight_hh_l0.data[0].mul_(3.0),
        "other parameters": lambda layer: setattr(layer, "bias_ih_l0", torch.nn.Parameter(layer.bias_ih_l0 + 1)),
        "a state dict": lambda layer: layer.load_state_dict({n: -v for n, v in layer.state_dict().items()}),
    }
    for change in changes.values():
        ones = torch.ones(1, 1, 3, dtype=torch.float64), states_of(kind, {}, 1, units=20)
        before = ours(*ones)[0]
        with torch.no_grad():
            for layer in (theirs, ours):
                change(layer)
        assert not torch.equal(ours(*ones)[0], before)
        check(theirs, ours)
    check(copy.deepcopy(theirs), copy.deepcopy(ours))


def test_steps_refuse_weights_that_do_not_fit():
    layer, x, state = vt.GRU(3, 4), torch.randn(1, 2, 3), torch.zeros(1, 2, 4)
    layer(x, state)
    with torch.no_grad():
        layer.weight_hh_l0.data = layer.weight_hh_l0.data.view(6, 8)  # the same memory
    with pytest.raises(vr.errors.ShapeError, match="expected shape"):
        layer(x, state)
    layer.weight_hh_l0.data = layer.weight_hh_l0.data.view(12, 4).double()
    with pytest.raises(vr.errors.DTypeError, match="weight_hh: expected float32, got float64"):
        layer(x, state)


def test_steps_hold_no_layer_and_no_file():
    layer, x, state = vt.GRU(3, 4), torch.randn(1, 2, 3), torch.zeros(1, 2, 4)
    file, after = io.BytesIO(), io.BytesIO()
    torch.save(layer, file)
    layer(x, state)
    torch.save(layer, after)
    assert file.getbuffer().nbytes == after.getbuffer().nbytes
    gone = weakref.ref(layer)
    assert layer in vt.layers._made
    del layer
    gc.collect()
    assert gone() is None


def test_a_step_whose_saved_tensors_return_as_another_data_type_is_refused():
    layer, x, state = vt.GRU(3, 4), torch.randn(1, 2, 3), torch.zeros(1, 2, 4)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t.double() if t.shape == x.shape else t):
        loss = layer(x, state)[0].sum()
        with pytest.raises(vr.errors.DTypeError, match="expected float64, got float32"):
            loss.backward()


def test_a_second_derivative_is_refused():
    layer, x = vt.GRU(3, 4), torch.randn(6, 3, requires_grad=True)
    (gradient,) = torch.autograd.grad(layer(x, offsets=[0, 6])[0].sum(), x, create_graph=True)
    with pytest.raises(
        vr.errors.ProgramError, match=r"expected a first derivative, got a second derivative \(torch's own layers"
    ):
        (gradient.pow(2).sum() + x.sum()).backward()


def test_a_change_in_place_is_noticed():
    layer, x = vt.GRU(3, 4), torch.randn(6, 3)
    loss = layer(x, offsets=[0, 6])[0].sum()
    with torch.no_grad():
        layer.weight_hh_l0.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize(("kind", "options"), [("LSTM", OPTIONS[1]), ("GRU", OPTIONS[2]), ("RNN", {})], ids=str)
def test_gradcheck(kind, options):
    layer = pair(kind, options)[1]
    states = states_of(kind, options, 3)
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)

    def call(x, *states):
        output, last = layer(x, states if kind == "LSTM" else states[0], offsets=[0, 2, 2, 5])
        return output, *as_tuple(last)

    assert torch.autograd.gradcheck(call, (x, *as_tuple(states)))


def test_without_gradients():
    layer, x = vt.LSTM(3, 4), torch.randn(6, 3)
    with_gradient = layer(x, offsets=[0, 6])[0]
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            output = layer(x.clone(), offsets=[0, 6])[0]
        assert not output.requires_grad
        assert torch.equal(output, with_gradient)
    frozen = copy.deepcopy(layer).requires_grad_(False)
    assert not frozen(x, offsets=[0, 6])[0].requires_grad
    x.requires_grad_()
    frozen(x, offsets=[0, 6])[0].sum().backward()
    layer(x.detach().requires_grad_(), offsets=[0, 6])
    assert x.grad.abs().sum() > 0


def test_dropout_between_layers():
    layer = vt.LSTM(3, 64, num_layers=2, dropout=0.5)
    x = torch.ones(6, 3)
    torch.manual_seed(3)
    first = layer(x, offsets=[0, 6])[0]
    torch.manual_seed(3)
    assert torch.equal(layer(x, offsets=[0, 6])[0], first)
    assert not torch.equal(layer(x, offsets=[0, 6])[0], first)
    layer.eval()
    assert torch.equal(layer(x, offsets=[0, 6])[0], layer(x, offsets=[0, 6])[0])


def test_copies_files_and_data_types():
    layer, x = vt.LSTM(3, 4, num_layers=2), torch.randn(6, 3)
    wanted = layer(x, offsets=[0, 6])[0]
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    for other in (copy.deepcopy(layer), torch.load(file, weights_only=False)):
        assert torch.equal(other(x, offsets=[0, 6])[0], wanted)
    double = copy.deepcopy(layer).double()
    torch.testing.assert_close(double(x.double(), offsets=[0, 6])[0].float(), wanted)
    half = copy.deepcopy(layer).bfloat16()  # torch's own
    torch.testing.assert_close(half(x.bfloat16())[0].float(), wanted, atol=0.05, rtol=0.1)
    with pytest.raises(vr.errors.DTypeError, match=r"LSTM, parameters: expected .*, got torch.bfloat16"):
        half(x, offsets=[0, 6])
    with pytest.raises(
        vr.errors.DTypeError, match=r"input: expected float32 or float64 on the CPU, got torch.bfloat16"
    ):
        half(x.bfloat16(), offsets=[0, 6])


def test_described_tensors():
    layer = vt.LSTM(3, 4, batch_first=True).to("meta")
    output, (h_n, _) = layer(torch.zeros(2, 5, 3, device="meta"))
    assert output.shape == (2, 5, 4)
    assert h_n.device.type == "meta"


def test_autocast():
    layer, x = vt.LSTM(3, 4), torch.randn(6, 3)
    model = torch.nn.Linear(3, 3)
    with torch.autocast("cpu", torch.bfloat16):
        rows = model(x)
        assert rows.dtype == torch.bfloat16
        output = layer(rows, offsets=[0, 6])[0]
    assert output.dtype == torch.float32
    assert torch.equal(output, layer(rows.float(), offsets=[0, 6])[0])
    output.sum().backward()
    assert model.weight.grad.dtype == torch.float32


@pytest.mark.filterwarnings("ignore")  # that tracing is deprecated, and of each number that it makes a constant
def test_tracing_runs_torchs_own():
    layer, x = vt.LSTM(3, 4), torch.randn(5, 2, 3)
    traced = torch.jit.trace(layer, (x,))
    longer = torch.randn(7, 2, 3)
    torch.testing.assert_close(traced(longer)[0], layer(longer)[0])


def test_inside_a_compiled_model():
    class Model(torch.nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.before, self.layer, self.behind = torch.nn.Linear(3, 3), layer, torch.nn.Linear(4, 2)

        def forward(self, x, **named):
            return torch.sigmoid(self.behind(self.layer(torch.relu(self.before(x)), **named)[0]))

    model, x = Model(vt.LSTM(3, 4, batch_first=True)), torch.randn(2, 5, 3)
    compiled = torch.compile(model, backend="eager")
    for named in ({}, {"lengths": torch.tensor([5, 2])}):
        found = []
        for call in (model, compiled):
            output = call(x, **named)
            found.append([output, *torch.autograd.grad(output.sum(), list(model.parameters()))])
        assert all(map(torch.equal, *found))


class Rows(torch.utils.data.Dataset):
    """A data set whose items a layer computes, in the workers of a DataLoader."""

    def __init__(self):
        self.layer = vt.GRU(3, 4)

    def __len__(self):
        return 4

    def __getitem__(self, number):
        with torch.no_grad():
            return self.layer(torch.full((number + 1, 3), 0.1), offsets=[0, number + 1])[1][0, 0]


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_workers_of_a_loader(method):
    rows = Rows()
    wanted = torch.stack([rows[number] for number in range(4)])
    loader = torch.utils.data.DataLoader(rows, batch_size=4, num_workers=1, multiprocessing_context=method)
    assert torch.equal(next(iter(loader)), wanted)


# Errors.

BAD = {
    "rank": lambda layer: layer(torch.zeros(1, 2, 3, 3)),
    "features": lambda layer: layer(torch.zeros(5, 2, 4)),
    "data type": lambda layer: layer(torch.zeros(5, 2, 3, dtype=torch.float64)),
    "batch of h_0": lambda layer: layer(torch.zeros(5, 2, 3), hidden(layer, 1, 3, 4)),
    "layers of h_0": lambda layer: layer(torch.zeros(5, 2, 3), hidden(layer, 2, 2, 4)),
    "units of h_0": lambda layer: layer(torch.zeros(5, 2, 3), hidden(layer, 1, 2, 5)),
    "rank of h_0": lambda layer: layer(torch.zeros(5, 2, 3), hidden(layer, 1, 4)),
    "h_0 of one": lambda layer: layer(torch.zeros(5, 3), hidden(layer, 1, 1, 4)),
    "packed features": lambda layer: layer(pack_sequence([torch.zeros(5, 4)])),
    "packed h_0": lambda layer: layer(pack_sequence([torch.zeros(5, 3)]), hidden(layer, 1, 2, 4)),
}


def hidden(layer, *shape):
    return (torch.zeros(shape), torch.zeros(shape)) if layer.mode == "LSTM" else torch.zeros(shape)


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_errors_are_torchs(kind, name):
    if kind == "LSTM" and name.startswith("packed"):  # torch's LSTM does not look
        with pytest.raises(vr.errors.ShapeError):
            BAD[name](vt.LSTM(3, 4))
        return
    with pytest.raises(Exception) as theirs:  # noqa: PT011
        BAD[name](getattr(torch.nn, kind)(3, 4))
    with pytest.raises(type(theirs.value)) as ours:
        BAD[name](getattr(vt, kind)(3, 4))
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda layer: layer([1.0]), "expected a Tensor or a PackedSequence, got list"),
        (lambda layer: layer(torch.zeros(5, 3), offsets=[0, 4]), r"expected shape \(4, features\)"),
        (lambda layer: layer(torch.zeros(5, 3), offsets=[0, 6, 5]), "never fall"),
        (lambda layer: layer(torch.zeros(5, 3), offsets=[0.0, 5.0]), "offsets: expected integers, got float"),
        (lambda layer: layer(torch.zeros(5, 2), offsets=[0, 5]), r"expected \(rows, 3\) torch.float32"),
        (
            lambda layer: layer(torch.zeros(5, 3), offsets=[0, 5], lengths=[5]),
            "lengths, offsets: expected at most one of them",
        ),
        (lambda layer: layer(torch.zeros(5, 3), lengths=[5]), "a padded batch of three axes"),
        (lambda layer: layer(torch.zeros(5, 2, 3), lengths=[5]), "2 numbers .* from 0 to 5"),
        (lambda layer: layer(torch.zeros(5, 2, 3), lengths=[[5], [1, 2]]), r"lengths: expected integers, got \[\[5\]"),
        (
            lambda layer: layer(torch.nested.nested_tensor_from_jagged(torch.zeros(5, 3), torch.tensor([0, 2, 9]))),
            r"nested tensor: expected 9 rows, its last offset, got 5 rows in values\(\)",
        ),
        (lambda layer: layer(torch.zeros(5, 2, 3), lengths=[5, 6]), "2 numbers .* from 0 to 5"),
        (lambda layer: layer(torch.zeros(5, 2, 3), lengths=[5, -1]), "2 numbers .* from 0 to 5"),
        (
            lambda layer: layer(pack_sequence([torch.zeros(5, 3)]), lengths=[5]),
            "a PackedSequence has lengths of its own",
        ),
        (lambda layer: layer(torch.zeros(5, 3), torch.zeros(1, 1, 5), offsets=[0, 5]), "GRU, h_0: expected"),
        (lambda layer: layer(torch.zeros(5, 3), np.zeros((1, 1, 4)), offsets=[0, 5]), "got ndarray"),
        (lambda layer: layer(torch.nested.nested_tensor([torch.zeros(5, 3)])), "layout torch.jagged"),
    ],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_errors_of_what_torch_has_not(call, message):
    with pytest.raises(vr.errors.InputError, match=message):
        call(vt.GRU(3, 4))


@pytest.mark.parametrize("sizes", [[2, 2], [2, 2, 2], [2, 3], [6, -1], []], ids=str)
def test_batch_sizes_that_do_not_fit(sizes):
    packed = PackedSequence(torch.zeros(5, 3), torch.tensor(sizes, dtype=torch.int64))
    with pytest.raises(vr.errors.ShapeError, match="batch_sizes: expected numbers that never rise and add up to 5"):
        vt.LSTM(3, 4)(packed)


def test_packing_takes_memory_of_the_rows_alone():
    steps = 3000
    packed = PackedSequence(torch.zeros(2 * steps, 1), torch.tensor([steps + 1] + [1] * (steps - 1)))
    vt.layouts.of_packed(packed)
    tracemalloc.start()
    lod = vt.layouts.of_packed(packed).lod
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200 * len(packed.data)
    assert np.diff(lod.levels[0]).tolist() == [steps] + [1] * steps


def test_round_trip_of_packing():
    layer = vt.LSTM(3, 4, batch_first=True)
    x, lengths = torch.randn(3, 6, 3), [6, 2, 5]
    output, _ = layer(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
    padded, found = pad_packed_sequence(output, batch_first=True)
    assert found.tolist() == lengths
    torch.testing.assert_close(padded, layer(x, lengths=lengths)[0])


# What torch does to a model beside running it.


def tagger(kind):
    class Tagger(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = getattr(vt, kind)(3, 4, batch_first=True, dtype=torch.float64)

        def forward(self, x):
            return self.layer(x)[0] * 2

    return Tagger()


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_transforms_run_torchs_own(kind):
    model, x = tagger(kind), torch.randn(2, 5, 3, dtype=torch.float64)
    values = {name: value.detach() for name, value in model.named_parameters()}

    def loss(values, x):
        return torch.func.functional_call(model, values, (x,)).square().sum()

    found = torch.func.grad(loss)(values, x)
    model(x).square().sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad)
    step = torch.ones_like(x)
    _, along = torch.func.jvp(lambda x: loss(values, x), (x,), (step,))
    leaf = x.clone().requires_grad_()
    torch.testing.assert_close(along, torch.autograd.grad(loss(values, leaf), leaf)[0].sum())
    model.requires_grad_(False)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, step)
        of_dual = torch.autograd.forward_ad.unpack_dual(model(dual).square().sum())
        torch.testing.assert_close(of_dual.tangent, along)
        with pytest.raises(vr.errors.ProgramError, match="pass a padded batch"):
            model.layer(dual, lengths=[5, 2])
        with pytest.raises(vr.errors.ProgramError, match="got tensors inside a transform"):
            vt.function(vr.nn.functional.tanh)(dual)
    with pytest.raises(vr.errors.ProgramError, match="got tensors inside a transform"):
        torch.vmap(vt.function(vr.nn.functional.tanh))(x)


def test_a_model_that_fx_traces():
    model, x = tagger("LSTM"), torch.randn(2, 5, 3, dtype=torch.float64)
    traced = torch.fx.symbolic_trace(model)
    assert type(traced.layer) is vt.LSTM
    assert torch.equal(traced(x), model(x))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_scripting_is_refused_in_words():
    model = tagger("GRU")
    with pytest.raises(vr.errors.ProgramError, match=r"torch.jit.script\(varlen_rnn.torch.restore\(model\)\)"):
        torch.jit.script(model)
    assert type(model.layer) is vt.GRU


@pytest.mark.skipif(vt.eager._top_hooks is None, reason="this torch does not say whether hooks save tensors")
def test_checkpointed_layers_keep_nothing():
    layer = vt.GRU(3, 4, num_layers=2, dropout=0.5, batch_first=True)
    function, x = vt.function(vr.nn.functional.tanh), torch.randn(2, 5, 3, requires_grad=True)
    found = []
    for checkpointed in (False, True):
        torch.manual_seed(0)
        if checkpointed:
            y = torch.utils.checkpoint.checkpoint(lambda x: function(layer(x)[0]), x, use_reentrant=False)
            assert y.grad_fn.recorded is None
            before = y.grad_fn.next_functions[0][0].next_functions[0][0]
            assert before.kept is None
        else:
            y = function(layer(x)[0])
        found.append([y, *torch.autograd.grad(y.sum(), [x, *layer.parameters()])])
    assert all(map(torch.equal, *found))


def test_autocast_of_states_and_of_integers():
    layer, x = vt.LSTM(3, 4), torch.randn(5, 2, 3)
    state = torch.randn(1, 2, 4).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        output = layer(x, (state, state))[0]
        with pytest.raises(RuntimeError, match="got Long"):  # torch's own words
            layer(torch.ones(5, 2, 3, dtype=torch.int64))
    assert torch.equal(output, layer(x, (state.float(), state.float()))[0])


def test_what_is_on_meta_alone():
    x, state = torch.randn(5, 2, 3), torch.zeros(1, 2, 4, device="meta")
    with pytest.raises(RuntimeError, match="not at the same device"):
        vt.GRU(3, 4, device="meta")(x)
    with pytest.raises(vr.errors.ShapeError, match="h_0: expected a Tensor on 'cpu', got a Tensor on 'meta'"):
        vt.GRU(3, 4)(x.reshape(10, 3), state, offsets=[0, 5, 10])
