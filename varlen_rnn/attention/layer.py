"""The front of attention: choose the device, cut the call into tasks, and give threads their memory."""

import numpy as np

from varlen_rnn.attention import backward_loop, cuda, forward_loop
from varlen_rnn.attention.additive import score, score_grad
from varlen_rnn.attention.blocks import CHUNK
from varlen_rnn.attention.softmax import differentiate, weigh
from varlen_rnn.products.gemm import code_of
from varlen_rnn.products.sync import COUNTER
from varlen_rnn.products.vectors import panel_width
from varlen_rnn.runtime.device import empty, on_device
from varlen_rnn.runtime.threads import count_shards, for_each_shard

UNLIMITED = 2**40  # rows, more than any sequence has: a window without a limit
_NONE = {np.dtype(kind): np.empty(0, kind) for kind in (np.float32, np.float64)}  # no weight


def _tasks(q_offsets, k_offsets, heads, chunk):
    """Return the Tasks, (tasks, 6), longest first: each is a head of a sequence, or of `chunk` rows of its queries."""
    lengths, keys = np.diff(q_offsets), np.diff(k_offsets)
    pieces = np.maximum(1, -(-lengths // chunk))  # a sequence without queries has a task for the gradients of its keys
    sequence = np.repeat(np.arange(len(lengths)), pieces)
    number = np.arange(len(sequence)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    first = q_offsets[sequence] + number * chunk
    end = np.minimum(first + chunk, q_offsets[sequence + 1])
    rows = np.stack([first, end, q_offsets[sequence], k_offsets[sequence], k_offsets[sequence + 1]], axis=1)
    order = np.argsort(-(end - first) * keys[sequence], kind="stable")
    tasks = np.empty((len(rows) * heads, 6), np.int64)
    tasks[:, 0] = np.tile(np.arange(heads), len(rows))
    tasks[:, 1:] = np.repeat(rows[order], heads, axis=0)
    return tasks


def _run(kernel, loop, code, tasks, depths, work, like, it):
    width = panel_width(like.dtype)
    shards = count_shards(work, len(tasks))
    numbers = empty((shards, loop.memory_of(*depths, width)), like)
    offsets, counters = np.empty((shards, loop.offsets_of()), np.int64), np.zeros(COUNTER, np.int64)
    for_each_shard(kernel, code, counters, tasks, numbers, offsets, it, num_shards=shards)


def _work(q_offsets, k_offsets, q, v):
    return int((np.diff(q_offsets) * np.diff(k_offsets)).sum()) * (q.shape[1] + v.shape[1])


def forward(q, k, v, q_offsets, k_offsets, heads, scale, left=UNLIMITED, right=UNLIMITED, weight=None):
    """Return the outputs of attention, and the numbers that its gradient needs.

    Parameters
    ----------
    q : (queries, heads * depth) C-contiguous, float32 or float64
    k : (keys, heads * depth)
    v : (keys, heads * depth of values)
    q_offsets, k_offsets : (sequences + 1,) int64, in rows
    heads : int
    scale : float
        The factor of the scores.
    left, right : int
        Query i of a sequence sees the keys i - left to i + right of the same sequence.
    weight : (depth,), optional
        For additive scores, which have one head: `weight . tanh(query + key)` instead of a dot product.

    Returns
    -------
    out : (queries, heads * depth of values); 0 for a query that sees no key
    sums : (2, heads, queries); the largest score of a query, and 1 over the sum of its weights relative to that, both 0
        if it sees no key.  One number, their logarithm, would round away the sum if scores are large.
    """
    if on_device(q):
        return cuda.forward(q, k, v, q_offsets, k_offsets, heads, scale, left, right, weight)
    out, sums = empty((len(q), v.shape[1]), q), empty((2 * heads, len(q)), q)
    tasks, depths = _tasks(q_offsets, k_offsets, heads, CHUNK), (q.shape[1] // heads, v.shape[1] // heads)
    of_weight = _NONE[q.dtype] if weight is None else weight
    it = q, k, v, out, sums, of_weight, q.dtype.type(scale), left, right
    if len(tasks):
        code = *code_of(q.dtype), weigh.address(q.dtype), 0 if weight is None else score.address(q.dtype)
        _run(forward_loop.forward, forward_loop, code, tasks, depths, _work(q_offsets, k_offsets, q, v), q, it)
    return out, sums.reshape(2, heads, len(q))


def backward(
    q, k, v, out, sums, d_out, q_offsets, k_offsets, heads, scale, left=UNLIMITED, right=UNLIMITED, weight=None
):
    """Return the gradients of queries, keys and values, and of the weight of additive scores, if there is one.

    Parameters
    ----------
    out, sums
        The results of `forward`.
    d_out : as `out`, C-contiguous
    """
    if on_device(q):
        return cuda.backward(q, k, v, out, sums, d_out, q_offsets, k_offsets, heads, scale, left, right, weight)
    d_q, d_k, d_v = empty(q.shape, q), empty(k.shape, k), empty(v.shape, v)
    dots = np.ascontiguousarray((out * d_out).reshape(len(q), heads, v.shape[1] // heads).sum(axis=2).T)
    tasks, depths = _tasks(q_offsets, k_offsets, heads, UNLIMITED), (q.shape[1] // heads, v.shape[1] // heads)
    of_weight = _NONE[q.dtype] if weight is None else weight
    d_weight = np.empty((len(tasks), len(of_weight)), q.dtype)
    sums = sums.reshape(2 * heads, len(q))
    it = q, k, v, d_out, sums, dots, d_q, d_k, d_v, of_weight, d_weight, q.dtype.type(scale), left, right
    if len(tasks):
        scores = (0, 0) if weight is None else (score.address(q.dtype), score_grad.address(q.dtype))
        code = *code_of(q.dtype), differentiate.address(q.dtype), *scores
        _run(backward_loop.backward, backward_loop, code, tasks, depths, 3 * _work(q_offsets, k_offsets, q, v), q, it)
    if weight is None:
        return d_q, d_k, d_v
    return d_q, d_k, d_v, d_weight.sum(axis=0, dtype=np.float64).astype(q.dtype)
