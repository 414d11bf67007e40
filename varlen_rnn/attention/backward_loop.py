"""The gradient of attention on the CPU: compute scores again, for a block of queries and a block of keys at a time.

A work item is one head of one sequence.  Each block of keys is packed once.  Then each block of queries adds its terms
to the gradients of these keys, and the keys add their terms to the gradients of the queries.
"""

from typing import Any, NamedTuple

from varlen_rnn.attention.additive import Gradients, Scored, score, score_grad
from varlen_rnn.attention.blocks import (
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
from varlen_rnn.attention.softmax import Sums, differentiate
from varlen_rnn.products.sync import arrive
from varlen_rnn.products.tile import Rows
from varlen_rnn.products.vectors import lanes_of, least, offset, pointer, transpose_block, vectorise_widely
from varlen_rnn.runtime.jit import cpu_inlined, engine_kernel


class Code(NamedTuple):
    """The addresses of compiled functions that the loop calls."""

    multiply: int
    pack: int
    differentiate: int
    score: int  # the function of additive scores; 0 for dot products, which `multiply` computes
    score_grad: int


class Backward(NamedTuple):
    """The arrays of a call, with shapes as in `Forward`."""

    q: Any
    k: Any
    v: Any
    d_out: Any
    sums: Any
    dots: Any  # (heads, queries), the dot product of each query's output and the gradient of this output
    d_q: Any
    d_k: Any
    d_v: Any
    weight: Any
    d_weight: Any  # a row for each task
    scale: Any
    left: int
    right: int


class _Memory(NamedTuple):
    """Memory of one thread: packed operands; weights and gradients of scores, both also transposed; and sums."""

    keys: Any
    values: Any
    key_rows: Any
    d_out_rows: Any
    packed_queries: Any  # scratch of `additive.score_grad`
    weights: Any
    d_scores: Any
    weights_of_keys: Any
    d_scores_of_keys: Any
    d_q: Any
    d_k: Any
    d_v: Any
    offsets: Any


class _Offsets(NamedTuple):
    """Lists of the offsets of rows: queries, gradients of outputs, scores, transposed scores, and sums of gradients."""

    q: Any
    d_out: Any
    scores: Any
    of_keys: Any
    sums: Any
    sums_v: Any
    none: Any


def scratch_of(depth, depth_v, width):
    """Return how many elements of the data type, and how many int64 offsets, a thread needs."""
    padded, padded_v = (-(-size // width) * width for size in (depth, depth_v))
    panels = KEYS * (depth + depth_v + 2) + padded * (KEYS + 1) + (padded + padded_v) * (QUERIES + 1)
    return panels + 4 * QUERIES * KEYS + QUERIES * padded + KEYS * (padded + padded_v), 7 * KEYS


@cpu_inlined
def _offsets(offsets, of, d_out_stride, padded, padded_v):
    steps = of.q_stride, d_out_stride, KEYS, QUERIES, padded, padded_v, 0
    for number in range(7):
        offsets_of_rows(offset(offsets, number * KEYS), steps[number])
    return _Offsets(
        offsets, offset(offsets, KEYS), offset(offsets, 2 * KEYS), offset(offsets, 3 * KEYS), offset(offsets, 4 * KEYS),
        offset(offsets, 5 * KEYS), offset(offsets, 6 * KEYS),
    )  # fmt: skip


@cpu_inlined
def _memory(numbers, offsets, of, d_out_stride):
    padded, padded_v, block = in_panels(numbers, of.depth), in_panels(numbers, of.depth_v), QUERIES * KEYS
    values = offset(numbers, KEYS * (of.depth + 1))
    key_rows = offset(values, KEYS * (of.depth_v + 1))
    d_out_rows = offset(key_rows, padded * (KEYS + 1))
    packed_queries = offset(d_out_rows, padded_v * (QUERIES + 1))
    weights = offset(packed_queries, padded * (QUERIES + 1))
    d_q = offset(weights, 4 * block)
    d_k = offset(d_q, QUERIES * padded)
    return _Memory(
        numbers, values, key_rows, d_out_rows, packed_queries, weights, offset(weights, block),
        offset(weights, 2 * block), offset(weights, 3 * block), d_q, d_k, offset(d_k, KEYS * padded),
        _offsets(offsets, of, d_out_stride, padded, padded_v),
    )  # fmt: skip


@cpu_inlined
def _clear(at, count, like):
    for j in range(count):
        at[j] = type(like)(0)


@cpu_inlined
def _transpose(source, target, num_queries, num_keys):
    """Transpose a block of scores: `source` has a row for each query, `target` gets a row for each key."""
    lanes = lanes_of(source)
    for i in range(0, num_queries, lanes):
        for j in range(0, num_keys, lanes):
            transpose_block(offset(source, i * KEYS + j), KEYS, offset(target, j * QUERIES + i), QUERIES)


@cpu_inlined
def _write_rows(array, first, column, depth, rows, sums, padded):
    for r in range(rows):
        at, total = pointer(array, (first + r) * array.shape[1] + column), offset(sums, r * padded)
        for j in range(depth):
            at[j] = total[j]


@cpu_inlined
def _add_rows(array, first, column, depth, rows, sums, padded):
    for r in range(rows):
        at, total = pointer(array, (first + r) * array.shape[1] + column), offset(sums, r * padded)
        for j in range(depth):
            at[j] += total[j]


@cpu_inlined
def _differentiate_block(code, memory, it, task, of, block, d_weight, counters):
    """Add a block's terms to the gradients of its queries, and to the gradients of keys and values in `memory`."""
    offsets, window, row = memory.offsets, Window(it.left, it.right), task.origin + block.query
    padded, column = in_panels(memory.keys, of.depth), task.head * of.depth
    none, count, stride = offsets.none, block.num_queries, it.d_out.shape[1]
    q = Rows(offset(of.q, row * of.q_stride), offsets.q)
    d_out = Rows(pointer(it.d_out, row * stride + task.head * of.depth_v), offsets.d_out)
    weights, d_scores = Rows(memory.weights, offsets.scores), Rows(memory.d_scores, offsets.scores)
    scored = Scored(q.at, of.q_stride, memory.keys, pointer(it.weight, 0), of.depth, block, window)
    if code.score:
        score(code.score, (scored, memory.weights))
    else:
        product_of_block(code, count, q, memory.keys, of.depth, block.num_keys, weights, none)
    product_of_block(code, count, d_out, memory.values, of.depth_v, block.num_keys, d_scores, none)
    heads, queries = it.dots.shape[0], it.dots.shape[1]
    at = task.head * queries + row
    sums = Sums(pointer(it.sums, at), pointer(it.sums, heads * queries + at), pointer(it.dots, at))
    differentiate(code.differentiate, (weights.at, d_scores.at, block, window, sums, it.scale))
    _clear(memory.d_q, count * padded, it.scale)
    if code.score:
        to = Gradients(memory.d_q, memory.d_k, d_weight, padded)
        score_grad(code.score_grad, (scored, memory.d_scores, to, memory.packed_queries))
    else:
        d_q, d_k = Rows(memory.d_q, offsets.sums), Rows(memory.d_k, offsets.sums)
        add_product(code, count, d_scores, memory.key_rows, block.num_keys, of.depth, d_q, none)
        _transpose(memory.d_scores, memory.d_scores_of_keys, count, block.num_keys)
        pack_block(code, q.at, count, of.depth, of.q_stride, False, memory.packed_queries, counters)
        d_scores = Rows(memory.d_scores_of_keys, offsets.of_keys)
        add_product(code, block.num_keys, d_scores, memory.packed_queries, count, of.depth, d_k, none)
    _add_rows(it.d_q, row, column, of.depth, count, memory.d_q, padded)
    _transpose(memory.weights, memory.weights_of_keys, count, block.num_keys)
    pack_block(code, d_out.at, count, of.depth_v, stride, False, memory.d_out_rows, counters)
    weights, d_v = Rows(memory.weights_of_keys, offsets.of_keys), Rows(memory.d_v, offsets.sums_v)
    add_product(code, block.num_keys, weights, memory.d_out_rows, count, of.depth_v, d_v, none)


@cpu_inlined
def _differentiate(code, memory, it, task, of, number, counters):
    """Run task `number`: write the gradients of its queries, keys and values, and its row of `d_weight`."""
    d_weight = pointer(it.d_weight, number * it.d_weight.shape[1])
    _clear(d_weight, it.d_weight.shape[1], it.scale)
    rows, window = task.end - task.first, Window(it.left, it.right)
    padded, padded_v = in_panels(memory.keys, of.depth), in_panels(memory.keys, of.depth_v)
    for r in range(task.first, task.end):
        _clear(pointer(it.d_q, r * it.d_q.shape[1] + task.head * of.depth), of.depth, it.scale)
    for first_key in range(task.first_key, task.end_key, KEYS):
        key, num_keys = first_key - task.first_key, least(KEYS, task.end_key - first_key)
        k, v = offset(of.k, first_key * of.k_stride), offset(of.v, first_key * of.v_stride)
        pack_block(code, k, num_keys, of.depth, of.k_stride, True, memory.keys, counters)
        pack_block(code, v, num_keys, of.depth_v, of.v_stride, True, memory.values, counters)
        pack_block(code, k, num_keys, of.depth, of.k_stride, False, memory.key_rows, counters)
        _clear(memory.d_k, num_keys * padded, it.scale)
        _clear(memory.d_v, num_keys * padded_v, it.scale)
        for query in range(0, rows, QUERIES):
            block = Block(query, least(QUERIES, rows - query), key, num_keys)
            if not sees_nothing(window, query, block.num_queries, key, num_keys):
                _differentiate_block(code, memory, it, task, of, block, d_weight, counters)
        _write_rows(it.d_k, first_key, task.head * of.depth, of.depth, num_keys, memory.d_k, padded)
        _write_rows(it.d_v, first_key, task.head * of.depth_v, of.depth_v, num_keys, memory.d_v, padded_v)


@engine_kernel
def backward(shard, num_shards, code, counters, tasks, numbers, offsets, it):
    """Run the tasks that this thread takes: write the gradients of a task's queries, keys and values."""
    vectorise_widely()
    code, it = Code(*code), Backward(*it)
    counter, heads = pointer(counters, 0), it.dots.shape[0]
    while True:
        number = arrive(counter)
        if number >= tasks.shape[0]:
            return
        task = task_of(tasks, number)
        of = operands_of(it.q, it.k, it.v, heads, task.head)
        memory = _memory(
            pointer(numbers, shard * numbers.shape[1]),
            pointer(offsets, shard * offsets.shape[1]),
            of,
            it.d_out.shape[1],
        )
        _differentiate(code, memory, it, task, of, number, counter)
