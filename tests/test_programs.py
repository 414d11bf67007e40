"""A recorded program computes what the same code computes at once: outputs, gradients and updates, bit for bit."""

import numpy as np
import pytest

import varlen_rnn as vr
from tests.test_operators import CASES
from varlen_rnn.tape.spec import describe


def declare(name, value, unknown_rows=True):
    """Return a variable of the program for a value that it will be fed; its rows are of unknown number."""
    spec = describe(value if isinstance(value, vr.LoDTensor) else vr.LoDTensor(value))
    shape = (-1, *spec.shape[1:]) if spec.lod_level or (unknown_rows and spec.shape) else spec.shape
    return vr.feed_data(name, shape, spec.dtype, spec.lod_level, requires_grad=spec.dtype.kind == "f")


def assert_same(value, other):
    """Check for equal kinds, LoDs, and bits."""
    assert describe_plain(value) == describe_plain(other)
    np.testing.assert_array_equal(dense(value).view(np.uint8), dense(other).view(np.uint8))


def describe_plain(value):
    value = vr.LoDTensor(value) if isinstance(value, (np.ndarray, np.generic)) else value
    return describe(value), value.lod() if isinstance(value, vr.LoDTensor) else value.rows.tolist()


def dense(value):
    return np.atleast_1d(value.value if isinstance(value, vr.SelectedRows) else np.asarray(value))


def both_ways(name, unknown_rows):
    """Return the program of a composition, its inputs and output; values, leaves and output of the code run at once."""
    function, values = CASES[name]
    values = [value if isinstance(value, vr.LoDTensor) else np.asarray(value) for value in values]
    leaves = [vr.Variable(v, requires_grad=np.asarray(v).dtype.kind == "f") for v in values]
    out = function(*leaves)
    out.sum().backward()
    with vr.program_guard() as program:
        inputs = [declare(f"x{k}", value, unknown_rows) for k, value in enumerate(values)]
        described = function(*inputs)
        described.sum().backward()
    return program, inputs, described, values, leaves, out


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("unknown_rows", [True, False])
def test_a_composition_and_its_gradient(name, unknown_rows):
    program, inputs, described, values, leaves, out = both_ways(name, unknown_rows)
    assert vr.Program(program.desc, program.persistables).desc == program.desc, "it passes the checks of a reader"
    gradients = [x for x in inputs if x.grad is not None]
    assert [x.name for x in gradients] == [f"x{k}" for k, leaf in enumerate(leaves) if leaf.grad is not None]
    fetches = [described, *(f"{x.name}@GRAD" for x in gradients)]
    got = vr.Executor().run(program, dict(zip((x.name for x in inputs), values, strict=True)), fetches)
    wanted = [out.value, *(leaf.grad for leaf in leaves if leaf.grad is not None)]
    for value, other in zip(got, wanted, strict=True):
        assert_same(value, other)


def test_the_steps_of_a_recurrence_over_a_plan():
    def steps(x, boot):
        plan = vr.sort_by_seq_len(x)
        state = vr.init_memories(boot, plan)
        outputs = []
        for t in range(3):
            x_t = vr.segment_inputs(x, plan, t)
            state = vr.nn.functional.tanh(x_t + state[: SIZES[t]])
            outputs.append(state)
        return vr.concat_outputs(outputs, plan)

    x, boot = vr.create_lod_tensor(np.random.default_rng(0).random((6, 2)), [[2, 0, 3, 1]]), np.ones((4, 2))
    SIZES = vr.sort_by_seq_len(x).batch_sizes
    leaves = [vr.Variable(x, requires_grad=True), vr.Variable(boot, requires_grad=True)]
    y = steps(*leaves)
    (y * y).sum().backward()
    with vr.program_guard() as program:
        described = steps(*(declare(name, value) for name, value in (("x", x), ("boot", boot))))
        (described * described).sum().backward()
    assert vr.Program(program.desc, program.persistables).desc == program.desc
    got = vr.Executor().run(program, {"x": x, "boot": boot}, [described, "x@GRAD", "boot@GRAD"])
    for value, other in zip(got, [y.value, leaves[0].grad, leaves[1].grad], strict=True):
        assert_same(value, other)
    with pytest.raises(vr.OutOfRangeError, match="0 <= t < 2"):
        vr.Executor().run(program, {"x": x.slice(0, 0, 2), "boot": boot[:2]}, [described])


class Model(vr.nn.Module):
    def __init__(self):
        self.embedding = vr.nn.Embedding(7, 3, padding_idx=0)
        self.lstm = vr.nn.LSTM(3, 4, num_layers=2, dropout=0.3, bidirectional=True)
        self.dropout = vr.nn.Dropout(0.2)
        self.output = vr.nn.Linear(8, 3)

    def forward(self, ids):
        y, (h, _) = self.lstm(self.embedding(ids))
        return self.output(self.dropout(vr.sequence_pool(y, "max"))) + h[0] @ np.ones((4, 3), np.float32)


