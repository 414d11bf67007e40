"""What the operators RNN, GRU and LSTM of ONNX say, run by layers: one for each direction, for each may have its own
activations.

Source: the operators' documentation, opset 22.
"""

import numpy as np

import varlen_rnn as vr

ORDERS = {
    "RNN": (0,),
    "GRU": (1, 0, 2),
    "LSTM": (0, 2, 3, 1),
}  # where our gates stand: h; r z n of z r h; i f g o of i o f c
DEFAULTS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
# Our name of each activation, and how many of alpha and beta it takes.
ACTIVATIONS = {
    "Relu": ("relu", 0, 0),
    "Tanh": ("tanh", 0, 0),
    "Sigmoid": ("sigmoid", 0, 0),
    "Affine": ("affine", 1, 1),
    "LeakyRelu": ("leaky_relu", 1, 0),
    "ThresholdedRelu": ("thresholded_relu", 1, 0),
    "ScaledTanh": ("scaled_tanh", 1, 1),
    "HardSigmoid": ("hard_sigmoid", 1, 1),
    "Elu": ("elu", 1, 0),
    "Softsign": ("softsign", 0, 0),
    "Softplus": ("softplus", 0, 0),
}
DIRECTIONS = {"forward": ["forward"], "reverse": ["backward"], "bidirectional": ["forward", "backward"]}


def activations_of(names, alphas, betas):
    """Return our specs of activations; the values of alpha and beta go to those that take some, in their order."""
    alphas, betas, specs = list(alphas), list(betas), []
    for name in names:
        ours, alpha, beta = ACTIVATIONS[name]
        parameters = [values.pop(0) for values, takes in ((alphas, alpha), (betas, beta)) if takes and values]
        specs.append((ours, *parameters) if parameters else ours)
    return specs


def options_of(kind, attributes, specs, with_peepholes):
    """Return the options of our layer."""
    clip = attributes.get("clip")
    if kind == "RNN":
        return {"nonlinearity": specs[0], "clip": clip}
    if kind == "GRU":
        return {"reset_after": bool(attributes.get("linear_before_reset", 0)), "activations": specs, "clip": clip}
    coupled = bool(attributes.get("input_forget", 0))
    return {"peepholes": with_peepholes, "coupled": coupled, "activations": specs, "clip": clip}


def blocks(array, kind, layer):
    """Return the blocks of gates of a weight or bias, in our order, and without those that a layer has not."""
    parts = np.split(array, len(ORDERS[kind]))
    ours = [parts[place] for place in ORDERS[kind]]
    if kind == "LSTM" and len(layer.cell.gates) == 3:  # coupled: without f
        del ours[1]
    return np.concatenate(ours)


def layer_of(kind, attributes, direction, specs, weights):
    """Return our layer of one direction, with its weights: W, R, B and P of it, None where they are missing."""
    w, r, b, p = weights
    options = options_of(kind, attributes, specs, p is not None)
    layer = getattr(vr.nn, kind)(w.shape[1], r.shape[1], direction=direction, dtype=w.dtype, **options)
    b = np.zeros(2 * len(w), w.dtype) if b is None else b
    values = dict(zip(("weight_ih", "weight_hh", "bias_ih", "bias_hh"), (w, r, *np.split(b, 2)), strict=True))
    values = {name: blocks(value, kind, layer) for name, value in values.items()}
    if p is not None:
        values |= dict(zip(("p_i", "p_o", "p_f"), np.split(p, 3), strict=True))
    suffix = "_l0_reverse" if direction == "backward" else "_l0"
    state = layer.state_dict()
    layer.load_state_dict({key: values[key.removesuffix(suffix)] for key in state})
    return layer


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
    per_direction = len(DEFAULTS[kind])
    names = attributes.get("activations") or DEFAULTS[kind] * len(directions)
    specs = activations_of(names, attributes.get("activation_alpha", []), attributes.get("activation_beta", []))
    y = np.zeros((steps, len(directions), count, inputs["R"].shape[2]), x.dtype)
    last = []
    for number, direction in enumerate(directions):
        weights = [None if inputs.get(name) is None else inputs[name][number] for name in "WRBP"]
        mine = specs[number * per_direction : (number + 1) * per_direction]
        layer = layer_of(kind, attributes, direction, mine, weights)
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
