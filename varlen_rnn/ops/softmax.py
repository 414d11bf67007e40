"""The logarithm of the softmax; the softmax and losses over classes are computed from it."""

import numpy as np

from varlen_rnn.errors import ShapeError, hinting
from varlen_rnn.kernels.pool import sum_over
from varlen_rnn.ops.examples import rows
from varlen_rnn.ops.traits import of_vectors
from varlen_rnn.tape.checks import check_float
from varlen_rnn.tape.declare import operator


@operator(rows=of_vectors, onnx="LogSoftmax")
def log_softmax(x):
    """Return the logarithm of the softmax over the last axis."""
    return x.like(log_softmax_of(x.data))


@log_softmax.infer
def _infer_log_softmax(x):
    check_float("log_softmax", x=x)
    if not x.shape or x.shape[-1] == 0:
        raise ShapeError("log_softmax, x", expected="at least one class", got=f"shape {x.shape}")
    return x


@log_softmax.backward("x", aliases={"y": "out", "d_y": "d_out"})
def _log_softmax_grad(x, y, d_y):
    return x.like(d_y.data - np.exp(y.data) * np.expand_dims(sum_over(d_y.data, d_y.data.ndim - 1), -1))


@log_softmax.examples
def _examples(rng):
    yield [rows(rng, 3)], {}


log_softmax = hinting(dim="leave it out: it is over the last axis")(log_softmax)


def log_softmax_of(x):
    """Return the logarithm of the softmax over the last axis of an array: the same bits as SciPy's."""
    x = x if x.flags.c_contiguous else np.ascontiguousarray(x)  # for other memory orders NumPy sums differently
    highest = np.maximum.reduce(x, -1, keepdims=True)
    finite = np.isfinite(highest)
    if np.count_nonzero(finite) == finite.size:
        return _log_softmax(x, highest)
    with np.errstate(divide="ignore"):  # the sum is 0 if a row is all -inf
        return _log_softmax(x, np.where(finite, highest, 0))


def _log_softmax(x, highest):
    shifted = x - highest
    shifted -= np.log(np.add.reduce(np.exp(shifted), -1, keepdims=True))
    return shifted
