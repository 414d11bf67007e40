"""The shrinking batch keeps the laws of a batch to the bit; `test_cell_zoo.py` compares cells with their oracles."""

import contextlib
import contextvars
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_cell_zoo import Case, assert_same_bits, bits, check  # as pytest imports it

import varlen_rnn as vr
from tests.conftest import Device
from varlen_rnn import recurrence
from varlen_rnn.cells import CELLS, find_cell, tanh
from varlen_rnn.products.vectors import panel_width
from varlen_rnn.recurrence import cpu, forward_loop, schedule, sharing
from varlen_rnn.rows.plan import sort_by_seq_len
from varlen_rnn.runtime import threads

pytestmark = pytest.mark.twins

HOST = Device("cpu")
LENGTHS = [0, 3, 7, 1, 0, 4, 2, 2, 5, 6, 1, 0]
by_cell = pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)


@by_cell
def test_units_of_whole_panels_of_an_even_number(device, cell):
    check(Case(cell.name, LENGTHS, (5, 64), (False, True)), device)


def test_an_empty_sequence_hands_on_its_state_and_its_gradient(device):
    case = Case("lstm", [0], (3, 10))
    (_, last, _), (_, _, d_initial) = case.run(device)
    np.testing.assert_array_equal(last, case.initial)
    np.testing.assert_array_equal(d_initial, case.d_last)


@by_cell
def test_what_is_not_given_kept_or_needed_changes_nothing_else(device, cell):
    case = Case(cell.name, LENGTHS, (3, 10))
    case.initial[:] = 0
    zeros, case.initial = case.run(device), None
    (y, last, _), (d_x, (right,), d_initial) = case.run(device)
    for got, wanted in zip((y, last, d_x, d_initial), (*zeros[0][:2], *zeros[1][::2]), strict=True):
        np.testing.assert_array_equal(got, wanted)
    directions = [recurrence.Direction(*(None if a is None else device.put(a) for a in case.directions[0]))]
    x = device.put(case.x)
    own_y, own_last, nothing = recurrence.forward(cell, x, directions, None, case.plan, keep=False)
    assert nothing == []
    np.testing.assert_array_equal(device.get(own_y), y)
    np.testing.assert_array_equal(device.get(own_last), last)
    own_y, _, kept = recurrence.forward(cell, x, directions, None, case.plan)
    num_others = len(cell.states) - 1
    others = [device.put(d.reshape(len(d), -1)) for d in case.d_others] if num_others else None
    arriving = recurrence.Arriving(device.put(case.d_y), device.put(case.d_last), others)
    saved = recurrence.Saved(own_y, kept)
    d_x, (direction,), _ = recurrence.backward(cell, x, directions, None, case.plan, saved, arriving, need_x=False)
    assert d_x is None
    for got, whole in zip(direction[:4], right, strict=False):
        np.testing.assert_array_equal(device.get(got), whole)


# Up to more sequences than a block of the CPU loops has rows.
batches = st.lists(st.integers(0, 9), min_size=1, max_size=15) | st.lists(st.integers(0, 4), min_size=25, max_size=60)


@by_cell
@settings(deadline=None, max_examples=10)
@given(lengths=batches, hidden=st.sampled_from([3, 40, 70]), dtype=st.sampled_from([np.float32, np.float64]))
def test_a_batch_equals_its_sequences_one_by_one(cell, lengths, hidden, dtype):
    case = Case(cell.name, lengths, (3, hidden))
    whole = bits(case.run(HOST, dtype))
    for i in range(len(lengths)):
        part, rows = case.part([i])
        assert_same_bits(whole, bits(part.run(HOST, dtype)), [i], rows)


@by_cell
@settings(deadline=None, max_examples=10)
@given(data=st.data(), lengths=batches)
def test_permuted_sequences_permute_the_outputs(cell, data, lengths):
    order = data.draw(st.permutations(range(len(lengths))))
    case = Case(cell.name, lengths, (3, 40))
    part, rows = case.part(order)
    assert_same_bits(bits(case.run(HOST, np.float32)), bits(part.run(HOST, np.float32)), order, rows)


