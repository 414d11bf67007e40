"""Convert `LinearAttention` and `CausalConvWithState` of ONNX, whose states are carried from call to call, both ways.

Source: the operators' documentation, opset 27.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from varlen_rnn.onnx.checks import Unread
from varlen_rnn.onnx.graph import Graph, Unsaid, Value
from varlen_rnn.onnx.nodes import reads
from varlen_rnn.onnx.operators import says
from varlen_rnn.onnx.values import SEQUENCES, STEPS, Rows
from varlen_rnn.ops.linear_attention import linear_attention
from varlen_rnn.ops.sequence.causal_conv import causal_conv
from varlen_rnn.tape.variable import Variable

_RULES = {  # {update rule: whether it has decays, and rates}
    "linear": (False, False),
    "gated": (True, False),
    "delta": (False, True),
    "gated_delta": (True, True),
}
_AXES = {"LinearAttention": (SEQUENCES, STEPS, 0), "CausalConvWithState": (SEQUENCES, 0, STEPS)}


@reads("LinearAttention")
def _linear_attention(
    kind: str, query: Any, *, q_num_heads: int, kv_num_heads: int, update_rule: str, scale: float = 0.0, **named: Any
) -> Any:  # fmt: skip
    decay, beta = named.get("decay"), named.get("beta")
    if min(q_num_heads, kv_num_heads) < 1 or q_num_heads % kv_num_heads:
        raise Unread(f"with {q_num_heads} heads of queries for {kv_num_heads} states")
    if update_rule not in _RULES or (decay is not None, beta is not None) != _RULES[update_rule]:
        given = [name for name, one in (("decay", decay), ("beta", beta)) if one is not None]
        raise Unread(f"with the update rule {update_rule!r} and {' and '.join(given) or 'neither decay nor beta'}")
    q, k, v = (
        _heads(kind, name, given, count)
        for name, given, count in (
            ("query", query, q_num_heads), ("key", named["key"], kv_num_heads), ("value", named["value"], kv_num_heads),
        )
    )  # fmt: skip
    g = None if decay is None else _rows(kind, "decay", decay)
    if g is not None and g.shape[1] != kv_num_heads:
        g = _heads(kind, "decay", decay, kv_num_heads)
    b = None if beta is None else _rows(kind, "beta", beta)
    if b is not None and b.shape[1] == 1:
        b = b * Variable(np.ones((1, kv_num_heads), b.dtype))
    y, last = linear_attention(
        q,
        k,
        v,
        g,
        b,
        _given(named.get("past_state")),
        delta=update_rule in ("delta", "gated_delta"),
        scale=scale or None,
    )
    return [query._replace(variable=y.reshape(-1, q_num_heads * v.shape[2])), last]


@reads("CausalConvWithState")
def _causal_conv(
    kind: str, x: Any, weight: Any, bias: Any = None, past_state: Any = None, activation: str = "none"
) -> Any:
    rows, kernel = _rows(kind, "input", x), _given(weight)
    if len(kernel.shape) != 3 or kernel.shape[1] != 1 or -1 in kernel.shape:
        raise Unread(f"with a weight of shape {kernel.shape}")
    if activation not in ("none", "silu", "swish"):
        raise Unread(f"with the activation {activation!r}")
    state = None if past_state is None else _given(past_state).transpose(1, 2)
    kernel = kernel.reshape(kernel.shape[0], kernel.shape[2])
    y, last = causal_conv(rows, kernel, _given(bias), state, None if activation == "none" else activation)
    return [x._replace(variable=y), last.transpose(1, 2)]


def _given(value: Any) -> Any:
    """Return an input without steps as a Variable, or None if it is missing."""
    if value is None or isinstance(value, Variable):
        return value
    if not isinstance(value, np.ndarray):
        raise Unread("with states or weights that are known only in a run")
    return Variable(value)


def _rows(kind: str, name: str, value: Any) -> Variable:
    """Return the rows of an input whose axes are in the node's order."""
    if not isinstance(value, Rows) or value.axes != _AXES[kind] or value.variable.ndim != 2:
        raise Unread(f"whose input {name} is no padded batch of sequences")
    if value.variable.shape[1] < 1:
        raise Unread(f"whose input {name} has an unknown number of columns")
    return value.variable


