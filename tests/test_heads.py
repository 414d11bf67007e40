"""Recurrent weights of heads: a layer equals separate layers of one head each, with slices of the weights."""

import numpy as np
import pytest
from oracles import cells as oracle
from test_cell_zoo import Case, bits, check  # as pytest imports it, because a cell's name can be taken only once

import varlen_rnn as vr
from tests.conftest import Device
from tests.differences import slope
from tests.in_threads import on_threads
from varlen_rnn.errors import InputError
from varlen_rnn.nn import functional as F

HOST, LENGTHS = Device("cpu"), [0, 3, 7, 1, 0, 4, 2]
# (cell, units, heads): heads smaller than a panel, in panels of their own, and across the edges of panels.
CASES = [
    ("lstm(peepholes=True)", 10, 5),
    ("gru(reset_after=False)", 120, 3),
    ("gru", 96, 3),
    ("slstm", 128, 2),
    ("with_rows", 36, 4),
]


class Heads(Case):
    """A layer of a cell with heads; `weight_hh` (gates * hidden, hidden / heads) has a block for each gate and head."""

    def __init__(self, name, lengths, hidden, heads, reverse=(False,)):
        super().__init__(name, lengths, (3, hidden), reverse)
        self.heads, self.head = heads, hidden // heads
        for direction in self.directions:
            direction[1] = np.ascontiguousarray(direction[1][:, : self.head]) * heads**0.5

    def of_head(self, array, number):
        """Return the rows of a head of all gates, from an array whose first axis runs over gates and units."""
        parts = array.reshape(-1, self.heads, self.head, *array.shape[1:])
        return parts[:, number].reshape(-1, *array.shape[1:])

    def oracle(self, x=None, directions=None, initial=None):
        x, directions = self.x if x is None else x, self.directions if directions is None else directions
        initial = self.initial if initial is None else initial
        found, vectors = [], self.cell.vectors + self.cell.row_inputs
        for number in range(self.heads):
            own, units = [], slice(number * self.head, (number + 1) * self.head)
            for *weights, _, v, given in directions:
                v = None if v is None else v[:, units]
                given = None if given is None else self.of_head(given.T, number).T
                own.append([*(self.of_head(weight, number) for weight in weights), None, v, given])
            start = initial[..., units]
            y, last, others = oracle.layer(
                self.step, self.gates, vectors, x, self.offsets, own, start, self.reverse, self.cell.proj_clip
            )
            found.append((y.reshape(len(x), len(directions), self.head), last, others))
        y, last, others = (np.concatenate(parts, axis=-1) for parts in zip(*found, strict=True))
        return y.reshape(len(x), -1), last, others


@pytest.mark.slow
@pytest.mark.twins
@pytest.mark.parametrize(("name", "hidden", "heads"), CASES, ids=[f"{name}-{heads}" for name, _, heads in CASES])
def test_heads_equal_separate_layers(device, name, hidden, heads):
    case = Heads(name, LENGTHS, hidden, heads, (False, True) if name == "gru" else (True,))
    check(case, device)


def test_neither_batch_mates_nor_threads_change_a_bit():
    case = Heads("gru(reset_after=False)", [9, 0, 30, 12, 1, 25] * 6, 80, 2)

    def step():
        (y, last, _), (d_x, (d_weights,), d_initial) = case.run(HOST, np.float32)
        return y, last, d_x, d_initial, *d_weights[:4]

    found = on_threads(step)
    alone = Heads("gru(reset_after=False)", [30], 80, 2)
    rows = slice(9, 39)
    alone.x, alone.d_y, alone.directions = case.x[rows], case.d_y[rows], case.directions
    alone.initial, alone.d_last = case.initial[:, :, 2:3], case.d_last[:, :, 2:3]
    y, last, _, d_x, d_initial = bits(alone.run(HOST, np.float32))
    right = found[0][rows], found[1][:, :, 2:3], found[2][rows], found[3][:, :, 2:3]
    for one, two in zip((y, last, d_x, d_initial), right, strict=True):
        np.testing.assert_array_equal(one, two)


