"""Sums and means of neighbours have NumPy's bits; what losses are made of is as accurate as NumPy's, in float128."""

import numpy as np
import pytest

import varlen_rnn as vr
from varlen_rnn.errors import OutOfRangeError
from varlen_rnn.kernels import copies, losses, pairwise, reductions, rows, softmax
from varlen_rnn.kernels.functions import exp_float64
from varlen_rnn.ops.indices import indices
from varlen_rnn.runtime.jit import cpu_kernel

by_number = pytest.mark.parametrize("dtype", [np.float32, np.float64])
COUNTS = [*range(300), 1000, 1024, 4095, 9999, 100_003]
SHAPES = [(5,), (0,), (3, 0), (0, 3), (7, 13), (4, 5, 6), (300,), (1000, 3), (3, 1000), ()]


@by_number
def test_a_pairwise_sum_has_the_bits_of_numpy(dtype):
    x = np.random.default_rng(0).standard_normal(max(COUNTS)).astype(dtype)
    for count in COUNTS:
        found = np.empty(1, dtype)
        pairwise.mean_of_neighbours(x[:count], count, 1, found)
        assert found.tobytes() == np.add.reduce(x[:count]).tobytes(), count
    for numbers in ([-0.0], [-0.0] * 9, [np.inf, -np.inf], [np.nan] * 10):
        x = np.array(numbers, dtype)
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(reductions.sum_over(x, None), np.add.reduce(x))


@by_number
def test_sums_and_means_have_the_bits_of_numpy(dtype):
    rng = np.random.default_rng(0)
    for shape in SHAPES:
        x = rng.standard_normal(shape).astype(dtype)
        for axis in (None, len(shape) - 1) if shape else (None,):
            with np.errstate(all="ignore"):
                total = np.asarray(np.add.reduce(x, axis))
                mean = np.divide(total, dtype(x.size if axis is None else x.shape[axis]))
            np.testing.assert_array_equal(reductions.sum_over(x, axis), total)
            np.testing.assert_array_equal(reductions.mean_over(x, axis), mean)


@by_number
def test_the_spread_of_a_gradient_has_the_bits_of_numpy(dtype):
    rng = np.random.default_rng(0)
    for shape in SHAPES:
        for axis in (None, *range(len(shape))):
            d = rng.standard_normal(() if axis is None else shape[:axis] + shape[axis + 1 :]).astype(dtype)
            count = int(np.prod(shape)) if axis is None else shape[axis]
            kept = d if axis is None else np.expand_dims(d, axis)
            for divisor in (1, max(1, count)):
                expected = np.broadcast_to(kept * dtype(1 / divisor), shape)
                np.testing.assert_array_equal(copies.spread_over(d, shape, axis, divisor), expected)


@cpu_kernel
def _exponentials(x, out):
    for i in range(x.shape[0]):
        out[i] = exp_float64(x[i])


def test_the_exponential_of_float64_is_right_to_three_quarters_of_a_unit():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-1, 1, 99999), rng.uniform(-30, 0, 99999), rng.uniform(-745, 709, 99999)])
    found = np.empty_like(x)
    _exponentials(x, found)
    exact = np.exp(x.astype(np.longdouble))
    assert np.abs((found - exact) / np.spacing(exact.astype(float))).max() < 0.75
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 800.0, -800.0])
    _exponentials(x, found[:7])
    np.testing.assert_array_equal(found[:7], [np.nan, np.inf, 0, 1, 1, np.inf, 0])


@by_number
def test_the_log_softmax_is_as_accurate_as_numpys(dtype):
    rng = np.random.default_rng(0)
    for shape in ((200, 5), (32, 32), (3, 3000), (1, 1)):
        x = (rng.standard_normal(shape) * 5).astype(dtype)
        shifted = x.astype(np.longdouble) - x.max(1, keepdims=True)
        exact = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
        plain = x - x.max(1, keepdims=True)
        plain -= np.log(np.exp(plain).sum(1, keepdims=True))
        errors = [np.sqrt(((y - exact) ** 2).mean()) for y in (softmax.log_softmax(x), plain)]
        assert errors[0] <= 1.02 * errors[1]


@by_number
def test_the_gradient_of_cross_entropy(dtype):
    rng = np.random.default_rng(0)
    log_probabilities, d = np.log(rng.random((6, 4))).astype(dtype), rng.random(6).astype(dtype)
    classes, out = np.array([0, 3, -1, 2, -1, 1]), np.empty((6, 4), dtype)
    losses.cross_entropy_grad(log_probabilities, classes, d, out)
    expected = np.exp(log_probabilities.astype(float)) - np.eye(4)[classes]
    expected = np.where(classes[:, None] < 0, 0, expected * d[:, None])
    np.testing.assert_allclose(out, expected, atol=1e-6 if dtype == np.float32 else 1e-14)
    assert not out[classes < 0].any()


@by_number
def test_sums_by_class_are_those_of_bincount(dtype):
    rng = np.random.default_rng(0)
    values, classes, out = rng.standard_normal(5000).astype(dtype), rng.integers(-1, 3, 5000), np.empty(4, dtype)
    losses.sum_by_class(values, classes, out)
    expected = np.bincount(classes[classes >= 0], values[classes >= 0], 4).astype(dtype)
    np.testing.assert_array_equal(out, expected)


def test_the_check_of_indices_finds_the_first_that_is_wrong():
    out, found = np.empty(5, np.int64), np.empty(1, np.int64)
    ids = np.array([0, -1, 2, 3, -4])
    for from_end, ignores, place, expected in (
        (False, False, 1, [0, -1, 2, 3, -4]),
        (True, False, 3, [0, 2, 2, 3, -1]),
        (False, True, 3, [0, -1, 2, 3, -4]),
    ):
        rows.check_indices(ids, 3, from_end, -1, ignores, out, found)
        assert found[0] == place
        np.testing.assert_array_equal(out, expected)
    rows.check_indices(ids[:1], 3, False, 0, False, out[:1], found)
    assert found[0] == -1
    rows.check_indices(ids[:0], 0, False, 0, False, out[:0], found)
    assert found[0] == -1


def test_an_unsigned_number_neither_counts_from_the_end_nor_is_a_negative_one():
    most = vr.LoDTensor(np.array([1, 2**64 - 1], np.uint64))
    for options in ({"from_end": True}, {"ignored": -1}):
        with pytest.raises(OutOfRangeError, match=r"entry 1.*18446744073709551615"):
            indices("x", most, 3, "row", **options)
    np.testing.assert_array_equal(indices("x", vr.LoDTensor(np.array([0, 2], np.uint8)), 3, "row", ignored=2), [0, -1])


def test_a_strided_array_has_the_sums_of_its_copy():
    x = np.random.default_rng(0).standard_normal((40, 30)).astype(np.float32)[:, ::2]
    np.testing.assert_array_equal(reductions.sum_over(x, None), np.add.reduce(x.copy(), None))
