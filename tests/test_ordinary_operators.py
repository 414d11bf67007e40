"""Operators of arrays beside what NumPy computes: elementwise ones, comparisons and what they choose.

What every operator promises (`infer`, the gradient, a program and its file) is tried in test_operators.py.
"""

import math

import numpy as np
import pytest

import varlen_rnn as vr
from varlen_rnn.nn import functional as F

LENGTHS = [2, 0, 3, 1]
EDGES = np.array([-np.inf, -1e30, -50.0, -1.5, -1e-30, -0.0, 0.0, 0.3, 2.0, 50.0, 1e30, np.inf, np.nan])
FLOATS = pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])


def rows(*element, dtype=np.float64, seed=0):
    data = np.random.default_rng(seed).standard_normal((6, *element)).astype(dtype)
    return vr.create_lod_tensor(data, [LENGTHS])


def gradients(function, *values):
    """Return the result of a function of Variables, and the gradient of its sum for each of them."""
    variables = [vr.Variable(value, requires_grad=True) for value in values]
    out = function(*variables)
    out.sum().backward()
    return np.asarray(out), [np.asarray(v.grad) for v in variables]


def normal_below(x):
    return 0.5 * math.erfc(-x / math.sqrt(2))


def of_each(function):
    return lambda x: np.array([function(float(number)) for number in x], x.dtype)


ONE = {
    "abs": (F.abs, np.abs),
    "sqrt": (F.sqrt, np.sqrt),
    "exp": (F.exp, np.exp),
    "log": (F.log, np.log),
    "tanh": (F.tanh, np.tanh),
    "sigmoid": (F.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    "silu": (F.silu, lambda x: x / (1 + np.exp(-x))),
    "gelu": (F.gelu, of_each(lambda x: x * normal_below(x))),
    "softplus": (F.softplus, lambda x: np.log1p(np.exp(x))),
    "softplus of a slope": (
        lambda x: F.softplus(x, beta=2.0, threshold=4.0), lambda x: np.where(x > 2, x, np.log1p(np.exp(2 * x)) / 2)
    ),
    "log_sigmoid": (F.log_sigmoid, lambda x: -np.log1p(np.exp(-x))),
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.3), lambda x: np.maximum(x, 0) + x.dtype.type(0.3) * np.minimum(x, 0)),
    "elu": (lambda x: F.elu(x, alpha=0.5), lambda x: np.where(x > 0, x, np.expm1(x) / 2)),
    "gelu by tanh": (
        lambda x: F.gelu(x, approximate="tanh"),
        lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    ),
}  # fmt: skip


@FLOATS
@pytest.mark.parametrize("name", ONE)
def test_one_operand(name, dtype):
    ours, numpys = ONE[name]
    x = np.linspace(-5, 5, 41).astype(dtype)
    with np.errstate(all="ignore"):
        wanted = numpys(x)
    found = ours(x)
    assert found.dtype == dtype
    tolerance = {"rtol": 1e-12, "atol": 1e-15} if dtype is np.float64 else {"rtol": 2e-6, "atol": 1e-6}
    np.testing.assert_allclose(found, wanted, **tolerance)


@pytest.mark.parametrize("name", ["abs", "sqrt", "exp", "log", "tanh", "sigmoid"])
def test_methods_are_the_functions(name):
    x = vr.Variable(rows(3))
    assert np.array_equal(getattr(x, name)(), ONE[name][0](x), equal_nan=True)
    assert getattr(x, name)().lod() == x.lod()
    assert np.array_equal(abs(x), np.abs(x.value.data))


@FLOATS
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_has_no_end_only_where_its_argument_has_none(approximate, dtype):
    found, (d,) = gradients(lambda x: F.gelu(x, approximate), EDGES[1:-1].astype(dtype))
    np.testing.assert_array_equal(found[[0, 1, -2, -1]], np.array([0, 0, 1e30, np.inf], dtype))
    np.testing.assert_array_equal(d[[0, 1, -3, -2, -1]], [0, 0, 1, 1, 1])
    assert np.isnan(np.asarray(F.gelu(np.array([-np.inf, np.nan], dtype), approximate))).all()


@FLOATS
def test_activations_far_out_neither_overflow_nor_lose_digits(dtype):
    x = np.array([-np.inf, -1e30, -30, -1e-30, 0, 30, 1e30, np.inf], dtype)
    power = np.exp(dtype(-30))
    small = np.log1p(power)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        found, (d,) = gradients(F.softplus, x)
        of_log, (d_log,) = gradients(F.log_sigmoid, x)
        of_elu, (d_elu,) = gradients(F.elu, x)
    tolerance = {"rtol": 1e-6 if dtype is np.float32 else 1e-13}
    np.testing.assert_allclose(found, [0, 0, small, np.log(2), np.log(2), 30, 1e30, np.inf], **tolerance)
    np.testing.assert_allclose(d, [0, 0, small, 0.5, 0.5, 1, 1, 1], **tolerance)
    np.testing.assert_allclose(of_log, [-np.inf, -1e30, -30, -np.log(2), -np.log(2), -small, 0, 0], **tolerance)
    np.testing.assert_allclose(d_log, [1, 1, 1, 0.5, 0.5, small, 0, 0], **tolerance)
    np.testing.assert_allclose(of_elu, [-1, -1, -1, -1e-30, 0, 30, 1e30, np.inf], **tolerance)
    np.testing.assert_allclose(d_elu, [0, 0, small, 1, 1, 1, 1, 1], **tolerance)


def test_constants_that_do_not_fit():
    for make, message in (
        (lambda: F.softplus([1.0], beta=0.0), "expected a finite beta above 0"),
        (lambda: F.normalize([[1.0]], p=0.5), "normalize, p: expected at least 1, got 0.5"),
        (lambda: F.normalize([[1.0]], eps=0.0), "normalize, eps: expected finite and more than 0"),
        (
            lambda: F.cosine_similarity(np.ones((2, 3)), np.ones((2, 1))),
            "cosine_similarity, axis: expected an axis from -2 to 1",
        ),
        (
            lambda: F.cosine_similarity(np.ones((2, 3)), np.ones(3), axis=0),
            "cosine_similarity, axis: expected an axis from -2 to 1",
        ),
        (lambda: F.one_hot([1, 3], 3), "one_hot, ids, entry 1: expected 0 <= id < 3"),
        (lambda: F.one_hot([-1]), "one_hot, ids, entry 0"),
        (lambda: F.one_hot([1.0]), "one_hot, ids: expected integers"),
    ):
        with pytest.raises(vr.InputError, match=message):
            make()


