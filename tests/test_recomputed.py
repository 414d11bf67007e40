"""Layers that compute again what they did not keep: the same bits forward, the same gradients, less memory."""

import tracemalloc

import numpy as np
import pytest

import varlen_rnn as vr

OPTIONS = {
    "lstm": (vr.nn.LSTM, {}),
    "lstm both ways, projected": (vr.nn.LSTM, {"bidirectional": True, "proj_size": 2, "num_layers": 2}),
    "gru backward": (vr.nn.GRU, {"direction": "backward"}),
    "rnn": (vr.nn.RNN, {"bias": False, "direction": "both", "merge": "sum"}),
}
LENGTHS = {"ragged": [7, 0, 12, 1, 5], "equal": [6, 6, 6], "one step": [1, 1], "none at all": [0, 0], "long": [40]}


def results(kind, options, lengths, recompute, with_states=True, weights=True):
    """Return y and the last states, and the gradients of all that has one."""
    vr.manual_seed(0)
    layer, rng = kind(3, 5, dtype=np.float64, **options, recompute=recompute), np.random.default_rng(0)
    x = vr.Variable(vr.create_lod_tensor(rng.standard_normal((sum(lengths), 3)), [lengths]), requires_grad=True)
    units = [layer.output_size, *[5] * (len(layer.cell.states) - 1)]
    shape = layer.num_layers * layer.num_directions, len(lengths)
    states = [vr.Variable(rng.standard_normal((*shape, size)), requires_grad=True) for size in units]
    for parameter in layer.parameters():
        parameter.requires_grad = weights
    given = (tuple(states) if len(states) > 1 else states[0],) if with_states else ()
    y, last = layer(x, *given)
    outputs = [y, *(last if len(states) > 1 else [last])]
    sum(((value * rng.standard_normal(value.shape)).sum() for value in outputs), 0.0).backward()
    leaves = [x, *(states if with_states else []), *(layer.parameters() if weights else [])]
    return outputs, [leaf.grad for leaf in leaves]


@pytest.mark.parametrize("recompute", [True, 1, 3, 100])
@pytest.mark.parametrize("with_states", [True, False])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("name", OPTIONS)
def test_equals_the_layer_that_keeps_everything(name, lengths, with_states, recompute):
    whole = results(*OPTIONS[name], lengths, False, with_states)
    found = results(*OPTIONS[name], lengths, recompute, with_states)
    for value, right in zip(found[0], whole[0], strict=True):
        np.testing.assert_array_equal(np.asarray(value), np.asarray(right))
        assert value.lod() == right.lod()
    for value, right in zip(found[1], whole[1], strict=True):
        np.testing.assert_allclose(np.asarray(value), np.asarray(right), rtol=1e-10, atol=1e-12)


def test_frozen_weights_have_no_gradient():
    kind, options = OPTIONS["lstm"]
    _, (d_x, *_) = results(kind, options, [4, 2], True, weights=False)
    _, (wanted, *_) = results(kind, options, [4, 2], False, weights=False)
    np.testing.assert_allclose(np.asarray(d_x), np.asarray(wanted), rtol=1e-12)


def test_a_program_that_was_saved_recomputes(tmp_path):
    layer = vr.nn.LSTM(3, 4, recompute=True)
    x = vr.create_lod_tensor(np.random.default_rng(0).random((9, 3), np.float32), [[5, 0, 4]])
    with vr.program_guard() as program:
        y, _ = layer(vr.feed_data("x", [-1, 3], "float32", lod_level=1, requires_grad=True))
        (y * y).sum().backward()
        names = [y.name, "x@GRAD"]
    recurrent = [op for op in program.desc.blocks[0].ops if op.type.startswith("recurrent")]
    assert [(op.type, {attr.name: attr.value for attr in op.attrs}["every"]) for op in recurrent] == [
        ("recurrent", 0), ("recurrent_grad", 0),
    ]  # fmt: skip
    program.save(tmp_path / "p")
    y, d_x = vr.Executor().run(vr.Program.load(tmp_path / "p"), {"x": x}, names)
    eager = vr.Variable(x, requires_grad=True)
    wanted, _ = layer(eager)
    (wanted * wanted).sum().backward()
    np.testing.assert_array_equal(np.asarray(y), np.asarray(wanted))
    np.testing.assert_array_equal(np.asarray(d_x), np.asarray(eager.grad))


