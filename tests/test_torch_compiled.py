"""The layers of `varlen_rnn.torch` inside graphs that PyTorch compiles or exports."""

import shutil

import numpy as np
import pytest

import varlen_rnn as vr
from tests.test_torch_layers import as_tuple, by_layer, gradients, pair, states_of

torch = pytest.importorskip("torch")
torch_dynamo = pytest.importorskip("torch._dynamo")
from torch._dynamo.utils import counters  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

import varlen_rnn.torch as vt  # noqa: E402

# Torch warns that the weights of its own recurrent layers are assigned, too.
exports = pytest.mark.filterwarnings("ignore:The tensor attributes self.layer._flat_weights:UserWarning")
LENGTHS = [[2, 3], [4, 0, 2], [5, 5, 1, 2], [7, 2]]


@pytest.fixture(autouse=True)
def dynamo():
    """Let torch trace subclasses of its layers, and forget graphs of other tests."""
    torch_dynamo.reset()
    counters.clear()
    with torch_dynamo.config.patch(allow_rnn=True):
        yield


class Model(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        width = (layer.proj_size or layer.hidden_size) * (2 if layer.bidirectional else 1)
        self.before, self.layer, self.behind = torch.nn.Linear(3, 3), layer, torch.nn.Linear(width, 2)
        self.to(layer.weight_ih_l0.dtype)

    def forward(self, x, states=None, **named):
        output, last = self.layer(torch.relu(self.before(x)), states, **named)
        return self.behind(output), last


def batch(layout, lengths, batch_first=True, dtype=torch.float64):
    """Return the input and the named argument of a call."""
    if layout == "offsets":
        x = torch.linspace(-1, 2, 3 * sum(lengths), dtype=dtype).reshape(-1, 3)
        return x, {"offsets": torch.tensor([0, *lengths]).cumsum(0)}
    axes = (len(lengths), max(lengths)) if batch_first else (max(lengths), len(lengths))
    x = torch.linspace(-1, 2, 3 * int(np.prod(axes)), dtype=dtype).reshape(*axes, 3)
    return x, ({"lengths": torch.tensor(lengths)} if layout == "padded" else {})


def assert_same_bits(model, compiled, layout, lengths, states=None):
    x, named = batch(layout, lengths, model.layer.batch_first, model.before.weight.dtype)
    x.requires_grad_()
    leaves = [x, *(as_tuple(states) if states is not None else ())]
    found = [gradients(model, *call(x, states, **named), *leaves) for call in (model, compiled)]
    assert all(map(torch.equal, *found))


@pytest.mark.slow
@by_layer
def test_the_bits_are_those_of_eager_calls(kind, options):
    layout = "padded" if options.get("batch_first") or kind == "RNN" else "offsets"
    model = Model(pair(kind, options)[1])
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=True)
    for lengths in LENGTHS[:2]:
        assert_same_bits(model, compiled, layout, lengths, states_of(kind, options, len(lengths)))
    assert_same_bits(model, compiled, layout, LENGTHS[0])
    assert counters["graph_break"] == {}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "layout"), [("LSTM", "offsets"), ("GRU", "padded")])
def test_how_many_graphs_varying_lengths_have(kind, layout):
    model = vt.replace(Model(getattr(torch.nn, kind)(3, 4, batch_first=True)))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for lengths in (*LENGTHS, [2, 2, 2, 2, 2, 3]):
        assert_same_bits(model, compiled, layout, lengths)
    assert counters["stats"]["unique_graphs"] <= 2
    for lengths in ([1], [6], [1, 1], [1, 0], [3, 1]):
        assert_same_bits(model, compiled, layout, lengths)
    assert counters["stats"]["unique_graphs"] <= 5


@pytest.mark.parametrize("axes", [(5,), (5, 2)])
def test_one_sequence_and_equal_lengths(axes):
    layer = vt.GRU(3, 4, num_layers=2, bidirectional=True)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x, state = torch.randn(*axes, 3), torch.randn(4, *axes[1:], 4)
    for arguments in ((x,), (x, state)):
        found = [gradients(layer, *call(*arguments)) for call in (layer, compiled)]
        assert all(map(torch.equal, *found))


def test_lists_of_lengths():
    layer, x = vt.LSTM(3, 4, batch_first=True), torch.randn(2, 5, 3)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, lengths=[5, 2])[0], layer(x, lengths=[5, 2])[0])
    assert torch.equal(compiled(x[0], offsets=[0, 5])[0], layer(x[0], offsets=[0, 5])[0])


def test_jagged_tensors_by_their_values_and_offsets():
    layer = vt.LSTM(3, 4)

    def run(words):
        rows, _ = layer(words.values(), offsets=words.offsets())
        return torch.nested.nested_tensor_from_jagged(rows, words.offsets())

    words = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(5, 3)], layout=torch.jagged)
    found = torch.compile(run, fullgraph=True, backend="aot_eager")(words)
    assert torch.equal(found.values(), layer(words)[0].values())


