"""Parts of batches for several processes: each sequence in one of them, the same everywhere, in balance."""

import itertools
import signal
import subprocess
import sys
import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.parts import balanced_parts as oracle

import varlen_rnn as vr
from varlen_rnn.data import STEP_COST, StepCost, balanced_parts, batches, measure_step_cost
from varlen_rnn.nn import functional as F

COSTS = [STEP_COST, StepCost(0.0, 1.0), StepCost(3.0, 1.0, 2.0, 0.5), StepCost(0.0, 0.0)]


def ranks(size):
    return [types.SimpleNamespace(rank=rank, size=size) for rank in range(size)]


def sequences(number=57, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((n, 3)) for n in rng.integers(0, 40, number)]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 60), max_size=30), st.integers(1, 9), st.sampled_from(COSTS))
def test_parts_are_those_of_the_loop(lengths, parts, cost):
    found = [part.tolist() for part in balanced_parts(lengths, parts, cost)]
    assert found == oracle(lengths, parts, *cost)
    assert sorted(itertools.chain.from_iterable(found)) == list(range(len(lengths)))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=9), st.integers(1, 4))
def test_no_part_takes_longer_than_4_thirds_of_the_best(lengths, parts):
    rows = [sum(lengths[k] for k in part) for part in balanced_parts(lengths, parts, StepCost(0.0, 1.0))]
    # The shortest possible time, by trying all: sets of sums that the parts so far can have.
    reached = {(0,) * parts}
    for length in lengths:
        reached = {
            tuple(sorted((*state[:k], state[k] + length, *state[k + 1 :]))) for state in reached for k in range(parts)
        }
    assert 3 * max(rows) <= 4 * min(state[-1] for state in reached)


def test_long_tails_are_in_balance():
    lengths = (np.random.default_rng(0).pareto(1.5, 512) * 10 + 1).astype(np.int64)
    seconds = [STEP_COST.of(lengths[part]) for part in balanced_parts(lengths, 4)]
    by_count = [STEP_COST.of(part) for part in np.array_split(lengths, 4)]
    assert max(seconds) < 1.02 * np.mean(seconds)
    assert max(by_count) > 1.1 * np.mean(by_count)


@pytest.mark.parametrize(
    "options", [{"batch_size": 10}, {"max_tokens": 150}, {"batch_size": 9, "bucket": True}], ids=str
)
@pytest.mark.parametrize("size", [1, 3, 20])
@pytest.mark.parametrize("as_tensor", [False, True])
def test_parts_of_each_batch_are_the_batch(options, size, as_tensor):
    data, labels = sequences(), np.arange(57)
    given = vr.LoDTensor.from_sequences(data) if as_tensor else data
    options = options | {"shuffle": True, "seed": 3}
    whole = batches(given, labels, static=labels * 2, others=[data[::-1]], **options)
    parts = [
        batches(given, labels, static=labels * 2, others=[data[::-1]], part=part, **options) for part in ranks(size)
    ]
    for epoch in (0, 1):
        everywhere = [part.at_epoch(epoch) for part in parts]
        assert {len(part) for part in everywhere} == {len(whole.at_epoch(epoch))}
        for number, (x, other, static, marks) in enumerate(whole.at_epoch(epoch)):
            places = [part[number][0].structure.positions for part in everywhere]
            assert sorted(np.concatenate(places).tolist()) == list(range(len(x)))
            for part, at in zip(everywhere, places, strict=True):
                mine, my_other, my_static, my_marks = part[number]
                assert my_marks.tolist() == marks[at].tolist() == part.indices(number).tolist()
                assert my_static.tolist() == static[at].tolist()
                assert np.array_equal(mine.data, x[at].data)
                assert mine.structure == x[at].structure
                assert np.array_equal(my_other.data, other[at].data)
                assert my_other.structure.positions.tolist() == at.tolist()
                assert part.lengths(number).tolist() == np.diff(x.structure.levels[0]).tolist()


def test_a_part_without_sequences_is_an_empty_batch():
    given = [np.ones((2, 3), np.float32)], [[1, 2]]
    x, labels = batches(*given, batch_size=1, part=ranks(3)[2])[0]
    assert (x.shape, x.dtype, x.lod(), len(x.structure.positions)) == ((0, 3), np.float32, [[0]], 0)
    assert (labels.shape, labels.structure is x.structure) == ((0,), True)
    assert repr(batches(*given, batch_size=1).part(2, 3)) == "Batches: 1 batches of 1 sequences, epoch 0, part 2 of 3"


def test_labels_of_rows_share_the_structure_with_its_positions():
    data = [[1, 2], [3], [4, 5, 6]]
    x, labels = batches(data, data, batch_size=3, part=ranks(2)[1])[0]
    assert labels.structure is x.structure
    assert labels.data.tolist() == x.data.tolist() == [1, 2, 3]


def test_levels_below_stay_and_rows_are_counted():
    x = vr.create_lod_tensor(np.arange(10.0), [[2, 1, 0, 2], [1, 2, 4, 0, 3]])
    made = batches(x, batch_size=4)
    assert made.lengths(0).tolist() == [3, 4, 0, 3]
    found = [made.part(rank, 2, StepCost(0.0, 1.0))[0] for rank in (0, 1)]
    assert [part.recursive_sequence_lengths() for part in found] == [[[1, 0], [4]], [[2, 2], [1, 2, 0, 3]]]


