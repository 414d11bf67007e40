"""Scale gradients, dense or SelectedRows, so that their global norm is at most a limit."""

import numpy as np

from varlen_rnn.errors import DTypeError, OutOfRangeError
from varlen_rnn.kernels.clip import SQUARES, add_squares, clipped, factor_of_norm, norm_on_device
from varlen_rnn.kernels.copies import astype
from varlen_rnn.ops.cost import size
from varlen_rnn.ops.updates import ONE_ROW
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.rows.selected_rows import SelectedRows
from varlen_rnn.runtime.device import as_operand, empty, on_device, zeros
from varlen_rnn.runtime.placeholder import Placeholder
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.kinds import LOD_TENSOR, SELECTED_ROWS
from varlen_rnn.tape.spec import TensorSpec


# Per element, the norm takes 2 operations, and the scaling 1.
@operator(outputs=("norm", "*out"), cost=lambda inputs, outputs, max_norm: 3 * sum(map(size, inputs)), shares=True)
def clip_by_global_norm(*x, max_norm: float):
    """Return the global norm, and the gradients scaled by one factor so that their norm is at most `max_norm`."""
    # Entries of SelectedRows for the same row are summed first, because the gradient of the row is their sum.
    gradients = [value.merge() if isinstance(value, SelectedRows) else value for value in x]
    if gradients and on_device(_elements(gradients[0])):
        return _clipped_on_device(gradients, max_norm)
    norm, gradients = scaled(gradients, sum_of_squares(gradients), max_norm)
    return LoDTensor.wrap(norm), *gradients


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


def sum_of_squares(gradients):
    """Return the sum of the squares of all elements, an array of one float64; rows of SelectedRows must be merged."""
    like = _elements(gradients[0]) if gradients else np.empty(0)
    total = zeros((1,), like, np.float64)
    squares = empty((min(SQUARES, max((_elements(value).size for value in gradients), default=0)),), like, np.float64)
    for value in gradients:
        x = as_operand(_elements(value))
        if isinstance(value, SelectedRows):
            add_squares(x.reshape(len(x), x.size // max(1, len(x))), value.rows, squares, total)
        else:
            add_squares(x.reshape(1, x.size), ONE_ROW, squares, total)
    return total


def scaled(gradients, squares, max_norm):
    """Return the norm of gradients, given its square, and the gradients, scaled so that it is at most `max_norm`."""
    norm, factor = empty((), squares), empty((1,), squares)
    factor_of_norm(squares, max_norm, norm.reshape(1), factor)
    if type(factor) is not Placeholder and factor[0] == 1:
        return norm, gradients
    return norm, [multiplied(value, factor) for value in gradients]


def _elements(gradient):
    return gradient.value if isinstance(gradient, SelectedRows) else gradient.data


def multiplied(gradient, factor):
    """Return a gradient times a number, or an array of one number."""
    values = _elements(gradient)
    with np.errstate(over="ignore", invalid="ignore"):
        if isinstance(factor, np.ndarray):
            number = empty((), factor, values.dtype)
            number[...] = factor.reshape(())
        else:
            number = values.dtype.type(factor)
        return _with(gradient, values * number)


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
