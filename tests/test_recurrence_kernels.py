"""The shrinking batch, for every cell: equals the oracle, and keeps the laws of a batch to the bit."""

import contextlib
import contextvars
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.recurrence import layer

import varlen_rnn as vr
from varlen_rnn import recurrence
from varlen_rnn.cells import CELLS, find_cell, tanh
from varlen_rnn.products.vectors import panel_width
from varlen_rnn.recurrence import cpu, forward_loop, schedule, sharing
from varlen_rnn.rows.plan import sort_by_seq_len
from varlen_rnn.runtime import threads

pytestmark = pytest.mark.twins

TROUBLES = {
    "empty ones everywhere": [0, 0, 3, 10, 11, 11, 15, 17, 19, 24, 30, 31, 31],
    "no sequences": [0],
    "an empty sequence": [0, 0],
    "one step": [0, 1, 2, 3],
    "equal": [0, 4, 8, 12],
}
# No multiple of a tile; on the CPU one beyond a panel of units, and one of whole panels, an even number.
SIZES = [(3, 10), (5, 70), (5, 64)]
by_cell = pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
by_size = pytest.mark.parametrize("size", SIZES, ids=str)
by_directions = pytest.mark.parametrize("num_directions", [1, 2])
by_initial = pytest.mark.parametrize("with_initial", [False, True])


class Case:
    """One layer with its arguments, on the host in float64, and what a device makes of them."""

    def __init__(self, cell, offsets, size, num_directions, with_initial, seed=0):
        rng = np.random.default_rng(seed)
        (inputs, hidden), gates = size, len(cell.gates)
        shapes = (gates * hidden, inputs), (gates * hidden, hidden), (gates * hidden,), (gates * hidden,)
        self.cell, self.offsets, self.plan = cell, np.array(offsets), sort_by_seq_len(np.array(offsets))
        states = (len(cell.states), num_directions, len(offsets) - 1, hidden)
        self.x = rng.normal(size=(offsets[-1], inputs))
        self.directions = [[rng.normal(size=s) * 1.5 / s[-1] ** 0.5 for s in shapes] for _ in range(num_directions)]
        self.initial = rng.normal(size=states) if with_initial else None
        self.zeros = np.zeros(states)
        self.d_y, self.d_last = rng.normal(size=(offsets[-1], num_directions * hidden)), rng.normal(size=states)

    def oracle(self, x=None, directions=None, initial=None):
        start = self.initial if initial is None else initial
        arguments = self.directions if directions is None else directions, self.zeros if start is None else start
        return layer(self.cell.name, self.x if x is None else x, self.offsets, *arguments)

    def loss(self, changed):
        """Return the loss of changed arguments, and which units are positive: relu has a kink where that changes."""
        y, last = self.oracle(**changed)
        return (y * self.d_y).sum() + (last * self.d_last).sum(), y > 0

    def run(self, device, dtype):
        """Return (y, last) and (d_x, d_directions, d_initial); asserts that arguments stay as they were."""
        host = [self.x, *(a for d in self.directions for a in d), self.d_y, self.d_last]
        host = [a.astype(dtype) for a in (host if self.initial is None else [*host, self.initial])]
        moved = [device.put(a) for a in host]
        count = 4 * len(self.directions)
        x, weights, (d_y, d_last) = moved[0], moved[1 : count + 1], moved[count + 1 : count + 3]
        directions = [recurrence.Direction(*weights[i : i + 4]) for i in range(0, count, 4)]
        initial = None if self.initial is None else moved[-1]
        y, last, kept = recurrence.forward(self.cell, x, directions, initial, self.plan)
        outputs = device.get(y).copy(), device.get(last).copy()
        saved, arriving = recurrence.Saved(y, kept), recurrence.Arriving(d_y, d_last)
        d_x, d_directions, d_initial = recurrence.backward(
            self.cell, x, directions, initial, self.plan, saved, arriving
        )
        for after, before in zip([*moved, y], [*host, outputs[0]], strict=True):
            np.testing.assert_array_equal(device.get(after), before)
        d_directions = [[device.get(a) for a in d[:4]] for d in d_directions]
        return outputs, (device.get(d_x), d_directions, device.get(d_initial))


class Host:
    put, get = staticmethod(np.copy), staticmethod(np.asarray)


def close(got, right, relative):
    assert got.shape == right.shape
    np.testing.assert_allclose(got, right, rtol=0, atol=relative * max(1.0, np.linalg.norm(right)))


