"""Published cells in plain NumPy, a unit's equations over all units; and layers of them, one step at a time.

Imports nothing of ours.  A cell is `step(x, product, states, v)`: the projected input of each gate, by name; the
product of a gate with a vector; the states before; vectors by name.  It returns the states, the output first.
"""

import numpy as np
from scipy.special import expit as sigmoid

from tests.oracles.products import matmul

ACTIVATIONS = {
    "tanh": np.tanh,
    "sigmoid": sigmoid,
    "relu": lambda a: np.maximum(a, 0),
    "identity": lambda a: a,
    "affine": lambda a, alpha=1, beta=0: alpha * a + beta,
    "leaky_relu": lambda a, alpha=0.01: np.where(a >= 0, a, alpha * a),
    "thresholded_relu": lambda a, alpha=1: np.where(a > alpha, a, 0),
    "scaled_tanh": lambda a, alpha=1, beta=1: alpha * np.tanh(beta * a),
    "hard_sigmoid": lambda a, alpha=0.2, beta=0.5: np.clip(alpha * a + beta, 0, 1),
    "elu": lambda a, alpha=1: np.where(a >= 0, a, alpha * np.expm1(a)),
    "softsign": lambda a: a / (1 + np.abs(a)),
    "softplus": lambda a: np.logaddexp(a, 0),
    "silu": lambda a: a * sigmoid(a),
}


def activation(spec):
    name, *parameters = [spec] if isinstance(spec, str) else spec
    return lambda a: ACTIVATIONS[name](a, *parameters)


def bound(a, limit):
    return a if limit is None else np.clip(a, -limit, limit)


def lstm(
    peepholes=False, coupled=False, forget_gate=True, cell_clip=None, proj_clip=None, clip=None, activations=None
):  # `layer` clips projections
    gate, candidate, output = map(activation, activations or ("sigmoid", "tanh", "tanh"))

    def step(x, product, states, v):
        h, c = states

        def total(name, peep=None):
            a = x[name] + product(name, h)
            return bound(a if peep is None or not peepholes else a + v[f"p_{name}"] * peep, clip)

        i = gate(total("i", c))
        f = 1 - i if coupled else gate(total("f", c)) if forget_gate else 1
        c = bound(f * c + i * candidate(total("g")), cell_clip)
        return gate(total("o", c)) * output(c), c

    return step


def gru(reset_after=True, origin_mode=True, clip=None, activations=("sigmoid", "tanh")):
    gate, candidate = map(activation, activations)

    def step(x, product, states, v):
        (h,) = states
        r, z = (gate(bound(x[name] + product(name, h), clip)) for name in "rz")
        n = candidate(bound(x["n"] + (r * product("n", h) if reset_after else product("n", r * h)), clip))
        return ((1 - z) * n + z * h,) if origin_mode else ((1 - z) * h + z * n,)

    return step


def rnn(activation="tanh", clip=None):
    def step(x, product, states, v):
        ((name, projected),) = x.items()
        return (_activation(activation)(bound(projected + product(name, states[0]), clip)),)

    return step


_activation = activation


def mgu(x, product, states, v):
    (h,) = states
    f = sigmoid(x["f"] + product("f", h))
    n = np.tanh(x["n"] + product("n", f * h))
    return ((1 - f) * h + f * n,)


def slstm(forget="exp"):
    def step(x, product, states, v):
        h, c, n, m = states
        i, f, z, o = (x[name] + product(name, h) for name in "ifzo")
        f = f if forget == "exp" else np.log(sigmoid(f))
        m_t = np.where(n > 0, np.maximum(f + m, i), i)
        c = np.exp(f + m - m_t) * c + np.exp(i - m_t) * np.tanh(z)
        n = np.exp(f + m - m_t) * n + np.exp(i - m_t)
        return sigmoid(o) * c / n, c, n, m_t

    return step


def ligru(x, product, states, v):
    (h,) = states
    z, n = sigmoid(x["z"] + product("z", h)), np.maximum(x["n"] + product("n", h), 0)
    return (z * h + (1 - z) * n,)


def indrnn(x, product, states, v):
    return (np.maximum(x["a"] + v["u"] * states[0], 0),)


