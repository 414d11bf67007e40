"""The persistent kernel: all steps of a layer in one launch, in tf32, beside an oracle of NumPy and the CPU engine."""

import dataclasses

import numpy as np
import pytest
from numba import types

import varlen_rnn as vr
from tests.emulated.device import MARKS, Driver
from tests.emulated.figures import count_float64, figures_of
from tests.emulated.ledger import LAUNCH, totals
from tests.emulated.mutants import mutants, schedules_that_see
from tests.emulated.sources import ptx_of
from tests.test_cuda_training import Training
from varlen_rnn import recurrence
from varlen_rnn.cells import CELLS, LN_LSTM, lstm_cell
from varlen_rnn.recurrence import persistent
from varlen_rnn.recurrence.persistent import Layout, forward_kernel
from varlen_rnn.recurrence.task import Call
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.cuda import Limits
from varlen_rnn.runtime.device import to_device

pytestmark = MARKS
HIDDEN, FEATURES = 32, 5
LENGTHS = {
    "some": [3, 5, 0, 1, 4],
    "one sequence": [4],
    "one step": [1, 1, 1],
    "more than a tile": [2, 4, 1, 3, 3, 2, 1, 1, 1, 4, 2] * 3,
    "none": [0, 0],
}
PEEPHOLES, MASKED = lstm_cell(peepholes=True), lstm_cell(recurrent_dropout=True)


@pytest.fixture
def tf32(monkeypatch):
    """Put the emulated device in the place of a GPU, and let it compute in tf32."""
    monkeypatch.setattr(cuda, "driver", Driver())
    vr.set_float32_matmul_precision("tf32")
    yield
    vr.set_float32_matmul_precision("fp32")


class Layer:
    """A layer with its arguments, on the host."""

    def __init__(self, cell, lengths, directions, seed=0):
        rng = np.random.default_rng(seed)
        draw = lambda *shape: (rng.normal(size=shape) / shape[-1] ** 0.5).astype(np.float32)
        gates, of_x, rows = cell.phases[0].gates * HIDDEN, len(cell.x_gates) * HIDDEN, sum(lengths)
        self.cell, self.lengths, self.plan = cell, lengths, vr.sort_by_seq_len(np.cumsum([0, *lengths]))
        self.x = rng.normal(size=(rows, FEATURES)).astype(np.float32)
        masks = lambda: (rng.random((rows, len(cell.row_inputs) * HIDDEN)) < 0.7).astype(np.float32)
        self.directions = [
            [
                draw(of_x, FEATURES), draw(gates, HIDDEN), draw(of_x), draw(gates), None,
                draw(len(cell.vectors), HIDDEN) if cell.vectors else None, masks() if cell.row_inputs else None,
            ]
            for _ in range(directions)
        ]  # fmt: skip
        self.initial = draw(len(cell.states), directions, len(lengths), HIDDEN)

    def run(self, place, reverse=None, gradients=False):
        """Return outputs, last states and saved columns; or the gradients of x, weights and initial states."""
        put = (lambda a: None if a is None else to_device(a)) if place == "cuda" else lambda a: a
        get = lambda a: a.copy_to_host() if place == "cuda" else a
        directions = [recurrence.Direction(*map(put, own)) for own in self.directions]
        arguments = self.cell, put(self.x), directions, put(self.initial), self.plan
        y, last, kept = recurrence.forward(*arguments, True, reverse)
        if not gradients:
            width = self.cell.num_kept * HIDDEN
            return [get(y), get(last), *(get(rows)[:, :width] for rows in kept)]
        rng = np.random.default_rng(5)
        d_y, d_last = (rng.normal(size=a.shape).astype(np.float32) for a in (y, last))
        saved, arriving = recurrence.Saved(y, kept), recurrence.Arriving(put(d_y), put(d_last))
        d_x, d_directions, d_initial = recurrence.backward(*arguments, saved, arriving, reverse=reverse)
        return [get(a) for a in (d_x, d_initial, *(own for d in d_directions for own in d[:4]))]


def rounded(x):
    """Return float32 numbers rounded to the nearest with 10 bits of mantissa, ties away from zero."""
    return ((x.view(np.uint32) + 0x1000) & 0xFFFFE000).view(np.float32)