def check_gradient(case, gradients):
    """Compare with central differences along one random direction for each argument."""
    rng = np.random.default_rng(9)
    d_x, d_directions, d_initial = gradients

    def compare(gradient, shape, change):
        v = rng.normal(size=shape)
        for step in (1e-6, 1e-7, 1e-8):
            (above, positive), (below, positive_below) = case.loss(change(step * v)), case.loss(change(-step * v))
            smooth = case.cell.name != "rnn_relu" or (positive == positive_below).all()
            if smooth:
                break
        assert smooth, "a kink of relu lies between the two points: take another seed"
        difference = (above - below) / (2 * step)
        # A shorter step rounds more: the loss itself is known to 1e-16 of its size.
        rounding = 1e-15 * max(1.0, abs(above)) / step
        np.testing.assert_allclose((gradient * v).sum(), difference, rtol=1e-7, atol=max(1e-7, rounding))

    def changed(number, place, v):
        directions = [list(d) for d in case.directions]
        directions[number][place] = directions[number][place] + v
        return {"directions": directions}

    compare(d_x, case.x.shape, lambda v: {"x": case.x + v})
    start = case.zeros if case.initial is None else case.initial
    compare(d_initial, start.shape, lambda v: {"initial": start + v})
    for number, direction in enumerate(d_directions):
        for place, gradient in enumerate(direction):
            compare(gradient, gradient.shape, lambda v, number=number, place=place: changed(number, place, v))


@by_cell
@by_size
@by_directions
@by_initial
def test_equals_the_oracle_and_its_gradient_a_central_difference(device, cell, size, num_directions, with_initial):
    case = Case(cell, TROUBLES["empty ones everywhere"], size, num_directions, with_initial)
    outputs, gradients = case.run(device, np.float64)
    for got, right in zip(outputs, case.oracle(), strict=True):
        close(got, right, 1e-12)
    check_gradient(case, gradients)


@by_cell
@by_size
def test_float32_is_float64_rounded(device, cell, size):
    case = Case(cell, TROUBLES["empty ones everywhere"], size, 2, True)
    outputs, gradients = case.run(device, np.float32)
    for got, right in zip(outputs, case.oracle(), strict=True):
        assert got.dtype == np.float32
        close(got, right, 1e-6)
    _, right = case.run(Host, np.float64)
    for got, wide in zip((gradients[0], gradients[2]), (right[0], right[2]), strict=True):
        assert got.dtype == np.float32
        close(got, wide, 3e-6)
    for got, wide in zip(itertools.chain(*gradients[1]), itertools.chain(*right[1]), strict=True):
        assert got.dtype == np.float32
        close(got, wide, 3e-6)


@pytest.mark.parametrize("cell", [CELLS["lstm"], CELLS["gru"]], ids=["lstm", "gru"])
@pytest.mark.parametrize("offsets", list(TROUBLES.values())[1:], ids=list(TROUBLES)[1:])
def test_troubles(device, cell, offsets):
    case = Case(cell, offsets, SIZES[0], 2, True)
    outputs, gradients = case.run(device, np.float64)
    for got, right in zip(outputs, case.oracle(), strict=True):
        close(got, right, 1e-12)
    check_gradient(case, gradients)


def test_an_empty_sequence_hands_on_its_state_and_its_gradient(device):
    case = Case(CELLS["lstm"], [0, 0], SIZES[0], 1, True)
    (_, last), (_, _, d_initial) = case.run(device, np.float64)
    np.testing.assert_array_equal(last, case.initial)
    np.testing.assert_array_equal(d_initial, case.d_last)


@by_cell
def test_what_is_not_kept_or_not_needed_changes_nothing_else(device, cell):
    case = Case(cell, TROUBLES["empty ones everywhere"], SIZES[0], 1, False)
    directions = [recurrence.Direction(*map(device.put, case.directions[0]))]
    x, d_y, d_last = device.put(case.x), device.put(case.d_y), device.put(case.d_last)
    y, last, nothing = recurrence.forward(cell, x, directions, None, case.plan, keep=False)
    (kept_y, kept_last), (_, (right, *_), _) = case.run(device, np.float64)
    assert nothing == []
    np.testing.assert_array_equal(device.get(y), kept_y)
    np.testing.assert_array_equal(device.get(last), kept_last)
    y, _, kept = recurrence.forward(cell, x, directions, None, case.plan)
    saved, arriving = recurrence.Saved(y, kept), recurrence.Arriving(d_y, d_last)
    d_x, (direction,), _ = recurrence.backward(cell, x, directions, None, case.plan, saved, arriving, need_x=False)
    assert d_x is None
    for got, whole in zip(direction[:4], right, strict=True):
        np.testing.assert_array_equal(device.get(got), whole)


