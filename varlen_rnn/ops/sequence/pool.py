"""Pooling: each sequence of a level becomes one row, or rows of matrices become means of their largest numbers.

If there is a level above, its offsets then count the pooled rows.
"""

from __future__ import annotations

import math

import numpy as np

from varlen_rnn.errors import DTypeError, LoDError, OutOfRangeError, ShapeError
from varlen_rnn.kernels import pool
from varlen_rnn.kernels.arithmetic import divide
from varlen_rnn.kernels.copies import full
from varlen_rnn.kernels.largest import largest
from varlen_rnn.kernels.moves import pick_ends, pick_ends_grad
from varlen_rnn.kernels.rows import check_classes, fill_rows
from varlen_rnn.kernels.segment import init_memories_grad
from varlen_rnn.kernels.windows import cumsum
from varlen_rnn.ops.cost import per_input_element
from varlen_rnn.ops.examples import LOD, TROUBLES, rows
from varlen_rnn.ops.indices import INT64
from varlen_rnn.ops.sequence.movement import flat, unflat
from varlen_rnn.ops.sequence.pad import holds
from varlen_rnn.ops.sequence.taken import rows_taken, rows_taken_grad
from varlen_rnn.rows.checks import ends_of
from varlen_rnn.rows.lod import NO_LOD, LoD, LoDTensor, levels_of, lod_of, remember
from varlen_rnn.runtime.device import as_operand, beside, empty, on_device, zeros
from varlen_rnn.runtime.placeholder import first_of
from varlen_rnn.tape.checks import FLOATS, check_float, check_lod_level, check_tensor
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.kinds import LOD_TENSOR
from varlen_rnn.tape.spec import TensorSpec, spec_of_tensor
from varlen_rnn.tape.variable import Variable
from varlen_rnn.typing import Rows

POOL_TYPES = ("sum", "mean", "sqrt", "max", "first", "last")
_PICKED = TensorSpec((-1, -1), INT64)  # for each element of a maximum, the row that has it


@operator(
    outputs=("out", "index"), intermediate=("index",), cost=per_input_element,
    rows=lambda specs, axes, pool_type, pad_value, level: "sequence" if level == -1 else "batch",
)  # fmt: skip
def sequence_pool(x, pool_type: str, pad_value: float = 0.0, level: int = -1):
    """Return one row per sequence: the sum, mean, sum over the square root of the length, maximum, first or last row.

    Parameters
    ----------
    x : Variable or LoDTensor
        Rows with at least one level.  Integers have only "sum", which wraps around as in NumPy, "max", "first" and
        "last".
    pool_type : {"sum", "mean", "sqrt", "max", "first", "last"}
    pad_value : float
        The result for a sequence without rows.
    level : int
        The level whose sequences are pooled, with all rows below them; -1 is the last.

    Returns
    -------
    Variable of shape `(sequences, ...)`, with the levels above

    Examples
    --------
    >>> x = LoDTensor(np.array([1.0, 3.0, 2.0, 4.0, 6.0]), [[0, 2, 5]])
    >>> np.asarray(sequence_pool(x, "mean")), np.asarray(sequence_pool(x, "max"))
    (array([2., 4.]), array([3., 6.]))

    Source: the operator `sequence_pool` of PaddlePaddle Fluid.
    """
    offsets, rows = _offsets(x, level), flat(x.data)
    out, index = empty((len(offsets) - 1, rows.shape[1]), rows), empty((0, rows.shape[1]), rows, INT64)
    if x.dtype not in FLOATS and not on_device(rows):
        _pool_integers(rows, offsets, pool_type, out)
    elif pool_type in ("first", "last"):
        pick_ends(rows, offsets, pool_type == "last", out)
    elif pool_type == "max":
        index = empty(out.shape, rows, INT64)
        pool.pool_max(rows, offsets, out, index)
    else:
        pool.pool_sum(rows, offsets, _scale(x, pool_type, level), out)
    if pad_value != 0:
        number = out.dtype.type(pad_value)
        if on_device(out):
            fill_rows(np.flatnonzero(offsets[:-1] == offsets[1:]), number, out)
        else:
            pool.fill_empty_sequences(offsets, number, out)
    above = levels_of(x.structure)[: level % x.num_levels]
    lod = (lod_of(above, len(out)) if above else NO_LOD).at_positions_of(x.structure)
    return LoDTensor.wrap(unflat(out, x.data), lod), LoDTensor.wrap(index)