def test_dropout_of_parts_is_the_dropout_of_the_batch():
    model = vr.nn.Sequential(vr.nn.Dropout(0.3), vr.nn.SequencePool("mean"), vr.nn.Dropout(0.5))
    whole = batches(sequences(), batch_size=20, shuffle=True)
    for number in range(len(whole)):
        vr.manual_seed(number)
        right = model(whole[number]).value.data
        for rank in range(3):
            x = whole.part(rank, 3)[number]
            vr.manual_seed(number)
            np.testing.assert_array_equal(model(x).value.data, right[x.structure.positions])


def test_gradients_of_parts_add_up_with_dropout():
    vr.manual_seed(0)
    layer = vr.nn.LSTM(3, 4, num_layers=2, dropout=0.4, zoneout=0.2, recurrent_dropout=0.3, dtype=np.float64)

    def gradients(x):
        vr.manual_seed(5)
        F.dropout(layer(x)[1][0][-1], 0.5).sum().backward()
        found = [np.array(p.grad) for p in layer.parameters()]
        for parameter in layer.parameters():
            parameter.grad = None
        return found

    made = batches(sequences(), batch_size=57)
    parts = zip(*(gradients(made.part(rank, 3)[0]) for rank in range(3)), strict=True)
    for whole, of_parts in zip(gradients(made[0]), parts, strict=True):
        np.testing.assert_allclose(sum(of_parts), whole, rtol=0, atol=1e-12 * max(1, np.abs(whole).max()))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: balanced_parts([3, -1], 2), vr.LoDError, "at least 0"),
        (lambda: balanced_parts([3], 0), vr.ShapeError, "parts"),
        (lambda: balanced_parts([3], 2**40), vr.OutOfRangeError, "parts"),
        (lambda: balanced_parts([3], 2, (1, 2, 3, 4)), vr.DTypeError, "StepCost"),
        (lambda: balanced_parts([3], 2, StepCost(0.0, -1.0)), vr.ShapeError, "per_row"),
        (lambda: balanced_parts([3], 2, StepCost(0.0, np.nan)), vr.ShapeError, "per_row"),
        (lambda: balanced_parts([3], 2, StepCost("a", 1.0)), vr.DTypeError, "per_batch"),
        (lambda: batches([[1]], batch_size=1, part=3), vr.DTypeError, "`rank` and `size`"),
        (lambda: batches([[1]], batch_size=1, part=ranks(2)[1]).part(2, 2), vr.OutOfRangeError, "rank"),
        (lambda: batches([[1]], batch_size=1).part(0, 0), vr.ShapeError, "size"),
        (lambda: batches([[1]], batch_size=1).lengths(1), vr.OutOfRangeError, "batch"),
        (lambda: measure_step_cost(len, []), vr.ShapeError, "at least one"),
        (lambda: measure_step_cost(len, [np.ones(3)]), vr.DTypeError, "LoDTensors"),
    ],
)
def test_wrong_arguments_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_costs_are_fitted(monkeypatch):
    """By a clock that goes on as a known cost says; a term that would be negative is 0."""
    now = itertools.count()
    right = StepCost(2.0, 0.25, 0.5, 1.0)
    clock = types.SimpleNamespace(now=0.0)
    monkeypatch.setattr(vr.data.parts.time, "perf_counter", lambda: clock.now)

    def step(x, labels):
        next(now)
        clock.now += right.of(np.diff(x.structure.levels[0])) + labels

    rng = np.random.default_rng(0)
    made = [(vr.LoDTensor.from_sequences([np.ones(n) for n in rng.integers(1, 30, k)]), 0.0) for k in range(1, 9)]
    np.testing.assert_allclose(measure_step_cost(step, made, repeats=2), right, rtol=1e-9)
    assert next(now) == 3 * len(made)
    alike = [(x, -1.5) for x, _ in made]
    assert min(measure_step_cost(step, alike, repeats=1)) >= 0


GUARDED = """
import ctypes, mmap, os, sys

import numpy as np

import varlen_rnn as vr

data = vr.data.read(sys.argv[1])
made = vr.data.batches(data.sequences, batch_size=16)
mine = set(made.part(1, 4).indices(0).tolist())
protect = ctypes.CDLL(None, use_errno=True).mprotect
protect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
for number, rows in enumerate(data.sequences):
    if number not in mine:
        first = -(-rows.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
        assert not protect(first, (rows.ctypes.data + rows.nbytes - first) // mmap.PAGESIZE * mmap.PAGESIZE, 0)
print(made.part(1, 4)[0].data.sum(), flush=True)
if not (child := os.fork()):
    made.part(0, 4)[0].data.sum()
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mprotect of Linux")
def test_a_part_reads_its_own_rows_of_a_memory_map(tmp_path):
    """Where no page of other parts may be read, one's own part is read, and another is a fault."""
    pa = pytest.importorskip("pyarrow")
    rows, path = 2**14, tmp_path / "rows.arrow"  # 64 KiB in each of 16 sequences
    offsets = pa.array(np.arange(17) * rows, pa.int32())
    table = pa.table({"text": pa.ListArray.from_arrays(offsets, pa.array(np.ones(16 * rows, np.float32)))})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    run = [sys.executable, "-c", GUARDED, str(path)]
    done = subprocess.run(run, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout) == (0, f"{4.0 * rows}\n{-signal.SIGSEGV}\n"), done.stderr