def test_norms_along_an_axis_are_ones_and_zeros_stay():
    x = rows(3, dtype=np.float32)
    x.data[2] = 0
    for p in (1.0, 2.0, 3.5, np.inf):
        found = F.normalize(x, p)
        assert found.lod() == x.lod()
        np.testing.assert_allclose(np.linalg.norm(np.asarray(found), p, axis=1), [1, 1, 0, 1, 1, 1], rtol=1e-6)
    cosines = F.cosine_similarity(x, np.array([2.0, 0.0, 0.0], np.float32))
    assert cosines.lod() == x.lod()
    np.testing.assert_allclose(cosines, np.asarray(F.normalize(x))[:, 0], rtol=1e-6)


@pytest.mark.parametrize("p", [1.0, 2.0, 3.5, np.inf])
@pytest.mark.parametrize(("dtype", "large"), [(np.float32, 3e38), (np.float32, 1e20), (np.float64, 1e308)])
def test_norms_of_large_numbers_do_not_overflow(dtype, large, p):
    small = np.array([[3.0, 4.0], [1.0, -1.0], [0.0, 0.5]])
    x = vr.Variable((small * (large / 4)).astype(dtype), requires_grad=True)
    found = F.normalize(x, p)
    np.testing.assert_allclose(found, small / np.linalg.norm(small, p, axis=1, keepdims=True), rtol=1e-6)
    far, near = np.arange(6, dtype=dtype).reshape(3, 2), vr.Variable(small, requires_grad=True)
    (found * far).sum().backward()
    (F.normalize(near, p) * far.astype(np.float64)).sum().backward()
    np.testing.assert_allclose(np.float64(x.grad) * (large / 4), near.grad, rtol=2e-5, atol=1e-5)


def test_cosines_of_large_numbers_do_not_overflow():
    small = np.array([[3.0, 4.0], [1.0, -1.0]])
    x = vr.Variable((small * 5e37).astype(np.float32), requires_grad=True)
    other = np.array([[1.0, 0.0]], np.float32)
    for y in (other, other * np.float32(1e30)):
        x.grad = None
        found = F.cosine_similarity(x, y)
        np.testing.assert_allclose(found, [0.6, 0.5**0.5], rtol=1e-6)
        found.sum().backward()
        wanted = [(1 - 0.6**2) / 5, -0.6 * 0.8 / 5], [0.5 / 2**0.5, 0.5 / 2**0.5]
        np.testing.assert_allclose(np.float64(x.grad) * 5e37, wanted, rtol=1e-5)


def test_norms_of_infinity_are_as_in_numpy():
    x = np.array([[np.inf, 1.0], [np.nan, 1.0]], np.float32)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(F.normalize(x), [[np.nan, 0.0], [np.nan, np.nan]])
    assert F.normalize(np.zeros((0, 2))).shape == (0, 2)
    assert F.normalize(np.zeros((2, 0))).shape == (2, 0)
    assert F.normalize([[3.0, 4.0]], eps=1e200).numpy().tolist() == [[3e-200, 4e-200]]


def test_one_hot_in_a_program():
    ids = rows().like(np.array([2, 0, 1, 1, 3, 0]))
    found = F.one_hot(ids)
    assert (found.dtype, found.shape, found.lod()) == (np.int64, (6, 4), ids.lod())
    assert np.array_equal(found, np.eye(4)[ids.data])
    assert F.one_hot(np.zeros((0, 2), int)).shape == (0, 2, 0)
    assert F.one_hot(np.array([2, 0], np.uint8)).numpy().tolist() == [[0, 0, 1], [1, 0, 0]]
    with vr.program_guard() as program:
        x = vr.feed_data("ids", [-1], "int64", lod_level=1)
        y = F.one_hot(x, 4).astype("float32") @ np.ones((4, 2), np.float32)
        with pytest.raises(vr.ProgramError):
            F.one_hot(x)
    assert np.array_equal(vr.Executor().run(program, {"ids": ids}, [y])[0].data, np.ones((6, 2)))


def test_gelu_of_far_below_keeps_its_digits():
    assert math.isclose(F.gelu(np.array([-10.0])).value.data[0], -10 * normal_below(-10), rel_tol=1e-13)


def test_gelu_knows_two_forms():
    with pytest.raises(vr.ShapeError, match="gelu, approximate: expected one of 'none' or 'tanh'"):
        F.gelu(np.ones(2), approximate="erf")


def test_gradients_at_the_edges():
    assert gradients(F.abs, np.array([-2.0, 0.0, 3.0]))[1][0].tolist() == [-1, 0, 1]
    assert gradients(F.sqrt, np.array([0.0, 4.0]))[1][0].tolist() == [np.inf, 0.25]


OF_NUMPY = {
    "one": (lambda x: np.sqrt(np.abs(np.tanh(np.negative(x)))) + np.exp(x), 1),
    "log": (lambda x: np.log(np.exp(x) + 1.0), 1),
    "arrays on the left": (lambda x: np.ones(3) * x - np.ones((6, 1)) / (x * x + 1.0) + np.float64(2) * x, 1),
    "maximum": (lambda x: np.maximum(x, 0.5) + np.minimum(0.1, x), 1),
    "power": (lambda x: np.power(x, 2), 1),
    "product": (lambda x: np.matmul(x, np.ones((3, 2))) + x @ np.ones((3, 2)), 1),
    "truths": (lambda x: np.logical_or(np.logical_not(x > 0.5), np.ones((6, 3)) < x) & (np.zeros(3) <= x), 0),
}


