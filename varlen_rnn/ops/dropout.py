"""Dropout, whose mask comes from the context's generator each time that it runs."""

import numpy as np

from varlen_rnn.errors import OutOfRangeError
from varlen_rnn.lod import LoDTensor
from varlen_rnn.ops.checks import check_float, check_like
from varlen_rnn.random import generator
from varlen_rnn.tape.operator import Op, register
from varlen_rnn.tape.spec import TensorSpec
from varlen_rnn.tape.variable import apply


def _infer(x, p, training):
    check_float("dropout", x=x)
    if not 0 <= p <= 1:
        raise OutOfRangeError("dropout, p", expected="0 <= p <= 1", got=p)
    return [x, TensorSpec(x.shape, x.dtype)] if training else [x]


def _forward(x, p, training):
    """Return the thinned rows and the mask: 0, or 1 / (1 - p)."""
    if not training:
        return [x]
    keep = generator().random(x.shape, np.float32) >= p
    mask = keep * (x.dtype.type(1 / (1 - p)) if p < 1 else x.dtype.type(0))
    return [x.like(x.data * mask), LoDTensor.wrap(mask)]


def _grad(inputs, outputs, d_outputs, p, training):
    return [apply("dropout_grad", d_outputs[0], outputs[1])]


def _infer_grad(d_out, mask):
    check_float("dropout_grad", d_out=d_out)
    check_like("dropout_grad", "mask", mask, d_out)
    return [d_out]


def _forward_grad(d_out, mask):
    return [d_out.like(d_out.data * mask.data)]


register(
    Op(
        "dropout",
        ("x",),
        _infer,
        _forward,
        _grad,
        outputs=("out", "mask"),
        attrs={"p": "float", "training": "bool"},
        inference={"training": False},
    )
)
register(Op("dropout_grad", ("d_out", "mask"), _infer_grad, _forward_grad))
