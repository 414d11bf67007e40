"""Bring sequences, or rows, into the order of a plan."""

import numpy as np

from varlen_rnn.errors import LoDError, ShapeError
from varlen_rnn.ops.cost import nothing
from varlen_rnn.ops.examples import TROUBLES, rows
from varlen_rnn.ops.sequence.movement import check_moved
from varlen_rnn.ops.sequence.taken import rows_taken, rows_taken_grad
from varlen_rnn.rows.lod import NO_LOD, LoDTensor, take_sequences
from varlen_rnn.rows.plan import sort_by_seq_len
from varlen_rnn.tape.checks import check_kind
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.kinds import LOD_RANK_TABLE


def _take(x, indices):
    """Return the LoD and the rows of some sequences of level 0; without a LoD, `indices` are the rows."""
    return take_sequences(x.structure, indices) if x.num_levels else (NO_LOD, indices)


@operator(cost=nothing, rows="batch")
def reorder_by_rank(x, rank_table):
    """Return the sequences of level 0 of `x`, or its rows if it has no LoD, in the order of a plan, longest first.

    Parameters
    ----------
    x : Variable or LoDTensor
        Rows of any data type.
    rank_table : SortedSeqs
        A plan, from `sort_by_seq_len`, of as many sequences.

    Examples
    --------
    >>> plan = sort_by_seq_len(LoDTensor(np.zeros(5), [[0, 2, 5]]))
    >>> np.asarray(reorder_by_rank(np.array([1.0, 2.0]), plan))
    array([2., 1.])

    Source: the operator `reorder_lod_tensor_by_rank` of PaddlePaddle Fluid.
    """
    lod, index = _take(x, _ranks(x, rank_table))
    return LoDTensor.wrap(rows_taken(x.data, index), lod)


def _ranks(x, plan):
    entries = x.num_elements(0) if x.num_levels else len(x.data)
    if entries != plan.num_sequences:
        expected = f"{plan.num_sequences} sequences, or rows, as the plan"
        raise LoDError("reorder_by_rank, x", expected=expected, got=entries)
    return plan.sorted_indices


@reorder_by_rank.infer
def _infer(x, rank_table):
    check_moved("reorder_by_rank", "x", x)
    if not x.shape:
        raise ShapeError("reorder_by_rank, x", expected="rows", got="a single number")
    check_kind("reorder_by_rank", "rank_table", rank_table, LOD_RANK_TABLE)
    return x


@reorder_by_rank.backward("x")
def _backward(x, rank_table, d_out):
    _, index = _take(x, _ranks(x, rank_table))
    if not d_out.shape or len(d_out.data) != len(index):
        raise ShapeError("reorder_by_rank_grad, d_out", expected=f"{len(index)} rows", got=f"shape {d_out.shape}")
    return x.like(rows_taken_grad(d_out.data, index, len(x.data)))


@reorder_by_rank.examples
def _examples(rng):
    for lod in TROUBLES:
        x = rows(rng, 2, lod=lod)
        plan = sort_by_seq_len(LoDTensor(np.zeros(lod.levels[0][-1]), [lod.levels[0]]))
        yield [x, plan], {}
        yield [rng.standard_normal((len(lod.levels[0]) - 1, 2)), plan], {}