def subset(case, sequences):
    """Return the case of these sequences alone, in this order."""
    lengths = np.diff(case.offsets)[sequences]
    other = Case(case.cell, [0, *np.cumsum(lengths).tolist()], (case.x.shape[1], case.zeros.shape[3]), 1, True)
    at = rows_of(case, sequences)
    other.directions = case.directions
    other.x, other.d_y = case.x[at], case.d_y[at]
    other.initial, other.d_last = case.initial[:, :, sequences], case.d_last[:, :, sequences]
    return other


def rows_of(case, sequences):
    return np.concatenate([np.arange(0), *(np.arange(*case.offsets[i : i + 2]) for i in sequences)])


# Up to more sequences than a block of the CPU loops has rows.
batches = st.lists(st.integers(0, 9), min_size=1, max_size=15) | st.lists(st.integers(0, 4), min_size=25, max_size=60)


def rowwise(case, dtype):
    (y, last), (d_x, _, d_initial) = case.run(Host, dtype)
    return y, d_x, last, d_initial


def assert_same_bits(whole, part, sequences, at):
    (y, d_x, last, d_initial), (own_y, own_d_x, own_last, own_d_initial) = whole, part
    np.testing.assert_array_equal(y[at], own_y)
    np.testing.assert_array_equal(d_x[at], own_d_x)
    np.testing.assert_array_equal(last[:, :, sequences], own_last)
    np.testing.assert_array_equal(d_initial[:, :, sequences], own_d_initial)


@by_cell
@settings(deadline=None, max_examples=10)
@given(lengths=batches, hidden=st.sampled_from([3, 40, 70]), dtype=st.sampled_from([np.float32, np.float64]))
def test_a_batch_equals_its_sequences_one_by_one(cell, lengths, hidden, dtype):
    case = Case(cell, [0, *np.cumsum(lengths).tolist()], (3, hidden), 1, True)
    whole = rowwise(case, dtype)
    for i in range(len(lengths)):
        assert_same_bits(whole, rowwise(subset(case, [i]), dtype), [i], rows_of(case, [i]))


@by_cell
@settings(deadline=None, max_examples=10)
@given(data=st.data(), lengths=batches)
def test_permuted_sequences_permute_the_outputs(cell, data, lengths):
    order = data.draw(st.permutations(range(len(lengths))))
    case = Case(cell, [0, *np.cumsum(lengths).tolist()], (3, 40), 1, True)
    parts = rowwise(subset(case, order), np.float32)
    assert_same_bits(rowwise(case, np.float32), parts, order, rows_of(case, order))


@by_cell
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_writing_past_the_caches_changes_nothing(monkeypatch, cell, dtype):
    case = Case(cell, [0, 180, 181, 300, 300], (3, 64), 1, True)
    written = rowwise(case, dtype)
    streamed, streams = [], cpu._past_caches
    monkeypatch.setattr(cpu, "_NON_TEMPORAL", 0)
    monkeypatch.setattr(cpu, "_past_caches", lambda *a, **b: streamed.append(streams(*a, **b)) or streamed[-1])
    assert_same_bits(written, rowwise(case, dtype), range(4), range(300))
    assert streamed == [64 % panel_width(dtype) == 0]


@by_cell
@pytest.mark.parametrize("count", [25, 48, 60])
def test_larger_blocks_for_weights_that_no_near_cache_holds_change_nothing(monkeypatch, cell, count):
    lengths = np.random.default_rng(count).integers(1, 9, count)
    case = Case(cell, [0, *np.cumsum(lengths).tolist()], (3, 40), 1, True)
    block_rows, run = [], schedule.threads.for_each_shard

    def spy(kernel, work, *arguments, **options):
        block_rows.append(sharing.Work(*work).block_rows)
        run(kernel, work, *arguments, **options)

    monkeypatch.setattr(schedule.threads, "for_each_shard", spy)
    results = rowwise(case, np.float32)
    monkeypatch.setattr(schedule, "L2_ELEMENTS", 0)
    assert_same_bits(results, rowwise(case, np.float32), range(count), range(len(case.x)))
    assert block_rows == [schedule.BLOCK_ROWS] * 2 + [schedule.MOST_ROWS] * 2


@pytest.mark.parametrize(
    ("dtype", "columns", "wanted"),
    [
        (np.float32, 1024, 1024 + 16),
        (np.float64, 1024, 1024 + 8),
        (np.float32, 1040, 1040),
        (np.float32, 1250, 1250),
        (np.float32, 32, 32),
    ],
)
def test_long_rows_of_slots_that_fill_cache_lines_are_an_odd_number_of_them(dtype, columns, wanted):
    slots = cpu.kept_of_rows(np.empty((3, 2), dtype), columns)
    assert slots.shape == (3, wanted)


