"""Models that `varlen_rnn.onnx.export` writes, run by onnxruntime on ragged batches, beside ours."""

import numpy as np
import onnx
import onnxruntime
import pytest

import varlen_rnn as vr
import varlen_rnn.onnx as vo
from varlen_rnn.cells import find_cell
from varlen_rnn.nn import functional as F

LENGTHS = [(3, 1, 5), (2, 0, 4), (0, 3), (1,), (4, 4, 4), (0, 1)]


def padded(rows, lengths):
    """Return the batch that ONNX takes: what stands in the padding is not asked for."""
    steps = max(lengths)
    far = 7 if rows.dtype.kind == "i" else np.nan if rows.dtype.kind == "f" else 1
    found = np.full((len(lengths), steps, *rows.shape[1:]), far, rows.dtype)
    for sequence, part in zip(found, np.split(rows, np.cumsum(lengths)[:-1]), strict=True):
        sequence[: len(part)] = part
    return found


def rows_of(lengths, *sizes, seed=0):
    return np.random.default_rng(seed).standard_normal((sum(lengths), *sizes)).astype(np.float32)


class Exported:
    """A function of Variables, as a model of onnxruntime."""

    def __init__(self, function, path, **feeds):
        self.function = function
        with vr.program_guard() as program:
            given = {name: vr.feed_data(name, *described) for name, described in feeds.items()}
            found = function(**given)
            self.fetches = found if isinstance(found, (list, tuple)) else [found]
            names = [variable.name for variable in self.fetches]
        self.program = program
        vo.export(program, path, self.fetches)
        onnx.checker.check_model(onnx.load(path), full_check=True)
        self.session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        assert [output.name for output in self.session.get_outputs()] == names

    def check(self, lengths, **values):
        """Compare its outputs on rows of sequences of these lengths, and on plain arrays, with ours."""
        feed, own = {}, {}
        inputs = {item.name for item in self.session.get_inputs()}
        for name, value in values.items():
            own[name] = vr.Variable(value)
            feed[name] = value
            if f"{name}_lengths" in inputs:
                own[name] = vr.Variable(vr.create_lod_tensor(value, [lengths]))
                feed |= {name: padded(value, lengths), f"{name}_lengths": np.array(lengths, np.int64)}
        with vr.no_grad():
            wanted = self.function(**own)
        wanted = wanted if isinstance(wanted, (list, tuple)) else [wanted]
        feed = {name: value for name, value in feed.items() if name in inputs}
        for found, want in zip(self.session.run(None, feed), wanted, strict=True):
            right = np.asarray(want)
            if want.lod():
                right = padded(right, lengths)
                inside = np.arange(max(lengths)) < np.array(lengths)[:, None]
                assert not found[~inside].any()
                found, right = found[inside], right[inside]
            np.testing.assert_allclose(found, right, rtol=1e-5, atol=2e-6)


