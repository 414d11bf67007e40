"""ONNX models with convolutions and choices around a recurrent part, as packages for speech have them."""

import importlib.util
import pathlib

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import varlen_rnn as vr
import varlen_rnn.onnx as vo

NODE, FLOAT = helper.make_node, TensorProto.FLOAT
RNG = np.random.default_rng(0)
weights = lambda *shape: (RNG.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


def saved(path, nodes, inputs, outputs, constants=None, opset=17):
    """Write a model: its inputs are (name, type, shape), its outputs ranks by name, its constants arrays by name."""
    arrays = [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()]
    given = [helper.make_tensor_value_info(*item) for item in inputs]
    found = [helper.make_tensor_value_info(name, FLOAT, [None] * rank) for name, rank in outputs.items()]
    graph = helper.make_graph(nodes, "model", given, found, arrays)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.save(model, path)
    return path


def theirs(path, feed):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # without warnings about constants of branches that are not taken
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]).run(None, feed)


def ours(program, **feed):
    return [np.asarray(value) for value in vr.Executor().run(program, feed=feed)]


def check_rows(path, x, tolerance=1e-5):
    """Compare a model of one input with onnxruntime, on no rows, one row and all; each row has its bits alone."""
    program = vo.load(path)
    found = ours(program, x=x)
    for one, right in zip(found, theirs(path, {"x": x}), strict=True):
        assert one.dtype == right.dtype
        np.testing.assert_allclose(one, right, rtol=tolerance, atol=tolerance)
    for number in range(len(x)):
        for one, whole in zip(ours(program, x=x[number : number + 1]), found, strict=True):
            np.testing.assert_array_equal(one[0], whole[number])
    assert all(len(one) == 0 for one in ours(program, x=x[:0]))


CONVOLUTIONS = {  # (channels, length), (filters, channels of a group, taps), has bias, attributes
    "windows": ((3, 40), (5, 3, 4), True, {}),
    "strides": ((2, 50), (4, 2, 7), True, {"strides": [3], "pads": [2, 4]}),
    "no bias": ((1, 640), (6, 1, 128), False, {"strides": [64]}),
    "a matrix": ((4, 5), (3, 4, 3), True, {"pads": [1, 1]}),
    "a matrix with strides": ((4, 4), (3, 4, 3), True, {"pads": [1, 1], "strides": [2]}),
    "one position": ((4, 1), (3, 4, 3), True, {"pads": [1, 1]}),
    "numbers behind the only window": ((2, 30), (3, 2, 4), True, {"strides": [100], "pads": [1, 0]}),
    "one tap": ((4, 9), (3, 4, 1), True, {"kernel_shape": [1]}),
    "groups": ((6, 20), (4, 3, 3), True, {"group": 2, "pads": [1, 0]}),
    "a group a channel": ((4, 6), (4, 1, 3), False, {"group": 4, "auto_pad": "VALID"}),
    "dilations": ((2, 30), (3, 2, 3), True, {"dilations": [4], "pads": [8, 0]}),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name, tmp_path):
    size, shape, has_bias, attributes = CONVOLUTIONS[name]
    constants = {"w": weights(*shape)} | ({"b": weights(shape[0])} if has_bias else {})
    node = NODE("Conv", ["x", *constants], ["z"], **attributes)
    path = saved(tmp_path / "a.onnx", [node], [("x", FLOAT, [None, *size])], {"z": 3}, constants)
    check_rows(path, RNG.standard_normal((3, *size)).astype(np.float32))


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"strides": [0]}, "with strides"),
        ({"strides": [1, 1]}, "with strides"),
        ({"dilations": [-1]}, "with strides"),
        ({"dilations": [2**40]}, "with a weight"),
        ({"group": 0}, "with strides"),
        ({"group": 3}, "groups"),
        ({"pads": [3, 0]}, "with strides"),
        ({"pads": [-1, 0]}, "with strides"),
        ({"pads": [1]}, "a model of ONNX|with strides"),
        ({"auto_pad": "SAME_UPPER"}, "auto_pad"),
        ({"kernel_shape": [5]}, "kernel_shape"),
    ],
)
def test_convolutions_that_are_refused(attributes, message, tmp_path):
    node = NODE("Conv", ["x", "w"], ["z"], name="it", **attributes)
    path = saved(tmp_path / "a.onnx", [node], [("x", FLOAT, [None, 4, 9])], {"z": 3}, {"w": weights(4, 4, 3)})
    with pytest.raises(vr.ProgramError, match=f"Conv 'it' .*{message}"):
        vo.load(path)


