"""Clipping of gradients, dense and SelectedRows alike, by their global norm."""

import numpy as np

from varlen_rnn.errors import DTypeError, OutOfRangeError
from varlen_rnn.lod import LoDTensor
from varlen_rnn.ops.cost import size
from varlen_rnn.selected_rows import SelectedRows
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.kinds import LOD_TENSOR, SELECTED_ROWS
from varlen_rnn.tape.spec import TensorSpec


def _of_clipping(inputs, outputs, max_norm):
    """3 per element: the norm, and the factor."""
    return 3 * sum(map(size, inputs))


@operator(outputs=("norm", "*out"), cost=_of_clipping)
def clip_by_global_norm(*x, max_norm: float):
    """Return the global norm, and gradients scaled by one factor so that it is at most `max_norm`."""
    # Duplicate rows are summed first, for only their sum has a norm.
    gradients = [value.merge() if isinstance(value, SelectedRows) else value for value in x]
    squares = [np.sum(np.square(_elements(value), dtype=np.float64)) for value in gradients]
    norm = float(np.sqrt(sum(squares)))
    if norm > max_norm:
        gradients = [_scaled(value, max_norm / norm) for value in gradients]
    return LoDTensor.wrap(np.array(norm)), *gradients


@clip_by_global_norm.infer
def _infer(*gradients, max_norm):
    for number, gradient in enumerate(gradients):
        if gradient.kind not in (LOD_TENSOR, SELECTED_ROWS) or gradient.dtype.kind != "f":
            raise DTypeError(f"clip_by_global_norm, x[{number}]", expected="a gradient", got=gradient.kind.name)
    if not max_norm > 0:
        raise OutOfRangeError("max_norm", expected="more than 0", got=max_norm)
    return TensorSpec((), np.dtype(np.float64)), *gradients


def _elements(gradient):
    return gradient.value if isinstance(gradient, SelectedRows) else gradient.data


def _scaled(gradient, factor):
    value = _elements(gradient) * _elements(gradient).dtype.type(factor)
    if isinstance(gradient, SelectedRows):
        return SelectedRows.wrap(gradient.rows, value, gradient.height)
    return LoDTensor.wrap(value, gradient.structure)


@clip_by_global_norm.examples
def _examples(rng):
    sparse = SelectedRows([4, 1, 4], rng.standard_normal((3, 2)), 6)
    for max_norm in (0.5, 100.0):
        yield [rng.standard_normal((2, 3)), sparse], {"max_norm": max_norm}
