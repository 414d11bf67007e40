"""Layers whose weights are packed once, for whole sequences and for streams of rows, have the bits of the layer."""

import numpy as np
import pytest

import varlen_rnn as vr
from tests.in_threads import at_once
from varlen_rnn.cells import CELLS, find_cell
from varlen_rnn.errors import DTypeError, InputError, LoDError, OutOfRangeError, ShapeError
from varlen_rnn.recurrence.packed import FEW

DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])
LENGTHS = [[3, 0, 5, 1], [0, 2], [2, 0], [0], [], [4, 4, 4], [1], [7] * 3 + [2] * (FEW + 5)]
LAYERS = {
    "LSTM": lambda dtype: vr.nn.LSTM(3, 20, dtype=dtype),
    "GRU of two layers": lambda dtype: vr.nn.GRU(3, 17, num_layers=2, dtype=dtype),
    "RNN": lambda dtype: vr.nn.RNN(3, 5, nonlinearity="relu", bias=False, dtype=dtype),
    "projected": lambda dtype: vr.nn.LSTM(3, 20, num_layers=2, proj_size=6, proj_clip=0.1, dtype=dtype),
    "peepholes": lambda dtype: vr.nn.LSTM(3, 20, peepholes=True, coupled=True, clip=1.0, dtype=dtype),
    "two products": lambda dtype: vr.nn.GRU(3, 20, reset_after=False, dtype=dtype),
    "layer norm": lambda dtype: vr.nn.Recurrent(find_cell("ln_lstm"), 3, 20, dtype=dtype),
    "weight norm": lambda dtype: vr.nn.weight_norm(vr.nn.GRU(3, 9, dtype=dtype), "weight_hh_l0"),
    "weight dropout": lambda dtype: vr.nn.LSTM(3, 9, weight_dropout=0.5, dtype=dtype).eval(),
}
BOTH_WAYS = {
    "both": lambda dtype: vr.nn.LSTM(3, 20, num_layers=2, bidirectional=True, dtype=dtype),
    "backward": lambda dtype: vr.nn.GRU(3, 20, direction="backward", dtype=dtype),
    "sum": lambda dtype: vr.nn.GRU(3, 20, num_layers=2, direction="both", merge="sum", dtype=dtype),
    "mean": lambda dtype: vr.nn.RNN(3, 20, num_layers=2, direction="both", merge="mean", dtype=dtype),
}


def batch(lengths, dtype, features=3):
    rng = np.random.default_rng(0)
    return vr.create_lod_tensor(rng.standard_normal((sum(lengths), features)).astype(dtype), [lengths])


def states_of(layer, count, dtype):
    """Return initial states of a layer for so many sequences."""
    rng, size = np.random.default_rng(1), layer.num_layers * layer.num_directions
    units = [layer.output_size, *[layer.hidden_size] * (len(layer.cell.states) - 1)]
    found = [rng.standard_normal((size, count, n)).astype(dtype) for n in units]
    return found[0] if len(found) == 1 else tuple(found)


def as_tuple(states):
    return states if isinstance(states, tuple) else (states,)


def assert_equal(ours, wanted):
    assert np.array_equal(np.asarray(ours[0]), np.asarray(wanted[0]))
    for one, other in zip(as_tuple(ours[1]), as_tuple(wanted[1]), strict=True):
        assert np.array_equal(one, np.asarray(other))


@DTYPES
@pytest.mark.parametrize("name", [*LAYERS, *BOTH_WAYS])
def test_a_prepared_layer_has_the_bits_of_the_layer(name, dtype):
    layer = (LAYERS | BOTH_WAYS)[name](dtype)
    run = layer.prepare()
    for lengths in LENGTHS:
        x = batch(lengths, dtype)
        for states in (None, states_of(layer, len(lengths), dtype)):
            wanted = layer(x, states)
            found = run(x, states)
            assert found[0].structure is x.structure
            assert_equal(found, wanted)
            assert_equal(run(x.data, states, offsets=np.cumsum([0, *lengths]).tolist()), wanted)


@DTYPES
@pytest.mark.parametrize("name", LAYERS)
def test_a_stream_has_the_bits_of_the_layer(name, dtype):
    layer = LAYERS[name](dtype)
    for lengths in ([4], [3, 5, 1], [2] * 7):
        x, stream = batch(lengths, dtype), layer.stream(len(lengths))
        initial = states_of(layer, len(lengths), dtype)
        y, last = layer(x, initial)
        stream.reset(states=initial)
        found = [[] for _ in lengths]
        for t in range(max(lengths)):
            alive = [i for i, n in enumerate(lengths) if t < n][::-1]
            rows = np.stack([x.to_sequences()[i][t] for i in alive])
            for i, row in zip(alive, stream(rows, at=alive), strict=True):
                found[i].append(row)
        assert np.array_equal(np.concatenate(found), np.asarray(y))
        for one, other in zip(as_tuple(stream.states), as_tuple(last), strict=True):
            assert np.array_equal(one, np.asarray(other))


