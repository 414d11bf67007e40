"""One-node models of every operator that `onnx.load` reads, with each attribute and each input damaged in turn.

A node is placed behind an LSTM, on its rows `y` or its last state `h`, or before it, on the input `x`.
"""

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

import varlen_rnn as vr
from varlen_rnn.onnx.nodes import READS
from varlen_rnn.onnx.table import NODES
from varlen_rnn.tape.operator import OPERATORS

SIZE = 3
LAYERS = ("RNN", "GRU", "LSTM")
NEW = ("CausalConvWithState", "LinearAttention")  # since opset 27
ALONE = LAYERS + NEW  # kinds without an LSTM before or behind them
ELEMENTWISE = {op.onnx for op in OPERATORS.values() if op.onnx} - READS.keys()
KINDS = sorted(READS.keys() | ELEMENTWISE | {kind for kind, _ in NODES.values()})
ROWS = vr.create_lod_tensor(np.linspace(-1, 1, 5 * SIZE, dtype=np.float32).reshape(5, SIZE), [[3, 0, 2]])
IT = object()  # the value that the node is placed on
VECTOR = np.linspace(0.5, 1, SIZE, dtype=np.float32)
ints = lambda *numbers: np.array(numbers, np.int64)
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def _weights(kind):
    """Return the inputs of a recurrent node behind its first."""
    gates, number = GATES[kind], np.float32(0.1)
    shapes = [(1, gates * SIZE, SIZE), (1, gates * SIZE, SIZE), (1, 2 * gates * SIZE)]
    found = [np.full(shape, number) for shape in shapes]
    states = [np.full((1, 3, SIZE), number)] * (1 + (kind == "LSTM"))
    return [*found, None, *states, *([np.full((1, 3 * SIZE), number)] if kind == "LSTM" else [])]


