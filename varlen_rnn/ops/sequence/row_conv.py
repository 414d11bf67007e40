"""Lookahead along each sequence: every row becomes a weighted sum of itself and the rows that follow."""

import numpy as np

from varlen_rnn.errors import ShapeError
from varlen_rnn.kernels import windows
from varlen_rnn.kernels.arithmetic import multiply
from varlen_rnn.kernels.copies import assign
from varlen_rnn.kernels.reductions import sum_over
from varlen_rnn.ops.cost import known, size
from varlen_rnn.ops.examples import TROUBLES, rows
from varlen_rnn.ops.indices import rows_at
from varlen_rnn.ops.traits import beside
from varlen_rnn.rows.lod import LoDTensor, levels_of
from varlen_rnn.runtime.device import as_operand, empty
from varlen_rnn.tape.checks import check_float, check_lod_level, check_rank, check_shape
from varlen_rnn.tape.declare import operator


def _products(inputs, outputs):
    """2 operations per element of each window."""
    return 2 * size(inputs[0]) * known(inputs[1].shape[0])


@operator(cost=_products, rows=beside("sequence", 1))
def row_conv(x, weight):
    """Return, for each row t, the sum over k of `weight[k] * x[t + k]`, as far as its sequence has rows.

    Parameters
    ----------
    x : Variable or LoDTensor, shape `(rows, features)`
        float32 or float64, with at least one level; the sequences are taken from the last level.
    weight : Variable or array, shape `(future_context_size + 1, features)`

    Returns
    -------
    Variable like `x`, with its LoD

    Examples
    --------
    >>> x = LoDTensor(np.array([[1.0], [2.0], [3.0]]), [[0, 2, 3]])
    >>> np.asarray(row_conv(x, np.array([[1.0], [10.0]]))).ravel()
    array([21.,  2.,  3.])

    Source: the operator `row_conv` of PaddlePaddle Fluid, the row convolution of Deep Speech 2 (Amodei et al., 2016);
    a padded batch goes through `sequence_unpad` first.
    """
    return x.like(_convolved(x, x.structure, weight, 1))


def _convolved(x, lod, weight, direction):
    data, offsets = as_operand(x.data), levels_of(lod)[-1]
    out = empty(data.shape, data)
    windows.row_conv(data, offsets, as_operand(weight.data), direction, out)
    return out


@row_conv.infer
def _infer(x, weight):
    check_float("row_conv", x=x, weight=weight)
    check_lod_level("row_conv", "x", x)
    check_rank("row_conv", "x", x, 2)
    check_shape("row_conv", "weight", weight, (-1, x.shape[1]))
    if weight.shape[0] == 0:
        raise ShapeError("row_conv, weight", expected="at least one row", got=f"shape {weight.shape}")
    return x


@row_conv.backward("x", "weight", cost=_products)
def _row_conv_grad(x, weight, d_out):
    offsets = levels_of(x.structure)[-1]
    d_rows, rows = as_operand(d_out.data), as_operand(x.data)
    left = np.repeat(offsets[1:], np.diff(offsets)) - np.arange(
        len(x.data)
    )  # rows from each row to the end of its sequence
    d_weight = empty(weight.shape, weight.data)
    for k in range(len(d_weight)):
        at = np.flatnonzero(left > k)
        assign(sum_over(multiply(rows_at(d_rows, at), rows_at(rows, at + k)), 0), d_weight[k])
    return x.like(_convolved(d_out, x.structure, weight, -1)), LoDTensor.wrap(d_weight)


@row_conv.examples
def _examples(rng):
    for context in (1, 2, 5):
        yield [rows(rng, 3), rng.standard_normal((context, 3))], {}
    for lod in TROUBLES:
        yield [rows(rng, 2, lod=lod), rng.standard_normal((2, 2))], {}
