"""Operators on sequences of ids: remove some ids, or list windows of ids."""

import numpy as np

from varlen_rnn.errors import OutOfRangeError, ShapeError
from varlen_rnn.ops.cost import nothing
from varlen_rnn.ops.examples import LOD, TROUBLES
from varlen_rnn.rows.lod import LoD, LoDTensor, levels_of
from varlen_rnn.runtime.device import beside, host_numbers
from varlen_rnn.tape.checks import check_integer, check_lod_level
from varlen_rnn.tape.declare import operator

# The most ids of a window; without a limit, a program of a few bytes could request any amount of memory.
_MOST_IDS = 2**20


def check_ids(op, **descs):
    """Raise unless all inputs are sequences of integers, one id per row."""
    check_integer(op, **descs)
    for name, desc in descs.items():
        check_lod_level(op, name, desc)
        if desc.shape[1:] not in ((), (1,)):
            raise ShapeError(f"{op}, {name}", expected="one id per row", got=f"shape {desc.shape}")


def _holds(dtype, number):
    return np.iinfo(dtype).min <= number <= np.iinfo(dtype).max


@operator(cost=nothing, rows="batch", gradient=False)
def sequence_erase(x, tokens: tuple[int, ...]):
    """Return the sequences of the last level without the ids in `tokens`.

    Parameters
    ----------
    x : Variable or LoDTensor of integers, shape `(rows,)` or `(rows, 1)`
        With at least one level.
    tokens : tuple of int

    Returns
    -------
    Variable of the remaining ids, with as many levels; it has no gradient.  A sequence may become empty.

    Examples
    --------
    >>> out = sequence_erase(LoDTensor(np.array([2, 2, 6, 1, 3, 9]), [[0, 3, 6]]), tokens=(2, 3))
    >>> np.asarray(out), out.lod()
    (array([6, 1, 9]), [[0, 1, 3]])

    Source: the operator `sequence_erase` of PaddlePaddle Fluid.
    """
    return erased(x, tokens)


def erased(x, tokens):
    """Return the sequences of the last level without the ids in `tokens`."""
    *above, offsets = levels_of(x.structure)
    listed = np.array([token for token in tokens if _holds(x.dtype, token)], x.dtype)
    ids = host_numbers(x.data)
    stays = ~np.isin(ids.reshape(-1), listed)
    before = np.concatenate([[0], np.cumsum(stays)])  # the number of remaining ids before each row
    return LoDTensor.wrap(beside(ids[stays], x.data), LoD([*above, before[offsets]]).at_positions_of(x.structure))


@sequence_erase.infer
def _infer_erase(x, tokens):
    check_ids("sequence_erase", x=x)
    return x._replace(shape=(-1, *x.shape[1:]))


@sequence_erase.examples
def _examples_of_erase(rng):
    yield [LoDTensor(rng.integers(0, 5, 6), LOD)], {"tokens": (0, 2, 4)}
    yield [LoDTensor(rng.integers(0, 5, (6, 1)).astype(np.int32), LOD)], {"tokens": ()}
    for lod in TROUBLES:
        yield [LoDTensor(rng.integers(0, 3, lod.num_rows), lod)], {"tokens": (1, -1)}


@operator(cost=nothing, rows="batch", gradient=False)
def sequence_enumerate(x, win_size: int, pad_value: int = 0):
    """Return the window of ids that begins at each row, and lies within its sequence of the last level.

    Parameters
    ----------
    x : Variable or LoDTensor of integers, shape `(rows,)` or `(rows, 1)`
        With at least one level.
    win_size : int
        The number of ids of a window, from 1 to 2**20.
    pad_value : int
        The id that fills a window after the end of its sequence; the data type of `x` must hold it.

    Returns
    -------
    Variable of shape `(rows, win_size)`, with the LoD of `x`; it has no gradient.

    Examples
    --------
    >>> np.asarray(sequence_enumerate(LoDTensor(np.array([1, 2, 3, 4]), [[0, 3, 4]]), win_size=2))
    array([[1, 2],
           [2, 3],
           [3, 0],
           [4, 0]])

    Source: the operator `sequence_enumerate` of PaddlePaddle Fluid, which takes one level.
    """
    offsets, ids = levels_of(x.structure)[-1], host_numbers(x.data).reshape(-1)
    lengths = np.diff(offsets)
    left = np.repeat(offsets[1:], lengths) - np.arange(len(ids))  # rows from each to the end of its sequence
    out = np.full((len(ids), win_size), pad_value, x.dtype)
    for step in range(min(win_size, int(lengths.max(initial=0)))):
        inside = np.flatnonzero(left > step)
        out[inside, step] = ids[inside + step]
    return x.like(beside(out, x.data))


@sequence_enumerate.infer
def _infer_enumerate(x, win_size, pad_value):
    check_ids("sequence_enumerate", x=x)
    if not 1 <= win_size <= _MOST_IDS:
        raise OutOfRangeError("sequence_enumerate, win_size", expected=f"1 to {_MOST_IDS}", got=win_size)
    if not _holds(x.dtype, pad_value):
        raise OutOfRangeError("sequence_enumerate, pad_value", expected=f"a number that {x.dtype} holds", got=pad_value)
    return x._replace(shape=(x.shape[0], win_size))


@sequence_enumerate.examples
def _examples_of_enumerate(rng):
    yield [LoDTensor(rng.integers(0, 5, 6), LOD)], {"win_size": 2, "pad_value": 0}
    yield [LoDTensor(rng.integers(0, 5, (6, 1)).astype(np.int32), LOD)], {"win_size": 1, "pad_value": -1}
    for lod in TROUBLES:
        yield [LoDTensor(rng.integers(0, 3, lod.num_rows), lod)], {"win_size": 4, "pad_value": 7}