def _heads(kind: str, name: str, value: Any, count: int) -> Variable:
    rows = _rows(kind, name, value)
    if rows.shape[1] % count:
        raise Unread(f"whose input {name} has {rows.shape[1]} columns for {count} heads")
    return rows.reshape(-1, count, rows.shape[1] // count)


_OPSET = 27  # the first with these nodes


@says("linear_attention")
def _said_attention(
    graph: Graph, op: str, query: Value, key: Value, value: Value, *others: Value | None,
    delta: bool, normalise: bool, scale: float | None, keep: bool,
) -> list[Value | None]:  # fmt: skip
    decay, beta, state, normaliser = others
    if scale == 0:
        raise Unsaid("linear_attention with a scale of 0")
    graph.opset = _OPSET
    states = max(key.sizes[1], value.sizes[1])
    heads = max(states, query.sizes[1])
    # Zeros as padding leave the state of a sequence as it is behind its rows.
    q, k, v = (
        _at_heads(graph, name, given.sizes[1], count)
        for name, given, count in (
            (_of_steps(graph, query), query, heads), (_of_steps(graph, key, True), key, states),
            (_of_steps(graph, value, True), value, states),
        )
    )  # fmt: skip
    if normalise:
        v = graph.node("Concat", v, _ones_beside(graph, v), axis=3)
    b = None if beta is None else _of_steps(graph, beta, True)
    if delta and b is None:
        b = graph.node("Squeeze", _ones_beside(graph, k), graph.numbers(3))
    if b is not None and not delta:
        v, b = graph.node("Mul", v, graph.node("Unsqueeze", b, graph.numbers(3))), None
    g = None if decay is None else _of_steps(graph, decay, True)
    rule = next(rule for rule, has in _RULES.items() if has == (g is not None, b is not None))
    packed = lambda name: graph.node("Reshape", name, graph.numbers(0, 0, -1))
    first = "" if state is None else state.name
    if normaliser is not None:
        first = graph.node("Concat", first, graph.node("Unsqueeze", normaliser.name, graph.numbers(3)), axis=3)
    inputs = [packed(q), packed(k), packed(v), first]
    inputs += ["" if g is None else packed(g) if decay and len(decay.sizes) == 3 else g, "" if b is None else b]
    y, last = graph.node(
        "LinearAttention", *inputs, outputs=2, q_num_heads=heads, kv_num_heads=states, update_rule=rule,
        scale=scale or 0.0,
    )  # fmt: skip
    y = graph.node("Reshape", y, graph.numbers(0, 0, heads, -1))
    y = y if query.sequences is not None else graph.node("Squeeze", y, graph.numbers(1))
    if not normalise:
        return [query._replace(name=y, data=None), Value(last, 4, query.dtype), None, None]
    (out, norms), (last, last_norms) = (_without_column(graph, name) for name in (y, last))
    return [
        query._replace(name=out, data=None), Value(last, 4, query.dtype),
        query._replace(name=norms, rank=2, data=None), Value(last_norms, 3, query.dtype), None, None, None,
    ]  # fmt: skip


@says("causal_conv")
def _said_conv(
    graph: Graph, op: str, x: Value, weight: Value, bias: Value | None, state: Value | None
) -> list[Value | None]:
    graph.opset = _OPSET
    before = weight.sizes[1] - 1
    across = lambda name: graph.node("Transpose", name, perm=[0, 2, 1])
    rows = across(_of_steps(graph, x))
    kernel = graph.node("Unsqueeze", weight.name, graph.numbers(1))
    inputs = [rows, kernel, "" if bias is None else bias.name, "" if state is None else across(state.name)]
    y, last = graph.node("CausalConvWithState", *inputs, outputs=2)
    y = across(y)
    if x.sequences is None:
        y = graph.node("Squeeze", y, graph.numbers(1))
    else:  # the node's own state ends with the padding
        if state is None:
            whole = graph.node("Pad", rows, graph.numbers(0, 0, before, 0, 0, 0))
        else:
            whole = graph.node("Concat", inputs[3], rows, axis=2)
        places = graph.node("Add", graph.node("Unsqueeze", x.sequences.lengths, graph.numbers(1, 2)), graph.constant(
            np.arange(before).reshape(1, 1, before)
        ))  # fmt: skip
        shape = graph.node("Concat", graph.node("Shape", rows, end=2), graph.numbers(before), axis=0)
        last = graph.node("GatherElements", whole, graph.node("Expand", places, shape), axis=2)
    return [x._replace(name=y, data=None), Value(across(last), 3, x.dtype)]


def _of_steps(graph: Graph, x: Value, is_masked: bool = False) -> str:
    """Return the name of (sequences, steps, ...) for rows; rows without a LoD are sequences of one step."""
    if x.sequences is None:
        return graph.node("Unsqueeze", x.name, graph.numbers(1))
    return graph.masked(x) if is_masked else x.name


def _at_heads(graph: Graph, name: str, given: int, count: int) -> str:
    """Return the name of (sequences, steps, heads, ...) with `count` heads; each given head is repeated."""
    if given == count:
        return name
    return graph.node("Gather", name, graph.constant(np.arange(count) * given // count), axis=2)


def _without_column(graph: Graph, name: str) -> tuple[str, str]:
    """Return the names of a value without the last index of its last axis, and of this column."""
    last = graph.numbers(-1)
    column = graph.node("Squeeze", graph.node("Gather", name, last, axis=-1), last)
    return graph.node("Slice", name, graph.numbers(0), last, last), column


def _ones_beside(graph: Graph, name: str) -> str:
    """Return the name of ones of shape (sequences, steps, heads, 1)."""
    shape = graph.node("Concat", graph.node("Shape", name, end=3), graph.numbers(1), axis=0)
    one = graph.onnx.numpy_helper.from_array(np.ones(1, np.float32))
    return graph.node("ConstantOfShape", shape, value=one)
