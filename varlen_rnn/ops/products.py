"""Products of rows and weights, and products of batches of matrices, which broadcast as in `numpy.matmul`.

Products of rows run on the register tile (a block of the result that is kept in registers).  A row of a product has the
same bits, whatever the other rows and matrices are, and whatever the number of threads.
"""

import math

import numpy as np

from varlen_rnn.errors import ShapeError
from varlen_rnn.kernels.matrices import multiply_matrices
from varlen_rnn.kernels.reductions import sum_over
from varlen_rnn.ops.cost import known, per_input_element, size
from varlen_rnn.ops.elementwise import grad_like, with_lod
from varlen_rnn.ops.examples import rows
from varlen_rnn.products import gemm, row_sums
from varlen_rnn.rows.lod import NO_LOD, LoDTensor
from varlen_rnn.runtime.device import as_operand, contiguous, empty, on_device
from varlen_rnn.tape.checks import broadcast_shape, check_float, check_has_rows, check_rank, check_shape, shared_lod
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import TensorSpec
from varlen_rnn.tape.variable import apply


def _rows(data):
    return as_operand(data).reshape(math.prod(data.shape[:-1]), data.shape[-1])


def _of_matmul(inputs, outputs, transposed):
    """2 m k n operations for a product of (m, k) and (k, n), plus m n for a bias."""
    x, _, bias = inputs
    return (2 * known(x.shape[-1]) + (bias is not None)) * size(outputs[0])


def _rows_of_matmul(specs, axes, transposed):
    return "each" if axes[1] is axes[2] is None and axes[0] != len(specs[0].shape) - 1 else None


@operator(cost=_of_matmul, rows=_rows_of_matmul, multiplies=True)
def matmul(x, weight, bias=None, *, transposed: bool):
    """Return `x @ weight + bias`, or `x @ weight.T + bias` if `transposed`; no row depends on another one."""
    columns = weight.shape[0 if transposed else 1]
    flat = _rows(x.data)
    out = empty((len(flat), columns), flat)
    bias = None if bias is None else as_operand(bias.data)
    gemm.product(flat, as_operand(weight.data), out, transposed=transposed, bias=bias)
    lod = x.structure if x.data.ndim > 1 else NO_LOD
    return LoDTensor.wrap(out.reshape(*x.shape[:-1], columns), lod)


@matmul.infer
def _infer_matmul(x, weight, bias, transposed):
    check_float("matmul", x=x, weight=weight)
    if bias:
        check_float("matmul", x=x, bias=bias)
    check_rank("matmul", "weight", weight, 2)
    columns, depth = weight.shape if transposed else weight.shape[::-1]
    if not x.shape or (x.shape[-1] != depth and -1 not in (x.shape[-1], depth)):
        raise ShapeError("matmul, x", expected=f"{depth} features, as the weight takes", got=f"shape {x.shape}")
    if bias:
        check_shape("matmul", "bias", bias, (columns,))
    # A vector has no rows: its only axis is the features, so the result has no LoD.
    return TensorSpec((*x.shape[:-1], columns), x.dtype, x.lod_level if len(x.shape) > 1 else 0)


@matmul.grad
def _products_grad(inputs, outputs, d_outputs, transposed):
    x, weight, bias = inputs
    (d,) = d_outputs
    d_x = apply("matmul", d, weight, None, transposed=not transposed) if x.requires_grad else None
    d_weight = None
    if weight.requires_grad:
        d_weight = apply("row_product", d, x) if transposed else apply("row_product", x, d)
    return [d_x, d_weight, apply("row_sum", d) if bias is not None and bias.requires_grad else None]


@matmul.examples
def _products_examples(rng):
    yield [rows(rng, 3), rng.standard_normal((3, 2)), None], {"transposed": False}
    yield [rows(rng, 3), rng.standard_normal((2, 3)), rng.standard_normal(2)], {"transposed": True}
    yield [rows(rng, 2, 3), rng.standard_normal((3, 2)), None], {"transposed": False}


@operator(cost=lambda inputs, outputs: 2 * size(inputs[0]) * known(inputs[1].shape[-1]), rows="sum", multiplies=True)
def row_product(a, b):
    """Return `a.T @ b`, the sum over rows of their outer products; the gradient of a weight has this form."""
    return LoDTensor.wrap(row_sums.row_product(_rows(a.data), _rows(b.data)))


row_product.examples(lambda rng: [([rows(rng, 3), rows(rng, 2)], {})])


@row_product.infer
def _infer_row_product(a, b):
    check_float("row_product", a=a, b=b)
    check_has_rows("row_product", "a", a)
    check_shape("row_product", "b", b, (*a.shape[:-1], -1))
    return a._replace(shape=(a.shape[-1], b.shape[-1]), lod_level=0)


