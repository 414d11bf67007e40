"""Every cell and option through the engine: its published equations, differences, and the laws of a batch."""

import numpy as np
import pytest
from oracles import cells as oracle

from tests.conftest import Device
from tests.in_threads import on_threads
from varlen_rnn import recurrence
from varlen_rnn.cells import (
    GRU_D,
    INDRNN,
    LIGRU,
    LN_GRU,
    LN_LSTM,
    LSTM,
    MGU,
    MIN_GRU,
    MIN_LSTM,
    SRU,
    Row,
    cell,
    constant,
    find_cell,
    gru_cell,
    lstm_cell,
    rnn_cell,
    slstm_cell,
    tanh,
    where,
)
from varlen_rnn.rows.plan import sort_by_seq_len

pytestmark = pytest.mark.twins

LSTMS = [
    {},
    {"peepholes": True},
    {"coupled": True},
    {"forget_gate": False},
    {"peepholes": True, "coupled": True, "clip": 0.7},
    {"peepholes": True, "forget_gate": False},
    {"cell_clip": 0.4},
    {"proj_clip": 0.05},
    {"activations": ("hard_sigmoid", ("scaled_tanh", 1.7, 0.6), "softsign"), "clip": 1.5},
]
GRUS = [
    {},
    {"reset_after": False},
    {"origin_mode": False},
    {"reset_after": False, "origin_mode": False, "clip": 0.8},
    {"reset_after": False, "activations": (("hard_sigmoid", 0.3, 0.4), "softplus")},
]
RNNS = [{"activation": name} for name in sorted(oracle.ACTIVATIONS)]
RNNS += [
    {"activation": ("leaky_relu", 0.2), "clip": 0.5},
    {"activation": ("elu", 0.7)},
    {"activation": ("affine", 0.5, 0.1)},
]


@cell
def with_rows(a, /, h, *, w, keep: Row, mask: Row):
    """Zoneout by a mask, and a mask of what the product reads, which has a gradient."""
    n = tanh(a.x + a.of(mask * h) + w * mask)
    return where(constant(keep) > 0.5, h, n)


SINGLE = MGU, LIGRU, INDRNN, SRU, MIN_GRU, MIN_LSTM, GRU_D, LN_LSTM, LN_GRU, with_rows
ZOO = {one.name: (one, getattr(oracle, one.name)) for one in SINGLE}
for family, equations, options in (
    (lstm_cell, oracle.lstm, LSTMS),
    (gru_cell, oracle.gru, GRUS),
    (rnn_cell, oracle.rnn, RNNS),
    (slstm_cell, oracle.slstm, [{}, {"forget": "sigmoid"}]),
):
    for chosen in options:
        ZOO[family(**chosen).name] = family(**chosen), equations(**chosen)

TROUBLES = [0, 3, 7, 1, 0, 4, 2, 2, 5, 6, 1, 0]
SIZES = [(3, 10), (5, 70)]
# The scope makes all tests of a cell neighbours, so that one worker compiles it, and not all of them at once.
by_cell = pytest.mark.parametrize("name", ZOO, scope="module")
# Where each cell is compiled anew, a few of those that differ in nothing but their activation are enough.
FEW = [name for name in ZOO if name not in {rnn_cell(**options).name for options in RNNS[:-3]}] + [rnn_cell().name]

PROJECTED = [name for name in FEW if ZOO[name][0].may_project and ZOO[name][0].h_gates]

# A device compiles a cell in seconds.  It runs every equation and activation.  Loops are the same for all cells, so it
# runs them with a cell of each kind: with vectors, two phases, normalisation, rows of input, a bound, several states.
EQUATIONS = {*FEW, *(rnn_cell(activation=name).name for name in ("relu", "silu", "thresholded_relu"))}
LOOPS = {"lstm(peepholes=True)", "gru(reset_after=False)", LN_LSTM.name, with_rows.name}
PROJECTIONS = {"lstm", "lstm(proj_clip=0.05)", "lstm(peepholes=True)", LN_LSTM.name, "slstm"}


def only(names, device, name):
    """Skip a cell on a device unless it is one of these."""
    if device.name == "cuda" and name not in names:
        pytest.skip("other cells run on the device what this one has")


