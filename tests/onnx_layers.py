"""What the operators RNN, GRU and LSTM of ONNX say, run by layers: one for each direction, for each may have its own
activations.

Source: the operators' documentation, opset 22.
"""

import numpy as np

import varlen_rnn as vr
from varlen_rnn.onnx import layers, recurrent

DEFAULTS = {kind: [name.capitalize() for name in names] for kind, names in recurrent.DEFAULTS.items()}
# Our name of each activation, and how many of alpha and beta it takes.
ACTIVATIONS = {theirs: (ours, alpha, beta) for ours, (theirs, alpha, beta) in recurrent.ACTIVATIONS.items()}
DIRECTIONS = {"forward": ["forward"], "reverse": ["backward"], "bidirectional": ["forward", "backward"]}


def run(kind, attributes, inputs):
    """Return Y, Y_h and, of an LSTM, Y_c, as arrays, from the inputs by name: X, W, R and perhaps others."""
    batchwise = attributes.get("layout", 0)
    x = inputs["X"] if batchwise else np.swapaxes(inputs["X"], 0, 1)
    count, steps, _ = x.shape
    lengths = inputs.get("sequence_lens")
    lengths = [steps] * count if lengths is None else lengths.tolist()
    rows = vr.create_lod_tensor(
        np.concatenate([part[:length] for part, length in zip(x, lengths, strict=True)]), [lengths]
    )
    directions = DIRECTIONS[attributes.get("direction", "forward")]
    specs = layers.activations_of(kind, attributes, len(directions))
    y = np.zeros((steps, len(directions), count, inputs["R"].shape[2]), x.dtype)
    last = []
    for number, direction in enumerate(directions):
        weights = [None if inputs.get(name) is None else inputs[name][number] for name in "WRBP"]
        layer = layers.layer_of(kind, attributes, direction, specs[number], weights)
        states = [inputs.get(f"initial_{name}") for name in "hc"[: len(layer.cell.states)]]
        states = [None if s is None else (s[:, number] if batchwise else s[number])[None] for s in states]
        given = (
            None
            if all(state is None for state in states)
            else tuple(map(np.ascontiguousarray, filled(states, count, y)))
        )
        with vr.no_grad():
            out, ends = layer(rows, given if given is None or len(given) > 1 else given[0])
        out, ends = np.asarray(out), ends if isinstance(ends, tuple) else (ends,)
        for i, part in enumerate(np.split(out, np.cumsum(lengths)[:-1])):
            y[: len(part), number, i] = part
        last.append([np.asarray(end)[0] for end in ends])
    last = [np.stack(states) for states in zip(*last, strict=True)]
    if batchwise:
        return [np.transpose(y, (2, 0, 1, 3)), *(np.swapaxes(state, 0, 1) for state in last)]
    return [y, *last]


def filled(states, count, y):
    """Return states, zeros where one is missing."""
    return [np.zeros((1, count, y.shape[3]), y.dtype) if state is None else state for state in states]
