"""Translate between the cells of this library and ONNX's RNN, GRU and LSTM: gate order, activations and options.

Source: the operators' documentation, opset 22.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from varlen_rnn.cells import gru_cell, lstm_cell, rnn_cell
from varlen_rnn.cells.named_activations import NAMED

# For each gate of our cells, its position in ONNX.  GRU: r z n here, z r h in ONNX.  LSTM: i f g o here, i o f c there.
ORDERS = {"RNN": (0,), "GRU": (1, 0, 2), "LSTM": (0, 2, 3, 1)}
LAYERS = tuple(ORDERS)
_FAMILIES = dict(zip(LAYERS, (rnn_cell, gru_cell, lstm_cell), strict=True))
# For each activation: its name in ONNX, and whether it has the parameters alpha and beta.
ACTIVATIONS = {
    name: (name.title().replace("_", ""), len(named.defaults) > 0, len(named.defaults) > 1)
    for name, named in NAMED.items()
    if name not in ("identity", "silu")
}


def options_of(cell: str) -> tuple[str, dict[str, Any]] | None:
    """Return the kind of ONNX layer for a cell, such as "LSTM", and the cell's options; None if ONNX lacks the cell."""
    for kind, family in _FAMILIES.items():
        options = family.options_in(cell)
        if options is not None and all(family.options[name].in_onnx for name in options):
            return kind, options
    return None


def specs_of(kind: str, options: dict[str, Any]) -> tuple[Any, ...]:
    """Return the activations of a cell with these options, in ONNX's order."""
    given = _FAMILIES[kind].defaults | options
    return (given["activation"],) if kind == "RNN" else tuple(given["activations"])


DEFAULTS = {kind: specs_of(kind, {}) for kind in LAYERS}


def said_activations(specs: Sequence[Any]) -> dict[str, Any] | None:
    """Return the ONNX attributes for activations, or None if ONNX does not have one of them."""
    names, alphas, betas = [], [], []
    for spec in specs:
        name, *numbers = spec if isinstance(spec, tuple) else (spec,)
        if name not in ACTIVATIONS:
            return None
        theirs, alpha, beta = ACTIVATIONS[name]
        if len(numbers) < alpha + beta:
            return None  # some of ONNX's default parameters differ from ours
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
