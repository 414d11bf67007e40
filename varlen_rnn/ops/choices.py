"""Comparisons, and the operators `where`, `maximum` and `minimum`.  Operands broadcast as in arithmetic."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Unpack

import numpy as np

from varlen_rnn.errors import DTypeError
from varlen_rnn.kernels import activations as kernels
from varlen_rnn.kernels import arithmetic
from varlen_rnn.ops.elementwise import binary, examples_of_two, grad_like, of_two, with_lod
from varlen_rnn.ops.examples import rows
from varlen_rnn.tape.array_methods import operand
from varlen_rnn.tape.checks import broadcast_shape, check_same_dtype, check_tensor, shared_lod
from varlen_rnn.tape.declare import Operator, Options, operator
from varlen_rnn.tape.spec import TensorSpec
from varlen_rnn.tape.variable import apply

_BOOL = np.dtype(np.bool_)


def _of_two_in_bools(
    function: Callable[..., Any], doc: str, check: Callable, examples: Callable, **options: Unpack[Options]
) -> Operator:
    """Declare an operator that has the name of `function`, by which it computes bools from two operands."""
    name = function.__name__

    def forward(x, y):
        return of_two(name, function(x.data, y.data), x, y)

    def infer(x, y):
        check(name, x=x, y=y)
        return TensorSpec(broadcast_shape(name, x.shape, y.shape), _BOOL, max(x.lod_level, y.lod_level))

    forward.__name__ = forward.__qualname__ = name
    forward.__doc__ = f"Return whether {doc}, element by element."
    options["rows"] = "each"
    made = operator(**options)(forward)
    made.infer(infer)
    made.examples(examples)
    return made


# Comparisons take numbers of one data type, floats or integers.  They pass no gradient.


def _check_comparable(op, x, y):
    check_tensor(op, "x", x)
    check_same_dtype(op, x=x, y=y)


def _examples_of_comparison(rng):
    yield [rows(rng, 3), rng.standard_normal(3)], {}
    yield [rng.integers(0, 3, (4, 1)), rng.integers(0, 3, 4)], {}


_of_numbers = functools.partial(_of_two_in_bools, check=_check_comparable, examples=_examples_of_comparison)
less = _of_numbers(arithmetic.less, "`x < y`", scalar=np.less, ufunc=np.less, onnx="Less")
less_equal = _of_numbers(
    arithmetic.less_equal, "`x <= y`", scalar=np.less_equal, ufunc=np.less_equal, onnx="LessOrEqual"
)
greater = _of_numbers(arithmetic.greater, "`x > y`", scalar=np.greater, ufunc=np.greater, onnx="Greater")
greater_equal = _of_numbers(
    arithmetic.greater_equal, "`x >= y`", scalar=np.greater_equal, ufunc=np.greater_equal, onnx="GreaterOrEqual"
)
equal = _of_numbers(arithmetic.equal, "`x == y`", onnx="Equal")
not_equal = _of_numbers(arithmetic.not_equal, "`x != y`")

# Operators on bools.


def _check_bool(op, **descs):
    for name, desc in descs.items():
        check_tensor(op, name, desc)
        if desc.dtype != _BOOL:
            raise DTypeError(f"{op}, {name}", expected="bools, as comparisons return", got=desc.dtype)


def _examples_of_logical(rng):
    yield [rng.random((3, 2)) < 0.5, rng.random(2) < 0.5], {}


_of_bools = functools.partial(_of_two_in_bools, check=_check_bool, examples=_examples_of_logical)
logical_and = _of_bools(arithmetic.logical_and, "both are true", ufunc=(np.logical_and, np.bitwise_and), onnx="And")
logical_or = _of_bools(arithmetic.logical_or, "one is true, or both", ufunc=(np.logical_or, np.bitwise_or), onnx="Or")


@operator(rows="each", ufunc=(np.logical_not, np.invert), onnx="Not")
def logical_not(x):
    """Return whether `x` is false, element by element."""
    return x.like(arithmetic.logical_not(x.data))


logical_not.examples(lambda rng: [([rng.random((3, 2)) < 0.5], {})])


@logical_not.infer
def _infer_not(x):
    _check_bool("logical_not", x=x)
    return x


# Operators that choose between the elements of two operands.


@operator(rows="each", scalar=kernels.where, onnx="Where")
def where(condition, x, y):
    """Return an element of `x` if the condition is true, otherwise the element of `y`."""
    lod = shared_lod("where", condition, x, y, names=("condition", "x", "y"))
    return with_lod("where", arithmetic.where(condition.data, x.data, y.data), lod, (condition, x, y))


@where.infer
def _infer_where(condition, x, y):
    _check_bool("where", condition=condition)
    check_tensor("where", "x", x)
    check_same_dtype("where", x=x, y=y)
    shape = broadcast_shape("where", condition.shape, broadcast_shape("where", x.shape, y.shape))
    return TensorSpec(shape, x.dtype, max(condition.lod_level, x.lod_level, y.lod_level))


@where.grad
def _grad_of_where(inputs, outputs, d_outputs):
    (condition, x, y), d = inputs, d_outputs[0]
    zero = operand(0.0, d)
    d_x = grad_like(apply("where", condition, d, zero), x) if x.requires_grad else None
    return [None, d_x, grad_like(apply("where", condition, zero, d), y) if y.requires_grad else None]


@where.examples
def _examples_of_where(rng):
    x = rows(rng, 3)
    yield [x.like(x.data > 0), x, rng.standard_normal(3)], {}
    yield [np.array([True, False, True]), rng.standard_normal((6, 1)), rows(rng, 3)], {}
    yield [rng.random((4, 1)) < 0.5, rng.integers(0, 9, 3), np.array(7)], {}


def _shared(x, y):
    return 0.5 * x + 0.5 * y  # the value if x == y, written so that x and y get half of the gradient each


def _larger(x, y):
    return kernels.where(x > y, x, kernels.where(x < y, y, _shared(x, y)))


def _smaller(x, y):
    return kernels.where(x < y, x, kernels.where(x > y, y, _shared(x, y)))


@binary(scalar=_larger, ufunc=np.maximum, onnx="Max")
def maximum(x, y):
    """Return the larger of two elements, or NaN if one is NaN; equal elements get half of the gradient each."""
    return of_two("maximum", arithmetic.maximum(x.data, y.data), x, y)


@binary(scalar=_smaller, ufunc=np.minimum, onnx="Min")
def minimum(x, y):
    """Return the smaller of two elements, or NaN if one is NaN; equal elements get half of the gradient each."""
    return of_two("minimum", arithmetic.minimum(x.data, y.data), x, y)


def _grad_of_choice(x_loses, y_loses):
    """Return the gradient function of a choice: the chosen element gets the gradient, equal elements get half each.

    `x_loses` names the comparison of x and y that is true if x is not chosen; `y_loses` does the same for y.

    Source: `torch.maximum`.
    """

    def grad(inputs, outputs, d_outputs):
        (x, y), d = inputs, d_outputs[0]
        zero, shared = operand(0.0, d), apply("where", apply("equal", x, y), d * 0.5, d)
        return [
            grad_like(apply("where", apply(loses, x, y), zero, shared), v) if v.requires_grad else None
            for v, loses in ((x, x_loses), (y, y_loses))
        ]

    return grad


maximum.grad(_grad_of_choice("less", "greater"))
minimum.grad(_grad_of_choice("greater", "less"))
maximum.examples(examples_of_two)
minimum.examples(examples_of_two)