@pytest.mark.parametrize("name", OF_NUMPY)
def test_functions_of_numpy_are_operators(name):
    function, has_gradient = OF_NUMPY[name]
    x = vr.Variable(rows(3), requires_grad=True)
    found = function(x)
    assert isinstance(found, vr.Variable)
    assert found.requires_grad == bool(has_gradient)
    np.testing.assert_allclose(np.asarray(found), function(np.asarray(x)), rtol=1e-14)
    with vr.program_guard() as program:
        described = function(vr.feed_data("x", [-1, 3], "float64", lod_level=1))
    assert np.array_equal(vr.Executor().run(program, {"x": x.value}, [described.name])[0], found)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (np.arctan, r"np.arctan of a Variable: .*\(functional has more"),
        (np.isnan, r"np.isnan of a Variable: .*np.asarray\(x\)"),
        (np.add.reduce, r"np.add.reduce of a Variable"),
        (lambda x: np.equal(np.ones(3), x), r"functional\.equal"),
        (lambda x: np.ones(3) == x, r"functional\.equal"),
        (lambda x: np.ones(3) != x, r"functional\.not_equal"),
        (lambda x: np.add(np.ones((6, 3)), x, out=np.ones((6, 3))), r"np\.add of a Variable: .*got out"),
        (lambda x: np.tanh(x, dtype=np.float32), r"np\.tanh of a Variable: .*got dtype"),
        (lambda x: np.power(2.0, x), r"pow, exponent"),
        (lambda x: np.ones((6, 3), np.float32) * x, r"mul, y: expected float32"),
    ],
)
def test_other_functions_of_numpy_are_refused(function, message):
    with pytest.raises(vr.DTypeError, match=message):
        function(vr.Variable(rows(3)))


TYPES = ["float32", "float64", "bool", "int8", "int16", "int32", "int64", "uint8"]


@pytest.mark.parametrize("to", TYPES)
@pytest.mark.parametrize("of", TYPES)
def test_astype(of, to):
    x = rows(3)
    x = vr.Variable(x.like((x.data > 0 if of == "bool" else x.data * 9 + 30).astype(of)))
    found = x.astype(to)
    assert found.dtype == to
    assert found.lod() == x.lod()
    assert np.array_equal(found, np.asarray(x).astype(to))
    assert (found is x) == (of == to)


def test_gradients_pass_between_floats_and_stop_at_integers():
    x = vr.Variable(rows(3), requires_grad=True)
    (x.astype(np.float32) * np.float32(0.1)).astype("float64").sum().backward()
    assert x.grad.dtype == np.float64
    assert x.grad.lod() == x.lod()
    assert (np.asarray(x.grad) == np.float32(0.1)).all()
    assert not x.astype(int).astype("float64").requires_grad


def test_programs_divide_by_lengths():
    x = rows(3)
    with vr.program_guard() as program:
        given = vr.feed_data("x", [-1, 3], "float64", lod_level=1)
        padded, lengths = vr.sequence_pad(given, 0.0)
        mean = padded.sum(axis=1) / F.maximum(lengths, 1).astype("float64").reshape(-1, 1)
    for ran in (program, vr.Program.from_bytes(program.to_bytes())):
        (found,) = vr.Executor().run(ran, {"x": x}, [mean.name])
        np.testing.assert_allclose(found, vr.sequence_pool(x, "mean"), rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "complex128", "object", "S4", ">f4", "of mine", 3])
def test_astype_refuses_other_types(dtype):
    with pytest.raises(vr.DTypeError, match=r"cast, dtype|astype, dtype"):
        vr.Variable(np.ones(2)).astype(dtype)


def test_mixed_types_name_astype():
    with pytest.raises(vr.DTypeError, match=r"x\.astype\(dtype\)"):
        vr.Variable(np.ones(2)) / np.array([1, 2])


SHAPES = [((6, 3), (6, 3)), ((6, 3), (3,)), ((6, 3), (6, 1)), ((1, 3), (6, 3)), ((6, 3), ()), ((2, 1, 3), (6, 3))]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_maximum_and_minimum(name, shapes):
    rng = np.random.default_rng(0)
    x, y = (rng.integers(0, 3, shape).astype(float) for shape in shapes)
    found, (d_x, d_y) = gradients(getattr(F, name), x, y)
    assert np.array_equal(found, getattr(np, name)(x, y))
    wins = np.where(x == y, 0.5, (x > y) == (name == "maximum"))
    for d, v, part in ((d_x, x, wins), (d_y, y, 1 - wins)):
        assert d.shape == v.shape
        assert math.isclose(d.sum(), part.sum())
        if v.shape == part.shape:
            assert np.array_equal(d, part)


def test_maximum_passes_nan_on_and_nothing_of_what_was_not_chosen():
    assert np.isnan(np.asarray(F.maximum(np.array([np.nan, 1.0]), np.array([1.0, np.nan])))).all()
    x = vr.Variable([1.0, 2.0], requires_grad=True)
    F.maximum(x, 1.5).backward(np.array([np.inf, 1.0]))  # no zero times an infinite gradient
    assert x.grad.tolist() == [0, 1]


COMPARISONS = {
    "less": (lambda x, y: x < y, np.less),
    "less_equal": (lambda x, y: x <= y, np.less_equal),
    "greater": (lambda x, y: x > y, np.greater),
    "greater_equal": (lambda x, y: x >= y, np.greater_equal),
    "equal": (F.equal, np.equal),
    "not_equal": (F.not_equal, np.not_equal),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.int32])
@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons(name, dtype):
    ours, numpys = COMPARISONS[name]
    data = np.random.default_rng(0).integers(-1, 2, (6, 3)).astype(dtype)
    x = vr.Variable(vr.create_lod_tensor(data, [LENGTHS]))
    other = data[::-1].copy()
    for y in (other, vr.Variable(other), x, 1, other[0], True):
        found = ours(x, y)
        assert found.dtype == bool
        assert not found.requires_grad
        assert found.lod() == x.lod()
        assert np.array_equal(found, numpys(data, np.asarray(y).astype(dtype)))
        assert np.array_equal(ours(y, x), numpys(np.asarray(y).astype(dtype), data))


