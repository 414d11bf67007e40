"""The weights of attention on CUDA: one thread per head and query, or per head and key, loops over its pairs.

A sequence of 2 queries and 3 keys has 6 pairs: query 0 with keys 0, 1 and 2, then query 1 with the same keys.
"""

import math

import numpy as np

from varlen_rnn.attention.blocks import UNLIMITED
from varlen_rnn.attention.cuda import dot, ranges_seen
from varlen_rnn.kernels.activations import exp
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.device import beside, empty, launch
from varlen_rnn.runtime.jit import cuda_kernel


@cuda_kernel
def weigh_pairs(q, k, begins, first_pairs, ranges, scale, out):
    """Write the weight of each pair: the softmax over the query's scores, or 0 if the query does not see the key.

    `begins[row]` is the first key of the query's sequence, `first_pairs[row]` the first pair of the query.
    """
    i, rows, heads = cuda.grid(1), q.shape[0], out.shape[1]
    if i >= heads * rows:
        return
    head, row, number = i // rows, i % rows, q.dtype.type
    depth, start, end = q.shape[1] // heads, first_pairs[row], first_pairs[row + 1]
    best, total = -number(np.inf), number(0)
    for pair in range(start, end):
        key = begins[row] + pair - start
        found = -number(np.inf)
        if ranges[0, row] <= key and key < ranges[1, row]:
            found = dot(q, row, k, key, head * depth, depth) * scale
        best = found if found > best else best
        out[pair, head] = found
    less = best if math.isfinite(best) else number(0)
    for pair in range(start, end):
        share = exp(out[pair, head] - less)
        total += share
        out[pair, head] = share
    if total != number(0):
        for pair in range(start, end):
            out[pair, head] /= total


@cuda_kernel
def weigh_pairs_grad_of_queries(k, begins, first_pairs, weights, d_weights, scale, dots, d_q):
    """Write the gradients of queries; write to `dots` the sum of weight * gradient of the weight for each query."""
    i, rows, heads = cuda.grid(1), d_q.shape[0], dots.shape[0]
    if i >= heads * rows:
        return
    head, row = i // rows, i % rows
    depth, start, end = d_q.shape[1] // heads, first_pairs[row], first_pairs[row + 1]
    total = d_q.dtype.type(0)
    for pair in range(start, end):
        total += weights[pair, head] * d_weights[pair, head]
    dots[head, row] = total
    for j in range(head * depth, (head + 1) * depth):
        d_q[row, j] = 0
    for pair in range(start, end):
        d, key = weights[pair, head] * (d_weights[pair, head] - total) * scale, begins[row] + pair - start
        for j in range(head * depth, (head + 1) * depth):
            d_q[row, j] += d * k[key, j]


@cuda_kernel
def weigh_pairs_grad_of_keys(q, ranges, begins, first_pairs, weights, d_weights, scale, dots, d_k):
    """Write the gradients of keys; `ranges` has, for each key, the range of the queries of its sequence."""
    i, keys, heads = cuda.grid(1), d_k.shape[0], dots.shape[0]
    if i >= heads * keys:
        return
    head, key = i // keys, i % keys
    depth = d_k.shape[1] // heads
    for j in range(head * depth, (head + 1) * depth):
        d_k[key, j] = 0
    for row in range(ranges[0, key], ranges[1, key]):
        pair = first_pairs[row] + key - begins[row]
        d = weights[pair, head] * (d_weights[pair, head] - dots[head, row]) * scale
        for j in range(head * depth, (head + 1) * depth):
            d_k[key, j] += d * q[row, j]


def _pairs_of(call, of_pairs, like):
    """Return the first key of each query's sequence, and the first pair of each query."""
    return beside(np.repeat(call.k_offsets[:-1], np.diff(call.q_offsets)), like), beside(of_pairs, like)


def forward(q, k, of_pairs, call):
    """Return the weights, (pairs, heads); `of_pairs` has each query's first pair, and then the number of pairs."""
    out = empty((int(of_pairs[-1]), call.heads), q)
    ranges = ranges_seen(call.q_offsets, call.k_offsets, call.left, call.right, q)
    given = *_pairs_of(call, of_pairs, q), ranges, q.dtype.type(call.scale)
    launch(weigh_pairs, call.heads * q.shape[0], q, k, *given, out)
    return out


def backward(q, k, weights, d_weights, of_pairs, call):
    """Return the gradients of queries and keys, given the weights and their gradients, both (pairs, heads)."""
    d_q, d_k, dots = empty(q.shape, q), empty(k.shape, q), empty((call.heads, len(q)), q)
    given = *_pairs_of(call, of_pairs, q), weights, d_weights, q.dtype.type(call.scale), dots
    queries = ranges_seen(call.k_offsets, call.q_offsets, UNLIMITED, UNLIMITED, q)
    launch(weigh_pairs_grad_of_queries, dots.size, k, *given, d_q)
    launch(weigh_pairs_grad_of_keys, call.heads * len(k), q, queries, *given, d_k)
    return d_q, d_k
