"""Nodes of ONNX with carried states, LinearAttention and CausalConvWithState: its own tests, and exported layers."""

import re

import numpy as np
import onnx
import pytest

import varlen_rnn as vr
import varlen_rnn.onnx as vo
from tests.each import check_each
from tests.test_onnx_export import Exported, rows_of
from varlen_rnn.program.executor import Executor

_NODES = re.compile(r"test_(linear_attention|causal_conv_with_state)(?!.*_expanded)")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(scope="module")
def cases():
    from onnx.backend.test.case.node import collect_testcases

    if onnx.defs.onnx_opset_version() < 27:
        pytest.skip("onnx has no opset 27")
    return {case.name: case for case in collect_testcases(None) if _NODES.match(case.name)}


def test_nodes_of_onnx(cases, tmp_path):
    def check(name):
        case, path, steps = cases[name], tmp_path / "node.onnx", 1 if "linear" in name else 2
        onnx.save(case.model, path)
        of_steps = ("query", "key", "value", "decay", "beta", "input", "output")

        def value(item, array):
            array = np.asarray(array)
            if item.name not in of_steps:
                return array
            array = np.moveaxis(array, steps, 1)
            return vr.create_lod_tensor(array.reshape(-1, array.shape[2]), [[array.shape[1]] * array.shape[0]])

        given, wanted = case.data_sets[0]
        if name.endswith("fp16"):
            with pytest.raises(vr.ProgramError, match="expected float32 or float64, got float16"):
                vo.load(path)
            return
        feed = {item.name: value(item, array) for item, array in zip(case.model.graph.input, given, strict=True)}
        found = Executor().run(vo.load(path), feed)
        for item, own, array in zip(case.model.graph.output, found, wanted, strict=True):
            right = value(item, array)
            np.testing.assert_allclose(np.asarray(own), np.asarray(right), rtol=1e-5, atol=1e-6, err_msg=item.name)

    assert len(cases) >= 27
    check_each(cases, check)


LENGTHS = [3, 1, 6]
NAMES = "query", "key", "value", "decay", "beta", "state"
FEEDS = {
    "q": ([-1, 2, 4], "float32", 1), "k": ([-1, 2, 4], "float32", 1), "v": ([-1, 2, 3], "float32", 1),
    "g": ([-1, 2], "float32", 1), "wide": ([-1, 2, 4], "float32", 1), "b": ([-1, 2], "float32", 1),
    "state": ([-1, 2, 4, 3], "float32"), "n": ([-1, 2, 4], "float32"),
}  # fmt: skip
FORMS = {
    "linear": ("q k v", {}),
    "gated": ("q k v g", {"scale": 0.5}),
    "gated by key": ("q k v wide", {}),
    "delta": ("q k v - b", {"delta": True}),
    "delta without rates": ("q k v", {"delta": True}),
    "gated delta with a state": ("q k v g b state", {"delta": True}),
    "rates without delta": ("q k v g b", {}),
    "normalised": ("q k v g", {"normalise": True}),
    "normalised with a state": ("q k v g - state n", {"normalise": True}),
    "a shared key": ("q one v g", {}),
}


@pytest.mark.skipif(onnx.defs.onnx_opset_version() < 27, reason="onnx has no opset 27")
def test_linear_attention_is_one_node_that_onnxruntime_runs(tmp_path):
    def check(name):
        names, constants = FORMS[name]
        names = names.split()
        feeds = {one: FEEDS.get(one, FEEDS["k"]) for one in names if one != "-"}
        if "one" in feeds:
            feeds["one"] = ([-1, 1, 4], "float32", 1)

        def function(**given):
            operands = dict(zip(NAMES, (given.get(one) for one in names), strict=False))
            if "n" in given:
                operands["state"] = given["state"], given["n"]
            y, last = vr.linear_attention(**operands, **constants)
            return [*y, *last] if constants.get("normalise") else [y, last]

        exported = Exported(function, tmp_path / "model.onnx", **feeds)
        kinds = [node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node]
        assert kinds.count("LinearAttention") == 1
        values = {one: rows_of(LENGTHS if len(feed) > 2 else [3], *feed[0][1:], seed=n)
                  for n, (one, feed) in enumerate(feeds.items())}  # fmt: skip
        for one in values.keys() & {"g", "wide"}:
            values[one] = -np.abs(values[one])
        if "b" in values:
            values["b"] = 1 / (1 + np.exp(-values["b"]))
        exported.check(LENGTHS, **values)

    check_each(FORMS, check)


@pytest.mark.skipif(onnx.defs.onnx_opset_version() < 27, reason="onnx has no opset 27")
def test_a_causal_convolution_is_one_node_with_the_last_rows_of_each_sequence(tmp_path):
    weight, bias = vr.nn.Parameter(rows_of([3], 4)), vr.nn.Parameter(rows_of([3], seed=1))

    def check(name):
        has_state, activation = name

        def function(x, state=None):
            return [*vr.causal_conv(x, weight, bias, state, activation)]

        feeds = {"x": ([-1, 3], "float32", 1)} | ({"state": ([-1, 3, 3], "float32")} if has_state else {})
        exported = Exported(function, tmp_path / "model.onnx", **feeds)
        exported.check(LENGTHS, x=rows_of(LENGTHS, 3, seed=2), **({"state": rows_of([3], 3, 3)} if has_state else {}))

    check_each([(False, None), (True, "silu")], check)


def test_a_stream_of_a_model_carries_its_state(cases, tmp_path):
    case, path = cases["test_linear_attention_no_past_explicit_zeros"], tmp_path / "node.onnx"
    onnx.save(case.model, path)
    (given, wanted), names = case.data_sets[0], [item.name for item in case.model.graph.input]
    feeds = {name: np.asarray(array) for name, array in zip(names, given, strict=True)}
    state = feeds.pop("past_state")
    program = vo.load(path, fixed={"past_state": (None, *state.shape[1:])})
    stream = program.stream({"past_state": "present_state"}, num_sequences=len(state))
    found = [stream({name: array[:, t] for name, array in feeds.items()})[0] for t in range(feeds["query"].shape[1])]
    np.testing.assert_allclose(np.stack(found, axis=1), np.asarray(wanted[0]), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(stream.states["past_state"], np.asarray(wanted[1]), rtol=1e-5, atol=1e-6)