@by_cell
@pytest.mark.parametrize("parts", [1, 2])
def test_what_makes_rows_of_slots_longer_is_zeros(monkeypatch, cell, parts):
    kept_of_rows = cpu.kept_of_rows
    monkeypatch.setattr(cpu, "kept_of_rows", lambda x, columns: np.full_like(kept_of_rows(x, columns), np.nan))
    monkeypatch.setattr(threads, "SMALL_WORK", 0)
    monkeypatch.setattr(schedule, "split", lambda *_, **__: (1, parts))
    case = Case(cell, [0, 3, 3, 5], (3, 256), 1, False)
    x, (direction,) = case.x, case.directions
    _, _, (slots,) = recurrence.forward(cell, x, [recurrence.Direction(*direction)], None, case.plan)
    columns = cell.num_kept * 256
    assert slots.shape[1] > columns
    assert not np.isnan(slots[:, :columns]).any()
    assert not slots[:, columns:].any()


# Groups of sequences and members of a team: also more of them than cores, and than sequences.
SPLITS = [(1, 1), (2, 1), (5, 1), (16, 1), (1, 2), (2, 2), (1, 5), (4, 4), (1, 16)]


@pytest.mark.slow
@by_cell
@by_initial
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_results_do_not_depend_on_the_number_of_threads(monkeypatch, cell, with_initial, dtype):
    monkeypatch.setattr(threads, "SMALL_WORK", 0)
    monkeypatch.setattr(
        schedule, "_TURN_ROWS", 1
    )  # a group is put back after each step or block, with all of its state
    lengths = np.random.default_rng(1).integers(0, 60, 70)
    case = Case(cell, [0, *np.cumsum(lengths).tolist()], (20, 64 if with_initial else 70), 2, with_initial)

    def flat(split):
        monkeypatch.setattr(schedule, "split", lambda *_, **__: split)
        monkeypatch.setattr(schedule, "L2_ELEMENTS", 0 if split[1] > 1 else 2**19)  # teams run larger blocks
        threads.set_num_threads(split[0] * split[1])
        (y, last), (d_x, d_directions, d_initial) = case.run(Host, dtype)
        return [y, last, d_x, d_initial, *(a for d in d_directions for a in d)]

    one, *others = [contextvars.copy_context().run(flat, split) for split in SPLITS]
    for results in others:
        for right, got in zip(one, results, strict=True):
            np.testing.assert_array_equal(got, right)


def late(a, b, /):
    """Its first phase has no product; that of the second reads what all units of the first one gave."""
    return b.of(tanh(a.x))


def early_and_late(a, b, /, h):
    return b.of(tanh(a)) + h


STEPS, MEMBERS = 50, 2
# A cell, and how often in a step of the forward loop, and in all of the gradient's, the members of a team must meet.
MEETINGS = {
    "indrnn": (find_cell("indrnn"), 0, 0),
    "sru": (find_cell("sru"), 0, 0),
    "rnn_tanh": (CELLS["rnn_tanh"], 1, 1),
    "late": (vr.cell(late), 2, 1),
    "early and late": (vr.cell(early_and_late, name="early_and_late"), 2, 2),
}


def run_one_sequence(cell):
    """Return the outputs and all gradients of a layer of 70 units on one sequence."""
    rng, hidden, plan = np.random.default_rng(0), 70, sort_by_seq_len(np.array([0, STEPS]))
    x_gates, h_gates = len(cell.x_gates) * hidden, len(cell.h_gates) * hidden
    shapes = (x_gates, 3), (h_gates, hidden), (x_gates,), (h_gates,)
    vectors = rng.normal(size=(len(cell.vectors), hidden))
    direction = recurrence.Direction(*(rng.normal(size=shape) / 9 for shape in shapes), vectors=vectors)
    x, d_last = rng.normal(size=(STEPS, 3)), np.ones((len(cell.states), 1, 1, hidden))
    y, last, kept = recurrence.forward(cell, x, [direction], None, plan)
    saved, arriving = recurrence.Saved(y, kept), recurrence.Arriving(np.ones_like(y), d_last)
    gradients = recurrence.backward(cell, x, [direction], None, plan, saved, arriving)
    d_x, (d_direction,), d_initial = gradients
    return [y, last, d_x, d_initial, *(d for d in d_direction if d is not None)]


