"""Elementwise operators are equations: derived gradients, written gradients, and how accurate float32 is."""

import inspect
import pickle

import numpy as np
import pytest

import varlen_rnn as vr
from tests.test_activations import float32_numbers, units
from varlen_rnn.kernels import arithmetic
from varlen_rnn.nn import functional
from varlen_rnn.ops import activations, elementwise
from varlen_rnn.ops.equations import derived
from varlen_rnn.tape.operator import OPERATORS

both_types = pytest.mark.parametrize("dtype", [np.float32, np.float64])
NUMBERS = {"leaky_relu": (np.inf,), "elu": (0.7,), "softplus": (2.5, 20.0)}
# The gradients that are derived, as they would be written.
DERIVED = {
    "neg": lambda x, y, d: -d,
    "sqrt": lambda x, y, d: d / (y + y),
    "exp": lambda x, y, d: d * y,
    "log": lambda x, y, d: d / x,
    "tanh": lambda x, y, d: d * (1 - y * y),
    "sigmoid": lambda x, y, d: d * y * (1 - y),
}
# The gradients that are written, and why: where the derived ones differ.
WRITTEN = {
    "absolute": "the derived gradient of NaN is a number",
    "relu": "the derived gradient is 0 where a gradient of infinity or NaN meets a negative operand",
    "leaky_relu": "the derived gradient of an infinite slope is NaN where the operand is positive",
    "silu": "the derived gradient rounds d_y s + d_y x s (1 - s) term by term",
    "elu": "the derived gradient alpha (y + 1) loses the digits of y that are less than 1",
    "softplus": "the derived gradient of a large negative number divides two numbers that are 0",
}
OTHERS = {
    "pow": "a trace has no powers of any exponent",
    "gelu": "a trace has no normal distribution",
    "focal": "a trace has no powers",
}


def declared():
    """Return the operators that are declared by an equation of one operand, by name."""
    found = [made for module in (elementwise, activations) for made in vars(module).values()]
    return {made.op.type: made for made in found if hasattr(made, "compute") and hasattr(made, "gradient")}


def edges(dtype):
    """Return operands and gradients: each of a list of edges with each other."""
    about = np.finfo(dtype)
    positive = [0.0, about.smallest_subnormal, about.tiny, 1e-3, 0.5, 1.0, 2.0, 20.0, 90.0, 800.0, about.max, np.inf]
    one = np.array([*positive, *[-x for x in positive], np.nan], dtype)
    return (each.ravel() for each in np.meshgrid(one, one))


def gradients(made, dtype):
    """Return operands, results, gradients of results, and the derived gradient of an operator's edges."""
    x, d = edges(dtype)
    numbers = NUMBERS.get(made.op.type, ())
    y = made.compute(x, *numbers)
    return x, y, d, derived(made.op.scalar, f"{made.op.type}_grad")(x, y, d, *numbers)


def same(one, other):
    return np.array_equal(one, other, equal_nan=True) and one.dtype == other.dtype


def test_every_operator_of_an_equation_is_listed():
    assert set(declared()) == {*DERIVED, *WRITTEN}
    others = {name for name in OPERATORS if f"{name}_grad" in OPERATORS and OPERATORS[name].rows == "each"}
    assert {name for name in others if len(OPERATORS[name].inputs) == 1} >= {*DERIVED, *WRITTEN, *OTHERS}


@both_types
@pytest.mark.parametrize("name", DERIVED)
@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid")
def test_derived_gradients_equal_written_ones(name, dtype):
    made = declared()[name]
    x, y, d, found = gradients(made, dtype)
    with np.errstate(all="ignore"):
        expected = DERIVED[name](x, y, d, *map(dtype, NUMBERS.get(name, ())))
    assert same(found, expected)
    assert same(made.gradient(x, y, d, *NUMBERS.get(name, ())), expected)


@both_types
@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid")
def test_gradients_are_written_where_the_derived_one_differs(name, dtype):
    made = declared()[name]
    x, y, d, found = gradients(made, dtype)
    assert not same(found, made.gradient(x, y, d, *NUMBERS.get(name, ())))


