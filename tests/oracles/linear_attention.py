"""Linear attention in plain NumPy, one sequence, head and step at a time; imports nothing of ours.

For one head, with a state S (depth, depth of values) and log decays g (a number, or one for each row of S):

    u_t = v_t - [delta] (e^g_t S_{t-1})^T k_t      S_t = e^g_t S_{t-1} + b_t k_t u_t^T      o_t = scale S_t^T q_t
"""

import numpy as np

from tests.oracles.products import matmul


def linear_attention(
    query, key, value, offsets, decay=None, beta=None, state=None, delta=False, normalise=False, scale=None
):
    """Return outputs and last states; with `normalise`, a pair of outputs and norms, and a pair of states."""
    if normalise:
        first = None if state is None else np.concatenate([state[0], state[1][..., None]], axis=3)
        value = np.concatenate([value, np.ones((*value.shape[:2], 1))], axis=2)
        out, last = linear_attention(query, key, value, offsets, decay, beta, first, delta, False, scale)
        return (out[..., :-1], out[..., -1]), (last[..., :-1], last[..., -1])
    states = max(key.shape[1], value.shape[1])
    heads, depth = max(query.shape[1], states), query.shape[2]
    scale = depth**-0.5 if scale is None else scale
    decay = np.zeros((len(query), states)) if decay is None else decay
    beta = np.ones((len(query), states)) if beta is None else beta
    shape = len(offsets) - 1, states, depth, value.shape[2]
    last = np.zeros(shape) if state is None else state.astype(np.float64)
    out = np.zeros((len(query), heads, value.shape[2]))
    for i in range(len(offsets) - 1):
        for head in range(heads):
            of = lambda x, head=head: x[:, head * x.shape[1] // heads]  # the head of `x` that this head belongs to
            q, k, v, g, b = map(of, (query, key, value, decay, beta))
            s = last[i, head * states // heads]
            s = s if head % (heads // states) == heads // states - 1 else s.copy()  # the last reader keeps the state
            for t in range(offsets[i], offsets[i + 1]):
                s *= np.exp(g[t])[..., None]
                u = v[t] - matmul(k[t], s) if delta else v[t]
                s += b[t] * np.outer(k[t], u)
                out[t, head] = scale * matmul(q[t], s)
    return out, last
