"""The plan of a batch as an operator, so that each run of a program makes its own plan."""

from __future__ import annotations

from typing import Any, overload

from varlen_rnn.errors import LoDError
from varlen_rnn.ops.cost import nothing
from varlen_rnn.ops.examples import rows
from varlen_rnn.rows import plan
from varlen_rnn.rows.lod import LoD, LoDTensor
from varlen_rnn.rows.plan import SortedSeqs
from varlen_rnn.tape.checks import check_lod_level
from varlen_rnn.tape.declare import operator
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
def _infer(x, level):
    check_lod_level("lod_rank_table", "x", x)
    if not -x.lod_level <= level < x.lod_level:
        raise LoDError("level", expected=f"one of the {x.lod_level} levels", got=level)
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
