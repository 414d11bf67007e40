"""Attention on CUDA, plain: one thread per head of a query, or of a key; each score is computed three times."""

import numpy as np

from varlen_rnn.kernels.activations import exp, tanh
from varlen_rnn.kernels.pool import pool_sum
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.device import beside, empty, launch
from varlen_rnn.runtime.jit import body, cuda_kernel


@body
def dot(a, row, b, other, column, count):
    """Return the dot product of two rows over `count` columns from `column` on."""
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
    """Return the derivative of an additive score by feature `j` of its query, which is also that by its key's."""
    value = tanh(q[row, j] + k[key, j])
    return weight[j] * (q.dtype.type(1) - value * value)


@cuda_kernel
def attend(q, k, v, first_keys, end_keys, weight, scale, out, sums):
    """Write outputs, the largest score of each query, and 1 over its sum of weights."""
    i, heads, rows = cuda.grid(1), sums.shape[1], sums.shape[2]
    if i >= heads * rows:
        return
    head, row, number = i // rows, i % rows, q.dtype.type
    depth, depth_v = q.shape[1] // heads, v.shape[1] // heads
    column, first = head * depth, head * depth_v
    best, total = -number(np.inf), number(0)
    for key in range(first_keys[row], end_keys[row]):
        found = score(q, row, k, key, column, depth, weight, scale)
        best = found if found > best else best
    for j in range(first, first + depth_v):
        out[row, j] = 0
    less = number(0) if best == -number(np.inf) else best
    for key in range(first_keys[row], end_keys[row]):
        share = exp(score(q, row, k, key, column, depth, weight, scale) - less)
        total += share
        for j in range(first, first + depth_v):
            out[row, j] += share * v[key, j]
    part = number(0) if total == number(0) else number(1) / total
    for j in range(first, first + depth_v):
        out[row, j] *= part
    sums[0, head, row], sums[1, head, row] = less, part


@cuda_kernel
def attend_grad_of_queries(q, k, v, d_out, first_keys, end_keys, weight, scale, sums, dots, d_q, d_weight):
    """Write the gradient of each query, and its contribution to the gradient of the feature weights."""
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
    for key in range(first_keys[row], end_keys[row]):
        share = exp(score(q, row, k, key, column, depth, weight, scale) - sums[0, head, row]) * sums[1, head, row]
        d = share * (dot(d_out, row, v, key, first, depth_v) - dots[head, row]) * scale
        for j in range(column, column + depth):
            if weight.shape[0] == 0:
                d_q[row, j] += d * k[key, j]
            else:
                d_q[row, j] += d * slope(q, row, k, key, j, weight)
                d_weight[row, j] += d * tanh(q[row, j] + k[key, j])


@cuda_kernel
def attend_grad_of_keys(q, k, v, d_out, first_queries, end_queries, weight, scale, sums, dots, d_k, d_v):
    """Write the gradients of keys and values."""
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
    for row in range(first_queries[key], end_queries[key]):
        share = exp(score(q, row, k, key, column, depth, weight, scale) - sums[0, head, row]) * sums[1, head, row]
        d = share * (dot(d_out, row, v, key, first, depth_v) - dots[head, row]) * scale
        for j in range(first, first + depth_v):
            d_v[key, j] += share * d_out[row, j]
        for j in range(column, column + depth):
            if weight.shape[0] == 0:
                d_k[key, j] += d * q[row, j]
            else:
                d_k[key, j] += d * slope(q, row, k, key, j, weight)


@cuda_kernel
def dot_heads(a, b, dots):
    """`dots[h, r]` = dot product of the columns of head `h` in row `r` of `a` and `b`; one thread per head and row."""
    i = cuda.grid(1)
    heads, rows = dots.shape
    if i < heads * rows:
        head, row = i // rows, i % rows
        depth, total = a.shape[1] // heads, dots.dtype.type(0)
        for j in range(head * depth, (head + 1) * depth):
            total += a[row, j] * b[row, j]
        dots[head, row] = total


def rows_seen(offsets, others, left, right, like):
    """Return, for each row, the range of rows of the other side that it sees."""
    sequence = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    at = np.arange(offsets[-1]) - offsets[sequence]
    begin, count = others[sequence], np.diff(others)[sequence]
    first = np.clip(at - left, 0, count)
    return beside(begin + first, like), beside(begin + np.clip(at + right + 1, first, count), like)


def _weight_of(weight, like):
    """Return the weight of features, or an empty array for dot products."""
    return empty((0,), like) if weight is None else weight


def forward(q, k, v, q_offsets, k_offsets, heads, scale, left, right, weight):
    """Twin of `layer.forward`."""
    out, sums = empty((q.shape[0], v.shape[1]), q), empty((2, heads, q.shape[0]), q)
    keys, number = rows_seen(q_offsets, k_offsets, left, right, q), q.dtype.type(scale)
    launch(attend, heads * q.shape[0], q, k, v, *keys, _weight_of(weight, q), number, out, sums)
    return out, sums


def backward(q, k, v, out, sums, d_out, q_offsets, k_offsets, heads, scale, left, right, weight):
    """Twin of `layer.backward`."""
    d_q, d_k, d_v = empty(q.shape, q), empty(k.shape, k), empty(v.shape, v)
    of_weight = _weight_of(weight, q)
    d_weight = empty((q.shape[0], of_weight.shape[0]), q)
    dots = empty((heads, q.shape[0]), q)
    launch(dot_heads, dots.size, out, d_out, dots)
    given = of_weight, q.dtype.type(scale), sums, dots
    keys, queries = rows_seen(q_offsets, k_offsets, left, right, q), rows_seen(k_offsets, q_offsets, right, left, q)
    launch(attend_grad_of_queries, heads * q.shape[0], q, k, v, d_out, *keys, *given, d_q, d_weight)
    launch(attend_grad_of_keys, heads * k.shape[0], q, k, v, d_out, *queries, *given, d_k, d_v)
    if weight is None:
        return d_q, d_k, d_v
    total = empty((1, d_weight.shape[1]), q)
    pool_sum(d_weight, np.array([0, len(d_weight)]), np.ones(1, q.dtype), total)
    return d_q, d_k, d_v, total.reshape(-1)