def test_many_slots_on_several_threads():
    layer = vr.nn.LSTM(64, 128)
    x = np.random.default_rng(0).standard_normal((3, 90, 64)).astype(np.float32)
    wanted = layer(vr.create_lod_tensor(x.transpose(1, 0, 2).reshape(270, 64), [[3] * 90]))[0]
    stream = layer.stream(90)
    vr.set_num_threads(2)
    assert not stream._layers[0].is_little(90, 90)
    steps = [stream(x[0]), stream(x[1, ::-1].copy(), at=range(89, -1, -1))[::-1], stream(x[2])]
    assert np.array_equal(np.stack(steps, axis=1).reshape(270, 128), np.asarray(wanted))


def test_a_batch_for_several_threads():
    layer, x = vr.nn.GRU(64, 128, bidirectional=True), batch([90, 3, 50, 70], np.float32, 64)
    vr.set_num_threads(2)
    run = layer.prepare()
    assert not any(directions[0].is_little(213, 4) for directions in run._layers)
    assert_equal(run(x), layer(x))


def test_slots_begin_and_end_at_will():
    layer = vr.nn.GRU(3, 4)
    stream, rows = layer.stream(3), np.ones((3, 3), np.float32)
    first = stream(rows)
    second = stream(rows)
    stream.reset([1])
    third = stream(rows)
    assert np.array_equal(third[1], first[1])
    assert not np.array_equal(third[0], second[0])
    assert stream(rows[:0], at=[]).shape == (0, 4)
    states = stream.states
    states[...] = 0
    assert stream.states.all(), "a copy"
    stream.reset()
    assert not stream.states.any()
    assert layer.stream()(rows[0]).shape == (4,)


def test_it_is_the_layer_as_it_was():
    layer = vr.nn.LSTM(3, 4, peepholes=True)
    x, run, stream = batch([2, 3], np.float32), layer.prepare(), layer.stream(2)
    before = run(x)
    wanted = stream(x.data[:2])
    for parameter in layer.parameters():
        parameter.assign(0.0)
    stream.reset()
    assert_equal(run(x), before)
    assert np.array_equal(stream(x.data[:2]), wanted)


def test_any_number_of_threads():
    layer = vr.nn.LSTM(16, 32, num_layers=2)
    run, batches = layer.prepare(), [batch(lengths, np.float32, 16) for lengths in ([3, 1], [5] * 9, [1], [0, 8, 2])]
    wanted, wrong = [run(x)[0].data for x in batches], []

    def call():
        for _ in range(200):
            for x, y in zip(batches, wanted, strict=True):
                if not np.array_equal(run(x)[0].data, y):
                    wrong.append(x)

    at_once(call, [()] * 4)
    assert not wrong
    assert len(run._idle) <= 5


def test_a_stream_of_several_threads_takes_turns():
    layer = vr.nn.GRU(3, 4)
    stream, rows = layer.stream(8), np.ones((1, 3), np.float32)
    wanted = [layer(vr.create_lod_tensor(np.ones((50, 3), np.float32), [[50]]))[1]]

    def call(slot):
        for _ in range(50):
            stream(rows, at=[slot])

    at_once(call, [(slot,) for slot in range(8)])
    assert all(np.array_equal(stream.states[:, slot : slot + 1], np.asarray(wanted[0])) for slot in range(8))


def test_read_only_and_strided_rows():
    layer = vr.nn.GRU(3, 4)
    run, rows = layer.prepare(), np.arange(24.0).reshape(4, 6).astype(np.float32)
    wanted = run(rows[:, ::2].copy(), offsets=[0, 4])[0]
    assert np.array_equal(run(rows[:, ::2], offsets=[0, 4])[0], wanted)
    rows.flags.writeable = False
    offsets = np.array([0, 9, 4, 9])[::2]
    offsets.flags.writeable = False
    assert np.array_equal(run(rows[:, ::2], offsets=offsets)[0], wanted)


class Rows(np.ndarray):
    """An array of another class."""


@pytest.mark.parametrize("is_readable", [True, False])
def test_forms_that_compiled_code_refuses(is_readable, monkeypatch):
    for module in (vr.nn.recurrent.prepared, vr.nn.recurrent.stream):
        monkeypatch.setattr(module, "is_readable", lambda: is_readable)
    layer, offsets = vr.nn.LSTM(3, 5, num_layers=2), np.array([0, 1, 1, 4])
    run, x = layer.prepare(), batch([1, 0, 3], np.float32)
    rows, wanted = x.data, layer(x)
    wanted_rows, frozen = layer.stream(4)(rows), rows.copy()
    frozen.flags.writeable = False
    misaligned = np.frombuffer(b"0" + rows.tobytes(), np.float32, offset=1).reshape(4, 3)
    described = rows.astype(np.dtype("f4", metadata={"unit": "m"}))
    for given in (rows, frozen, misaligned, described, rows.T.copy().T, rows.view(Rows)):
        assert_equal(run(given, offsets=offsets), wanted)
        assert np.array_equal(layer.stream(4)(given), wanted_rows)
    for given in (offsets.astype(np.longlong), offsets.astype(np.int32), offsets.repeat(2)[::2], [0, 1, 1, 4]):
        assert_equal(run(rows, offsets=given), wanted)
    assert_equal(run(vr.Variable(x)), wanted)
    for given in (offsets[None], np.array(4), offsets.astype(float), offsets[:0], np.array([0, 2, 1, 4])):
        with pytest.raises(InputError):
            run(rows, offsets=given)
    for given in (np.array(1, np.float32), rows[None], rows.astype(">f4"), rows.astype(float), rows[0]):
        with pytest.raises(InputError):
            run(given, offsets=offsets)
        with pytest.raises(InputError):
            layer.stream(2)(given)


