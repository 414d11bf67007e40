"""Operators that make the plan of a batch (again at each run of a program), and that reorder sequences by a plan."""

from __future__ import annotations

from typing import Any, overload

import numpy as np

from varlen_rnn.errors import LoDError, ShapeError
from varlen_rnn.ops.cost import nothing
from varlen_rnn.ops.examples import TROUBLES, rows
from varlen_rnn.ops.sequence.movement import check_moved
from varlen_rnn.ops.sequence.taken import rows_taken, rows_taken_grad
from varlen_rnn.rows import plan
from varlen_rnn.rows.lod import NO_LOD, LoD, LoDTensor, take_sequences
from varlen_rnn.rows.plan import SortedSeqs
from varlen_rnn.tape.checks import check_has_rows, check_kind, check_lod_level
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.kinds import LOD_RANK_TABLE
from varlen_rnn.tape.modes import recorder
from varlen_rnn.tape.spec import PLAN
from varlen_rnn.tape.variable import Variable
from varlen_rnn.typing import Offsets


@operator(cost=nothing)
def lod_rank_table(x, level: int):
    """Return the plan of a level: its sequences sorted by length, longest first."""
    return plan.sort_by_seq_len(x, level)


lod_rank_table.examples(lambda rng: [([rows(rng, 3)], {"level": -1})])


@lod_rank_table.infer
def _infer_rank_table(x, level):
    check_lod_level("lod_rank_table", "x", x)
    if not -x.lod_level <= level < x.lod_level:
        raise LoDError("level", expected=f"one of the {x.lod_level} levels of x", got=level)
    return PLAN


@overload
def sort_by_seq_len(x: Variable, level: int = -1) -> SortedSeqs | Any: ...
@overload
def sort_by_seq_len(x: LoDTensor | LoD | Offsets, level: int = -1) -> SortedSeqs: ...
def sort_by_seq_len(x: Variable | LoDTensor | LoD | Offsets, level: int = -1) -> SortedSeqs | Variable:
    """Return the plan of a batch, longest sequence first; see `varlen_rnn.rows.plan.sort_by_seq_len`.

    For a variable of a program, return a variable that is the plan of each run.

    Examples
    --------
    >>> sort_by_seq_len(LoDTensor([1.0, 2.0, 3.0, 4.0, 5.0], [[0, 2, 2, 5]]))
    SortedSeqs(3 sequences, 3 steps, 5 rows)
    """
    if isinstance(x, Variable) and recorder() is not None:
        return lod_rank_table(x, level)
    return plan.sort_by_seq_len(x, level)


def _take(x, indices):
    """Return the LoD and the row positions of some sequences of level 0; if `x` has no LoD, NO_LOD and `indices`."""
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
        expected = f"{plan.num_sequences} sequences, or rows, as many as the plan has sequences"
        raise LoDError("reorder_by_rank, x", expected=expected, got=entries)
    return plan.sorted_indices


@reorder_by_rank.infer
def _infer_reorder(x, rank_table):
    check_moved("reorder_by_rank", "x", x)
    check_has_rows("reorder_by_rank", "x", x)
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
