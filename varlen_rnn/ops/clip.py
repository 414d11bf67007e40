"""Scale gradients, dense or SelectedRows, so that their global norm is at most a limit."""

import math

import numpy as np

from varlen_rnn.errors import DTypeError, OutOfRangeError
from varlen_rnn.kernels.clip import clipped, norm_on_device
from varlen_rnn.kernels.copies import astype
from varlen_rnn.ops.cost import size
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.rows.selected_rows import SelectedRows
from varlen_rnn.runtime.device import on_device
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.kinds import LOD_TENSOR, SELECTED_ROWS
from varlen_rnn.tape.spec import TensorSpec


# Per element, the norm takes 2 operations, and the scaling 1.
@operator(outputs=("norm", "*out"), cost=lambda inputs, outputs, max_norm: 3 * sum(map(size, inputs)))
def clip_by_global_norm(*x, max_norm: float):
    """Return the global norm, and the gradients scaled by one factor so that their norm is at most `max_norm`."""
    # Entries of SelectedRows for the same row are summed first, because the gradient of the row is their sum.
    gradients = [value.merge() if isinstance(value, SelectedRows) else value for value in x]
    if gradients and on_device(_elements(gradients[0])):
        return _clipped_on_device(gradients, max_norm)
    with np.errstate(over="ignore", invalid="ignore"):
        norm = math.sqrt(sum_of_squares(gradients))
        gradients = scaled(gradients, norm, max_norm)
    return LoDTensor.wrap(np.array(norm)), *gradients


def _clipped_on_device(gradients, max_norm):
    """Clip gradients without copying the norm to the host; the norms of all data types are joined in float64."""
    arrays = [_elements(gradient) for gradient in gradients]
    of_type = {array.dtype: [other for other in arrays if other.dtype == array.dtype] for array in arrays}
    norms = {dtype: norm_on_device(some) for dtype, some in of_type.items()}
    parts = [astype(norm, np.float64) for norm in norms.values()]
    whole = parts[0] if len(parts) == 1 else norm_on_device(parts)
    if len(parts) > 1:
        norms = {dtype: astype(whole, dtype) for dtype in norms}
    found = {dtype: iter(clipped(some, norms[dtype], max_norm)) for dtype, some in of_type.items()}
    return LoDTensor.wrap(whole), *(_with(gradient, next(found[gradient.dtype])) for gradient in gradients)


@clip_by_global_norm.infer
def _infer(*gradients, max_norm):
    for number, gradient in enumerate(gradients):
        if gradient.kind not in (LOD_TENSOR, SELECTED_ROWS) or gradient.dtype.kind != "f":
            got = gradient.dtype or gradient.kind.name
            raise DTypeError(f"clip_by_global_norm, x[{number}]", expected="a gradient of floats", got=got)
    if not max_norm >= 0:
        raise OutOfRangeError("max_norm", expected="at least 0", got=max_norm)
    return TensorSpec((), np.dtype(np.float64)), *gradients


# The number of elements that are converted to float64 at a time, because a whole gradient would take more memory.
_PIECE = 2**16


def sum_of_squares(gradients):
    """Return the sum of the squares of all elements; rows of SelectedRows must be merged."""
    return sum(_sum_of_squares(_elements(value)) for value in gradients)


def scaled(gradients, norm, max_norm):
    """Return gradients whose global norm is `norm`, scaled so that it is at most `max_norm`."""
    if norm <= max_norm:
        return gradients
    # If the norm is NaN, all gradients become NaN, as in PyTorch.
    return [multiplied(value, max_norm / norm) for value in gradients]


def _sum_of_squares(values):
    """Return the sum of an array's squares in float64, because in float32 the square of 1e20 overflows."""
    flat, total = values.reshape(-1), 0.0
    for start in range(0, flat.size, _PIECE):
        piece = flat[start : start + _PIECE].astype(np.float64)
        total += float(np.add.reduce(np.multiply(piece, piece, out=piece)))
    return total


def _elements(gradient):
    return gradient.value if isinstance(gradient, SelectedRows) else gradient.data


def multiplied(gradient, factor):
    """Return a gradient times a number."""
    return _with(gradient, _elements(gradient) * _elements(gradient).dtype.type(factor))


def _with(gradient, value):
    """Return a gradient like `gradient`, with the elements `value`."""
    if isinstance(gradient, SelectedRows):
        return SelectedRows.wrap(gradient.rows, value, gradient.height)
    return LoDTensor.wrap(value, gradient.structure)


@clip_by_global_norm.examples
def _examples(rng):
    sparse = SelectedRows([4, 1, 4], rng.standard_normal((3, 2)), 6)
    for max_norm in (0.5, 100.0):
        yield [rng.standard_normal((2, 3)), sparse], {"max_norm": max_norm}