def lstm(layer, d, backwards):
    """Return the outputs of an LSTM's direction: products of rounded numbers, all else in float64."""
    w_ih, w_hh, b_ih, b_hh, *_ = layer.directions[d]
    y, end = np.zeros((len(layer.x), HIDDEN)), 0
    sigmoid = lambda a: 1 / (1 + np.exp(-a))
    for number, length in enumerate(layer.lengths):
        (h, c), begin, end = layer.initial[:, d, number], end, end + length
        for row in reversed(range(begin, end)) if backwards else range(begin, end):
            operand = rounded(h.astype(np.float32)).astype(float)
            a = layer.x[row].astype(float) @ w_ih.T + b_ih + operand @ rounded(w_hh).T + b_hh
            i, f, g, o = np.split(a, 4)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            y[row] = h = sigmoid(o) * np.tanh(c)
    return y


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_outputs_of_an_lstm_are_the_oracles(lengths, tf32):
    layer = Layer(CELLS["lstm"], lengths, 2)
    before = totals().get(LAUNCH, 0)
    y, *_ = layer.run("cuda")
    assert totals().get(LAUNCH, 0) - before <= 4, "two projections, all steps, the last states"
    right = np.concatenate([lstm(layer, d, backwards=bool(d)) for d in range(2)], axis=1)
    np.testing.assert_allclose(y, right, atol=2e-6)


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("cell", [*CELLS.values(), PEEPHOLES, MASKED], ids=[*CELLS, "peepholes", "row inputs"])
def test_all_cells_are_the_cpus_as_far_as_tf32_goes(cell, directions, tf32):
    if Layout.of(cell, HIDDEN) is None:
        pytest.skip("no persistent kernel")
    layer = Layer(cell, LENGTHS["some"], directions)
    for reverse in ((False, True)[:directions], (True, False)[:directions]):
        for there, here in zip(layer.run("cuda", reverse), layer.run("cpu", reverse), strict=True):
            np.testing.assert_allclose(there, here, atol=4e-3)


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_gradients_go_on_from_what_the_kernel_saved(name, tf32):
    layer = Layer(CELLS[name], LENGTHS["some"], 2)
    for there, here in zip(layer.run("cuda", gradients=True), layer.run("cpu", gradients=True), strict=True):
        np.testing.assert_allclose(there, here, atol=5e-3 * max(1.0, np.abs(here).max()))


def test_the_gradient_is_the_slope(tf32):
    """Both losses are rounded to tf32, so the difference between their arguments is large."""
    layer = Layer(CELLS["lstm"], [3, 2], 1)
    rng = np.random.default_rng(5)
    d_y, d_last = (rng.normal(size=a.shape).astype(np.float32) for a in layer.run("cuda")[:2])
    d_x = layer.run("cuda", gradients=True)[0]
    way, losses = rng.normal(size=layer.x.shape).astype(np.float32), []
    for sign in (1, -1):
        moved = Layer(CELLS["lstm"], [3, 2], 1)
        moved.x += np.float32(sign * 0.02) * way
        y, last, _ = moved.run("cuda")
        losses.append((y.astype(float) * d_y).sum() + (last.astype(float) * d_last).sum())
    np.testing.assert_allclose((losses[0] - losses[1]) / 0.04, (d_x * way).sum(), rtol=2e-2)


def test_a_sequence_has_the_same_bits_whatever_the_batch(tf32):
    whole = Layer(CELLS["gru"], LENGTHS["more than a tile"], 1)
    alone = Layer(CELLS["gru"], LENGTHS["more than a tile"][:3], 1)
    alone.directions, alone.x = whole.directions, whole.x[: len(alone.x)]
    alone.initial = np.ascontiguousarray(whole.initial[:, :, :3])
    assert (alone.run("cuda")[0] == whole.run("cuda")[0][: len(alone.x)]).all()


H100, OLD = Limits((9, 0), 132, 227 * 1024), Limits((7, 5), 72, 64 * 1024)


@pytest.mark.parametrize(
    ("cell", "hidden", "directions", "groups"),
    [
        (CELLS["lstm"], 256, 2, 4), (CELLS["lstm"], 512, 2, 2), (CELLS["lstm"], 1024, 1, 1),
        (CELLS["lstm"], 1024, 2, 0), (CELLS["gru"], 256, 1, 16), (CELLS["gru"], 512, 2, 2),
    ],
)  # fmt: skip
def test_as_many_groups_run_as_the_gpu_has_room_for(cell, hidden, directions, groups):
    layout = Layout.of(cell, hidden)
    assert layout.groups(directions, H100, 64) == groups
    assert layout.groups(directions, H100, 1) == min(1, groups)
    assert layout.groups(directions, OLD, 64) == 0, "no tf32"
    assert layout.groups(directions, H100._replace(shared=1024), 64) == 0