@pytest.mark.parametrize("name", COMPARISONS)
def test_nan_compares_as_in_numpy_and_nothing_is_remembered(name):
    ours, numpys = COMPARISONS[name]
    x = vr.Variable(EDGES, requires_grad=True)
    y = np.roll(EDGES, 1)
    found = ours(x, y)
    assert np.array_equal(found, numpys(EDGES, y))
    assert found.record is None


@pytest.mark.parametrize(("x", "y", "message"), [
    (np.ones(2), np.ones(2, np.float32), "less, y: expected float64, as x has, got float32"),
    (np.ones(2), np.arange(2), "less, y: expected float64, as x has, got int64"),
    (np.arange(2), 0.5, "number: expected an integer, because the other operand is int64, got 0.5"),
    (np.arange(2), 2**70, "number: expected a number that int64 can hold"),
    (np.arange(2, dtype=np.uint8), -1, "number: expected a number that uint8 can hold, got -1"),
    (np.ones(2, bool), 2, "number: expected True or False, because the other operand is bool, got 2"),
])  # fmt: skip
def test_data_types_are_not_mixed(x, y, message):
    with pytest.raises(vr.DTypeError, match=message):
        assert (vr.Variable(x) < y) is None


def test_bools():
    a, b = np.array([True, True, False, False]), np.array([True, False, True, False])
    x = vr.Variable(a)
    assert np.array_equal(~x, ~a)
    for y in (b, vr.Variable(b)):
        assert np.array_equal(x & y, a & b)
        assert np.array_equal(x | y, a | b)
        assert np.array_equal(y & x, a & b)
        assert np.array_equal(y | x, a | b)
    assert np.array_equal(x & True, a)
    for wrong in (lambda: ~vr.Variable([1.0]), lambda: vr.Variable([1.0]) & vr.Variable([1.0]), lambda: x | 1.5):
        with pytest.raises(vr.DTypeError, match=r"bools|True or False"):
            wrong()


def test_a_mask_beside_numbers_is_told_of_where():
    x = vr.Variable(rows(3))
    with pytest.raises(vr.DTypeError, match=r"mul, y: expected float64, as x has, got bool \(functional.where"):
        x * (x > 0)


def test_where():
    x, y = rows(3), np.random.default_rng(1).standard_normal(3)
    found, (d_x, d_y) = gradients(lambda x, y: F.where(x > 0, x * 2.0, y), x, y)
    chosen = np.asarray(x) > 0
    assert np.array_equal(found, np.where(chosen, 2 * np.asarray(x), y))
    assert np.array_equal(d_x, 2.0 * chosen)
    np.testing.assert_allclose(d_y, (~chosen).sum(0))
    assert F.where(chosen, x, 0.0).lod() == x.lod()
    ids = np.arange(3, dtype=np.int32)
    assert F.where(ids > np.int32(1), ids, 7).dtype == np.int32


def test_where_passes_no_gradient_of_what_was_not_chosen():
    x = vr.Variable([0.0, 4.0], requires_grad=True)
    F.where(x > 0, x.sqrt(), 0.0).backward(np.array([np.nan, 1.0]))
    assert np.isnan(x.grad[0])  # zero times the infinite slope of the root: as in PyTorch, choose before the root
    x.grad = None
    F.where(x > 0, x, 1.0).sqrt().sum().backward()
    assert x.grad.tolist() == [0, 0.25]


