"""Attention on CUDA, without blocks: one thread per head and query, or per head and key, computes scores anew."""

import numpy as np

from varlen_rnn.kernels.activations import exp, tanh
from varlen_rnn.kernels.pool import pool_sum
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.device import beside, empty, launch
from varlen_rnn.runtime.jit import body, cuda_kernel


@body
def dot(a, row, b, other, column, count):
    """Return the dot product of row `row` of `a` and row `other` of `b`, over `count` columns from `column` on."""
    total = a.dtype.type(0)
    for j in range(column, column + count):
        total += a[row, j] * b[other, j]
    return total


@body
def score(q, row, k, key, column, count, weight, scale):
    """Return the scaled score of a query and a key: additive if `weight` has elements, else a dot product."""
    if weight.shape[0] == 0:
        return dot(q, row, k, key, column, count) * scale
    total = q.dtype.type(0)
    for j in range(count):
        total += weight[j] * tanh(q[row, column + j] + k[key, column + j])
    return total * scale


@body
def slope(q, row, k, key, j, weight):
    """Return the derivative of an additive score by feature `j` of its query; the derivative by its key is equal."""
    value = tanh(q[row, j] + k[key, j])
    return weight[j] * (q.dtype.type(1) - value * value)


@cuda_kernel
def attend(q, k, v, ranges, weight, scale, out, sums):
    """Write outputs, each query's largest score, and 1 / (sum of its weights); `ranges` has the keys of each query."""
    i, heads, rows = cuda.grid(1), sums.shape[1], sums.shape[2]
    if i >= heads * rows:
        return
    head, row, number = i // rows, i % rows, q.dtype.type
    depth, depth_v = q.shape[1] // heads, v.shape[1] // heads
    column, first = head * depth, head * depth_v
    best, total = -number(np.inf), number(0)
    for key in range(ranges[0, row], ranges[1, row]):
        found = score(q, row, k, key, column, depth, weight, scale)
        best = found if found > best else best
    for j in range(first, first + depth_v):
        out[row, j] = 0
    less = number(0) if best == -number(np.inf) else best
    for key in range(ranges[0, row], ranges[1, row]):
        share = exp(score(q, row, k, key, column, depth, weight, scale) - less)
        total += share
        for j in range(first, first + depth_v):
            out[row, j] += share * v[key, j]
    part = number(0) if total == number(0) else number(1) / total
    for j in range(first, first + depth_v):
        out[row, j] *= part
    sums[0, head, row], sums[1, head, row] = less, part


@cuda_kernel
def attend_grad_of_queries(q, k, v, d_out, ranges, weight, scale, sums, d_q, d_weight):
    """Write the gradient of each query, and each query's term of the gradient of the weight of additive scores."""
    i, heads, rows = cuda.grid(1), sums.shape[1], sums.shape[2]
    if i >= heads * rows:
        return
    head, row = i // rows, i % rows
    depth, depth_v = q.shape[1] // heads, v.shape[1] // heads
    column, first = head * depth, head * depth_v
    for j in range(column, column + depth):
        d_q[row, j] = 0
    for j in range(d_weight.shape[1]):
        d_weight[row, j] = 0
    for key in range(ranges[0, row], ranges[1, row]):
        share = exp(score(q, row, k, key, column, depth, weight, scale) - sums[0, head, row]) * sums[1, head, row]
        d = share * (dot(d_out, row, v, key, first, depth_v) - sums[2, head, row]) * scale
        for j in range(column, column + depth):
            if weight.shape[0] == 0:
                d_q[row, j] += d * k[key, j]
            else:
                d_q[row, j] += d * slope(q, row, k, key, j, weight)
                d_weight[row, j] += d * tanh(q[row, j] + k[key, j])


