"""The operations of equations: how each is computed by NumPy, written as Python, and differentiated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from varlen_rnn.kernels.activations import exp, where

CHOICE, COMPARISON, SUM, PRODUCT, SIGN, CALL = range(6)  # how tightly an operation binds its operands in Python


class Operation(NamedTuple):
    """An operation that equations may use.

    source: a format string with one field per operand
    binds: how tightly the operation binds its operands in Python
    price: the cost of computing it twice, if saving a number costs 1000; None for a transcendental function
    gradient: `gradient(d, y, *operands)` returns the gradients of the operands, given the result `y` and its gradient
        `d`; None for an operand without a gradient
    """

    on_arrays: Callable[..., Any]
    source: str
    binds: int
    price: int | None
    gradient: Callable[..., tuple[Any, ...]] | None


def _sigmoid(x):
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


OPERATIONS = {
    "add": Operation(np.add, "{} + {}", SUM, 1, lambda d, y, a, b: (d, d)),
    "subtract": Operation(np.subtract, "{} - {}", SUM, 1, lambda d, y, a, b: (d, -d)),
    "multiply": Operation(np.multiply, "{} * {}", PRODUCT, 1, lambda d, y, a, b: (d * b, d * a)),
    "multiply_add": Operation(
        lambda a, b, c: a * b + c, "multiply_add({}, {}, {})", CALL, 1, lambda d, y, a, b, c: (d * b, d * a, d)
    ),
    "divide": Operation(np.divide, "{} / {}", PRODUCT, 4, lambda d, y, a, b: (d / b, -(d / b * y))),
    "negative": Operation(np.negative, "-{}", SIGN, 1, lambda d, y, a: (-d,)),
    "absolute": Operation(np.abs, "abs({})", CALL, 1, lambda d, y, a: (where(a < 0, -d, d),)),
    "minimum": Operation(
        np.minimum, "{0} if {0} <= {1} else {1}", CHOICE, 1,
        lambda d, y, a, b: (where(a <= b, d, 0), where(a <= b, 0, d)),
    ),
    "maximum": Operation(
        np.maximum, "{0} if {0} >= {1} else {1}", CHOICE, 1,
        lambda d, y, a, b: (where(a >= b, d, 0), where(a >= b, 0, d)),
    ),
    "relu": Operation(lambda a: np.maximum(a, 0), "relu({})", CALL, 1, lambda d, y, a: (where(y > 0, d, 0),)),
    "where": Operation(
        np.where, "{1} if {0} else {2}", CHOICE, 1, lambda d, y, c, a, b: (None, where(c, d, 0), where(c, 0, d))
    ),
    "less": Operation(np.less, "{} < {}", COMPARISON, 1, None),
    "less_equal": Operation(np.less_equal, "{} <= {}", COMPARISON, 1, None),
    "greater": Operation(np.greater, "{} > {}", COMPARISON, 1, None),
    "greater_equal": Operation(np.greater_equal, "{} >= {}", COMPARISON, 1, None),
    "constant": Operation(lambda a: a, "({})", CALL, 0, lambda d, y, a: (None,)),
    "sqrt": Operation(np.sqrt, "sqrt({})", CALL, 4, lambda d, y, a: (d / (y + y),)),
    "exp": Operation(np.exp, "exp({})", CALL, None, lambda d, y, a: (d * y,)),
    "expm1": Operation(np.expm1, "expm1({})", CALL, None, lambda d, y, a: (d * exp(a),)),  # y + 1 loses digits
    "log1p": Operation(np.log1p, "log1p({})", CALL, None, lambda d, y, a: (d / (1 + a),)),
    "log": Operation(np.log, "log({})", CALL, None, lambda d, y, a: (d / a,)),
    "tanh": Operation(np.tanh, "tanh({})", CALL, None, lambda d, y, a: (d * (1 - y * y),)),
    "sigmoid": Operation(_sigmoid, "sigmoid({})", CALL, None, lambda d, y, a: (d * y * (1 - y),)),
}  # fmt: skip
COMPARISONS = {"less", "less_equal", "greater", "greater_equal"}
NUM_OPERANDS = {name: operation.source.count("{") for name, operation in OPERATIONS.items()}
NUM_OPERANDS |= {"minimum": 2, "maximum": 2, "where": 3}