def sru(x, product, states, v):
    _, c = states
    f, r = (sigmoid(x[name] + v[f"v_{name}"] * c) for name in "fr")
    c = f * c + (1 - f) * x["a"]
    return r * c + (1 - r) * x["skip"], c


def min_gru(x, product, states, v):
    (h,) = states
    z = sigmoid(x["z"])
    return ((1 - z) * h + z * x["n"],)


def min_lstm(x, product, states, v):
    (h,) = states
    f, i = sigmoid(x["f"]), sigmoid(x["i"])
    return (f / (f + i) * h + i / (f + i) * x["n"],)


def gru_d(x, product, states, v):
    h = np.exp(-np.maximum(0, v["decay"])) * states[0]
    r, z = (sigmoid(x[name] + product(name, h)) for name in "rz")
    return ((1 - z) * h + z * np.tanh(x["n"] + product("n", r * h)),)


def norm(a):
    return (a - a.mean()) / np.sqrt(a.var() + 1e-5)


def ln_lstm(x, product, states, v):
    h, c = states
    i, f, g, o = (v[f"s_{name}"] * norm(x[name] + product(name, h)) + v[f"b_{name}"] for name in "ifgo")
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(v["s_c"] * norm(c) + v["b_c"]), c


def ln_gru(x, product, states, v):
    (h,) = states
    r, z, n = (v[f"s_{name}"] * norm(product(name, h)) + v[f"b_{name}"] for name in "rzn")
    r, z = sigmoid(x["r"] + r), sigmoid(x["z"] + z)
    return ((1 - z) * np.tanh(x["n"] + r * n) + z * h,)


def with_rows(x, product, states, v):
    (h,) = states
    return (np.where(v["keep"] > 0.5, h, np.tanh(x["a"] + product("a", v["mask"] * h) + v["w"] * v["mask"])),)


def layer(step, gates, vectors, x, offsets, directions, initial, reverse, proj_clip=np.inf):
    """`x` (rows, input); of each direction w_ih, w_hh, b_ih, b_hh, w_hr or None, vectors (n, hidden) or None, and
    rows (rows, n * hidden) or None: inputs that are not projected, whose names stand after those of the vectors.

    Projected outputs are at most `proj_clip`.  `gates` are the names of those with an input, and of those with a
    product; `initial` (states, directions, sequences, hidden), of which the first has as many as there are outputs.
    Returns outputs and last states, and of each direction the other states of every row.
    """
    of_x, of_h = gates
    last, hidden = initial.astype(float).copy(), initial.shape[3]
    outputs = [hidden if w_hr is None else len(w_hr) for *_, w_hr, _, _ in directions]
    y, others = np.zeros((len(x), sum(outputs))), np.zeros((len(directions), len(x), len(initial) - 1, hidden))
    for d, (w_ih, w_hh, b_ih, b_hh, w_hr, v, given) in enumerate(directions):

        def product(name, value, w_hh=w_hh, b_hh=b_hh):
            rows = slice(of_h.index(name) * hidden, (of_h.index(name) + 1) * hidden)
            return matmul(w_hh[rows], value) + b_hh[rows]

        named = {} if v is None else dict(zip(vectors, v, strict=False))
        for i in range(len(offsets) - 1):
            states = [initial[0, d, i, : outputs[d]], *initial[1:, d, i]]
            rows = range(offsets[i], offsets[i + 1])
            for row in reversed(rows) if reverse[d] else rows:
                projected = dict(zip(of_x, np.split(matmul(w_ih, x[row]) + b_ih, max(1, len(of_x))), strict=False))
                if given is not None:
                    count = len(given[row]) // hidden
                    named |= dict(zip(vectors[-count:], np.split(given[row], count), strict=True))
                states = list(step(projected, product, states, named))
                if w_hr is not None:
                    states[0] = np.clip(matmul(w_hr, states[0]), -proj_clip, proj_clip)
                y[row, d * outputs[d] : (d + 1) * outputs[d]] = states[0]
                others[d, row] = np.reshape(states[1:], others[d, row].shape)
            last[0, d, i, : outputs[d]], last[1:, d, i] = states[0], np.reshape(states[1:], last[1:, d, i].shape)
    return y, last, others
