"""Zoneout and dropout inside of recurrent layers: their masks, and their numbers by loops of NumPy."""

import weakref

import numpy as np
import pytest
from scipy.special import expit as sigmoid

import varlen_rnn as vr
from tests.differences import slope
from tests.in_threads import on_threads
from varlen_rnn.cells import Row, cell, registry, tanh
from varlen_rnn.tape.variable import apply

LENGTHS = [3, 0, 5, 1]
KINDS = {"LSTM": (vr.nn.LSTM, 2), "GRU": (vr.nn.GRU, 1), "RNN": (vr.nn.RNN, 1)}


OPTIONS = [{"zoneout": 0.4}, {"recurrent_dropout": 0.4}, {"weight_dropout": 0.5}]
OPTIONS += [{"zoneout": 0.2, "recurrent_dropout": 0.3, "weight_dropout": 0.1}]


@pytest.fixture(autouse=True)
def tables(monkeypatch):
    """What a test makes is forgotten after it; its numbers are the same in each run."""
    monkeypatch.setattr(registry, "_CELLS", weakref.WeakValueDictionary(registry._CELLS))
    vr.manual_seed(3)


def batch(columns=3, lengths=LENGTHS, dtype=np.float64):
    return vr.create_lod_tensor(np.random.default_rng(0).normal(size=(sum(lengths), columns)).astype(dtype), [lengths])


def mask(per_sequence, training, p=0.3, units=400, lengths=(50, 0, 70)):
    drawn = apply("row_mask", batch(2, list(lengths)), p=p, units=units, per_sequence=per_sequence, training=training)
    return np.asarray(drawn)


def test_masks_of_rows():
    drawn = mask(False, True)
    assert set(np.unique(drawn)) == {0, 1}
    assert drawn.mean() == pytest.approx(0.3, abs=0.01)
    assert (mask(False, False) == 0.3).all()
    assert not np.array_equal(mask(False, True), drawn), "another one each time"
    vr.manual_seed(3)
    assert np.array_equal(mask(False, True), drawn)


def test_masks_of_sequences():
    drawn = mask(True, True)
    assert (drawn[:50] == drawn[0]).all()
    assert (drawn[50:] == drawn[50]).all()
    assert not np.array_equal(drawn[0], drawn[50])
    np.testing.assert_allclose(np.unique(drawn), [0, 1 / 0.7])
    assert (drawn == 0).mean() == pytest.approx(0.3, abs=0.06)
    assert (mask(True, False) == 1).all()
    assert not mask(True, True, p=1.0).any()


def test_what_comes_after_a_row_changes_no_number_before_it():
    drawn = {}
    for lengths in ((4, 2), (4, 2, 9)):
        vr.manual_seed(5)
        drawn[lengths] = mask(False, True, lengths=lengths), mask(True, True, lengths=lengths)
    for short, long in zip(*drawn.values(), strict=True):
        np.testing.assert_array_equal(short, long[:6])


@pytest.mark.parametrize("kind", KINDS)
def test_in_evaluation_zoneout_is_its_expectation_and_dropout_nothing(kind):
    make, _ = KINDS[kind]
    plain = make(3, 4, dtype=np.float64)
    zoned = make(3, 4, dtype=np.float64, zoneout=0.25, recurrent_dropout=0.5)
    zoned.load_state_dict(plain.state_dict())
    zoned.train(False)
    w_ih, w_hh, b_ih, b_hh = (np.asarray(plain.state_dict()[f"{name}_l0"]) for name in
                              ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))  # fmt: skip
    x = batch()
    y, _ = zoned(x)
    wanted, cuts = [], np.cumsum([0, *LENGTHS])
    for i in range(len(LENGTHS)):
        h, c = np.zeros(4), np.zeros(4)
        for row in np.asarray(x)[cuts[i] : cuts[i + 1]]:
            a, u = w_ih @ row + b_ih, w_hh @ h + b_hh
            if kind == "LSTM":
                i_, f, g, o = np.split(a + u, 4)
                now = sigmoid(f) * c + sigmoid(i_) * np.tanh(g)
                new = sigmoid(o) * np.tanh(now)
                c = 0.25 * c + 0.75 * now
            elif kind == "GRU":
                (ar, az, an), (ur, uz, un) = np.split(a, 3), np.split(u, 3)
                z, n = sigmoid(az + uz), np.tanh(an + sigmoid(ar + ur) * un)
                new = (1 - z) * n + z * h
            else:
                new = np.tanh(a + u)
            h = 0.25 * h + 0.75 * new
            wanted.append(h)
    np.testing.assert_allclose(np.asarray(y), wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "options", [{"zoneout": 0.4}, {"recurrent_dropout": 0.4}, {"zoneout": 0.2, "recurrent_dropout": 0.3}]
)
def test_gradients_in_training_are_differences(kind, options):
    """The gradient sees the masks that the output saw: of one seed, one loss."""
    make, _ = KINDS[kind]
    layer, x = (
        make(3, 4, dtype=np.float64, direction="both", num_layers=2, **options),
        vr.Variable(batch(), requires_grad=True),
    )
    rng = np.random.default_rng(1)

    def loss():
        vr.manual_seed(11)
        y, _ = layer(x)
        return (y * weights).sum()

    weights = rng.normal(size=(sum(LENGTHS), 8))
    loss().backward()
    for parameter in layer.parameters():
        v = rng.normal(size=parameter.shape)
        difference = slope(loss, parameter.data, v)
        assert (np.asarray(parameter.grad) * v).sum() == pytest.approx(difference, rel=1e-6, abs=1e-7)