def test_a_convolution_along_the_steps_of_sequences(tmp_path):
    constants = {"w": weights(5, 4, 3), "b": weights(5), "i": weights(1, 12, 5), "r": weights(1, 12, 4)}
    nodes = [
        NODE("LSTM", ["x", "w0", "r0"], ["y"], hidden_size=4),
        NODE("Squeeze", ["y", "one"], ["s"]),
        NODE("Transpose", ["s"], ["t"], perm=[1, 2, 0]),
        NODE("Conv", ["t", "w", "b"], ["u"], pads=[1, 1]),
        NODE("Transpose", ["u"], ["z"], perm=[2, 0, 1]),
    ]
    constants |= {"w0": weights(1, 16, 3), "r0": weights(1, 16, 4), "one": np.array([1])}
    path = saved(tmp_path / "a.onnx", nodes, [("x", FLOAT, [None, None, 3])], {"z": 3}, constants)
    x = RNG.standard_normal((7, 3)).astype(np.float32)
    (found,) = ours(vo.load(path), x=vr.create_lod_tensor(x, [[4, 3]]))
    parts = [theirs(path, {"x": part[:, None]})[0][:, 0] for part in (x[:4], x[4:])]
    np.testing.assert_allclose(found, np.concatenate(parts), rtol=1e-5, atol=1e-6)


PADS = {
    "constant": ([0, 0, 2, 0, 1, 3], {}, None),
    "a number": ([0, 1, 0, 0, 0, 2], {"mode": "constant"}, np.float32(-2.5)),
    "edge": ([0, 1, 2, 0, 1, 3], {"mode": "edge"}, None),
    "reflect": ([0, 2, 3, 0, 1, 4], {"mode": "reflect"}, None),
    "nothing": ([0] * 6, {"mode": "reflect"}, None),
}


@pytest.mark.parametrize("name", PADS)
def test_padding(name, tmp_path):
    pads, attributes, number = PADS[name]
    constants = {"pads": np.array(pads)} | ({} if number is None else {"number": number})
    nodes = [NODE("Pad", ["x", *constants], ["p"], **attributes), NODE("Neg", ["p"], ["z"])]
    path = saved(tmp_path / "a.onnx", nodes, [("x", FLOAT, [None, 3, 5])], {"z": 3}, constants)
    check_rows(path, RNG.standard_normal((2, 3, 5)).astype(np.float32))


@pytest.mark.parametrize(
    ("pads", "mode"), [([0, 0, 5, 0, 0, 0], "reflect"), ([0, 0, -1, 0, 0, 0], "constant"), ([1, 2], "edge")]
)
def test_padding_that_is_refused(pads, mode, tmp_path):
    node = NODE("Pad", ["x", "pads"], ["z"], mode=mode, name="it")
    path = saved(tmp_path / "a.onnx", [node], [("x", FLOAT, [None, 3, 5])], {"z": 3}, {"pads": np.array(pads)})
    with pytest.raises(vr.ProgramError, match="Pad 'it'"):
        vo.load(path)


