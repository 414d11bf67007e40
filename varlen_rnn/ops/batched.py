"""Products of batches of matrices; the batches broadcast as in `numpy.matmul`.

The bits of a row of a product depend on neither the other rows, nor the other matrices, nor the number of threads.
"""

import math

import numpy as np

from varlen_rnn.errors import ShapeError
from varlen_rnn.kernels.matrices import multiply_matrices
from varlen_rnn.ops.cost import known, size
from varlen_rnn.ops.elementwise import grad_like, with_lod
from varlen_rnn.ops.examples import rows
from varlen_rnn.products import gemm
from varlen_rnn.runtime.device import as_operand, empty, on_device
from varlen_rnn.tape.checks import broadcast_shape, check_float, shared_lod
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import TensorSpec
from varlen_rnn.tape.variable import apply

# A plain loop is as fast and as exact as the register tile if the right matrix has at most `_SMALL` elements and
# `_SHORT` rows.
_SMALL, _SHORT = 2**12, 2**9


def _of_products(inputs, outputs):
    """2 m k n operations for each product of a matrix (m, k) and a matrix (k, n)."""
    return 2 * known(inputs[0].shape[-1]) * size(outputs[0])


@operator(cost=_of_products, rows="each")
def batched_matmul(x, y):
    """Multiply the matrices in the last two axes; the result has the LoD of the operands that have every batch axis."""
    before = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    a, of_a = _matrices(x.data, before)
    b, of_b = _matrices(y.data, before)
    out = empty((len(of_a), a.shape[1], b.shape[2]), x.data)
    if not on_device(out) and out.size and (b[0].size > _SMALL or b.shape[1] > _SHORT):
        for i, (left, right) in enumerate(zip(of_a, of_b, strict=True)):
            gemm.product(a[left], b[right], out[i])
    elif b.shape[2] < a.shape[1] and not on_device(out):
        # The transposed product has the same sums, and its inner loop runs over more columns.
        flipped = empty((len(out), out.shape[2], out.shape[1]), out)
        multiply_matrices(_flipped(b), of_b, _flipped(a), of_a, flipped)
        out = _flipped(flipped)
    else:
        multiply_matrices(a, of_a, b, of_b, out)
    with_rows = [tensor for tensor in (x, y) if tensor.data.ndim == len(before) + 2]
    lod = shared_lod("batched_matmul", *with_rows, names=("x", "y"))
    return with_lod("batched_matmul", out.reshape(*before, *out.shape[1:]), lod, (x, y))


def _matrices(data, before):
    """Return an array's matrices along one axis, and for each product the position of its matrix on this axis."""
    batch = data.shape[:-2]
    numbers = np.arange(math.prod(batch)).reshape(batch)
    flat = as_operand(data).reshape(numbers.size, *data.shape[-2:])
    return flat, np.ascontiguousarray(np.broadcast_to(numbers, before)).reshape(-1)


def _flipped(matrices):
    return np.ascontiguousarray(np.swapaxes(matrices, 1, 2))


@batched_matmul.infer
def _infer(x, y):
    check_float("batched_matmul", x=x, y=y)
    for name, desc in (("x", x), ("y", y)):
        if len(desc.shape) < 2:
            got = f"shape {desc.shape}"
            raise ShapeError(f"batched_matmul, {name}", expected="matrices", got=got, hint="reshape a vector to one")
    if x.shape[-1] != y.shape[-2] and -1 not in (x.shape[-1], y.shape[-2]):
        raise ShapeError("batched_matmul", expected="the columns of x as the rows of y", got=f"{x.shape} and {y.shape}")
    before = broadcast_shape("batched_matmul", x.shape[:-2], y.shape[:-2])
    if not before:
        raise ShapeError(
            "batched_matmul", expected="a batch of matrices", got=f"{x.shape} and {y.shape}", hint="matmul"
        )
    level = max(desc.lod_level for desc in (x, y) if len(desc.shape) == len(before) + 2)
    return TensorSpec((*before, x.shape[-2], y.shape[-1]), x.dtype, level)


@batched_matmul.grad
def _grad(inputs, outputs, d_outputs):
    (x, y), d = inputs, d_outputs[0]
    d_x = d_y = None
    if x.requires_grad:
        d_x = grad_like(apply("batched_matmul", d, apply("transpose", y, axis0=-2, axis1=-1)), x)
    if y.requires_grad:
        d_y = grad_like(apply("batched_matmul", apply("transpose", x, axis0=-2, axis1=-1), d), y)
    return [d_x, d_y]


@batched_matmul.examples
def _examples(rng):
    yield [rows(rng, 2, 3), rows(rng, 3, 4)], {}
    yield [rows(rng, 2, 3), rng.standard_normal((1, 3, 4))], {}
    yield [rng.standard_normal((2, 1, 2, 3)), rng.standard_normal((3, 3, 1))], {}
    yield [rows(rng, 3), rng.standard_normal((2, 3, 4))], {}
