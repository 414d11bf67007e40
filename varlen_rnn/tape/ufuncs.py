"""Functions of NumPy on Variables: `np.tanh(variable)` applies our operator, so that it has a gradient.

Other functions, such as `np.concatenate`, get a plain array from `np.asarray`.  Their result would silently have no
gradient, so they raise if it has floats and an input requires a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from varlen_rnn.errors import DTypeError, ProgramError
from varlen_rnn.rows.checks import loses_gradient
from varlen_rnn.tape.operator import UFUNCS

_HINTS = {
    np.equal: "functional.equal(x, y) compares values, `x is y` asks whether both are the same Variable",
    np.not_equal: "functional.not_equal(x, y) compares values",
    np.square: "x * x", np.reciprocal: "1.0 / x",
}  # fmt: skip
_INSTEAD = {
    np.concatenate: "functional.concat(variables, axis=0)", np.stack: "functional.stack(variables)",
    np.where: "functional.where(condition, x, y)", np.expand_dims: "x.unsqueeze(axis)",
    np.reshape: "x.reshape(shape)",
}  # fmt: skip
# Functions that depend on the shape alone, have the gradient 0, or make results that people only look at.
_WITHOUT_GRADIENT = frozenset({
    np.zeros_like, np.ones_like, np.empty_like, np.full_like, np.round, np.around, np.histogram,
    np.histogram_bin_edges, np.atleast_1d, np.atleast_2d, np.atleast_3d,
})  # fmt: skip
_HOST = np.empty(0)


def operator_of(ufunc: np.ufunc, method: str, options: Mapping[str, Any]) -> str:
    """Return the name of the operator that computes the same as a NumPy ufunc, or raise if there is none."""
    if method == "__call__" and not options and ufunc in UFUNCS:
        return UFUNCS[ufunc]
    name = f"np.{ufunc.__name__}" + ("" if method == "__call__" else f".{method}")
    if "out" in options:
        hint = "write x = x + y instead of x += y, because an array remembers no gradient"
        raise DTypeError(f"{name} of a Variable", expected="no argument out", got="out", hint=hint)
    hint = _HINTS.get(ufunc, "functional has more functions; np.asarray(x) is a plain array, without a gradient")
    expected, got = "a function of NumPy that Variables support, without options", ", ".join(options) or name
    raise DTypeError(f"{name} of a Variable", expected=expected, got=got, hint=hint)


def call_function(function: Callable[..., Any], inputs: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Return the result of a function that is no ufunc, or raise if an array of floats loses a gradient."""
    # With an empty list of types, NumPy's method calls the function's own code.
    found = np.ndarray.__array_function__(_HOST, function, (), inputs, options)
    if function not in _WITHOUT_GRADIENT and _has_floats(found) and loses_gradient([*inputs, *options.values()]):
        name, hint = f"np.{function.__name__} of a Variable", "x.detach() ends the gradient here"
        hint = f"{_INSTEAD[function]} keeps the gradient; {hint}" if function in _INSTEAD else hint
        got = "a Variable that requires a gradient, which the result would lose"
        raise ProgramError(name, expected="numbers without a gradient", got=got, hint=hint)
    return found


def _has_floats(found: Any) -> bool:
    if isinstance(found, (list, tuple)):
        return any(map(_has_floats, found))
    return isinstance(found, (np.ndarray, np.generic)) and found.dtype.kind in "fO"
