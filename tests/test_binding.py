"""Bound programs have the bits of eager mode and of the operators, and are bound only where that is certain."""

import functools
import itertools
import os
import pickle
import threading

import numpy as np
import pytest

import varlen_rnn as vr
from tests.in_threads import at_once
from tests.interrupts import interrupted
from varlen_rnn.program import bounds, replay
from varlen_rnn.runtime import dry_run
from varlen_rnn.tape.values import bits_of

pytestmark = pytest.mark.usefixtures("no_device")


def batch_of(rng, most=6, width=6):
    lengths = rng.integers(0, 9, rng.integers(0, most)).tolist()
    return vr.create_lod_tensor(rng.standard_normal((sum(lengths), width)).astype(np.float32), [lengths])


class Bound:
    """A program of `model(x)`, its Executor, and its binding."""

    def __init__(self, model, **options):
        with vr.program_guard() as self.program:
            x = vr.feed_data("x", [-1, 6], "float32", **{"lod_level": 1} | options)
            self.fetch = model(x)
        self.run_feed({"x": batch_of(np.random.default_rng(0)) if not options else np.ones((2, 6), np.float32)})

    def run_feed(self, feed):
        return vr.Executor().run(self.program, feed, [self.fetch])[0]

    def __call__(self, x):
        return self.run_feed({"x": x})

    @property
    def binding(self):
        return next(iter(self.program.prepared.values())).binding


@pytest.fixture
def linear():
    vr.manual_seed(0)
    return vr.nn.Linear(6, 4)


def test_a_bound_program_has_the_bits_of_eager_mode(linear):
    rng, bound = np.random.default_rng(1), Bound(linear)
    for _ in range(300):
        x = batch_of(rng)
        found, wanted = bound(x), linear(x).value
        assert found.data.tobytes() == wanted.data.tobytes()
        assert found.structure is x.structure
    assert bound.binding.runs > 250
    assert bound.binding.refusal is None


def test_results_belong_to_the_caller(linear):
    rng, bound = np.random.default_rng(1), Bound(linear)
    x = batch_of(rng)
    results = [bound(x).data for _ in range(12)]
    results[8][...] = 7
    assert results[7].tobytes() == results[9].tobytes() == bound(x).data.tobytes()


def test_parameters_that_are_written_replaced_or_converted_count(linear):
    rng, bound = np.random.default_rng(1), Bound(linear)
    x = batch_of(rng)

    def check():
        for _ in range(6):
            assert bound(x).data.tobytes() == linear(x).value.data.tobytes()

    check()
    linear.weight.value.data[...] = 0.5
    check()
    runs = bound.binding.runs
    assert runs > 3
    linear.weight.value = vr.LoDTensor(rng.standard_normal((4, 6)).astype(np.float32))
    check()
    linear.weight.value = vr.LoDTensor(np.asfortranarray(rng.standard_normal((4, 6)).astype(np.float32)))
    check()
    assert bound.binding.runs > runs + 6


def test_feeds_of_any_layout(linear):
    bound = Bound(linear)
    wide = np.random.default_rng(1).standard_normal((9, 12)).astype(np.float32)
    frozen = np.ascontiguousarray(wide[:, :6])
    frozen.flags.writeable = False
    for rows in (wide[:, :6], wide[:, ::2], frozen, np.asfortranarray(frozen), wide[::-1, 6:]):
        x = vr.LoDTensor(rows, [[0, 4, 4, 9]])
        for _ in range(4):
            assert bound(x).data.tobytes() == linear(x).value.data.tobytes()
    assert bound.binding.runs > 12


def test_levels_and_no_levels(linear):
    rows = np.random.default_rng(1).standard_normal((9, 6)).astype(np.float32)
    for level, lods in ((0, [[]]), (2, [[[0, 1, 3], [0, 4, 4, 9]], [[0, 3, 3], [0, 0, 0, 9]], [[0, 2], [0, 4, 9]]])):
        with vr.program_guard() as program:
            y = linear(vr.feed_data("x", [-1, 6], "float32", lod_level=level))
        for _ in range(4):
            for lod in lods:
                x = vr.LoDTensor(rows, lod) if lod else rows
                found = vr.Executor().run(program, {"x": x}, [y])[0]
                assert np.asarray(found).tobytes() == linear(x).value.data.tobytes()
                assert level == 0 or found.lod() == x.lod()
        assert next(iter(program.prepared.values())).binding.runs > 0