def _pool_integers(rows, offsets, pool_type, out):
    """Pool sequences of integers by NumPy, because kernels are compiled for floats only."""
    begin, end = offsets[:-1], offsets[1:]
    full = begin < end
    out[~full] = 0
    if pool_type == "first":
        out[full] = rows[begin[full]]
    elif pool_type == "last":
        out[full] = rows[end[full] - 1]
    elif full.any():
        reduce = np.maximum if pool_type == "max" else np.add
        out[full] = reduce.reduceat(rows, begin[full], axis=0, dtype=rows.dtype)


def _offsets(x, level):
    """Return the offsets, in rows, of the sequences of a level."""
    return levels_of(x.structure)[-1] if level == -1 else x.structure.rows_of_level(level)


def _scale(x, pool_type, level):
    """Return the factor of each sequence's sum, cached with the LoD because the gradient needs it again."""
    key = "scale", pool_type, x.dtype, level, on_device(x.data)
    return remember(x.structure, key, _scale_of, x, pool_type, level)


def _scale_of(x, pool_type, level):
    offsets = _offsets(x, level)
    if pool_type == "sum":
        return full((len(offsets) - 1,), 1, x.data)
    found = empty((len(offsets) - 1,), offsets, x.dtype)
    pool.inverse_lengths(offsets, pool_type == "sqrt", found)
    return beside(found, x.data)


@sequence_pool.infer
def _infer_pool(x, pool_type, pad_value, level):
    if pool_type not in POOL_TYPES:
        raise ShapeError("sequence_pool, pool_type", expected=f"one of {POOL_TYPES}", got=repr(pool_type))
    if x.dtype not in FLOATS or x.kind is not LOD_TENSOR:
        _check_integers(x, pool_type, pad_value)
    check_lod_level("sequence_pool", "x", x)
    if not -x.lod_level <= level < x.lod_level:
        expected = f"{-x.lod_level} <= level < {x.lod_level}, a level of x"
        raise OutOfRangeError("sequence_pool, level", expected=expected, got=level)
    return spec_of_tensor((-1, *x.shape[1:]), x.dtype, level % x.lod_level), _PICKED


def _check_integers(x, pool_type, pad_value):
    check_tensor("sequence_pool", "x", x)
    if x.dtype.kind not in "iu":
        check_float("sequence_pool", x=x)
    if pool_type in ("mean", "sqrt"):
        expected, hint = f"float32 or float64, for {pool_type!r}", "x.astype(dtype) converts"
        raise DTypeError("sequence_pool, x", expected=expected, got=x.dtype, hint=hint)
    if not holds(x.dtype, pad_value):
        raise ShapeError("sequence_pool, pad_value", expected=f"a number that {x.dtype} holds", got=pad_value)


@sequence_pool.backward("x")
def _pool_grad(x, index, d_out, pool_type, pad_value, level):
    offsets, d_rows = _offsets(x, level), flat(d_out.data)
    d_x = empty((len(x.data), math.prod(x.shape[1:])), x.data)
    if len(d_rows) != len(offsets) - 1:
        raise ShapeError("sequence_pool_grad, d_out", expected=f"{len(offsets) - 1} sequences", got=len(d_rows))
    if pool_type in ("first", "last"):
        pick_ends_grad(d_rows, offsets, pool_type == "last", d_x)
    elif pool_type == "max":
        _check_picked(index.data, d_rows, len(d_x))
        pool.pick_rows_grad(d_rows, as_operand(index.data), d_x)
    else:
        pool.pool_sum_grad(d_rows, offsets, _scale(x, pool_type, level), d_x)
    return x.like(d_x.reshape(x.shape))


def _check_picked(index, d_rows, num_rows):
    """Raise unless each element of `index` is -1 or a row of `x`, because kernels use it unchecked."""
    # An index on a device is checked by the kernel, because it has never been on the host.
    is_wrong = index.shape != d_rows.shape
    if not is_wrong and not on_device(index):
        given, found = as_operand(index).reshape(-1), empty((1,), index)
        check_classes(given, -1, num_rows, num_rows, found)
        is_wrong = first_of(found, -1) >= 0
    if is_wrong:
        expected = f"positions of rows, -1 to {num_rows - 1}, in an array of shape {d_rows.shape}"
        raise OutOfRangeError("sequence_pool_grad, index", expected=expected, got=f"shape {index.shape}")