def test_more_rows_than_a_group_of_blocks():
    """The gradient of the weight is summed in groups of blocks of rows, which only large batches have."""
    case = Heads("rnn_tanh", [4200, 10], 20, 2)
    _, (_, (d_weights,), _) = case.run(HOST)
    dense = Case("rnn_tanh", [4200, 10], (3, 20))
    dense.directions = [[*case.directions[0]]]
    dense.directions[0][1] = full(case.directions[0][1], 2)
    dense.x, dense.initial, dense.d_y, dense.d_last = case.x, case.initial, case.d_y, case.d_last
    _, (_, (right,), _) = dense.run(HOST)
    np.testing.assert_allclose(full(d_weights[1], 2), right[1] * (full(np.ones((20, 10)), 2) > 0), atol=1e-9)


def test_a_nan_stays_in_its_head():
    case = Heads("rnn_tanh", [4], 10, 2)
    case.initial[0, 0, 0, 7] = case.d_last[0, 0, 0, 1] = np.nan
    y, last, *_ = bits(case.run(HOST, np.float32))
    assert np.isfinite(y[:, :5]).all()
    assert np.isnan(y[:, 5:]).all()
    assert np.isfinite(last[..., :5]).all()
    case.initial[0, 0, 0, 7] = 0  # now only a gradient is NaN
    d_initial = bits(case.run(HOST, np.float32))[4]
    assert np.isnan(d_initial[..., :5]).all()
    assert np.isfinite(d_initial[..., 5:]).all()


def full(weight_hh, heads):
    """Return a recurrent weight as a layer without heads has it: with zeros outside the blocks of heads."""
    head = weight_hh.shape[1]
    found = np.zeros((len(weight_hh), heads * head), weight_hh.dtype)
    for row, numbers in enumerate(weight_hh):
        begin = row % (heads * head) // head * head
        found[row, begin : begin + head] = numbers
    return found


OPTIONS = {"num_layers": 2, "bidirectional": True, "dtype": np.float64}
LAYERS = {
    "LSTM": lambda heads: vr.nn.LSTM(3, 12, num_heads=heads, peepholes=True, **OPTIONS),
    "GRU": lambda heads: vr.nn.GRU(3, 12, num_heads=heads, reset_after=False, **OPTIONS),
    "SLSTM": lambda heads: vr.nn.SLSTM(3, 12, heads, forget="sigmoid", **OPTIONS),
}


def same(one, two):
    np.testing.assert_array_equal(np.asarray(one), np.asarray(two))


def squares(layer, x):
    y, _ = layer(x)
    (y * y).sum().backward()
    return y


@pytest.mark.parametrize("name", LAYERS)
def test_equals_a_layer_whose_weights_have_the_blocks(name):
    layer, plain = LAYERS[name](3), LAYERS[name](1)
    state = {key: np.asarray(value) for key, value in layer.state_dict().items()}
    plain.load_state_dict({key: full(value, 3) if "weight_hh" in key else value for key, value in state.items()})
    rows = vr.create_lod_tensor(np.random.default_rng(0).standard_normal((9, 3)), [[3, 0, 5, 1]])
    x, other = (vr.Variable(rows, requires_grad=True) for _ in range(2))
    pairs = [(squares(layer, x), squares(plain, other)), (x.grad, other.grad)]
    for (key, own), (_, right) in zip(layer.named_parameters(), plain.named_parameters(), strict=True):
        has_blocks = full(np.ones(own.shape), 3) if "weight_hh" in key else 1
        pairs.append((full(np.asarray(own.grad), 3) if "weight_hh" in key else own.grad, right.grad * has_blocks))
    for one, two in pairs:
        np.testing.assert_allclose(np.asarray(one), np.asarray(two), rtol=0, atol=1e-11)


