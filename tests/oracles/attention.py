"""Attention in plain NumPy, one query at a time; imports nothing of ours."""

import numpy as np

from tests.oracles.products import matmul


def attend(query, key, value, q_offsets, k_offsets, scale=None, left=None, right=None):
    """`query` (rows, heads, depth), and so on; returns outputs (rows, heads, depth of values)."""
    scale = query.shape[2] ** -0.5 if scale is None else scale
    out = np.zeros((*query.shape[:2], value.shape[2]))
    for i in range(len(q_offsets) - 1):
        keys, values = (x[k_offsets[i] : k_offsets[i + 1]] for x in (key, value))
        for row in range(q_offsets[i], q_offsets[i + 1]):
            at = row - q_offsets[i]
            first = 0 if left is None else max(0, at - left)
            end = len(keys) if right is None else min(len(keys), at + right + 1)
            if first >= end:
                continue
            for head in range(query.shape[1]):
                scores = matmul(keys[first:end, head], query[row, head]) * scale
                weights = np.exp(scores - scores.max())
                out[row, head] = matmul(weights / weights.sum(), values[first:end, head])
    return out


def attend_grad(query, key, value, d_out, q_offsets, k_offsets, scale=None, left=None, right=None):
    """Return the gradients of queries, keys and values."""
    scale = query.shape[2] ** -0.5 if scale is None else scale
    d_query, d_key, d_value = (np.zeros(x.shape) for x in (query, key, value))
    for i in range(len(q_offsets) - 1):
        mine, other = slice(*q_offsets[i : i + 2]), slice(*k_offsets[i : i + 2])
        rows, columns = np.ogrid[: q_offsets[i + 1] - q_offsets[i], : k_offsets[i + 1] - k_offsets[i]]
        seen = np.ones((rows.size, columns.size), bool)
        seen &= True if left is None else columns >= rows - left
        seen &= True if right is None else columns <= rows + right
        for head in range(query.shape[1]):
            q, k, v, d = query[mine, head], key[other, head], value[other, head], d_out[mine, head]
            scores = np.where(seen, matmul(q, k.T) * scale, -np.inf)
            weights = np.exp(scores - np.max(scores, axis=1, initial=-1e30, keepdims=True))
            weights /= np.maximum(weights.sum(axis=1, keepdims=True), 1e-300)
            d_weights = matmul(d, v.T)
            d_scores = weights * (d_weights - (weights * d_weights).sum(axis=1, keepdims=True)) * scale
            d_query[mine, head], d_key[other, head], d_value[other, head] = (
                matmul(d_scores, k),
                matmul(d_scores.T, q),
                matmul(weights.T, d),
            )
    return d_query, d_key, d_value


def attend_additively(query, key, value, weight, q_offsets, k_offsets, left=None, right=None):
    """`query` (rows, features), and so on; the score of a query and a key is `weight . tanh(query + key)`."""
    out = np.zeros((len(query), value.shape[1]))
    for i in range(len(q_offsets) - 1):
        keys, values = (x[k_offsets[i] : k_offsets[i + 1]] for x in (key, value))
        for row in range(q_offsets[i], q_offsets[i + 1]):
            at = row - q_offsets[i]
            first = 0 if left is None else max(0, at - left)
            end = len(keys) if right is None else min(len(keys), at + right + 1)
            if first < end:
                scores = matmul(np.tanh(query[row] + keys[first:end]), weight)
                weights = np.exp(scores - scores.max())
                out[row] = matmul(weights / weights.sum(), values[first:end])
    return out


def attention_weights(query, key, q_offsets, k_offsets, left=None, right=None):
    """Return the weights, (pairs, heads): for each query in turn, one row for each key of its sequence."""
    found = [np.zeros((0, query.shape[1]))]
    for i in range(len(q_offsets) - 1):
        keys = key[k_offsets[i] : k_offsets[i + 1]]
        for row in range(q_offsets[i], q_offsets[i + 1]):
            ahead = np.arange(len(keys)) - (row - q_offsets[i])
            seen = np.ones(len(keys), bool)
            seen &= True if left is None else ahead >= -left
            seen &= True if right is None else ahead <= right
            weights = np.zeros((len(keys), query.shape[1]))
            for head in range(query.shape[1] if seen.any() else 0):
                scores = matmul(keys[seen, head], query[row, head]) * query.shape[2] ** -0.5
                powers = np.exp(scores - scores.max())
                weights[seen, head] = powers / powers.sum()
            found.append(weights)
    return np.concatenate(found)