@pytest.mark.parametrize("cell", [LN_LSTM, vr.cells.gru_cell(reset_after=False)], ids=["norms", "two phases"])
def test_other_cells_have_no_layout(cell):
    assert Layout.of(cell, 512) is None
    assert Layout.of(CELLS["lstm"], 500) is None
    assert Layout.of(CELLS["lstm"], 2048) is None


@pytest.mark.parametrize("why", ["fp32", "float64", "no room"])
def test_otherwise_the_plain_kernels_run(why, tf32, monkeypatch):
    layer, dtype = Layer(CELLS["lstm"], LENGTHS["some"], 2), np.dtype("f8" if why == "float64" else "f4")
    if why == "fp32":
        vr.set_float32_matmul_precision("fp32")
    if why == "no room":
        monkeypatch.setattr(cuda.driver, "limits", Limits((9, 0), 3, 64 * 1024))
    x = np.empty((1, 1), dtype)
    directions = [recurrence.Direction(*own) for own in layer.directions]
    shape = recurrence.layer.shape_of(layer.cell, layer.x, directions[0])
    assert not persistent.fits(Call(layer.cell, x, directions, None, layer.plan, (False, True), shape))
    if why != "float64":
        for there, here in zip(layer.run("cuda"), layer.run("cpu"), strict=True):
            np.testing.assert_allclose(there, here, atol=1e-5)


def test_a_training_step_of_names_takes_one_launch_forward(tf32, monkeypatch):
    training = Training("cuda", hidden_size=HIDDEN)
    batch = training.batch()
    steps = vr.sort_by_seq_len(batch[0]).max_seq_len
    training.step(*batch)
    before = totals()[LAUNCH]
    training.step(*batch)
    assert totals()[LAUNCH] - before <= steps + 50


def kinds(directions):
    floats = lambda axes: types.Array(types.float32, axes, "C")
    several, whole = lambda kind: types.UniTuple(kind, directions), types.Array(types.int64, 1, "C")
    tuples = types.Tuple
    ranks = tuples((whole, whole, whole, several(types.boolean)))
    layer = tuples((floats(4), floats(3), several(floats(2)), several(floats(2)), floats(3), floats(2)))
    return ranks, whole, layer, several(floats(1)), several(floats(1)), types.Array(types.int32, 1, "C")


SIZES = [("lstm", 256, 2), ("lstm", 512, 2), ("lstm", 1024, 1), ("gru", 256, 2), ("gru", 512, 2)]


@pytest.mark.parametrize(("name", "hidden", "directions"), SIZES)
def test_weights_of_large_layers_stay_in_registers(name, hidden, directions):
    kernel = forward_kernel(CELLS[name], Layout.of(CELLS[name], hidden))
    ptx = ptx_of(kernel.source, kinds(directions))
    assert count_float64(ptx) == 0
    for figures in figures_of(ptx).values():
        assert (figures["stack"], figures["spills"]) == (0, 0)


def test_each_synchronisation_is_needed(tf32, monkeypatch):
    """Race checking sees every barrier that is removed, and the release and the acquire that are relaxed."""
    layer = Layer(CELLS["lstm"], [3, 3, 2, 1, 2, 3, 3, 2, 2, 1, 1, 3, 3, 1, 2, 2, 3, 3], 1)
    right, found = layer.run("cuda")[0], {}
    kernel = forward_kernel(layer.cell, Layout.of(layer.cell, HIDDEN))
    ptx = ptx_of(kernel.source, kinds(1))

    original = Driver.run

    def run(changed, schedule):
        def changed_run(self, function, blocks, threads, parameters, shared=0, together=False):
            if not together:
                return original(self, function, blocks, threads, parameters)
            limited = dataclasses.replace(schedule, limit=3_000_000)
            return changed.run((blocks,), (threads,), parameters, shared, schedule=limited)

        monkeypatch.setattr(Driver, "run", changed_run)
        np.testing.assert_array_equal(layer.run("cuda")[0], right)

    assert schedules_that_see(ptx, run) == 0
    for name, changed in mutants(ptx).items():
        found[name] = schedules_that_see(changed, run)
    assert len(found) >= 7
    assert min(found.values()) > 0, found
