"""The weights of attention: the weight of every query for every key of its sequence, for a look at them.

`scaled_dot_product_attention` never has them in memory.  Here each weight is a row.  A sequence of 2 queries and 3 keys
has 6 rows, and a new last level of the LoD divides them into 3 rows for each query.
"""

import numpy as np

from varlen_rnn.attention import UNLIMITED, Call, weights_cuda
from varlen_rnn.errors import LoDError, ShapeError
from varlen_rnn.ops.attention import check_window
from varlen_rnn.ops.cost import known
from varlen_rnn.ops.examples import TROUBLES, rows
from varlen_rnn.ops.sequence.movement import flat
from varlen_rnn.products import gemm
from varlen_rnn.rows.lod import LoD, LoDTensor, levels_of
from varlen_rnn.runtime.device import as_operand, on_device
from varlen_rnn.tape.checks import check_float, check_lod_level, check_rank, check_shape
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import TensorSpec

_NAME = "attention_weights"


def _cost(inputs, outputs, **attrs):
    """2 operations per element of a query; counts one key, because specs hold no lengths."""
    query = inputs[0]
    return 2 * known(query.shape[0]) * known(query.shape[1]) * known(query.shape[2])


@operator(cost=_cost, rows="batch")
def attention_weights(query, key, left: int | None = None, right: int | None = None):
    """Return the softmax of the scores of each query and the keys of its sequence, one row per pair; 0 out of sight."""
    of_pairs, parts = _parts(query, key)
    scale = query.dtype.type(query.shape[2] ** -0.5)
    if on_device(query.data):
        left, right = (UNLIMITED if rows is None else rows for rows in (left, right))
        of_queries, of_keys = _offsets(query, key)
        call = Call(of_queries, of_keys, query.shape[1], scale, left, right)
        out = weights_cuda.forward(flat(query.data), flat(key.data), of_pairs, call)
        return LoDTensor.wrap(out, LoD([*query.structure.levels, of_pairs]))
    out = np.empty((int(of_pairs[-1]), query.shape[1]), query.dtype)
    for queries, keys, pairs in parts:
        seen = _seen(queries, keys, left, right)
        for head in range(query.shape[1]):
            scores = _product(query.data[queries, head], key.data[keys, head], transposed=True) * scale
            out[pairs, head] = _softmax(scores, seen).ravel()
    return LoDTensor.wrap(out, LoD([*query.structure.levels, of_pairs]))


def _offsets(query, key):
    """Return the offsets of queries and of keys; without a LoD, each query is a sequence."""
    of_queries = levels_of(query.structure)[-1] if query.num_levels else np.arange(len(query.data) + 1)
    return of_queries, levels_of(key.structure)[-1]


def _parts(query, key):
    """Return the offsets of the keys of each query among the pairs, and slices of queries, keys and pairs.

    There is a triple of slices for each sequence that has queries and keys.
    """
    of_queries, of_keys = _offsets(query, key)
    if len(of_queries) != len(of_keys):
        expected = f"{len(of_queries) - 1} sequences, as the queries"
        raise LoDError(f"{_NAME}, key", expected=expected, got=len(of_keys) - 1)
    of_pairs = np.concatenate([[0], np.cumsum(np.repeat(np.diff(of_keys), np.diff(of_queries)))]).astype(np.int64)
    bounds = (of_queries.tolist(), of_keys.tolist(), of_pairs[of_queries].tolist())
    triples = zip(*(map(slice, offsets[:-1], offsets[1:]) for offsets in bounds), strict=True)
    return of_pairs, [triple for triple in triples if triple[2].start < triple[2].stop]


def _seen(queries, keys, left, right):
    """Return which keys each query of a sequence sees."""
    ahead = np.arange(keys.stop - keys.start) - np.arange(queries.stop - queries.start)[:, None]
    seen = np.ones(ahead.shape, bool) if left is None else ahead >= -left
    return seen if right is None else seen & (ahead <= right)


def _product(a, b, transposed=False):
    """Return a product whose rows do not depend on their number."""
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    out = np.empty((len(a), b.shape[0 if transposed else 1]), a.dtype)
    gemm.product(a, b, out, transposed=transposed)
    return out


@np.errstate(invalid="ignore")  # of infinities and of NaN, whose weights are NaN
def _softmax(scores, seen):
    """Return the softmax of the scores that are seen, and 0 for the others."""
    highest = np.max(scores, axis=1, keepdims=True, initial=-np.inf, where=seen)
    powers = np.exp(scores - np.where(np.isfinite(highest), highest, 0))
    powers[~seen] = 0
    total = np.add.reduce(powers, 1, keepdims=True)
    return np.divide(powers, total, out=powers, where=total != 0)


@attention_weights.infer
def _infer(query, key, left, right):
    check_float(_NAME, query=query, key=key)
    check_lod_level(_NAME, "key", key)
    check_rank(_NAME, "query", query, 3)
    check_shape(_NAME, "key", key, (-1, *query.shape[1:]))
    if 0 in query.shape[1:]:
        raise ShapeError(f"{_NAME}, query", expected="at least one head and one number each", got=query.shape)
    check_window(_NAME, left, right)
    return TensorSpec((-1, query.shape[1]), query.dtype, query.lod_level + 1)


def _cost_of_grad(inputs, outputs, **attrs):
    """2 times the cost of the operator."""
    return 2 * _cost(inputs, outputs)


@attention_weights.backward("query", "key", cost=_cost_of_grad)
def _backward(query, key, out, d_out, left, right):
    of_pairs, parts = _parts(query, key)
    if len(out.data) != of_pairs[-1] or d_out.shape != out.shape:
        raise ShapeError(f"{_NAME}_grad, out", expected=f"the operator's, {of_pairs[-1]} pairs", got=out.shape)
    weights, d_weights = as_operand(flat(out.data)), as_operand(flat(d_out.data))
    scale = query.dtype.type(query.shape[2] ** -0.5)
    if on_device(weights):
        of_queries, of_keys = _offsets(query, key)
        call = Call(of_queries, of_keys, query.shape[1], scale)
        found = weights_cuda.backward(flat(query.data), flat(key.data), weights, d_weights, of_pairs, call)
        return tuple(x.like(d.reshape(x.shape)) for x, d in zip((query, key), found, strict=True))
    d_query, d_key = np.zeros(query.shape, query.dtype), np.zeros(key.shape, key.dtype)
    for queries, keys, pairs in parts:
        shape = queries.stop - queries.start, keys.stop - keys.start
        for head in range(query.shape[1]):
            weight, d = weights[pairs, head].reshape(shape), d_weights[pairs, head].reshape(shape)
            d_scores = weight * (d - np.add.reduce(weight * d, 1, keepdims=True)) * scale
            d_query[queries, head] = _product(d_scores, key.data[keys, head])
            d_key[keys, head] = _product(d_scores.T, query.data[queries, head])
    return query.like(d_query), key.like(d_key)


@attention_weights.examples
def _examples(rng):
    keys = LoD.from_lengths([[0, 3, 2, 4]])
    key = LoDTensor(rng.standard_normal((9, 2, 3)), keys)
    for left, right in ((None, None), (None, 0), (1, 1), (-2, None)):
        yield [rows(rng, 2, 3), key], {"left": left, "right": right}
    yield [rng.standard_normal((4, 2, 3)), key], {"left": None, "right": None}
    for lod in TROUBLES:
        yield [rows(rng, 2, 3, lod=lod)] * 2, {"left": None, "right": None}
