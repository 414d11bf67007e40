"""Attention of the rows of query sequences to the rows of key sequences, as fused operators over LoD."""

import math

import numpy as np

from varlen_rnn import attention
from varlen_rnn.errors import LoDError, OutOfRangeError, ShapeError
from varlen_rnn.ops.cost import known
from varlen_rnn.ops.examples import rows
from varlen_rnn.ops.sequence.movement import flat
from varlen_rnn.rows.lod import LoD, LoDTensor, levels_of
from varlen_rnn.runtime.device import as_operand
from varlen_rnn.tape.checks import check_float, check_lod_level, check_rank
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import TensorSpec

_NAME = "scaled_dot_product_attention"


def _cost(inputs, outputs, **attrs):
    """2 (key depth + value depth) operations per query and head; counts one key, because specs hold no lengths."""
    query, _, value = inputs
    heads = query.shape[1] if len(query.shape) == 3 else 1
    return 2 * known(query.shape[0]) * known(heads) * (known(query.shape[-1]) + known(value.shape[-1]))


def _cost_of_grad(inputs, outputs, **attrs):
    """5 / 2 times the cost of the operator: the gradient has 5 products of blocks, the operator has 2."""
    return 5 * _cost(inputs[:3], outputs) // 2


def _rows(specs, axes, **constants):
    """Return "sequence", or "batch" for one query per sequence without a LoD; None if a weight, the last, has rows."""
    if set(axes[:3]) != {0} or not {None}.issuperset(axes[3:]):
        return None
    return "sequence" if specs[0].lod_level else "batch"


@operator(name=_NAME, outputs=("out", "sums"), intermediate=("sums",), cost=_cost, rows=_rows)
def attend(query, key, value, scale: float | None = None, left: int | None = None, right: int | None = None):
    """Return, for each query, its sequence's values averaged by the softmax of the query's products with the keys."""
    q, k, v, offsets = _operands(query, key, value, _NAME)
    out, sums = attention.forward(q, k, v, _call(query, offsets, scale, left, right))
    return LoDTensor.wrap(out.reshape(*query.shape[:-1], value.shape[-1]), query.structure), LoDTensor.wrap(sums)


def _operands(query, key, value, op):
    """Return the rows of queries, keys and values, and the offsets of queries and keys.

    If the queries have no LoD, there must be one query for each sequence of keys.
    """
    of_keys = levels_of(key.structure)[-1]
    offsets = levels_of(query.structure)[-1] if query.num_levels else np.arange(len(query.data) + 1)
    if len(offsets) != len(of_keys):
        expected = f"{len(offsets) - 1} sequences, as the queries"
        hint = "in a step of DynamicRNN, sequences from outside are a state, which the step returns as it is"
        raise LoDError(f"{op}, key", expected=expected, got=len(of_keys) - 1, hint=hint)
    if value.num_levels and not np.array_equal(levels_of(value.structure)[-1], of_keys):
        raise LoDError(f"{op}, value", expected="the sequences of key", got="other sequences")
    if len(value.data) != len(key.data):
        raise ShapeError(f"{op}, value", expected=f"{len(key.data)} rows, as key", got=f"shape {value.shape}")
    return flat(query.data), flat(key.data), flat(value.data), (offsets, of_keys)


def _call(query, offsets, scale, left, right, weight=None):
    heads, depth = query.shape[1] if query.data.ndim == 3 else 1, query.shape[-1]
    scale = depth**-0.5 if scale is None else scale
    of_queries, of_keys = offsets
    left, right = (attention.UNLIMITED if rows is None else rows for rows in (left, right))
    return attention.Call(of_queries, of_keys, heads, scale, left, right, weight)


@attend.infer
def _infer(query, key, value, scale, left, right):
    check_float(_NAME, query=query, key=key, value=value)
    check_lod_level(_NAME, "key", key)
    ranks = [len(spec.shape) for spec in (query, key, value)]
    if ranks not in ([2] * 3, [3] * 3):
        shapes = [query.shape, key.shape, value.shape]
        raise ShapeError(_NAME, expected="rows (rows, depth), or (rows, heads, depth), of all three", got=shapes)
    fits = ("key", key.shape[1:], query.shape[1:]), ("value", value.shape[1:-1], query.shape[1:-1])
    for name, given, wanted in fits:
        if any(-1 not in pair and pair[0] != pair[1] for pair in zip(given, wanted, strict=True)):
            raise ShapeError(f"{_NAME}, {name}", expected=f"rows of {tuple(wanted)}, as query", got=tuple(given))
    if 0 in (*query.shape[1:], *value.shape[1:]):
        raise ShapeError(_NAME, expected="at least one head and one number each", got=[query.shape, value.shape])
    check_window(_NAME, left, right)
    if scale is not None and not math.isfinite(scale):
        raise OutOfRangeError(f"{_NAME}, scale", expected="a finite number", got=scale)
    heads = query.shape[1] if ranks[0] == 3 else 1
    of_sums = TensorSpec((2, heads, query.shape[0]), query.dtype)
    return TensorSpec((*query.shape[:-1], value.shape[-1]), query.dtype, query.lod_level), of_sums


def check_window(op, left, right):
    """Raise unless the limits of a window are rows, or None."""
    for name, limit in (("left", left), ("right", right)):
        if limit is not None and not -attention.UNLIMITED <= limit <= attention.UNLIMITED:
            raise OutOfRangeError(f"{op}, {name}", expected=f"at most {attention.UNLIMITED} rows", got=limit)


@attend.backward("query", "key", "value", cost=_cost_of_grad)
def _backward(query, key, value, out, sums, d_out, scale, left, right):
    q, k, v, offsets = _operands(query, key, value, _NAME)
    call = _call(query, offsets, scale, left, right)
    expected = 2, call.heads, len(q)
    if sums.shape != expected or out.shape != d_out.shape:
        raise ShapeError(f"{_NAME}_grad, sums", expected=f"the operator's, of shape {expected}", got=sums.shape)
    given = flat(out.data), as_operand(sums.data), flat(d_out.data)
    found = attention.backward(q, k, v, *given, call)
    return tuple(x.like(d.reshape(x.shape)) for x, d in zip((query, key, value), found, strict=True))


@attend.examples
def _examples(rng):
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


def _cost_of_additive_grad(inputs, outputs, **attrs):
    """3 times the cost of the operator."""
    return 3 * _cost_of_additive(inputs, outputs)


@operator(
    name=_ADDITIVE, outputs=("out", "sums"), intermediate=("sums",), cost=_cost_of_additive,
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
            raise ShapeError(f"{_ADDITIVE}, {name}", expected=f"{query.shape[1]} features, as query", got=size)
    if 0 in (query.shape[1], value.shape[1]):
        raise ShapeError(_ADDITIVE, expected="at least one feature and one value", got=[query.shape, value.shape])
    check_window(_ADDITIVE, left, right)
    of_sums = TensorSpec((2, 1, query.shape[0]), query.dtype)
    return TensorSpec((query.shape[0], value.shape[1]), query.dtype, query.lod_level), of_sums


@attend_additively.backward("query", "key", "value", "weight", cost=_cost_of_additive_grad)
def _backward_additive(query, key, value, weight, out, sums, d_out, left, right):
    q, k, v, offsets = _operands(query, key, value, _ADDITIVE)
    if sums.shape != (2, 1, len(q)) or out.shape != d_out.shape:
        expected = f"the operator's, of shape {(2, 1, len(q))}"
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