@pytest.mark.parametrize(("make", "error", "message"), [
    (lambda: F.where(np.ones(2), np.ones(2), 0.0), vr.DTypeError, "where, condition: expected bools, as comparisons"),
    (lambda: F.where(np.ones(2, bool), np.ones(2), np.ones(3)), vr.ShapeError, "where: expected shapes that broadcast"),
    (lambda: F.where(np.ones(2, bool), np.ones(2), np.arange(2)), vr.DTypeError, "where, y: expected float64, as x"),
    (lambda: F.where(np.ones(2, bool), None, 1.0), vr.DTypeError, "where, x: expected a Variable"),
    (lambda: F.maximum(np.ones(2), None), vr.DTypeError, "maximum, y: expected a Variable"),
    (lambda: F.where(rows(3).data > 0, rows(3), vr.create_lod_tensor(np.ones((6, 3)), [[6]])), vr.LoDError, "where"),
    (lambda: F.where(np.ones((2, 6, 1), bool), rows(3), 0.0), vr.ShapeError, "a result of 6 rows, as its LoD has"),
])  # fmt: skip
def test_what_does_not_fit(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_comparisons_in_a_program_that_is_saved():
    def loss(x):
        return F.where((x > 0.5) | ~(x >= -0.5), F.maximum(x, 0.25), F.minimum(x, -0.25)).sum()

    with vr.program_guard() as program:
        x = vr.feed_data("x", [-1, 3], "float64", lod_level=1, requires_grad=True)
        out = loss(x)
        out.backward()
    value = rows(3)
    wanted, (d,) = gradients(loss, value)
    for one in (program, vr.Program.from_bytes(program.to_bytes())):
        found, d_x = vr.Executor().run(one, {"x": value}, [out.name, "x@GRAD"])
        assert found == wanted
        assert np.array_equal(d_x.data, d)


def test_transpose():
    x = rows(2, 3)
    found, (d,) = gradients(lambda v: v.transpose(1, -1) * np.arange(6.0).reshape(3, 2), x)
    assert np.array_equal(found, np.swapaxes(x.data, 1, 2) * np.arange(6.0).reshape(3, 2))
    assert np.array_equal(d, np.broadcast_to(np.arange(6.0).reshape(3, 2).T, (6, 2, 3)))
    v = vr.Variable(x)
    assert v.transpose(1, 2).lod() == v.transpose(0, 0).lod() == x.lod()
    assert v.transpose(0, 1).lod() == []
    assert np.array_equal(vr.Variable(rows(3)).T, rows(3).data.T)
    for wrong, error in (
        (lambda: v.T, vr.ShapeError),
        (lambda: v.transpose(0, 3), vr.ShapeError),
        (lambda: v.transpose(0, 1.5), vr.DTypeError),
        (lambda: v.sum().transpose(0, 0), vr.ShapeError),
    ):
        with pytest.raises(error, match=r"transpose|T of a Variable: expected two axes"):
            wrong()


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_stack(axis):
    x, y = rows(3), rows(3, seed=1)
    found, (d_x, d_y) = gradients(lambda *v: F.stack(v, axis) ** 2.0, x, y)
    assert np.array_equal(found, np.stack([x.data, y.data], axis) ** 2)
    assert np.array_equal(d_x, 2 * x.data)
    assert np.array_equal(d_y, 2 * y.data)
    assert F.stack([vr.Variable(x), vr.Variable(y)], axis).lod() == ([] if axis in (0, -3) else x.lod())
    assert F.stack([x], axis).shape == np.stack([x.data], axis).shape


@pytest.mark.parametrize(("make", "error"), [
    (lambda: F.stack([]), vr.ShapeError), (lambda: F.stack(rows(3)), vr.DTypeError),
    (lambda: F.stack([None]), vr.DTypeError),
    (lambda: F.stack([rows(3)], 3), vr.ShapeError), (lambda: F.stack([rows(3), rows(2)]), vr.ShapeError),
    (lambda: F.split(rows(5), 2, axis=2), vr.ShapeError), (lambda: F.split(rows(5), 0), vr.ShapeError),
    (lambda: F.split(rows(5), [2, 2]), vr.ShapeError), (lambda: F.split(rows(5), [6, -1]), vr.ShapeError),
    (lambda: F.split(rows(5), []), vr.ShapeError), (lambda: F.split(rows(5), 1.5), vr.DTypeError),
    (lambda: F.split(None, 1), vr.DTypeError),
])  # fmt: skip
def test_what_does_not_fit_stack_and_split(make, error):
    with pytest.raises(error, match=r"^(stack|split|concat)"):
        make()


@pytest.mark.parametrize(("sizes", "axis"), [(2, -1), (5, 1), (9, 1), ([1, 0, 4], -1), ([4, 2], 0), (3, 0)])
def test_split(sizes, axis):
    x = rows(5)
    cuts = np.cumsum(sizes)[:-1] if isinstance(sizes, list) else np.arange(sizes, x.shape[axis], sizes)
    wanted = np.split(x.data, cuts, axis)
    v = vr.Variable(x, requires_grad=True)
    found = F.split(v, sizes, axis)
    assert len(found) == len(wanted)
    for part, other in zip(found, wanted, strict=True):
        assert np.array_equal(part, other)
        assert part.lod() == (x.lod() if axis else [])
    (found[-1] * 3.0).sum().backward()  # of the others no gradient arrives
    assert np.array_equal(np.split(v.grad.data, cuts, axis)[-1], np.full_like(wanted[-1], 3))
    assert np.count_nonzero(v.grad.data) == wanted[-1].size


def test_split_of_a_program():
    with vr.program_guard() as program:
        x = vr.feed_data("x", [-1, 5], "float64", lod_level=1)
        names = [part.name for part in (*F.split(x, 2), *F.split(x, [1, 5], axis=0))]
        with pytest.raises(vr.ProgramError, match="split, axis: expected an axis of known size"):
            F.split(x, 2, axis=0)
    found = vr.Executor().run(program, {"x": rows(5)}, names)
    assert [np.asarray(part).shape for part in found] == [(6, 2), (6, 2), (6, 1), (1, 5), (5, 5)]
    with pytest.raises(vr.ShapeError, match="split, sizes: expected sizes with the sum 3"):
        vr.Executor().run(program, {"x": vr.create_lod_tensor(np.ones((3, 5)), [[3]])}, names)


BATCHES = [
    ((4, 2, 3), (4, 3, 5)), ((4, 2, 3), (3, 5)), ((2, 3), (4, 3, 5)), ((4, 1, 2, 3), (5, 3, 1)), ((1, 2, 3), (6, 3, 4)),
    ((3, 9, 70), (3, 70, 80)), ((2, 1, 600), (2, 600, 3)), ((2, 40, 3), (2, 3, 2)), ((0, 2, 3), (0, 3, 2)),
    ((2, 0, 3), (2, 3, 2)), ((2, 3, 0), (2, 0, 2)), ((2, 3, 600), (2, 600, 0)),
]  # fmt: skip


@FLOATS
@pytest.mark.parametrize("shapes", BATCHES, ids=str)
def test_products_of_batches(shapes, dtype):
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
    found, (d_x, d_y) = gradients(lambda a, b: a @ b, x, y)
    tolerance = {"rtol": 1e-12, "atol": 1e-12} if dtype is np.float64 else {"rtol": 1e-4, "atol": 1e-4}
    assert found.dtype == dtype
    np.testing.assert_allclose(found, x @ y, **tolerance)
    ones = np.ones_like(found)
    for d, v, product in ((d_x, x, ones @ np.swapaxes(y, -1, -2)), (d_y, y, np.swapaxes(x, -1, -2) @ ones)):
        added = product.sum(tuple(range(product.ndim - v.ndim)))
        axes = tuple(k for k in range(v.ndim) if v.shape[k] != added.shape[k])
        np.testing.assert_allclose(d, added.sum(axes, keepdims=True), **tolerance)
    assert np.array_equal(x @ vr.Variable(y), vr.Variable(x) @ y)


@pytest.mark.parametrize("shape", [(3, 4), (60, 70), (600, 2)], ids=str)
def test_a_product_of_a_batch_depends_on_its_own_matrices_only(shape):
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(s).astype(np.float32) for s in ((7, 9, shape[0]), (7, *shape)))
    whole = np.asarray(vr.Variable(x) @ y)
    for k in range(7):
        assert np.array_equal(whole[k : k + 1], vr.Variable(x[k : k + 1]) @ y[k : k + 1])
    assert np.array_equal(whole[:, 2:4], vr.Variable(np.ascontiguousarray(x[:, 2:4])) @ y)
    threads = vr.get_num_threads()
    try:
        vr.set_num_threads(1)
        assert np.array_equal(whole, vr.Variable(x) @ y)
    finally:
        vr.set_num_threads(threads)


