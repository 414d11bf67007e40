"""Collect the outputs of all steps as rows in the caller's order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np

from varlen_rnn.errors import DTypeError, ShapeError
from varlen_rnn.kernels import segment
from varlen_rnn.ops.cost import nothing
from varlen_rnn.ops.examples import LOD
from varlen_rnn.ops.sequence.movement import check_moved, check_plan, check_step, flat, result
from varlen_rnn.rows.lod import LoD, LoDTensor
from varlen_rnn.rows.plan import SortedSeqs, plan_of_rows
from varlen_rnn.runtime.device import empty
from varlen_rnn.tape.checks import check_kind
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.kinds import LOD_RANK_TABLE
from varlen_rnn.tape.spec import TensorSpec
from varlen_rnn.tape.variable import Variable, apply
from varlen_rnn.typing import Rows


@operator(name="concat_outputs", cost=nothing, rows="batch")
def _concat_outputs(sorted_seqs, *steps):
    """Return the rows of all steps in the caller's order."""
    if len(steps) != sorted_seqs.max_seq_len:
        raise ShapeError("concat_outputs, steps", expected=f"{sorted_seqs.max_seq_len} steps", got=len(steps))
    for t, step in enumerate(steps):
        check_step("concat_outputs", step, sorted_seqs, t)
    element = steps[0].shape[1:] if steps else ()
    shape = (sorted_seqs.total_len, *element)
    out = empty(shape, steps[0].data) if steps else np.empty(shape, np.float32)
    for t, step in enumerate(steps):
        segment.concat_outputs(flat(step.data), sorted_seqs.starts, t, flat(out))
    return LoDTensor.wrap(out, LoD([sorted_seqs.offsets]))


@_concat_outputs.infer
def _infer(sorted_seqs, *steps):
    check_kind("concat_outputs", "sorted_seqs", sorted_seqs, LOD_RANK_TABLE)
    if not steps:
        return TensorSpec((0,), np.dtype(np.float32), 1)
    for t, step in enumerate(steps):
        check_moved("concat_outputs", f"step {t}", step)
        if step.shape[1:] != steps[0].shape[1:] or step.dtype != steps[0].dtype:
            expected, got = f"rows of {steps[0].shape[1:]} {steps[0].dtype}", f"{step.shape[1:]} {step.dtype}"
            raise ShapeError(f"concat_outputs, step {t}", expected=expected, got=got)
    return steps[0]._replace(shape=(-1, *steps[0].shape[1:]), lod_level=1)


@_concat_outputs.grad
def _grad(inputs, outputs, d_outputs):
    return [None, *(apply("segment_inputs", d_outputs[0], inputs[0], t=t) for t in range(len(inputs) - 1))]


@_concat_outputs.examples
def _examples(rng):
    plan = plan_of_rows(LOD)
    yield [plan, *(rng.standard_normal((size, 2)) for size in plan.batch_sizes)], {}


@overload
def concat_outputs(steps: Sequence[Variable], sorted_seqs: SortedSeqs | Variable) -> Variable: ...
@overload
def concat_outputs(steps: Sequence[LoDTensor | np.ndarray], sorted_seqs: SortedSeqs | Variable) -> LoDTensor: ...
def concat_outputs(steps: Sequence[Rows], sorted_seqs: SortedSeqs | Variable) -> Variable | LoDTensor:
    """Return the outputs of all steps as rows in the caller's order, a LoDTensor.

    Parameters
    ----------
    steps : list of Variables or arrays
        One for each of the `sorted_seqs.max_seq_len` steps; step t has shape `(batch_sizes[t], ...)`, longest sequence
        first.
    sorted_seqs : SortedSeqs

    Returns
    -------
    LoDTensor, or Variable if a step is one

    Examples
    --------
    >>> steps = [np.array([1.0, 0.0]), np.array([2.0]), np.array([3.0])]
    >>> concat_outputs(steps, vr.sort_by_seq_len([0, 1, 4])).data
    array([0., 1., 2., 3.])

    Source: `ConcatOutputs` of the design document "Variable-length supported RNN".
    """
    if not isinstance(steps, (list, tuple)):
        raise DTypeError("concat_outputs, steps", expected="a list, one entry per step", got=type(steps).__name__)
    check_plan(sorted_seqs)
    return result(_concat_outputs(sorted_seqs, *steps), *steps)
