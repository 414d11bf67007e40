"""The operators that one ONNX node computes, in one table for export and loading.

An operator whose constants equal the node's attributes declares the node by `onnx=`; `NODES` has the other operators.
`operators` exports operators that need several nodes, and `nodes` loads nodes that need several operators.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from varlen_rnn.onnx.checks import Unread
from varlen_rnn.onnx.graph import Graph, Unsaid, Value
from varlen_rnn.onnx.values import Rows
from varlen_rnn.tape.operator import OPERATORS, Op

# {operator: (kind of node, {constant: attribute with another name, or None if the node lacks the constant})}
NODES: dict[str, tuple[str, dict[str, str | None]]] = {
    "argmax": ("ArgMax", {}),
    "cast": ("Cast", {"dtype": "to"}),
    "reduce_max": ("ReduceMax", {"axis": "axes"}),
    "reduce_mean": ("ReduceMean", {"axis": "axes", "of_nothing": None}),
    "reduce_min": ("ReduceMin", {"axis": "axes"}),
    "reduce_sum": ("ReduceSum", {"axis": "axes"}),
}
# {attribute that no operator here supports: values for which it can be ignored}
NEUTRAL = {"noop_with_empty_axes": (0, 1), "saturate": (0, 1), "select_last_index": (0,)}


def node_of(op: Op) -> tuple[str | None, dict[str, str]]:
    """Return the kind of node that computes an operator (None if none does), and {constant: name of its attribute}."""
    kind, names = NODES.get(op.type, (op.onnx, {}))
    return kind, {ours: name for ours in op.attrs if (name := names.get(ours, ours)) is not None}


def operator_of(kind: str) -> Op | None:
    """Return the first operator that this kind of node computes, or None if there is none."""
    return next((op for op in OPERATORS.values() if NODES.get(op.type, (op.onnx,))[0] == kind), None)


def axis_in_graph(x: Value, axis: int | None, what: str) -> int:
    """Return the axis of the ONNX value for an axis of a program's value; raise if it runs over rows of sequences."""
    if axis is None or (x.sequences is not None and axis % x.rank == 0):
        raise Unsaid(f"{what} over the rows of sequences")
    return axis % x.rank + (x.sequences is not None)


def axis_of(x: Any, axis: int) -> int:
    """Return the axis of a Variable for an axis of its ONNX value; raise if it runs over steps or sequences."""
    return x.place(axis) if isinstance(x, Rows) else axis


def type_number(graph: Graph, dtype: Any) -> int:
    """Return ONNX's number of a data type."""
    return graph.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def attribute(graph: Graph, op: str, name: str, x: Value, constant: Any) -> Any:
    """Return the value of a node's attribute `name`, given the operator's constant and its first operand `x`."""
    if name == "axes" and constant is None and x.sequences is None:
        return list(range(x.rank))
    if name in ("axes", "axis"):
        axis = axis_in_graph(x, constant, op)
        return [axis] if name == "axes" else axis
    if name == "to":
        return type_number(graph, constant)
    return int(constant) if isinstance(constant, bool) else constant


def constant(name: str, x: Any, attribute: Any) -> Any:
    """Return the value of an operator's constant, given the node's attribute `name` and its first operand `x`."""
    from onnx.helper import tensor_dtype_to_np_dtype

    if name == "axes" and (attribute is None or len(attribute) != 1):
        raise Unread("not over exactly one axis")
    if name in ("axes", "axis"):
        return axis_of(x, attribute[0] if name == "axes" else attribute)
    try:
        return str(tensor_dtype_to_np_dtype(attribute)) if name == "to" else attribute
    except KeyError as error:
        raise Unread(f"to the data type {attribute}") from error
