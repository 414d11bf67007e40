"""Check the values and the shapes that the caller of `onnx.load` gives to inputs of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from varlen_rnn.errors import DTypeError, ProgramError, ShapeError, shown

Fixed = Mapping[str, "np.ndarray | tuple[int, ...]"]


def checked_fixed(onnx: Any, graph: Any, fixed: Any) -> Fixed:
    """Return {input: array, or shape with -1 for a size that only a run knows}; raise if one does not fit its input."""
    if fixed is None:
        return {}
    if not isinstance(fixed, Mapping):
        raise DTypeError("onnx.load, fixed", expected="a dict of input to value or shape", got=type(fixed).__name__)
    constants = {tensor.name for tensor in graph.initializer}
    inputs = {item.name: item for item in graph.input if item.name not in constants}
    for name in fixed:
        if name not in inputs:
            raise ProgramError("onnx.load, fixed", expected=f"inputs of the model, {list(inputs)}", got=shown(name))
    return {name: _checked(onnx, inputs[name], given) for name, given in fixed.items()}


def declared_sizes(item: Any) -> list[int]:
    """Return the shape that a model declares for an input, with -1 for each unknown size."""
    return [dim.dim_value if dim.HasField("dim_value") else -1 for dim in item.type.tensor_type.shape.dim]


def _checked(onnx: Any, item: Any, given: Any) -> Any:
    what, kind = f"onnx.load, fixed, {item.name!r}", item.type.tensor_type
    sizes, is_free = declared_sizes(item), not kind.HasField("shape")
    if isinstance(given, tuple):
        if not all(size is None or (isinstance(size, (int, np.integer)) and 0 <= size < 2**31) for size in given):
            raise ShapeError(what, expected="sizes of at least 0, or None", got=shown(given))
        found = tuple(-1 if size is None else int(size) for size in given)
        if not is_free and not _fits(found, sizes):
            raise ShapeError(what, expected=f"a shape that fits the model's, {sizes}", got=shown(given))
        return found
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        value = np.asarray(given)
    except (KeyError, TypeError, ValueError) as error:
        raise DTypeError(what, expected="numbers of a data type of ONNX", got=shown(given)) from error
    if value.dtype.kind not in "biuf" or not np.can_cast(value.dtype, dtype, "same_kind"):
        raise DTypeError(what, expected=str(dtype), got=str(value.dtype))
    if not is_free and not _fits(value.shape, sizes):
        raise ShapeError(what, expected=f"a value whose shape fits the model's, {sizes}", got=list(value.shape))
    with np.errstate(over="ignore"):
        return value.astype(dtype)


def _fits(found: tuple[int, ...], sizes: list[int]) -> bool:
    return len(found) == len(sizes) and all(-1 in pair or pair[0] == pair[1] for pair in zip(found, sizes, strict=True))
