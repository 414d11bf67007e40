"""Activations by name, with parameters alpha and beta, as in ONNX's recurrent operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from varlen_rnn.errors import DTypeError, ShapeError, shown
from varlen_rnn.kernels.activations import exp, log, maximum, minimum, relu, sigmoid, tanh, where

Spec: TypeAlias = "str | tuple[str | float, ...]"


class _Named(NamedTuple):
    """An activation: a function of a number and its parameters, and ONNX's defaults for these parameters."""

    function: Callable[..., Any]
    defaults: tuple[float, ...] = ()


NAMED = {
    "tanh": _Named(tanh),
    "sigmoid": _Named(sigmoid),
    "relu": _Named(relu),
    "identity": _Named(lambda x: x),
    "affine": _Named(lambda x, alpha, beta: alpha * x + beta, (1.0, 0.0)),
    "leaky_relu": _Named(lambda x, alpha: where(x >= 0, x, alpha * x), (0.01,)),
    "thresholded_relu": _Named(lambda x, alpha: where(x > alpha, x, 0 * x), (1.0,)),
    "scaled_tanh": _Named(lambda x, alpha, beta: alpha * tanh(beta * x), (1.0, 1.0)),
    "hard_sigmoid": _Named(lambda x, alpha, beta: minimum(maximum(alpha * x + beta, 0), 1), (0.2, 0.5)),
    "elu": _Named(lambda x, alpha: where(x >= 0, x, alpha * (exp(minimum(x, 0)) - 1)), (1.0,)),
    "softsign": _Named(lambda x: x / (1 + abs(x))),
    "softplus": _Named(lambda x: maximum(x, 0) + log(1 + exp(-abs(x)))),
    "silu": _Named(lambda x: x * sigmoid(x)),
}


def check_activation(spec: Any, what: str) -> Spec:
    """Return the spec of an activation as a name or a tuple of a name and its parameters, or raise if it is wrong."""
    given = (spec,) if isinstance(spec, str) else spec
    expected = f"one of {', '.join(NAMED)}, or a tuple of a name and its parameters"
    if not isinstance(given, (tuple, list)) or not given or not isinstance(given[0], str) or given[0] not in NAMED:
        raise DTypeError(what, expected=expected, got=shown(spec))
    name, *parameters = given
    if not all(isinstance(p, (int, float)) and not isinstance(p, bool) and math.isfinite(p) for p in parameters):
        raise DTypeError(f"{what}, {name}", expected="parameters that are finite numbers", got=shown(spec))
    defaults = NAMED[name].defaults
    if len(parameters) > len(defaults):
        raise ShapeError(f"{what}, {name}", expected=f"at most {len(defaults)} parameters", got=len(parameters))
    numbers = *map(float, parameters), *defaults[len(parameters) :]
    return name if numbers == defaults else (name, *numbers)


def activation(spec: Spec) -> Callable[[Any], Any]:
    """Return the function of a number that an activation's spec names, for the equations of a cell."""
    name, *parameters = (spec,) if isinstance(spec, str) else spec
    function, defaults = NAMED[str(name)]
    if not defaults:
        return function
    numbers = *parameters, *defaults[len(parameters) :]
    return lambda x: function(x, *numbers)