def test_a_batch_at_other_positions_runs_as_before(linear):
    bound, rows = Bound(linear), np.ones((9, 6), np.float32)
    x = vr.LoDTensor(rows, vr.LoDTensor(rows, [[0, 4, 4, 9]]).structure.at([3, 1, 2]))
    for _ in range(6):
        assert bound(x).structure.positions.tolist() == [3, 1, 2]
    assert bound.binding.runs == 0
    assert bound.binding.refusal


def test_work_that_no_record_does_is_refused_by_name():
    models = {
        "operator 'cast': NumPy converts float32 to int64": lambda x: x.astype("int64"),
    }
    for refusal, model in models.items():
        bound = Bound(model)
        for _ in range(6):
            bound(batch_of(np.random.default_rng(1)))
        assert bound.binding.runs == 0
        assert bound.binding.refusal.startswith(refusal)


LAYERS = {
    "LSTM": lambda dtype: vr.nn.LSTM(5, 7, dtype=dtype),
    "two layers and directions": lambda dtype: vr.nn.LSTM(5, 7, num_layers=2, bidirectional=True, dtype=dtype),
    "GRU": lambda dtype: vr.nn.GRU(5, 7, dtype=dtype),
    "RNN": lambda dtype: vr.nn.RNN(5, 7, dtype=dtype),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_classifier_has_the_bits_of_eager_mode(name, dtype):
    vr.manual_seed(0)
    table, layer = vr.nn.Embedding(20, 5, dtype=dtype), LAYERS[name](dtype)
    rng = np.random.default_rng(1)

    def model(ids):
        return vr.sequence_pool(layer(table(ids))[0], "last")

    with vr.program_guard() as program:
        pooled = model(vr.feed_data("ids", [-1], "int64", lod_level=1))
    for _ in range(150):
        lengths = rng.integers(0, 9, rng.integers(0, 6)).tolist()
        ids = vr.create_lod_tensor(rng.integers(0, 20, sum(lengths)), [lengths])
        found, wanted = vr.Executor().run(program, {"ids": ids}, [pooled])[0], model(ids).value
        assert found.tobytes() == wanted.data.tobytes(), lengths
    bound = next(iter(program.prepared.values())).binding
    assert bound.runs > 0, bound.refusal
    wrong = vr.create_lod_tensor(np.array([3, 20, 1]), [[3]])
    for _ in range(3):
        with pytest.raises(vr.OutOfRangeError, match="entry 1"):
            vr.Executor().run(program, {"ids": wrong}, [pooled])


def test_dropout_draws_anew_at_each_run():
    def model(x):
        return vr.nn.functional.dropout(vr.nn.functional.dropout(x, 0.3, training=True), 0.5, training=True)

    def run(compute):
        rng = np.random.default_rng(1)
        vr.manual_seed(1)
        found = [compute(batch_of(rng, 9)) for _ in range(40)]
        return found, vr.random.get_state()

    bound, x = Bound(model), batch_of(np.random.default_rng(1), 9)
    assert len({bound(x).data.tobytes() for _ in range(9)}) == 9
    found, wanted = run(lambda x: bound(x).data.tobytes()), run(lambda x: model(x).value.data.tobytes())
    assert found == wanted
    assert bound.binding.runs > 9


def test_a_difference_raises_and_ends_the_binding(linear, monkeypatch):
    bound, x = Bound(linear), batch_of(np.random.default_rng(1))
    right = linear(x).value.data.tobytes()
    for _ in range(5):
        bound(x)
    run = replay.Bound.run

    def wrong(self, fed, copies=None):
        stopped = run(self, fed, copies)
        self._loans.arrays[0][...] += 1
        return stopped

    monkeypatch.setattr(replay.Bound, "run", wrong)
    bound.binding.runs = 7  # run 8 is compared
    with pytest.raises(vr.ProgramError, match=r"operator 'matmul': expected equal bits"):
        bound(x)
    for _ in range(9):
        assert bound(x).data.tobytes() == right


def test_nan_of_other_bits_are_no_difference():
    bound = Bound(lambda x: -x + x)
    for _ in range(12):
        x = batch_of(np.random.default_rng(3))
        x.data[::2] = np.nan
        np.testing.assert_array_equal(bound(x).data, -x.data + x.data)
    assert bound.binding.runs > 8
    assert bits_of(np.array([np.nan, -0.0])) == bits_of(np.array([-np.nan, -0.0])) != bits_of(np.array([np.nan, 0.0]))
    assert bits_of(np.array([np.nan, 1.0])) != bits_of(np.array([1.0, np.nan]))


def test_a_kernel_that_fails_leaves_the_run_to_the_operators(linear, monkeypatch):
    bound, x = Bound(linear), batch_of(np.random.default_rng(1))
    monkeypatch.setattr(dry_run.Records, "run", lambda self, copies=None: 0)
    for _ in range(9):
        assert bound(x).data.tobytes() == linear(x).value.data.tobytes()


def test_a_kernel_that_writes_to_a_constant_ends_the_binding(linear, monkeypatch):
    bound, x = Bound(linear), batch_of(np.random.default_rng(1))
    monkeypatch.setattr(dry_run.Records, "restore_constants", lambda self: True)
    for _ in range(6):
        assert bound(x).data.tobytes() == linear(x).value.data.tobytes()
    assert (bound.binding.runs, bound.binding.refusal) == (1, "a kernel writes to a constant")


def test_a_large_batch_runs_as_before(linear, monkeypatch):
    monkeypatch.setattr(bounds, "_MOST_BYTES", 100)
    bound, x = Bound(linear), vr.LoDTensor(np.ones((50, 6), np.float32), [[0, 50]])
    for _ in range(5):
        assert bound(x).data.tobytes() == linear(x).value.data.tobytes()
    assert "bytes" in bound.binding.refusal


def test_few_sizes_are_kept(linear, monkeypatch):
    monkeypatch.setattr(bounds, "_MOST_SIZES", 3)
    monkeypatch.setattr(bounds, "_BOXES", -1000)
    bound, rng = Bound(linear), np.random.default_rng(1)
    for _ in range(40):
        x = batch_of(rng)
        assert bound(x).data.tobytes() == linear(x).value.data.tobytes()
    assert len(bound.binding.bounds._sizes) <= 3


def test_sizes_that_do_not_come_again_are_not_bound_alone(linear, monkeypatch):
    monkeypatch.setattr(bounds, "_BOXES", -1000)
    bound = Bound(linear)
    for count in [*range(200), *range(4, 200)]:
        bound(vr.LoDTensor(np.ones((count, 6), np.float32), [[0, count]]))
    found = bound.binding
    assert found.runs > 0
    most = bounds._DRY_RUNS + 400 // bounds._RUNS_EACH + found.runs // bounds._RECORDS_EACH
    assert found.bounds._dry_runs <= most


def test_parameters_that_change_at_each_run_are_not_bound(linear):
    bound, x = Bound(linear), batch_of(np.random.default_rng(1))
    for _ in range(20):
        linear.weight.value = linear.weight.value.copy()
        assert bound(x).data.tobytes() == linear(x).value.data.tobytes()
    assert bound.binding.bounds._dry_runs <= 1


@pytest.mark.parametrize("updates", [False, True])
def test_another_thread_may_write_parameters_while_runs_are_compared(linear, monkeypatch, updates):
    with vr.program_guard() as program:
        x, y = vr.feed_data("x", [-1, 6], "float32"), vr.feed_data("y", [-1], "int64")
        loss = vr.nn.functional.cross_entropy(linear(x), y)
        if updates:
            vr.optim.SGD(linear.parameters(), lr=0.25).minimize(loss)
    run, compared = replay.Bound.run, []

    def meanwhile(self, fed, copies=None):
        stopped = run(self, fed, copies)
        if copies is not None and len(compared) < 3:
            compared.append(copies)
            linear.weight.value.data[0, 0] += 64  # as another thread would, at this moment
        return stopped

    monkeypatch.setattr(replay.Bound, "run", meanwhile)
    before, feed = linear.weight.value.data.copy(), {"x": np.ones((2, 6), np.float32), "y": np.array([1, 2])}
    for _ in range(20):
        vr.Executor().run(program, feed, [loss])
    assert len(compared) == 3
    assert next(iter(program.prepared.values())).binding.runs > 10
    assert linear.weight.value.data[0, 0] - before[0, 0] == pytest.approx(192, abs=16 * updates + 1e-3)


def test_a_feed_may_be_the_array_of_a_parameter_that_is_updated(linear):
    with vr.program_guard() as program:
        x, y = vr.feed_data("x", [-1, 6], "float32"), vr.feed_data("y", [-1], "int64")
        loss = vr.nn.functional.cross_entropy(linear(x), y)
        vr.optim.SGD(linear.parameters(), lr=0.5).minimize(loss)
    weight = linear.weight.value.data
    for _ in range(10):
        for feed in (weight, weight.copy(), weight[:4]):
            found = vr.Executor().run(program, {"x": feed, "y": np.array([0, 1, 2, 3])}, [x, loss])[0]
            assert found.tobytes() == feed.tobytes()
    assert next(iter(program.prepared.values())).binding.runs > 5


def test_threads_share_a_program(linear):
    bound, wrong = Bound(linear), []

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(150):
            x = batch_of(rng)
            if bound(x).data.tobytes() != linear(x).value.data.tobytes():
                wrong.append(seed)

    at_once(work, [(seed,) for seed in range(4)])
    assert wrong == []
    assert bound.binding.runs > 0


def test_an_interrupt_at_any_moment_of_a_run_leaves_later_runs_as_they_are(linear):
    rng = np.random.default_rng(1)
    bound, batches = Bound(linear), itertools.cycle([batch_of(rng) for _ in range(24)])
    for _ in range(24):
        bound(next(batches))
    number, places, before = 0, set(), bound.binding.runs
    while (place := interrupted(functools.partial(bound, next(batches)), number)) is not None:
        number, before = number + 1, bound.binding.runs
        places.add(place)
        for x in itertools.islice(batches, 2):
            assert bound(x).data.tobytes() == linear(x).value.data.tobytes(), place
        assert bound.binding.runs > before, place
    assert len(places) > 20


def test_sizes_that_were_refused_are_tried_again_with_other_parameters(linear, monkeypatch):
    bound, batches = Bound(linear), [batch_of(np.random.default_rng(seed)) for seed in range(1, 41)]
    with monkeypatch.context() as patch:
        patch.setattr(bounds, "_MOST_BYTES", -1)
        for x in batches[:6]:
            bound(x)
    assert "more than -1" in bound.binding.refusal
    linear.weight.value = linear.weight.value.copy()
    for x in batches[6:]:
        assert bound(x).data.tobytes() == linear(x).value.data.tobytes()
    assert bound.binding.runs > 20


def test_copies_and_forks_begin_anew(linear):
    bound, x = Bound(linear), batch_of(np.random.default_rng(1))
    for _ in range(6):
        bound(x)
    copy = pickle.loads(pickle.dumps(bound.program))
    assert copy.prepared == {}
    if hasattr(os, "fork"):
        child = os.fork()
        if child == 0:
            right = all(bound(x).data.tobytes() == linear(x).value.data.tobytes() for _ in range(6))
            os._exit(0 if right else 1)
        assert os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks")
def test_a_child_runs_by_records_although_a_thread_ran_them_as_it_was_forked(linear, monkeypatch):
    bound, x = Bound(linear), batch_of(np.random.default_rng(1))
    for _ in range(6):
        bound(x)
    run, is_inside, may_go = replay.Bound.run, threading.Event(), threading.Event()

    def waits(self, *arguments):
        if threading.current_thread() is not threading.main_thread():
            is_inside.set()
            may_go.wait()
        return run(self, *arguments)

    monkeypatch.setattr(replay.Bound, "run", waits)
    thread = threading.Thread(target=bound, args=(x,))
    thread.start()
    is_inside.wait()
    child = os.fork()
    if child == 0:
        before = bound.binding.runs
        right = all(bound(x).data.tobytes() == linear(x).value.data.tobytes() for _ in range(6))
        os._exit(0 if right and bound.binding.runs > before else 1)
    may_go.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


def test_operators_that_are_added_later_count(linear):
    with vr.program_guard() as program:
        y = linear(vr.feed_data("x", [-1, 6], "float32", lod_level=1))
    x, other = batch_of(np.random.default_rng(1)), vr.nn.Linear(4, 2)
    for _ in range(6):
        vr.Executor().run(program, {"x": x}, [y])
    with vr.program_guard(program):
        z = other(y)
    for _ in range(6):
        found = vr.Executor().run(program, {"x": x}, [y, z])
        assert found[1].data.tobytes() == other(linear(x)).value.data.tobytes()


def train(optimizer):
    """Return a training step of a classifier, eager and by an Executor, with the parameters and binding of each."""
    steps = []
    for records in (False, True):
        vr.manual_seed(0)
        table, layer, out = vr.nn.Embedding(20, 5, sparse=False), vr.nn.LSTM(5, 7), vr.nn.Linear(7, 3)
        parameters = [p for module in (table, layer, out) for p in module.parameters()]
        own = optimizer(parameters)

        def loss_of(ids, labels, table=table, layer=layer, out=out):
            return vr.nn.functional.cross_entropy(out(vr.sequence_pool(layer(table(ids))[0], "last")), labels)

        if records:
            with vr.program_guard() as program:
                x, y = vr.feed_data("x", [-1], "int64", lod_level=1), vr.feed_data("y", [-1], "int64")
                loss = loss_of(x, y)
                own.minimize(loss)
            steps.append((lambda x, y, p=program, f=loss: vr.Executor().run(p, {"x": x, "y": y}, [f])[0], parameters))
        else:

            def eager(x, y, loss_of=loss_of, own=own):
                loss = loss_of(x, y)
                own.minimize(loss)
                own.zero_grad()
                return loss.value.data

            steps.append((eager, parameters))
    return *steps, program


def labelled(rng):
    lengths = rng.integers(0, 9, rng.integers(1, 9)).tolist()
    return vr.create_lod_tensor(rng.integers(0, 20, sum(lengths)), [lengths]), rng.integers(0, 3, len(lengths))


def test_a_training_step_has_the_bits_of_eager_mode():
    rng = np.random.default_rng(1)
    (eager, wanted), (bound, found), program = train(vr.optim.Adam)
    for _ in range(200):
        batch = labelled(rng)
        assert bound(*batch).tobytes() == eager(*batch).tobytes()
    for one, other in zip(found, wanted, strict=True):
        assert one.value.data.tobytes() == other.value.data.tobytes()
    assert next(iter(program.prepared.values())).binding.runs > 150


def test_a_batch_with_a_wrong_label_changes_nothing():
    rng = np.random.default_rng(1)
    (eager, wanted), (bound, found), program = train(vr.optim.Adam)
    batch, number = labelled(rng), 20
    for _ in range(number):
        assert bound(*batch).tobytes() == eager(*batch).tobytes()
    for labels in (batch[1] + 3, batch[1] - 3):
        with pytest.raises(vr.OutOfRangeError, match="cross_entropy, labels"):
            bound(batch[0], labels)
    assert bound(*batch).tobytes() == eager(*batch).tobytes()
    for one, other in zip(found, wanted, strict=True):
        assert one.value.data.tobytes() == other.value.data.tobytes()
    assert next(iter(program.prepared.values())).binding.runs > 10
