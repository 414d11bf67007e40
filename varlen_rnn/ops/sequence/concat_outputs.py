"""The outputs of all steps as rows in the caller's order."""

import numpy as np

from varlen_rnn.errors import DTypeError, ShapeError
from varlen_rnn.kernels import segment
from varlen_rnn.lod import LoD, LoDTensor
from varlen_rnn.ops.checks import check_kind
from varlen_rnn.ops.sequence.movement import check_moved, check_plan, check_step, flat, result
from varlen_rnn.tape.kinds import LOD_RANK_TABLE
from varlen_rnn.tape.operator import Op, register
from varlen_rnn.tape.spec import TensorSpec
from varlen_rnn.tape.variable import apply


def _concat_outputs(plan, *steps):
    if len(steps) != plan.max_seq_len:
        raise ShapeError("concat_outputs, steps", expected=f"{plan.max_seq_len} steps", got=len(steps))
    for t, step in enumerate(steps):
        check_step("concat_outputs", step, plan, t)
    element = steps[0].shape[1:] if steps else ()
    out = np.empty((plan.total_len, *element), steps[0].dtype if steps else np.float32)
    for t, step in enumerate(steps):
        segment.concat_outputs(flat(step.data), plan.starts, t, flat(out))
    return [LoDTensor.wrap(out, LoD([plan.offsets]))]


def _concat_outputs_grad(inputs, outputs, d_outputs):
    return [None, *(apply("segment_inputs", d_outputs[0], inputs[0], t=t) for t in range(len(inputs) - 1))]


def _infer_concat_outputs(plan, *steps):
    check_kind("concat_outputs", "sorted_seqs", plan, LOD_RANK_TABLE)
    if not steps:
        return [TensorSpec((0,), np.dtype(np.float32), 1)]
    for t, step in enumerate(steps):
        check_moved("concat_outputs", f"step {t}", step)
        if step.shape[1:] != steps[0].shape[1:] or step.dtype != steps[0].dtype:
            expected, got = f"rows of {steps[0].shape[1:]} {steps[0].dtype}", f"{step.shape[1:]} {step.dtype}"
            raise ShapeError(f"concat_outputs, step {t}", expected=expected, got=got)
    return [steps[0]._replace(shape=(-1, *steps[0].shape[1:]), lod_level=1)]


register(Op("concat_outputs", ("sorted_seqs", "*steps"), _infer_concat_outputs, _concat_outputs, _concat_outputs_grad))


def concat_outputs(steps, sorted_seqs):
    """Return the outputs of all steps as rows in the caller's order, a LoDTensor.

    Parameters
    ----------
    steps : list of Variables or arrays
        `sorted_seqs.max_seq_len` of them; step t has shape `(batch_sizes[t], ...)`, longest sequence first.
    sorted_seqs : SortedSeqs

    Returns
    -------
    LoDTensor, or Variable if a step is one

    Examples
    --------
    >>> from varlen_rnn.plan import sort_by_seq_len
    >>> steps = [np.array([1.0, 0.0]), np.array([2.0]), np.array([3.0])]
    >>> concat_outputs(steps, sort_by_seq_len([0, 1, 4])).data
    array([0., 1., 2., 3.])

    Source: `ConcatOutputs` of the design document "Variable-length supported RNN".
    """
    if not isinstance(steps, (list, tuple)):
        raise DTypeError("concat_outputs, steps", expected="a list, one entry a step", got=type(steps).__name__)
    check_plan(sorted_seqs)
    return result(apply("concat_outputs", sorted_seqs, *steps), *steps)