def test_threads_change_no_bit():
    def step():
        vr.manual_seed(1)
        layer = vr.nn.LSTM(3, 70, zoneout=(0.1, 0.4), recurrent_dropout=0.2)
        y, _ = layer(batch(3, [40, 30, 9, 0, 50] * 4, np.float32))
        (y * y).mean().backward()
        return y, *(p.grad for p in layer.parameters())

    on_threads(step)


def test_a_program_draws_masks_at_each_run(tmp_path):
    layer, program = vr.nn.GRU(3, 4, zoneout=0.5, dtype=np.float64), vr.Program()
    with vr.program_guard(program):
        x = vr.feed_data("x", (-1, 3), np.float64, lod_level=1)
        y, _ = layer(x)
    program.save(tmp_path / "zoned")
    executor, again = vr.Executor(), vr.Program.load(tmp_path / "zoned")
    runs = [np.asarray(executor.run(again, feed={"x": batch()}, fetch_list=[y.name])[0]) for _ in range(2)]
    assert not np.array_equal(*runs)


PER_SEQUENCE = {"num_layers": 2, "dropout": 0.5, "dropout_per": "sequence"}


@pytest.mark.parametrize("options", [*OPTIONS, PER_SEQUENCE], ids=str)
def test_a_model_for_inference_draws_nothing(options, tmp_path):
    """Also one that was recorded in training."""
    layer = vr.nn.GRU(3, 4, **options, dtype=np.float64)
    with vr.program_guard() as program:
        y, _ = layer(vr.feed_data("x", (-1, 3), np.float64, lod_level=1))
    vr.save_inference_model(tmp_path, ["x"], [y], program)
    model = vr.load_inference_model(tmp_path)
    (found,) = vr.Executor().run(model, {"x": batch()}, model.fetch_names)
    layer.eval()
    np.testing.assert_array_equal(np.asarray(found), np.asarray(layer(batch())[0]))


def test_rows_of_a_cell_of_ones_own():
    @cell
    def gated(a, /, h, *, gain: Row):
        return tanh(a) * gain + h

    layer, x = vr.nn.Recurrent(gated, 3, 4, dtype=np.float64, direction="both"), batch()
    gain = vr.Variable(x.like(np.random.default_rng(2).normal(size=(9, 4))), requires_grad=True)
    y, _ = layer(x, rows={"gain": gain})
    (y * y).sum().backward()
    loss = lambda: (layer(x, rows={"gain": gain})[0] ** 2).sum()
    v = np.random.default_rng(3).normal(size=(9, 4))
    difference = slope(loss, gain.value.data, v)
    assert (np.asarray(gain.grad) * v).sum() == pytest.approx(difference, rel=1e-6)
    for rows in (None, {}, {"other": gain}, 3, {"gain": np.zeros((8, 4))}, {"gain": np.zeros((9, 4), np.float32)}):
        with pytest.raises(vr.InputError):
            layer(x, rows=rows)
    whole, (), last = layer.all_states(x, rows={"gain": gain})
    np.testing.assert_array_equal(np.asarray(whole), np.asarray(y))
    assert last.shape == (2, 4, 4)
    with pytest.raises(vr.InputError, match="expected num_layers=1"):
        vr.nn.Recurrent(gated, 3, 4, num_layers=2, dtype=np.float64)(x, rows={"gain": gain})
    with pytest.raises(vr.InputError, match="the layer draws them"):
        vr.nn.GRU(3, 4, zoneout=0.1)(batch(dtype=np.float32), rows={"keep_h": gain})