X = {"x": ([-1, 4], "float32", 1)}
NORM = vr.nn.BatchNorm1d(4)
NORM(rows_of((9, 9), 4) * 3 + 1)
NORM.eval()
OPERATORS = {
    "elementwise": lambda x: F.tanh(x) * F.sigmoid(x) + F.relu(-x) / (F.exp(x) + 1.0) - 0.5,
    "of positive numbers": lambda x: F.sqrt(F.abs(x)) + F.log(F.abs(x) + 1.0) + F.abs(x) ** 1.5,
    "choices": lambda x: F.where(x > 0.0, F.maximum(x, 0.5), F.minimum(x * x, 2.0)),
    "logic": lambda x: F.where((x > 0.0) & (x < 1.0) | ~(x >= -1.0), x, 0.0),
    "softplus": lambda x: F.softplus(x) * F.softplus(x, beta=2.0, threshold=0.5) + F.log_sigmoid(x),
    "elu and leaky_relu": lambda x: F.elu(x, 0.5) * F.leaky_relu(x),
    "clip": lambda x: x.clip(-0.5, 0.5),
    "extremes": lambda x: [x.max(axis=1), x.min(axis=1, keepdims=True), x.std(axis=1)],
    "axes of size one": lambda x: x.unsqueeze(1).squeeze(1),
    "norms": lambda x: [F.normalize(x), F.cosine_similarity(x, F.normalize(x, p=1.0))],
    "one_hot": lambda x: F.one_hot((x.abs() * 3.0).clip(0.0, 5.0).astype("int64"), 6),
    "batch norm": lambda x: NORM(x),
    "batch norm without a weight": vr.nn.BatchNorm1d(4, affine=False).eval(),
    "functions in sequential": vr.nn.Sequential(vr.nn.Linear(4, 3), F.relu, vr.nn.Softmax()),
    "gelu and silu": lambda x: F.gelu(x) + F.gelu(x, approximate="tanh") * F.silu(x),
    "softmax": lambda x: F.softmax(x) + F.log_softmax(x),
    "columns": lambda x: F.concat([x[:, 1:3], x[:, ::2], x[:, -1:]], axis=1),
    "one column": lambda x: x[:, 2],
    "reductions": lambda x: [x.sum(axis=1), x.mean(axis=1, keepdims=True)],
    "reshape": lambda x: x.reshape(-1, 2, 2).transpose(1, 2).reshape(-1, 4),
    "argmax": lambda x: x.argmax(axis=1),
    "linear": vr.nn.Linear(4, 3),
    "linear without bias": vr.nn.Linear(4, 3, bias=False),
    "layer norm": vr.nn.LayerNorm(4),
    "a vector": lambda x: x * np.arange(4, dtype=np.float32) + np.ones((1, 4), np.float32),
    "softmax of sequences": vr.sequence_softmax,
    "reverse": vr.sequence_reverse,
    "expand_as": lambda x: vr.sequence_expand_as(vr.sequence_pool(x, "sum"), x),
    "astype": lambda x: (x > 0.0).astype("float32") * x + x.astype("int32").astype("float32"),
    "pool of integers": lambda x: [
        vr.sequence_pool((x * 9.0).astype("int32"), kind) for kind in ("sum", "max", "last")
    ],
    "truths": lambda x: ~(x > 0.0),
    "dropout": lambda x: vr.nn.Dropout(0.5).eval()(x) * 2.0,
    **{
        f"pool {kind} {value}": lambda x, kind=kind, value=value: vr.sequence_pool(x, kind, pad_value=value)
        for kind in ("sum", "mean", "sqrt", "max", "first", "last")
        for value in (0.0, 2.5)
    },
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name, tmp_path):
    model = Exported(OPERATORS[name], tmp_path / "model.onnx", **X)
    for lengths in LENGTHS:
        model.check(lengths, x=rows_of(lengths, 4))


LAYERS = {
    "LSTM": lambda: vr.nn.LSTM(4, 5),
    "deep, both ways": lambda: vr.nn.LSTM(4, 5, num_layers=2, bidirectional=True),
    "backward": lambda: vr.nn.GRU(4, 5, direction="backward"),
    "GRU": lambda: vr.nn.GRU(4, 5, bidirectional=True),
    "heads": lambda: vr.nn.GRU(4, 6, bidirectional=True, num_heads=3),
    "GRU, reset before": lambda: vr.nn.GRU(4, 5, reset_after=False, clip=0.5),
    "RNN": lambda: vr.nn.RNN(4, 5, bidirectional=True),
    "RNN of relu": lambda: vr.nn.RNN(4, 5, nonlinearity="relu", bias=False),
    "peepholes": lambda: vr.nn.LSTM(4, 5, peepholes=True, clip=1.0, bidirectional=True),
    "recomputed": lambda: vr.nn.GRU(4, 5, recompute=2),
    "coupled": lambda: vr.nn.LSTM(4, 5, coupled=True),
    "activations": lambda: vr.nn.LSTM(4, 5, activations=("hard_sigmoid", "softsign", ("leaky_relu", 0.2))),
    "merged": lambda: vr.nn.GRU(4, 5, num_layers=2, direction="both", merge="mean"),
    "weight norm": lambda: vr.nn.weight_norm(vr.nn.GRU(4, 5), "weight_hh_l0"),
}


