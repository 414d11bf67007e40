"""Equations of single elements, copies and reductions: each equals its oracle in plain NumPy, on every device."""

import numpy as np
import pytest

from varlen_rnn.kernels import arithmetic, copies, elementwise, moments, reductions
from varlen_rnn.kernels.softmax import log_softmax, log_softmax_grad
from varlen_rnn.ops import activations, losses
from varlen_rnn.ops import elementwise as elementwise_operators

pytestmark = pytest.mark.twins
NUMBERS = [np.float32, np.float64]
by_number = pytest.mark.parametrize("dtype", NUMBERS)
ANY = np.array([-50.0, -2.5, -1.0, -0.3, -0.0, 0.0, 0.3, 1.0, 2.5, 50.0, np.inf, -np.inf, np.nan])
FINITE = ANY[:10]
POSITIVE = np.array([1e-3, 0.3, 1.0, 1.5, 2.5, 50.0])
IN_ONE = np.array([-0.999, -0.5, 0.0, 0.1, 0.9])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def normal(x):
    from scipy import special

    return (1 + special.erf(x / np.sqrt(2))) / 2


def nearly_normal(x):
    return (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2


def slope_of(function, x):
    """Return the slope of a function by central differences with Richardson's extrapolation."""
    one, two = (function(x + h) - function(x - h) for h in (1e-3, 2e-3))
    return (8 * one - two) / 12e-3


# The names of functions, with an oracle and the values of arrays; then the values of numbers.
UNARY = {
    "negative": (lambda x: 0 - x, ANY),
    "absolute": (lambda x: np.where(x < 0, -x, x), ANY),
    "sign": (lambda x: np.where(x == x, (x > 0) * 1.0 - (x < 0), x), ANY),
    "sqrt": (lambda x: x**0.5, ANY[ANY != -np.inf]),
    "exp": (lambda x: np.e**x, ANY),
    "expm1": (lambda x: 2 * np.sinh(x / 2) * np.exp(x / 2), ANY[ANY != -np.inf]),
    "log": (lambda x: np.log2(x) / np.log2(np.e), ANY),
    "log1p": (lambda x: np.log2(1 + x) / np.log2(np.e), ANY),
    "tanh": (lambda x: 1 - 2 / (1 + np.exp(2 * x)), ANY),
    "sigmoid": (sigmoid, ANY),
    "relu": (lambda x: np.where(x < 0, 0, x), ANY),
    "silu": (lambda x: x * sigmoid(x), ANY),
    "exact_gelu": (lambda x: x * normal(x), ANY),
    "tanh_gelu": (lambda x: x * nearly_normal(x), ANY),
    "logical_not": (lambda x: x == 0, np.array([True, False])),
}
GRADS = {
    "neg_grad": (lambda x, y, d: 0 - d, ANY),
    "exp_grad": (lambda x, y, d: y * d, ANY),
    "log_grad": (lambda x, y, d: d / x, ANY),
    "absolute_grad": (lambda x, y, d: d * np.sign(x), ANY),
    "sqrt_grad": (lambda x, y, d: d / 2 / y, POSITIVE),
    "tanh_grad": (lambda x, y, d: d * (1 - y) * (1 + y), IN_ONE),
    "sigmoid_grad": (lambda x, y, d: d * (y - y**2), IN_ONE),
    "relu_grad": (lambda x, y, d: np.where(x > 0, d, 0), FINITE),
    "exact_gelu_grad": (lambda x, d: d * slope_of(lambda x: x * normal(x), x), FINITE),
    "tanh_gelu_grad": (lambda x, d: d * slope_of(lambda x: x * nearly_normal(x), x), FINITE),
}
BINARY = {
    "add": lambda x, y: x - -y,
    "subtract": lambda x, y: x + -y,
    "multiply": lambda x, y: x * y,
    "divide": lambda x, y: x / y,
    "less": lambda x, y: ~(x >= y) & (x == x) & (y == y),
    "less_equal": lambda x, y: (x < y) | (x == y),
    "greater": lambda x, y: y < x,
    "greater_equal": lambda x, y: y <= x,
    "equal": lambda x, y: (x <= y) & (x >= y),
    "not_equal": lambda x, y: ~((x <= y) & (x >= y)),
    "maximum": lambda x, y: np.where(np.isnan(x) | np.isnan(y), np.nan, np.where(x > y, x, y)),
    "minimum": lambda x, y: np.where(np.isnan(x) | np.isnan(y), np.nan, np.where(x < y, x, y)),
    "squared_difference": lambda x, y: np.where(np.isinf(x) & (x == y), np.nan, (x - y) ** 2),
}
NUMBERED = {
    "power": ((lambda x, n: np.exp(n * np.log(x)), POSITIVE, (3.0,)), (lambda x, n: x * x, FINITE, (2.0,))),
    "power_grad": (
        (lambda x, d, n: d * n * np.exp((n - 1) * np.log(x)), POSITIVE, (-0.5,)),
        (lambda x, d, n: 0 * x, FINITE, (0.0,)),
    ),
    "leaky_relu": ((lambda x, a: np.where(x > 0, x, a * x), FINITE, (0.3,)),),
    "leaky_relu_grad": ((lambda x, y, d, a: d * np.where(x > 0, 1, a), FINITE, (0.3,)),),
    "elu": ((lambda x, a: np.where(x > 0, x, a * (np.exp(x) - 1)), FINITE, (0.7,)),),
    "elu_grad": ((lambda x, y, d, a: d * np.where(x > 0, 1, a * np.exp(x)), FINITE, (0.7,)),),
    "softplus": (
        (lambda x, b, t: np.where(b * x > t, x, np.log(1 + np.exp(b * x)) / b), FINITE, (2.5, 1.0)),
        (lambda x, b, t: np.where(b * x > 700, x, np.log(1 + np.exp(b * x)) / b), FINITE, (1.0, np.inf)),
    ),
    "focal_loss": ((lambda x, g: (1 - np.exp(-x)) ** g * x, POSITIVE, (2.0,)), (lambda x, g: x, POSITIVE, (0.0,))),
    "focal_loss_grad": ((lambda x, d, g: d * slope_of(lambda x: (1 - np.exp(-x)) ** g * x, x), POSITIVE[1:], (2.0,)),),
    "huber_loss": (
        (lambda x, y, t: np.where(abs(x - y) < t, (x - y) ** 2 / 2, t * (abs(x - y) - t / 2)), FINITE, (0.5,)),
    ),
    "inverse_deviation": ((lambda x, e: 1 / np.sqrt(x + e), np.append(POSITIVE, 0), (1e-5,)),),
    "decayed": ((lambda x, y, t: x + t * y, FINITE, (0.25,)),),
}


def function(name):
    """Return a function of arrays, or that of an operator, or of its gradient."""
    operators = vars(activations) | vars(elementwise_operators)
    operator = operators.get(name.removesuffix("_grad"))
    part = "gradient" if name.endswith("_grad") else "compute"
    if hasattr(operator, part):
        return getattr(operator, part)
    return next(getattr(m, name) for m in (arithmetic, moments, activations, losses) if hasattr(m, name))


def check(device, name, oracle, arrays, numbers=(), tolerance=None):
    """Assert that a function of arrays equals its oracle of float64."""
    with np.errstate(all="ignore"):
        found = device.get(function(name)(*map(device.put, arrays), *numbers))
        wide = [array.astype(np.float64) if array.dtype.kind == "f" else array for array in arrays]
        expected = np.asarray(oracle(*wide, *numbers))
    assert found.dtype == (np.bool_ if expected.dtype == np.bool_ else arrays[-1].dtype)
    if found.dtype == np.bool_:
        np.testing.assert_array_equal(found, expected)
        return
    tolerance = tolerance or (2e-6 if found.dtype == np.float32 else 1e-13)
    with np.errstate(over="ignore"):
        expected = expected.astype(found.dtype)
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def gradients(values, dtype):
    return values.astype(dtype), np.linspace(-2, 3, len(values)).astype(dtype)


@by_number
@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_operand(device, name, dtype):
    oracle, values = UNARY[name]
    check(device, name, oracle, [values if values.dtype == np.bool_ else values.astype(dtype)])


@by_number
@pytest.mark.parametrize("name", GRADS)
def test_gradients_of_one_operand(device, name, dtype):
    oracle, values = GRADS[name]
    x, d = gradients(values, dtype)
    arrays = [x, x, d] if len(function(name).names) == 3 else [x, d]  # the operand is given as the result, too
    check(device, name, oracle, arrays, tolerance=1e-9 if dtype == np.float64 else 2e-6)


@by_number
@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_operands(device, name, dtype):
    x, y = ANY.astype(dtype)[:, None], np.append(ANY, 3.0).astype(dtype)
    if name == "squared_difference":
        x, y = x[:10], y[:10]
    check(device, name, BINARY[name], [x, y])


@by_number
@pytest.mark.parametrize("name", NUMBERED)
def test_functions_with_numbers(device, name, dtype):
    for oracle, values, numbers in NUMBERED[name]:
        arrays = [values.astype(dtype)]
        others = len(function(name).names) - 1 - len(numbers)
        arrays += [values.astype(dtype)] * (others - 1) + [gradients(values, dtype)[1]] * min(others, 1)
        check(device, name, oracle, arrays, numbers, tolerance=1e-9 if dtype == np.float64 else 4e-6)


@by_number
def test_functions_of_three_operands(device, dtype):
    x, d = gradients(ANY[:10], dtype)
    y = (x * sigmoid(x)).astype(dtype)
    slope = lambda x, y, d: d * slope_of(lambda x: x * sigmoid(x), x)
    check(device, "silu_grad", slope, [x, y, d], tolerance=1e-9 if dtype == np.float64 else 2e-6)
    check(device, "where", lambda c, x, y: np.where(c, x, y), [x > 0, x, d])
    check(device, "share_of_equal", lambda x, y, d: (x == y) * d, [x, x[::-1].copy(), d])
    for beta, threshold in ((1.0, 20.0), (2.5, 1.0)):
        y = np.where(beta * x > threshold, x, np.log1p(np.exp(beta * x.astype(float))) / beta).astype(dtype)
        oracle = lambda x, y, d, b, t: d * np.where(b * x > t, 1, 1 / (1 + np.exp(-b * x)))
        check(device, "softplus_grad", oracle, [x, y, d], (beta, threshold), 1e-12 if dtype == np.float64 else 4e-6)
    targets = np.linspace(0, 1, len(x)).astype(dtype)
    oracle = lambda x, t: np.where(x > 0, x, 0) - x * t + np.log(1 + np.exp(-abs(x)))
    check(device, "logistic_loss", oracle, [x, targets])


@by_number
def test_rows_are_normalised_on_the_device(device, dtype):
    if device.name == "cpu":
        return  # blocks of rows, by NumPy: `ops.batch_norm`
    rng = np.random.default_rng(0)
    x, normal = rng.standard_normal((2, 5, 3)).astype(dtype)
    mean, factor, bias = rng.standard_normal((3, 3)).astype(dtype)
    check(device, "normalised", lambda x, m, f, b: x * f - m * f + b, [x, mean, factor, bias])
    oracle = lambda d, f, n, s, c: f * d - (s * n + c)
    check(device, "normalised_grad", oracle, [x, factor, normal, mean, bias])
    zero = device.get(moments.inverse_deviation(device.put(np.zeros(2, dtype)), 0.0))
    assert (zero == 0).all()


@pytest.mark.parametrize("name", ["logical_and", "logical_or"])
def test_functions_of_bools(device, name):
    x, y = np.array([[True], [False]]), np.array([True, False])
    oracle = {"logical_and": lambda x, y: x & y, "logical_or": lambda x, y: x | y}[name]
    check(device, name, oracle, [x, y])


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "maximum", "less", "equal"])
def test_integers_wrap_as_ever(device, name):
    x, y = np.array([2**62, -5, 7, 0]), np.array([[2**62], [3], [7]])
    found = device.get(function(name)(device.put(x), device.put(y)))
    expected = getattr(np, name)(x, y)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