@sequence_pool.examples
def _pool_examples(rng):
    last = {"pad_value": 0.0, "level": -1}
    for pool_type in POOL_TYPES:
        yield [rows(rng, 3)], {"pool_type": pool_type, **last}
    yield [rows(rng, 2, 2)], {"pool_type": "sqrt", **last}
    for pool_type in ("sum", "max", "first", "last"):
        yield [rows(rng, 2).like(rng.integers(-9, 9, (6, 2)))], {"pool_type": pool_type, **last}
    for pool_type, *element in (("sum", 2, 0), ("max", 0)):  # rows without elements
        yield [rows(rng, *element)], {"pool_type": pool_type, **last}
    for pool_type in ("mean", "max", "last"):
        yield [rows(rng, 2, lod=TROUBLES[-1])], {"pool_type": pool_type, "pad_value": 0.5, "level": 0}


def sequence_first_step(x: Rows) -> Variable:
    """Return the first row of each sequence of the last level, or zeros if it is empty; see `sequence_pool`.

    Examples
    --------
    >>> np.asarray(sequence_first_step(LoDTensor(np.array([1.0, 2.0, 3.0]), [[0, 2, 3]])))
    array([1., 3.])
    """
    return sequence_pool(x, "first")


def sequence_last_step(x: Rows) -> Variable:
    """Return the last row of each sequence of the last level, or zeros if it is empty; see `sequence_pool`.

    Examples
    --------
    >>> np.asarray(sequence_last_step(LoDTensor(np.array([1.0, 2.0, 3.0]), [[0, 2, 3]])))
    array([2., 3.])
    """
    return sequence_pool(x, "last")


# The most columns of a result; without a limit, a program of a few bytes could request any amount of memory.
_MOST_COLUMNS = 2**20
_LARGEST_K = 2**31 - 1


def _sizes(op, x, row, col, channel_num):
    """Return two arrays: for the matrices of each sequence, the number of rows, and the number of columns."""
    heights, widths, numbers = (np.diff(levels_of(one.structure)[-1]) for one in (row, col, x))
    for name, sizes in (("col", widths), ("x", numbers)):
        if len(sizes) != len(heights):
            raise LoDError(f"{op}, {name}", expected=f"{len(heights)} sequences, as many as row has", got=len(sizes))
    wrong = np.flatnonzero(numbers != float(channel_num) * heights * widths)  # floats, because integers overflow
    if len(wrong):
        i = wrong[0]
        expected = f"{channel_num} x {heights[i]} x {widths[i]} numbers (channels x rows x columns)"
        raise ShapeError(f"{op}, x, sequence {i}", expected=expected, got=numbers[i])
    return heights, widths


def _selected(x, heights, widths, topks, channel_num):
    """Return `found` (positions of each matrix row's largest numbers), `limits` (offsets of the rows), and `lasts`.

    `lasts`, `(rows, channels, topks)`, has the place of each sum's last number in `found`; -1 if a row has no numbers.
    """
    columns = np.repeat(widths, channel_num * heights)  # how many columns each row of all matrices has, in x's order
    limits = ends_of(np.minimum(columns, max(topks)))
    numbers = as_operand(x.data).reshape(-1)
    found = empty((int(limits[-1]),), numbers, INT64)
    largest(numbers, ends_of(columns), limits, found)
    # The number of a matrix row: how many rows come before it, in earlier sequences and in earlier channels of its own.
    before = np.repeat((channel_num - 1) * (np.cumsum(heights) - heights), heights)
    first = (np.arange(heights.sum()) + before)[:, None]
    matrix_rows = first + np.arange(channel_num) * np.repeat(heights, heights)[:, None]
    counts = np.minimum(topks, np.repeat(widths, heights)[:, None])[:, None, :]
    return found, limits, np.where(counts > 0, limits[matrix_rows][:, :, None] + counts - 1, -1)


