"""Operators for a recurrence that is written by hand: initial states, the rows of a step, and the outputs of all steps.

The fused recurrence reads the rows of a step in place, so it needs none of these operators.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import overload

import numpy as np

from varlen_rnn.errors import DTypeError, OutOfRangeError, ShapeError, check_int
from varlen_rnn.kernels import segment
from varlen_rnn.ops.cost import nothing
from varlen_rnn.ops.examples import LOD, TROUBLES, rows
from varlen_rnn.ops.sequence.movement import check_moved, check_plan, check_rows, check_step, flat, infer_moved, result
from varlen_rnn.rows.lod import LoD, LoDTensor
from varlen_rnn.rows.plan import SortedSeqs, plan_of_rows
from varlen_rnn.runtime.device import empty, zeros
from varlen_rnn.tape.checks import check_float, check_kind, check_lod_level, check_rank, check_tensor
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.kinds import LOD_RANK_TABLE
from varlen_rnn.tape.spec import TensorSpec
from varlen_rnn.tape.variable import Variable, apply, required
from varlen_rnn.typing import Rows


@operator(name="init_memories", cost=nothing, rows="batch")
def _init_memories(x, sorted_seqs):
    """Return one row per sequence in the order of the plan, longest sequence first."""
    _check_sequences("init_memories", x, sorted_seqs)
    out = empty(x.shape, x.data)
    segment.init_memories(flat(x.data), sorted_seqs.sorted_indices, flat(out))
    return LoDTensor.wrap(out)


_init_memories.infer(lambda x, sorted_seqs: infer_moved("init_memories", x, sorted_seqs))
_init_memories.examples(lambda rng: [([rng.standard_normal((4, 3)), plan_of_rows(LOD)], {})])


def _check_sequences(op, rows, plan):
    """Raise unless there is a row for each sequence of the plan."""
    if not rows.shape or len(rows.data) != plan.num_sequences:
        expected = f"{plan.num_sequences} rows, one per sequence"
        raise ShapeError(f"{op}, boot", expected=expected, got=f"shape {rows.shape}")


@_init_memories.backward("x", cost=nothing)
def _init_memories_grad(x, sorted_seqs, d_out):
    _check_sequences("init_memories_grad", x, sorted_seqs)
    _check_sequences("init_memories_grad", d_out, sorted_seqs)
    d_x = empty(x.shape, x.data)
    segment.init_memories_grad(flat(d_out.data), sorted_seqs.sorted_indices, flat(d_x))
    return x.like(d_x)


@overload
def init_memories(boot: Variable, sorted_seqs: SortedSeqs | Variable) -> Variable: ...
@overload
def init_memories(boot: LoDTensor | np.ndarray, sorted_seqs: SortedSeqs | Variable) -> np.ndarray: ...
def init_memories(boot: Rows, sorted_seqs: SortedSeqs | Variable) -> Variable | np.ndarray:
    """Return the initial states in the order of the plan: row k belongs to the sequence of rank k.

    Parameters
    ----------
    boot : Variable or array, shape `(num_sequences, ...)`, in the caller's order
    sorted_seqs : SortedSeqs

    Examples
    --------
    >>> init_memories(np.array([10.0, 20.0]), vr.sort_by_seq_len([0, 1, 4]))
    array([20., 10.])

    Source: `InitMemories` of the design document "Variable-length supported RNN".
    """
    given, boot = boot, required(boot, "init_memories, boot")
    check_plan(sorted_seqs)
    return result(_init_memories(boot, sorted_seqs), given)


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
        The step, `0 <= t < sorted_seqs.max_seq_len`.

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
def _infer_concat_outputs(sorted_seqs, *steps):
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
def _concat_outputs_examples(rng):
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


_MOST_STATES = 2**20  # numbers per sequence; without a limit, a small program could request any amount of memory


@operator(cost=nothing, rows="batch", gradient=False)
def zeros_of_sequences(x, shape: tuple[int, ...], level: int = -1):
    """Return zeros of shape `shape` for each sequence of a level of `x`."""
    return LoDTensor.wrap(zeros((x.num_elements(level), *shape), x.data))


@zeros_of_sequences.infer
def _infer_zeros(x, shape, level):
    check_float("zeros_of_sequences", x=x)
    check_lod_level("zeros_of_sequences", "x", x)
    if any(size < 0 for size in shape) or math.prod(shape) > _MOST_STATES:
        raise ShapeError("zeros_of_sequences, shape", expected=f"at most {_MOST_STATES} elements", got=shape)
    if not -x.lod_level <= level < x.lod_level:
        raise OutOfRangeError("zeros_of_sequences, level", expected=f"one of the {x.lod_level} levels of x", got=level)
    return TensorSpec((-1, *shape), x.dtype)


@zeros_of_sequences.examples
def _zeros_examples(rng):
    yield [rows(rng, 3)], {"shape": (2, 3), "level": -1}
    yield [rows(rng, lod=TROUBLES[-1])], {"shape": (), "level": 0}


@operator(cost=nothing, rows="batch", shares=True)
def single_rows(x):
    """Return the rows of `x` as sequences of one row each; the LoD of `x` is dropped."""
    return LoDTensor.wrap(x.data, _lod(x.data.shape[0]))


@functools.lru_cache(maxsize=8)  # a LoD caches its plan, and the steps of a batch differ little in rows
def _lod(count):
    return LoD([np.arange(count + 1)])


@single_rows.infer
def _infer_single_rows(x):
    check_tensor("single_rows", "x", x)
    if not x.shape:
        check_rank("single_rows", "x", x, 1)
    return TensorSpec(x.shape, x.dtype, 1)


@single_rows.backward("x")
def _backward(x, d_out):
    return x.like(d_out.data)


@single_rows.examples
def _single_rows_examples(rng):
    yield [rng.standard_normal((3, 2))], {}
    yield [rows(rng, 2)], {}