SHAPES = [
    [(4, 3), (3,)],
    [(4, 3), ()],
    [(), ()],
    [(4, 1), (1, 3)],
    [(2, 3, 4), (1, 3, 1)],
    [(2, 1, 3, 1), (1, 4, 1, 5)],
    [(2, 1, 3, 1, 2), (2, 4, 1, 5, 1)],
    [(0, 3), (3,)],
    [(2, 0), (2, 1)],
]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_operands_broadcast(device, shapes):
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(shape) for shape in shapes)
    check(device, "subtract", lambda x, y: x + -y, [x, y])
    check(device, "subtract", lambda x, y: x + -y, [y, x])


def test_axes_are_merged():
    assert elementwise.merged_axes([(4, 3), (4, 3)], (4, 3)) == ([1, 1, 12], [(False,) * 3] * 2)
    sizes, are_broadcast = elementwise.merged_axes([(2, 1, 3), (4, 1)], (2, 4, 3))
    assert sizes == [2, 4, 3]
    assert are_broadcast == [(False, True, False), (True, False, True)]


# Copies.

TYPES = ["float32", "float64", "int64", "int32", "int8", "uint8", "bool"]


@pytest.mark.parametrize("wanted", TYPES)
@pytest.mark.parametrize("given", ["float32", "float64", "int64", "bool"])
def test_numbers_are_converted(device, given, wanted):
    x = np.array([0, 1, 2.6, 100, -3 if wanted != "uint8" and given != "bool" else 3]).astype(given)
    found = device.get(copies.astype(device.put(x), wanted))
    assert found.dtype == wanted
    np.testing.assert_array_equal(found, x.astype(wanted))


