"""Attention of the rows of query sequences to the rows of key sequences: fused operators, and the weights alone.

The fused operators never hold all weights in memory.  To show them, the operator `attention_weights` returns one row
per pair of a query and a key: a sequence of 2 queries and 3 keys has 6 rows, and a new last level of the LoD divides
them into 3 rows for each query.
"""

import math

import numpy as np

from varlen_rnn import attention
from varlen_rnn.attention import UNLIMITED, Call, weights_cuda
from varlen_rnn.errors import LoDError, OutOfRangeError, ShapeError
from varlen_rnn.kernels.arithmetic import exp
from varlen_rnn.ops.cost import known
from varlen_rnn.ops.examples import TROUBLES, rows
from varlen_rnn.ops.indices import evenly
from varlen_rnn.ops.sequence.movement import flat
from varlen_rnn.products import gemm
from varlen_rnn.rows.checks import ends_of
from varlen_rnn.rows.lod import LoD, LoDTensor, levels_of, same_offsets
from varlen_rnn.runtime.device import as_operand, on_device
from varlen_rnn.tape.checks import check_float, check_lod_level, check_rank, check_shape
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import TensorSpec

_NAME = "scaled_dot_product_attention"


def _cost_of_attention(inputs, outputs, **attrs):
    """2 (key depth + value depth) operations per query and head; counts one key, because specs hold no lengths."""
    query, _, value = inputs
    heads = query.shape[1] if len(query.shape) == 3 else 1
    return 2 * known(query.shape[0]) * known(heads) * (known(query.shape[-1]) + known(value.shape[-1]))


def _cost_of_attention_grad(inputs, outputs, **attrs):
    """5 / 2 times the cost of the operator: the gradient has 5 products of blocks, the operator has 2."""
    return 5 * _cost_of_attention(inputs[:3], outputs) // 2


def _rows(specs, axes, **constants):
    """Return "sequence" if the queries have a LoD, and "batch" if there is one query per sequence instead.

    Return None if a weight, an operand behind queries, keys and values, has rows.
    """
    if set(axes[:3]) != {0} or not {None}.issuperset(axes[3:]):
        return None
    return "sequence" if specs[0].lod_level else "batch"


@operator(
    name=_NAME, outputs=("out", "sums"), intermediate=("sums",), cost=_cost_of_attention, rows=_rows, multiplies=True
)
def attend(query, key, value, scale: float | None = None, left: int | None = None, right: int | None = None):
    """Return, for each query, its sequence's values averaged by the softmax of the query's products with the keys."""
    q, k, v, offsets = _operands(query, key, value, _NAME)
    out, sums = attention.forward(q, k, v, _call(query, offsets, scale, left, right))
    return LoDTensor.wrap(out.reshape(*query.shape[:-1], value.shape[-1]), query.structure), LoDTensor.wrap(sums)


def _operands(query, key, value, op):
    """Return the rows of queries, keys and values, and the offsets of queries and keys.

    If the queries have no LoD, there must be one query for each sequence of keys.
    """
    offsets, of_keys = _offsets(query, key)
    if len(offsets) != len(of_keys):
        expected = f"{len(offsets) - 1} sequences, as many as query has"
        hint = "pass sequences into a step of DynamicRNN as a state, which the step returns unchanged"
        raise LoDError(f"{op}, key", expected=expected, got=len(of_keys) - 1, hint=hint)
    if value.num_levels and not same_offsets(levels_of(value.structure)[-1], of_keys):
        raise LoDError(f"{op}, value", expected="sequences of the same lengths as in key", got="other lengths")
    if len(value.data) != len(key.data):
        expected = f"{len(key.data)} rows, as many as key has"
        raise ShapeError(f"{op}, value", expected=expected, got=f"shape {value.shape}")
    return flat(query.data), flat(key.data), flat(value.data), (offsets, of_keys)


def _offsets(query, key):
    """Return the offsets of queries and of keys; without a LoD, each query is a sequence."""
    of_keys = levels_of(key.structure)[-1]
    of_queries = levels_of(query.structure)[-1] if query.num_levels else evenly(len(query.data) + 1, of_keys)
    return of_queries, of_keys


