"""Convert operators of a program to ONNX nodes.

`table` has the operators that one node computes.  The functions here convert operators that need several nodes, or a
node with other attributes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from varlen_rnn.cells import find_cell
from varlen_rnn.onnx.graph import Graph, Sequences, Unsaid, Value
from varlen_rnn.onnx.recurrent import options_of, said_activations, specs_of, theirs
from varlen_rnn.onnx.table import attribute, axis_in_graph, node_of, type_number
from varlen_rnn.recurrence import heads_of
from varlen_rnn.tape.index import index_to_text
from varlen_rnn.tape.operator import Op
from varlen_rnn.tape.spec import TensorSpec

SAID: dict[str, Callable[..., Any]] = {}


def says(*names: str) -> Callable[[Callable], Callable]:
    """Return a decorator that registers a converter of operators: `function(graph, op, *inputs, **constants)`.

    The converter returns the Value of each output.
    """

    def take(function: Callable) -> Callable:
        SAID.update(dict.fromkeys(names, function))
        return function

    return take


def _like(value: Value, name: str, **changes: Any) -> Value:
    return value._replace(name=name, data=None, **changes)


def one_node(graph: Graph, op: Op, x: Sequence[Value | None], spec: TensorSpec, constants: dict[str, Any]) -> Value:
    """Add the node that computes an operator, according to `table`, after preparing its operands for broadcasting."""
    like = functools.reduce(lambda one, other: _broadcast(graph, one, other)[2], filter(None, x))
    inputs = ["" if value is None else _broadcast(graph, value, like)[0] for value in x]
    kind, names = node_of(op)
    attributes = {name: attribute(graph, op.type, name, like, constants[ours]) for ours, name in names.items()}
    if kind == "ReduceSum":
        inputs.append(graph.numbers(*attributes.pop("axes")))
    return _like(like, graph.node(str(kind), *inputs, **attributes), dtype=spec.dtype, rank=len(spec.shape))


def _pair(graph: Graph, kind: str, x: Value, y: Value, dtype: Any) -> Value:
    first, second, like = _broadcast(graph, x, y)
    return _like(like, graph.node(kind, first, second), dtype=np.dtype(dtype), rank=max(x.rank, y.rank))


def _broadcast(graph: Graph, x: Value, y: Value) -> tuple[str, str, Value]:
    """Prepare two operands for broadcasting; return their names, and the operand whose layout the result has."""
    if x.sequences is not None and y.sequences is not None and x.rank != y.rank:
        raise Unsaid("rows with a LoD, of different ranks")
    if (x.sequences is None) == (y.sequences is None):
        return x.name, y.name, x if x.rank >= y.rank else y
    rows, other = (x, y) if x.sequences else (y, x)
    if other.rank >= rows.rank:
        if other.data is None or other.data.shape[0] != 1:
            raise Unsaid("rows with a LoD beside rows without a LoD")
        other = other._replace(name=graph.constant(other.data[0]), rank=other.rank - 1)
    return (rows.name, other.name, rows) if rows is x else (other.name, rows.name, rows)


@says("softplus")
def _softplus(graph: Graph, op: str, x: Value, beta: float, threshold: float) -> Value:
    number = lambda value: graph.constant(value, x.dtype)
    scaled = x.name if beta == 1 else graph.node("Mul", x.name, number(beta))
    curve = graph.node("Softplus", scaled)
    curve = curve if beta == 1 else graph.node("Div", curve, number(beta))
    if threshold != math.inf:
        curve = graph.node("Where", graph.node("Greater", scaled, number(threshold)), x.name, curve)
    return _like(x, curve)


@says("one_hot")
def _one_hot(graph: Graph, op: str, ids: Value, num_classes: int) -> Value:
    values = graph.constant(np.array([0, 1], np.int64))
    name = graph.node("OneHot", ids.name, graph.constant(np.int64(num_classes)), values, axis=-1)
    return _like(ids, name, rank=ids.rank + 1, dtype=np.dtype(np.int64))


@says("gelu")
def _gelu(graph: Graph, op: str, x: Value, approximate: str) -> Value:
    number = lambda value: graph.constant(value, x.dtype)
    if approximate == "tanh":
        cube = graph.node("Mul", graph.node("Mul", x.name, x.name), graph.node("Mul", x.name, number(0.044715)))
        inner = graph.node("Mul", graph.node("Add", x.name, cube), number(math.sqrt(2 / math.pi)))
        curve = graph.node("Tanh", inner)
    else:
        curve = graph.node("Erf", graph.node("Mul", x.name, number(math.sqrt(0.5))))
    half = graph.node("Mul", x.name, number(0.5))
    return _like(x, graph.node("Mul", half, graph.node("Add", curve, number(1))))


@says("dropout")
def _dropout(graph: Graph, op: str, x: Value, p: float, training: bool) -> list[Value | None]:
    if training and p:
        raise Unsaid("dropout in training")
    return [x, None]


@says("matmul")
def _matmul(graph: Graph, op: str, x: Value, weight: Value, bias: Value | None, transposed: bool) -> Value:
    name = weight.name
    if transposed:
        name = graph.node("Transpose", name, perm=[1, 0]) if weight.data is None else graph.constant(weight.data.T)
    product = graph.node("MatMul", x.name, name)
    return _like(x, product if bias is None else graph.node("Add", product, bias.name))


SAID |= {
    "embedding": lambda graph, op, ids, table, padding_idx, sparse: _like(
        ids, graph.node("Gather", table.name, ids.name, axis=0), rank=ids.rank + 1, dtype=table.dtype
    ),
    "not_equal": lambda graph, op, x, y: _like(
        found := _pair(graph, "Equal", x, y, bool), graph.node("Not", found.name)
    ),
    "pow": lambda graph, op, x, exponent: _like(x, graph.node("Pow", x.name, graph.constant(exponent, x.dtype))),
    "silu": lambda graph, op, x: _like(x, graph.node("Mul", x.name, graph.node("Sigmoid", x.name))),
    "sum": lambda graph, op, *x: functools.reduce(lambda one, other: _pair(graph, "Add", one, other, one.dtype), x),
}


@says("concat")
def _concat(graph: Graph, op: str, *x: Value, axis: int) -> Value:
    if len({value.sequences is None for value in x}) > 1:
        raise Unsaid("rows with a LoD beside rows without a LoD")
    return _like(x[0], graph.node("Concat", *(value.name for value in x), axis=axis_in_graph(x[0], axis, "concat")))


@says("reshape")
def _reshape(graph: Graph, op: str, x: Value, shape: Sequence[int]) -> Value:
    if x.sequences is not None:
        if shape[0] != -1:
            raise Unsaid(f"rows with a LoD, to a shape {tuple(shape)} that does not begin with -1")
        shape = (0, 0, *shape[1:])  # each 0 copies a size: the number of sequences, and of steps
    return _like(x, graph.node("Reshape", x.name, graph.numbers(*shape)), rank=len(shape) - (x.sequences is not None))


@says("transpose")
def _transpose(graph: Graph, op: str, x: Value, axis0: int, axis1: int) -> Value:
    axes = list(range(x.rank + (x.sequences is not None)))
    first, second = axis_in_graph(x, axis0, op), axis_in_graph(x, axis1, op)
    axes[first], axes[second] = second, first
    return _like(x, graph.node("Transpose", x.name, perm=axes))


@says("getitem")
def _getitem(graph: Graph, op: str, x: Value, index: Any) -> Value:
    items = index if isinstance(index, tuple) else (index,)
    text = f"the index [{index_to_text(index)}]"
    if any(item is None or item is Ellipsis for item in items):
        raise Unsaid(text)
    name, dropped = x.name, []
    for axis, item in enumerate(items):
        if item == slice(None):
            continue
        place = axis_in_graph(x, axis, text)
        if isinstance(item, slice):
            far = 2**62
            step = 1 if item.step is None else item.step
            first = (0 if step > 0 else far) if item.start is None else item.start
            end = (far if step > 0 else -far) if item.stop is None else item.stop
            name = graph.node("Slice", name, *map(graph.numbers, (first, end, place, step)))
        else:
            name = graph.node("Gather", name, graph.numbers(item), axis=place)
            dropped.append(place)
    if dropped:
        name = graph.node("Squeeze", name, graph.numbers(*dropped))
    return _like(x, name, rank=x.rank - len(dropped))


@says("layer_norm")
def _layer_norm(graph: Graph, op: str, x: Value, weight: Value | None, bias: Value | None, eps: float) -> Value:
    if weight is None:
        raise Unsaid("layer_norm without a weight")
    more = [] if bias is None else [bias.name]
    return _like(x, graph.node("LayerNormalization", x.name, weight.name, *more, axis=-1, epsilon=eps))


@says("batch_norm")
def _batch_norm(
    graph: Graph, op: str, x: Value, mean: Value, variance: Value, weight: Value | None, bias: Value | None,
    eps: float, training: bool,
) -> list[Value | None]:  # fmt: skip
    if training:
        raise Unsaid("batch_norm in training")
    deviation = graph.node("Sqrt", graph.node("Add", variance.name, graph.constant(eps, x.dtype)))
    name = graph.node("Div", graph.node("Sub", x.name, mean.name), deviation)
    name = name if weight is None else graph.node("Mul", name, weight.name)
    return [_like(x, name if bias is None else graph.node("Add", name, bias.name))]


# Operators on sequences.


def _sequences(x: Value, what: str) -> Sequences:
    if x.sequences is None:
        raise Unsaid(f"{what} of rows without a LoD")
    return x.sequences


@says("sequence_pool")
def _pool(graph: Graph, op: str, x: Value, pool_type: str, pad_value: float, level: int) -> list[Value | None]:
    lengths, first = _sequences(x, op).lengths, graph.numbers(1)
    if pool_type in ("sum", "mean", "sqrt"):
        name = graph.node("ReduceSum", graph.masked(x), first, keepdims=0)
        if pool_type != "sum":
            most = graph.node("Cast", graph.node("Max", lengths, graph.numbers(1)), to=type_number(graph, x.dtype))
            divisor = graph.node("Sqrt", most) if pool_type == "sqrt" else most
            name = graph.node("Div", name, _beside(graph, divisor, x.rank))
    elif pool_type == "max":
        least = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
        name = graph.node("ReduceMax", graph.masked(x, least), axes=[1], keepdims=0)
    else:
        places = graph.constant(np.int64(0))
        if pool_type == "last":
            places = graph.node("Max", graph.node("Sub", lengths, graph.constant(np.int64(1))), places)
        else:
            places = graph.node("Mul", lengths, places)
        name = graph.node("GatherND", x.name, graph.node("Unsqueeze", places, graph.numbers(1)), batch_dims=1)
    empty = _beside(graph, graph.node("Equal", lengths, graph.constant(np.int64(0))), x.rank)
    name = graph.node("Where", empty, graph.constant(pad_value, x.dtype), name)
    return [_like(x, name, sequences=None), None]


def _beside(graph: Graph, name: str, rank: int) -> str:
    """Return the name of a vector, a number per sequence, after adding axes so that it broadcasts to `rank` axes."""
    return name if rank == 1 else graph.node("Unsqueeze", name, graph.numbers(*range(1, rank)))


@says("sequence_softmax")
def _sequence_softmax(graph: Graph, op: str, x: Value) -> Value:
    _sequences(x, op)
    return _like(x, graph.node("Softmax", graph.masked(x, np.finfo(x.dtype).min), axis=1))


@says("sequence_reverse")
def _sequence_reverse(graph: Graph, op: str, x: Value) -> Value:
    lengths = graph.node("Max", _sequences(x, op).lengths, graph.numbers(1))
    return _like(x, graph.node("ReverseSequence", x.name, lengths, batch_axis=0, time_axis=1))


@says("sequence_expand_as")
def _expand_as(graph: Graph, op: str, x: Value, y: Value) -> Value:
    if x.sequences is not None:
        raise Unsaid("sequence_expand_as of rows with a LoD")
    wide = Value(graph.node("Unsqueeze", x.name, graph.numbers(1)), x.rank, x.dtype, _sequences(y, op))
    return wide._replace(name=graph.masked(wide))


@says("scaled_dot_product_attention")
def _attention(
    graph: Graph, op: str, query: Value, key: Value, value: Value, scale: float | None, left: Any, right: Any
) -> list[Value | None]:
    of_keys = [_sequences(one, op) for one in (query, key, value)][1]
    if left is not None or right not in (None, 0):
        raise Unsaid("attention in a window")
    across = lambda one, perm: graph.node("Transpose", one, perm=perm)
    q, k = across(query.name, [0, 2, 1, 3]), across(key.name, [0, 2, 3, 1])
    v = across(graph.masked(value), [0, 2, 1, 3])  # zeros as padding, because 0 times a NaN would be NaN
    scores = graph.node("MatMul", q, k)
    if scale is None:
        root = graph.node("Sqrt", graph.node("Cast", graph.size(query.name, 3), to=type_number(graph, query.dtype)))
        scores = graph.node("Div", scores, root)
    else:
        scores = graph.node("Mul", scores, graph.constant(scale, query.dtype))
    seen = graph.node("Unsqueeze", of_keys.inside, graph.numbers(1, 2))
    if right == 0:
        of_query, of_key = (graph.places(one.name) for one in (query, key))
        before = graph.node("LessOrEqual", of_key, graph.node("Unsqueeze", of_query, graph.numbers(1)))
        seen = graph.node("And", seen, before)
    scores = graph.node("Where", seen, scores, graph.constant(np.finfo(query.dtype).min, query.dtype))
    out = across(graph.node("MatMul", graph.node("Softmax", scores, axis=-1), v), [0, 2, 1, 3])
    return [_like(query, out), None]


# Recurrent layers.


@says("recurrent")
def _recurrent(
    graph: Graph, op: str, x: Value, *others: Value | None, cell: str, reverse: Any, all_states: bool, **_: Any
) -> list[Value | None]:
    found = options_of(cell)
    if found is None:
        raise Unsaid(f"the cell {cell!r}, which ONNX lacks")
    kind, options = found
    sequences = _sequences(x, op)
    said = said_activations(specs_of(kind, options))
    states, weights = others[: 1 + (kind == "LSTM")], list(others[1 + (kind == "LSTM") :])
    own = 4 + 3 * bool(options.get("peepholes"))
    if said is None or all_states or len(weights) % own or len(weights) // own > 2:
        raise Unsaid(f"the cell {cell!r}, with activations that ONNX lacks, all states, or a projection")
    arrays = [None if weight is None else weight.data for weight in weights]
    if any(array is None and weight is not None for array, weight in zip(arrays, weights, strict=True)):
        raise Unsaid("weights that are computed from a feed")
    ways: list[list[Any]] = [arrays[first : first + own] for first in range(0, len(arrays), own)]
    for way in ways:
        way[1] = _without_heads(way[1], len(find_cell(cell).h_gates))
    names = _weights(graph, kind, bool(options.get("coupled")), ways)
    directions = {(0,): "forward", (1,): "reverse", (0, 1): "bidirectional", None: "forward"}
    direction = "bidirectional" if len(ways) == 2 else directions[tuple(reverse) if reverse else None]
    hidden = ways[0][1].shape[1]
    attributes = {name: values * len(ways) for name, values in said.items()}
    attributes |= {"clip": options["clip"]} if options.get("clip") else {}
    attributes |= {"linear_before_reset": int(options.get("reset_after", True))} if kind == "GRU" else {}
    attributes |= {"input_forget": int(options.get("coupled", False))} if kind == "LSTM" else {}
    lengths = graph.node("Cast", sequences.lengths, to=graph.onnx.TensorProto.INT32)
    steps_first = graph.node("Transpose", x.name, perm=[1, 0, 2])
    given = ["" if state is None else state.name for state in states]
    inputs = [steps_first, *names[:3], lengths, *given, *filter(None, names[3:])]
    y, *ends = graph.node(kind, *inputs, outputs=1 + len(states), hidden_size=hidden, direction=direction, **attributes)
    by_sequence = graph.node("Transpose", y, perm=[2, 0, 1, 3])
    rows = graph.node("Reshape", by_sequence, graph.numbers(0, 0, len(ways) * hidden))
    empty = graph.node("Unsqueeze", graph.node("Equal", lengths, graph.constant(np.int32(0))), graph.numbers(0, 2))
    # ONNX returns zeros as the last states of empty sequences; they are replaced by the initial states.
    ends = [
        end if state is None else graph.node("Where", empty, state.name, end)
        for end, state in zip(ends, states, strict=True)
    ]
    return [_like(x, rows), *(Value(end, 3, x.dtype) for end in ends), None]


def _without_heads(weight_hh: np.ndarray, gates: int) -> np.ndarray:
    """Return a recurrent weight with zeros outside the blocks of its heads, because ONNX has no heads."""
    rows, size = weight_hh.shape
    heads = heads_of(rows, size, gates)
    blocks, full = weight_hh.reshape(gates, heads, size, size), np.zeros((gates, heads, size, heads, size))
    for head in range(heads):
        full[:, head, :, head] = blocks[:, head]
    return full.reshape(rows, heads * size).astype(weight_hh.dtype)


def _weights(graph: Graph, kind: str, coupled: bool, ways: list[list[Any]]) -> list[str]:
    """Add ONNX's weights W, R and B of all directions, and P of an LSTM; return their names."""
    parts: list[list[np.ndarray]] = [[], [], [], []]
    for weight_ih, weight_hh, bias_ih, bias_hh, *peepholes in ways:
        zeros = np.zeros(len(weight_hh), weight_hh.dtype)
        biases = [zeros if bias is None else bias for bias in (bias_ih, bias_hh)]
        parts[0].append(theirs(weight_ih, kind, coupled))
        parts[1].append(theirs(weight_hh, kind, coupled))
        parts[2].append(np.concatenate([theirs(bias, kind, coupled) for bias in biases]))
        if peepholes:
            of_input, of_forget, of_output = peepholes
            parts[3].append(np.concatenate([of_input, of_output, of_forget]))
    return [graph.constant(np.stack(part)) if part else "" for part in parts]
