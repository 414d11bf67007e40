"""onnxruntime as the truth for ragged batches with empty sequences, forward, reverse and both directions.

Its last state of an empty sequence is 0, where ours is the initial state; those rows are left out of the comparison.
"""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import varlen_rnn as vr

INPUT, HIDDEN = 3, 5
GATES = {"RNN": (0,), "LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2)}  # our gates in ONNX's order: i o f c, z r h


def reordered(array, kind):
    """Return the blocks of gates of one of our parameters in ONNX's order."""
    return np.concatenate([np.split(array, len(GATES[kind]))[gate] for gate in GATES[kind]])


def session(kind, layer, direction, suffixes, names):
    weights = {}
    state = layer.state_dict()
    for key, name in (("W", "weight_ih"), ("R", "weight_hh")):
        weights[key] = np.stack([reordered(state[name + suffix], kind) for suffix in suffixes])
    biases = [[reordered(state[name + s], kind) for name in ("bias_ih_l0", "bias_hh_l0")] for s in _endings(suffixes)]
    weights["B"] = np.stack([np.concatenate(pair) for pair in biases])
    options = {"linear_before_reset": 1} if kind == "GRU" else {}
    outputs = ["Y", "Y_h", "Y_c"] if kind == "LSTM" else ["Y", "Y_h"]
    node = helper.make_node(
        kind, ["X", "W", "R", "B", "lengths", *names], outputs, hidden_size=HIDDEN, direction=direction, **options
    )
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("X", *names)]
    inputs.append(helper.make_tensor_value_info("lengths", TensorProto.INT32, None))
    graph = helper.make_graph(
        [node],
        "layer",
        inputs,
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def _endings(suffixes):
    return [suffix.removeprefix("_l0") for suffix in suffixes]


@pytest.mark.parametrize("with_states", [False, True], ids=["zeros", "states"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", GATES)
def test_ragged_batch_with_empty_sequences(kind, direction, with_states):
    vr.manual_seed(0)
    rng = np.random.default_rng(0)
    lengths = [4, 0, 7, 1, 0, 3]
    rows = rng.standard_normal((sum(lengths), INPUT)).astype(np.float32)
    layer = getattr(vr.nn, kind)(INPUT, HIDDEN, bidirectional=True)
    # One direction of ours is a part of both: each direction's output is its half of the columns.
    suffixes = {"forward": ["_l0"], "reverse": ["_l0_reverse"], "bidirectional": ["_l0", "_l0_reverse"]}[direction]
    used = {"forward": [0], "reverse": [1], "bidirectional": [0, 1]}[direction]
    num_states = 2 if kind == "LSTM" else 1
    states = [rng.standard_normal((2, len(lengths), HIDDEN)).astype(np.float32) for _ in range(num_states)]
    given = (states if kind == "LSTM" else states[0],) if with_states else ()
    y, last = layer(vr.create_lod_tensor(rows, [lengths]), *given)
    last = last if kind == "LSTM" else (last,)

    padded = np.zeros((max(lengths), len(lengths), INPUT), np.float32)
    cuts = np.cumsum(lengths)[:-1]
    for i, part in enumerate(np.split(rows, cuts)):
        padded[: len(part), i] = part
    names = ["initial_h", "initial_c"][:num_states] if with_states else []
    feed = {"X": padded, "lengths": np.array(lengths, np.int32)}
    feed |= {name: state[used] for name, state in zip(names, states, strict=False)}
    theirs_y, *theirs_last = session(kind, layer, direction, suffixes, names).run(None, feed)

    for place, number in enumerate(used):
        columns = slice(number * HIDDEN, (number + 1) * HIDDEN)
        for i, part in enumerate(np.split(np.asarray(y)[:, columns], cuts)):
            np.testing.assert_allclose(part, theirs_y[: len(part), place, i], atol=2e-6)
    filled = np.array(lengths) > 0
    for ours, theirs in zip(last, theirs_last, strict=True):
        np.testing.assert_allclose(np.asarray(ours)[used][:, filled], theirs[:, filled], atol=2e-6)