def test_which_products_of_batches_keep_the_lod():
    x, y = vr.Variable(rows(2, 3)), vr.Variable(rows(3, 2))
    lod = x.lod()
    assert [(a @ b).lod() for a, b in ((x, y), (x, y.value.data), (x, y[:1]), (x[:1], y))] == [lod] * 4
    assert (x @ np.ones((3, 2))).lod() == lod
    assert (vr.Variable(rows(3)) @ np.ones((2, 3, 2))).lod() == []
    with pytest.raises(vr.LoDError, match="batched_matmul: expected one LoD"):
        x @ vr.create_lod_tensor(y.value.data, [[6]])


@pytest.mark.parametrize(("x", "y", "message"), [
    ((2, 3), (2, 4, 5), "3 rows of y, as many as x has columns, got"),
    ((3,), (2, 3, 5), "batched_matmul, x: expected matrices, got shape"),
    ((2, 2, 3), (3, 3, 5), "shapes that broadcast"),
    ((2, 2, 3), (3,), "matmul, weight: expected rank 2"),
])  # fmt: skip
def test_matrices_that_do_not_fit(x, y, message):
    with pytest.raises(vr.ShapeError, match=message):
        vr.Variable(np.ones(x)) @ np.ones(y)


INDICES = {
    "duplicates": [1, 1, -1, 0, 1], "a square": [[0, 5], [-6, 5]], "one": 3, "nothing": np.zeros((0, 2), int),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.int8, np.uint64])
@pytest.mark.parametrize("element", [(), (3,), (2, 2), (0,)], ids=str)
@pytest.mark.parametrize("name", INDICES)
def test_rows_by_a_variable(name, element, dtype):
    index = np.array(INDICES[name])
    index = (index % 6 if dtype is np.uint64 else index).astype(dtype)
    x = rows(*element)
    weight = np.random.default_rng(1).standard_normal((*index.shape, *element))
    found, (d,) = gradients(lambda v: v[vr.Variable(index)] * weight, x)
    assert np.array_equal(found, x.data[index] * weight)
    wanted = np.zeros(x.shape)
    np.add.at(wanted, index, weight)
    np.testing.assert_allclose(d, wanted, rtol=1e-14)
    assert np.array_equal(vr.Variable(np.arange(6) * 2)[vr.Variable(index)], np.arange(6)[index] * 2)


def test_rows_by_a_variable_have_its_lod():
    index = vr.create_lod_tensor(np.array([0, 4, 4]), [[1, 1], [1, 2]])
    found = vr.Variable(rows(3))[vr.Variable(index)]
    assert found.lod() == index.lod()
    with vr.program_guard() as program:
        x = vr.feed_data("x", [-1, 3], "float64", lod_level=1, requires_grad=True)
        y = x[vr.feed_data("index", [-1], "int64", lod_level=2)]
        (y * y).sum().backward()
    feed = {"x": rows(3), "index": index}
    for one in (program, vr.Program.from_bytes(program.to_bytes())):
        out, d = vr.Executor().run(one, feed, [y.name, "x@GRAD"])
        assert np.array_equal(out.data, found)
        assert out.lod() == index.lod()
        assert np.array_equal(d.data[[0, 1, 4]], feed["x"].data[[0, 1, 4]] * [[2], [0], [4]])


def test_a_variable_among_other_indices_is_for_values():
    x, index = vr.Variable(rows(3)), vr.Variable(np.array([2, 0]))
    assert np.array_equal(x[:, index], rows(3).data[:, [2, 0]])
    with vr.program_guard():
        i = vr.feed_data("i", [2], "int64")
        with pytest.raises(vr.ShapeError, match=r"a Variable must be the whole index: x.transpose\(0, 1\)\[index\]"):
            vr.feed_data("x", [-1, 3], "float64")[:, i]


def test_the_gradient_of_a_row_taken_often_does_not_drift():
    x = vr.Variable(np.zeros((2, 1), np.float32), requires_grad=True)
    (x[vr.Variable(np.zeros(2**20, int))] * np.float32(0.1)).sum().backward()
    assert abs(x.grad[0, 0] / (2**20 * float(np.float32(0.1))) - 1) < 3e-6


@pytest.mark.parametrize(("index", "error", "message"), [
    ([0, 6], vr.OutOfRangeError, "gather, index, entry 1: expected -6 <= row < 6, got 6"),
    ([-7], vr.OutOfRangeError, "entry 0: expected -6 <= row < 6, got -7"),
    (np.array([2**64 - 1], np.uint64), vr.OutOfRangeError, "got 18446744073709551615"),
    (np.array([-(2**63)]), vr.OutOfRangeError, "got -9223372036854775808"),
    ([0.0], vr.DTypeError, "gather, index: expected integers, got float64"),
    ([True] * 6, vr.DTypeError, r"gather, index: expected integers, got a mask of bools \(x\[np.asarray\(mask\)\]"),
])  # fmt: skip
def test_an_index_that_names_no_row(index, error, message):
    with pytest.raises(error, match=message):
        vr.Variable(rows(3))[vr.Variable(np.array(index))]
    with pytest.raises(vr.ShapeError, match="gather, x: expected rows, so at least one axis, got a single number"):
        vr.Variable(1.0)[vr.Variable(0)]


def test_embedding():
    ids, table = vr.create_lod_tensor(np.array([3, 0, 3], np.int32), [[1, 2]]), np.random.default_rng(0).random((4, 2))
    found, (d,) = gradients(lambda t: F.embedding(ids, t, padding_idx=-4), table)
    assert np.array_equal(found, table[[3, 0, 3]])
    assert np.array_equal(d, [[0, 0], [0, 0], [0, 0], [2, 2]])
    assert F.embedding(ids, table).lod() == ids.lod()
    weight = vr.nn.Parameter(table)
    F.embedding(ids, weight, sparse=True).sum().backward()
    assert isinstance(weight.grad, vr.SelectedRows)
    for dtype in (np.int64, np.int32, np.uint8, bool):
        codes = F.embedding(ids, np.arange(8).reshape(4, 2).astype(dtype))
        assert codes.dtype == dtype
        assert np.array_equal(codes, np.arange(8).reshape(4, 2)[[3, 0, 3]].astype(dtype))
    for wrong in (lambda: F.embedding([4], table), lambda: F.embedding([0], table, padding_idx=4)):
        with pytest.raises(vr.OutOfRangeError, match=r"id < 4|-4 to 3"):
            wrong()


