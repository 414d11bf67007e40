"""The persistent kernel: all steps of a layer in one launch, in tf32, beside an oracle of NumPy and the CPU engine."""

import numpy as np
import pytest

import varlen_rnn as vr
from tests.emulated.device import Driver, missing
from varlen_rnn import recurrence
from varlen_rnn.cells import CELLS
from varlen_rnn.recurrence import persistent
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.device import to_device

pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")
HIDDEN = 32


@pytest.fixture
def on_cuda(monkeypatch):
    monkeypatch.setattr(cuda, "driver", Driver())
    vr.set_float32_matmul_precision("tf32")
    yield
    vr.set_float32_matmul_precision("fp32")


def weights(cell, directions, rng, features=5):
    gates, of_x = cell.phases[0].gates, len(cell.x_gates)
    shapes = (of_x * HIDDEN, features), (gates * HIDDEN, HIDDEN), (of_x * HIDDEN,), (gates * HIDDEN,)
    return [[(rng.normal(size=s) / s[-1] ** 0.5).astype(np.float32) for s in shapes] for _ in range(directions)]


def run(cell, lengths, directions, place, reverse=None, seed=0):
    rng = np.random.default_rng(seed)
    x, given = rng.normal(size=(sum(lengths), 5)).astype(np.float32), weights(cell, directions, rng)
    initial = rng.normal(size=(len(cell.states), directions, len(lengths), HIDDEN)).astype(np.float32)
    plan = vr.sort_by_seq_len(np.cumsum([0, *lengths]))
    put = to_device if place == "cuda" else lambda array: array
    of = [recurrence.Direction(*map(put, own)) for own in given]
    found = recurrence.forward(cell, put(x), of, put(initial), plan, True, reverse)
    return [a.copy_to_host() if place == "cuda" else a for a in (*found[:2], *found[2])]


LENGTHS = {"some": [3, 5, 0, 1, 4], "one": [4], "steps": [1, 1, 1], "many": [2, 4, 1, 3, 3, 2, 1, 1, 1, 4, 2] * 2}


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("name", ["lstm"])
def test_outputs_are_the_cpus(name, lengths, on_cuda):
    there, here = (run(CELLS[name], lengths, 2, place) for place in ("cuda", "cpu"))
    for one, other in zip(there, here, strict=True):
        np.testing.assert_allclose(one, other[..., : one.shape[-1]], rtol=3e-3, atol=1e-3)
