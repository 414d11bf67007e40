"""Functions that keep the number of rows of each sequence: their reverse, running sums and softmax."""

from varlen_rnn.kernels import softmax, windows
from varlen_rnn.kernels.moves import reverse_rows
from varlen_rnn.ops.cost import nothing
from varlen_rnn.ops.examples import TROUBLES, rows
from varlen_rnn.ops.sequence.movement import check_moved, flat, unflat
from varlen_rnn.rows.lod import levels_of
from varlen_rnn.runtime.device import empty
from varlen_rnn.tape.checks import check_float, check_lod_level
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.variable import apply


@operator(cost=nothing, rows="sequence")
def sequence_reverse(x):
    """Return the rows of each sequence of the last level in reverse order.

    Parameters
    ----------
    x : Variable or LoDTensor
        Rows of any data type with at least one level.

    Examples
    --------
    >>> np.asarray(sequence_reverse(vr.LoDTensor(np.arange(5), [[0, 2, 5]])))
    array([1, 0, 4, 3, 2])

    Source: the operator `sequence_reverse` of PaddlePaddle Fluid, which takes one level.
    """
    rows = flat(x.data)
    out = empty(rows.shape, rows)
    reverse_rows(rows, levels_of(x.structure)[-1], out)
    return x.like(unflat(out, x.data))


sequence_reverse.grad(lambda inputs, outputs, d_outputs: [apply("sequence_reverse", d_outputs[0])])


@sequence_reverse.infer
def _infer_reverse(x):
    check_moved("sequence_reverse", "x", x)
    check_lod_level("sequence_reverse", "x", x)
    return x


@sequence_reverse.examples
def _reverse_examples(rng):
    yield [rows(rng, 3)], {}
    for lod in TROUBLES:
        yield [rows(rng, 2, lod=lod)], {}


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
    >>> x = vr.LoDTensor(np.array([1.0, 2.0, 4.0, 8.0]), [[0, 3, 3, 4]])
    >>> np.asarray(sequence_cumsum(x)), np.asarray(sequence_cumsum(x, reverse=True))
    (array([1., 3., 7., 8.]), array([7., 6., 4., 8.]))

    Source: `numpy.cumsum` along the rows, started again at each sequence.
    """
    data = flat(x.data)
    out = empty(data.shape, data)
    windows.cumsum(data, levels_of(x.structure)[-1], -1 if reverse else 1, out)
    return x.like(out.reshape(x.shape))


@sequence_cumsum.infer
def _infer_cumsum(x, reverse):
    check_float("sequence_cumsum", x=x)
    check_lod_level("sequence_cumsum", "x", x)
    return x


@sequence_cumsum.grad
def _grad(inputs, outputs, d_outputs, reverse):
    return [apply("sequence_cumsum", d_outputs[0], reverse=not reverse)]


@sequence_cumsum.examples
def _cumsum_examples(rng):
    for reverse in (False, True):
        yield [rows(rng, 3)], {"reverse": reverse}
    for lod in TROUBLES:
        yield [rows(rng, 2, 2, lod=lod)], {"reverse": False}


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
    >>> x = vr.LoDTensor(np.array([1e9, 1e9, -5.0]), [[0, 2, 2, 3]])
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
def _infer_softmax(x):
    check_float("sequence_softmax", x=x)
    check_lod_level("sequence_softmax", "x", x)
    return x


@sequence_softmax.backward("x")
def _softmax_grad(x, out, d_out):
    d_x = empty(flat(x.data).shape, x.data)
    softmax.softmax_grad(flat(out.data), flat(d_out.data), levels_of(x.structure)[-1], d_x)
    return x.like(d_x.reshape(x.shape))


@sequence_softmax.examples
def _softmax_examples(rng):
    yield [rows(rng)], {}
    yield [rows(rng, 3)], {}
    for lod in TROUBLES:
        yield [rows(rng, 2, 2, lod=lod)], {}