WITH_TIES = np.array([[1.0, 3, 3, 2], [0, 0, 0, 0], [-1, -2, -1, -3], [np.nan, 1, np.nan, 9], [np.inf, 1, 2, np.inf],
                      [-0.0, 0.0, -1, 0]])  # fmt: skip


def largest(x, k):
    """Return where the largest numbers stand, one after another: the first of equal ones, NaN before all others."""
    places = []
    for _ in range(k):
        left = [j for j in range(len(x)) if j not in places]
        nan = [j for j in left if math.isnan(x[j])]
        places.append(nan[0] if nan else max(left, key=lambda j: (x[j], -j)))
    return places


@FLOATS
@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_topk(k, dtype):
    x = vr.Variable(vr.create_lod_tensor(WITH_TIES.astype(dtype), [LENGTHS]), requires_grad=True)
    values, indices = F.topk(x, k)
    wanted = np.array([largest(row, k) for row in WITH_TIES.tolist()])
    assert indices.dtype == np.int64
    assert not indices.requires_grad
    assert np.array_equal(indices, wanted)
    assert np.array_equal(values, np.take_along_axis(WITH_TIES, wanted, 1).astype(dtype), equal_nan=True)
    assert values.lod() == indices.lod() == x.lod()
    weight = np.random.default_rng(0).standard_normal(values.shape).astype(dtype)
    values.backward(weight)
    assert x.grad.data.sum(1).tolist() == pytest.approx(weight.sum(1).tolist())
    assert np.array_equal(np.take_along_axis(x.grad.data, wanted, 1), weight)


def test_topk_of_many():
    rng = np.random.default_rng(0)
    for data in (rng.integers(0, 500, (3, 2000)), rng.standard_normal((2, 3000)), rng.integers(0, 2, (2, 40)) == 1):
        values, indices = F.topk(data, 37)
        assert np.asarray(indices).tolist() == [largest(row, 37) for row in data.tolist()]
        assert np.array_equal(values, np.take_along_axis(data, np.asarray(indices), 1))
    values, indices = F.topk(rows(3), 2, axis=0)
    assert np.array_equal(indices, np.argsort(-rows(3).data, 0)[:2])
    assert values.lod() == []


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("keepdims", [False, True])
def test_argmax(axis, keepdims):
    x = vr.create_lod_tensor(WITH_TIES, [LENGTHS])
    v = vr.Variable(x, requires_grad=True)
    found = v.argmax(axis, keepdims)
    assert np.array_equal(found, np.argmax(WITH_TIES, axis=axis, keepdims=keepdims))
    assert found.dtype == np.int64
    assert found.record is None
    assert found.lod() == (x.lod() if axis in (1, -1) else [])
    assert np.array_equal(np.argmax(v, axis=axis), v.argmax(axis))
    assert vr.Variable(np.arange(3)).argmax().item() == 2


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_cumsum(axis):
    x = np.random.default_rng(0).standard_normal((4, 3))
    found, (d,) = gradients(lambda v: v.cumsum(axis) * x, x)
    assert np.array_equal(found, np.cumsum(x, axis) * x)
    np.testing.assert_allclose(d, np.cumsum(x[::-1, ::-1], axis)[::-1, ::-1], rtol=1e-13)
    assert vr.Variable(rows(3)).cumsum(1).lod() == rows(3).lod()
    assert np.array_equal(np.cumsum(vr.Variable(x), axis), np.cumsum(x, axis))


@pytest.mark.parametrize(("make", "error", "message"), [
    (lambda v: F.topk(v, 0), vr.ShapeError, "topk, k: expected at least 1"),
    (lambda v: F.topk(v, 4), vr.ShapeError, "topk, k: expected 1 to 3, the size of the axis, got 4"),
    (lambda v: F.topk(v, 1, axis=2), vr.ShapeError, "topk, axis: expected an axis of shape"),
    (lambda v: v.argmax(2), vr.ShapeError, "argmax, axis: expected an axis of shape"),
    (lambda v: v[:0].argmax(0), vr.ShapeError, "argmax, x: expected at least one element"),
    (lambda v: v.cumsum(0), vr.LoDError, "cumsum, axis: expected an axis of features, because x has a LoD"),
    (lambda v: v.cumsum(2), vr.ShapeError, "cumsum, axis: expected an axis of shape"),
    (lambda v: v.argmax().cumsum(0), vr.DTypeError, "cumsum, x: expected float32 or float64, got int64"),
])  # fmt: skip
def test_axes_that_do_not_fit(make, error, message):
    with pytest.raises(error, match=message):
        make(vr.Variable(rows(3)))


def test_the_largest_of_a_program():
    with vr.program_guard() as program:
        x = vr.feed_data("x", [-1, 4], "float64", lod_level=1, requires_grad=True)
        values, indices = F.topk(x, 2)
        rows_of_all, _ = F.topk(x, 3, axis=0)
        best = x[x.argmax(1)]
        (values * values).sum().backward()
    names = [v.name for v in (values, indices, rows_of_all, best)]
    value = vr.create_lod_tensor(np.random.default_rng(0).standard_normal((6, 4)), [LENGTHS])
    for one in (program, vr.Program.from_bytes(program.to_bytes())):
        found = vr.Executor().run(one, {"x": value}, names)
        eager = vr.Variable(value)
        wanted = [*F.topk(eager, 2), F.topk(eager, 3, 0)[0], eager[eager.argmax(1)]]
        for mine, other in zip(found, wanted, strict=True):
            assert np.array_equal(np.asarray(mine), np.asarray(other))
    with pytest.raises(vr.ShapeError, match="topk, k: expected 1 to 2"):
        vr.Executor().run(program, {"x": vr.create_lod_tensor(np.ones((2, 4)), [[2]])}, names)