@pytest.mark.parametrize("name", LAYERS)
def test_recurrent_layers(name, tmp_path):
    layer = LAYERS[name]()
    if name == "activations":  # of which a number is not ours to guess
        layer = vr.nn.LSTM(4, 5, activations=(("hard_sigmoid", 0.3, 0.4), "softsign", ("leaky_relu", 0.2)))

    def function(x):
        y, last = layer(x)
        return [y, *(last if isinstance(last, tuple) else (last,))]

    model = Exported(function, tmp_path / "model.onnx", **X)
    for lengths in LENGTHS:
        model.check(lengths, x=rows_of(lengths, 4))


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_initial_states_of_empty_sequences_too(kind, tmp_path):
    layer = getattr(vr.nn, kind)(4, 5)
    names = ["h", "c"][: len(layer.cell.states)]

    def function(x, **states):
        given = tuple(states[name] for name in names)
        y, last = layer(x, given if kind == "LSTM" else given[0])
        return [y, *(last if isinstance(last, tuple) else (last,))]

    feeds = X | {name: ([1, -1, 5], "float32") for name in names}
    model = Exported(function, tmp_path / "model.onnx", **feeds)
    for lengths in LENGTHS:
        states = {
            name: np.random.default_rng(place).standard_normal((1, len(lengths), 5)).astype(np.float32)
            for place, name in enumerate(names)
        }
        model.check(lengths, x=rows_of(lengths, 4), **states)


class Classifier(vr.nn.Module):
    def __init__(self):
        self.table, self.lstm = vr.nn.Embedding(20, 4), vr.nn.LSTM(4, 6, bidirectional=True)
        self.norm, self.attention = vr.nn.LayerNorm(12), vr.nn.MultiheadAttention(12, 3)
        self.dropout, self.behind = vr.nn.Dropout(0.5), vr.nn.Linear(12, 3)

    def forward(self, ids):
        y = self.norm(self.lstm(self.table(ids))[0])
        y = self.dropout(y + self.attention(y, y, y))
        return F.softmax(self.behind(vr.sequence_pool(y, "max")))


def test_a_whole_model(tmp_path):
    model = Classifier()
    with vr.program_guard() as program:
        ids = vr.feed_data("ids", [-1], "int64", lod_level=1)
        scores = model(ids)
        scores.name = "scores"
    vo.export(program, tmp_path / "a.onnx", ["scores"])
    program.save(tmp_path / "a.safetensors")
    vo.export(vr.Program.load(tmp_path / "a.safetensors"), tmp_path / "b.onnx", ["scores"])
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    session = onnxruntime.InferenceSession(str(tmp_path / "a.onnx"), providers=["CPUExecutionProvider"])
    model.eval()
    for lengths in LENGTHS:
        rows = np.random.default_rng(1).integers(0, 20, sum(lengths))
        feed = {"ids": padded(rows, lengths), "ids_lengths": np.array(lengths)}
        wanted = model(vr.create_lod_tensor(rows, [lengths]))
        np.testing.assert_allclose(session.run(["scores"], feed)[0], np.asarray(wanted), rtol=1e-5, atol=1e-6)


def test_queries_and_keys_of_other_lengths(tmp_path):
    def function(q, k):
        parts = [part.reshape(-1, 2, 2) for part in (q, k, k)]
        return F.scaled_dot_product_attention(*parts, is_causal=False).reshape(-1, 4)

    model = Exported(function, tmp_path / "model.onnx", q=X["x"], k=X["x"])
    for of_query, of_key in (((2, 1, 3), (4, 2, 1)), ((1, 0), (2, 3))):
        q, k = rows_of(of_query, 4), rows_of(of_key, 4, seed=1)
        own = [vr.Variable(vr.create_lod_tensor(rows, [n])) for rows, n in ((q, of_query), (k, of_key))]
        feed = {"q": padded(q, of_query), "k": padded(k, of_key)}
        feed |= {"q_lengths": np.array(of_query), "k_lengths": np.array(of_key)}
        found = model.session.run(None, feed)[0]
        inside = np.arange(max(of_query)) < np.array(of_query)[:, None]
        np.testing.assert_allclose(found[inside], np.asarray(function(*own)), rtol=1e-5, atol=1e-6)