@pytest.mark.parametrize(("cell", "forward", "backward"), MEETINGS.values(), ids=MEETINGS)
def test_a_team_meets_only_where_a_product_reads_what_others_computed(monkeypatch, cell, forward, backward):
    monkeypatch.setattr(threads, "SMALL_WORK", 0)
    alone = contextvars.Context().run(lambda: (threads.set_num_threads_here(1), run_one_sequence(cell))[1])
    monkeypatch.setattr(schedule, "split", lambda *_, **__: (1, MEMBERS))
    monkeypatch.setattr(threads, "team", lambda: contextlib.nullcontext(True))
    met, for_each_shard = [], threads.for_each_shard

    def counted(kernel, work, *arguments, **options):
        for_each_shard(kernel, work, *arguments, **options)
        met.append(work[-1][0] / MEMBERS)  # the counter of the only group's barrier

    monkeypatch.setattr(threads, "for_each_shard", counted)
    for one, other in zip(alone, run_one_sequence(cell), strict=True):
        np.testing.assert_array_equal(one, other)
    assert met == [max(0, forward * STEPS - 1), backward * STEPS]  # at the first step there is nothing to wait for


@pytest.mark.parametrize("lengths", [[], [0], [0, 0], [5], [3, 0, 9], [2] * 100, [0] * 50 + [7] * 13, range(40)])
@pytest.mark.parametrize("num_groups", [2, 5, 16])
@pytest.mark.parametrize("teams", [False, True])
def test_every_sequence_belongs_to_one_group(lengths, num_groups, teams):
    seq_lens = np.sort(np.array(lengths, np.int64))[::-1]
    batch = seq_lens, np.arange(len(seq_lens))
    cut = schedule._deal(batch, num_groups) if teams else (batch, schedule._cut(seq_lens, num_groups))
    (dealt, ranks), bounds = cut
    assert sorted(ranks) == list(range(len(seq_lens)))
    assert (bounds[0], bounds[-1]) == (0, len(seq_lens))
    assert 1 <= len(bounds) - 1 <= num_groups
    groups = [dealt[first:end] for first, end in itertools.pairwise(bounds)]
    assert all((np.diff(group) <= 0).all() for group in groups)  # the longest first, as the loops need it
    rows = [group.sum() for group in groups]
    assert not teams or max(rows) - min(rows) <= max(lengths, default=0)


def test_all_splits_run_the_kernel_that_was_compiled_for_one(monkeypatch):
    monkeypatch.setattr(threads, "SMALL_WORK", 0)
    case, seen = Case(CELLS["lstm"], [0, 5, 9, 14, 15], (3, 70), 1, False), []
    for split in [(1, 1), (2, 1), (2, 2)]:
        monkeypatch.setattr(schedule, "split", lambda *_, split=split, **__: split)
        case.run(Host, np.float32)
        seen.append(len(forward_loop.forward.signatures))
    assert seen[0] > 0
    assert len(set(seen)) == 1


def test_sequences_without_rows_take_little_memory(monkeypatch):
    taken, empty = [], schedule.empty
    monkeypatch.setattr(threads, "SMALL_WORK", 0)
    monkeypatch.setattr(schedule, "empty", lambda shape, like: taken.append(np.prod(shape)) or empty(shape, like))
    lengths = [7] * 13 + [0] * 2000
    case = Case(CELLS["lstm"], [0, *np.cumsum(lengths).tolist()], (3, 16), 1, False)
    for split in [(1, 1), (3, 1)]:
        monkeypatch.setattr(schedule, "split", lambda *_, split=split, **__: split)
        case.run(Host, np.float32)
    forward, backward, forward_of_three, backward_of_three = taken
    assert forward_of_three < 2 * forward
    assert backward_of_three < 2 * backward


@pytest.mark.parametrize(("split", "failing"), [((1, 2), 0), ((1, 2), 1), ((2, 2), 1), ((2, 2), 2)])
def test_a_team_does_not_wait_for_a_member_that_failed(monkeypatch, split, failing):
    def but_one(shard, *arguments, run=forward_loop.forward):
        if shard == failing:
            raise RuntimeError("failed")
        run(shard, *arguments)

    monkeypatch.setattr(forward_loop, "forward", but_one)
    monkeypatch.setattr(cpu, "loop_of", cpu.loop_of.__wrapped__)  # which remembers the loop
    monkeypatch.setattr(schedule, "split", lambda *_, **__: split)
    with pytest.raises(RuntimeError, match="failed"):
        Case(CELLS["lstm"], [0, 5, 9], (3, 70), 1, False).run(Host, np.float32)
