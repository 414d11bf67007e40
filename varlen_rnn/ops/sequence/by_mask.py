"""Split the sequences of a level into two parts by a mask, and merge two such parts."""

import numpy as np

from varlen_rnn.errors import DTypeError, LoDError, OutOfRangeError, ShapeError
from varlen_rnn.kernels.copies import joined
from varlen_rnn.ops.cost import nothing
from varlen_rnn.ops.examples import TROUBLES, rows
from varlen_rnn.ops.sequence.movement import check_moved
from varlen_rnn.ops.sequence.taken import rows_taken, rows_taken_grad
from varlen_rnn.rows.checks import ends_of
from varlen_rnn.rows.lod import NO_LOD, LoD, LoDTensor, levels_of, take_sequences
from varlen_rnn.runtime.device import host_numbers, zeros
from varlen_rnn.tape.checks import check_has_rows, check_tensor
from varlen_rnn.tape.declare import operator

# The entries of a level are its sequences.  If a tensor has no LoD, each row is treated as a sequence of one row.


def _parted(x, level):
    """Return a tuple of the levels above `level`, and a LoD of `level` and the levels below it."""
    levels = levels_of(x.structure) or (np.arange(len(x.data) + 1),)
    level %= len(levels)
    return levels[:level], LoD(levels[level:])


def _with_levels(x, above, below):
    return LoD([*above, *levels_of(below)]) if x.num_levels else NO_LOD


def _entries(below):
    return len(levels_of(below)[0]) - 1


def _check(op, name, x, mask, level):
    check_moved(op, name, x)
    check_tensor(op, "mask", mask)
    check_has_rows(op, name, x)
    if mask.dtype != np.bool_:
        raise DTypeError(f"{op}, mask", expected="bool", got=mask.dtype, hint="compare, as in mask != 0")
    if not mask.shape or mask.shape[1:] not in ((), (1,)):
        raise ShapeError(f"{op}, mask", expected="one bool per sequence, (n,) or (n, 1)", got=f"shape {mask.shape}")
    levels = max(1, x.lod_level)
    if not -levels <= level < levels:
        raise OutOfRangeError(f"{op}, level", expected=f"{-levels} <= level < {levels}, a level of {name}", got=level)


def _order(mask):
    """Return the positions at which a mask is True, and then the other positions."""
    return np.argsort(~mask, kind="stable")


def _split(op, x, mask, level):
    """Return the LoDs of both parts, the positions of their rows in `x`, and how many rows the first part has."""
    above, below = _parted(x, level)
    mask = host_numbers(mask.data).reshape(-1)
    if len(mask) != _entries(below):
        expected = f"{_entries(below)} bools, one per sequence of level {level}"
        raise ShapeError(f"{op}, mask", expected=expected, got=len(mask))
    taken, index = take_sequences(below, _order(mask))
    count, before = int(np.count_nonzero(mask)), ends_of(mask)
    (first, _, middle), (second, _, _) = taken.slice(0, 0, count), taken.slice(0, count, len(mask))
    lods = []
    for part, own_before in ((first, before), (second, np.arange(len(before)) - before)):
        lods.append(_with_levels(x, [*above[:-1], *(own_before[offsets] for offsets in above[-1:])], part))
    return lods, index, middle


@operator(outputs=("out_true", "out_false"), cost=nothing, rows="batch")
def split_by_mask(x, mask, level: int = 0):
    """Return the sequences of a level at which a mask is True, and the sequences at which it is False.

    Parameters
    ----------
    x : Variable or LoDTensor
        Rows of any data type; without a LoD, each row is a sequence.
    mask : Variable or array of bools, shape `(sequences,)` or `(sequences, 1)`
        One bool for each sequence of the level.
    level : int
        The level whose sequences are split, with all their rows.

    Returns
    -------
    out_true, out_false : Variables with the levels of `x`
        The levels above `level` count the sequences of each part.

    Examples
    --------
    >>> true, false = split_by_mask(LoDTensor(np.arange(5), [[0, 2, 2, 5]]), np.array([True, True, False]))
    >>> np.asarray(true), true.lod(), np.asarray(false), false.lod()
    (array([0, 1]), [[0, 2, 2]], array([2, 3, 4]), [[0, 3]])

    Source: the operator `split_lod_tensor` of PaddlePaddle Fluid, which drops the levels above.
    """
    (first, second), index, middle = _split("split_by_mask", x, mask, level)
    taken = rows_taken(x.data, index)
    return LoDTensor.wrap(taken[:middle], first), LoDTensor.wrap(taken[middle:], second)


@split_by_mask.infer
def _infer_split(x, mask, level):
    _check("split_by_mask", "x", x, mask, level)
    return [x._replace(shape=(-1, *x.shape[1:]))] * 2