def _call(query, offsets, scale, left, right, weight=None):
    heads, depth = query.shape[1] if query.data.ndim == 3 else 1, query.shape[-1]
    scale = depth**-0.5 if scale is None else scale
    of_queries, of_keys = offsets
    left, right = (UNLIMITED if rows is None else rows for rows in (left, right))
    return attention.Call(of_queries, of_keys, heads, scale, left, right, weight)


@attend.infer
def _infer_attention(query, key, value, scale, left, right):
    check_float(_NAME, query=query, key=key, value=value)
    check_lod_level(_NAME, "key", key)
    ranks = [len(spec.shape) for spec in (query, key, value)]
    if ranks not in ([2] * 3, [3] * 3):
        shapes = [query.shape, key.shape, value.shape]
        expected = "query, key and value of shape (rows, depth), or all of shape (rows, heads, depth)"
        raise ShapeError(_NAME, expected=expected, got=shapes)
    fits = ("key", key.shape[1:], query.shape[1:]), ("value", value.shape[1:-1], query.shape[1:-1])
    for name, given, wanted in fits:
        if any(-1 not in pair and pair[0] != pair[1] for pair in zip(given, wanted, strict=True)):
            expected = f"rows of shape {tuple(wanted)}, as query has"
            raise ShapeError(f"{_NAME}, {name}", expected=expected, got=tuple(given))
    if 0 in (*query.shape[1:], *value.shape[1:]):
        expected = "at least one head, and one number per head, in query and value"
        raise ShapeError(_NAME, expected=expected, got=[query.shape, value.shape])
    check_window(_NAME, left, right)
    if scale is not None and not math.isfinite(scale):
        raise OutOfRangeError(f"{_NAME}, scale", expected="a finite number", got=scale)
    heads = query.shape[1] if ranks[0] == 3 else 1
    of_sums = TensorSpec((2, heads, query.shape[0]), query.dtype)
    return TensorSpec((*query.shape[:-1], value.shape[-1]), query.dtype, query.lod_level), of_sums


def check_window(op, left, right):
    """Raise unless the limits of a window are rows, or None."""
    for name, limit in (("left", left), ("right", right)):
        if limit is not None and not -UNLIMITED <= limit <= UNLIMITED:
            raise OutOfRangeError(f"{op}, {name}", expected=f"{-UNLIMITED} to {UNLIMITED} rows", got=limit)


@attend.backward("query", "key", "value", cost=_cost_of_attention_grad)
def _attention_backward(query, key, value, out, sums, d_out, scale, left, right):
    q, k, v, offsets = _operands(query, key, value, _NAME)
    call = _call(query, offsets, scale, left, right)
    expected = 2, call.heads, len(q)
    if sums.shape != expected or out.shape != d_out.shape:
        raise ShapeError(f"{_NAME}_grad, sums", expected=f"{_NAME}'s sums, of shape {expected}", got=sums.shape)
    given = flat(out.data), as_operand(sums.data), flat(d_out.data)
    found = attention.backward(q, k, v, *given, call)
    return tuple(x.like(d.reshape(x.shape)) for x, d in zip((query, key, value), found, strict=True))


@attend.examples
def _attention_examples(rng):
    keys = LoD.from_lengths([[0, 3, 2, 4]])
    key, value = (LoDTensor(rng.standard_normal((9, *element)), keys) for element in ((2, 3), (2, 2)))
    yield [rows(rng, 2, 3), key, value], {"scale": None, "left": None, "right": None}
    yield [rows(rng, 2, 3), key, value], {"scale": 0.5, "left": None, "right": 0}
    yield [rng.standard_normal((4, 2, 3)), key, value], {"scale": None, "left": None, "right": None}
    x = rows(rng, 4)
    yield [x, x, rows(rng, 3)], {"scale": None, "left": 1, "right": 1}


_ADDITIVE = "additive_attention"


