"""Attention on the CPU: a work item packs each block of keys once, and runs all its blocks of queries over it.

Weights are exp(score - largest score of the query so far).  If a later block has a larger score, the sums of earlier
blocks are scaled down.
"""

from typing import Any, NamedTuple

import numpy as np

from varlen_rnn.attention.additive import Scored, score
from varlen_rnn.attention.blocks import (
    CHUNK,
    KEYS,
    QUERIES,
    Block,
    Window,
    add_product,
    in_panels,
    offsets_of_rows,
    operands_of,
    pack_block,
    product_of_block,
    sees_nothing,
    task_of,
)
from varlen_rnn.attention.softmax import Running, weigh
from varlen_rnn.products.sync import arrive
from varlen_rnn.products.tile import Rows
from varlen_rnn.products.vectors import least, offset, pointer, vectorise_widely
from varlen_rnn.runtime.jit import cpu_inlined, engine_kernel


class Code(NamedTuple):
    """The addresses of compiled functions that the loop calls."""

    multiply: int
    pack: int
    weigh: int
    score: int  # the function of additive scores; 0 for dot products, which `multiply` computes


class Forward(NamedTuple):
    """The arrays of a call: operands and outputs (rows, heads * depth), and `sums` (2 * heads, queries).

    Row `head` of `sums` holds each query's largest score; row `heads + head` holds 1 / (sum of the query's weights).
    """

    q: Any
    k: Any
    v: Any
    out: Any
    sums: Any
    weight: Any  # the weights of features in additive scores; empty for dot products
    scale: Any
    left: int
    right: int


class _Memory(NamedTuple):
    """Memory of one thread; the fields that end with `_rows` are lists of the offsets of rows."""

    keys: Any
    values: Any
    scores: Any
    sums: Any  # weighted sums of values
    totals: Any  # sums of weights
    maxima: Any  # largest scores
    q_rows: Any
    score_rows: Any
    sum_rows: Any
    no_rows: Any


def scratch_of(depth, depth_v, width):
    """Return how many elements of the data type, and how many int64 offsets, a thread needs."""
    padded = -(-depth_v // width) * width
    return KEYS * (depth + 1) + padded * (KEYS + 1) + QUERIES * KEYS + CHUNK * (padded + 2), 4 * KEYS


@cpu_inlined
def _memory(numbers, offsets, of):
    padded = in_panels(numbers, of.depth_v)
    values = offset(numbers, KEYS * (of.depth + 1))
    scores = offset(values, padded * (KEYS + 1))
    sums = offset(scores, QUERIES * KEYS)
    totals = offset(sums, CHUNK * padded)
    offsets_of_rows(offsets, of.q_stride)
    offsets_of_rows(offset(offsets, KEYS), KEYS)
    offsets_of_rows(offset(offsets, 2 * KEYS), padded)
    offsets_of_rows(offset(offsets, 3 * KEYS), 0)
    return _Memory(
        numbers, values, scores, sums, totals, offset(totals, CHUNK), offsets, offset(offsets, KEYS),
        offset(offsets, 2 * KEYS), offset(offsets, 3 * KEYS),
    )  # fmt: skip


@cpu_inlined
def _begin(memory, rows, padded, like):
    kind = type(like)
    for r in range(rows):
        memory.totals[r], memory.maxima[r] = kind(0), -kind(np.inf)
    for j in range(rows * padded):
        memory.sums[j] = kind(0)


@cpu_inlined
def _finish(memory, it, task, of, padded):
    """Write a task's outputs, largest scores, and 1 / (sums of weights); all are 0 for a query that sees no key."""
    kind = type(it.scale)
    for r in range(task.end - task.first):
        row, total = task.first + r, memory.totals[r]
        out, sums = pointer(it.out, row * it.out.shape[1] + task.head * of.depth_v), offset(memory.sums, r * padded)
        part = kind(0) if total == kind(0) else kind(1) / total
        for j in range(of.depth_v):
            out[j] = sums[j] * part
        heads, queries = it.sums.shape[0] // 2, it.sums.shape[1]
        at = pointer(it.sums, task.head * queries + row)
        at[0], at[heads * queries] = kind(0) if total == kind(0) else memory.maxima[r], part


@cpu_inlined
def _attend(code, memory, it, task, of, counters):
    """Run a task: write the outputs and `sums` of its queries."""
    rows, padded, window = task.end - task.first, in_panels(memory.keys, of.depth_v), Window(it.left, it.right)
    _begin(memory, rows, padded, it.scale)
    query = task.first - task.origin
    for key in range(0, task.end_key - task.first_key, KEYS):
        num_keys = least(KEYS, task.end_key - task.first_key - key)
        if sees_nothing(window, query, rows, key, num_keys):
            continue
        k = offset(of.k, (task.first_key + key) * of.k_stride)
        v = offset(of.v, (task.first_key + key) * of.v_stride)
        pack_block(code, k, num_keys, of.depth, of.k_stride, True, memory.keys, counters)
        pack_block(code, v, num_keys, of.depth_v, of.v_stride, False, memory.values, counters)
        for first in range(0, rows, QUERIES):
            block = Block(query + first, least(QUERIES, rows - first), key, num_keys)
            if sees_nothing(window, block.query, block.num_queries, key, num_keys):
                continue
            q = Rows(offset(of.q, (task.first + first) * of.q_stride), memory.q_rows)
            scores = Rows(memory.scores, memory.score_rows)
            if code.score:
                weight = pointer(it.weight, 0)
                scored = Scored(q.at, of.q_stride, memory.keys, weight, of.depth, block, window)
                score(code.score, (scored, memory.scores))
            else:
                product_of_block(code, block.num_queries, q, memory.keys, of.depth, num_keys, scores, memory.no_rows)
            sums = Rows(offset(memory.sums, first * padded), memory.sum_rows)
            running = Running(offset(memory.maxima, first), offset(memory.totals, first), sums.at, padded)
            weigh(code.weigh, (scores.at, block, window, running, it.scale))
            add_product(code, block.num_queries, scores, memory.values, num_keys, of.depth_v, sums, memory.no_rows)
    _finish(memory, it, task, of, padded)


@engine_kernel
def forward(shard, num_shards, code, counters, tasks, numbers, offsets, it):
    """Run the tasks that a thread takes: write the outputs and `sums` of each task's queries."""
    vectorise_widely()
    code, it = Code(*code), Forward(*it)
    counter, heads = pointer(counters, 0), it.sums.shape[0] // 2
    while True:
        number = arrive(counter)
        if number >= tasks.shape[0]:
            return
        task = task_of(tasks, number)
        if task.head < 0:
            return
        of = operands_of(it.q, it.k, it.v, heads, task.head)
        memory = _memory(pointer(numbers, shard * numbers.shape[1]), pointer(offsets, shard * offsets.shape[1]), of)
        _attend(code, memory, it, task, of, counter)