@pytest.mark.parametrize("given", [-0.1, 1.5, "half", None, (0.1,), (0.1, 0.2, 0.3), float("nan")], ids=str)
def test_what_is_no_probability_is_refused(given):
    for name in ("zoneout", "recurrent_dropout", "weight_dropout"):
        with pytest.raises(vr.InputError, match=name):
            vr.nn.LSTM(3, 4, **{name: given})


def test_repr_and_bounds():
    layer = vr.nn.LSTM(3, 4, zoneout=(0.1, 0.2), recurrent_dropout=0.3, weight_dropout=0.4)
    assert "zoneout=(0.1, 0.2), recurrent_dropout=0.3, weight_dropout=0.4" in repr(layer)
    assert "zoneout=0.1" in repr(vr.nn.GRU(3, 4, zoneout=0.1))
    assert "weight_dropout" not in repr(vr.nn.RNN(3, 4, zoneout=0.1))
    with pytest.raises(vr.InputError, match="proj_size"):
        vr.nn.LSTM(3, 4, zoneout=0.1, proj_size=2)


def test_weights_are_dropped_in_training_alone():
    layer, x = vr.nn.RNN(3, 50, weight_dropout=0.5, dtype=np.float64), batch()
    first, again = np.asarray(layer(x)[0]), np.asarray(layer(x)[0])
    assert not np.array_equal(first, again)
    layer.train(False)
    plain = vr.nn.RNN(3, 50, dtype=np.float64)
    plain.load_state_dict(layer.state_dict())
    np.testing.assert_array_equal(np.asarray(layer(x)[0]), np.asarray(plain(x)[0]))


def test_what_is_dropped_are_numbers_of_the_recurrent_weight_for_a_whole_pass():
    """Of a layer that computes `W_ih x + W_hh h`: from a one of each unit, a step shows the weight itself."""
    layer = vr.nn.RNN(2, 30, nonlinearity="identity", bias=False, weight_dropout=0.25, dtype=np.float64)
    layer.weight_ih_l0.assign(np.ones((30, 2)))
    layer.weight_hh_l0.assign(np.full((30, 30), 3.0))
    none, ones = (vr.create_lod_tensor(fill((60, 2)), [[2] * 30]) for fill in (np.zeros, np.ones))
    y = np.asarray(layer(none, np.eye(30)[None])[0])
    dropped = y[0::2].T
    assert set(np.unique(dropped)) == {0.0, 4.0}
    assert (dropped == 0).mean() == pytest.approx(0.25, abs=0.05)
    np.testing.assert_allclose(y[1::2], y[0::2] @ dropped.T, rtol=1e-12)  # the same numbers at the next step
    assert (np.asarray(layer(ones)[0])[0::2] == 2).all(), "those of `weight_ih` stay"


def test_dropout_per_sequence_has_one_mask_for_all_rows_of_a_sequence():
    vr.manual_seed(3)
    x = vr.create_lod_tensor(np.ones((40, 6)), [[25, 0, 15]])
    x = vr.Variable(x, requires_grad=True)
    y = vr.nn.functional.dropout(x, 0.5, per="sequence")
    out = np.asarray(y)
    assert set(np.unique(out)) == {0.0, 2.0}
    assert (out == np.repeat(out[[0, 25]], [25, 15], axis=0)).all()
    assert (out[0] != out[25]).any()
    y.sum().backward()
    np.testing.assert_array_equal(np.asarray(x.grad), out)
    layer = vr.nn.Dropout(0.5, per="sequence")
    assert repr(layer) == "Dropout(p=0.5, per='sequence')"
    assert (np.asarray(layer.eval()(x)) == 1).all()
    assert np.asarray(vr.nn.functional.dropout(x, 1.0, per="sequence")).max() == 0


