"""Look into the graphs inside of ONNX nodes: the values that they read from outside, and their recurrent layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from varlen_rnn.onnx.checks import label
from varlen_rnn.onnx.recurrent import LAYERS


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
