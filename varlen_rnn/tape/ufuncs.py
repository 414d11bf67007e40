"""Functions of NumPy on Variables: `np.tanh(variable)` applies our operator, so that it has a gradient."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from varlen_rnn.errors import DTypeError
from varlen_rnn.tape.operator import UFUNCS

_HINTS = {
    np.equal: "functional.equal(x, y) compares values, `is` asks whether it is the same Variable",
    np.not_equal: "functional.not_equal(x, y) compares values",
    np.square: "x * x", np.reciprocal: "1.0 / x",
}  # fmt: skip


def operator_of(ufunc: np.ufunc, method: str, options: Mapping[str, Any]) -> str:
    """Return the name of the operator that a call of a function of NumPy applies, or raise if there is none.

    Examples
    --------
    >>> operator_of(np.multiply, "__call__", {})
    'mul'
    """
    if method == "__call__" and not options and ufunc in UFUNCS:
        return UFUNCS[ufunc]
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