def _cost_of_additive(inputs, outputs, **attrs):
    """3 operations per feature and 2 per value column, per query; counts one key, because specs hold no lengths."""
    query, _, value = inputs[:3]
    return known(query.shape[0]) * (3 * known(query.shape[1]) + 2 * known(value.shape[1]))


@operator(
    name=_ADDITIVE, outputs=("out", "sums"), intermediate=("sums",), cost=_cost_of_additive, multiplies=True,
    rows=_rows,
)  # fmt: skip
def attend_additively(query, key, value, weight, left: int | None = None, right: int | None = None):
    """Return, for each query, its sequence's values averaged by the softmax of `weight . tanh(query + key)`."""
    q, k, v, offsets = _operands(query, key, value, _ADDITIVE)
    out, sums = attention.forward(q, k, v, _call(query, offsets, 1.0, left, right, as_operand(weight.data)))
    return LoDTensor.wrap(out, query.structure), LoDTensor.wrap(sums)


@attend_additively.infer
def _infer_additive(query, key, value, weight, left, right):
    check_float(_ADDITIVE, query=query, key=key, value=value, weight=weight)
    check_lod_level(_ADDITIVE, "key", key)
    for name, given in (("query", query), ("key", key), ("value", value)):
        check_rank(_ADDITIVE, name, given, 2)
    check_rank(_ADDITIVE, "weight", weight, 1)
    for name, size in (("key", key.shape[1]), ("weight", weight.shape[0])):
        if -1 not in (size, query.shape[1]) and size != query.shape[1]:
            raise ShapeError(f"{_ADDITIVE}, {name}", expected=f"{query.shape[1]} features, as query has", got=size)
    if 0 in (query.shape[1], value.shape[1]):
        expected = "at least one feature in query, and one in value"
        raise ShapeError(_ADDITIVE, expected=expected, got=[query.shape, value.shape])
    check_window(_ADDITIVE, left, right)
    of_sums = TensorSpec((2, 1, query.shape[0]), query.dtype)
    return TensorSpec((query.shape[0], value.shape[1]), query.dtype, query.lod_level), of_sums


@attend_additively.backward("query", "key", "value", "weight", cost=lambda *given, **_: 3 * _cost_of_additive(*given))
def _backward_additive(query, key, value, weight, out, sums, d_out, left, right):
    q, k, v, offsets = _operands(query, key, value, _ADDITIVE)
    if sums.shape != (2, 1, len(q)) or out.shape != d_out.shape:
        expected = f"{_ADDITIVE}'s sums, of shape {(2, 1, len(q))}"
        raise ShapeError(f"{_ADDITIVE}_grad, sums", expected=expected, got=sums.shape)
    given = flat(out.data), as_operand(sums.data), flat(d_out.data)
    call = _call(query, offsets, 1.0, left, right, as_operand(weight.data))
    found = attention.backward(q, k, v, *given, call)
    return tuple(x.like(d) for x, d in zip((query, key, value, weight), found, strict=True))


@attend_additively.examples
def _examples_of_additive(rng):
    keys = LoD.from_lengths([[0, 3, 2, 4]])
    key, value = (LoDTensor(rng.standard_normal((9, width)), keys) for width in (3, 2))
    yield [rows(rng, 3), key, value, rng.standard_normal(3)], {"left": None, "right": None}
    yield [rng.standard_normal((4, 3)), key, value, rng.standard_normal(3)], {"left": None, "right": None}
    x = rows(rng, 4)
    yield [x, x, rows(rng, 3), rng.standard_normal(4)], {"left": 1, "right": 0}


_WEIGHTS = "attention_weights"


def _cost_of_weights(inputs, outputs, **attrs):
    """2 operations per element of a query; counts one key, because specs hold no lengths."""
    query = inputs[0]
    return 2 * known(query.shape[0]) * known(query.shape[1]) * known(query.shape[2])


