"""Reverse the rows of every sequence."""

from varlen_rnn.kernels.moves import reverse_rows
from varlen_rnn.ops.cost import nothing
from varlen_rnn.ops.examples import TROUBLES, rows
from varlen_rnn.ops.sequence.movement import check_moved, flat, unflat
from varlen_rnn.rows.lod import levels_of
from varlen_rnn.runtime.device import empty
from varlen_rnn.tape.checks import check_lod_level
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
    >>> import numpy as np
    >>> from varlen_rnn import LoDTensor
    >>> np.asarray(sequence_reverse(LoDTensor(np.arange(5), [[0, 2, 5]])))
    array([1, 0, 4, 3, 2])

    Source: the operator `sequence_reverse` of PaddlePaddle Fluid, which takes one level.
    """
    rows = flat(x.data)
    out = empty(rows.shape, rows)
    reverse_rows(rows, levels_of(x.structure)[-1], out)
    return x.like(unflat(out, x.data))


sequence_reverse.grad(lambda inputs, outputs, d_outputs: [apply("sequence_reverse", d_outputs[0])])


@sequence_reverse.infer
def _infer(x):
    check_moved("sequence_reverse", "x", x)
    check_lod_level("sequence_reverse", "x", x)
    return x


@sequence_reverse.examples
def _examples(rng):
    yield [rows(rng, 3)], {}
    for lod in TROUBLES:
        yield [rows(rng, 2, lod=lod)], {}
