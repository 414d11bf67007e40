"""How many launches a layer and a training step take on a CUDA device."""

import gc

import numpy as np
import pytest

import varlen_rnn as vr
from tests.emulated.device import MARKS, Driver
from tests.emulated.ledger import LAUNCH, totals
from tests.test_cuda_training import Training
from varlen_rnn.runtime import cuda

pytestmark = MARKS
STEPS = 2, 4
# Of a layer: launches per step forward and backward, and whether they depend on the number of directions.
LAYERS = {
    "lstm": (lambda **more: vr.nn.LSTM(3, 4, **more), 1, 1),
    "gru": (lambda **more: vr.nn.GRU(3, 4, **more), 1, 1),
    "gru of two phases": (lambda **more: vr.nn.GRU(3, 4, reset_after=False, **more), 2, 2),
    "lstm with a projection": (lambda **more: vr.nn.LSTM(3, 4, proj_size=2, **more), 2, 2),
    "lstm with peepholes": (lambda **more: vr.nn.Recurrent(vr.cells.lstm_cell(peepholes=True), 3, 4, **more), 1, 1),
    "normalised lstm": (lambda **more: vr.nn.Recurrent(vr.cells.LN_LSTM, 3, 4, **more), 5, 5),
}


@pytest.fixture
def on_cuda(monkeypatch):
    monkeypatch.setattr(cuda, "driver", Driver())


def launches(function, *arguments):
    """Call a function; return its result and the number of its launches."""
    before = totals().get(LAUNCH, 0)
    found = function(*arguments)
    return found, totals()[LAUNCH] - before


@pytest.mark.parametrize("name", LAYERS)
def test_a_step_of_a_layer_is_one_launch_per_phase_for_all_directions(name, on_cuda):
    make, of_forward, of_backward = LAYERS[name]
    found = {}
    for directions in (1, 2):
        layer = make(bidirectional=directions == 2).to("cuda")
        for steps in STEPS:
            x = vr.create_lod_tensor(np.ones((steps + 1, 3), np.float32), [[steps, 1]]).to("cuda")
            loss, forward = launches(lambda layer=layer, x=x: layer(x)[0].sum())
            found[directions, steps] = np.array([forward, launches(loss.backward)[1]])
            layer.zero_grad()
    for directions in (1, 2):
        per_step = (found[directions, STEPS[1]] - found[directions, STEPS[0]]) / (STEPS[1] - STEPS[0])
        assert per_step.tolist() == [of_forward, of_backward]
    assert (found[2, STEPS[0]] - found[1, STEPS[0]] <= [1, 8]).all(), "only the large products"


def test_a_training_step_of_names_takes_two_launches_per_step_and_at_most_50(on_cuda):
    training = Training("cuda")
    batch = training.batch()
    steps = vr.sort_by_seq_len(batch[0]).max_seq_len
    for _ in range(2):
        training.step(*batch)
        gc.collect()
    assert launches(training.step, *batch)[1] <= 2 * steps + 50