def test_inference_saves_no_columns():
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph

    layer = vt.GRU(3, 4)
    with torch.no_grad():
        torch.compile(layer, fullgraph=True, backend=backend)(torch.randn(5, 3), offsets=torch.tensor([0, 2, 5]))
    (node,) = [n for n in graphs[0].graph.nodes if n.target is torch.ops.varlen_rnn.recurrent_2]
    assert node.args[-1] is False


def trained(model, call, layout):
    """Return parameters and losses of twelve training steps."""
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=0.05), []
    for step in range(12):
        x, named = batch(layout, LENGTHS[step % len(LENGTHS)], dtype=torch.float32)
        loss = call(x, **named)[0].square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *model.parameters()]


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["offsets", "padded"])
def test_twelve_training_steps(layout):
    found = []
    for compiles in (False, True):
        torch.manual_seed(0)
        model = Model(vt.LSTM(3, 16, num_layers=2, bidirectional=True, batch_first=True))
        found.append(
            trained(model, torch.compile(model, fullgraph=True, backend="aot_eager") if compiles else model, layout)
        )
    assert all(map(torch.equal, *found))
    assert counters["stats"]["unique_graphs"] <= 2


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
@pytest.mark.parametrize("layout", ["offsets", "padded"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit, inside inductor
def test_training_steps_under_inductor(layout):
    found = []
    for compiles in (False, True):
        torch.manual_seed(0)
        model = Model(vt.GRU(3, 16, batch_first=True))
        found.append(trained(model, torch.compile(model, fullgraph=True) if compiles else model, layout))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_results_that_graphs_on_disk_expect():
    """If this fails because results have changed, operators need new names: see the module's docstring."""
    with FakeTensorMode():
        x, offsets = torch.empty(5, 3), torch.empty(3, dtype=torch.int64)
        inputs = x, offsets, [], [torch.empty(48, 3), torch.empty(48, 16)], "GRU"
        y, last, kept = torch.ops.varlen_rnn.recurrent_2(*inputs, True, True)
        gradients = torch.ops.varlen_rnn.recurrent_gradient_2(*inputs, y, kept, y, last, [True, True])
    found = [[(*tensor.shape, tensor.dtype) for tensor in tensors] for tensors in ([y], last, kept, gradients)]
    float32 = torch.float32
    assert found == [
        [(5, 16, float32)],
        [(1, 2, 16, float32)],
        [(5, 64, float32), (torch.int64,)],
        [(1, 2, 16, float32), (5, 3, float32), (48, 3, float32), (48, 16, float32)],
    ]


def test_dropout_between_layers():
    torch.manual_seed(0)
    layer = vt.LSTM(3, 8, num_layers=2, dropout=0.5, batch_first=True)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x, lengths = torch.randn(2, 5, 3), torch.tensor([5, 2])
    first, second = (compiled(x, lengths=lengths)[0] for _ in range(2))
    assert not torch.equal(first, second)
    assert not first[1, 2:].any()
    layer.eval()
    assert torch.equal(compiled(x, lengths=lengths)[0], layer(x, lengths=lengths)[0])


def operands(kind, options, lengths, spare=0):
    """Return arguments of the operator of a layer."""
    layer = pair(kind, options)[1]
    weights = list(layer.parameters())
    x = torch.linspace(-1, 1, 3 * (sum(lengths) + spare), dtype=torch.float64).reshape(-1, 3).requires_grad_()
    states = [
        s.detach().requires_grad_() for s in as_tuple(states_of(kind, {**options, "num_layers": 1}, len(lengths)))
    ]
    return x, torch.tensor([0, *lengths]).cumsum(0), states, weights, layer.mode


OPERANDS = [
    ("LSTM", {}, (2, 0, 3), 0),
    ("GRU", {"bidirectional": True}, (1, 4), 2),
    ("RNN", {}, (1, 1), 0),
    ("LSTM", {"proj_size": 2, "bidirectional": True}, (3, 1), 1),
    ("LSTM", {}, (), 0),
]


# `opcheck` itself reads gradients of tensors that are no leaves; PyTorch 2.14 warns of it.
CHECKED = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


@CHECKED
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "options", "lengths", "spare"), OPERANDS, ids=str)
def test_operators_keep_torchs_rules(kind, options, lengths, spare):
    x, offsets, states, weights, mode = operands(kind, options, lengths, spare)
    whole = not spare
    torch.library.opcheck(torch.ops.varlen_rnn.recurrent_2, (x, offsets, states, weights, mode, whole, True))
    torch.library.opcheck(torch.ops.varlen_rnn.recurrent_2, (x, offsets, [], weights, mode, whole, False))
    if not lengths:
        return
    with torch.no_grad():
        y, last, kept = torch.ops.varlen_rnn.recurrent_2(x, offsets, states, weights, mode, whole, True)
        arguments = x, offsets, states, weights, mode, y, kept, torch.ones_like(y), [s.clone() for s in last]
        arguments = torch.utils._pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, arguments)
        for needs in ([True, True], [False, False]):
            torch.library.opcheck(torch.ops.varlen_rnn.recurrent_gradient_2, (*arguments, needs))