def test_dropout_between_layers_per_sequence():
    options = {"num_layers": 2, "nonlinearity": "identity", "bias": False, "dropout": 0.5, "dropout_per": "sequence"}
    layer = vr.nn.RNN(3, 8, **options, dtype=np.float64)
    x = vr.create_lod_tensor(np.random.default_rng(0).standard_normal((7, 3)), [[4, 3]])
    layer.weight_ih_l1.assign(np.eye(8))  # the outputs are what the second layer is given
    layer.weight_hh_l1.assign(np.zeros((8, 8)))
    dropped = []
    for seed in (1, 1, 2):
        vr.manual_seed(seed)
        dropped.append(np.asarray(layer(x)[0]) == 0)
    assert (dropped[0] == np.repeat(dropped[0][[0, 4]], [4, 3], axis=0)).all()
    assert (dropped[0][0] != dropped[0][4]).any()
    np.testing.assert_array_equal(dropped[0], dropped[1])
    assert (dropped[0] != dropped[2]).any()
    assert "dropout_per='sequence'" in repr(layer)
    with pytest.raises(vr.ShapeError, match="dropout_per"):
        vr.nn.GRU(3, 8, dropout_per="batch")


@pytest.mark.parametrize(
    "make", [lambda: vr.nn.Linear(5, 4, dtype=np.float64), lambda: vr.nn.GRU(5, 4, dtype=np.float64)]
)
def test_weight_norm_changes_no_result_and_trains_length_and_direction(make):
    vr.manual_seed(0)
    module = make()
    name = "weight" if isinstance(module, vr.nn.Linear) else "weight_ih_l0"
    x = vr.create_lod_tensor(np.random.default_rng(0).standard_normal((7, 5)), [[4, 0, 3]])

    def loss():
        y = module(x)
        y = y[0] if isinstance(y, tuple) else y
        return (y * y).sum()

    before = loss().item()
    w = getattr(module, name).data.copy()
    assert vr.nn.weight_norm(module, name) is module
    assert {f"{name}_g", f"{name}_v"} <= set(module.state_dict())
    assert name not in module.state_dict()
    np.testing.assert_allclose(loss().item(), before, rtol=1e-13)
    g, v = getattr(module, f"{name}_g"), getattr(module, f"{name}_v")
    v.assign(3 * w)  # its length does not matter
    np.testing.assert_allclose(loss().item(), before, rtol=1e-13)
    loss().backward()
    for parameter in (g, v):
        way = np.random.default_rng(1).standard_normal(parameter.shape)
        here, step, losses = parameter.data.copy(), 1e-6, []
        for sign in (1, -1):
            parameter.assign(here + sign * step * way)
            losses.append(loss().item())
        parameter.assign(here)
        np.testing.assert_allclose((parameter.grad * way).sum(), (losses[0] - losses[1]) / (2 * step), rtol=1e-7)


def test_weight_norm_is_that_of_pytorch():
    torch = pytest.importorskip("torch")
    theirs = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(3, 2, dtype=torch.float64))
    ours = vr.nn.weight_norm(vr.nn.Linear(3, 2, dtype=np.float64))
    g, v = theirs.parametrizations.weight.original0, theirs.parametrizations.weight.original1
    state = {"bias": theirs.bias, "weight_g": g, "weight_v": v}
    ours.load_state_dict({name: value.detach().numpy() for name, value in state.items()})
    x = np.random.default_rng(0).standard_normal((5, 3))
    np.testing.assert_allclose(np.asarray(ours(x)), theirs(torch.tensor(x)).detach().numpy(), rtol=1e-12)


@pytest.mark.parametrize("name", ["bias", "none", 3])
def test_weight_norm_says_what_it_takes(name):
    with pytest.raises(vr.InputError, match="weight_norm"):
        vr.nn.weight_norm(vr.nn.Linear(2, 2), name)
    with pytest.raises(AttributeError, match="no attribute 'weigth'"):
        _ = vr.nn.Linear(2, 2).weigth


def test_weight_norm_in_a_program_is_that_of_eager_mode(tmp_path):
    layer = vr.nn.weight_norm(vr.nn.LSTM(3, 4), "weight_hh_l0")
    x = vr.create_lod_tensor(np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32), [[4, 2]])
    with vr.program_guard() as program:
        given = vr.feed_data("x", [-1, 3], "float32", lod_level=1)
        y, _ = layer(given)
    found = vr.Executor().run(program, {"x": x}, [y])[0]
    np.testing.assert_array_equal(np.asarray(found), np.asarray(layer(x)[0]))
