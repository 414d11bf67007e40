"""The planner: longest first, stable, for any level, kept on the LoD; and what padding would have cost."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import varlen_rnn as vr
from tests.oracles import plan as oracle
from varlen_rnn.kernels.plans import find_previous_rows, sort_sequences

LENGTHS = st.lists(st.integers(0, 12), max_size=15)


@settings(deadline=None)
@given(LENGTHS)
def test_equals_the_oracle(lengths):
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(int).tolist()
    plan = vr.sort_by_seq_len(offsets)
    order, starts, sorted_lengths, sizes = oracle.plan(offsets)
    assert plan.sorted_indices.tolist() == order
    assert plan.starts.tolist() == starts
    assert plan.seq_lens.tolist() == sorted_lengths
    assert plan.batch_sizes.tolist() == sizes
    assert list(plan) == [(s, s + n, i) for s, n, i in zip(starts, sorted_lengths, order, strict=True)]
    for reverse in (False, True):
        assert plan.previous_rows(reverse).tolist() == oracle.previous_rows(offsets, reverse)


@settings(deadline=None)
@given(LENGTHS, st.integers(1, 5))
def test_padding_report_equals_a_count(lengths, bucket):
    plan = vr.sort_by_seq_len(np.concatenate([[0], np.cumsum(lengths)]).astype(int))
    report = plan.padding(bucket)
    assert report.rows == sum(lengths)
    assert report.padded_rows == oracle.padded_rows(lengths, max(1, len(lengths)))
    assert plan.padding_ratio == report.padding_ratio
    assert report.bucketed_rows == oracle.padded_rows(lengths, bucket)
    assert report.rows_saved == report.padded_rows - report.rows
    if report.rows:
        assert report.padding_ratio == report.padded_rows / report.rows
        assert 1 <= report.bucketed_ratio <= report.padding_ratio
    else:
        assert report.padding_ratio == report.bucketed_ratio == 1


def test_upper_levels_count_sequences_of_the_level_below():
    x = vr.create_lod_tensor(np.zeros((15, 1)), [[3, 1, 2], [3, 2, 4, 1, 2, 3]])
    top, bottom = vr.sort_by_seq_len(x, 0), vr.sort_by_seq_len(x)
    assert top.seq_lens.tolist() == [3, 2, 1]
    assert top[1] == vr.SortedSeqItem(start=4, end=6, index=2)
    assert bottom.sorted_indices.tolist() == [2, 0, 5, 1, 4, 3]
    assert vr.sort_by_seq_len(x, 1) is bottom


def test_is_kept_on_the_lod_that_tensors_share():
    x = vr.create_lod_tensor(np.zeros(3), [[1, 2]])
    y = vr.Variable(x) * 2.0
    assert vr.sort_by_seq_len(y) is vr.sort_by_seq_len(x)


def test_a_plan_is_read_only():
    plan = vr.sort_by_seq_len([0, 2, 3])
    with pytest.raises(ValueError, match="read-only"):
        plan.starts[0] = 7


def test_the_designs_example():
    """Lengths 4, 2, 3 and four steps: the batch shrinks from three to one."""
    x = vr.create_lod_tensor(np.arange(9.0), [[2, 4, 3]])
    plan = vr.sort_by_seq_len(x)
    steps = [vr.segment_inputs(x, plan, t) for t in range(plan.max_seq_len)]
    assert [step.tolist() for step in steps] == [[2, 6, 0], [3, 7, 1], [4, 8], [5]]
    assert vr.init_memories(np.array([10.0, 20.0, 30.0]), plan).tolist() == [20, 30, 10]
    back = vr.concat_outputs(steps, plan)
    assert back.lod() == x.lod()
    assert back.data.tolist() == x.data.tolist()


@settings(deadline=None)
@given(LENGTHS)
def test_kernels_compute_the_same_plan(lengths):
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(int)
    plan, (order, starts, seq_lens) = vr.sort_by_seq_len(offsets), np.empty((3, len(lengths)), np.int64)
    sort_sequences(offsets, order, starts, seq_lens)
    assert [order.tolist(), starts.tolist(), seq_lens.tolist()] == [
        plan.sorted_indices.tolist(), plan.starts.tolist(), plan.seq_lens.tolist()
    ]  # fmt: skip
    for reverse in (False, True):
        previous = np.empty(offsets[-1], np.int64)
        find_previous_rows(offsets, reverse, previous)
        assert previous.tolist() == plan.previous_rows(reverse).tolist()
