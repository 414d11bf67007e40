"""An ONNX graph under construction: nodes, constants, and the ONNX value of each variable of a program.

Rows with a LoD are padded in ONNX: rows (n, ...) of sequences become (sequences, steps, ...), and the lengths of the
sequences are a value beside them.  What stands in the padding is anything, until somebody asks.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any, NamedTuple

import numpy as np


class Value(NamedTuple):
    """What stands for a variable: a name in the graph, its rank in the program, its data type, and its sequences.

    `data` are the numbers of a constant.  The rank of rows with sequences is one more in the graph.
    """

    name: str
    rank: int
    dtype: np.dtype
    sequences: Sequences | None = None
    data: np.ndarray | None = None


class Sequences(NamedTuple):
    """The sequences of padded values: the names of their lengths, and of which places are inside of them."""

    lengths: str
    inside: str


class Graph:
    """The nodes and constants of a graph."""

    def __init__(self, onnx: Any, taken: Container[str]) -> None:
        self.onnx, self._names, self._taken = onnx, 0, taken
        self.nodes: list[Any] = []
        self.constants: dict[str, np.ndarray] = {}

    def fresh(self, hint: str) -> str:
        """Return a name that no other value has."""
        while True:
            self._names += 1
            name = f"{hint}/{self._names}"
            if name not in self._taken:
                return name

    def node(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node; return the name of its output, or the names of several.  An input that is missing is ''."""
        names = [self.fresh(kind) for _ in range(outputs)]
        self.nodes.append(self.onnx.helper.make_node(kind, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, array: Any, dtype: Any = None) -> str:
        """Return the name of a constant."""
        name = self.fresh("constant")
        self.constants[name] = np.ascontiguousarray(array, dtype)
        return name

    def numbers(self, *numbers: int) -> str:
        """Return the name of a constant, integers."""
        return self.constant(np.array(numbers, np.int64))

    def inside_of(self, lengths: str, padded: str) -> str:
        """Return the name of which places of a padded batch are inside of sequences: (sequences, steps)."""
        steps = self.node("Gather", self.node("Shape", padded), self.constant(np.int64(1)), axis=0)
        places = self.node("Range", self.constant(np.int64(0)), steps, self.constant(np.int64(1)))
        return self.node("Less", places, self.node("Unsqueeze", lengths, self.numbers(1)))

    def masked(self, value: Value, beyond: float = 0) -> str:
        """Return the name of a padded value with a number in its padding."""
        assert value.sequences is not None
        inside = value.sequences.inside
        if value.rank > 1:
            inside = self.node("Unsqueeze", inside, self.numbers(*range(2, value.rank + 1)))
        if value.dtype.kind == "b":
            return self.node("And", inside, value.name)
        return self.node("Where", inside, value.name, self.constant(beyond, value.dtype))


def needed(nodes: Any, names: list[str]) -> list[Any]:
    """Return the nodes that some values are computed by, in their order."""
    wanted, found = set(names), []
    for node in reversed(nodes):
        if wanted.intersection(node.output):
            found.append(node)
            wanted.update(node.input)
    return found[::-1]
