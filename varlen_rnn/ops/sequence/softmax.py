"""Softmax over the rows of each sequence, for example as the weights of an attention."""

from varlen_rnn.kernels import softmax
from varlen_rnn.ops.examples import TROUBLES, rows
from varlen_rnn.ops.sequence.movement import flat
from varlen_rnn.rows.lod import levels_of
from varlen_rnn.runtime.device import empty
from varlen_rnn.tape.checks import check_float, check_lod_level
from varlen_rnn.tape.declare import operator


@operator(rows="sequence")
def sequence_softmax(x):
    """Return the softmax over the rows of each sequence, separately for each element of a row.

    The sequences are taken from the last level.  The maximum is subtracted first, so large numbers do not overflow.
    NaN, or an infinite maximum, gives NaN.

    Parameters
    ----------
    x : Variable or LoDTensor, shape `(rows, ...)`
        float32 or float64, with at least one level.

    Returns
    -------
    Variable like `x`, with its LoD

    Examples
    --------
    >>> import numpy as np
    >>> from varlen_rnn.rows.lod import LoDTensor
    >>> x = LoDTensor(np.array([1e9, 1e9, -5.0]), [[0, 2, 2, 3]])
    >>> np.asarray(sequence_softmax(x))
    array([0.5, 0.5, 1. ])

    Source: the operator `sequence_softmax` of PaddlePaddle Fluid, which takes rows of one element and lets large
    numbers overflow.
    """
    data = flat(x.data)
    out = empty(data.shape, data)
    softmax.softmax(data, levels_of(x.structure)[-1], out)
    return x.like(out.reshape(x.shape))


@sequence_softmax.infer
def _infer(x):
    check_float("sequence_softmax", x=x)
    check_lod_level("sequence_softmax", "x", x)
    return x


@sequence_softmax.backward("x")
def _softmax_grad(x, out, d_out):
    d_x = empty(flat(x.data).shape, x.data)
    softmax.softmax_grad(flat(out.data), flat(d_out.data), levels_of(x.structure)[-1], d_x)
    return x.like(d_x.reshape(x.shape))


@sequence_softmax.examples
def _examples(rng):
    yield [rows(rng)], {}
    yield [rows(rng, 3)], {}
    for lod in TROUBLES:
        yield [rows(rng, 2, 2, lod=lod)], {}