# The inputs and the attributes of a whole node.  An operator that is not listed takes one input.
WHOLE = {
    **{kind: ([IT, VECTOR], {}) for kind in ("Add", "Sub", "Mul", "Div", "Max", "Min")},
    **{kind: ([IT, VECTOR], {}) for kind in ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal")},
    **{kind: ([IT, np.array([True, False, True])], {}) for kind in ("And", "Or")},
    "Where": ([np.array([True, False, True]), IT, VECTOR], {}),
    "Elu": ([IT], {"alpha": 0.5}),
    "LeakyRelu": ([IT], {"alpha": 0.5}),
    "Cast": ([IT], {"to": TensorProto.DOUBLE}),
    "Dropout": ([IT, np.float32(0.5), np.array(False)], {"seed": 1}),
    "MatMul": ([IT, np.eye(SIZE, dtype=np.float32)], {}),
    "Gemm": ([IT, np.eye(SIZE, dtype=np.float32), VECTOR], {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 1}),
    "Softmax": ([IT], {"axis": -1}),
    "LogSoftmax": ([IT], {"axis": -1}),
    "LayerNormalization": ([IT, VECTOR, VECTOR], {"axis": -1, "epsilon": 1e-5, "stash_type": 1}),
    "Conv": ([IT, np.eye(SIZE, dtype=np.float32)[..., None], VECTOR], {"group": 1, "pads": [0, 0], "strides": [1]}),
    "Pad": ([IT, ints(0, 0, 1, 0, 0, 1)], {"mode": "constant"}),
    "Pow": ([IT, np.float32(2)], {}),
    "Split": ([IT, ints(3)], {"axis": -1}),
    "Gather": ([IT, ints(1)], {"axis": -1}),
    "Slice": ([IT, ints(0), ints(2), ints(-1), ints(1)], {}),
    "Concat": ([IT, IT], {"axis": -1}),
    "Transpose": ([IT], {"perm": [0, 1, 2]}),
    "Squeeze": ([IT, ints(1)], {}),
    "Unsqueeze": ([IT, ints(1)], {}),
    "Reshape": ([IT, ints(0, 0, -1)], {"allowzero": 0}),
    "Flatten": ([IT], {"axis": 1}),
    "ArgMax": ([IT], {"axis": -1, "keepdims": 0, "select_last_index": 0}),
    **{kind: ([IT], {"axes": [-1], "keepdims": 0}) for kind in ("ReduceMean", "ReduceMax", "ReduceMin")},
    "ReduceSum": ([IT, ints(-1)], {"keepdims": 0, "noop_with_empty_axes": 0}),
    "LinearAttention": (
        [IT, IT, IT, np.full((3, SIZE, 1, 1), np.float32(0.1)), IT, IT],
        {"q_num_heads": SIZE, "kv_num_heads": SIZE, "update_rule": "gated_delta", "scale": 0.5, "chunk_size": 64},
    ),
    "CausalConvWithState": (
        [IT, np.ones((SIZE, 1, 2), np.float32), VECTOR, np.ones((3, SIZE, 1), np.float32)],
        {"activation": "silu"},
    ),
    **{kind: ([IT, *_weights(kind)], {"hidden_size": SIZE, "direction": "forward"}) for kind in LAYERS},
}
BOOLS = ("And", "Or", "Not")  # these are placed on a comparison of the value


def opset_of(kind):
    """Return the opset of models with a kind of node."""
    return 27 if kind in NEW else 17


def whole(kind):
    """Return copies of the inputs and the attributes of a whole node."""
    inputs, attributes = WHOLE.get(kind, ([IT], {}))
    return list(inputs), dict(attributes)


def _attribute(name, field, value, type_=None):
    """Return an attribute whose type need not fit its content."""
    found = AttributeProto(name=name, type=field if type_ is None else type_)
    for part, types in (("i", [2]), ("f", [1]), ("s", [3])):
        if field in types:
            setattr(found, part, value)
    for part, types in (("ints", [7]), ("floats", [6]), ("strings", [8])):
        if field in types:
            getattr(found, part).extend(value)
    if field == AttributeProto.TENSOR:
        found.t.CopyFrom(numpy_helper.from_array(value))
    if field == AttributeProto.GRAPH:
        found.g.CopyFrom(helper.make_graph([], "empty", [], []))
    return found


FLOAT, INT, STRING, TENSOR, GRAPH, FLOATS, INTS, STRINGS = range(1, 9)
ATTRIBUTES = [
    *((INT, number) for number in (0, 1, 2, -1, 7, -8, 99, 2**62, -(2**63))),
    *(
        (INTS, numbers)
        for numbers in ([], [0], [-1], [9], [0, 0], [2, 1, 0], [2**62], [-(2**63)], [0, 1, 2, 3], [-9, 1])
    ),
    *((FLOAT, number) for number in (0.5, -1.0, float("nan"), float("inf"))),
    *((FLOATS, numbers) for numbers in ([], [0.5], [float("nan")] * 3)),
    *((STRING, text) for text in (b"", b"a", b"\xff", b"reverse", b"bidirectional")),
    *((STRINGS, texts) for texts in ([], [b"a"], [b"\xff"], [b"Tanh"], [b"Relu"] * 5)),
    (TENSOR, np.zeros(2, np.float32)),
    (GRAPH, None),
]
HALF = np.float16(0.5)
INPUTS = [
    None, np.zeros(0, np.float32), np.array("a", object), np.array(["a", "b", "c"], object), np.array([], object),
    ints(), ints(0), ints(-1), ints(7), ints(-8), ints(2**62), ints(-(2**63)), ints(0, 0), ints(0, 1, 2), ints(-1, -1),
    ints(2, 1, 0), ints(0, 0, 0, 0, 0, 0), np.array(1), np.array(-9), np.array([[0]]), np.array([[[2]]]),
    np.array([0], np.int32), np.array([2**63], np.uint64), np.array([1], np.uint8), np.array(True),
    np.array([True, False]), np.array(2**62),
    np.float32("nan"), np.float32("inf"), np.full(3, np.nan, np.float32), VECTOR, VECTOR[None], VECTOR[:2], VECTOR[:1],
    np.ones((2, 2), np.float32), np.ones((3, 3), np.float32), np.ones((2, 3, 3), np.float32), np.float32(1),
    np.ones((1, 1, 1, 1, 1, 3), np.float32), np.ones((0, 3), np.float32), VECTOR.astype(np.float64),
    np.array([HALF] * 3), np.array([1j] * 3, np.complex64), np.array(-1.5), np.array([1.5, 0.5]), "x", "y", "h", "free",
    "shape", "lengths", "zeros",
]  # fmt: skip


def models(kind) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Yield each damaged model of a kind of node, with words that name the damage."""
    names = [*onnx.defs.get_schema(kind, opset_of(kind)).attributes, "nobody"]
    for place in ("x",) if kind in ALONE else ("h",) if kind == "Conv" else ("y", "h", "x"):
        inputs, attributes = whole(kind)
        yield f"{place}, whole", model(kind, place, inputs, attributes)
        for name in names:
            for field, value in ATTRIBUTES:
                broken = attributes | {name: _attribute(name, field, value)}
                yield f"{place}, {name}={value!r} ({field})", model(kind, place, inputs, broken)
            for wrong in (INT, INTS, STRING, FLOAT, TENSOR):
                broken = attributes | {name: _attribute(name, INTS, [1], wrong)}
                yield f"{place}, {name} of type {wrong} with integers", model(kind, place, inputs, broken)
            if name in attributes:
                less = {key: value for key, value in attributes.items() if key != name}
                yield f"{place}, no {name}", model(kind, place, inputs, less)
        for number in range(len(inputs) + 1):
            yield f"{place}, {number} inputs", model(kind, place, inputs[:number], attributes)
            for value in INPUTS:
                broken = [*inputs[:number], value, *inputs[number + 1 :]]
                yield f"{place}, input {number} is {value!r}", model(kind, place, broken, attributes)
        for outputs in (["", "other"], ["z", "other"], ["z", "a", "b", "c", "d"]):
            yield f"{place}, outputs {outputs}", model(kind, place, inputs, attributes, outputs)


def model(kind, place, inputs, attributes, outputs=("z",)):
    """Return a model of an LSTM and a node of a kind, which gets arrays, names of values, or IT."""
    outputs = ("z", "last") if kind in NEW and len(outputs) == 1 else outputs  # both are required
    gates = {f"{name}0": array for name, array in zip("wrb", _weights("LSTM")[:3], strict=True)}
    arrays, names, nodes = dict(gates), [], []
    layer = helper.make_node("LSTM", ["x" if place != "x" else "z", *gates], ["y", "h", "c"], hidden_size=SIZE)
    it = place
    if kind in BOOLS:
        it, arrays["nought"] = "bool", np.float32(0)
        nodes.append(helper.make_node("Greater", [place, "nought"], ["bool"]))
    if kind == "Conv":  # (sequences, channels, 1)
        it = "across"
        nodes.append(helper.make_node("Transpose", [place], ["across"], perm=[1, 2, 0]))
    if kind == "CausalConvWithState":  # (sequences, channels, steps)
        it = "across"
        nodes.append(helper.make_node("Transpose", [place], ["across"], perm=[0, 2, 1]))
    for number, value in enumerate(inputs):
        if isinstance(value, (np.ndarray, np.generic)):
            names.append(f"input{number}")
            arrays[names[-1]] = np.asarray(value)
        else:
            names.append(it if value is IT else value or "")
    nodes.append(_node(kind, names, list(outputs), attributes))
    more = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("ConstantOfShape", ["shape"], ["zeros"]),
    ]
    alone = kind in ALONE
    nodes = [*more, *nodes] if alone else [*more, *nodes, layer] if place == "x" else [layer, *more, *nodes]
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, None, SIZE])]
    used = {name for node in nodes for name in node.input}
    given += [helper.make_tensor_value_info("free", TensorProto.FLOAT, [None, SIZE])] * ("free" in used)
    given += [helper.make_tensor_value_info("lengths", TensorProto.INT32, [None])] * ("lengths" in used)
    found = "h" if place == "x" and not alone else next(filter(None, outputs), "z")
    graph = helper.make_graph(
        nodes, "model", given, [helper.make_tensor_value_info(found, TensorProto.FLOAT, [None])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset_of(kind))], ir_version=8)


def _node(kind, names, outputs, attributes):
    plain = {name: value for name, value in attributes.items() if not isinstance(value, AttributeProto)}
    node = helper.make_node(kind, names, outputs, name="the_node", **plain)
    node.attribute.extend(value for value in attributes.values() if isinstance(value, AttributeProto))
    return node