@pytest.mark.parametrize("name", [*DERIVED, *WRITTEN])
def test_gradients_equal_those_of_torch(name):
    torch = pytest.importorskip("torch")
    F = torch.nn.functional
    theirs = {
        "neg": torch.neg, "sqrt": torch.sqrt, "exp": torch.exp, "log": torch.log, "tanh": torch.tanh,
        "sigmoid": torch.sigmoid, "relu": torch.relu, "silu": F.silu, "elu": F.elu, "softplus": F.softplus,
        "leaky_relu": F.leaky_relu, "absolute": torch.abs,
    }[name]  # fmt: skip
    numbers, made = (NUMBERS | {"leaky_relu": (0.3,)}).get(name, ()), declared()[name]
    x = np.random.default_rng(0).standard_normal(500) * 8
    x = np.abs(x) if name in ("sqrt", "log") else x
    theirs_of_x = torch.tensor(x, requires_grad=True)
    result = theirs(theirs_of_x, *numbers)
    result.sum().backward()
    mine = vr.Variable(x, requires_grad=True)
    made(mine, *numbers).sum().backward()
    np.testing.assert_allclose(made(mine, *numbers).numpy(), result.detach().numpy(), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(mine.grad, theirs_of_x.grad.numpy(), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(
    ("name", "exact", "most"),
    [
        ("exp", np.exp, 0.76), ("expm1", np.expm1, 1.41), ("log", np.log, 0.77), ("log1p", np.log1p, 1.31),
        ("tanh", np.tanh, 1.27), ("sigmoid", lambda x: 1 / (1 + np.exp(-x)), 1.5),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:overflow", "ignore:divide", "ignore:invalid")
def test_errors_of_float32(name, exact, most):
    x = float32_numbers()
    x = x[x >= {"log": 0, "log1p": -1}.get(name, -np.inf)]
    got, wanted = getattr(arithmetic, name)(x), exact(x.astype(np.float64))
    shown = np.isfinite(wanted) & (np.abs(wanted) < np.finfo(np.float32).max)
    assert units(got[shown], wanted[shown]).max() < most
    np.testing.assert_array_equal(got[~shown], wanted[~shown].astype(np.float32))
    for special in (np.nan, np.inf, -np.inf, 0.0, -0.0, -1.0):
        got = getattr(arithmetic, name)(np.full(20, special, np.float32))
        wanted = exact(np.float64(special)).astype(np.float32)
        np.testing.assert_array_equal(got, np.full(20, wanted))
        assert np.isnan(wanted) or (np.signbit(got) == np.signbit(wanted)).all()


@pytest.mark.skipif(np.finfo(np.longdouble).eps > 1e-18, reason="no longer numbers here")
@pytest.mark.filterwarnings("ignore:overflow", "ignore:divide", "ignore:invalid")
def test_errors_of_powers():
    """Large exponents of numbers near 1 multiply the logarithm's error."""
    rng = np.random.default_rng(0)
    for dtype, most in ((np.float32, 0.51), (np.float64, 1.3)):
        for exponent in (*rng.uniform(-3, 3, 10), *rng.uniform(-2000, 2000, 10), *rng.uniform(-1e6, 1e6, 10)):
            spread = min(1.0, 700 / abs(exponent)) * (1 if dtype == np.float64 else 0.12)
            x = np.exp(rng.uniform(-spread, spread, 20_000)).astype(dtype)
            got, exponent = arithmetic.power(x, exponent), np.longdouble(dtype(exponent))
            wanted = x.astype(np.longdouble) ** exponent
            shown = (wanted > np.finfo(dtype).tiny) & (wanted < np.finfo(dtype).max)
            assert shown.mean() > 0.9
            assert units(got[shown], wanted[shown]).max() < most, (dtype, exponent)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.filterwarnings("ignore:overflow", "ignore:divide", "ignore:invalid")
def test_powers_at_the_edges_are_those_of_numpy(dtype):
    info = np.finfo(dtype)
    ends = [0, 1, 2, 0.5, 3, 7, 2.5, 1e-30, 1e30, 2.0**53 - 1, info.max, info.tiny, info.smallest_subnormal, np.inf]
    edges = np.array([np.nan, *ends, *np.negative(ends)], dtype)
    for exponent in edges.tolist():
        found, wanted = arithmetic.power(edges, exponent), np.power(edges, dtype(exponent))
        np.testing.assert_allclose(found, wanted, rtol=4 * info.eps, err_msg=f"exponent {exponent}")
        shown = ~np.isnan(wanted)
        np.testing.assert_array_equal(np.signbit(found[shown]), np.signbit(wanted[shown]))


def test_a_loop_takes_any_shape_and_order():
    x = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    for view in (x, x.T, x[::2, 1:], x[:0], np.float32(0.5), x[0, 0]):
        got = arithmetic.exp(np.asarray(view))
        assert (got.shape, got.dtype) == (np.shape(view), np.float32)
        np.testing.assert_allclose(got, np.exp(view), rtol=3e-7)


@pytest.mark.parametrize("name", ["exp", "tanh", "sigmoid"])
def test_arrays_from_a_pickle_have_the_same_bits(name):
    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    again = pickle.loads(pickle.dumps(x))
    assert same(getattr(arithmetic, name)(again), getattr(arithmetic, name)(x))


@pytest.mark.parametrize("name", ["absolute", "relu", "leaky_relu"])
def test_gradients_of_large_numbers_do_not_warn(name):
    x = np.array([np.inf, 1e20, 1.0, -1.0, np.nan], np.float32)
    for d in (0.0, 1e20):
        declared()[name].gradient(x, x, np.full(5, d, np.float32), *[0.5] * (name in NUMBERS))


# The names of an equation that has a module: the operator is also the function, unless it checks constants.
MODULES = {
    "tanh": vr.nn.Tanh, "sigmoid": vr.nn.Sigmoid, "relu": vr.nn.ReLU, "silu": vr.nn.SiLU, "elu": vr.nn.ELU,
    "leaky_relu": vr.nn.LeakyReLU, "softplus": vr.nn.Softplus, "gelu": vr.nn.GELU,
}  # fmt: skip
METHODS = {"neg": "__neg__", "absolute": "abs", "exp": "exp", "log": "log", "sqrt": "sqrt", "tanh": "tanh"}
METHODS |= {"sigmoid": "sigmoid"}


def constants_of(function):
    """Return the constants of a function or module and their defaults, without the operand."""
    return [p.default for p in inspect.signature(function).parameters.values() if p.name not in ("x", "self")]


def test_the_names_of_an_equation_agree():
    names = {*declared(), "gelu"}
    without = {"neg"}  # an operator in Python
    functions = {name: vars(functional)["abs" if name == "absolute" else name] for name in names - without}
    assert set(MODULES) <= names
    assert {of.__name__ for of in MODULES.values()} <= set(vr.nn.__all__)
    for name, function in functions.items():
        assert ("abs" if name == "absolute" else name) in functional.__all__
        operator = OPERATORS[name]
        assert len(constants_of(function)) == len(operator.attrs), name
        if name != "leaky_relu":  # whose slope has the default that PyTorch gives
            assert constants_of(function) == constants_of(operator.forward), name
    for name, module in MODULES.items():
        assert constants_of(module) == constants_of(functions[name]), name
        assert list(inspect.signature(module).parameters) == list(inspect.signature(functions[name]).parameters)[1:]
    x = vr.Variable([0.25, 4.0])
    for name, method in METHODS.items():
        found = getattr(x, method)()
        np.testing.assert_array_equal(found.numpy(), OPERATORS[name].forward(x.value).data)
    assert set(METHODS) == {name for name in names if hasattr(vr.Variable, METHODS.get(name, name))}


def test_a_new_operator_needs_its_equation_alone():
    @elementwise.unary()
    def bump(x, height: float):
        """Return a bump of a height."""
        return arithmetic.where(abs(x) < 1, height * (1 - x * x), 0)

    bump.examples(lambda rng: iter([([rng.standard_normal(9)], {"height": 2.0})]))
    vr.check_operator(bump)
    x = vr.Variable([0.5, 2.0], requires_grad=True)
    bump(x, height=3.0).sum().backward()
    np.testing.assert_array_equal(x.grad, [-3.0, 0.0])
    del OPERATORS["bump"], OPERATORS["bump_grad"]
