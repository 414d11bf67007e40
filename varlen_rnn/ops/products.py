"""Products of rows and weights: `x @ weight + bias`, `weight` is (inputs, outputs), or (outputs, inputs) if transposed.

The products run on the register tile, so a row of a result depends neither on other rows nor on the number of threads.
"""

import math

from varlen_rnn.errors import ShapeError
from varlen_rnn.kernels.reductions import sum_over
from varlen_rnn.ops.cost import known, per_input_element, size
from varlen_rnn.ops.examples import rows
from varlen_rnn.products import gemm, row_sums
from varlen_rnn.rows.lod import NO_LOD, LoDTensor
from varlen_rnn.runtime.device import as_operand, empty
from varlen_rnn.tape.checks import check_float, check_rank, check_shape
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


@operator(cost=_of_matmul, rows=_rows_of_matmul)
def matmul(x, weight, bias=None, *, transposed: bool):
    """Return `x @ weight + bias`, or `x @ weight.T + bias` if `transposed`; each row is computed on its own."""
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
        raise ShapeError("matmul, x", expected=f"{depth} features, as the weight", got=f"shape {x.shape}")
    if bias:
        check_shape("matmul", "bias", bias, (columns,))
    # A vector has no rows: its only axis is the features, so the result has no LoD.
    return TensorSpec((*x.shape[:-1], columns), x.dtype, x.lod_level if len(x.shape) > 1 else 0)


@matmul.grad
def _grad(inputs, outputs, d_outputs, transposed):
    x, weight, bias = inputs
    (d,) = d_outputs
    d_x = apply("matmul", d, weight, None, transposed=not transposed) if x.requires_grad else None
    d_weight = None
    if weight.requires_grad:
        d_weight = apply("row_product", d, x) if transposed else apply("row_product", x, d)
    return [d_x, d_weight, apply("row_sum", d) if bias is not None and bias.requires_grad else None]


@matmul.examples
def _examples(rng):
    yield [rows(rng, 3), rng.standard_normal((3, 2)), None], {"transposed": False}
    yield [rows(rng, 3), rng.standard_normal((2, 3)), rng.standard_normal(2)], {"transposed": True}
    yield [rows(rng, 2, 3), rng.standard_normal((3, 2)), None], {"transposed": False}


def _of_row_product(inputs, outputs):
    """2 m k n operations for the product of (k, m), transposed, and (k, n)."""
    return 2 * size(inputs[0]) * known(inputs[1].shape[-1])


@operator(cost=_of_row_product, rows="sum")
def row_product(a, b):
    """Return `a.T @ b`, the sum over rows of their outer products; the gradient of a weight has this form."""
    return LoDTensor.wrap(row_sums.row_product(_rows(a.data), _rows(b.data)))


row_product.examples(lambda rng: [([rows(rng, 3), rows(rng, 2)], {})])


@row_product.infer
def _infer_row_product(a, b):
    check_float("row_product", a=a, b=b)
    _check_has_rows("row_product", "a", a)
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
    _check_has_rows("row_sum", "a", a)
    return a._replace(shape=a.shape[-1:], lod_level=0)


def _check_has_rows(op, name, desc):
    if not desc.shape:
        raise ShapeError(f"{op}, {name}", expected="rows", got="a single number")