class Case:
    """A layer of a cell, or several directions, on the host in float64."""

    def __init__(self, name, lengths, size, reverse=(False,), outputs=None, seed=0):
        rng = np.random.default_rng(seed)
        self.cell, self.step = ZOO[name]
        cell, (inputs, hidden) = self.cell, size
        self.gates, self.reverse, self.offsets = (cell.x_gates, cell.h_gates), reverse, np.cumsum([0, *lengths])
        self.plan, self.hidden, self.outputs = sort_by_seq_len(self.offsets), hidden, outputs or hidden
        of_x, of_h = len(cell.x_gates) * hidden, len(cell.h_gates) * hidden
        shapes = [
            (of_x, inputs),
            (of_h, self.outputs),
            (of_x,),
            (of_h,),
            (outputs, hidden),
            (len(cell.vectors), hidden),
        ]
        shapes.append((self.offsets[-1], len(cell.row_inputs) * hidden))
        exists = True, True, True, True, outputs, cell.vectors, cell.row_inputs
        self.directions = [
            [
                rng.normal(size=s) / max(1, s[-1]) ** 0.5 if there else None
                for s, there in zip(shapes, exists, strict=True)
            ]
            for _ in reverse
        ]
        sizes = len(cell.states), len(reverse), len(lengths), hidden
        self.x, self.initial = rng.normal(size=(self.offsets[-1], inputs)), rng.normal(size=sizes)
        if cell.name.startswith("slstm"):
            self.initial[2] = np.exp(self.initial[2])  # what c is divided by
        self.d_y = rng.normal(size=(self.offsets[-1], len(reverse) * self.outputs))
        self.d_last = rng.normal(size=sizes)
        self.d_others = rng.normal(size=(len(reverse), self.offsets[-1], len(cell.states) - 1, hidden))
        for states in (self.initial, self.d_last):
            states[0, ..., self.outputs :] = 0

    def oracle(self, x=None, directions=None, initial=None):
        arguments = self.x if x is None else x, self.offsets, self.directions if directions is None else directions
        start = self.initial if initial is None else initial
        vectors = self.cell.vectors + self.cell.row_inputs
        return oracle.layer(self.step, self.gates, vectors, *arguments, start, self.reverse, self.cell.proj_clip)

    def loss(self, **changed):
        y, last, others = self.oracle(**changed)
        return (y * self.d_y).sum() + (last * self.d_last).sum() + (others * self.d_others).sum()

    def run(self, device, dtype=np.float64):
        """Return y, last and the other states of every row; and the gradients of x, of weights and initial states.

        The arguments stay as they were.  If `initial` is None, states begin as zeros.
        """
        given = []

        def moved(a):
            if a is not None:
                given.append((device.put(np.ascontiguousarray(a, dtype)), a.astype(dtype)))
                return given[-1][0]

        directions = [recurrence.Direction(*map(moved, direction)) for direction in self.directions]
        x, initial, num_others = moved(self.x), moved(self.initial), len(self.cell.states) - 1
        arguments = self.cell, x, directions, initial, self.plan
        y, last, kept = recurrence.forward(*arguments, reverse=self.reverse)
        begin = len(self.cell.slots) * self.hidden
        others = [device.get(k)[:, begin : begin + num_others * self.hidden].copy() for k in kept]
        others = np.reshape(others, (len(kept), len(self.x), num_others, self.hidden))
        d_others = [moved(d.reshape(len(d), num_others * self.hidden)) for d in self.d_others] if num_others else None
        outputs = device.get(y).copy(), device.get(last).copy(), others
        saved = recurrence.Saved(y, kept)
        arriving = recurrence.Arriving(moved(self.d_y), moved(self.d_last), d_others)
        gradients = recurrence.backward(*arguments, saved, arriving, reverse=self.reverse)
        for after, before in [*given, (y, outputs[0])]:
            np.testing.assert_array_equal(device.get(after), before)
        d_x, d_directions, d_initial = gradients
        host = lambda a: None if a is None else device.get(a)
        return outputs, (host(d_x), [[host(a) for a in d] for d in d_directions], host(d_initial))

    def part(self, chosen):
        """Return the case of some sequences alone, in this order, and the numbers of their rows."""
        rows = np.concatenate([np.arange(0), *(np.arange(*self.offsets[i : i + 2]) for i in chosen)])
        part = Case(self.cell.name, np.diff(self.offsets)[chosen].tolist(), (self.x.shape[1], self.hidden))
        of_rows = [None if d[-1] is None else d[-1][rows] for d in self.directions]
        part.directions = [[*d[:-1], given] for d, given in zip(self.directions, of_rows, strict=True)]
        part.x, part.d_y, part.initial = self.x[rows], self.d_y[rows], self.initial[:, :, chosen]
        part.d_last, part.d_others = self.d_last[:, :, chosen], self.d_others[:, rows]
        return part, rows