def test_a_layer_keeps_less():
    def kept(recompute):
        layer = vr.nn.LSTM(8, 64, recompute=recompute)
        x = vr.create_lod_tensor(np.zeros((4 * 400, 8), np.float32), [[400] * 4])
        vr.release_memory()
        tracemalloc.start()
        y, _ = layer(x)
        size, peak = tracemalloc.get_traced_memory()
        y.sum().backward()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return size, peak

    kept(True), kept(False)  # what is made once
    (size, peak), (size_of_all, peak_of_all) = kept(True), kept(False)
    assert size < size_of_all / 3
    assert peak < peak_of_all


@pytest.mark.parametrize("rows", [0, 1])
def test_checkpoints_are_of_the_rows(rows):
    x = vr.create_lod_tensor(np.zeros((5, 3)), [[2, 3]])
    weights = [np.zeros(shape) for shape in ((2, 3), (2, 2), (2,), (2,))]
    attrs = {"cell": "rnn_tanh", "num_forward": 6, "need_x": True, "need_weights": True, "reverse": (0,), "every": 2}
    given = [x, None, *weights, None, vr.sort_by_seq_len(x), np.zeros((rows, 2)), None, None]
    with pytest.raises(vr.ShapeError, match="recurrent_grad, kept: expected 3 rows of states"):
        vr.tape.variable.apply("recurrent_grad", *given, **attrs)


def test_a_gradient_that_recomputes_nothing_needs_the_outputs():
    x = vr.create_lod_tensor(np.zeros((5, 3)), [[2, 3]])
    weights = [np.zeros(shape) for shape in ((2, 3), (2, 2), (2,), (2,))]
    attrs = {"cell": "rnn_tanh", "num_forward": 6, "need_x": True, "need_weights": True, "reverse": (0,)}
    given = [x, None, *weights, None, vr.sort_by_seq_len(x), np.zeros((5, 2)), None, None]
    with pytest.raises(vr.ShapeError, match="recurrent_grad: expected 5 inputs"):
        vr.tape.variable.apply("recurrent_grad", *given, **attrs)


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({"every": -1}, "every: expected 0 or more steps"),
        ({"every": 2, "all_states": True}, "every: expected None, because all states"),
        ({"every": 2, "cell": "lstm(zoneout=True)"}, "every: expected None, because the cell has inputs"),
    ],
)
def test_steps_that_a_layer_cannot_recompute(attrs, message):
    x = vr.create_lod_tensor(np.zeros((5, 3)), [[2, 3]])
    vr.cells.lstm_cell(zoneout=True)
    weights = [np.zeros(shape) for shape in ((2, 3), (2, 2), (2,), (2,))]
    with pytest.raises(vr.ShapeError, match=f"recurrent, {message}"):
        vr.tape.variable.apply("recurrent", x, None, *weights, **{"cell": "rnn_tanh", "keep": True, **attrs})


def test_a_program_for_inference_cuts_nothing():
    layer = vr.nn.GRU(3, 4, recompute=2)
    x = vr.create_lod_tensor(np.random.default_rng(0).random((9, 3), np.float32), [[5, 0, 4]])
    with vr.program_guard() as program:
        y, _ = layer(vr.feed_data("x", [-1, 3], "float32", lod_level=1))
        name = y.name
    pruned = program.prune([name])
    (recurrent,) = (op for op in pruned.desc.blocks[0].ops if op.type == "recurrent")
    assert "every" not in {attr.name for attr in recurrent.attrs}
    (found,) = vr.Executor().run(pruned, {"x": x}, [name])
    with vr.no_grad():
        np.testing.assert_array_equal(np.asarray(found), np.asarray(layer(x)[0]))


@pytest.mark.parametrize("option", ["zoneout", "recurrent_dropout"])
def test_masks_are_refused_when_a_layer_is_made(option):
    with pytest.raises(vr.ShapeError, match="recompute: expected False"):
        vr.nn.LSTM(3, 4, recompute=True, **{option: 0.1})


@pytest.mark.parametrize("recompute", [0, -1, 1.5, "yes"])
def test_steps_are_a_number(recompute):
    with pytest.raises(vr.InputError, match="recompute"):
        vr.nn.GRU(3, 4, recompute=recompute)