OPTIMIZERS = {
    "sgd": lambda p: vr.optim.SGD(p, lr=0.1),
    "momentum": lambda p: vr.optim.Momentum(p, lr=0.1, nesterov=True),
    "adagrad": lambda p: vr.optim.Adagrad(p, lr=0.1),
    "adam": lambda p: vr.optim.Adam(p, lr=0.1),
    "lazy adam": lambda p: vr.optim.Adam(p, lr=0.1, lazy=True),
}


def batches(number=3):
    rng = np.random.default_rng(5)
    for _ in range(number):
        lengths = rng.integers(0, 6, 4)
        yield vr.create_lod_tensor(rng.integers(0, 7, lengths.sum()), [lengths.tolist()]), rng.integers(0, 3, 4)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training(name):
    vr.manual_seed(1)
    model = Model()
    optimizer = OPTIMIZERS[name](model.parameters())
    losses = []
    for ids, labels in batches():
        loss = vr.nn.functional.cross_entropy(model(ids), labels)
        optimizer.minimize(loss)
        losses.append(loss.item())

    vr.manual_seed(1)
    twin = Model()
    optimizer = OPTIMIZERS[name](twin.parameters())
    with vr.program_guard() as program:
        ids = vr.feed_data("ids", [-1], "int64", lod_level=1)
        labels = vr.feed_data("labels", [-1], "int64")
        loss = vr.nn.functional.cross_entropy(twin(ids), labels)
        optimizer.minimize(loss)
    assert program.desc.blocks[0].var("embedding.weight@GRAD").type.type == vr.VarType.SELECTED_ROWS
    executor = vr.Executor()
    assert losses == [executor.run(program, {"ids": i, "labels": k}, [loss])[0].item() for i, k in batches()]
    for (parameter, value), (_, other) in zip(model.named_parameters(), twin.named_parameters(), strict=True):
        assert_same(value.data, other.data)
        assert_same(program.persistables[parameter].data, value.data)
    assert all(parameter.grad is None for parameter in twin.parameters()), "a program's gradients stay there"


def test_prune():
    vr.manual_seed(1)
    model = Model()
    with vr.program_guard() as program:
        logits = model(vr.feed_data("ids", [-1], "int64", lod_level=1))
        loss = vr.nn.functional.cross_entropy(logits, vr.feed_data("labels", [-1], "int64"))
        vr.optim.Adam(model.parameters()).minimize(loss)
    inference = program.prune([logits])
    assert (inference.feed_names, inference.fetch_names) == (["ids"], [logits.name])
    assert set(inference.persistables) == {"constant", *dict(model.named_parameters())}
    model.eval()
    for ids, _ in batches():
        with vr.no_grad():
            assert_same(vr.Executor().run(inference, {"ids": ids})[0], np.asarray(model(ids)))
    with pytest.raises(vr.ProgramError, match="gradient"):
        program.prune(["lstm.weight_hh_l0@GRAD"])


def test_split_parts_run_one_after_another():
    vr.manual_seed(1)
    model, (ids, labels) = Model(), next(batches())
    with vr.program_guard() as program:
        logits = model(vr.feed_data("ids", [-1], "int64", lod_level=1))
        loss = vr.nn.functional.cross_entropy(logits, vr.feed_data("labels", [-1], "int64"))
        loss.backward()
    vr.manual_seed(2)
    fetches = [loss.name, "embedding.weight@GRAD", "lstm.weight_hh_l0@GRAD"]
    whole = vr.Executor().run(program, {"ids": ids, "labels": labels}, fetches)
    vr.manual_seed(2)
    held = {"ids": ids, "labels": labels}
    for part in program.split(at=[logits, loss]):
        names = list(dict.fromkeys([*part.fetch_names, *(n for n in fetches if part.desc.blocks[0].var(n))]))
        results = vr.Executor().run(part, {name: held[name] for name in part.feed_names}, names)
        held |= dict(zip(names, results, strict=True))
    for name, value in zip(fetches, whole, strict=True):
        assert_same(held[name], value)


@pytest.mark.parametrize("layer", [vr.nn.LSTM, vr.nn.GRU, vr.nn.RNN])
def test_the_padded_twin(layer):
    vr.manual_seed(1)
    layer = layer(3, 4, num_layers=2, bidirectional=True)
    padded = vr.baselines.Padded(layer)
    x = vr.create_lod_tensor(np.random.default_rng(0).random((6, 3), np.float32), [[2, 0, 3, 1]])
    h_0 = np.ones((4, 4, 4), np.float32)

    def run(x, h_0):
        return padded(x, (h_0, h_0) if isinstance(layer, vr.nn.LSTM) else h_0)

    leaf = vr.Variable(x, requires_grad=True)
    y, h_n = run(leaf, vr.Variable(h_0))
    (y.sum() + h_n.sum()).backward()
    with vr.program_guard() as program:
        described = run(
            vr.feed_data("x", [-1, 3], "float32", 1, requires_grad=True), vr.feed_data("h_0", [4, -1, 4], "float32")
        )
        (described[0].sum() + described[1].sum()).backward()
    got = vr.Executor().run(program, {"x": x, "h_0": h_0}, [*described, "x@GRAD", "layer.weight_hh_l1@GRAD"])
    for value, other in zip(got, [y.value, h_n.value, leaf.grad, layer.weight_hh_l1.grad], strict=True):
        assert_same(value, other)
