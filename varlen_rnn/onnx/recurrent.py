"""Translate between the cells of this library and ONNX's RNN, GRU and LSTM: gate order, activations and options.

Source: the operators' documentation, opset 22.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

import numpy as np

# The position in ONNX of each gate of our cells.  GRU: r z n here, z r h in ONNX.  LSTM: i f g o here, i o f c in ONNX.
ORDERS = {"RNN": (0,), "GRU": (1, 0, 2), "LSTM": (0, 2, 3, 1)}
LAYERS = tuple(ORDERS)
DEFAULTS = {"RNN": ("tanh",), "GRU": ("sigmoid", "tanh"), "LSTM": ("sigmoid", "tanh", "tanh")}
# For each activation: its name in ONNX, and whether it takes the parameters alpha and beta (1) or not (0).
ACTIVATIONS = {
    "relu": ("Relu", 0, 0),
    "tanh": ("Tanh", 0, 0),
    "sigmoid": ("Sigmoid", 0, 0),
    "affine": ("Affine", 1, 1),
    "leaky_relu": ("LeakyRelu", 1, 0),
    "thresholded_relu": ("ThresholdedRelu", 1, 0),
    "scaled_tanh": ("ScaledTanh", 1, 1),
    "hard_sigmoid": ("HardSigmoid", 1, 1),
    "elu": ("Elu", 1, 0),
    "softsign": ("Softsign", 0, 0),
    "softplus": ("Softplus", 0, 0),
}
_NAMED = {"rnn_tanh": "rnn(activation='tanh')", "rnn_relu": "rnn(activation='relu')", "gru": "gru()", "lstm": "lstm()"}
_SAID = {
    "rnn": {"activation", "clip"},
    "gru": {"reset_after", "clip", "activations"},
    "lstm": {"peepholes", "coupled", "clip", "activations"},
}


def options_of(cell: str) -> tuple[str, dict[str, Any]] | None:
    """Return the ONNX name of a cell and its options, or None if ONNX cannot express the cell.

    Examples
    --------
    >>> options_of("lstm(peepholes=True)"), options_of("indrnn")
    (('LSTM', {'peepholes': True}), None)
    """
    call = ast.parse(_NAMED.get(cell, cell), mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        return None
    options = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
    said = _SAID.get(call.func.id)
    if said is None or not options.keys() <= said:
        return None
    return call.func.id.upper(), options


def specs_of(kind: str, options: dict[str, Any]) -> tuple[Any, ...]:
    """Return the activations of a cell with these options, in the order of `DEFAULTS`."""
    if kind == "RNN":
        return (options.get("activation", "tanh"),)
    return tuple(options.get("activations", DEFAULTS[kind]))


def said_activations(specs: Sequence[Any]) -> dict[str, Any] | None:
    """Return the ONNX attributes for activations, or None if ONNX does not have one of them."""
    names, alphas, betas = [], [], []
    for spec in specs:
        name, *numbers = spec if isinstance(spec, tuple) else (spec,)
        if name not in ACTIVATIONS:
            return None
        theirs, alpha, beta = ACTIVATIONS[name]
        if len(numbers) < alpha + beta:
            return None  # ONNX's default parameters may differ from ours
        names.append(theirs)
        alphas += numbers[:alpha]
        betas += numbers[alpha : alpha + beta]
    found: dict[str, Any] = {"activations": names}
    return found | ({"activation_alpha": alphas} if alphas else {}) | ({"activation_beta": betas} if betas else {})


def theirs(array: np.ndarray, kind: str, coupled: bool) -> np.ndarray:
    """Reorder the blocks of gates in `array` to the order of ONNX; a coupled forget gate becomes zeros."""
    ours = np.split(array, len(ORDERS[kind]) - coupled)
    if coupled:
        ours.insert(1, np.zeros_like(ours[0]))
    return np.concatenate([ours[ORDERS[kind].index(place)] for place in range(len(ours))])