def test_powers_and_pieces(tmp_path):
    nodes = [
        NODE("Pow", ["x", "two"], ["p"]),
        NODE("Split", ["p", "sizes"], ["a", "b"], axis=1),
        NODE("Split", ["x"], ["c", "d", "e"], axis=-1),
        NODE("Concat", ["c", "e"], ["f"], axis=1),
        NODE("Size", ["a"], ["unused"]),
        NODE("Shape", ["a"], ["shape"]),
        NODE("Size", ["shape"], ["rank"]),
        NODE("Cast", ["rank"], ["number"], to=FLOAT),
        NODE("Mul", ["a", "number"], ["g"]),
    ]
    constants = {"two": np.float32(2), "sizes": np.array([2, 4])}
    path = saved(tmp_path / "a.onnx", nodes, [("x", FLOAT, [None, 6])], dict.fromkeys("gbdf", 2), constants)
    check_rows(path, RNG.standard_normal((3, 6)).astype(np.float32))
    node = NODE("Split", ["x"], ["a", "b"], axis=1, num_outputs=2)
    path = saved(tmp_path / "b.onnx", [node], [("x", FLOAT, [None, 5])], {"a": 2, "b": 2}, opset=18)
    check_rows(path, RNG.standard_normal((3, 5)).astype(np.float32))


def branch(name, nodes, *outputs):
    return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(one, FLOAT, None) for one in outputs])


def chosen(path, size=None):
    """Write a model that multiplies `x` by -1, 2 or 3: by the rate `sr`, and inside by the second size of `x`."""
    inner = NODE(
        "If", ["is_wide"], ["inner"], name="width",
        then_branch=branch("wide", [NODE("Mul", ["x", "three"], ["w"])], "w"),
        else_branch=branch("narrow", [NODE("Mul", ["x", "two"], ["n"])], "n"),
    )  # fmt: skip
    nodes = [
        NODE("Equal", ["sr", "rate"], ["is_rate"]),
        NODE(
            "If", ["is_rate"], ["z"], name="rate of samples",
            then_branch=branch("then", [
                NODE("Shape", ["x"], ["shape"]),
                NODE("Gather", ["shape", "one"], ["size"]),
                NODE("Greater", ["size", "four"], ["is_wide"]),
                inner,
            ], "inner"),
            else_branch=branch("else", [NODE("Neg", ["x"], ["m"])], "m"),
        ),
    ]  # fmt: skip
    constants = {"rate": np.array(16000), "one": np.array(1), "four": np.array(4)}
    constants |= {"two": np.float32(2), "three": np.float32(3)}
    inputs = [("x", FLOAT, [None, size]), ("sr", TensorProto.INT64, [])]
    return saved(path, nodes, inputs, {"z": 2}, constants)


def test_fixed_values_and_shapes_decide_every_choice(tmp_path):
    path = chosen(tmp_path / "a.onnx")
    for rate, width in ((16000, 5), (16000, 4), (8000, 5)):
        program, x = vo.load(path, {"sr": rate, "x": (None, width)}), np.ones((2, width), np.float32)
        assert program.feed_names == ["x"]
        np.testing.assert_array_equal(ours(program, x=x)[0], theirs(path, {"x": x, "sr": np.array(rate)})[0])
    with pytest.raises(vr.ProgramError, match=r"If 'rate of samples' .its condition is known only in a run"):
        vo.load(path, {"x": (None, 5)})
    with pytest.raises(vr.ProgramError, match=r"If 'width' .its condition is known only in a run"):
        vo.load(path, {"sr": 16000})
    (found,) = ours(vo.load(path, {"sr": np.array(8000), "x": (1, None)}), x=np.ones((1, 7), np.float32))
    np.testing.assert_array_equal(found, -np.ones((1, 7)))


@pytest.mark.parametrize(
    ("fixed", "error", "message"),
    [
        ({"rate": 1}, vr.ProgramError, "onnx.load, fixed: expected inputs of the model"),
        ([("sr", 1)], vr.DTypeError, "onnx.load, fixed: expected a dict"),
        ({"sr": 1.5}, vr.DTypeError, "'sr': expected int64, got float64"),
        ({"sr": "fast"}, vr.DTypeError, "'sr': expected int64"),
        ({"sr": [1, 2]}, vr.ShapeError, "'sr': expected a value whose shape"),
        ({"x": (None, 5)}, vr.ShapeError, "'x': expected a shape that fits"),
        ({"x": (None, 6, 1)}, vr.ShapeError, "'x': expected a shape that fits"),
        ({"x": (-3, 6)}, vr.ShapeError, "'x': expected sizes"),
        ({"x": (2.0, 6)}, vr.ShapeError, "'x': expected sizes"),
    ],
)
def test_fixed_values_and_shapes_that_do_not_fit(fixed, error, message, tmp_path):
    with pytest.raises(error, match=message):
        vo.load(chosen(tmp_path / "a.onnx", 6), fixed)


