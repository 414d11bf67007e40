"""Models of ONNX as programs over rows: onnxruntime's numbers on ragged batches, PyTorch's own exports, refusals."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import varlen_rnn as vr
import varlen_rnn.onnx as vo
from tests.test_onnx_layers import draw, places

COUNT = 60


def saved(path, nodes, inputs, outputs, constants, opset=17):
    """Write a model: its inputs are (name, type, shape), its constants arrays by name."""
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info(*item) for item in inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * rank) for name, rank in outputs],
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def run_theirs(path, feed):
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, feed)


def rows_of(padded, lengths, axes=(0, 1)):
    """Return the rows of a padded array whose axes of sequences and steps are given."""
    by_sequence = np.moveaxis(padded, axes, (0, 1))
    return np.concatenate([part[:length] for part, length in zip(by_sequence, lengths, strict=True)])


@pytest.mark.parametrize("seed", range(COUNT))
def test_recurrent_nodes(seed, tmp_path):
    kind, attributes, inputs = draw(seed)
    lengths = inputs["sequence_lens"]
    if lengths is None:
        lengths = np.full(inputs["X"].shape[1], inputs["X"].shape[0], np.int32)
    names = [name if inputs.get(name) is not None else "" for name in places(kind)]
    outputs = ["Y", "Y_h", *(["Y_c"] if kind == "LSTM" else [])]
    node = helper.make_node(kind, names, outputs, **attributes)
    fed = [name for name in ("X", "sequence_lens", "initial_h", "initial_c") if inputs.get(name) is not None]
    kinds = {name: TensorProto.INT32 if name == "sequence_lens" else TensorProto.FLOAT for name in fed}
    free = {name: [None] * inputs[name].ndim for name in fed}
    free["X"] = [None, None, inputs["X"].shape[2]]
    declared = [(name, kinds[name], free[name] if name == "X" else list(inputs[name].shape)) for name in fed]
    constants = {name: inputs[name] for name in ("W", "R", "B", "P") if inputs.get(name) is not None}
    path = saved(
        tmp_path / "a.onnx", [node], declared, [(name, 4 if name == "Y" else 3) for name in outputs], constants
    )
    wanted = run_theirs(path, {name: inputs[name] for name in fed})
    program = vo.load(path)
    assert program.feed_names == [name for name in fed if name != "sequence_lens"]
    feed = {name: inputs[name] for name in program.feed_names}
    feed["X"] = vr.create_lod_tensor(rows_of(inputs["X"], lengths, (1, 0)), [lengths])
    y, *last = vr.Executor().run(program, feed=feed)
    np.testing.assert_allclose(y, rows_of(wanted[0], lengths, (2, 0)), rtol=1e-5, atol=2e-6)
    full = lengths > 0  # of sequences without rows, ONNX has zeros for last states
    for found, right in zip(last, wanted[1:], strict=True):
        np.testing.assert_allclose(np.asarray(found)[:, full], right[:, full], rtol=1e-5, atol=2e-6)


def test_what_we_exported(tmp_path):
    table, lstm = vr.nn.Embedding(20, 4), vr.nn.LSTM(4, 5, num_layers=2, bidirectional=True)
    output, norm = vr.nn.Linear(10, 3), vr.nn.LayerNorm(10)
    with vr.program_guard() as program:
        ids = vr.feed_data("ids", [-1], "int64", lod_level=1)
        y, (h_n, _) = lstm(table(ids))
        scores = vr.nn.functional.softmax(output(norm(y)))
    vo.export(program, tmp_path / "a.onnx", [h_n])
    again = vo.load(tmp_path / "a.onnx")
    batch = vr.create_lod_tensor(np.arange(8), [[3, 1, 4]])
    executor = vr.Executor()
    assert again.feed_names == ["ids"]
    np.testing.assert_allclose(
        *(executor.run(p, {"ids": batch}, [n])[0] for p, n in ((program, h_n.name), (again, again.fetch_names[0]))),
        rtol=1e-5,
        atol=1e-6,
    )
    vo.export(program, tmp_path / "b.onnx", [scores])
    with pytest.raises(vr.ProgramError, match="of a shape or of lengths"):  # the mask of the padding, which is not here
        vo.load(tmp_path / "b.onnx")


torch = pytest.importorskip("torch")


class Tagger(torch.nn.Module):
    def __init__(self, kind, batch_first, both):
        super().__init__()
        self.table = torch.nn.Embedding(20, 4)
        self.layer = getattr(torch.nn, kind)(4, 5, num_layers=2, batch_first=batch_first, bidirectional=both)
        self.norm = torch.nn.LayerNorm(5 * (1 + both))
        self.behind = torch.nn.Linear(5 * (1 + both), 3)

    def forward(self, ids):
        y, _ = self.layer(self.table(ids))
        return torch.log_softmax(self.behind(torch.relu(self.norm(y))), dim=-1)


class Classifier(torch.nn.Module):
    def __init__(self, kind, batch_first, both):
        super().__init__()
        self.both, self.layer = both, getattr(torch.nn, kind)(4, 5, batch_first=batch_first, bidirectional=both)
        self.behind = torch.nn.Sequential(torch.nn.Linear(5 * (1 + both), 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))

    def forward(self, x):
        last = self.layer(x)[1]
        last = last[0] if isinstance(last, tuple) else last
        return self.behind(torch.cat([last[-2], last[-1]], dim=1) if self.both else last[-1])


@pytest.mark.filterwarnings("ignore")  # of torch's exporter
@pytest.mark.parametrize("model", [Tagger, Classifier])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize(("batch_first", "both"), [(True, False), (False, True), (True, True)])
def test_what_pytorch_exports(model, kind, batch_first, both, tmp_path):
    torch.manual_seed(0)
    module = model(kind, batch_first, both).eval()
    lengths, path = [5, 2, 3], tmp_path / "model.onnx"
    sequences = [torch.randint(20, (n,)) if model is Tagger else torch.randn(n, 4) for n in lengths]
    example = torch.stack([sequences[0], sequences[0]], dim=0 if batch_first else 1)
    dynamic = {"x": {0: "a", 1: "b"}}
    torch.onnx.export(
        module, (example,), str(path), input_names=["x"], output_names=["y"], dynamic_axes=dynamic, dynamo=False
    )
    program = vo.load(path)
    assert (program.feed_names, len(program.fetch_names)) == (["x"], 1)
    rows = vr.create_lod_tensor(torch.cat(sequences).numpy(), [lengths])
    (found,) = vr.Executor().run(program, feed={"x": rows})
    with torch.no_grad():
        alone = [module(sequence[None] if batch_first else sequence[:, None]) for sequence in sequences]
    if model is Tagger:
        wanted = torch.cat([part[0] if batch_first else part[:, 0] for part in alone])
        assert found.lod() == rows.lod()
    else:
        wanted = torch.cat(alone)
    np.testing.assert_allclose(np.asarray(found), wanted.numpy(), rtol=1e-5, atol=1e-6)
    program.save(tmp_path / "a.safetensors")
    (again,) = vr.Executor().run(vr.Program.load(tmp_path / "a.safetensors"), feed={"x": rows})
    assert np.array_equal(again, found)


def test_refusals(tmp_path):
    w, r = np.ones((1, 5, 4), np.float32), np.ones((1, 5, 5), np.float32)
    layer = helper.make_node("RNN", ["x", "w", "r"], ["y", "h"], hidden_size=5)
    x, y = ("x", TensorProto.FLOAT, [None, None, 4]), [("z", 3)]
    constants = {"w": w, "r": r}

    def refused(message, *nodes, more=None):
        path = saved(tmp_path / "a.onnx", nodes, [x], y, constants | (more or {}))
        with pytest.raises(vr.ProgramError, match=message):
            vo.load(path)

    mean = helper.make_node("ReduceMean", ["y"], ["z"], axes=[0])
    refused("ReduceMean 'z' over steps", layer, mean)
    refused("CumSum", layer, helper.make_node("CumSum", ["y", "axis"], ["z"]), more={"axis": np.array(0)})
    odd = helper.make_node("RNN", ["x", "w", "r"], ["y", "h"], hidden_size=5, activations=["Elu2"])
    refused("with the activation Elu2", odd, helper.make_node("Relu", ["h"], ["z"]))
    several = [helper.make_node("CumSum", ["y", "axis"], ["a"]), helper.make_node("Hardmax", ["y"], ["b"])]
    refused(
        r"got CumSum 'a', Hardmax 'b' \(docs",
        layer,
        *several,
        helper.make_node("Add", ["a", "b"], ["z"]),
        more={"axis": np.array(0)},
    )
    (tmp_path / "b.onnx").write_bytes(b"no model")
    with pytest.raises(vr.ProgramError, match="a model of ONNX"):
        vo.load(tmp_path / "b.onnx")
    with pytest.raises(FileNotFoundError):
        vo.load(tmp_path / "c.onnx")
    path = saved(tmp_path / "d.onnx", [layer, helper.make_node("Relu", ["h"], ["z"])], [x], y, constants, opset=9)
    with pytest.raises(vr.ProgramError, match="opset 13 to 28, got 9"):
        vo.load(path)


NODE = helper.make_node
GATES = {"w": np.ones((1, 20, 4), np.float32), "r": np.ones((1, 20, 5), np.float32), "b": np.ones((1, 40), np.float32)}
ROWS = vr.create_lod_tensor(np.linspace(-1, 1, 20, dtype=np.float32).reshape(5, 4), [[3, 2]])


def lstm_and(path, nodes, outputs, before=(), inputs=(), constants=None, domain="", names="xwrb", **attributes):
    """Write a model of an LSTM, whose outputs are y, h and c, and of nodes before and after it."""
    layer = helper.make_node("LSTM", list(names), ["y", "h", "c"], hidden_size=5, domain=domain, **attributes)
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, None, 4]), *inputs]
    found = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None]) for name in outputs]
    arrays = [onnx.numpy_helper.from_array(array, name) for name, array in (GATES | (constants or {})).items()]
    graph = helper.make_graph([*before, layer, *nodes], "model", given, found, arrays)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("theirs", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def test_activations_after_a_layer(tmp_path):
    nodes = [
        helper.make_node("LeakyRelu", ["y"], ["leaky"]),
        helper.make_node("Elu", ["h"], ["elu"], alpha=0.5),
        helper.make_node("Softplus", ["c"], ["plus"]),
    ]
    path = lstm_and(tmp_path / "a.onnx", nodes, ["leaky", "elu", "plus"])
    one = vr.create_lod_tensor(ROWS.data, [[5]])
    program = vo.load(path)
    for found, wanted in zip(
        vr.Executor().run(program, {"x": one}), run_theirs(path, {"x": one.data[:, None]}), strict=True
    ):
        found = getattr(found, "data", found)
        np.testing.assert_allclose(np.ravel(found), np.ravel(wanted), rtol=1e-5, atol=1e-6)


REDUCTIONS = {
    "ArgMax": {"axis": -1, "keepdims": 0},
    "ReduceMax": {"axes": [-1], "keepdims": 0},
    "ReduceMean": {"axes": [3], "keepdims": 1},
    "ReduceMin": {"axes": [-1], "keepdims": 1},
}


@pytest.mark.parametrize("kind", REDUCTIONS)
def test_reductions_after_a_layer(kind, tmp_path):
    of_h = REDUCTIONS[kind] | ({"axis": 2} if kind == "ArgMax" else {"axes": [2]})
    nodes = [NODE(kind, ["y"], ["first"], **REDUCTIONS[kind]), NODE(kind, ["h"], ["second"], **of_h)]
    nodes += [
        NODE("Cast", ["first"], ["of_y"], to=TensorProto.FLOAT),
        NODE("Cast", ["second"], ["of_h"], to=TensorProto.FLOAT),
    ]
    path = lstm_and(tmp_path / "a.onnx", nodes, ["of_y", "of_h"])
    given = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    found = vr.Executor().run(vo.load(path), {"x": vr.create_lod_tensor(given, [[5]])})
    theirs = run_theirs(path, {"x": given[:, None]})
    for ours, wanted in zip(found, theirs, strict=True):
        np.testing.assert_allclose(np.ravel(getattr(ours, "data", ours)), np.ravel(wanted), rtol=1e-5, atol=1e-6)
    assert found[0].lod() == [[0, 5]]
    over_steps = {"axis": 0} if kind == "ArgMax" else {"axes": [0]}
    path = lstm_and(tmp_path / "b.onnx", [NODE(kind, ["y"], ["z"], **over_steps)], ["z"])
    with pytest.raises(vr.ProgramError, match=f"{kind} 'z' over steps"):
        vo.load(path)


def test_outputs_have_the_names_of_the_model(tmp_path):
    copies = [helper.make_node("Identity", ["h"], [name]) for name in ("add", "recurrent.h_n")]
    copies.append(helper.make_node("Identity", ["x"], ["same"]))
    names = ["add", "h", "recurrent.h_n", "same", "x"]
    program = vo.load(lstm_and(tmp_path / "a.onnx", copies, names))
    assert (program.feed_names, program.fetch_names) == (["x"], names)
    first, second, third, same, x = vr.Executor().run(program, feed={"x": ROWS})
    assert np.array_equal(first, second)
    assert np.array_equal(first, third)
    assert np.array_equal(same, ROWS)
    assert np.array_equal(x, ROWS)


@pytest.mark.parametrize(
    ("shape", "wanted"), [((0, -1), (1, 10)), ((0, 0, -1), (1, 2, 5)), ((-1, 5), (2, 5)), (None, (1, 10))]
)
def test_shapes_of_which_a_run_tells_a_size(shape, wanted, tmp_path):
    node = helper.make_node("Flatten", ["h"], ["z"])
    if shape:
        node = helper.make_node("Reshape", ["h", "shape"], ["z"])
    constants = {"shape": np.array(shape or 0)}
    (found,) = vr.Executor().run(
        vo.load(lstm_and(tmp_path / "a.onnx", [node], ["z"], constants=constants)), {"x": ROWS}
    )
    assert found.shape == wanted


REFUSED = {
    "Add 'z' of the domain 'theirs'": {"nodes": [NODE("Add", ["h", "c"], ["z"], domain="theirs")]},
    "LSTM 'y' of the domain 'theirs'": {"domain": "theirs", "nodes": [NODE("Relu", ["h"], ["z"])]},
    "random numbers": {"nodes": [NODE("RandomNormal", [], ["a"], shape=[1]), NODE("Add", ["h", "a"], ["z"])]},
    "Dropout 'z' in training": {
        "nodes": [NODE("Dropout", ["h", "ratio", "on"], ["z"])],
        "constants": {"ratio": np.float32(0.5), "on": np.array(True)},
    },
    "an output that can be loaded": {"nodes": [NODE("Dropout", ["h"], ["a", "m"]), NODE("Cast", ["m"], ["z"], to=1)]},
    "over axes other than the last": {
        "nodes": [NODE("LayerNormalization", ["h", "scale"], ["z"], axis=1)],
        "constants": {"scale": np.ones(5, np.float32)},
    },
    "Squeeze 'z' of an axis of size 5": {
        "nodes": [NODE("Squeeze", ["y", "axes"], ["z"])],
        "constants": {"axes": np.array([3])},
    },
    "Transpose": {
        "before": [NODE("Transpose", ["x"], ["a"])],
        "names": "awrb",
        "nodes": [NODE("Relu", ["h"], ["z"])],
    },
    "lengths that are constants": {
        "names": ["x", "w", "r", "b", "lengths"],
        "nodes": [NODE("Relu", ["h"], ["z"])],
        "constants": {"lengths": np.array([1, 1], np.int32)},
    },
    "the direction 'sideways'": {"direction": "sideways", "nodes": [NODE("Relu", ["h"], ["z"])]},
    r"W is \(1, 20, 4\) float32, not \(2, 20, 4\)": {
        "direction": "bidirectional",
        "nodes": [NODE("Relu", ["h"], ["z"])],
    },
    r"W is \(20, 4\)": {"nodes": [NODE("Relu", ["h"], ["z"])], "constants": {"w": GATES["w"][0]}},
    r"B is \(1, 7\)": {"nodes": [NODE("Relu", ["h"], ["z"])], "constants": {"b": GATES["b"][:, :7]}},
    r"R is \(1, 20, 5\) float64": {"nodes": [NODE("Relu", ["h"], ["z"])], "constants": {"r": np.ones((1, 20, 5))}},
    "ConstantOfShape 'a' of constants": {
        "nodes": [NODE("ConstantOfShape", ["shape"], ["a"]), NODE("Add", ["h", "a"], ["z"])],
        "constants": {"shape": np.array([2**60, 2**60])},
    },
    "a tensor, got sequence_type": {
        "nodes": [NODE("Relu", ["h"], ["z"])],
        "inputs": [helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, [None])],
    },
    "Add 'a' of a padded batch and a computed value without sequences": {
        "before": [NODE("Add", ["x", "v"], ["a"])],
        "names": "awrb",
        "nodes": [NODE("Relu", ["h"], ["z"])],
        "inputs": [helper.make_tensor_value_info("v", TensorProto.FLOAT, [4])],
    },
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_would_be_read_wrong_is_refused(message, tmp_path):
    path = lstm_and(tmp_path / "a.onnx", outputs=["z"], **REFUSED[message])
    with pytest.raises(vr.ProgramError, match=message):
        vo.load(path)


def damaged(kind):
    """Return a model of which one part is damaged, as no writer makes it and the checker lets it pass."""
    w, r = np.ones((1, 5, 4), np.float32), np.ones((1, 5, 5), np.float32)
    zeros = onnx.numpy_helper.from_array(np.zeros(1, np.float32), "zeros")
    nodes = [
        helper.make_node("RNN", ["x", "w", "r"], ["y", "h"], hidden_size=5),
        helper.make_node("Shape", ["h"], ["size"]),
        helper.make_node("ConstantOfShape", ["size"], ["nothing"], value=zeros),
        helper.make_node("Cast", ["h"], ["cast"], to=TensorProto.DOUBLE),
    ]
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, None, 4])]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * 3) for name in ("cast", "nothing")]
    constants = [onnx.numpy_helper.from_array(array, name) for name, array in (("w", w), ("r", r))]
    graph = helper.make_graph(nodes, "model", given, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    tensors = {"w": model.graph.initializer[0], "zeros": model.graph.node[2].attribute[0].t}
    if kind == "input":
        model.graph.input[0].type.tensor_type.elem_type = 99
    elif kind == "cast":
        model.graph.node[3].attribute[0].i = 99
    else:
        name, how = kind.split()
        if how == "long":
            tensors[name].raw_data += b"four"
        elif how == "short":
            tensors[name].raw_data = tensors[name].raw_data[:-4]
        else:
            tensors[name].data_type = 99
    return model


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("w long", r"tensor 'w': expected numbers of shape \[1, 5, 4\] and type FLOAT, got "),
        ("w short", "onnx.load"),  # newer checkers of ONNX know it
        ("w unknown", r"tensor 'w': expected numbers of shape \[1, 5, 4\] and type 99, got "),
        ("zeros long", r"tensor 'zeros': expected numbers of shape \[1\] and type FLOAT, got "),
        ("zeros unknown", r"tensor 'zeros': expected numbers of shape \[1\] and type 99, got "),
        ("input", "input 'x': expected a data type of ONNX, got 99"),
        ("cast", "got Cast 'cast' to the data type 99"),
    ],
)
def test_a_damaged_model_is_an_error_of_ours(kind, message, tmp_path):
    (tmp_path / "a.onnx").write_bytes(damaged(kind).SerializeToString())
    with pytest.raises(vr.ProgramError, match=message):
        vo.load(tmp_path / "a.onnx")


def nested(tmp_path, *behind):
    """Write a model whose LSTM is in a branch of an If."""
    branch = helper.make_graph(
        [helper.make_node("LSTM", ["x", "w", "r", "b"], ["", "found"], hidden_size=5, name="inner")],
        "branch",
        [],
        [helper.make_tensor_value_info("found", TensorProto.FLOAT, [None, None, 5])],
    )
    node = helper.make_node("If", ["on"], ["z"], name="choice", then_branch=branch, else_branch=branch)
    inputs = [("x", TensorProto.FLOAT, [None, None, 4]), ("on", TensorProto.BOOL, [])]
    return saved(tmp_path / "a.onnx", [node, *behind], inputs, [("z", 3)], GATES)


def test_a_layer_inside_of_a_node(tmp_path):
    open_ = r"If 'choice' \(its condition is known only in a run: .*it has LSTM 'inner' in [a-z]+_branch of If 'choice'"
    with pytest.raises(vr.ProgramError, match=open_):
        vo.load(nested(tmp_path))
    (found,) = vr.Executor().run(vo.load(nested(tmp_path), fixed={"on": True}), {"x": ROWS})
    x = np.stack([np.pad(ROWS.data[:3], ((0, 0), (0, 0))), np.pad(ROWS.data[3:], ((0, 1), (0, 0)))], axis=1)
    (wanted,) = run_theirs(nested(tmp_path), {"x": x[:, :1], "on": np.array(True)})
    np.testing.assert_allclose(found[:, :1], wanted, rtol=1e-5, atol=1e-6)
    assert found.shape == (1, 2, 5)


@pytest.mark.parametrize("captures", [False, True])
def test_a_choice_among_constants_is_made_while_loading(captures, tmp_path):
    out = helper.make_tensor_value_info("factor", TensorProto.FLOAT, None)
    number = onnx.numpy_helper.from_array(np.array(2, np.float32))
    inner = NODE("Identity", ["x"], ["factor"]) if captures else NODE("Constant", [], ["factor"], value=number)
    branch = helper.make_graph([inner], "branch", [], [out])
    choice = NODE("If", ["yes"], ["factor"], name="choice", then_branch=branch, else_branch=branch)
    layer = NODE("LSTM", ["z", "w", "r", "b"], ["y"], hidden_size=5)
    inputs, constants = [("x", TensorProto.FLOAT, [None, None, 4])], GATES | {"yes": np.array(True)}
    nodes = [choice, NODE("Mul", ["x", "factor"], ["z"]), layer]
    path = saved(tmp_path / "a.onnx", nodes, inputs, [("y", 4)], constants)
    (found,) = vr.Executor().run(vo.load(path), {"x": ROWS})
    plain = saved(tmp_path / "b.onnx", [NODE("Identity", ["x"], ["z"]), layer], inputs, [("y", 4)], GATES)
    (wanted,) = vr.Executor().run(
        vo.load(plain), {"x": vr.LoDTensor(ROWS.data * (ROWS.data if captures else np.float32(2)), ROWS.structure)}
    )
    np.testing.assert_array_equal(found.data, wanted.data)


@pytest.mark.parametrize("steps", [(3, 6, 10), (-1, 6, 10), (3, -1, 10), (0, 0, 10), (3, 6, -1)])
def test_reshapes_to_the_batch_that_a_model_declares(steps, tmp_path):
    layer = NODE("LSTM", ["x", "w", "r", "b"], ["y"], hidden_size=5, direction="bidirectional")
    nodes = [layer, NODE("Transpose", ["y"], ["a"], perm=[0, 2, 1, 3]), NODE("Reshape", ["a", "shape"], ["z"])]
    constants = {name: np.concatenate([array, -array]) for name, array in GATES.items()} | {"shape": np.array(steps)}
    inputs = [("x", TensorProto.FLOAT, [3, 6, 4])]
    path = saved(tmp_path / "a.onnx", nodes, inputs, [("z", 3)], constants)
    (found,) = vr.Executor().run(vo.load(path), {"x": ROWS})
    padded = np.zeros((3, 6, 4), np.float32)
    padded[:, 0] = ROWS.data[:3]
    (wanted,) = run_theirs(path, {"x": padded})
    np.testing.assert_allclose(found.data[:3], wanted[:, 0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(6, 3, 10), (18, 10), (3, 6, 2, 6), (3, 12, 5), (6, -1, 10)])
def test_reshapes_that_mix_steps_and_sequences_are_refused(shape, tmp_path):
    layer = NODE("LSTM", ["x", "w", "r", "b"], ["y"], hidden_size=5, direction="bidirectional")
    nodes = [layer, NODE("Transpose", ["y"], ["a"], perm=[0, 2, 1, 3]), NODE("Reshape", ["a", "shape"], ["z"])]
    constants = {name: np.concatenate([array, -array]) for name, array in GATES.items()} | {"shape": np.array(shape)}
    path = saved(tmp_path / "a.onnx", nodes, [("x", TensorProto.FLOAT, [3, 6, 4])], [("z", 3)], constants)
    with pytest.raises(vr.ProgramError, match=r"Reshape 'z' to \("):
        vo.load(path)


def test_lengths_that_are_not_those_of_the_input_are_refused(tmp_path):
    lengths = helper.make_tensor_value_info("lengths", TensorProto.INT32, [None])
    less = NODE("Sub", ["lengths", "one"], ["fewer"])
    path = lstm_and(
        tmp_path / "a.onnx",
        [NODE("Relu", ["h"], ["z"])],
        ["z"],
        before=[less],
        inputs=[lengths],
        constants={"one": np.array([1], np.int32)},
        names=["x", "w", "r", "b", "fewer"],
    )
    with pytest.raises(vr.ProgramError, match="LSTM 'y' with lengths that are computed"):
        vo.load(path)


@pytest.mark.parametrize("kind", ["ConstantOfShape", "Expand", "Tile", "Range"])
def test_constants_that_fill_the_memory_are_refused(kind, tmp_path):
    many = np.array([2**20, 2**20])
    inputs = {
        "ConstantOfShape": {"shape": many},
        "Expand": {"zero": np.zeros((1, 1), np.float32), "shape": many},
        "Tile": {"zero": np.zeros((1, 1), np.float32), "times": many},
        "Range": {"first": np.float32(0), "end": np.float32(2**40), "step": np.float32(1)},
    }[kind]
    nodes = [NODE(kind, list(inputs), ["a"]), NODE("Add", ["h", "a"], ["z"])]
    path = lstm_and(tmp_path / "a.onnx", nodes, ["z"], constants=inputs)
    with pytest.raises(vr.ProgramError, match=rf"{kind} 'a' of constants \(.* bytes"):
        vo.load(path)


def test_a_squeeze_of_the_sequences_needs_one_sequence(tmp_path):
    node = NODE("Squeeze", ["h", "axes"], ["z"])
    program = vo.load(lstm_and(tmp_path / "a.onnx", [node], ["z"], constants={"axes": np.array([1])}))
    one = vr.create_lod_tensor(ROWS.data, [[5]])
    assert vr.Executor().run(program, {"x": one})[0].shape == (1, 5)
    with pytest.raises(vr.ShapeError, match="reshape"):  # the first sequence was the result
        vr.Executor().run(program, {"x": ROWS})


@pytest.mark.parametrize(("name", "axis"), [("y", 3), ("h", 2), ("h", 1)])
def test_an_index_behind_the_end_is_an_error(name, axis, tmp_path):
    node = NODE("Gather", [name, "index"], ["z"], axis=axis)
    path = lstm_and(tmp_path / "a.onnx", [node], ["z"], constants={"index": np.array([7])})
    with pytest.raises(vr.InputError, match="getitem"):  # an empty result before
        vr.Executor().run(vo.load(path), {"x": ROWS})
