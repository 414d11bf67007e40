"""The same rows as other sequences."""

import numpy as np

from varlen_rnn.errors import LoDError, ShapeError
from varlen_rnn.lod import LoD, LoDTensor
from varlen_rnn.ops.cost import nothing
from varlen_rnn.ops.examples import rows
from varlen_rnn.tape.checks import check_integer, check_tensor
from varlen_rnn.tape.declare import operator


@operator(cost=nothing)
def lod_reset(x, y=None, target_lod: tuple[int, ...] | None = None):
    """Return the rows of `x` with another LoD.

    Parameters
    ----------
    x : Variable or LoDTensor
    y : Variable or LoDTensor, optional
        One with a LoD, which becomes that of the result; or integers, the offsets of one level.
    target_lod : tuple of int, optional
        The offsets of one level, where there is no `y`.

    Raises
    ------
    LoDError
        Offsets that are not of the rows of `x`.

    Examples
    --------
    >>> out = lod_reset(LoDTensor(np.arange(3), [[0, 1, 3]]), target_lod=(0, 2, 3))
    >>> np.asarray(out), out.lod()
    (array([0, 1, 2]), [[0, 2, 3]])

    Source: the operator `lod_reset` of PaddlePaddle Fluid.
    """
    if y is not None and y.num_levels:
        lod = y.structure
    else:
        lod = LoD([np.asarray(target_lod, np.int64) if y is None else _offsets(y, "lod_reset, y")])
    return _with(x, lod, "lod_reset")


def _offsets(y, name):
    if y.data.ndim != 1:
        raise ShapeError(name, expected="offsets, of one axis", got=f"shape {y.shape}")
    return y.data.astype(np.int64)


def _with(x, lod, name):
    if not x.shape or len(x.data) != lod.num_rows:
        got = f"shape {x.shape}"
        raise LoDError(f"{name}, x", expected=f"{lod.num_rows} rows, as the last offset", got=got)
    return LoDTensor.wrap(x.data, lod)


@lod_reset.infer
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


@lod_reset.backward("x")
def _backward(x, y, d_out, target_lod):
    if d_out.shape != x.shape:
        raise ShapeError("lod_reset_grad, d_out", expected=f"shape {x.shape}", got=f"shape {d_out.shape}")
    return x.like(d_out.data)


@lod_reset.examples
def _examples(rng):
    yield [rows(rng, 2), None], {"target_lod": (0, 0, 6)}
    yield [rng.standard_normal((6, 2)), rows(rng)], {"target_lod": None}
    yield [rng.standard_normal((6, 2)), np.array([0, 2, 6])], {"target_lod": None}
    yield [np.zeros((0, 2)), None], {"target_lod": (0,)}


@operator(cost=nothing)
def lod_append(x, level):
    """Return the rows of `x` as sequences of one more level below its own, whose entries these become.

    Parameters
    ----------
    x : Variable or LoDTensor
    level : integers, shape `(entries + 1,)`
        The offsets of the new last level, with as many entries as `x` has rows; or a Variable with a LoD, whose last
        level is taken.

    Raises
    ------
    LoDError
        Another number of entries, or offsets that are not of the rows of `x`.

    Examples
    --------
    >>> x = LoDTensor(np.array([5, 6, 7]), [[0, 2, 3]])
    >>> lod_append(x, np.array([0, 1, 1, 3])).lod()
    [[0, 2, 3], [0, 1, 1, 3]]

    Source: the operator `lod_append` of PaddlePaddle Fluid.
    """
    below = level.structure.levels[-1] if level.num_levels else _offsets(level, "lod_append, level")
    return _with(x, LoD([*x.structure.levels, below]), "lod_append")


@lod_append.infer
def _infer_append(x, level):
    check_tensor("lod_append", "x", x)
    check_tensor("lod_append", "level", level)
    if not level.lod_level:
        check_integer("lod_append", level=level)
    return x._replace(lod_level=x.lod_level + 1)


@lod_append.backward("x")
def _backward_append(x, level, d_out):
    if d_out.shape != x.shape:
        raise ShapeError("lod_append_grad, d_out", expected=f"shape {x.shape}", got=f"shape {d_out.shape}")
    return x.like(d_out.data)


@lod_append.examples
def _examples_append(rng):
    yield [rows(rng, 2), np.array([0, 1, 1, 1, 2, 3, 6])], {}
    yield [rng.standard_normal((6, 2)), rows(rng)], {}
