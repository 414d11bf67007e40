"""Functions of fla, mamba_ssm and causal-conv1d in plain NumPy, step by step; imports nothing of ours.

`offsets` divide the rows of a batch `(batch, steps, ...)`, which follow one another.
"""

import numpy as np

from tests.oracles.linear_attention import linear_attention
from tests.oracles.products import matmul


def silu(x):
    return x / (1 + np.exp(-x))


def softplus(x):
    return np.log1p(np.exp(x))


def over_rows(call, offsets, *batches, **options):
    """Return the results of a function of rows, with outputs in the shape of a batch."""
    axes = batches[0].shape[:2]
    flat = [None if batch is None else batch.reshape(-1, *batch.shape[2:]) for batch in batches]
    out, last = call(*flat, offsets, **options)
    return out.reshape(*axes, *out.shape[1:]), last


def gated_delta_rule(q, k, v, g, beta, offsets, state=None, units=False):
    if units:
        q, k = (x / np.sqrt((x**2).sum(-1, keepdims=True) + 1e-6) for x in (q, k))
    return linear_attention(q, k, v, offsets, g, beta, state, delta=True)


def causal_conv1d(x, offsets, weight, bias, state=None, activation=None):
    """`x` has the shape (rows, channels), states (sequences, channels, width - 1)."""
    (channels, width), out, last = weight.shape, np.zeros_like(x), []
    for i in range(len(offsets) - 1):
        before = np.zeros((width - 1, channels)) if state is None else state[i].T
        rows = np.concatenate([before, x[offsets[i] : offsets[i + 1]]])
        for t in range(offsets[i + 1] - offsets[i]):
            out[offsets[i] + t] = bias + (rows[t : t + width] * weight.T).sum(0)
        last.append(rows[len(rows) - width + 1 :].T)
    return silu(out) if activation else out, np.stack(last)


def mamba_scan(x, dt, B, C, offsets, A, D, z=None, state=None):
    """States have the shape (sequences, heads, head size, state size)."""
    (_, heads, size), (groups, depth) = x.shape[:3], B.shape[1:]
    last = np.zeros((len(offsets) - 1, heads, size, depth)) if state is None else state.copy()
    out = np.zeros_like(x)
    for i in range(len(offsets) - 1):
        for h in range(heads):
            group, s = h * groups // heads, last[i, h]
            for t in range(offsets[i], offsets[i + 1]):
                s *= np.exp(dt[t, h] * A[h])
                s += dt[t, h] * np.outer(x[t, h], B[t, group])
                out[t, h] = matmul(s, C[t, group]) + D[h] * x[t, h]
    return out if z is None else out * silu(z), last


def selective_step(state, x, dt, A, B, C, D, z):
    """A step of shape (batch, heads, head size) each, with a decay for each number of a state."""
    per_head = x.shape[1] // B.shape[1]
    B, C = (np.repeat(part, per_head, axis=1)[:, :, None] for part in (B, C))
    state = state * np.exp(dt[..., None] * A) + (dt * x)[..., None] * B
    return ((state * C).sum(-1) + D * x) * silu(z), state
