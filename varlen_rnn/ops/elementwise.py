"""Operators of elementwise arithmetic (`kernels.arithmetic`); the result keeps the LoD."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, ParamSpec, Unpack

import numpy as np

from varlen_rnn.errors import ShapeError
from varlen_rnn.kernels import arithmetic
from varlen_rnn.kernels.activations import where
from varlen_rnn.kernels.reductions import sum_over
from varlen_rnn.ops.cost import per_input_element
from varlen_rnn.ops.equations import derived, forward, operands_of
from varlen_rnn.ops.examples import rows
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.rows.selected_rows import SelectedRows
from varlen_rnn.runtime.device import as_operand
from varlen_rnn.tape.checks import broadcast, check_float, check_shape, shared_lod
from varlen_rnn.tape.declare import Operator, Options, operator
from varlen_rnn.tape.kinds import SELECTED_ROWS
from varlen_rnn.tape.spec import Symbol
from varlen_rnn.tape.variable import Variable, apply

P = ParamSpec("P")

# Operators on two operands, whose shapes broadcast as in NumPy.  If an operand has a LoD, the result has the same LoD.


def binary(integers: bool = True, **options: Unpack[Options]) -> Callable[[Callable[P, object]], Operator[P, Variable]]:
    """Declare an operator on two operands; if `integers`, it also takes integers, which wrap around as in NumPy."""
    options["rows"] = "each"

    def declare(function: Callable[P, object]) -> Operator[P, Variable]:
        made = operator(**options)(function)
        made.infer(lambda x, y: broadcast(made.op.type, x, y, integers))
        return made

    return declare


def of_two(op, data, x, y):
    """Return `data`, the result of an operator on `x` and `y`, with the LoD of these operands."""
    lod = x.structure
    if lod is not y.structure:
        lod = shared_lod(op, x, y, names="xy")
    return with_lod(op, data, lod, (x, y))


def with_lod(op, data, lod, operands):
    """Return a broadcast result with the operands' LoD; raise if the LoD has another number of rows."""
    if lod.num_levels and (data.ndim == 0 or len(data) != lod.num_rows):
        got = f"shapes {' and '.join(str(operand.shape) for operand in operands)}"
        raise ShapeError(op, expected=f"a result of {lod.num_rows} rows, as its LoD has", got=got)
    return LoDTensor.wrap(data, lod)


@binary(scalar=np.add, ufunc=np.add, onnx="Add")
def add(x, y):
    """Return `x + y`."""
    return of_two("add", arithmetic.add(x.data, y.data), x, y)


@binary(scalar=np.subtract, ufunc=np.subtract, onnx="Sub")
def sub(x, y):
    """Return `x - y`."""
    return of_two("sub", arithmetic.subtract(x.data, y.data), x, y)


@binary(scalar=np.multiply, ufunc=np.multiply, onnx="Mul", linear=("x",))
def mul(x, y):
    """Return `x * y`, element by element."""
    return of_two("mul", arithmetic.multiply(x.data, y.data), x, y)


@binary(integers=False, scalar=np.divide, ufunc=np.divide, onnx="Div")
def div(x, y):
    """Return `x / y`; a division by 0 gives infinity or NaN, without a warning."""
    return of_two("div", arithmetic.divide(x.data, y.data), x, y)


def grad_like(gradient, variable):
    """Return a gradient with the operand's shape and LoD, summed over the axes along which it was broadcast."""
    return gradient if _is_like(gradient.value, variable.value) else apply("sum_to", gradient, variable)


def _is_like(gradient, value):
    if gradient.shape != value.shape:
        return False
    if isinstance(gradient, Symbol):  # unknown sizes are compared when the program runs, by `sum_to`
        return gradient.spec.kind == SELECTED_ROWS or (-1 not in value.shape and gradient.spec == value.spec)
    return isinstance(gradient, SelectedRows) or gradient.structure == value.structure


@add.grad
def _grad_of_add(inputs, outputs, d_outputs):
    return [grad_like(d_outputs[0], variable) for variable in inputs]


@sub.grad
def _grad_of_sub(inputs, outputs, d_outputs):
    d = d_outputs[0]
    return [grad_like(d, inputs[0]), grad_like(-d, inputs[1]) if inputs[1].requires_grad else None]


@mul.grad
def _grad_of_mul(inputs, outputs, d_outputs):
    (x, y), d = inputs, d_outputs[0]
    return [grad_like(d * y, x) if x.requires_grad else None, grad_like(d * x, y) if y.requires_grad else None]


@div.grad
def _grad_of_div(inputs, outputs, d_outputs):
    (x, y), d = inputs, d_outputs[0]
    d_x = d / y
    d_y = grad_like(-(d_x * outputs[0]), y) if y.requires_grad else None
    return [grad_like(d_x, x) if x.requires_grad else None, d_y]


@add.examples
@sub.examples
@mul.examples
@div.examples
def examples_of_two(rng):
    """Yield pairs of operands that broadcast; no second operand has a 0, and no two elements are equal."""
    x = rows(rng, 3)
    yield [x, rows(rng, 3, positive=True)], {}
    for other in (rng.random(3), rng.random((6, 1)), rng.random((6, 3)), rng.random((1, 3)), rng.random(())):
        yield [x, other + 0.5], {}
        yield [other, rows(rng, 3, positive=True)], {}
    yield [rows(rng, 2, 3), rng.random((2, 1)) + 0.5], {}


def _rows_of_sum(specs, axes):
    return "each" if axes[1] is not None or axes[0] is None else "sum"


