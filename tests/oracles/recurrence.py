"""Recurrent layers in plain NumPy: one sequence at a time, one step at a time. Imports nothing of ours."""

import numpy as np

from tests.oracles.products import matmul


def sigmoid(a):
    return 1 / (1 + np.exp(-a))


def rnn_tanh(x, u, states):
    return (np.tanh(x + u),)


def rnn_relu(x, u, states):
    return (np.maximum(x + u, 0),)


def lstm(x, u, states):
    i, f, g, o = np.split(x + u, 4)
    c = sigmoid(f) * states[1] + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def gru(x, u, states):
    (xr, xz, xn), (ur, uz, un) = np.split(x, 3), np.split(u, 3)
    r, z = sigmoid(xr + ur), sigmoid(xz + uz)
    return ((1 - z) * np.tanh(xn + r * un) + z * states[0],)


STEPS = {"rnn_tanh": rnn_tanh, "rnn_relu": rnn_relu, "lstm": lstm, "gru": gru}


def layer(name, x, offsets, directions, initial):
    """`x` (rows, input); `directions` tuples (w_ih, w_hh, b_ih, b_hh); `initial` (states, directions, sequences, H)."""
    num_states, _, num_sequences, hidden = initial.shape
    y = np.zeros((len(x), len(directions) * hidden))
    last = initial.astype(float).copy()
    for d, (w_ih, w_hh, b_ih, b_hh) in enumerate(directions):
        for i in range(num_sequences):
            states = tuple(initial[s, d, i] for s in range(num_states))
            rows = range(offsets[i], offsets[i + 1])
            for row in reversed(rows) if d == 1 else rows:
                states = STEPS[name](matmul(w_ih, x[row]) + b_ih, matmul(w_hh, states[0]) + b_hh, states)
                y[row, d * hidden : (d + 1) * hidden] = states[0]
            last[:, d, i] = states
    return y, last