@by_number
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_arrays_are_joined_divided_and_exchanged(device, axis, dtype):
    whole = np.arange(60).reshape(3, 4, 5).astype(dtype)
    sizes = [1, 0, whole.shape[axis] - 1]
    pieces = np.split(whole, np.cumsum(sizes)[:-1], axis)
    parts = copies.divided(device.put(whole), sizes, axis)
    for part, piece in zip(parts, pieces, strict=True):
        np.testing.assert_array_equal(device.get(part), piece)
        assert device.get(part).flags.c_contiguous
    np.testing.assert_array_equal(device.get(copies.joined(parts, axis)), whole)
    np.testing.assert_array_equal(device.get(copies.exchanged(device.put(whole), axis, 1)), whole.swapaxes(axis, 1))


@by_number
def test_numbers_are_spread_and_filled(device, dtype):
    x = np.arange(3).reshape(3, 1).astype(dtype)
    np.testing.assert_array_equal(device.get(copies.spread(device.put(x), (2, 3, 4))), np.broadcast_to(x, (2, 3, 4)))
    filled = device.get(copies.full((2, 3), 0.5, device.put(x)))
    assert filled.dtype == dtype
    assert (filled == 0.5).all()
    assert filled.shape == (2, 3)
    np.testing.assert_array_equal(device.get(copies.copied(device.put(x))), x)


