"""The rows of one step: what the fused recurrence reads without materialising it."""

import numpy as np

from varlen_rnn.errors import check_int
from varlen_rnn.kernels import segment
from varlen_rnn.lod import LoDTensor
from varlen_rnn.ops.sequence.movement import check_plan, check_rows, check_step, flat, register_movement, result
from varlen_rnn.tape.variable import apply, required


def _segment_inputs(x, plan, t):
    check_rows("segment_inputs", x, plan)
    check_step("segment_inputs", None, plan, t)
    out = np.empty((plan.batch_sizes[t], *x.shape[1:]), x.dtype)
    segment.segment_inputs(flat(x.data), plan.starts, t, flat(out))
    return [LoDTensor.wrap(out)]


def _segment_inputs_grad(x, plan, d_out, t):
    check_rows("segment_inputs_grad", x, plan)
    check_step("segment_inputs_grad", d_out, plan, t)
    d_x = np.zeros(x.shape, x.dtype)
    segment.concat_outputs(flat(d_out.data), plan.starts, t, flat(d_x))
    return [x.like(d_x)]


register_movement("segment_inputs", _segment_inputs, _segment_inputs_grad, {"t": "int"})


def segment_inputs(x, sorted_seqs, t):
    """Return the rows of step `t` of every sequence that is still alive, longest sequence first.

    Parameters
    ----------
    x : Variable, LoDTensor or array, shape `(total_len, ...)`
    sorted_seqs : SortedSeqs
    t : int
        In steps, `0 <= t < sorted_seqs.max_seq_len`.

    Returns
    -------
    array, or Variable if `x` is one, of shape `(batch_sizes[t], ...)`

    Examples
    --------
    >>> from varlen_rnn.plan import sort_by_seq_len
    >>> segment_inputs(np.arange(4.0), sort_by_seq_len([0, 1, 4]), 0)
    array([1., 0.])

    Source: `SegmentInputs` of the design document "Variable-length supported RNN".
    """
    given, x = x, required(x, "segment_inputs, x")
    check_plan(sorted_seqs)
    return result(apply("segment_inputs", x, sorted_seqs, t=check_int(t, "t")), given)
