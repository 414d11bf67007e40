"""Replace or extend the LoD of rows, or give the rows of sequences another width."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from varlen_rnn.errors import DTypeError, LoDError, OutOfRangeError, ShapeError, shown
from varlen_rnn.ops.cost import nothing
from varlen_rnn.ops.examples import TROUBLES, rows
from varlen_rnn.rows.lod import LoD, LoDTensor, levels_of
from varlen_rnn.runtime.device import host_numbers
from varlen_rnn.tape.checks import check_integer, check_lod_level, check_shape, check_tensor
from varlen_rnn.tape.constants import as_constant
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.variable import Variable, apply
from varlen_rnn.typing import Rows

_WIDEST = 2**31 - 1


def lod_reset(x: Rows, y: Rows | None = None, target_lod: Sequence[int] | None = None) -> Variable:
    """Return the rows of `x` with another LoD.

    Parameters
    ----------
    x : Variable or LoDTensor
    y : Variable or LoDTensor, optional
        Rows whose LoD the result takes, or integers that are the offsets of one level.
    target_lod : tuple of int, optional
        The offsets of one level, if there is no `y`; `Variable.with_lod` takes several levels.

    Raises
    ------
    LoDError
        If the last offset is not the number of rows of `x`.

    Examples
    --------
    >>> out = lod_reset(LoDTensor(np.arange(3), [[0, 1, 3]]), target_lod=(0, 2, 3))
    >>> np.asarray(out), out.lod()
    (array([0, 1, 2]), [[0, 2, 3]])

    Source: the operator `lod_reset` of PaddlePaddle Fluid.
    """
    if isinstance(target_lod, (list, tuple)) and any(isinstance(level, (list, tuple)) for level in target_lod):
        expected, hint = "the offsets of one level", "Variable(x).with_lod(offsets) takes several levels"
        raise DTypeError("lod_reset, target_lod", expected=expected, got=shown(target_lod), hint=hint)
    return apply("lod_reset", x, y, target_lod=as_constant("ints?", target_lod, "lod_reset, target_lod"))


@operator(name="lod_reset", cost=nothing, rows="batch", shares=True)
def _lod_reset(x, y=None, target_lod: tuple[int, ...] | None = None):
    """Return the rows of `x` with another LoD."""
    if y is not None and y.num_levels:
        lod = y.structure
    else:
        lod = LoD([np.asarray(target_lod, np.int64) if y is None else _offsets(y, "lod_reset, y")])
    return _with(x, lod, "lod_reset")


def _offsets(y, name):
    if y.data.ndim != 1:
        raise ShapeError(name, expected="offsets with one axis", got=f"shape {y.shape}")
    return host_numbers(y.data).astype(np.int64)


def _with(x, lod, name):
    if not x.shape or len(x.data) != lod.num_rows:
        expected = f"{lod.num_rows} rows, because the last offset is {lod.num_rows}"
        raise LoDError(f"{name}, x", expected=expected, got=f"shape {x.shape}")
    return LoDTensor.wrap(x.data, lod)


@_lod_reset.infer
def _infer(x, y, target_lod):
    check_tensor("lod_reset", "x", x)
    if y is None and target_lod is None:
        raise LoDError("lod_reset", expected="y, or target_lod", got="neither")
    if y is None:
        return x._replace(lod_level=1)
    check_tensor("lod_reset", "y", y)
    if not y.lod_level:
        check_integer("lod_reset", y=y)
    return x._replace(lod_level=y.lod_level or 1)


@_lod_reset.backward("x")
def _backward(x, y, d_out, target_lod):
    check_shape("lod_reset_grad", "d_out", d_out, x.shape)
    return x.like(d_out.data)


@_lod_reset.examples
def _examples(rng):
    yield [rows(rng, 2), None], {"target_lod": (0, 0, 6)}
    yield [rng.standard_normal((6, 2)), rows(rng)], {"target_lod": None}
    yield [rng.standard_normal((6, 2)), np.array([0, 2, 6])], {"target_lod": None}
    yield [np.zeros((0, 2)), None], {"target_lod": (0,)}


@operator(cost=nothing, rows="batch", shares=True)
def lod_append(x, level):
    """Return the rows of `x` with one more level of sequences, below the levels of `x`.

    Parameters
    ----------
    x : Variable or LoDTensor
    level : integers, shape `(entries + 1,)`
        The offsets of the new last level, with as many entries as `x` has rows; or a Variable with a LoD, whose last
        level is taken.

    Raises
    ------
    LoDError
        If the new level does not have as many entries, or its last offset is not the number of rows of `x`.

    Examples
    --------
    >>> x = LoDTensor(np.array([5, 6, 7]), [[0, 2, 3]])
    >>> lod_append(x, np.array([0, 1, 1, 3])).lod()
    [[0, 2, 3], [0, 1, 1, 3]]

    Source: the operator `lod_append` of PaddlePaddle Fluid.
    """
    below = level.structure.levels[-1] if level.num_levels else _offsets(level, "lod_append, level")
    return _with(x, LoD([*x.structure.levels, below]).at_positions_of(x.structure), "lod_append")


@lod_append.infer
def _infer_append(x, level):
    check_tensor("lod_append", "x", x)
    check_tensor("lod_append", "level", level)
    if not level.lod_level:
        check_integer("lod_append", level=level)
    return x._replace(lod_level=x.lod_level + 1)


@lod_append.backward("x")
def _backward_append(x, level, d_out):
    check_shape("lod_append_grad", "d_out", d_out, x.shape)
    return x.like(d_out.data)


@lod_append.examples
def _examples_append(rng):
    yield [rows(rng, 2), np.array([0, 1, 1, 1, 2, 3, 6])], {}
    yield [rng.standard_normal((6, 2)), rows(rng)], {}


@operator(cost=nothing, rows="batch", shares=True)
def sequence_reshape(x, new_dim: int):
    """Return the numbers of each sequence of the last level as rows of another width.

    Parameters
    ----------
    x : Variable or LoDTensor
        Rows of any data type and element shape, with at least one level.
    new_dim : int
        How many numbers a row of the result has, at least 1.

    Returns
    -------
    Variable of shape `(rows, new_dim)`, with as many levels as `x`

    Raises
    ------
    ShapeError
        If the number of numbers of a sequence is not a multiple of `new_dim`.

    Examples
    --------
    >>> out = sequence_reshape(LoDTensor(np.arange(6), [[0, 2, 6]]), new_dim=2)
    >>> np.asarray(out), out.lod()
    (array([[0, 1],
           [2, 3],
           [4, 5]]), [[0, 1, 3]])

    Source: the operator `sequence_reshape` of PaddlePaddle Fluid, which takes one level and two axes.
    """
    *above, offsets = levels_of(x.structure)
    numbers = offsets * math.prod(x.shape[1:])
    wrong = np.flatnonzero(np.diff(numbers) % new_dim)
    if len(wrong):
        what, got = f"sequence_reshape, x, sequence {wrong[0]}", np.diff(numbers)[wrong[0]]
        raise ShapeError(what, expected=f"a multiple of {new_dim} numbers", got=got)
    offsets = numbers // new_dim
    lod = LoD([*above, offsets]).at_positions_of(x.structure)
    return LoDTensor.wrap(x.data.reshape(offsets[-1], new_dim), lod)


@sequence_reshape.infer
def _infer_reshape(x, new_dim):
    check_tensor("sequence_reshape", "x", x)
    check_lod_level("sequence_reshape", "x", x)
    if not 1 <= new_dim <= _WIDEST:
        raise OutOfRangeError("sequence_reshape, new_dim", expected=f"1 to {_WIDEST}", got=new_dim)
    return x._replace(shape=(-1, new_dim))


@sequence_reshape.backward("x", cost=nothing)
def _backward_reshape(x, d_out, new_dim):
    if d_out.data.size != x.data.size:
        raise ShapeError("sequence_reshape_grad, d_out", expected=f"{x.data.size} numbers", got=f"shape {d_out.shape}")
    return x.like(d_out.data.reshape(x.shape))


@sequence_reshape.examples
def _examples_reshape(rng):
    yield [rows(rng, 6)], {"new_dim": 2}
    yield [rows(rng, 2, 2)], {"new_dim": 1}
    yield [rows(rng, 0)], {"new_dim": 5}
    for lod in TROUBLES:
        yield [rows(rng, 2, lod=lod)], {"new_dim": 1}