@by_number
@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (2, 3, 2), (2, 2, 3, 2)])
def test_views_are_assigned(device, shape, dtype):
    target = device.put(np.zeros(tuple(2 * size for size in shape), dtype))
    source = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    view = (slice(1, None, 2),) * len(shape)
    copies.assign(device.put(source), target[view] if shape else target)
    expected = np.zeros(tuple(2 * size for size in shape), dtype)
    expected[view] = source
    np.testing.assert_array_equal(device.get(target), expected)


# Reductions.


@by_number
@pytest.mark.parametrize("shape", [(), (1,), (5,), (3, 4), (49, 3), (2, 50, 3), (100, 1), (2, 0, 3), (0,), (0, 3)])
def test_reductions_over_axes(device, shape, dtype):
    x = np.random.default_rng(0).standard_normal(shape).round(1).astype(dtype)  # rounded: there are ties
    for axis in (None, *range(len(shape))):
        found = device.get(reductions.sum_over(device.put(x), axis))
        expected = x.astype(np.float64).sum(axis)
        assert (found.shape, found.dtype) == (expected.shape, dtype)
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 if dtype == np.float32 else 1e-13)
        if 0 in (shape if axis is None else (shape[axis],)):
            continue
        for function, oracle in (
            (reductions.max_over, np.max),
            (reductions.min_over, np.min),
            (reductions.argmax_over, np.argmax),
        ):
            found, expected = device.get(function(device.put(x), axis)), oracle(x, axis)
            assert found.shape == expected.shape
            np.testing.assert_array_equal(found, expected)


def test_extremes_of_nan_and_of_integers(device):
    x = np.array([[1.0, np.nan, 3.0], [np.nan, np.nan, 0.0], [-np.inf, np.inf, -0.0]])
    for axis in (None, 0, 1):
        np.testing.assert_array_equal(device.get(reductions.max_over(device.put(x), axis)), x.max(axis))
        np.testing.assert_array_equal(device.get(reductions.min_over(device.put(x), axis)), x.min(axis))
        np.testing.assert_array_equal(device.get(reductions.argmax_over(device.put(x), axis)), x.argmax(axis))
    numbers = np.random.default_rng(0).integers(-9, 9, (100, 3))
    np.testing.assert_array_equal(device.get(reductions.max_over(device.put(numbers), 0)), numbers.max(0))
    np.testing.assert_array_equal(device.get(reductions.argmax_over(device.put(numbers), None)), numbers.argmax())


