"""RNN, GRU and LSTM of ONNX: the order of their gates, and their activations and options in terms of our cells.

Source: the operators' documentation, opset 22.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

import numpy as np

# Where our gates stand among theirs: h; r z n of z r h; i f g o of i o f c.
ORDERS = {"RNN": (0,), "GRU": (1, 0, 2), "LSTM": (0, 2, 3, 1)}
DEFAULTS = {"RNN": ("tanh",), "GRU": ("sigmoid", "tanh"), "LSTM": ("sigmoid", "tanh", "tanh")}
# Of each activation, their name, and how many of alpha and beta it takes.
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
    """Return the activations of a cell, one for each of its places."""
    if kind == "RNN":
        return (options.get("activation", "tanh"),)
    return tuple(options.get("activations", DEFAULTS[kind]))


def said_activations(specs: Sequence[Any]) -> dict[str, Any] | None:
    """Return the attributes that say activations; None where one of them has no name there."""
    names, alphas, betas = [], [], []
    for spec in specs:
        name, *numbers = spec if isinstance(spec, tuple) else (spec,)
        if name not in ACTIVATIONS:
            return None
        theirs, alpha, beta = ACTIVATIONS[name]
        if len(numbers) < alpha + beta:
            return None  # whose defaults are not ours to know
        names.append(theirs)
        alphas += numbers[:alpha]
        betas += numbers[alpha : alpha + beta]
    found: dict[str, Any] = {"activations": names}
    return found | ({"activation_alpha": alphas} if alphas else {}) | ({"activation_beta": betas} if betas else {})


def theirs(array: np.ndarray, kind: str, coupled: bool) -> np.ndarray:
    """Return blocks of gates, one below the other, in the order of ONNX; zeros of a forget gate that a cell has not."""
    ours = np.split(array, len(ORDERS[kind]) - coupled)
    if coupled:
        ours.insert(1, np.zeros_like(ours[0]))
    return np.concatenate([ours[ORDERS[kind].index(place)] for place in range(len(ours))])
