"""Running sums along an axis.  Rows of sequences are refused: sums would run from one sequence into the next."""

from varlen_rnn.errors import LoDError, ShapeError
from varlen_rnn.kernels.reductions import running_sums
from varlen_rnn.ops.examples import rows
from varlen_rnn.tape.checks import check_float
from varlen_rnn.tape.declare import operator


def _rows(specs, axes, axis):
    return "each" if axes[0] != axis % len(specs[0].shape) else None


@operator(rows=_rows)
def cumsum(x, axis: int):
    """Return cumulative sums along an axis other than the rows of sequences."""
    return x.like(running_sums(x.data, axis))


@cumsum.infer
def _infer(x, axis):
    check_float("cumsum", x=x)
    if not -len(x.shape) <= axis < len(x.shape):
        raise ShapeError("cumsum, axis", expected=f"an axis of shape {x.shape}", got=axis)
    if x.lod_level and axis % len(x.shape) == 0:
        hint = "of all rows, whatever their sequences: cumsum of rows without a LoD"
        raise LoDError("cumsum, axis", expected="features of rows with a LoD", got="the rows", hint=hint)
    return x


@cumsum.backward("x", aliases={"d_y": "d_out"})
def _cumsum_grad(x, d_y, axis):
    return x.like(running_sums(d_y.data, axis, backwards=True))


@cumsum.examples
def _examples(rng):
    yield [rows(rng, 3)], {"axis": -1}
    yield [rng.standard_normal((4, 2))], {"axis": 0}
