"""Build an ONNX graph: its nodes, its constants, and the ONNX values of a program's variables.

Rows with a LoD are padded in ONNX: rows (n, ...) become (sequences, steps, ...), and the lengths of the sequences are
another value.  The padding has arbitrary content until `Graph.masked` overwrites it.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any, NamedTuple

import numpy as np

from varlen_rnn.onnx.nested import names_from_outside

OPSET = 17
_REDUCTIONS = ("ReduceMax", "ReduceMean", "ReduceMin")  # since opset 18, their axes are an input


class Unsaid(Exception):
    """Raised for an operator with constants or inputs that ONNX cannot express; the message describes them."""


class Value(NamedTuple):
    """The ONNX value that a program's variable becomes."""

    name: str  # the name in the ONNX graph
    rank: int  # the rank in the program; rows with a LoD have one more axis in the graph
    dtype: np.dtype
    sequences: Sequences | None = None  # None without a LoD
    data: np.ndarray | None = None  # the numbers if it is a constant, otherwise None
    sizes: tuple[int, ...] = ()  # in the program, -1 where unknown; only inputs of converters have them


class Sequences(NamedTuple):
    """The names of two ONNX values: the lengths of sequences, and a mask that is True outside of the padding."""

    lengths: str
    inside: str


class Graph:
    """An ONNX graph under construction: its nodes and constants."""

    def __init__(self, onnx: Any, taken: Container[str]) -> None:
        self.onnx, self._names, self._taken = onnx, 0, taken
        self.opset = OPSET  # the least that has all nodes
        self.nodes: list[Any] = []
        self.constants: dict[str, np.ndarray] = {}

    def fresh(self, hint: str) -> str:
        """Return a new name for a value."""
        while True:
            self._names += 1
            name = f"{hint}/{self._names}"
            if name not in self._taken:
                return name

    def node(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node; return the name of its output, or a list if it has several outputs.  A missing input is ''."""
        names = [self.fresh(kind) for _ in range(outputs)]
        self.nodes.append(self.onnx.helper.make_node(kind, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, array: Any, dtype: Any = None) -> str:
        """Add a constant; return its name."""
        name = self.fresh("constant")
        self.constants[name] = np.ascontiguousarray(array, dtype)
        return name

    def finish(self) -> None:
        """Give nodes the form that they have in `opset`."""
        for node in self.nodes if self.opset >= 18 else ():
            for item in [one for one in node.attribute if one.name == "axes" and node.op_type in _REDUCTIONS]:
                node.input.append(self.numbers(*item.ints))
                node.attribute.remove(item)

    def numbers(self, *numbers: int) -> str:
        """Add a constant vector of integers; return its name."""
        return self.constant(np.array(numbers, np.int64))

    def size(self, name: str, axis: int) -> str:
        """Add nodes that compute the size of an axis of the value `name`; return the name of the size."""
        return self.node("Gather", self.node("Shape", name), self.constant(np.int64(axis)), axis=0)

    def places(self, padded: str) -> str:
        """Add nodes that make the vector 0, 1, 2, ... of the steps of a padded batch; return its name."""
        steps = self.size(padded, 1)
        return self.node("Range", self.constant(np.int64(0)), steps, self.constant(np.int64(1)))

    def inside_of(self, lengths: str, padded: str) -> str:
        """Add a mask `(sequences, steps)` of a padded batch, False in the padding; return its name."""
        return self.node("Less", self.places(padded), self.node("Unsqueeze", lengths, self.numbers(1)))

    def masked(self, value: Value, beyond: float = 0) -> str:
        """Add nodes that replace the padding of a value by the number `beyond`; return the name of the result."""
        assert value.sequences is not None
        inside = value.sequences.inside
        if value.rank > 1:
            inside = self.node("Unsqueeze", inside, self.numbers(*range(2, value.rank + 1)))
        if value.dtype.kind == "b":
            return self.node("And", inside, value.name)
        return self.node("Where", inside, value.name, self.constant(beyond, value.dtype))


def needed(nodes: Any, names: list[str]) -> list[Any]:
    """Return the nodes on which the values `names` depend, in the order of `nodes`."""
    wanted, found = set(names), []
    for node in reversed(nodes):
        if wanted.intersection(node.output):
            found.append(node)
            wanted.update(node.input, names_from_outside(node))
    return found[::-1]
