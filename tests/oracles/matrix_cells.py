"""Recurrent layers with matrix states in plain NumPy, one sequence, head and step at a time; imports nothing of ours.

A cell takes the parameters of a block by name, the rows of one sequence, and its states; it returns outputs and states.
"""

import numpy as np

from tests.oracles.products import matmul


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def softplus(x):
    return np.logaddexp(x, 0)


def rms(x, eps=1e-5):
    return x / np.sqrt((x**2).mean() + eps)


def linear(p, name, x):
    return matmul(p[f"{name}.weight"], x) + p.get(f"{name}.bias", 0)


def convolved(p, name, rows):
    """Return silu of the convolution at the last of some rows."""
    return silu((p[f"{name}.weight"][:, 0].T * rows).sum(axis=0) + p.get(f"{name}.bias", 0))


def delta_net(p, x, heads, state, window):
    gated, out = "A_log" in p, []
    state, window = state.copy(), list(window)
    for row in x:
        window.append(np.concatenate([linear(p, f"{name}_proj", row) for name in "qkv"]))
        parts = np.split(np.array(window[-len(p["q_conv1d.weight"][0, 0]) :]), 3, axis=1)
        q, k, v = (
            convolved(p, f"{name}_conv1d", part).reshape(heads, -1) for name, part in zip("qkv", parts, strict=True)
        )
        rate, read = sigmoid(linear(p, "b_proj", row)), []
        for h in range(heads):
            query, key = (u[h] / np.sqrt((u[h] ** 2).sum() + 1e-6) for u in (q, k))
            if gated:
                state[h] *= np.exp(-np.exp(p["A_log"][h]) * softplus(linear(p, "a_proj", row) + p["dt_bias"])[h])
            state[h] += rate[h] * np.outer(key, v[h] - matmul(key, state[h]))
            read.append(rms(matmul(query, state[h]) / np.sqrt(len(query))) * p["o_norm.weight"])
        y = np.concatenate(read)
        out.append(linear(p, "o_proj", y * silu(linear(p, "g_proj", row)) if gated else y))
    return np.array(out).reshape(len(x), len(p["o_proj.weight"])), state, np.array(window[len(x) :])


def gated_linear_attention(p, x, heads, state):
    state, out = state.copy(), []
    for row in x:
        q, k, v, gate = (linear(p, f"{name}_proj", row).reshape(heads, -1) for name in "qkvg")
        low = matmul(p["gk_proj.0.weight"], row)
        decay = (-softplus(-linear(p, "gk_proj.1", low)) / 16).reshape(heads, -1)
        read = []
        for h in range(heads):
            state[h] = np.exp(decay[h])[:, None] * state[h] + np.outer(k[h], v[h])
            normal = rms(matmul(q[h], state[h]) / np.sqrt(q.shape[1])) * p["g_norm_swish_gate.weight"]
            read.append(normal * silu(gate[h]))
        out.append(linear(p, "o_proj", np.concatenate(read)))
    return np.array(out).reshape(len(x), len(p["o_proj.weight"])), state


def mamba2(p, x, heads, state, window):
    state, window, out = state.copy(), list(window), []
    hidden, depth, taps = len(p["norm.weight"]), state.shape[1], p["conv1d.weight"].shape[2]
    for row in x:
        z, xbc, dt = np.split(linear(p, "in_proj", row), [hidden, 2 * hidden + 2 * depth])
        window.append(xbc)
        values, b, c = np.split(convolved(p, "conv1d", np.array(window[-taps:])), [hidden, hidden + depth])
        dt, values, read = softplus(dt + p["dt_bias"]), values.reshape(heads, -1), []
        for h in range(heads):
            state[h] = np.exp(-dt[h] * np.exp(p["A_log"][h])) * state[h] + dt[h] * np.outer(b, values[h])
            read.append(matmul(c, state[h]) + p["D"][h] * values[h])
        out.append(linear(p, "out_proj", rms(np.concatenate(read) * silu(z)) * p["norm.weight"]))
    return np.array(out).reshape(len(x), len(p["out_proj.weight"])), state, np.array(window[len(x) :])


def mlstm(p, x, heads, c, n, m):
    c, n, m, out = c.copy(), n.copy(), m.copy(), []
    for row in x:
        q, k, v = (linear(p, name, row).reshape(heads, -1) for name in "qkv")
        i, f = (15 * np.tanh(linear(p, f"{name}gate_preact", row) / 15) for name in "if")
        read, scale = [], np.sqrt(q.shape[1])
        for h in range(heads):
            log_f = -softplus(-f[h])
            level = max(log_f + m[h], i[h])
            keep, write, m[h] = np.exp(log_f + m[h] - level), np.exp(i[h] - level), level
            c[h] = keep * c[h] + write * np.outer(k[h], v[h])
            n[h] = keep * n[h] + write * k[h]
            y = matmul(q[h], c[h]) / scale / (max(abs(matmul(q[h], n[h])) / scale, np.exp(-level)) + 1e-6)
            y -= y.mean()
            read.append(y / np.sqrt((y**2).mean() + 1e-6))
        y = np.concatenate(read) * p["multihead_norm.weight"]
        out.append(linear(p, "out_proj", y * sigmoid(linear(p, "ogate_preact", row))))
    return np.array(out).reshape(len(x), len(p["out_proj.weight"])), c, n, m


def stacked(cell, layers, sequences, heads, states):
    """Run layers, each a list of blocks (parameters, whether rows run backward); return outputs and last states.

    `states` has, for each block in order, the states of each sequence, a list of tuples.
    """
    number, last = 0, []
    for blocks in layers:
        sides = []
        for p, backward in blocks:
            found = [
                cell(p, x[::-1] if backward else x, heads, *first)
                for x, first in zip(sequences, states[number], strict=True)
            ]
            sides.append([y[::-1] if backward else y for y, *_ in found])
            last.append([after for _, *after in found])
            number += 1
        sequences = [np.concatenate(of_sequence, axis=1) for of_sequence in zip(*sides, strict=True)]
    return sequences, last
