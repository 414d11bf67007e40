"""Which functions of NumPy are operators of ours: `np.tanh(variable)` remembers how it was computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from varlen_rnn.errors import DTypeError

_OPERATORS = {
    np.add: "add", np.subtract: "sub", np.multiply: "mul", np.divide: "div", np.negative: "neg", np.matmul: "matmul",
    np.power: "pow", np.absolute: "absolute", np.sqrt: "sqrt", np.exp: "exp", np.log: "log", np.tanh: "tanh",
    np.maximum: "maximum", np.minimum: "minimum", np.less: "less", np.less_equal: "less_equal",
    np.greater: "greater", np.greater_equal: "greater_equal", np.invert: "logical_not", np.logical_not: "logical_not",
    np.bitwise_and: "logical_and", np.logical_and: "logical_and", np.bitwise_or: "logical_or",
    np.logical_or: "logical_or",
}  # fmt: skip
_HINTS = {
    np.equal: "functional.equal(x, y) compares values, `is` asks whether it is the same Variable",
    np.not_equal: "functional.not_equal(x, y) compares values",
    np.square: "x * x", np.reciprocal: "1.0 / x",
}  # fmt: skip
DETACHED = frozenset({"less", "less_equal", "greater", "greater_equal", "logical_not", "logical_and", "logical_or"})


def operator_of(ufunc: np.ufunc, method: str, options: Mapping[str, Any]) -> str:
    """Return the type of the operator that a call of a function of NumPy is, or raise where there is none.

    Examples
    --------
    >>> operator_of(np.multiply, "__call__", {})
    'mul'
    """
    if method == "__call__" and not options and ufunc in _OPERATORS:
        return _OPERATORS[ufunc]
    name = f"np.{ufunc.__name__}" + ("" if method == "__call__" else f".{method}")
    if "out" in options:
        hint = "x = x + y rather than x += y: an array remembers no gradient"
        raise DTypeError(f"{name} of a Variable", expected="no array that takes the result", got="out", hint=hint)
    hint = _HINTS.get(ufunc, "functional has more functions; np.asarray(x) is the array, without a gradient")
    raise DTypeError(
        f"{name} of a Variable",
        expected="one of the functions that are operators of Variables",
        got=", ".join(options) or name,
        hint=hint,
    )
