"""SelectedRows: equals its dense array, refuses bad input, and never turns dense by itself."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from varlen_rnn.errors import DTypeError, InputError, OutOfRangeError, ShapeError
from varlen_rnn.kernels.groups import group_ids, sum_groups
from varlen_rnn.rows.selected_rows import SelectedRows


def dense(rows, value, height):
    out = np.zeros((height, *value.shape[1:]), value.dtype)
    for row, entry in zip(rows, value, strict=True):
        out[row] += entry
    return out


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 6), max_size=12), st.sampled_from([(), (3,), (2, 3), (0,)]), st.sampled_from("fd"))
def test_equals_its_dense_array(rows, trailing, dtype):
    value = np.random.default_rng(len(rows)).normal(size=(len(rows), *trailing)).astype(dtype)
    s = SelectedRows(rows, value, 7)
    right = dense(rows, value, 7)
    assert (s.shape, s.ndim, s.dtype) == (right.shape, right.ndim, right.dtype)
    np.testing.assert_array_equal(s.to_dense(), right)
    merged = s.merge()
    assert merged.rows.tolist() == sorted(set(rows))
    assert (merged.rows.dtype, merged.dtype, merged.height) == (np.int64, right.dtype, 7)
    np.testing.assert_array_equal(merged.value, right[merged.rows])
    np.testing.assert_array_equal((s + right).view(np.ndarray), right + right)
    np.testing.assert_array_equal(right + s, right + right)
    appended = s + merged
    assert appended.rows.tolist() == [*rows, *merged.rows]
    np.testing.assert_allclose(appended.to_dense(), right + right, rtol=1e-5, atol=1e-6)


def test_repeated_rows_add_in_the_order_of_appearance():
    value = np.array([1e8, 1, -1e8, 5], np.float32)
    assert SelectedRows([3, 3, 3, 0], value, 4).merge().value.tolist() == [5, 0]  # 1 is lost beside 1e8
    assert SelectedRows([3, 3, 3, 0], value[[0, 2, 1, 3]], 4).merge().value.tolist() == [5, 1]


@pytest.mark.parametrize(("count", "height"), [(0, 5), (7, 1), (300, 3), (900, 70_000), (40, 2**40), (5, 256)])
def test_groups_are_the_places_of_each_id_in_order(count, height):
    ids = np.random.default_rng(count).integers(-1, height, count)
    counts, (order, rows), starts = (
        np.empty(257, np.int64),
        np.empty((2, count), np.int64),
        np.empty(count + 1, np.int64),
    )
    group_ids(ids, height, counts, order, rows, starts)
    listed = sorted(set(ids.tolist()) - {-1})
    assert rows.tolist() == listed + [-1] * (count - len(listed))
    places = [np.flatnonzero(ids == row).tolist() for row in listed] + [[]] * (count - len(listed))
    assert [order[start:end].tolist() for start, end in itertools.pairwise(starts)] == places
    values, out = (
        np.random.default_rng(1).standard_normal((count, 2)).astype(np.float32),
        np.empty((count, 2), np.float32),
    )
    sum_groups(values, order, starts, out)
    wanted = [[math.fsum(column) for column in values[own].T] if own else [0, 0] for own in places]
    np.testing.assert_allclose(out, np.reshape(wanted, (count, 2)), rtol=3e-6, atol=1e-5)


def test_operations_leave_their_operands():
    s, other = SelectedRows([2, 0, 2], np.ones((3, 2)), 3), np.ones((3, 2))
    s.merge(), s.to_dense(), s + s, s + other, other + s
    assert s.rows.tolist() == [2, 0, 2]
    assert (s.value == 1).all()
    assert (other == 1).all()
    twin = s.copy()
    twin.value[0] = 9
    assert s.rows[0] == 2
    assert (s.value == 1).all()


def test_no_row_at_all():
    s = SelectedRows([], np.empty((0, 4), np.float32), 5)
    assert s.merge().shape == (5, 4)
    np.testing.assert_array_equal(s.to_dense(), np.zeros((5, 4)))
    assert SelectedRows([], np.empty((0, 4)), 0).to_dense().shape == (0, 4)


def test_repr_tells_height_rows_and_value():
    s = SelectedRows([73, 84, 73], np.zeros((3, 2), np.float32), 100)
    assert repr(s) == "SelectedRows(height=100, 3 rows, 2 unique, value (3, 2) float32)"


@pytest.mark.parametrize(
    ("rows", "value", "height", "error", "message"),
    [
        ([0, 5, -1], np.ones(3), 5, OutOfRangeError, "rows, entry 1: expected at least 0 and less than 5.*got 5"),
        ([0, -1], np.ones(2), 5, OutOfRangeError, "rows, entry 1: .*got -1"),
        ([0], np.ones(1), 0, OutOfRangeError, "entry 0"),
        ([0, 1], np.ones(3), 5, ShapeError, "rows: expected 3.*got 2"),
        ([[0]], np.ones(1), 5, ShapeError, "flat list"),
        ([[0], [1, 2]], np.ones(2), 5, ShapeError, "flat list"),
        ([0.0], np.ones(1), 5, DTypeError, "float64"),
        (np.empty(0), np.ones(0), 5, DTypeError, "float64"),
        ([True], np.ones(1), 5, DTypeError, "bool"),
        ([2**63], np.ones(1), 5, DTypeError, "fit int64"),
        ([0], 1.0, 5, ShapeError, "single number"),
        ([0], [1], 5, DTypeError, "float32 or float64.*int64"),
        ([0, 1], [[1.0], [1.0, 2.0]], 5, ShapeError, "one shape"),
        ([0], np.ones(1), -1, ShapeError, "height"),
        ([0], np.ones(1), 2.0, DTypeError, "height"),
    ],
)
def test_bad_input_is_named(rows, value, height, error, message):
    with pytest.raises(error, match=message):
        SelectedRows(rows, value, height)


def test_sums_refuse_what_does_not_fit():
    s = SelectedRows([0], np.ones((1, 2)), 3)
    for other in (
        SelectedRows([0], np.ones((1, 2)), 4),
        SelectedRows([0], np.ones((1, 3)), 3),
        np.ones(2),
        np.ones((1, 2)),
    ):
        with pytest.raises(ShapeError, match="expected shape"):
            s + other
    for other in (SelectedRows([0], np.ones((1, 2), np.float32), 3), np.ones((3, 2), np.float32)):
        with pytest.raises(DTypeError, match="expected float64, got float32"):
            s + other
    with pytest.raises(TypeError):
        s + 1


def test_never_turns_dense_by_itself():
    s = SelectedRows([0], np.ones((1, 2)), 3)
    for convert in (np.asarray, np.array, lambda s: np.asarray(s, np.float32)):
        with pytest.raises(InputError, match=r"to_dense\(\)"):
            convert(s)
    with pytest.raises(TypeError):
        np.ones((3, 2)) * s


def test_rows_cannot_be_changed_after_they_were_checked():
    given = np.array([0, 2])
    s = SelectedRows(given, np.ones((2, 1)), 3)
    given[0] = 99
    assert s.rows.tolist() == [0, 2]
    with pytest.raises(ValueError, match="read-only"):
        s.rows[0] = 99
    with pytest.raises(AttributeError):
        s.height = 1
