"""Rows at positions that a Variable of integers holds.  The result has the LoD of this Variable."""

import math

import numpy as np

from varlen_rnn.errors import DTypeError, ShapeError
from varlen_rnn.kernels.rows import scatter_add_rows
from varlen_rnn.ops.cost import nothing, size
from varlen_rnn.ops.examples import rows
from varlen_rnn.ops.indices import indices, rows_at
from varlen_rnn.ops.traits import beside
from varlen_rnn.runtime.device import as_operand, zeros
from varlen_rnn.tape.checks import check_float, check_integer, check_like, check_tensor
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import TensorSpec


@operator(cost=nothing, rows=beside("each", 0))
def gather(x, index):
    """Return the rows of `x` at the positions in `index`; negative positions count from the end."""
    return index.like(rows_at(x.data, _places(x, index)).reshape((*index.shape, *x.shape[1:])))


def _places(x, index):
    return indices("gather, index", index, len(x.data), "row", from_end=True)


@gather.infer
def _infer(x, index):
    check_tensor("gather", "x", x)
    if not x.shape:
        raise ShapeError("gather, x", expected="rows", got="a single number")
    check_tensor("gather", "index", index)
    if index.dtype.kind == "b":
        hint = "x[np.asarray(mask)] outside of programs; where(mask, x, 0.0) keeps all rows"
        raise DTypeError("gather, index", expected="integers", got="a mask of bools", hint=hint)
    check_integer("gather", index=index)
    return TensorSpec((*index.shape, *x.shape[1:]), x.dtype, index.lod_level)


def _additions(inputs, outputs):
    """1 operation per element of the rows that were taken."""
    return size(inputs[2])


@gather.backward("x", cost=_additions)
def _gather_grad(x, index, d_out):
    flat, width = _places(x, index), math.prod(x.shape[1:])
    data = zeros(x.shape, x.data)
    scatter_add_rows(as_operand(d_out.data).reshape(len(flat), width), flat, data.reshape(len(data), width))
    return x.like(data)


@_gather_grad.infer
def _infer_grad(x, index, d_out):
    check_float("gather_grad", x=x)
    check_like("gather_grad", "d_out", d_out, _infer(x, index))
    return x


@gather.examples
def _examples(rng):
    yield [rows(rng, 3), np.array([[1, -1], [5, 1]])], {}
    yield [rng.standard_normal(4), rows(rng).like(rng.integers(-4, 4, 6).astype(np.int32))], {}
    yield [rng.integers(0, 9, (4, 2)), np.array(2)], {}