@FLOATS
@pytest.mark.parametrize("delta", [0.3, 1.0, 5.0])
def test_huber_loss(delta, dtype):
    x, y = (rows(3, dtype=dtype, seed=seed) for seed in (0, 1))
    e = np.abs(x.data - y.data)
    wanted = np.where(e <= delta, e * e / 2, delta * (e - delta / 2))
    tolerance = {"rtol": 1e-12 if dtype is np.float64 else 2e-6}
    found, (d_x, d_y) = gradients(lambda *v: F.huber_loss(*v, "none", delta=delta), x, y)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, wanted, **tolerance)
    np.testing.assert_allclose(d_x, np.clip(x.data - y.data, -dtype(delta), dtype(delta)), **tolerance)
    assert np.array_equal(d_y, -d_x)
    of_sequences = [wanted[:2].mean(), wanted[2:5].mean(), wanted[5:].mean()]  # and one that is empty
    per_sequence = F.huber_loss(x, y, delta=delta, per="sequence").item()
    np.testing.assert_allclose(per_sequence, np.mean(of_sequences), **tolerance)
    np.testing.assert_allclose(F.smooth_l1_loss(x, y, "sum", beta=delta).item(), wanted.sum() / delta, **tolerance)
    assert F.huber_loss(x, y.data, "none").lod() == F.huber_loss(x.data, y, "none").lod() == x.lod()
    assert F.huber_loss(np.zeros((0, 3)), np.zeros((0, 3))).item() == 0


def test_huber_loss_of_far_apart_has_no_square_of_it():
    x, zeros = np.array([1e30, -1e30], np.float32), np.zeros(2, np.float32)
    found, (d,) = gradients(lambda v: F.huber_loss(v, zeros, "none"), x)
    assert found.tolist() == [np.float32(1e30)] * 2
    assert d.tolist() == [1, -1]


@pytest.mark.parametrize("delta", [0, -1.0, np.inf, np.nan, 1e39])
def test_a_delta_is_more_than_zero(delta):
    x = np.ones(2, np.float32)
    for make in (lambda: F.huber_loss(x, x, delta=delta), lambda: F.smooth_l1_loss(x, x, beta=delta)):
        with pytest.raises(vr.ShapeError, match=r"huber_loss, delta|smooth_l1_loss, beta"):
            make()


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8])
def test_integers_add_subtract_and_multiply_as_in_numpy(dtype):
    x, y = np.array([[1, 250, 7]], dtype), np.array([[3], [2]], dtype)
    for function in (np.add, np.subtract, np.multiply, np.maximum, np.minimum):
        operators = {np.add: lambda a, b: a + b, np.subtract: lambda a, b: a - b, np.multiply: lambda a, b: a * b}
        operators |= {np.maximum: F.maximum, np.minimum: F.minimum}
        got = operators[function](vr.Variable(x), y)
        assert got.dtype == dtype
        np.testing.assert_array_equal(np.asarray(got), function(x, y))
    counted = vr.create_lod_tensor(np.arange(3, dtype=dtype), [[2, 1]])
    assert (vr.Variable(counted) + 1).lod() == [[0, 2, 3]]
    with pytest.raises(vr.DTypeError, match="div, x: expected float"):
        vr.Variable(x) / y
    with pytest.raises(vr.DTypeError, match="an integer, because the other operand is"):
        vr.Variable(x) + 0.5


SCALARS = [np.sqrt(8), np.float32(0.1), np.float16(2), np.longdouble(3), np.int64(2), np.uint8(3), np.bool_(True)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("number", SCALARS, ids=lambda number: type(number).__name__)
def test_scalars_of_numpy_are_numbers(number, dtype):  # as in PyTorch, which asserts the same in test_ordinary_torch
    x = vr.Variable(np.array([1.0, 2.0], dtype), requires_grad=True)
    plain = number.item() if number.dtype.kind != "f" else float(number)
    for compute in (
        lambda x, n: x / n, lambda x, n: n / x, lambda x, n: n * x, lambda x, n: x + n, lambda x, n: n - x,
        lambda x, n: F.maximum(x, n), lambda x, n: F.minimum(n, x), lambda x, n: x.clip(n, None), lambda x, n: x > n,
        lambda x, n: F.where(x > 1.5, x, n), lambda x, n: F.where(x > 1.5, n, x), lambda x, n: F.equal(x, n),
    ):  # fmt: skip
        found, wanted = compute(x, number), compute(x, plain)
        assert found.dtype == wanted.dtype
        assert np.array_equal(found, wanted)
    with vr.program_guard() as program:
        out = vr.feed_data("x", [-1], str(np.dtype(dtype))) / number
    assert np.array_equal(vr.Executor().run(program, {"x": x.numpy()}, [out])[0], x.detach() / plain)


def test_scalars_of_numpy_beside_integers_are_integers():
    x = vr.Variable([1, 2])
    assert (x * np.int32(3)).numpy().tolist() == [3, 6]
    with pytest.raises(vr.DTypeError, match=r"expected an integer, because the other operand is int64, got 0\.5"):
        x * np.float32(0.5)
    with pytest.raises(vr.InputError):
        x.astype(np.float32) * np.complex64(1)


@pytest.mark.parametrize("values", [[1.0, 2.0], (1, 2), [[1.0, 2.0]]])
def test_lists_of_another_data_type_name_the_array_to_write(values):  # PyTorch refuses every list
    x = vr.Variable(np.ones(2, np.float32))
    for compute in (lambda: x * values, lambda: values + x, lambda: F.maximum(x, values)):
        with pytest.raises(vr.DTypeError, match=r"expected float32.*got a (list|tuple).*np\.array\(values, x\.dtype\)"):
            compute()
    assert np.array_equal(x * np.array(values, x.dtype), np.array(values, x.dtype))
    assert (vr.Variable(np.ones(2)) * [1.0, 2.0]).numpy().tolist() == [1, 2]
    assert F.maximum(2, [1.0, 5.0]).numpy().tolist() == F.maximum([1.0, 5.0], 2).numpy().tolist() == [2, 5]
    with pytest.raises(vr.DTypeError, match="maximum, y: expected a Variable"):
        F.maximum([1.0, 5.0], None)


def test_a_scalar_of_numpy_is_compared_from_the_left():
    x = vr.Variable(np.arange(3, dtype=np.float32))
    np.testing.assert_array_equal((np.float64(1) < x).numpy(), [False, False, True])
    np.testing.assert_array_equal((np.int64(1) >= x).numpy(), [True, True, False])
