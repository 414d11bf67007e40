"""Find recurrent layers inside nodes of an ONNX model's graph; they cannot be loaded, and an error names them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from varlen_rnn.errors import ProgramError
from varlen_rnn.onnx.checks import label
from varlen_rnn.onnx.recurrent import LAYERS

_UNROLLED = (
    "onnxruntime runs any other model; PyTorch's default exporter replaces nn.RNN by single steps: "
    "torch.onnx.export(..., dynamo=False) keeps the layer"
)
_CHOSEN = (
    "graphs inside of nodes are not read: export the module with this layer as a separate model, without the condition "
    "or loop around it"
)


def graphs_of(node: Any) -> Iterator[tuple[str, Any]]:
    """Yield pairs (name of an attribute, graph) for the graphs inside of a node, such as the branches of an If."""
    for item in node.attribute:
        yield from ((item.name, graph) for graph in (*([item.g] if item.HasField("g") else []), *item.graphs))


def names_from_outside(node: Any) -> Iterator[str]:
    """Yield the names of the values that the graphs inside of a node read from outside of these graphs."""
    for _, graph in graphs_of(node):
        made = {value.name for value in (*graph.input, *graph.initializer)}
        for inner in graph.node:
            yield from ({*inner.input, *names_from_outside(inner)} - made - {""})
            made |= set(inner.output)
        yield from ({value.name for value in graph.output} - made)


def inner_layers(node: Any) -> Iterator[str]:
    """Yield the place, as text, of each recurrent layer in the graphs of a node and in all graphs inside of these."""
    for name, graph in graphs_of(node):
        for inner in graph.node:
            if inner.op_type in LAYERS:
                yield f"{label(inner)} in {name} of {label(node)}"
            yield from (f"{text} in {name} of {label(node)}" for text in inner_layers(inner))


def check_layers(model: Any) -> None:
    """Raise unless the graph of a model has a recurrent layer; the error says where its layers are instead."""
    if any(node.op_type in LAYERS for node in model.graph.node):
        return
    found = [text for node in model.graph.node for text in inner_layers(node)]
    for function in model.functions:
        layers = [node for node in function.node if node.op_type in LAYERS]
        found += [f"{label(node)} in the function {function.name!r}" for node in layers]
    got, hint = (", ".join(found[:2]), _CHOSEN) if found else ("none", _UNROLLED)
    raise ProgramError("onnx.load", expected="a graph with RNN, GRU or LSTM", got=got, hint=hint)
