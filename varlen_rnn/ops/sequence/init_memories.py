"""The states before the first step, in the order of the plan."""

import numpy as np

from varlen_rnn.errors import ShapeError
from varlen_rnn.kernels import segment
from varlen_rnn.lod import LoDTensor
from varlen_rnn.ops.sequence.movement import check_plan, flat, register_movement, result
from varlen_rnn.tape.variable import apply, required


def _check_sequences(op, rows, plan):
    """Raise unless there is a row for each sequence of the plan."""
    if not rows.shape or len(rows.data) != plan.num_sequences:
        expected = f"{plan.num_sequences} rows, one a sequence"
        raise ShapeError(f"{op}, boot", expected=expected, got=f"shape {rows.shape}")


def _init_memories(boot, plan):
    _check_sequences("init_memories", boot, plan)
    out = np.empty(boot.shape, boot.dtype)
    segment.init_memories(flat(boot.data), plan.sorted_indices, flat(out))
    return [LoDTensor.wrap(out)]


def _init_memories_grad(boot, plan, d_out):
    _check_sequences("init_memories_grad", boot, plan)
    _check_sequences("init_memories_grad", d_out, plan)
    d_boot = np.empty(boot.shape, boot.dtype)
    segment.init_memories_grad(flat(d_out.data), plan.sorted_indices, flat(d_boot))
    return [boot.like(d_boot)]


register_movement("init_memories", _init_memories, _init_memories_grad, {})


def init_memories(boot, sorted_seqs):
    """Return the boot memories in sorted order: row k is that of the sequence of rank k.

    Parameters
    ----------
    boot : Variable or array, shape `(num_sequences, ...)`, in the caller's order
    sorted_seqs : SortedSeqs

    Examples
    --------
    >>> from varlen_rnn.plan import sort_by_seq_len
    >>> init_memories(np.array([10.0, 20.0]), sort_by_seq_len([0, 1, 4]))
    array([20., 10.])

    Source: `InitMemories` of the design document "Variable-length supported RNN".
    """
    given, boot = boot, required(boot, "init_memories, boot")
    check_plan(sorted_seqs)
    return result(apply("init_memories", boot, sorted_seqs), given)
