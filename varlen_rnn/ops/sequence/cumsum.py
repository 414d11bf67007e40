"""Running sums along each sequence, forwards or backwards."""

from varlen_rnn.kernels import windows
from varlen_rnn.ops.examples import TROUBLES, rows
from varlen_rnn.ops.sequence.movement import flat
from varlen_rnn.rows.lod import levels_of
from varlen_rnn.runtime.device import empty
from varlen_rnn.tape.checks import check_float, check_lod_level
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.variable import apply


@operator(rows="sequence")
def sequence_cumsum(x, reverse: bool = False):
    """Return the sum of each row and all earlier rows of its sequence, element by element.

    Parameters
    ----------
    x : Variable or LoDTensor, shape `(rows, ...)`
        float32 or float64, with at least one level; the sequences are taken from the last level.
    reverse : bool
        Whether to sum each row and all later rows of its sequence instead.

    Returns
    -------
    Variable like `x`, with its LoD; rounding errors do not add up in long sums

    Examples
    --------
    >>> import numpy as np
    >>> from varlen_rnn.rows.lod import LoDTensor
    >>> x = LoDTensor(np.array([1.0, 2.0, 4.0, 8.0]), [[0, 3, 3, 4]])
    >>> np.asarray(sequence_cumsum(x)), np.asarray(sequence_cumsum(x, reverse=True))
    (array([1., 3., 7., 8.]), array([7., 6., 4., 8.]))

    Source: `numpy.cumsum` along the rows, started again at each sequence.
    """
    data = flat(x.data)
    out = empty(data.shape, data)
    windows.cumsum(data, levels_of(x.structure)[-1], -1 if reverse else 1, out)
    return x.like(out.reshape(x.shape))


@sequence_cumsum.infer
def _infer(x, reverse):
    check_float("sequence_cumsum", x=x)
    check_lod_level("sequence_cumsum", "x", x)
    return x


@sequence_cumsum.grad
def _grad(inputs, outputs, d_outputs, reverse):
    return [apply("sequence_cumsum", d_outputs[0], reverse=not reverse)]


@sequence_cumsum.examples
def _examples(rng):
    for reverse in (False, True):
        yield [rows(rng, 3)], {"reverse": reverse}
    for lod in TROUBLES:
        yield [rows(rng, 2, 2, lod=lod)], {"reverse": False}