def test_every_way_to_run_a_layer_gives_its_bits(tmp_path):
    layer, rows = vr.nn.SLSTM(3, 12, 3), np.random.default_rng(0).standard_normal((9, 3)).astype(np.float32)
    x = vr.Variable(vr.create_lod_tensor(rows, [[3, 0, 5, 1]]), requires_grad=True)
    y, _ = layer(x)
    same(layer.prepare()(rows, offsets=[0, 3, 3, 8, 9])[0], y)
    stream = layer.stream()
    same([stream(row) for row in rows[:3]], np.asarray(y)[:3])
    same(vr.baselines.Padded(layer)(x)[0], y)
    with vr.program_guard() as program:
        out, _ = layer(vr.feed_data("x", [-1, 3], "float32", lod_level=1))
    program.save(tmp_path / "p")
    same(vr.Executor().run(vr.Program.load(tmp_path / "p"), {"x": x.value}, [out.name])[0], y)
    recomputing = vr.nn.SLSTM(3, 12, 3, recompute=2)
    recomputing.load_state_dict(layer.state_dict())
    for one in (layer, recomputing):
        squares(one, x)
    for one, two in zip(layer.parameters(), recomputing.parameters(), strict=True):
        np.testing.assert_allclose(np.asarray(one.grad), np.asarray(two.grad), rtol=0, atol=1e-5)


def test_a_step_with_heads_can_be_bound():
    def make():
        vr.manual_seed(0)
        layer, top = vr.nn.LSTM(3, 12, num_heads=3), vr.nn.Linear(12, 2)
        optimizer = vr.optim.SGD([*layer.parameters(), *top.parameters()], lr=0.1)

        def step(x):
            optimizer.zero_grad()
            loss = vr.nn.functional.cross_entropy(top(vr.sequence_pool(layer(x)[0], "last")), np.array([0, 1]))
            loss.backward()
            optimizer.step()
            return loss

        return step

    step, bound, rng = make(), vr.bound(make()), np.random.default_rng(0)
    for _ in range(20):
        x = vr.create_lod_tensor(rng.standard_normal((5, 3)).astype(np.float32), [[3, 2]])
        same(step(x), bound(x))
    assert "none without Python" not in bound.explain()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: vr.nn.LSTM(3, 4, num_heads=3), "num_heads: expected a divisor of hidden_size=4, got 3"),
        (lambda: vr.nn.GRU(3, 4, num_heads=0), "num_heads"),
        (lambda: vr.nn.LSTM(3, 4, num_heads=2, proj_size=2), "num_heads: expected 1, with proj_size=2, got 2"),
        (lambda: vr.nn.Recurrent(vr.cells.LN_GRU, 3, 4, num_heads=2), "'ln_gru' normalises values over all units"),
        (lambda: vr.nn.Recurrent(vr.cells.MIN_GRU, 3, 4, num_heads=2), "'min_gru' has no recurrent weights"),
        (lambda: vr.nn.SLSTM(3, 4, forget="tanh"), "forget: expected one of 'exp' or 'sigmoid'"),
        (lambda: vr.nn.SLSTM(3, 4, zoneout=0.1), "zoneout"),
    ],
)
def test_what_cannot_have_heads(make, message):
    with pytest.raises((vr.InputError, TypeError), match=message):
        make()


def test_a_forget_gate_at_zero_has_half_the_slope():
    layer = vr.nn.SLSTM(1, 1, 1, forget="sigmoid", dtype=np.float64)
    for parameter in layer.parameters():
        parameter.value.data[:] = 0
    x, start = vr.create_lod_tensor(np.zeros((1, 1)), [[1]]), np.ones((1, 1, 1))
    layer.weight_ih_l0.value.data[2] = 0  # the candidate
    _, (_, _, n, m) = layer(x, (0 * start, start, start, 0 * start))
    (n.log() + m).sum().backward()  # log(f n + i), whatever m is
    np.testing.assert_allclose(np.asarray(layer.bias_ih_l0.grad)[:2], [2 / 3, 1 / 6], atol=1e-12)


