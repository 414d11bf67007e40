"""Compute ONNX nodes whose inputs are constants while a model is loaded, by ONNX's reference evaluator."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from varlen_rnn.onnx.checks import Unread

_MOST_BYTES = 2**31  # the most bytes of a result, because an ONNX file cannot hold more
_SMALL = 1024  # the most elements of a constant that can be a shape


def evaluated(onnx: Any, node: Any, feed: Mapping[str, np.ndarray], opsets: Any) -> list[np.ndarray]:
    """Return the outputs of a node; raise if it cannot be evaluated, or if the outputs would fill the memory."""
    from onnx.reference import ReferenceEvaluator

    helper = onnx.helper
    described = [helper.make_tensor_value_info(name, 0, None) for name in feed]
    outputs = [helper.make_tensor_value_info(name, 0, None) for name in node.output if name]
    model = helper.make_model(helper.make_graph([node], "", described, outputs), opset_imports=opsets)
    try:
        size = _bytes_of_outputs(onnx, node, feed, opsets)
        if size <= _MOST_BYTES:
            return [np.asarray(value) for value in ReferenceEvaluator(model).run(None, dict(feed))]
    except Exception as error:  # the evaluator may raise any kind of error
        raise Unread(f"of constants ({error})") from error
    raise Unread(f"of constants (the result has {size} bytes, and at most {_MOST_BYTES} are computed)")


def _bytes_of_outputs(onnx: Any, node: Any, feed: Mapping[str, np.ndarray], opsets: Any) -> int:
    """Return the bytes of a node's outputs; outputs whose shapes ONNX cannot infer from `feed` do not count."""
    helper, given, constants = onnx.helper, [], []
    for name, array in feed.items():
        if array.size <= _SMALL:
            constants.append(onnx.numpy_helper.from_array(array, name))
        else:
            given.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape))
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([node], "", given, outputs, constants)
    model = helper.make_model(graph, opset_imports=opsets)
    total = 0
    for output in onnx.shape_inference.infer_shapes(model, data_prop=True).graph.output:
        kind = output.type.tensor_type
        sizes = [dim.dim_value for dim in kind.shape.dim]  # 0 for an unknown size
        if kind.elem_type:
            total += math.prod(sizes) * np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type)).itemsize
    return total