@operator(cost=per_input_element, rows="batch")
def sequence_topk_avg_pooling(x, row, col, topks: tuple[int, ...], channel_num: int):
    """Return the mean of the k largest numbers of each row of a matrix, for each channel and each k.

    Parameters
    ----------
    x : Variable or LoDTensor, shape `(numbers,)` or `(numbers, 1)`
        float32 or float64.  A sequence of its last level is `channel_num` matrices, one after another, row by row.
    row, col : Variable or LoDTensor
        Only the last levels of their LoDs are read: they give the rows and columns of each sequence's matrices.
    topks : tuple of int
        Each at least 1.  If a row has fewer than k columns, the sum of all is divided by k.
    channel_num : int
        At least 1.

    Returns
    -------
    Variable of shape `(rows, channel_num * len(topks))`, with the LoD of `row`
        All means of channel 0 come first.

    Raises
    ------
    ShapeError
        If a sequence of `x` does not have as many numbers as its matrices.

    Examples
    --------
    >>> x = vr.LoDTensor(np.array([1.0, 3.0, 2.0, 4.0, 0.0, 5.0]), [[0, 6]])  # a matrix of 2 rows and 3 columns
    >>> row, col = vr.LoDTensor(np.zeros(2), [[0, 2]]), vr.LoDTensor(np.zeros(3), [[0, 3]])
    >>> np.asarray(sequence_topk_avg_pooling(x, row, col, topks=(1, 2), channel_num=1))
    array([[3. , 2.5],
           [5. , 4.5]])

    Source: the operator `sequence_topk_avg_pooling` of PaddlePaddle Fluid, for one level and ascending `topks`.
    """
    heights, widths = _sizes("sequence_topk_avg_pooling", x, row, col, channel_num)
    found, limits, ends = _selected(x, heights, widths, topks, channel_num)
    values = rows_taken(as_operand(x.data).reshape(-1, 1), found)
    sums = empty(values.shape, values)
    cumsum(values, limits, 1, sums)
    out = divide(rows_taken(sums, ends.ravel()).reshape(ends.shape), np.array(topks, x.dtype))
    return row.like(out.reshape(len(out), channel_num * len(topks)))


@sequence_topk_avg_pooling.infer
def _infer_topk(x, row, col, topks, channel_num):
    name = "sequence_topk_avg_pooling"
    check_float(name, x=x)
    for place, spec in (("x", x), ("row", row), ("col", col)):
        check_tensor(name, place, spec)
        check_lod_level(name, place, spec)
    if x.shape[1:] not in ((), (1,)):
        raise ShapeError(f"{name}, x", expected="one number per row, (rows,) or (rows, 1)", got=f"shape {x.shape}")
    if not topks or not all(1 <= k <= _LARGEST_K for k in topks):
        raise OutOfRangeError(f"{name}, topks", expected=f"numbers from 1 to {_LARGEST_K}", got=topks)
    if not 1 <= channel_num * len(topks) <= _MOST_COLUMNS:
        expected = f"at least 1, and at most {_MOST_COLUMNS} columns of the result"
        raise OutOfRangeError(f"{name}, channel_num", expected=expected, got=channel_num)
    return TensorSpec((row.shape[0], channel_num * len(topks)), x.dtype, row.lod_level)


@sequence_topk_avg_pooling.backward("x")
def _backward(x, row, col, d_out, topks, channel_num):
    heights, widths = _sizes("sequence_topk_avg_pooling_grad", x, row, col, channel_num)
    found, limits, ends = _selected(x, heights, widths, topks, channel_num)
    d_ends = divide(as_operand(d_out.data).reshape(ends.shape), np.array(topks, x.dtype))
    d_sums = rows_taken_grad(d_ends.reshape(-1, 1), ends.ravel(), len(found))
    d_values = empty(d_sums.shape, d_sums)
    cumsum(d_sums, limits, -1, d_values)
    d_x = zeros((len(x.data), 1), d_values)
    init_memories_grad(d_values, found, d_x)  # no number was found twice
    return x.like(d_x.reshape(x.shape))


@sequence_topk_avg_pooling.examples
def _topk_examples(rng):
    for channel_num in (1, 2):
        for row, col in ((LOD, LOD), (TROUBLES[0], LoD.from_lengths([[1, 0, 3, 2, 2]])), *((t, t) for t in TROUBLES)):
            numbers = channel_num * np.diff(row.levels[-1]) * np.diff(col.levels[-1])
            x = rows(rng, *[1] * (channel_num - 1), lod=LoD.from_lengths([numbers]))
            yield [x, rows(rng, 2, lod=row), rows(rng, lod=col)], {"topks": (2, 1, 5), "channel_num": channel_num}