@cuda_kernel
def attend_grad_of_keys(q, k, v, d_out, ranges, weight, scale, sums, d_k, d_v):
    """Write the gradients of keys and values; `ranges` has the range of the queries that see each key."""
    i, heads, keys = cuda.grid(1), sums.shape[1], k.shape[0]
    if i >= heads * keys:
        return
    head, key = i // keys, i % keys
    depth, depth_v = q.shape[1] // heads, v.shape[1] // heads
    column, first = head * depth, head * depth_v
    for j in range(column, column + depth):
        d_k[key, j] = 0
    for j in range(first, first + depth_v):
        d_v[key, j] = 0
    for row in range(ranges[0, key], ranges[1, key]):
        share = exp(score(q, row, k, key, column, depth, weight, scale) - sums[0, head, row]) * sums[1, head, row]
        d = share * (dot(d_out, row, v, key, first, depth_v) - sums[2, head, row]) * scale
        for j in range(first, first + depth_v):
            d_v[key, j] += share * d_out[row, j]
        for j in range(column, column + depth):
            if weight.shape[0] == 0:
                d_k[key, j] += d * q[row, j]
            else:
                d_k[key, j] += d * slope(q, row, k, key, j, weight)


@cuda_kernel
def dot_heads(out, d_out, sums, found):
    """Write, for each head of a query, its two numbers of `sums`, then the dot product of its output and gradient."""
    i = cuda.grid(1)
    heads, rows = sums.shape[1], sums.shape[2]
    if i < heads * rows:
        head, row = i // rows, i % rows
        depth = out.shape[1] // heads
        found[0, head, row], found[1, head, row] = sums[0, head, row], sums[1, head, row]
        found[2, head, row] = dot(out, row, d_out, row, head * depth, depth)


def ranges_seen(offsets, others, left, right, like):
    """Return an array (2, rows): the first and the end of the keys that each query sees, in rows of the keys.

    `offsets` and `others` are the offsets of queries and keys.  To get the queries that see each key, exchange the
    offsets, and exchange `left` and `right`.
    """
    sequence = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    at = np.arange(offsets[-1]) - offsets[sequence]
    begin, count = others[sequence], np.diff(others)[sequence]
    first = np.clip(at - left, 0, count)
    return beside(begin + np.stack([first, np.clip(at + right + 1, first, count)]), like)


def forward(q, k, v, call):
    """Twin of `layer.forward`."""
    out, sums = empty((q.shape[0], v.shape[1]), q), empty((2, call.heads, q.shape[0]), q)
    ranges, scale = ranges_seen(call.q_offsets, call.k_offsets, call.left, call.right, q), q.dtype.type(call.scale)
    launch(attend, call.heads * q.shape[0], q, k, v, ranges, call.weight_like(q), scale, out, sums)
    return out, sums


def backward(q, k, v, out, sums, d_out, call):
    """Twin of `layer.backward`."""
    d_q, d_k, d_v = empty(q.shape, q), empty(k.shape, k), empty(v.shape, v)
    weight, of_rows = call.weight_like(q), empty((3, call.heads, q.shape[0]), q)
    d_weight = empty((q.shape[0], weight.shape[0]), q)
    size = call.heads * q.shape[0]
    launch(dot_heads, size, out, d_out, sums, of_rows)
    given = weight, q.dtype.type(call.scale), of_rows
    keys = ranges_seen(call.q_offsets, call.k_offsets, call.left, call.right, q)
    queries = ranges_seen(call.k_offsets, call.q_offsets, call.right, call.left, q)
    launch(attend_grad_of_queries, size, q, k, v, d_out, keys, *given, d_q, d_weight)
    launch(attend_grad_of_keys, call.heads * k.shape[0], q, k, v, d_out, queries, *given, d_k, d_v)
    if call.weight is None:
        return d_q, d_k, d_v
    total = empty((1, d_weight.shape[1]), q)
    pool_sum(d_weight, np.array([0, len(d_weight)]), np.ones(1, q.dtype), total)
    return d_q, d_k, d_v, total.reshape(-1)
