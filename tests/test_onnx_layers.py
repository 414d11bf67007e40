"""What ONNX can say of RNN, GRU and LSTM runs through fused layers: its own tests, and random ones by onnxruntime."""

import importlib

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx_layers import ACTIVATIONS, DEFAULTS, DIRECTIONS, run

NODES = "test_rnn_", "test_simple_rnn_", "test_gru_", "test_lstm_"
COUNT, DESIGNS = 84, 42  # a design is a cell, which takes half a second to compile
BOUNDED = {"Tanh", "Sigmoid", "HardSigmoid", "Softsign", "ScaledTanh"}


def cases():
    """Return ONNX's own tests of these operators, by name: an import of their module makes them.

    `onnx.backend.test.loader` makes the tests of all operators, which takes six seconds.
    """
    from onnx.backend.test.case import node

    for module in ("rnn", "gru", "lstm"):
        importlib.import_module(f"{node.__name__}.{module}")
    return {case.name: case for case in node._NodeTestCases if case.name.startswith(NODES)}


CASES = cases()


@pytest.mark.parametrize("name", CASES)
def test_nodes_of_onnx(name):
    case = CASES[name]
    (node,) = case.model.graph.node
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    attributes = {key: value.decode() if isinstance(value, bytes) else value for key, value in attributes.items()}
    for given, wanted in case.data_sets:
        names = [value.name for value in case.model.graph.input]
        by_name = dict(zip(names, given, strict=True))
        inputs = {place: by_name[n] for place, n in zip(places(node.op_type), node.input, strict=False) if n}
        found = run(node.op_type, attributes, inputs)
        found = [value for value, name in zip(found, node.output, strict=False) if name]
        for got, right in zip(found, wanted, strict=True):
            np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-6)


def test_there_are_such_nodes():
    assert len(CASES) >= 18


def places(kind):
    """Return the names of the inputs of an operator, in their order."""
    return ["X", "W", "R", "B", "sequence_lens", "initial_h", *(["initial_c", "P"] if kind == "LSTM" else [])]


def draw(seed):
    """Return a kind, attributes and inputs of an operator, at random: a design, and sizes and inputs of its own."""
    rng, of_design = np.random.default_rng(seed), np.random.default_rng(seed % DESIGNS)
    kind = ("RNN", "GRU", "LSTM")[seed % 3]
    direction = list(DIRECTIONS)[of_design.integers(3)]
    count, steps, features, hidden = (int(rng.integers(1, most)) for most in (6, 7, 5, 7))
    ways, gates, per_way = len(DIRECTIONS[direction]), {"RNN": 1, "GRU": 3, "LSTM": 4}[kind], len(DEFAULTS[kind])
    attributes = {"hidden_size": hidden, "direction": direction}
    if of_design.random() < 0.7:
        names = [list(ACTIVATIONS)[k] for k in of_design.integers(len(ACTIVATIONS), size=ways * per_way)]
        attributes["activations"] = names
        alphas, betas = (sum(ACTIVATIONS[name][place] for name in names) for place in (1, 2))
        for name, number in (("activation_alpha", alphas), ("activation_beta", betas)):
            if number:
                attributes[name] = of_design.uniform(0.1, 1, number).astype(np.float32).tolist()
    if of_design.random() < 0.4:
        attributes["clip"] = float(np.float32(of_design.uniform(0.2, 2)))
    if kind == "GRU":
        attributes["linear_before_reset"] = int(of_design.integers(2))
    if kind == "LSTM":
        attributes["input_forget"] = int(of_design.integers(2))
    real = lambda *shape: rng.normal(size=shape).astype(np.float32) * np.float32(0.4)
    inputs = {
        "X": real(steps, count, features),
        "W": real(ways, gates * hidden, features),
        "R": real(ways, gates * hidden, hidden),
        "B": real(ways, 2 * gates * hidden) if rng.random() < 0.7 else None,
        "sequence_lens": rng.integers(1, steps + 1, count).astype(np.int32) if rng.random() < 0.7 else None,
        "initial_h": real(ways, count, hidden) if rng.random() < 0.6 else None,
    }
    if kind == "LSTM":
        inputs["initial_c"] = real(ways, count, hidden) if rng.random() < 0.6 else None
        inputs["P"] = real(ways, 3 * hidden) if of_design.random() < 0.5 else None
    if inputs["sequence_lens"] is not None:
        inputs["sequence_lens"][rng.integers(count)] = steps
    return kind, attributes, inputs


def by_onnxruntime(kind, attributes, inputs):
    """Return what onnxruntime gives."""
    given = {name: value for name, value in inputs.items() if value is not None}
    names = [name if name in given else "" for name in places(kind)]
    while not names[-1]:
        names.pop()
    outputs = ["Y", "Y_h", "Y_c"][: 3 if kind == "LSTM" else 2]
    node = helper.make_node(kind, names, outputs, **attributes)
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in given.items()
    ]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph([node], "layer", infos, results)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, given)


@pytest.mark.parametrize("seed", range(COUNT))
def test_random_attributes(seed):
    kind, attributes, inputs = draw(seed)
    found, wanted = run(kind, attributes, inputs), by_onnxruntime(kind, attributes, inputs)
    for got, right in zip(found, wanted, strict=True):
        largest = max(1.0, np.abs(right).max())
        # Activations without bounds amplify what float32 rounds.
        bounded = BOUNDED.issuperset(attributes.get("activations", ()))
        np.testing.assert_allclose(got, right, rtol=0, atol=(1e-6 if bounded else 5e-6) * largest)


def test_the_drawn_attributes_have_everything():
    drawn = [draw(seed) for seed in range(COUNT)]
    assert {a["direction"] for _, a, _ in drawn} == set(DIRECTIONS)
    assert {name for _, a, _ in drawn for name in a.get("activations", ())} == set(ACTIVATIONS)
    for kind in DEFAULTS:
        of_kind = [(a, i) for k, a, i in drawn if k == kind]
        assert {"clip" in a for a, _ in of_kind} == {True, False}
        assert {i["sequence_lens"] is None for _, i in of_kind} == {True, False}
    assert {a["linear_before_reset"] for k, a, _ in drawn if k == "GRU"} == {0, 1}
    lstms = {(a["input_forget"], i["P"] is None, "clip" in a) for k, a, i in drawn if k == "LSTM"}
    assert len(lstms) == 8