@CHECKED
def test_the_operators_of_padding_keep_torchs_rules():
    lengths = torch.tensor([3, 0, 2])
    for batch_first in (False, True):
        torch.library.opcheck(torch.ops.varlen_rnn.padded_places, (lengths, 3, 4, batch_first))
        places, back, offsets = torch.ops.varlen_rnn.padded_places(lengths, 3, 4, batch_first)
        assert offsets.tolist() == [0, 3, 3, 5]
        rows = torch.randn(12, 2, requires_grad=True, dtype=torch.float64)
        torch.library.opcheck(torch.ops.varlen_rnn.taken, (rows, places, back))
        torch.autograd.gradcheck(torch.ops.varlen_rnn.taken, (rows, places, back))


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize(("kind", "options", "lengths", "spare"), OPERANDS[:4], ids=str)
def test_gradcheck(kind, options, lengths, spare, keep):
    x, offsets, states, weights, mode = operands(kind, options, lengths, spare)
    count = len(states)

    def run(x, *others):
        states, weights = list(others[:count]), list(others[count:])
        y, last, _ = torch.ops.varlen_rnn.recurrent_2(x, offsets, states, weights, mode, not spare, keep)
        return y, *last

    torch.autograd.gradcheck(run, (x, *states, *weights))


def test_a_graph_is_passed_twice():
    layer = vt.GRU(3, 4)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x = torch.randn(5, 3, requires_grad=True)
    loss = compiled(x, offsets=torch.tensor([0, 2, 5]))[0].square().sum()
    first, second = (torch.autograd.grad(loss, x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("x", "named", "message"),
    [
        (torch.zeros(2, 5, 3), {"lengths": torch.tensor([5, 6])}, r"lengths: expected 2 numbers .* from 0 to 5"),
        (torch.zeros(5, 3), {"offsets": torch.tensor([0, 2, 4])}, r"input: expected shape \(4, features\)"),
        (torch.zeros(5, 3), {"offsets": torch.tensor([0, 6, 5])}, "(?i)offset|lod"),
    ],
)
def test_bad_lengths_raise_when_a_graph_runs(x, named, message):
    compiled = torch.compile(vt.LSTM(3, 4, batch_first=True), fullgraph=True, backend="aot_eager")
    with pytest.raises(vr.errors.InputError, match=message):
        compiled(x, **named)


def test_what_does_not_fit_raises_outside_the_graph():
    compiled = torch.compile(vt.LSTM(3, 4, batch_first=True), backend="aot_eager")
    with pytest.raises(vr.errors.InputError, match="lengths: expected 2 numbers"):
        compiled(torch.zeros(2, 5, 3), lengths=torch.tensor([5, 2, 1]))
    with pytest.raises(RuntimeError, match=r"input\.size"):
        compiled(torch.zeros(2, 5, 7))


def test_a_packed_sequence_runs_outside_the_graph():
    layer = vt.LSTM(3, 4)
    packed = torch.nn.utils.rnn.pack_sequence([torch.randn(5, 3), torch.randn(2, 3)])
    compiled = torch.compile(layer, backend="aot_eager")
    assert torch.equal(compiled(packed)[0].data, layer(packed)[0].data)


class Exported(Model):
    """A model whose arguments have names, as `dynamic_shapes` needs them."""

    def forward(self, x, lengths=None, offsets=None):
        return super().forward(x, lengths=lengths, offsets=offsets)


@exports
@pytest.mark.parametrize(("layout", "strict"), [("offsets", False), ("padded", False), ("padded", True)])
def test_an_exported_model_runs_on_other_lengths(layout, strict):
    Dim = torch.export.Dim
    model = vt.replace(Exported(torch.nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True)))
    x, named = batch(layout, LENGTHS[2], dtype=torch.float32)
    sizes = {0: Dim("rows")} if layout == "offsets" else {0: Dim("sequences"), 1: Dim("steps")}
    count = Dim("offsets", min=3) if layout == "offsets" else sizes[0]
    shapes = {"x": sizes, **{name: {0: count} for name in named}}
    program = torch.export.export(model, (x,), named, dynamic_shapes=shapes, strict=strict)
    for lengths in LENGTHS:
        x, named = batch(layout, lengths, dtype=torch.float32)
        output, last = model(x, **named)
        found, found_last = program.module()(x, **named)
        assert torch.equal(found, output)
        assert all(map(torch.equal, found_last, last))


@exports
def test_an_exported_model_trains_and_is_saved(tmp_path):
    model = Model(vt.GRU(3, 4, batch_first=True))
    x, named = batch("padded", LENGTHS[1], dtype=torch.float32)
    torch.export.save(torch.export.export(model, (x,), named), tmp_path / "model.pt2")
    again = torch.export.load(tmp_path / "model.pt2").module()
    found = [
        torch.autograd.grad(call(x, **named)[0].square().sum(), list(call.parameters())) for call in (model, again)
    ]
    assert all(map(torch.equal, *found))


@exports
def test_without_lengths_torchs_own_layer_is_exported():
    model = Model(vt.LSTM(3, 4, batch_first=True))
    program = torch.export.export(model, (torch.randn(2, 5, 3),))
    assert not [node for node in program.graph.nodes if "varlen_rnn" in str(node.target)]
