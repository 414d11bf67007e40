"""Take the rows of one step.  The fused recurrence reads them without materialising them."""

from __future__ import annotations

from typing import overload

import numpy as np

from varlen_rnn.errors import check_int
from varlen_rnn.kernels import segment
from varlen_rnn.ops.cost import nothing
from varlen_rnn.ops.examples import LOD, rows
from varlen_rnn.ops.sequence.movement import check_plan, check_rows, check_step, flat, infer_moved, result
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.rows.plan import SortedSeqs, plan_of_rows
from varlen_rnn.runtime.device import empty, zeros
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.variable import Variable, required
from varlen_rnn.typing import Rows


@operator(name="segment_inputs", cost=nothing, rows="batch")
def _segment_inputs(x, sorted_seqs, t: int):
    """Return the rows of step `t` of every sequence that is still alive, longest sequence first."""
    check_rows("segment_inputs", x, sorted_seqs)
    check_step("segment_inputs", None, sorted_seqs, t)
    out = empty((int(sorted_seqs.batch_sizes[t]), *x.shape[1:]), x.data)
    segment.segment_inputs(flat(x.data), sorted_seqs.starts, t, flat(out))
    return LoDTensor.wrap(out)


_segment_inputs.infer(lambda x, sorted_seqs, t: infer_moved("segment_inputs", x, sorted_seqs))
_segment_inputs.examples(lambda rng: [([rows(rng, 3), plan_of_rows(LOD)], {"t": 1})])


@_segment_inputs.backward("x", cost=nothing)
def _segment_inputs_grad(x, sorted_seqs, d_out, t):
    check_rows("segment_inputs_grad", x, sorted_seqs)
    check_step("segment_inputs_grad", d_out, sorted_seqs, t)
    d_x = zeros(x.shape, x.data)
    segment.concat_outputs(flat(d_out.data), sorted_seqs.starts, t, flat(d_x))
    return x.like(d_x)


@overload
def segment_inputs(x: Variable, sorted_seqs: SortedSeqs | Variable, t: int) -> Variable: ...
@overload
def segment_inputs(x: LoDTensor | np.ndarray, sorted_seqs: SortedSeqs | Variable, t: int) -> np.ndarray: ...
def segment_inputs(x: Rows, sorted_seqs: SortedSeqs | Variable, t: int) -> Variable | np.ndarray:
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
    >>> segment_inputs(np.arange(4.0), vr.sort_by_seq_len([0, 1, 4]), 0)
    array([1., 0.])

    Source: `SegmentInputs` of the design document "Variable-length supported RNN".
    """
    given, x = x, required(x, "segment_inputs, x")
    check_plan(sorted_seqs)
    return result(_segment_inputs(x, sorted_seqs, t=check_int(t, "t")), given)
