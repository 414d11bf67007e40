"""Activations keep what their docstrings promise: bounds in units in the last place, and NaN, infinities and zeros."""

import numpy as np
import pytest

from varlen_rnn.kernels import activations
from varlen_rnn.runtime.jit import cpu_kernel

INF, NAN = float("inf"), float("nan")
TINY = np.float32(2.4e-36)  # below it, tanh computes with subnormal numbers
LOWEST = {np.float32: -88.376, np.float64: -709.78}  # below it, sigmoid is 0
WORST = [-16.639687, -0.0020418763, 0.061353914, 0.12366718, 7.3906393, 9.010913]  # found among all float32 numbers
EDGES = [*WORST, 7.9053111, 7.905312, 40, 80, -40, -80, -87.33654, -87.3366, -88.3762, 104, 1e-38, 1e-45, 3e38]


def loop_of(function):
    """Return the function of arrays, as a loop that vectorises."""

    @cpu_kernel
    def loop(x, out):
        for i in range(x.shape[0]):
            out[i] = function(x[i])

    def run(x):
        out = np.empty_like(x)
        loop(x, out)
        return out

    return run


def calls_of(function):
    """Return the function of arrays, a call for each number."""

    @cpu_kernel
    def call(x):
        return function(x)

    return lambda x: np.array([call(value) for value in x], x.dtype)


def exact_sigmoid(x):
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def units(got, exact):
    """Return the errors in units in the last place of what is right, rounded; `exact` has more digits."""
    with np.errstate(under="ignore"):
        unit = np.spacing(np.abs(exact.astype(got.dtype)))
    return np.abs(got - exact) / unit.astype(exact.dtype)


def float32_numbers():
    """Return every 997th float32 number, and the neighbours of edges."""
    bits = np.arange(0, np.float32(INF).view(np.int32), 997, dtype=np.int32)
    near = np.abs(np.array(EDGES, np.float32)).view(np.int32)[:, None] + np.arange(-300, 300, dtype=np.int32)
    x = np.concatenate([bits, near.ravel()[near.ravel() >= 0]]).view(np.float32)
    x = x[np.isfinite(x)]
    return np.concatenate([x, -x])


def float64_numbers():
    rng = np.random.default_rng(0)
    wide = 10.0 ** rng.uniform(-320, 3, 100_000) * rng.choice([-1, 1], 100_000)
    return np.concatenate([wide, *(rng.uniform(-width, width, 100_000) for width in (1, 10, 700))])


both_ways = pytest.mark.parametrize("way", [loop_of, calls_of])
both_types = pytest.mark.parametrize("dtype", [np.float32, np.float64])
# What has more digits than float64.
exact_float64 = pytest.mark.skipif(np.finfo(np.longdouble).eps > 1e-18, reason="no longer numbers here")


def test_sigmoid_of_float32():
    x = float32_numbers()
    got, exact = loop_of(activations.sigmoid)(x), exact_sigmoid(x.astype(np.float64))
    assert units(got, exact)[x > LOWEST[np.float32]].max() < 4
    assert not got[x < LOWEST[np.float32] - 0.001].any()
    assert got.max() == 1


def test_tanh_of_float32():
    x = float32_numbers()
    got, exact = loop_of(activations.tanh)(x), np.tanh(x.astype(np.float64))
    small = np.abs(x) < TINY
    assert units(got, exact)[~small].max() < 6
    assert np.abs(got - exact)[small].max() < 4e-43
    assert np.abs(got).max() == 1


def between(low, high, step=1):
    """Return every float32 number from `low` to `high`, or every `step`-th, ascending; both are positive."""
    first, last = np.array([low, high], np.float32).view(np.int32)
    return np.arange(first, last, step, dtype=np.int32).view(np.float32)


def test_saturated_gates_are_exact():
    """So that their gradients, y (1 - y) and 1 - y y, are 0."""
    tanh, sigmoid = loop_of(activations.tanh), loop_of(activations.sigmoid)
    wide = between(7.906, np.finfo(np.float32).max, 997)
    for x in (between(7.906, 16), wide):
        assert (tanh(x) == 1).all()
        assert (tanh(-x) == -1).all()
    assert (sigmoid(wide[wide > 16.64]) == 1).all()
    assert not sigmoid(-wide[wide > 88.377]).any()
    x = wide.astype(np.float64)
    assert (loop_of(activations.tanh)(x[x > 20]) == 1).all()
    assert (loop_of(activations.sigmoid)(x[x > 37]) == 1).all()
    assert not loop_of(activations.sigmoid)(-x[x > 709.79]).any()


def largest_fall(function, x):
    """Return by how many units in the last place the function falls below what it was before, `x` ascending."""
    y = loop_of(function)(x)
    return units(y, np.maximum.accumulate(y).astype(np.float64)).max()


def test_where_functions_saturate_they_never_fall():
    """Over all neighbours in float32: where tanh becomes 1, and where sigmoid becomes 0 or 1."""
    for x in (between(7.9053112, 9.5), -between(7.9053112, 9.5)[::-1]):
        assert largest_fall(activations.tanh, x) == 0
    assert largest_fall(activations.sigmoid, between(15, 19)) == 0
    assert largest_fall(activations.sigmoid, -between(80, 90)[::-1]) == 0