ONE = np.ones((4, 3), np.float32)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda layer: layer.prepare()(ONE), ShapeError, "offsets: expected offsets of sequences, as x has no LoD"),
        (lambda layer: layer.prepare()(ONE, offsets=[0, 3]), ShapeError, "offset 4, the number of rows, got 3"),
        (lambda layer: layer.prepare()(ONE, offsets=[0, 5]), ShapeError, "offset 4, the number of rows, got 5"),
        (lambda layer: layer.prepare()(ONE, offsets=[0, 5, 4]), LoDError, "never fall"),
        (lambda layer: layer.prepare()(ONE, offsets=[1, 4]), LoDError, "0"),
        (lambda layer: layer.prepare()(ONE, offsets=[]), LoDError, "offset"),
        (lambda layer: layer.prepare()(ONE, offsets=[0.0, 4.0]), InputError, "integer"),
        (lambda layer: layer.prepare()(ONE, offsets=[0, *[9] * 100, 4]), LoDError, "never fall"),
        (lambda layer: layer.prepare()(ONE[:, :2], offsets=[0, 4]), ShapeError, r"expected \(rows, 3\) float32"),
        (lambda layer: layer.prepare()(ONE.astype(float), offsets=[0, 4]), DTypeError, "got .* float64"),
        (
            lambda layer: layer.prepare()(ONE, ONE, offsets=[0, 4]),
            ShapeError,
            r"states: expected \(h_0, c_0\)",
        ),
        (
            lambda layer: layer.prepare()(ONE, (ONE, ONE), offsets=[0, 4]),
            ShapeError,
            r"prepared, h_0: expected \(1, 1, 4\)",
        ),
        (lambda layer: layer.stream(0), ShapeError, "num_sequences: expected at least 1"),
        (lambda layer: layer.stream(2)(ONE), ShapeError, "2 rows, one for each slot, got 4"),
        (lambda layer: layer.stream(2)(ONE[:2], at=[0, 0]), OutOfRangeError, "slots that differ"),
        (lambda layer: layer.stream(2)(ONE[:1], at=[2]), OutOfRangeError, "at"),
        (lambda layer: layer.stream(2)(ONE[0]), ShapeError, r"expected \(rows, 3\)"),
        (lambda layer: layer.stream(2).reset([3]), OutOfRangeError, "at"),
        (lambda layer: vr.nn.LSTM(3, 4, bidirectional=True).stream(), ShapeError, "direction 'forward', got 'both'"),
        (lambda layer: vr.nn.LSTM(3, 4, zoneout=0.1).prepare(), ShapeError, "a cell that reads only x and states"),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call(vr.nn.LSTM(3, 4))


class Model(vr.nn.Module):
    """Layers of many kinds, in a list and in a dict, some of which hand states over."""

    def __init__(self):
        self.table = vr.nn.Embedding(10, 4)
        self.layers = [vr.nn.LSTM(4, 6, bidirectional=True), vr.nn.GRU(12, 5)]
        self.others = {"masked": vr.nn.GRU(5, 5, zoneout=0.1)}
        self.dropout, self.behind = vr.nn.Dropout(0.5), vr.nn.Linear(5, 3)

    def forward(self, ids):
        y, _ = self.layers[0](self.table(ids))
        y, last = self.layers[1](y)
        y, _ = self.others["masked"](y, last)
        return self.behind(self.dropout(vr.sequence_pool(y, "max")))


def test_a_prepared_model():
    model = Model()
    ids = vr.create_lod_tensor(np.arange(8), [[3, 0, 5]])
    run = model.prepare()
    assert model.training
    wanted = np.asarray(model.eval()(ids))
    for parameter in model.parameters():
        parameter.assign(0.0)
    found = run(ids)
    assert np.array_equal(found, wanted)
    assert not found.requires_grad
    assert not np.asarray(model(ids)).any()


def test_all_cells():
    for cell in CELLS.values():
        layer, x = vr.nn.Recurrent(cell, 3, 4), batch([2, 5], np.float32)
        assert_equal(layer.prepare()(x), layer(x))