def frame_model(path):
    """Write a model like a voice activity detector: spectra, convolutions, a step of an LSTM, a probability."""
    one_step = [
        NODE("Unsqueeze", ["e", "zero"], ["steps"]),
        NODE("Gather", ["state", "first"], ["h"]),
        NODE("Gather", ["state", "second"], ["c"]),
        NODE("Unsqueeze", ["h", "zero"], ["h0"]),
        NODE("Unsqueeze", ["c", "zero"], ["c0"]),
        NODE("LSTM", ["steps", "w", "r", "b", "", "h0", "c0"], ["", "hn", "cn"], hidden_size=8),
    ]
    nodes = [
        NODE("Pad", ["input", "pads"], ["padded"], mode="reflect"),
        NODE("Unsqueeze", ["padded", "axis"], ["signal"]),
        NODE("Conv", ["signal", "basis"], ["waves"], strides=[16]),
        NODE("Slice", ["waves", "zero", "half", "axis"], ["real"]),
        NODE("Slice", ["waves", "half", "end", "axis"], ["imaginary"]),
        NODE("Pow", ["real", "two"], ["real2"]),
        NODE("Pow", ["imaginary", "two"], ["imaginary2"]),
        NODE("Add", ["real2", "imaginary2"], ["power"]),
        NODE("Sqrt", ["power"], ["spectrum"]),
        NODE("Conv", ["spectrum", "w1", "b1"], ["a"], pads=[1, 1], strides=[2]),
        NODE("Relu", ["a"], ["relu"]),
        NODE("Conv", ["relu", "w2", "b2"], ["e3"], pads=[1, 1], strides=[2]),
        NODE("Squeeze", ["e3", "last"], ["e"]),
        NODE("Shape", ["state"], ["shape"]),
        NODE("Gather", ["shape", "first"], ["count"]),
        NODE("Cast", ["count"], ["has_states"], to=TensorProto.BOOL),
        NODE(
            "If", ["has_states"], ["h1", "c1"], name="states",
            then_branch=branch("then", one_step, "hn", "cn"),
            else_branch=branch("else", [NODE("Identity", ["state"], [n]) for n in ("s1", "s2")], "s1", "s2"),
        ),
        NODE("Concat", ["h1", "c1"], ["stateN"], axis=0),
        NODE("Transpose", ["h1"], ["column"], perm=[1, 2, 0]),
        NODE("Conv", ["column", "w3", "b3"], ["logit"]),
        NODE("Sigmoid", ["logit"], ["p"]),
        NODE("ReduceMean", ["p"], ["output"], axes=[2], keepdims=0),
    ]  # fmt: skip
    constants = {"pads": [0, 0, 0, 16], "axis": [1], "zero": [0], "half": [9], "end": [2**62], "last": [-1]}
    constants |= {"first": 0, "second": 1, "two": np.float32(2), "basis": weights(18, 1, 32)}
    constants |= {"w1": weights(6, 9, 3), "b1": weights(6), "w2": weights(7, 6, 3), "b2": weights(7)}
    constants |= {"w": weights(1, 32, 7), "r": weights(1, 32, 8), "b": weights(1, 64), "w3": weights(1, 8, 1)}
    inputs = [("input", FLOAT, [None, None]), ("state", FLOAT, [2, None, 8])]
    return saved(path, nodes, inputs, {"output": 2, "stateN": 3}, constants | {"b3": weights(1)})