def test_gates_may_arrive_projected():
    rng, offsets = np.random.default_rng(0), np.array([0, 3, 3, 8, 9])
    make = lambda value: vr.Variable(value, requires_grad=True)
    gates = make(vr.create_lod_tensor(rng.standard_normal((9, 48)), [np.diff(offsets).tolist()]))
    weight, bias = make(rng.standard_normal((48, 4))), make(rng.standard_normal(48))
    h, c, n, m = rng.standard_normal((4, 1, 4, 12))
    states = [make(state) for state in (h, c, np.exp(n), m)]
    d_y, d_last = rng.standard_normal((9, 12)), rng.standard_normal((4, 1, 4, 12))

    for forget in ("exp", "sigmoid"):

        def wanted(gates, weight, bias, *states, forget=forget):
            direction = np.eye(48), full(weight, 3), np.zeros(48), bias, None, None, None
            initial = np.array(states)
            return oracle.layer(
                oracle.slstm(forget), ("ifzo", "ifzo"), (), gates, offsets, [direction], initial, [False]
            )

        inputs = gates, weight, bias, *states
        y, last = F.slstm(gates, weight, bias, states, forget=forget)
        right_y, right_last, _ = wanted(*(np.asarray(v.numpy()) for v in inputs))
        np.testing.assert_allclose(y.numpy(), right_y, rtol=0, atol=1e-12)
        np.testing.assert_allclose([np.asarray(state) for state in last], right_last, rtol=0, atol=1e-12)
        loss = (y * d_y).sum() + sum((state * d).sum() for state, d in zip(last, d_last, strict=True))
        for variable in inputs:
            variable.grad = None
        loss.backward()
        given = [np.array(v.numpy()) for v in inputs]

        def loss_of_arrays(given=given, wanted=wanted):
            y, last, _ = wanted(*given)
            return (y * d_y).sum() + (last * d_last).sum()

        for number, variable in enumerate(inputs):
            for place in rng.integers(0, variable.numpy().size, 3):
                difference = slope(loss_of_arrays, given[number].reshape(-1), at=place)
                np.testing.assert_allclose(np.asarray(variable.grad).flat[place], difference, rtol=1e-6, atol=1e-7)


def test_gates_of_a_layer_give_its_bits_and_its_errors():
    layer, x = vr.nn.SLSTM(3, 12, 3), vr.Variable(np.random.default_rng(0).standard_normal((9, 3)).astype(np.float32))
    for lengths in ([3, 0, 5, 1], [9], [1] * 9, [0]):
        rows = vr.create_lod_tensor(x.numpy()[: sum(lengths)], [lengths])
        gates = vr.Variable(rows) @ layer.weight_ih_l0.T + layer.bias_ih_l0
        (y, last), (wanted, wanted_last) = F.slstm(gates, layer.weight_hh_l0, layer.bias_hh_l0), layer(rows)
        for one, two in zip((y, *last), (wanted, *wanted_last), strict=True):
            np.testing.assert_allclose(np.asarray(one), np.asarray(two), rtol=1e-5, atol=1e-6)
        assert y.lod() == wanted.lod()
    for arguments, message in (
        (
            (np.zeros((5, 7)), np.zeros((8, 2))),
            r"slstm, gates: expected rows of four gates, of shape \(rows, 4 \* hidden",
        ),
        ((rows, np.zeros((12, 3), np.float32)), "slstm, gates"),
        ((gates, np.zeros((40, 12), np.float32)), "weight_hh"),
        ((gates, layer.weight_hh_l0, None, (None,)), r"slstm, states: expected \(h_0, c_0, n_0, m_0\)"),
        ((gates, layer.weight_hh_l0, np.zeros(3, np.float32)), "bias_hh"),
    ):
        with pytest.raises(InputError, match=message):
            F.slstm(*arguments)


def test_an_input_gate_far_below_zero_is_no_nan():
    for forget in ("exp", "sigmoid"):
        gates = np.zeros((4, 48), np.float32)
        gates[:, :12], gates[:, 24:36] = -500, 1
        y, _ = F.slstm(vr.create_lod_tensor(gates, [[3, 1]]), np.zeros((48, 4), np.float32), forget=forget)
        np.testing.assert_allclose(np.asarray(y), np.tanh(1) / 2, rtol=1e-6)
