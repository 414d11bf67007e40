"""Bring the states before the first step into the order of the plan."""

from __future__ import annotations

from typing import overload

import numpy as np

from varlen_rnn.errors import ShapeError
from varlen_rnn.kernels import segment
from varlen_rnn.ops.cost import nothing
from varlen_rnn.ops.examples import LOD
from varlen_rnn.ops.sequence.movement import check_plan, flat, infer_moved, result
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.rows.plan import SortedSeqs, plan_of_rows
from varlen_rnn.runtime.device import empty
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.variable import Variable, required
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