@by_number
def test_long_sums_do_not_drift(device, dtype):
    x = np.full((120_000, 1), 0.1, dtype)  # more than 48 * 48 * 48 rows: three rounds
    exact = 120_000 * float(x[0, 0])
    for axis in (None, 0):
        found = device.get(reductions.sum_over(device.put(x), axis)).item()
        assert abs(found - exact) <= 49 * np.finfo(dtype).eps * exact


@by_number
def test_sums_have_the_bits_of_the_host(device, dtype):
    x = np.random.default_rng(0).standard_normal((2, 5000, 3)).astype(dtype)
    found = device.get(reductions.sum_over(device.put(x), 1))
    np.testing.assert_array_equal(found, reductions.sum_over(x, 1))
    np.testing.assert_array_equal(found, device.get(reductions.sum_over(device.put(x), 1)))


@by_number
def test_running_sums(device, dtype):
    x = np.random.default_rng(0).standard_normal((3, 60, 2)).astype(dtype)
    for axis in (0, 1, -1):
        for backwards in (False, True):
            turned = np.flip(x, axis) if backwards else x
            expected = np.cumsum(turned.astype(float), axis)
            found = device.get(reductions.running_sums(device.put(x), axis, backwards))
            np.testing.assert_allclose(found, np.flip(expected, axis) if backwards else expected, rtol=0, atol=1e-5)


@by_number
def test_a_power_of_a_half_is_the_root(device, dtype):
    x = np.array([-np.inf, -1, -0.0, 0, 2, 9, np.inf, np.nan], dtype)
    with np.errstate(invalid="ignore"):
        root = np.sqrt(x)
    found = device.get(arithmetic.power(device.put(x), 0.5))
    np.testing.assert_array_equal(found, root)
    np.testing.assert_array_equal(np.signbit(found)[2:4], [True, False])
    slope = device.get(arithmetic.power_grad(device.put(x), device.put(np.full(8, 2, dtype)), 1.5))
    np.testing.assert_allclose(slope, 3 * root, rtol=1e-6)


@by_number
def test_equal_elements_share_the_gradient(device, dtype):
    x = np.array([[1, 3, 3], [2, 2, 2], [np.nan, 0, 1]], dtype)
    out, d = x.max(1, keepdims=True), np.array([[6], [6], [6]], dtype)
    found = device.get(reductions.share_among_equal(*map(device.put, (x, out, d)), 1))
    np.testing.assert_array_equal(found, np.array([[0, 3, 3], [2, 2, 2], [np.nan] * 3], dtype))
    whole = np.array([[2, 5], [5, 1]], dtype)
    found = reductions.share_among_equal(*map(device.put, (whole, whole.max(), np.array(1, dtype))), None)
    np.testing.assert_array_equal(device.get(found), [[0, 0.5], [0.5, 0]])


@by_number
def test_log_softmax_and_its_gradient(device, dtype):
    rng = np.random.default_rng(0)
    for shape in ((4, 3), (2, 100), (3, 1), (2, 2, 5), (0, 3)):
        x, d = (rng.standard_normal(shape).astype(dtype) * 9 for _ in range(2))
        powers = np.exp(x.astype(float))
        expected = np.log(powers / powers.sum(-1, keepdims=True))
        tolerance = 2e-6 if dtype == np.float32 else 1e-13
        y = log_softmax(device.put(x))
        np.testing.assert_allclose(device.get(y), expected, rtol=tolerance, atol=tolerance)
        total = device.put(d.sum(-1, keepdims=True))
        found = device.get(log_softmax_grad(y, device.put(d), total))
        expected = d - np.exp(expected) * d.sum(-1, keepdims=True)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 if dtype == np.float32 else 1e-11)
    x = np.array([[np.inf, 1, 2], [-np.inf] * 3, [np.nan, 0, 1], [-np.inf, 0, 1], [1e30, 0, -1e30]], dtype)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(device.get(log_softmax(device.put(x))), log_softmax(x), rtol=1e-6)
