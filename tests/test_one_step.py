"""One step of few sequences: the bits of any other way of running it, in memory that calls use again."""

import threading

import numba
import numpy as np
import pytest
from oracles.recurrence import layer as oracle

from tests.in_threads import at_once
from tests.waiting import HANGS
from varlen_rnn.cells import CELLS, gru_cell, lstm_cell
from varlen_rnn.recurrence import Arriving, Direction, Saved, one_step
from varlen_rnn.recurrence import layer as recurrence
from varlen_rnn.rows.plan import sort_by_seq_len

pytestmark = pytest.mark.skipif(bool(numba.config.ENABLE_CUDASIM), reason="a way of the CPU")
KINDS = ["rnn_tanh", "rnn_relu", "lstm", "gru"]


class Case:
    """A layer of one direction on single steps."""

    def __init__(self, kind, inputs, hidden, count, dtype=np.float32, with_initial=True, seed=0):
        rng, self.cell, self.plan = np.random.default_rng(seed), CELLS[kind], sort_by_seq_len(np.arange(count + 1))
        sizes = len(self.cell.states), 1, count, hidden
        of_x, of_h = len(self.cell.x_gates) * hidden, len(self.cell.h_gates) * hidden
        shapes = (count, inputs), (of_x, inputs), (of_h, hidden), (of_x,), (of_h,), sizes, (count, hidden), sizes
        self.x, *weights, initial, self.d_y, self.d_last = [rng.normal(size=s).astype(dtype) for s in shapes]
        self.directions, self.initial = [Direction(*weights)], initial if with_initial else None

    def step(self):
        """Return the OneStep that runs this case, or None."""
        return recurrence._one_step(self.cell, self.x, self.directions, self.plan)

    def run(self, keep=True):
        """Return outputs, last states, saved columns and, if they are saved, all gradients."""
        start = self.cell, self.x, self.directions, self.initial, self.plan
        y, last, kept = recurrence.forward(*start, keep)
        if not keep:
            assert kept == []
            return [y, last]
        saved = kept[0].copy()
        d_x, (of_weights,), d_initial = recurrence.backward(*start, Saved(y, kept), Arriving(self.d_y, self.d_last))
        return [y, last, saved, d_x, *of_weights[:4], d_initial]

    def elsewhere(self, monkeypatch):
        """Return the results of the way that all other batches take."""
        with monkeypatch.context() as patch:
            patch.setattr(recurrence, "_one_step", lambda *arguments: None)
            return self.run()


def assert_same_bits(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape
        assert one.dtype == other.dtype
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("with_initial", [False, True])
@pytest.mark.parametrize("size", [(1, 1, 3), (3, 5, 1), (64, 64, 16), (40, 70, 48), (200, 33, 7)], ids=str)
def test_the_bits_are_those_of_other_batches(monkeypatch, kind, dtype, with_initial, size):
    case = Case(kind, *size, dtype, with_initial)
    assert case.step() is not None
    wanted = case.elsewhere(monkeypatch)
    for _ in range(2):  # the second call uses memory of the first
        assert_same_bits(case.run(), wanted)
    assert_same_bits(case.run(keep=False), wanted[:2])
    start = np.zeros((len(case.cell.states), 1, size[2], size[1])) if case.initial is None else case.initial
    found = oracle(kind, case.x, np.arange(size[2] + 1), [case.directions[0][:4]], start)
    for ours, theirs in zip(wanted, found, strict=False):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)


def test_gradients_that_nobody_needs_are_none():
    case = Case("gru", 3, 5, 2)
    start = case.cell, case.x, case.directions, case.initial, case.plan
    y, _, kept = recurrence.forward(*start)
    saved, arriving = Saved(y, kept), Arriving(case.d_y, case.d_last)
    found = recurrence.backward(*start, saved, arriving, need_x=False, need_weights=False)
    assert found[:2] == (None, [])


def test_gradients_do_not_share_memory():
    case = Case("lstm", 32, 32, 4)
    results = [*case.run(), *case.run(), *[state for result in (case.run(), case.run()) for state in result[:2]]]
    for number, one in enumerate(results):
        assert not any(np.may_share_memory(one, other) for other in results[:number])


def test_threads_run_steps_at_the_same_time(monkeypatch):
    cases = [Case("gru", 16, 32, 8, seed=seed) for seed in range(4)]
    assert len({id(case.step()) for case in cases}) == 1
    wanted, wrong, meet = [case.elsewhere(monkeypatch) for case in cases], [], threading.Barrier(4)

    def work(case, results):
        meet.wait(HANGS)
        for _ in range(200):
            try:
                assert_same_bits(case.run(), results)
            except BaseException as error:
                wrong.append(error)

    at_once(work, zip(cases, wanted, strict=True))
    assert not wrong


def test_other_batches_go_the_other_way():
    case = Case("gru", 3, 5, 4)
    assert case.step() is not None
    for offsets in ([0, 2, 3, 4], [0, 1, 1, 3, 4], [0, 4], [0, 0, 1, 2, 3, 4]):
        case.plan = sort_by_seq_len(np.array(offsets))
        assert case.step() is None
    assert Case("gru", 3, 5, one_step.MOST_SEQUENCES + 1).step() is None
    assert Case("gru", 600, 600, 1).step() is None  # large weights
    case = Case("gru", 3, 5, 4)
    case.directions *= 2
    assert case.step() is None
    for cell in (gru_cell(reset_after=False), lstm_cell(peepholes=True), lstm_cell(zoneout=True)):
        case = Case(cell.name.split()[0] if cell.name in CELLS else "lstm", 3, 5, 4)
        case.cell = cell
        assert case.step() is None
