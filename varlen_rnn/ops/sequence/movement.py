"""Checks of rows, plans and steps, which the operators that move rows by a plan share."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from varlen_rnn.errors import DTypeError, OutOfRangeError, ShapeError
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.rows.plan import SortedSeqs, check_is_plan
from varlen_rnn.runtime.device import as_operand
from varlen_rnn.tape.checks import check_kind, check_shape, check_tensor
from varlen_rnn.tape.kinds import LOD_RANK_TABLE, LOD_TENSOR
from varlen_rnn.tape.spec import TensorSpec
from varlen_rnn.tape.values import plain
from varlen_rnn.tape.variable import Variable

_FLOAT16 = np.dtype(np.float16)


def flat(data: np.ndarray) -> np.ndarray:
    """Return `data` as an operand of kernels, in which each row has one axis; a view of `data` if possible."""
    if data.ndim == 2 and data.flags.carray:  # the usual case: no copy
        return data
    return as_operand(data).reshape(len(data), math.prod(data.shape[1:]))


def unflat(rows: np.ndarray, data: np.ndarray) -> np.ndarray:
    """Return a view of flattened rows in which a row has the shape of a row of `data`."""
    return rows if data.ndim == 2 else rows.reshape(len(rows), *data.shape[1:])


def check_plan(sorted_seqs: object) -> None:
    """Raise unless `sorted_seqs` is a plan, or a Variable, which the operator will check."""
    if not isinstance(sorted_seqs, Variable):
        check_is_plan(sorted_seqs)


def check_rows(op: str, x: LoDTensor, plan: SortedSeqs) -> None:
    """Raise unless `x` has as many rows as the plan."""
    if not x.shape or len(x.data) != plan.total_len:
        raise ShapeError(f"{op}, x", expected=f"the {plan.total_len} rows of the plan", got=f"shape {x.shape}")


def check_step(op: str, rows: LoDTensor | None, plan: SortedSeqs, t: int) -> None:
    """Raise unless the plan has a step `t`, and `rows`, if given, has one row per sequence alive at this step."""
    if not 0 <= t < plan.max_seq_len:
        raise OutOfRangeError("t", expected=f"0 <= t < {plan.max_seq_len} steps", got=t)
    if rows is not None and (not rows.shape or len(rows.data) != plan.batch_sizes[t]):
        expected = f"{plan.batch_sizes[t]} rows, one per sequence that has this step"
        raise ShapeError(f"{op}, step {t}", expected=expected, got=f"shape {rows.shape}")


def check_moved(op: str, name: str, desc: TensorSpec) -> None:
    """Raise unless rows have a data type that kernels can move; float16 is refused, because Numba has no float16."""
    if desc.kind is not LOD_TENSOR or desc.dtype == _FLOAT16:
        check_tensor(op, name, desc)
        raise DTypeError(f"{op}, {name}", expected="any data type except float16", got=desc.dtype)


def infer_moved(op: str, x: TensorSpec, plan: TensorSpec) -> TensorSpec:
    """Return the spec of rows moved by a plan: without a LoD, and with an unknown number of rows."""
    check_moved(op, "x", x)
    check_kind(op, "sorted_seqs", plan, LOD_RANK_TABLE)
    check_shape(op, "x", x, (-1, *x.shape[1:]))
    return x._replace(shape=(-1, *x.shape[1:]), lod_level=0)


def result(variable: Variable, *inputs: object) -> Any:
    """Return the Variable if an input is a Variable; otherwise its value, an array if it has no LoD."""
    if any(isinstance(value, Variable) for value in inputs):
        return variable
    return plain(variable.value)