@operator(cost=per_input_element, rows=_rows_of_sum, linear=("x",), shares=True)
def sum_to(x, like):
    """Sum `x` over the axes along which `like` was broadcast; the result has the shape and the LoD of `like`."""
    data, added = x.data, x.data.ndim - len(like.shape)
    if added:
        data = sum_over(as_operand(data).reshape(math.prod(data.shape[:added]), *data.shape[added:]), 0)
    for axis, size in enumerate(like.shape):
        if data.shape[axis] != size:
            data = sum_over(data, axis).reshape(*data.shape[:axis], 1, *data.shape[axis + 1 :])
    return like.like(data)


@sum_to.infer
def _infer_sum_to(x, like):
    check_float("sum_to", x=x, like=like)
    broadcast_shape = broadcast("sum_to", x, like).shape
    check_shape("sum_to", "x", x, broadcast_shape)
    return like


@sum_to.examples
def _examples_of_sum_to(rng):
    yield [rows(rng, 3), rng.random(3)], {}
    yield [rows(rng, 2, 3), rng.random((2, 1))], {}
    yield [rng.random((6, 3)), rows(rng, 3)], {}


# Operators on one operand.


def unary(
    of: Callable | None = None, derive: bool = True, loop: bool = False, **options: Unpack[Options]
) -> Callable[[Callable[P, object]], Operator[P, Variable]]:
    """Declare an operator by its equation: the decorated function of one element.

    The result has the shape, data type and LoD of the operand.  Annotated parameters of the equation are constants.

    of: a function of arrays and symbols that replaces the equation; then the decorated function is only documentation
    derive: whether the gradient is derived from the equation; otherwise, use `unary_backward` to declare its equation
    loop: whether the host computes floats by a loop that is made from the equation
    options: the options of `operator`; the trait `scalar` is by default the equation
    """

    def declare(function: Callable[P, object]) -> Operator[P, Variable]:
        compute = of or forward(function, loop=loop)
        names, _ = operands_of(function)

        @functools.wraps(function)
        def of_values(x, **constants):
            return x.like(compute(x.data, *[constants[name] for name in names[1:]]))

        made: Any = operator(**{"scalar": of or function, "rows": "each"} | options)(of_values)

        @made.infer
        def infer(x, **constants):
            check_float(made.op.type, x=x)
            return x

        made.examples(_example_of_one)
        made.compute = compute
        if derive:
            _backward(made, derived(of or function, f"{made.op.type}_grad"), function)
        return made

    return declare


def unary_backward(made: Any, host: Callable | None = None) -> Callable[[Callable], Operator]:
    """Return a decorator that declares a gradient by its equation, a function of x, y, `d_y` and the constants.

    host: a faster function, which computes NumPy arrays in place of the equation
    """
    return lambda equation: _backward(made, forward(equation, f"{made.op.type}_grad", host), equation)


def _backward(made, compute, equation):
    """Declare the gradient that `compute` returns for arrays; its constants are `equation`'s annotated parameters."""
    signature = inspect.signature(equation, eval_str=True)
    constants = [p for p in signature.parameters.values() if p.annotation is not p.empty]

    def of_values(x, y, d_y, **given):
        return x.like(compute(x.data, y.data, d_y.data, *[given[constant.name] for constant in constants]))

    operands = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("x", "y", "d_y")]
    gradient: Any = of_values
    gradient.__signature__ = signature.replace(parameters=[*operands, *constants])
    made.gradient = compute
    return made.backward("x", aliases={"y": "out", "d_y": "d_out"})(gradient)


def _example_of_one(rng):
    yield [rows(rng, 3)], {}


def _positive(rng):
    yield [rows(rng, 3, positive=True)], {}


def _absolute(x):
    return where(x < 0, -x, where(x > 0, x, 0 * x))  # not the `abs` of cells, which has another gradient at 0


@unary(arithmetic.negative, ufunc=np.negative, onnx="Neg", linear=("x",))
def neg(x):
    """Return `-x`."""


@unary(arithmetic.absolute, derive=False, scalar=_absolute, ufunc=np.absolute, onnx="Abs")
def absolute(x):
    """Return the absolute value of every element; the gradient at 0 is 0."""


@unary(arithmetic.sqrt, ufunc=np.sqrt, onnx="Sqrt")
def sqrt(x):
    """Return the square root of every element, or NaN if the element is negative, as in NumPy."""


@unary(arithmetic.exp, ufunc=np.exp, onnx="Exp")
def exp(x):
    """Return e to the power of every element."""


@unary(arithmetic.log, ufunc=np.log, onnx="Log")
def log(x):
    """Return the natural logarithm of every element; as in NumPy, 0 gives minus infinity, a negative number NaN."""


sqrt.examples(_positive)
log.examples(_positive)


@unary_backward(absolute, host=lambda x, y, d_y: d_y * arithmetic.sign(x))
def _absolute_grad(x, y, d_y):
    return arithmetic.where(x > 0, d_y, arithmetic.where(x < 0, -d_y, d_y * x))


@unary(arithmetic.power, derive=False, name="pow", scalar=lambda x, exponent: x**exponent)
def power(x, exponent: float):
    """Return every element to the power `exponent`; infinities and NaN arise as in NumPy, without a warning."""


@power.backward("x", aliases={"d_y": "d_out"})
def _power_grad(x, d_y, exponent):
    return x.like(arithmetic.power_grad(x.data, d_y.data, exponent))


@power.examples
def _examples_of_power(rng):
    yield [rows(rng, 3)], {"exponent": 3.0}
    yield [rows(rng, 3, positive=True)], {"exponent": -0.5}
