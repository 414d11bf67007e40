"""Operators that move whole rows of sequences, and change what a sequence is: worked examples, oracles and errors."""

import numpy as np
import pytest

import varlen_rnn as vr
from tests.oracles import sequence as oracle

LENGTHS = [[2, 0, 3, 1], [0, 0], [0, 2, 0], [], [1]]
by_lengths = pytest.mark.parametrize("lengths", LENGTHS, ids=str)


def rows_of(lengths, dtype=np.float64, start=0):
    return vr.create_lod_tensor(np.arange(start, start + sum(lengths)).astype(dtype), [lengths])


def two_levels(upper, lower):
    return vr.create_lod_tensor(np.arange(sum(lower), dtype=float), [upper, lower])


def same(found, rows, *levels):
    assert np.asarray(found).tolist() == list(rows)
    assert found.value.recursive_sequence_lengths() == [list(level) for level in levels]


def test_expand_by_the_original_s_examples():
    x = vr.create_lod_tensor(np.array(list("abcd")).view(np.int32).reshape(-1), [[2, 2]])
    y = two_levels([2, 2], [3, 3, 1, 1])
    out = vr.sequence_expand(x, y, ref_level=0)
    assert "".join(map(chr, np.asarray(out))) == "ababcdcd"
    assert out.value.recursive_sequence_lengths() == [[2, 2, 2, 2]]
    out = vr.sequence_expand(np.array([1, 2, 3]), rows_of([2, 0, 3]))
    same(out, [1, 1, 3, 3, 3])