@operator(cost=_cost_of_weights, rows="batch", multiplies=True)
def attention_weights(query, key, left: int | None = None, right: int | None = None):
    """Return the softmax of each query's scores with the keys of its sequence, one row per pair of query and key.

    A query gives the weight 0 to keys outside of its window, which `left` and `right` describe.
    """
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


def _parts(query, key):
    """Return the offsets of the pairs of each query, and a list of (queries, keys, pairs), which are slices of rows.

    The list has an entry for each sequence that has queries and keys.
    """
    of_queries, of_keys = _offsets(query, key)
    if len(of_queries) != len(of_keys):
        expected = f"{len(of_queries) - 1} sequences, as many as query has"
        raise LoDError(f"{_WEIGHTS}, key", expected=expected, got=len(of_keys) - 1)
    of_pairs = ends_of(np.repeat(np.diff(of_keys), np.diff(of_queries)))
    bounds = (of_queries.tolist(), of_keys.tolist(), of_pairs[of_queries].tolist())
    triples = zip(*(map(slice, offsets[:-1], offsets[1:]) for offsets in bounds), strict=True)
    return of_pairs, [triple for triple in triples if triple[2].start < triple[2].stop]


def _seen(queries, keys, left, right):
    """Return a matrix of bools, (queries, keys) of a sequence: whether the key is in the query's window."""
    ahead = np.arange(keys.stop - keys.start) - np.arange(queries.stop - queries.start)[:, None]
    seen = np.ones(ahead.shape, bool) if left is None else ahead >= -left
    return seen if right is None else seen & (ahead <= right)


def _product(a, b, transposed=False):
    """Return `a @ b`, or `a @ b.T` if `transposed`; the bits of a row do not depend on the number of rows."""
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    out = np.empty((len(a), b.shape[0 if transposed else 1]), a.dtype)
    gemm.product(a, b, out, transposed=transposed)
    return out


@np.errstate(invalid="ignore")  # scores of infinity or NaN give weights of NaN without a warning
def _softmax(scores, seen):
    """Return the softmax, row by row, of the scores where `seen` is true, and 0 elsewhere."""
    highest = np.max(scores, axis=1, keepdims=True, initial=-np.inf, where=seen)
    powers = exp(scores - np.where(np.isfinite(highest), highest, 0))
    powers[~seen] = 0
    total = np.add.reduce(powers, 1, keepdims=True)
    return np.divide(powers, total, out=powers, where=total != 0)


@attention_weights.infer
def _infer_weights(query, key, left, right):
    check_float(_WEIGHTS, query=query, key=key)
    check_lod_level(_WEIGHTS, "key", key)
    check_rank(_WEIGHTS, "query", query, 3)
    check_shape(_WEIGHTS, "key", key, (-1, *query.shape[1:]))
    if 0 in query.shape[1:]:
        raise ShapeError(f"{_WEIGHTS}, query", expected="at least one head, and one number per head", got=query.shape)
    check_window(_WEIGHTS, left, right)
    return TensorSpec((-1, query.shape[1]), query.dtype, query.lod_level + 1)


@attention_weights.backward("query", "key", cost=lambda *given, **_: 2 * _cost_of_weights(*given))
def _weights_backward(query, key, out, d_out, left, right):
    of_pairs, parts = _parts(query, key)
    if len(out.data) != of_pairs[-1] or d_out.shape != out.shape:
        expected = f"{_WEIGHTS}' output, with {of_pairs[-1]} pairs"
        raise ShapeError(f"{_WEIGHTS}_grad, out", expected=expected, got=out.shape)
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
def _weights_examples(rng):
    keys = LoD.from_lengths([[0, 3, 2, 4]])
    key = LoDTensor(rng.standard_normal((9, 2, 3)), keys)
    for left, right in ((None, None), (None, 0), (1, 1), (-2, None)):
        yield [rows(rng, 2, 3), key], {"left": left, "right": right}
    yield [rng.standard_normal((4, 2, 3)), key], {"left": None, "right": None}
    for lod in TROUBLES:
        yield [rows(rng, 2, 3, lod=lod)] * 2, {"left": None, "right": None}