def test_a_model_of_frames_and_states(tmp_path):
    path = frame_model(tmp_path / "a.onnx")
    program = vo.load(path, {"input": (None, 64)})
    frames, state = RNG.standard_normal((5, 4, 64)).astype(np.float32), np.zeros((2, 4, 8), np.float32)
    right = alone = state
    for x in frames:
        output, state = ours(program, input=x, state=state)
        wanted, right = theirs(path, {"input": x, "state": right})
        np.testing.assert_allclose(output, wanted, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(state, right, rtol=1e-5, atol=1e-5)
        parts = [ours(program, input=x[n : n + 1], state=alone[:, n : n + 1]) for n in range(4)]
        alone = np.concatenate([part for _, part in parts], axis=1)
        np.testing.assert_array_equal(alone, state)
        np.testing.assert_array_equal(np.concatenate([part for part, _ in parts]), output)


def test_streams(tmp_path):
    path = frame_model(tmp_path / "a.onnx")
    program = vo.load(path, {"input": (None, 64)})
    stream, frames = program.stream({"state": "stateN"}, 3), RNG.standard_normal((6, 3, 64)).astype(np.float32)
    alone = [program.stream(states={"state": "stateN"}) for _ in range(3)]
    for number, x in enumerate(frames):
        slots = [0, 1, 2] if number % 2 else [2, 0]
        (found,) = stream({"input": x[: len(slots)]}, at=slots)
        for row, slot in enumerate(slots):
            np.testing.assert_array_equal(alone[slot]({"input": x[row : row + 1]})[0][0], found[row])
    for slot, one in enumerate(alone):
        np.testing.assert_array_equal(stream.states["state"][:, slot], one.states["state"][:, 0])
    for variable in program.variables.values():  # the stream has copies
        variable.value.data[...] = 0
    np.testing.assert_array_equal(stream({"input": x[:1]}, at=[0]), alone[0]({"input": x[:1]}))
    stream.reset([1])
    assert [bool(stream.states["state"][:, slot].any()) for slot in range(3)] == [True, False, True]
    before = stream.states["state"]
    for rows, at, error in (
        ({"input": frames[0, :, :5]}, None, vr.ShapeError),
        ({"input": frames[0, :1]}, None, vr.InputError),
        ({"other": frames[0]}, None, vr.ProgramError),
        ({"input": frames[0, :2]}, [0, 0], vr.OutOfRangeError),
        ({"input": frames[0, :1]}, [3], vr.OutOfRangeError),
        (frames[0], None, vr.DTypeError),
    ):
        with pytest.raises(error):
            stream(rows, at)
    np.testing.assert_array_equal(stream.states["state"], before)
    for states in ({"state": "s"}, {"inputs": "stateN"}, {"input": "stateN", "state": "output"}):
        with pytest.raises(vr.InputError):
            program.stream(states)({"input": frames[0, :1]})


def test_frames_that_are_the_steps_of_a_sequence(tmp_path):
    nodes = [
        NODE("Unsqueeze", ["input", "one"], ["signal"]),
        NODE("Conv", ["signal", "w1", "b1"], ["a"], strides=[8]),
        NODE("Conv", ["a", "w2", "b2"], ["e"]),
        NODE("Transpose", ["e"], ["steps"], perm=[0, 2, 1]),
        NODE("LSTM", ["steps", "w", "r", "b", "", "h", "c"], ["y", "hn", "cn"], hidden_size=8),
        NODE("Squeeze", ["y", "one"], ["s"]),
        NODE("Transpose", ["s"], ["t"], perm=[1, 2, 0]),
        NODE("Conv", ["t", "w3", "b3"], ["logit"]),
        NODE("Reshape", ["logit", "all"], ["output"]),
    ]
    constants = {"one": [1], "all": [-1], "w1": weights(6, 1, 16), "b1": weights(6), "w2": weights(7, 6, 7)}
    constants |= {"b2": weights(7), "w": weights(1, 32, 7), "r": weights(1, 32, 8), "b": weights(1, 64)}
    constants |= {"w3": weights(1, 8, 1), "b3": weights(1)}
    states = [(name, FLOAT, [1, 1, 8]) for name in "hc"]
    path = tmp_path / "a.onnx"
    saved(path, nodes, [("input", FLOAT, [None, 64]), *states], {"output": 1, "hn": 3, "cn": 3}, constants)
    program = vo.load(path, {"h": (1, None, 8), "c": (1, None, 8)})
    x, lengths = RNG.standard_normal((6, 64)).astype(np.float32), [4, 2]
    h, c = RNG.standard_normal((2, 1, 2, 8)).astype(np.float32)
    found = ours(program, input=vr.create_lod_tensor(x, [lengths]), h=h, c=c)
    alone = [
        theirs(path, {"input": x[s], "h": h[:, n], "c": c[:, n]}) for s, n in ((slice(4), [0]), (slice(4, 6), [1]))
    ]
    for number, (one, axis) in enumerate(zip(found, (0, 1, 1), strict=True)):
        right = np.concatenate([part[number] for part in alone], axis=axis)
        np.testing.assert_allclose(one, right, rtol=1e-5, atol=1e-5)


SILERO = importlib.util.find_spec("silero_vad")
RATES = {"silero_vad": 16000, "silero_vad_16k_op15": 16000, "silero_vad_op18_ifless": 16000, "silero_vad_half": None}


def speech(seconds, frames, size):
    """Return frames of bursts of three tones in noise, and of noise alone, each with the end of the frame before."""
    time = np.arange(int(seconds * 16000)) / 16000
    tones = sum(np.sin(2 * np.pi * tone * time) / number for number, tone in enumerate((150, 900, 2400), 1))
    signal = 0.2 * tones * (np.sin(2 * np.pi * 3 * time) > 0) + 0.02 * RNG.standard_normal(len(time))
    past = size // 9
    return np.stack([signal[s : s + size] for s in range(0, frames * (size - past), size - past)]).astype(np.float32)


@pytest.mark.skipif(SILERO is None, reason="needs `pip install silero-vad`")
@pytest.mark.parametrize(("name", "rate"), [*RATES.items(), ("silero_vad", 8000), ("silero_vad_openvino_16k", None)])
def test_the_files_of_silero_vad(name, rate):
    path = pathlib.Path(SILERO.submodule_search_locations[0]) / "data" / f"{name}.onnx"
    size, streams = 288 if rate == 8000 else 576, 1 if "openvino" in name else 3
    fixed = {"input": (None, size), "state": (2, None, 128)} | ({} if rate is None else {"sr": rate})
    program = vo.load(path, fixed)
    x = np.stack([speech(2, 40, size), *RNG.standard_normal((streams - 1, 40, size)).astype(np.float32)], axis=1)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    state = right = np.zeros((2, streams, 128), np.float32)
    more = {} if rate is None else {"sr": np.array(rate)}
    of_all, of_one = (program.stream(states={"state": "stateN"}, num_sequences=count) for count in (streams, 1))
    for frame in x:
        output, state = ours(program, input=frame, state=state)
        wanted, right = session.run(None, {"input": frame, "state": right, **more})
        streamed = of_all({"input": frame})[0]
        np.testing.assert_allclose(streamed, wanted, rtol=0, atol=1e-4)
        np.testing.assert_array_equal(streamed[:1], of_one({"input": frame[:1]})[0])
        np.testing.assert_allclose(output, wanted, rtol=0, atol=1e-4)
        np.testing.assert_allclose(state, right, rtol=0, atol=1e-4)


@pytest.mark.skipif(SILERO is None, reason="needs `pip install silero-vad`")
def test_the_file_of_silero_vad_for_whole_recordings():
    path = pathlib.Path(SILERO.submodule_search_locations[0]) / "data" / "silero_vad_16k_sequence.onnx"
    program, lengths = vo.load(path, {"h": (1, None, 128), "c": (1, None, 128)}), [30, 50]
    x, states = speech(3, 80, 576), np.zeros((1, 2, 128), np.float32)
    found = ours(program, input=vr.create_lod_tensor(x, [lengths]), h=states, c=states)[0]
    parts = [theirs(path, {"input": part, "h": states[:, :1], "c": states[:, :1]})[0] for part in (x[:30], x[30:])]
    np.testing.assert_allclose(found, np.concatenate(parts), rtol=0, atol=1e-4)