@split_by_mask.backward("x", cost=nothing)
def _backward_split(x, mask, d_out_true, d_out_false, level):
    _, index, middle = _split("split_by_mask_grad", x, mask, level)
    gradients = []
    for name, given, count in (("true", d_out_true, middle), ("false", d_out_false, len(index) - middle)):
        if given is not None and given.shape != (count, *x.shape[1:]):
            what, expected = f"split_by_mask_grad, d_out_{name}", f"shape {(count, *x.shape[1:])}"
            raise ShapeError(what, expected=expected, got=f"shape {given.shape}")
        gradients.append(zeros((count, *x.shape[1:]), x.data) if given is None else given.data)
    return x.like(rows_taken_grad(joined(gradients, 0), index, len(x.data)))


@split_by_mask.examples
def _examples_split(rng):
    yield [rows(rng, 2), np.array([True, False, False, True])], {"level": 0}
    yield [rng.standard_normal((3, 2)), np.array([[True], [False], [True]])], {"level": -1}
    for lod in TROUBLES:
        for level in range(-lod.num_levels, 0):
            yield [rows(rng, 2, lod=lod), rng.random(len(lod.levels[level]) - 1) < 0.5], {"level": level}


def _joined_above(op, first, second, mask):
    """Return the merged levels above the level of the mask; the lowest of them counts the entries of both parts."""
    if not first:
        return ()
    alike = len(first[-1]) == len(second[-1]) and all(map(np.array_equal, first[:-1], second[:-1]))
    joined = first[-1] + second[-1] if alike else None
    if not alike or not np.array_equal(ends_of(mask)[joined], first[-1]):
        expected = "levels above that count each part's sequences as the mask does"
        raise LoDError(f"{op}, in_true and in_false", expected=expected, got="other levels")
    return *first[:-1], joined


def _joined(op, in_true, in_false, mask, level):
    """Return the LoD of the result, and for each of its rows the position in the concatenated parts."""
    (above, first), (above_second, second) = (_parted(x, level) for x in (in_true, in_false))
    mask = host_numbers(mask.data).reshape(-1)
    for name, part, count in (("True", first, np.count_nonzero(mask)), ("False", second, np.count_nonzero(~mask))):
        if _entries(part) != count:
            expected = f"{count} sequences, one per {name} of mask"
            raise LoDError(f"{op}, in_{name.lower()}", expected=expected, got=_entries(part))
    both = LoD([np.append(a, a[-1] + b[1:]) for a, b in zip(levels_of(first), levels_of(second), strict=True)])
    below, index = take_sequences(both, np.argsort(_order(mask)))
    return _with_levels(in_true, _joined_above(op, above, above_second, mask), below), index


@operator(cost=nothing, rows="batch")
def merge_by_mask(in_true, in_false, mask, level: int = 0):
    """Merge two parts: take the next sequence of `in_true` where the mask is True, otherwise of `in_false`.

    Parameters
    ----------
    in_true, in_false : Variable or LoDTensor
        Rows of one data type and element shape, with the same number of levels.
    mask : Variable or array of bools, shape `(sequences,)` or `(sequences, 1)`
    level : int
        The level whose sequences are merged, with all their rows.

    Returns
    -------
    Variable with the same number of levels; merging the parts of `split_by_mask` restores its input

    Raises
    ------
    LoDError
        If a part does not have one sequence for each True, or False, of the mask.

    Examples
    --------
    >>> true, false = LoDTensor(np.array([1, 2]), [[0, 2, 2]]), LoDTensor(np.array([7, 8]), [[0, 2]])
    >>> out = merge_by_mask(true, false, np.array([True, False, True]))
    >>> np.asarray(out), out.lod()
    (array([1, 2, 7, 8]), [[0, 2, 4, 4]])

    Source: the operator `merge_lod_tensor` of PaddlePaddle Fluid.
    """
    lod, index = _joined("merge_by_mask", in_true, in_false, mask, level)
    return LoDTensor.wrap(rows_taken(joined([in_true.data, in_false.data], 0), index), lod)


@merge_by_mask.infer
def _infer_merge(in_true, in_false, mask, level):
    _check("merge_by_mask", "in_true", in_true, mask, level)
    _check("merge_by_mask", "in_false", in_false, mask, level)
    kinds = [f"rows of {x.shape[1:]} {x.dtype}, {x.lod_level} levels" for x in (in_true, in_false)]
    if kinds[0] != kinds[1]:
        raise ShapeError("merge_by_mask, in_false", expected=kinds[0], got=kinds[1])
    return in_true._replace(shape=(-1, *in_true.shape[1:]))


@merge_by_mask.backward("in_true", "in_false", cost=nothing)
def _backward_merge(in_true, in_false, mask, d_out, level):
    _, index = _joined("merge_by_mask_grad", in_true, in_false, mask, level)
    if len(d_out.data) != len(index):
        raise ShapeError("merge_by_mask_grad, d_out", expected=f"{len(index)} rows", got=f"shape {d_out.shape}")
    taken, middle = rows_taken_grad(d_out.data, index, len(index)), len(in_true.data)
    return in_true.like(taken[:middle]), in_false.like(taken[middle:])


@merge_by_mask.examples
def _examples_merge(rng):
    for values, constants in _examples_split(rng):
        x, mask = values
        yield [*(part.value for part in split_by_mask(x, mask, **constants)), mask], constants