def test_elsewhere_functions_fall_by_a_few_units_at_most():
    x = between(1e-4, 16, 11)
    x = np.concatenate([-x[::-1], x])
    assert 0 < largest_fall(activations.tanh, x) <= 8
    assert 0 < largest_fall(activations.sigmoid, x) <= 2


@exact_float64
def test_sigmoid_of_float64():
    x = float64_numbers()
    got, exact = loop_of(activations.sigmoid)(x), exact_sigmoid(x.astype(np.longdouble))
    assert units(got, exact)[x > LOWEST[np.float64]].max() < 3
    assert not got[x < LOWEST[np.float64] - 0.01].any()


@exact_float64
def test_tanh_of_float64():
    x = float64_numbers()
    assert units(loop_of(activations.tanh)(x), np.tanh(x.astype(np.longdouble))).max() < 3


@both_types
def test_relu_is_exact(dtype):
    x = float32_numbers().astype(dtype)
    np.testing.assert_array_equal(loop_of(activations.relu)(x), np.maximum(x, 0))


# Sixteen times, so that loops run their vectors, too.


@both_ways
@both_types
@pytest.mark.parametrize("name", ["sigmoid", "tanh", "relu"])
def test_nan_stays_nan(way, dtype, name):
    x = np.array([NAN, -NAN, 1.0, NAN] * 16, dtype)
    got = way(getattr(activations, name))(x)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(x))


@both_ways
@both_types
@pytest.mark.parametrize(
    ("name", "low", "high"), [("sigmoid", 0, 1), ("tanh", -1, 1), ("relu", 0, None)], ids=lambda value: str(value)
)
def test_infinities_and_the_largest_numbers(way, dtype, name, low, high):
    largest = np.finfo(dtype).max
    x = np.array([INF, largest, -INF, -largest] * 16, dtype)
    wanted = x if high is None else np.full_like(x, high)
    wanted = np.where(x > 0, wanted, dtype(low))
    np.testing.assert_array_equal(way(getattr(activations, name))(x), wanted)


@both_ways
@both_types
def test_zeros_keep_their_sign(way, dtype):
    x = np.array([0.0, -0.0] * 16, dtype)
    for function in (activations.tanh, activations.relu):
        got = way(function)(x)
        assert not got.any()
        np.testing.assert_array_equal(np.signbit(got), np.signbit(x))
    assert (way(activations.sigmoid)(x) == 0.5).all()


@both_ways
@both_types
def test_the_smallest_numbers(way, dtype):
    x = np.array([np.finfo(dtype).smallest_subnormal, np.finfo(dtype).tiny] * 16, dtype)
    x = np.concatenate([x, -x])
    assert (way(activations.sigmoid)(x) == 0.5).all()
    np.testing.assert_array_equal(way(activations.relu)(x), np.maximum(x, 0))
    np.testing.assert_allclose(way(activations.tanh)(x), x, rtol=0, atol=4e-43)


def test_exp_of_float32():
    x = np.concatenate([float32_numbers(), between(80, 104), -between(80, 110, 7)])
    got = loop_of(activations.exp)(x)
    with np.errstate(over="ignore"):
        exact = np.exp(x.astype(np.float64))
    normal = (exact > np.finfo(np.float32).tiny) & (exact < np.finfo(np.float32).max)
    assert units(got[normal], exact[normal]).max() < 2
    assert (got[exact > 3.4028236e38] == INF).all()
    tiny = exact <= np.finfo(np.float32).tiny
    assert np.abs(got[tiny] - exact[tiny]).max() < 1.5e-45


def test_log_of_float32():
    x = np.concatenate([float32_numbers(), between(0.5, 2, 7)])
    got, x = loop_of(activations.log)(x), x.astype(np.float64)
    assert units(got[x > 0], np.log(x[x > 0])).max() < 1
    assert np.isnan(got[x < 0]).all()


@both_ways
@both_types
def test_exp_log_and_sqrt_at_the_ends(way, dtype):
    """Of what is not finite, of zeros and the smallest numbers."""
    small = np.finfo(dtype).smallest_subnormal
    x = np.array([INF, -INF, NAN, 0.0, -0.0, 1.0, -1.0, small] * 16, dtype)
    with np.errstate(all="ignore"):
        for name in ("exp", "log", "sqrt"):
            got, right = way(getattr(activations, name))(x), getattr(np, name)(x)
            np.testing.assert_allclose(got, right, rtol=2 * np.finfo(dtype).eps, atol=0)


def test_in_python_functions_are_those_of_numbers():
    for name in ("exp", "log", "sqrt", "sigmoid", "tanh"):
        for dtype in (np.float32, float):
            x = dtype(0.7)
            got, exact = getattr(activations, name)(x), getattr(activations, name)(0.7)
            assert got == pytest.approx(exact, rel=3e-7)
    assert activations.exp(1e4) == INF
    assert activations.log(0.0) == -INF
    assert np.isnan(activations.log(-1.0))
    assert np.isnan(activations.sqrt(-1.0))
    assert (activations.minimum(1, 2), activations.maximum(1, 2), activations.where(True, 1, 2)) == (1, 2, 1)
    assert (activations.clip(5, -1, 1), activations.constant(3), activations.multiply_add(2, 3, 4)) == (1, 3, 10)