@by_lengths
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
def test_expand_and_its_like_are_those_of_lists(lengths, dtype):
    x, times = rows_of(lengths, dtype), [n % 3 for n in range(len(lengths))]
    offsets = x.lod()[0]
    found = vr.sequence_expand(x, rows_of(times))
    same(found, *[*oracle.expand(np.asarray(x).tolist(), offsets, times)])
    rows = np.arange(len(lengths)).astype(dtype)
    same(vr.sequence_expand_as(rows, x), oracle.expand_as(rows, lengths), lengths)
    same(vr.sequence_reverse(x), oracle.reverse(np.asarray(x).tolist(), offsets), lengths)
    begins = np.array([n // 2 for n in lengths], np.int64)
    left = np.array(lengths, np.int64) - begins
    same(vr.sequence_slice(x, begins, left[:, None]), oracle.cut(np.asarray(x), offsets, begins, left), left)
    other = rows_of(times, dtype, start=50)
    joined = oracle.join([(np.asarray(one).tolist(), one.lod()[0]) for one in (x, other, x)])
    same(vr.sequence_concat([x, other, x]), joined, [2 * a + b for a, b in zip(lengths, times, strict=True)])


def test_levels_above_the_last_are_kept():
    x = two_levels([2, 0, 1], [2, 0, 3])
    same(vr.sequence_reverse(x), [1, 0, 4, 3, 2], [2, 0, 1], [2, 0, 3])
    same(vr.sequence_slice(x, np.array([1, 0, 1]), np.array([1, 0, 2])), [1, 3, 4], [2, 0, 1], [1, 0, 2])
    same(vr.sequence_concat([x, x]), [0, 1, 0, 1, 2, 3, 4, 2, 3, 4], [2, 0, 1], [4, 0, 6])
    same(vr.sequence_expand_as(np.arange(3.0), x), [0, 0, 2, 2, 2], [2, 0, 1], [2, 0, 3])
    same(vr.sequence_expand(x, rows_of([1, 1, 2])), [*range(5), 2, 3, 4], [2, 0, 1, 1], [2, 0, 3, 3])


def test_pooling_by_the_original_s_examples():
    x = vr.create_lod_tensor(np.array([1.0, 3, 2, 4, 6, 5, 1]), [[2, 3, 2, 0]])
    wanted = {
        "mean": [2, 4, 3, -1], "sum": [4, 12, 6, -1], "sqrt": [4 / 2**0.5, 12 / 3**0.5, 6 / 2**0.5, -1],
        "max": [3, 6, 5, -1], "last": [3, 6, 1, -1], "first": [1, 2, 5, -1],
    }  # fmt: skip
    for pool_type, right in wanted.items():
        np.testing.assert_allclose(np.asarray(vr.sequence_pool(x, pool_type, pad_value=-1)), right, rtol=1e-15)
    x = vr.create_lod_tensor(np.array([1.0, 3, 2, 4, 6, 5, 1]), [[2, 0, 3], [1, 2, 1, 0, 3]])
    same(vr.sequence_pool(x, "sum"), [1, 5, 4, 0, 12], [2, 0, 3])
    same(vr.sequence_first_step(x), [1, 3, 4, 0, 6], [2, 0, 3])
    same(vr.sequence_last_step(x), [1, 2, 4, 0, 1], [2, 0, 3])


def test_pooling_at_an_upper_level_takes_all_rows_below():
    x = two_levels([2, 0, 3], [1, 2, 1, 0, 3])
    same(vr.sequence_pool(x, "sum", level=0), [3, 0, 18])
    same(vr.sequence_pool(x, "max", pad_value=-1.0, level=-2), [2, -1, 6])
    same(vr.sequence_pool(x, "last", level=1), [0, 2, 3, 0, 6], [2, 0, 3])


@pytest.mark.parametrize("pool_type", ["sum", "mean", "sqrt", "max", "first", "last"])
def test_the_gradient_of_an_upper_level_is_that_of_one_level_with_its_rows(pool_type):
    x = vr.Variable(two_levels([2, 0, 3], [1, 2, 1, 0, 3]), requires_grad=True)
    flat = vr.Variable(vr.create_lod_tensor(np.asarray(x), [[3, 0, 4]]), requires_grad=True)
    weights = np.array([2.0, 3.0, 5.0])
    (vr.sequence_pool(x, pool_type, level=0) * weights).sum().backward()
    (vr.sequence_pool(flat, pool_type) * weights).sum().backward()
    assert np.asarray(x.grad).tolist() == np.asarray(flat.grad).tolist()


def test_another_lod():
    x = np.arange(6.0)
    same(vr.lod_reset(x, target_lod=(0, 4, 6)), x, [4, 2])
    same(vr.lod_reset(rows_of([6]), np.array([0, 1, 6])), x, [1, 5])
    same(vr.lod_reset(x, two_levels([1, 1], [4, 2])), x, [1, 1], [4, 2])
    same(
        vr.lod_append(vr.create_lod_tensor(np.arange(3.0), [[2, 1]]), np.array([0, 1, 1, 3])),
        range(3),
        [2, 1],
        [1, 0, 2],
    )
    variable = vr.Variable(x, requires_grad=True)
    (variable.with_lod([[0, 2, 6]]).sum() * 2).backward()
    assert variable.grad.tolist() == [2.0] * 6
    same(variable.with_lod(vr.LoD([[0, 2, 6]])), x, [2, 4])
    same(variable.with_lod(rows_of([1, 5])), x, [1, 5])
    same(variable.with_lod(variable.with_lod([[0, 1], [0, 6]])), x, [1], [6])


def test_in_the_order_of_a_plan():
    x = rows_of([1, 3, 2])
    plan = vr.sort_by_seq_len(x)
    same(vr.reorder_by_rank(x, plan), [1, 2, 3, 4, 5, 0], [3, 2, 1])
    same(vr.reorder_by_rank(np.arange(3.0), plan), [1, 2, 0])


X = rows_of([2, 3])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: vr.sequence_expand(X, rows_of([1, 1, 1])),
            "x: expected 3 sequences, as many as level -1 of y has",
        ),
        (lambda: vr.sequence_expand(X, np.ones(2)), "y: expected at least one level"),
        (lambda: vr.sequence_expand(X, X, ref_level=1), "ref_level: expected -1 <= ref_level < 1"),
        (lambda: vr.sequence_expand_as(np.ones(3), X), "x: expected 2 rows, as many as y has sequences"),
        (
            lambda: vr.sequence_slice(X, np.array([1, 3]), np.array([1, 1])),
            "sequence 1: expected a slice inside of its 3 rows, got",
        ),
        (lambda: vr.sequence_slice(X, np.array([-1, 0]), np.array([1, 1])), "sequence 0: expected a slice inside"),
        (
            lambda: vr.sequence_slice(X, np.array([0]), np.array([1, 1])),
            "offset: expected a number for each of 2",
        ),
        (lambda: vr.sequence_concat([X, rows_of([1])]), "x_1: expected 2 sequences, as many as the"),
        (lambda: vr.sequence_concat([X, rows_of([2, 3], np.float32)]), "x_1: expected float64, got float32"),
        (lambda: vr.sequence_concat([]), "expected at least one input"),
        (lambda: vr.sequence_concat(X), "inputs: expected a list"),
        (lambda: vr.lod_reset(X), "expected y, or target_lod, got neither"),
        (lambda: vr.lod_reset(X, target_lod=(0, 4)), "x: expected 4 rows, because the last offset is 4"),
        (lambda: vr.lod_append(X, np.array([0, 5])), "expected 1, the number of sequences of level 1, got 5"),
        (lambda: vr.sequence_pool(X, "sum", level=1), "level: expected -1 <= level < 1, a level of x"),
        (lambda: vr.reorder_by_rank(np.ones(3), vr.sort_by_seq_len(X)), "expected 2 sequences, or rows, as many"),
    ],
)
def test_errors_say_what_is_wrong(call, message):
    with pytest.raises(vr.InputError, match=message):
        call()
