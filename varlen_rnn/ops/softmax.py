"""The logarithm of the softmax; the softmax and losses over classes are computed from it."""

from varlen_rnn.errors import ShapeError, over_last_axis
from varlen_rnn.kernels import softmax
from varlen_rnn.kernels.reductions import sum_over
from varlen_rnn.ops.examples import rows
from varlen_rnn.ops.traits import of_vectors
from varlen_rnn.tape.checks import check_float
from varlen_rnn.tape.declare import operator


@operator(rows=of_vectors, onnx="LogSoftmax")
def log_softmax(x):
    """Return the logarithm of the softmax over the last axis."""
    return x.like(softmax.log_softmax(x.data))


log_softmax.examples(lambda rng: [([rows(rng, 3)], {})])


@log_softmax.infer
def _infer_log_softmax(x):
    check_float("log_softmax", x=x)
    if not x.shape or x.shape[-1] == 0:
        raise ShapeError("log_softmax, x", expected="at least one class", got=f"shape {x.shape}")
    return x


@log_softmax.backward("x", aliases={"y": "out", "d_y": "d_out"})
def _log_softmax_grad(x, y, d_y):
    total = sum_over(d_y.data, d_y.data.ndim - 1).reshape(*x.shape[:-1], 1)
    return x.like(softmax.log_softmax_grad(y.data, d_y.data, total))


log_softmax = over_last_axis(log_softmax)
