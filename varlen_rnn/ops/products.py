"""Products of rows and weights: `x @ weight + bias`, with `weight` (inputs, outputs), or (outputs, inputs) transposed.

They run on the register tile, so that a row of a result does not depend on the rows beside it, nor on the number of
threads.
"""

import math

from varlen_rnn.device import as_operand, empty
from varlen_rnn.errors import ShapeError
from varlen_rnn.lod import NO_LOD, LoDTensor
from varlen_rnn.ops.checks import check_float, check_rank, check_shape
from varlen_rnn.products.gemm import product
from varlen_rnn.products.row_sums import row_product, row_sum
from varlen_rnn.tape.operator import Op, register
from varlen_rnn.tape.spec import TensorSpec
from varlen_rnn.tape.variable import apply


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
    # Of one dimension, the features are the rows, and those of the result are others.
    return [TensorSpec((*x.shape[:-1], columns), x.dtype, x.lod_level if len(x.shape) > 1 else 0)]


def _matmul(x, weight, bias, transposed):
    columns = weight.shape[0 if transposed else 1]
    rows = _rows(x.data)
    out = empty((len(rows), columns), rows)
    bias = None if bias is None else as_operand(bias.data)
    product(rows, as_operand(weight.data), out, transposed=transposed, bias=bias)
    lod = x.structure if x.data.ndim > 1 else NO_LOD
    return [LoDTensor.wrap(out.reshape(*x.shape[:-1], columns), lod)]


def _matmul_grad(inputs, outputs, d_outputs, transposed):
    x, weight, bias = inputs
    (d,) = d_outputs
    d_x = apply("matmul", d, weight, None, transposed=not transposed) if x.requires_grad else None
    d_weight = None
    if weight.requires_grad:
        d_weight = apply("row_product", d, x) if transposed else apply("row_product", x, d)
    return [d_x, d_weight, apply("row_sum", d) if bias is not None and bias.requires_grad else None]


def _rows(data):
    return as_operand(data).reshape(math.prod(data.shape[:-1]), data.shape[-1])


def _row_product(a, b):
    return [LoDTensor.wrap(row_product(_rows(a.data), _rows(b.data)))]


def _infer_row_product(a, b):
    check_float("row_product", a=a, b=b)
    _check_has_rows("row_product", "a", a)
    check_shape("row_product", "b", b, (*a.shape[:-1], -1))
    return [a._replace(shape=(a.shape[-1], b.shape[-1]), lod_level=0)]


def _infer_row_sum(a):
    check_float("row_sum", a=a)
    _check_has_rows("row_sum", "a", a)
    return [a._replace(shape=a.shape[-1:], lod_level=0)]


def _check_has_rows(op, name, desc):
    if not desc.shape:
        raise ShapeError(f"{op}, {name}", expected="rows", got="a single number")


register(Op("matmul", ("x", "weight", "bias?"), _infer_matmul, _matmul, _matmul_grad, attrs={"transposed": "bool"}))
register(Op("row_product", ("a", "b"), _infer_row_product, _row_product))
register(Op("row_sum", ("a",), _infer_row_sum, lambda a: [LoDTensor.wrap(row_sum(_rows(a.data)))]))