def test_causal_attention(tmp_path):
    def function(x):
        parts = [x.reshape(-1, 2, 2)] * 3
        return F.scaled_dot_product_attention(*parts, is_causal=True, scale=0.3).reshape(-1, 4)

    model = Exported(function, tmp_path / "model.onnx", **X)
    for lengths in LENGTHS:
        model.check(lengths, x=rows_of(lengths, 4))


def test_names_that_nodes_could_have(tmp_path):
    def function(**feeds):
        (x,) = feeds.values()
        found = [x * 2.0, x + 1.0, -x, F.tanh(x)]
        for number, variable in enumerate(found):
            variable.name = f"constant/{number}"
        return found

    model = Exported(function, tmp_path / "a.onnx", **{"Gather/3": X["x"]})
    model.check((2, 0, 3), **{"Gather/3": rows_of((2, 0, 3), 4)})


@pytest.mark.parametrize("module", [vr.nn.LSTM(4, 5), vr.nn.Linear(4, 5)], ids=["LSTM", "Linear"])
def test_a_module_gets_the_code_that_records_it(module, tmp_path):
    path = tmp_path / "a.onnx"
    with pytest.raises(vr.ProgramError, match=r"expected a Program, got L[A-Za-z]+ \(record a call of it") as raised:
        vo.export(module, path)
    names = {"vr": vr, "model": module, "path": path}
    for code in str(raised.value.hint).split("`")[1::2]:
        exec(code, names)
    assert onnxruntime.InferenceSession(path).get_outputs()[0].name == names["y"].name


def test_fetches_of_a_pruned_program(tmp_path):
    with vr.program_guard() as program:
        y = vr.nn.Linear(4, 5)(vr.feed_data("x", [-1, 4], "float32"))
    with pytest.raises(vr.ProgramError, match=r"fetches: expected a list of Variables or names, got none \(.*\[y\]"):
        vo.export(program, tmp_path / "a.onnx")
    vo.export(program.prune([y]), tmp_path / "a.onnx")
    assert [output.name for output in onnxruntime.InferenceSession(tmp_path / "a.onnx").get_outputs()] == [y.name]


def test_what_onnx_cannot_say(tmp_path):
    def refused(function, message, **feeds):
        with vr.program_guard() as program:
            found = function(**{name: vr.feed_data(name, *described) for name, described in feeds.items()})
        with pytest.raises(vr.ProgramError, match=message):
            vo.export(program, tmp_path / "model.onnx", [found])
        assert not list(tmp_path.iterdir())

    cell = find_cell("indrnn")
    refused(lambda x: vr.sequence_concat([x, x]) + vr.sequence_cumsum(x), "sequence_concat, sequence_cumsum", **X)
    refused(lambda x: vr.nn.Recurrent(cell, 4, 5)(x)[0], r"recurrent \(the cell 'indrnn', which ONNX lacks\)", **X)
    refused(lambda x: vr.nn.LSTM(4, 5, proj_size=2)(x)[0], "a projection", **X)
    refused(lambda x: vr.nn.LSTM(4, 5, cell_clip=1.0)(x)[0], r"the cell 'lstm\(cell_clip=1.0\)'", **X)
    refused(lambda x: x.sum(axis=0), "reduce_sum over the rows of sequences", **X)
    refused(lambda x: x * 2.0, "a tensor of at most one level, got 2 levels", x=([-1, 4], "float32", 2))
    refused(lambda x: x.reshape(-1, 2), r"reshape \(rows with a LoD become other rows", **X)
    refused(lambda x: x[:, 0] + x, r"add \(rows with a LoD, of different ranks", **X)
    y = {"x_lengths": ([-1, 4], "float32")}
    refused(
        lambda x, x_lengths: vr.sequence_pool(x, "sum") + x_lengths, "no other variable named 'x_lengths'", **X, **y
    )
    with pytest.raises(vr.ProgramError, match="a Program, got str"):
        vo.export("a", tmp_path / "a", [])


def test_without_onnx(monkeypatch, tmp_path):
    import sys

    monkeypatch.setitem(sys.modules, "onnx", None)
    with vr.program_guard() as program:
        out = vr.feed_data("x", [-1], "float32") * 2.0
    with pytest.raises(vr.ProgramError, match="pip install onnx"):
        vo.export(program, tmp_path / "model.onnx", [out])