def close(got, right):
    np.testing.assert_allclose(got, right, rtol=0, atol=1e-12 * max(1.0, np.linalg.norm(right)))


def check_gradient(case, gradients):
    """Compare with central differences along one random direction for each argument."""
    rng, (d_x, d_directions, d_initial) = np.random.default_rng(9), gradients

    def compare(gradient, change, v):
        found = (gradient * v).sum()
        for step in (1e-6, 1e-7, 1e-8):  # a kink between the two points is no fault: it does not outlast shorter steps
            difference = (case.loss(**change(step * v)) - case.loss(**change(-step * v))) / (2 * step)
            rounding = 1e-14 * max(1.0, abs(case.loss())) / step
            if abs(found - difference) <= 1e-7 * max(1.0, abs(difference)) + rounding:
                return
        np.testing.assert_allclose(found, difference, rtol=1e-7, atol=1e-7 + rounding)

    def changed(number, place, v):
        directions = [list(direction) for direction in case.directions]
        directions[number][place] = directions[number][place] + v
        return {"directions": directions}

    compare(d_x, lambda v: {"x": case.x + v}, rng.normal(size=d_x.shape))
    v = rng.normal(size=d_initial.shape)
    v[0, ..., case.outputs :] = 0
    compare(d_initial, lambda v: {"initial": case.initial + v}, v)
    for number, direction in enumerate(d_directions):
        for place, gradient in enumerate(direction):
            if gradient is not None:
                v = rng.normal(size=gradient.shape)
                compare(gradient, lambda v, number=number, place=place: changed(number, place, v), v)


def check(case, device):
    outputs, gradients = case.run(device)
    for got, right in zip(outputs, case.oracle(), strict=True):
        close(got, right)
    check_gradient(case, gradients)


@pytest.mark.slow
@by_cell
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_equals_its_equations_and_its_gradient_a_difference(device, name, size):
    only(EQUATIONS, device, name)
    check(Case(name, TROUBLES, size), device)


@by_cell
@pytest.mark.parametrize("reverse", [(True,), (False, True)], ids=str)
def test_directions(device, name, reverse):
    only(LOOPS, device, name)
    check(Case(name, TROUBLES[:6], SIZES[0], reverse), device)


@pytest.mark.parametrize("name", PROJECTED, scope="module")
@pytest.mark.parametrize("outputs", [1, 7])
def test_projections(device, name, outputs):
    only(PROJECTIONS, device, name)
    check(Case(name, TROUBLES, SIZES[0], outputs=outputs), device)
    check(Case(name, TROUBLES[:5], SIZES[0], (False, True), outputs), device)


@by_cell
@pytest.mark.parametrize("lengths", [[], [0, 0], [1, 1, 1], [4, 4]], ids=str)
def test_troubles(device, name, lengths):
    only(EQUATIONS, device, name)
    check(Case(name, lengths, SIZES[0]), device)


@pytest.mark.parametrize(
    "name", [LN_LSTM.name, "gru(reset_after=False)", "lstm(peepholes=True)", "lstm", "gru"], scope="module"
)
def test_float32_is_float64_rounded(device, name):
    for width in (None, 7) if name in PROJECTED else (None,):
        case = Case(name, TROUBLES, SIZES[0], outputs=width)
        outputs, gradients = case.run(device, np.float32)
        _, right = case.run(Device("cpu"))
        pairs = [*zip(outputs, case.oracle(), strict=True), (gradients[0], right[0]), (gradients[2], right[2])]
        pairs += [pair for two in zip(gradients[1], right[1], strict=True) for pair in zip(*two, strict=True)]
        for got, wide in pairs:
            if got is not None:
                assert got.dtype == np.float32
                np.testing.assert_allclose(got, wide, rtol=0, atol=3e-6 * max(1.0, np.linalg.norm(wide)))


