"""Find out which inputs of an ONNX model are sequences, by following the inputs of its recurrent layers back.

For example, an LSTM behind `Transpose(perm=[1, 0, 2])` reads the input `x` of (sequences, steps, 3), so `x` has its
steps on axis 1, and its sequences on axis 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from varlen_rnn.onnx.checks import array_of
from varlen_rnn.onnx.recurrent import LAYERS
from varlen_rnn.onnx.shapes import ALIKE
from varlen_rnn.onnx.table import operator_of

# Kinds of nodes between an input and a recurrent layer that keep the axes of steps and sequences.  A line below adds
# the kinds that operators declare by `onnx=`.
_ALONG = {"Dropout", "Cast", "MatMul", "Softmax", "LayerNormalization", "Concat", "Pad", "Pow", "Slice"}
# Nodes with carried states: the axes of steps and of sequences, and the places of the inputs that have them.
_OF_STATES = {"LinearAttention": ((1, 0), (0, 1, 2, 4, 5)), "CausalConvWithState": ((2, 0), (0,))}
Axes = tuple[int, int | None]  # of steps, and of sequences; None if the value has no axis of sequences


def found_sequences(nodes: Iterable[Any], given: set[str], constants: Mapping[str, Any]) -> tuple[dict[str, Axes], set]:
    """Return {input: (axis of steps, axis of sequences)}, and the names of the inputs that are lengths.

    `given` has the names of the inputs, and `constants` the model's constants by name.
    """
    nodes = list(nodes)
    made = {name: node for node in nodes for name in node.output if name}
    found: dict[str, Axes] = {}
    lengths: set[str] = set()
    waiting: list[tuple[str, Axes]] = []
    for node in (node for node in nodes if node.op_type in LAYERS):
        batch_first = any(item.name == "layout" and item.i for item in node.attribute)
        waiting.append((node.input[0], (1, 0) if batch_first else (0, 1)))
        name = node.input[4] if len(node.input) > 4 else ""
        while name in made and made[name].op_type in ALIKE:
            name = made[name].input[0]
        lengths |= {name} & given
    for node in nodes:
        axes, places = _OF_STATES.get(node.op_type, ((0, 0), ()))
        waiting += [(node.input[place], axes) for place in places if len(node.input) > place and node.input[place]]
    seen = set(waiting)
    while waiting:
        name, axes = waiting.pop()
        if name in given:
            found[name] = axes
        elif name in made:
            for following in _behind(made[name], axes, constants):
                if following[0] not in constants and following not in seen:
                    seen.add(following)
                    waiting.append(following)
    return found, lengths


def constant_nodes(onnx: Any, nodes: Iterable[Any]) -> dict[str, np.ndarray]:
    """Return the tensors of the nodes `Constant`, by name."""
    given = [(node.output[0], item) for node in nodes if node.op_type == "Constant" for item in node.attribute]
    return {name: array_of(onnx, item.t) for name, item in given if item.name == "value" and item.type == item.TENSOR}


def _behind(node: Any, axes: Axes, constants: Mapping[str, Any]) -> list[tuple[str, Axes]]:
    """Return the inputs of a node from which the steps of its output come, with their axes."""
    move = _MOVES.get(node.op_type)
    if move is not None:
        moved = move(node, axes, constants)
        return [] if moved is None else [(node.input[0], moved)]
    if node.op_type == "Gather":
        return [(node.input[1], axes)]
    if node.op_type in _ALONG or getattr(operator_of(node.op_type), "onnx", None):
        return [(other, axes) for other in node.input if other]
    return []


def _by(places: Mapping[int, int], axes: Axes) -> Axes | None:
    """Return the axes of a node's input; `places` has the input's axis of each axis of the output."""
    if axes[0] not in places:
        return None
    return places[axes[0]], None if axes[1] is None else places.get(axes[1])


def _of_transpose(node: Any, axes: Axes, constants: Mapping[str, Any]) -> Axes | None:
    perm = next((list(item.ints) for item in node.attribute if item.name == "perm"), [])
    is_whole = sorted(perm) == list(range(len(perm)))  # otherwise, converting it raises
    return _by(dict(enumerate(perm)), axes) if is_whole else None


def _of_conv(node: Any, axes: Axes, constants: Mapping[str, Any]) -> Axes | None:
    return (0, None) if axes[0] == 0 else None


def _numbers(node: Any, constants: Mapping[str, Any]) -> list[int] | None:
    value = constants.get(node.input[1]) if len(node.input) > 1 else None
    if not isinstance(value, np.ndarray) or value.ndim != 1 or value.dtype.kind != "i" or value.size > 64:
        return None
    return [int(number) for number in value]


def _of_unsqueeze(node: Any, axes: Axes, constants: Mapping[str, Any]) -> Axes | None:
    added = _numbers(node, constants)
    if added is None or min(added, default=0) < 0:  # a negative axis needs the rank, which is not known here
        return None
    old = [axis for axis in range(len(added) + max(axes[0], axes[1] or 0) + 1) if axis not in added]
    return _by({axis: place for place, axis in enumerate(old)}, axes)


_MOVES: dict[str, Callable[[Any, Axes, Mapping[str, Any]], Axes | None]] = {
    "Transpose": _of_transpose,
    "Conv": _of_conv,
    "Unsqueeze": _of_unsqueeze,
}
