"""Dropout.  Each run draws a new mask, by the places of rows; see `varlen_rnn.random`."""

import math

from varlen_rnn.errors import OutOfRangeError
from varlen_rnn.kernels.arithmetic import multiply
from varlen_rnn.ops.draws import mask_of_rows
from varlen_rnn.ops.examples import rows
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.tape.checks import check_float, check_like
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import TensorSpec
from varlen_rnn.tape.variable import apply


def _rows(specs, axes, p, training):
    return None if training else "each"  # random numbers are drawn at every step


@operator(outputs=("out", "mask"), intermediate=("mask",), inference={"training": False}, rows=_rows)
def dropout(x, p: float, training: bool):
    """In training, zero each element with probability `p` and divide the others by 1 - p; otherwise return `x`."""
    if not training:
        return x
    mask = mask_of_rows(x, math.prod(x.shape[1:]), p, 0.0, 1 / (1 - p) if p < 1 else 0.0).reshape(x.shape)
    return x.like(multiply(x.data, mask)), LoDTensor.wrap(mask)


@dropout.infer
def _infer(x, p, training):
    check_float("dropout", x=x)
    if not 0 <= p <= 1:
        raise OutOfRangeError("dropout, p", expected="0 <= p <= 1", got=p)
    return (x, TensorSpec(x.shape, x.dtype)) if training else x


@dropout.grad
def _grad(inputs, outputs, d_outputs, p, training):
    return [apply("dropout_grad", d_outputs[0], outputs[1]) if training else d_outputs[0]]


@operator(rows="each")
def dropout_grad(d_out, mask):
    """Return the gradient of `dropout`."""
    return d_out.like(multiply(d_out.data, mask.data))


@dropout_grad.infer
def _infer_grad(d_out, mask):
    check_float("dropout_grad", d_out=d_out)
    check_like("dropout_grad", "mask", mask, d_out)
    return d_out


@dropout.examples
def _examples(rng):
    for training in (True, False):
        yield [rows(rng, 3)], {"p": 0.4, "training": training}