def bits(results):
    (y, last, others), (d_x, _, d_initial) = results
    return y, last, others, d_x, d_initial


def assert_same_bits(whole, part, sequences, rows):
    """Compare the bits of a part with those that its sequences and rows have in the whole batch."""
    for wide, own, at in zip(whole, part, (rows, sequences, rows, rows, sequences), strict=True):
        np.testing.assert_array_equal(
            wide[at] if wide.ndim == 2 else wide[:, at] if at is rows else wide[:, :, at], own
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", FEW, scope="module")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_threads_change_no_bit(device, name, dtype):
    """Neither groups that threads take in turns, nor teams that share units; weights' gradients neither."""
    if device.name != "cpu":
        pytest.skip("a law of the CPU engine")
    for lengths, size in (([60, 55], (40, 200)), ([9, 0, 30, 12, 1, 25] * 6, (20, 70))):
        case = Case(name, lengths, size)

        def step(case=case):
            outputs, (d_x, d_directions, d_initial) = case.run(device, dtype)
            return *outputs, d_x, d_initial, *(a for d in d_directions for a in d if a is not None)

        on_threads(step)


@by_cell
def test_batch_mates_change_no_bit(device, name):
    only(LOOPS, device, name)
    case = Case(name, [9, 0, 30, 12, 1, 25, 30], (5, 70))
    whole = bits(case.run(device))
    for chosen in ([2], [5, 0, 2], [1, 3]):
        part, rows = case.part(chosen)
        assert_same_bits(whole, bits(part.run(device)), chosen, rows)


@by_cell
def test_inference_gives_the_same_bits(device, name):
    only(EQUATIONS, device, name)
    case = Case(name, TROUBLES, SIZES[-1])
    (y, last, _), _ = case.run(device)
    directions = [recurrence.Direction(*(None if a is None else device.put(a) for a in d)) for d in case.directions]
    got = recurrence.forward(case.cell, device.put(case.x), directions, device.put(case.initial), case.plan, keep=False)
    np.testing.assert_array_equal(device.get(got[0]), y)
    np.testing.assert_array_equal(device.get(got[1]), last)
    assert got[2] == []


def test_names_tell_the_options():
    for name, (one, _) in ZOO.items():
        assert find_cell(name) is one
    assert lstm_cell() is LSTM
    assert lstm_cell(peepholes=True) is lstm_cell(peepholes=True, clip=None)
    assert rnn_cell(activation=["leaky_relu", 0.01]) is rnn_cell(activation="leaky_relu")


def parallel(keep, take, h):
    """h_t = keep_t h_{t-1} + take_t for positive numbers, as the paper's training computes it: a sum of logarithms."""
    along = np.vstack([np.zeros_like(h), np.log(keep).cumsum(axis=0)])
    terms = np.log(np.vstack([h[None], take])) - along
    return np.exp(along + np.logaddexp.accumulate(terms, axis=0))[1:]


@pytest.mark.parametrize("name", ["min_gru", "min_lstm"])
def test_minimal_cells_equal_the_sum_of_logarithms(device, name):
    case = Case(name, [5], SIZES[0])
    case.initial = np.abs(case.initial)
    case.directions[0][2][-case.hidden :] += 20  # positive candidates
    w_ih, _, bias, *_ = case.directions[0]
    *gates, n = np.split(case.x @ w_ih.T + bias, len(case.cell.x_gates), axis=1)
    shares = [1 / (1 + np.exp(-gate)) for gate in gates]
    keep, take = (1 - shares[0], shares[0]) if len(gates) == 1 else [share / sum(shares) for share in shares]
    close(case.run(device)[0][0], parallel(keep, take * n, case.initial[0, 0, 0]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("f", "i", "share"), [(-2000, -2000, 0.5), (-2000, 2000, 1), (2000, -2000, 0), (2000, 2000, 0.5)]
)
def test_closed_gates_of_min_lstm_divide_by_no_zero(device, dtype, f, i, share):
    case = Case("min_lstm", [2], (1, 1))
    case.directions[0][0][:], case.directions[0][2][:] = 0, [f, i, 3]
    case.initial[:], case.d_y[:], case.d_last[:] = 1, 1, 0
    (y, *_), (_, ((_, _, d_bias, *_),), _) = case.run(device, dtype)
    assert y[0, 0] == 1 + share * 2
    assert np.isfinite(d_bias).all()
