"""Clipping of gradients, dense and SelectedRows alike, by their global norm."""

import numpy as np

from varlen_rnn.errors import DTypeError, OutOfRangeError
from varlen_rnn.lod import LoDTensor
from varlen_rnn.selected_rows import SelectedRows
from varlen_rnn.tape.kinds import LOD_TENSOR, SELECTED_ROWS
from varlen_rnn.tape.operator import Op, register
from varlen_rnn.tape.spec import TensorSpec


def _infer(*gradients, max_norm):
    for number, gradient in enumerate(gradients):
        if gradient.kind not in (LOD_TENSOR, SELECTED_ROWS) or gradient.dtype.kind != "f":
            raise DTypeError(f"clip_by_global_norm, x[{number}]", expected="a gradient", got=gradient.kind.name)
    if not max_norm > 0:
        raise OutOfRangeError("max_norm", expected="more than 0", got=max_norm)
    return [TensorSpec((), np.dtype(np.float64)), *gradients]


def _forward(*gradients, max_norm):
    """Return the norm before, and the gradients; duplicate rows are summed first, for only their sum has a norm."""
    gradients = [value.merge() if isinstance(value, SelectedRows) else value for value in gradients]
    squares = [np.sum(np.square(_elements(value), dtype=np.float64)) for value in gradients]
    norm = float(np.sqrt(sum(squares)))
    if norm > max_norm:
        gradients = [_scaled(value, max_norm / norm) for value in gradients]
    return [LoDTensor.wrap(np.array(norm)), *gradients]


def _elements(gradient):
    return gradient.value if isinstance(gradient, SelectedRows) else gradient.data


def _scaled(gradient, factor):
    value = _elements(gradient) * _elements(gradient).dtype.type(factor)
    if isinstance(gradient, SelectedRows):
        return SelectedRows.wrap(gradient.rows, value, gradient.height)
    return LoDTensor.wrap(value, gradient.structure)


register(Op("clip_by_global_norm", ("*x",), _infer, _forward, outputs=("norm", "*out"), attrs={"max_norm": "float"}))