@by_cell
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_writing_past_the_caches_changes_nothing(monkeypatch, cell, dtype):
    case = Case(cell.name, [180, 1, 119, 0], (3, 64))
    written = bits(case.run(HOST, dtype))
    streamed, streams = [], cpu._past_caches
    monkeypatch.setattr(cpu, "_NON_TEMPORAL", 0)
    monkeypatch.setattr(cpu, "_past_caches", lambda *a, **b: streamed.append(streams(*a, **b)) or streamed[-1])
    for one, other in zip(written, bits(case.run(HOST, dtype)), strict=True):
        np.testing.assert_array_equal(one, other)
    assert streamed == [64 % panel_width(dtype) == 0]


@by_cell
@pytest.mark.parametrize("count", [25, 48, 60])
def test_larger_blocks_for_weights_that_no_near_cache_holds_change_nothing(monkeypatch, cell, count):
    lengths = np.random.default_rng(count).integers(1, 9, count)
    case = Case(cell.name, lengths, (3, 40))
    block_rows, run = [], schedule.threads.for_each_shard

    def spy(kernel, work, *arguments, **options):
        block_rows.append(sharing.Work(*work).block_rows)
        run(kernel, work, *arguments, **options)

    monkeypatch.setattr(schedule.threads, "for_each_shard", spy)
    results = bits(case.run(HOST, np.float32))
    monkeypatch.setattr(schedule, "L2_ELEMENTS", 0)
    for one, other in zip(results, bits(case.run(HOST, np.float32)), strict=True):
        np.testing.assert_array_equal(one, other)
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
    case = Case(cell.name, [3, 0, 2], (3, 256))
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
@pytest.mark.parametrize("with_initial", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_results_do_not_depend_on_the_number_of_threads(monkeypatch, cell, with_initial, dtype):
    monkeypatch.setattr(threads, "SMALL_WORK", 0)
    monkeypatch.setattr(
        schedule, "_TURN_ROWS", 1
    )  # a group is put back after each step or block, with all of its state
    lengths = np.random.default_rng(1).integers(0, 60, 70)
    case = Case(cell.name, lengths, (20, 64 if with_initial else 70), (False, True))
    case.initial = case.initial if with_initial else None

    def flat(split):
        monkeypatch.setattr(schedule, "split", lambda *_, **__: split)
        monkeypatch.setattr(schedule, "L2_ELEMENTS", 0 if split[1] > 1 else 2**19)  # teams run larger blocks
        threads.set_num_threads(split[0] * split[1])
        outputs, (d_x, d_directions, d_initial) = case.run(HOST, dtype)
        return [*outputs, d_x, d_initial, *(a for d in d_directions for a in d if a is not None)]

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
    case, seen = Case("lstm", [5, 4, 5, 1], (3, 70)), []
    for split in [(1, 1), (2, 1), (2, 2)]:
        monkeypatch.setattr(schedule, "split", lambda *_, split=split, **__: split)
        case.run(HOST, np.float32)
        seen.append(len(forward_loop.forward.signatures))
    assert seen[0] > 0
    assert len(set(seen)) == 1


def test_sequences_without_rows_take_little_memory(monkeypatch):
    taken, empty = [], schedule.empty
    monkeypatch.setattr(threads, "SMALL_WORK", 0)
    monkeypatch.setattr(schedule, "empty", lambda shape, like: taken.append(np.prod(shape)) or empty(shape, like))
    lengths = [7] * 13 + [0] * 2000
    case = Case("lstm", lengths, (3, 16))
    for split in [(1, 1), (3, 1)]:
        monkeypatch.setattr(schedule, "split", lambda *_, split=split, **__: split)
        case.run(HOST, np.float32)
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
        Case("lstm", [5, 4], (3, 70)).run(HOST, np.float32)