@operator(cost=per_input_element, rows="sum")
def row_sum(a):
    """Return the sum of the rows; the gradient of a bias has this form."""
    return LoDTensor.wrap(sum_over(_rows(a.data), 0))


row_sum.examples(lambda rng: [([rows(rng, 3)], {})])


@row_sum.infer
def _infer_row_sum(a):
    check_float("row_sum", a=a)
    check_has_rows("row_sum", "a", a)
    return a._replace(shape=a.shape[-1:], lod_level=0)


# If the right matrix has at most `_SMALL` elements and `_SHORT` rows, a plain loop is as fast and exact as the tile.
_SMALL, _SHORT = 2**12, 2**9


@operator(cost=lambda inputs, outputs: 2 * known(inputs[0].shape[-1]) * size(outputs[0]), rows="each", multiplies=True)
def batched_matmul(x, y):
    """Multiply the matrices in the last two axes; the result has the LoD of the operands that have all its axes."""
    before = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    a, of_a = _matrices(x.data, before)
    b, of_b = _matrices(y.data, before)
    out = empty((len(of_a), a.shape[1], b.shape[2]), x.data)
    if not on_device(out) and out.size and (b[0].size > _SMALL or b.shape[1] > _SHORT):
        for i, (left, right) in enumerate(zip(of_a, of_b, strict=True)):
            gemm.product(a[left], b[right], out[i])
    elif b.shape[2] < a.shape[1] and not on_device(out):
        # Compute the transposed product, which has the same sums, because its inner loop runs over more columns.
        flipped = empty((len(out), out.shape[2], out.shape[1]), out)
        multiply_matrices(_flipped(b), of_b, _flipped(a), of_a, flipped)
        out = _flipped(flipped)
    else:
        multiply_matrices(a, of_a, b, of_b, out)
    with_rows = [tensor for tensor in (x, y) if tensor.data.ndim == len(before) + 2]
    lod = shared_lod("batched_matmul", *with_rows, names=("x", "y"))
    return with_lod("batched_matmul", out.reshape(*before, *out.shape[1:]), lod, (x, y))


def _matrices(data, before):
    """Return an array's matrices along one axis, and for each product of the batch the position of its matrix."""
    batch = data.shape[:-2]
    numbers = np.arange(math.prod(batch)).reshape(batch)
    flat = as_operand(data).reshape(numbers.size, *data.shape[-2:])
    return flat, np.ascontiguousarray(np.broadcast_to(numbers, before)).reshape(-1)


def _flipped(matrices):
    return contiguous(matrices.swapaxes(1, 2))


@batched_matmul.infer
def _infer(x, y):
    check_float("batched_matmul", x=x, y=y)
    for name, desc in (("x", x), ("y", y)):
        if len(desc.shape) < 2:
            got = f"shape {desc.shape}"
            hint = "reshape a vector to a matrix"
            raise ShapeError(f"batched_matmul, {name}", expected="matrices", got=got, hint=hint)
    if x.shape[-1] != y.shape[-2] and -1 not in (x.shape[-1], y.shape[-2]):
        expected = f"{x.shape[-1]} rows of y, as many as x has columns"
        raise ShapeError("batched_matmul", expected=expected, got=f"{x.shape} and {y.shape}")
    before = broadcast_shape("batched_matmul", x.shape[:-2], y.shape[:-2])
    if not before:
        got = f"{x.shape} and {y.shape}"
        hint = "x @ y multiplies two single matrices"
        raise ShapeError("batched_matmul", expected="a batch of matrices", got=got, hint=hint)
    level = max(desc.lod_level for desc in (x, y) if len(desc.shape) == len(before) + 2)
    return TensorSpec((*before, x.shape[-2], y.shape[-1]), x.dtype, level)


@batched_matmul.grad
def _batched_grad(inputs, outputs, d_outputs):
    (x, y), d = inputs, d_outputs[0]
    d_x = d_y = None
    if x.requires_grad:
        d_x = grad_like(apply("batched_matmul", d, apply("transpose", y, axis0=-2, axis1=-1)), x)
    if y.requires_grad:
        d_y = grad_like(apply("batched_matmul", apply("transpose", x, axis0=-2, axis1=-1), d), y)
    return [d_x, d_y]


@batched_matmul.examples
def _batched_examples(rng):
    yield [rows(rng, 2, 3), rows(rng, 3, 4)], {}
    yield [rows(rng, 2, 3), rng.standard_normal((1, 3, 4))], {}
    yield [rng.standard_normal((2, 1, 2, 3)), rng.standard_normal((3, 3, 1))], {}
    yield [rows(rng, 3), rng.standard_normal((2, 3, 4))], {}
