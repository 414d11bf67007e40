"""Operators for code that uses padded batches: pad, remove padding, make masks, and add updates at positions."""

import math

import numpy as np

from varlen_rnn.errors import LoDError, OutOfRangeError, ShapeError
from varlen_rnn.kernels.plans import find_longer, number_rows
from varlen_rnn.kernels.rows import scatter_add_rows
from varlen_rnn.ops.cost import nothing, size
from varlen_rnn.ops.examples import LOD, TROUBLES, rows
from varlen_rnn.ops.indices import INT64, evenly, indices, rows_at
from varlen_rnn.ops.sequence.movement import check_moved
from varlen_rnn.ops.sequence.taken import runs_placed, runs_taken
from varlen_rnn.rows.checks import ends_of
from varlen_rnn.rows.lod import NO_LOD, LoD, LoDTensor, levels_of, lod_of
from varlen_rnn.runtime.device import as_operand, beside, empty, host_numbers
from varlen_rnn.runtime.placeholder import first_of
from varlen_rnn.tape.checks import check_float, check_integer, check_lod_level, check_rank, check_shape, shared_lod
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import TensorSpec, sizes_fit

MASK_TYPES = ("bool", "int32", "int64", "float32", "float64")
_MOST_STEPS = 2**24  # without a limit, a program of a few bytes could request any amount of memory


def _places_of_pad(offsets, steps):
    """Return the first place of each sequence in a padded batch, which has `steps` places for each sequence."""
    return evenly(len(offsets) - 1, offsets, steps)


def _flat_places(data):
    """Return a padded batch as one row per place."""
    return as_operand(data).reshape(data.shape[0] * data.shape[1], math.prod(data.shape[2:]))


def _check_maxlen(op, maxlen):
    if maxlen is not None and not 0 <= maxlen <= _MOST_STEPS:
        raise OutOfRangeError(f"{op}, maxlen", expected=f"0 to {_MOST_STEPS}, or None for the longest", got=maxlen)


# Move rows into a padded batch.


@operator(outputs=("out", "length"), cost=nothing, rows="batch")
def sequence_pad(x, pad_value: float = 0.0, maxlen: int | None = None):
    """Return the sequences of the last level as a padded batch, with padding at their ends, and their lengths.

    Parameters
    ----------
    x : Variable or LoDTensor
        Rows of any data type with at least one level.
    pad_value : float
        The number after the end of a sequence; the data type of `x` must hold it.
    maxlen : int, optional
        The number of steps of the padded batch, at least the longest length, which is the default.

    Returns
    -------
    out : Variable of shape `(sequences, maxlen, ...)`
        It keeps the levels above the last, as in `sequence_pool`.
    length : Variable of shape `(sequences,)`, int64

    Raises
    ------
    OutOfRangeError
        If a sequence is longer than `maxlen`.

    Examples
    --------
    >>> out, length = sequence_pad(LoDTensor(np.array([1.0, 2.0, 3.0]), [[0, 2, 2, 3]]), pad_value=-1.0)
    >>> np.asarray(out)
    array([[ 1.,  2.],
           [-1., -1.],
           [ 3., -1.]])
    >>> np.asarray(length)
    array([2, 0, 1])

    Source: the operator `sequence_pad` of PaddlePaddle Fluid, which takes one level and fails on a batch without rows.
    """
    *above, offsets = levels_of(x.structure)
    count, steps = len(offsets) - 1, _steps("sequence_pad", offsets, maxlen)
    out = runs_placed(x.data, _places_of_pad(offsets, steps), offsets, count * steps, pad_value)
    lod = (lod_of(above, count) if above else NO_LOD).at_positions_of(x.structure)
    lengths = LoDTensor.wrap(beside(offsets[1:] - offsets[:-1], x.data), lod)
    return LoDTensor.wrap(out.reshape(count, steps, *x.shape[1:]), lod), lengths


def _steps(op, offsets, maxlen):
    """Return the number of steps of a padded batch; raise if a sequence is longer."""
    if maxlen is None:
        return int((offsets[1:] - offsets[:-1]).max(initial=0))
    found = empty((1,), offsets)
    find_longer(offsets, maxlen, found)
    if (longest := first_of(found, -1)) >= 0:
        raise OutOfRangeError(f"{op}, maxlen", expected=f"at least {longest}, the longest sequence", got=maxlen)
    return maxlen


@sequence_pad.infer
def _infer_pad(x, pad_value, maxlen):
    check_moved("sequence_pad", "x", x)
    check_lod_level("sequence_pad", "x", x)
    _check_maxlen("sequence_pad", maxlen)
    if not holds(x.dtype, pad_value):
        raise ShapeError("sequence_pad, pad_value", expected=f"a number that {x.dtype} holds", got=pad_value)
    out = TensorSpec((-1, -1 if maxlen is None else maxlen, *x.shape[1:]), x.dtype, x.lod_level - 1)
    return out, TensorSpec((-1,), INT64, x.lod_level - 1)


def holds(dtype, number):
    """Return whether a data type can hold a number; an integer type must hold it exactly."""
    if number == 0:  # the usual number, for which a test by NumPy would take as long as padding a small batch
        return True
    with np.errstate(all="ignore"):
        held = np.float64(number).astype(dtype)
        return bool(np.isfinite(held) == np.isfinite(number) if dtype.kind in "fc" else held == number)


@sequence_pad.backward("x", cost=nothing)
def _pad_grad(x, d_out, pad_value, maxlen):
    offsets = levels_of(x.structure)[-1]
    steps = _steps("sequence_pad_grad", offsets, maxlen)
    check_shape("sequence_pad_grad", "d_out", d_out, (len(offsets) - 1, steps, *x.shape[1:]))
    places, count = _places_of_pad(offsets, steps), len(x.data)
    return x.like(runs_taken(_flat_places(d_out.data), places, offsets, count).reshape(x.shape))


@sequence_pad.examples
def _examples_of_pad(rng):
    yield [rows(rng, 3)], {"pad_value": 0.5, "maxlen": None}
    yield [rows(rng)], {"pad_value": 0.0, "maxlen": 4}
    for lod in TROUBLES:
        yield [rows(rng, 2, lod=lod)], {"pad_value": -1.0, "maxlen": None}


# Move a padded batch into rows.


@operator(cost=nothing, rows="batch")
def sequence_unpad(x, length):
    """Return the rows of a padded batch without its padding, with the given lengths as the last level.

    Parameters
    ----------
    x : Variable or array, shape `(sequences, steps, ...)`
        Of any data type.
    length : Variable or array of integers, shape `(sequences,)`
        At least 0 and at most `steps`.

    Returns
    -------
    Variable of shape `(rows, ...)`; its last level has the lengths, the levels above are the levels of `x`.

    Raises
    ------
    OutOfRangeError
        If a length is negative, or more than `steps`.

    Examples
    --------
    >>> y = sequence_unpad(np.array([[1.0, 2.0], [-1.0, -1.0], [3.0, -1.0]]), np.array([2, 0, 1]))
    >>> np.asarray(y), y.lod()
    (array([1., 2., 3.]), [[0, 2, 2, 3]])

    Source: the operator `sequence_unpad` of PaddlePaddle Fluid, where scalar steps become rows of one element.
    """
    offsets = _offsets("sequence_unpad", x, length)
    out = runs_taken(_flat_places(x.data), _places_of_pad(offsets, x.shape[1]), offsets, int(offsets[-1]))
    above = shared_lod("sequence_unpad", x, length, names=("x", "length"))
    lod = LoD([*levels_of(above), offsets]).at_positions_of(above)
    return LoDTensor.wrap(out.reshape(len(out), *x.shape[2:]), lod)


def _offsets(op, x, length):
    """Return the offsets of sequences of the given lengths; raise if a length does not fit `x`."""
    numbers = host_numbers(length.data)
    lengths = numbers.astype(INT64)
    if len(lengths) != len(x.data):
        raise ShapeError(f"{op}, length", expected=f"{len(x.data)} lengths, one per row of x", got=len(lengths))
    wrong = np.flatnonzero((lengths < 0) | (lengths > x.shape[1]))
    if len(wrong):
        what, expected = f"{op}, length, entry {wrong[0]}", f"0 to {x.shape[1]}, x's number of steps"
        raise OutOfRangeError(what, expected=expected, got=int(numbers[wrong[0]]))
    return ends_of(lengths)


@sequence_unpad.infer
def _infer_unpad(x, length):
    check_moved("sequence_unpad", "x", x)
    check_integer("sequence_unpad", length=length)
    check_rank("sequence_unpad", "length", length, 1)
    if len(x.shape) < 2:
        raise ShapeError("sequence_unpad, x", expected="(sequences, steps, ...)", got=f"shape {x.shape}")
    check_shape("sequence_unpad", "length", length, (x.shape[0],))
    return TensorSpec((-1, *x.shape[2:]), x.dtype, max(x.lod_level, length.lod_level) + 1)


@sequence_unpad.backward("x", cost=nothing)
def _unpad_grad(x, length, d_out):
    offsets = _offsets("sequence_unpad_grad", x, length)
    check_shape("sequence_unpad_grad", "d_out", d_out, (int(offsets[-1]), *x.shape[2:]))
    steps = x.shape[1]
    out = runs_placed(d_out.data, _places_of_pad(offsets, steps), offsets, (len(offsets) - 1) * steps)
    return x.like(out.reshape(x.shape))


@sequence_unpad.examples
def _examples_of_unpad(rng):
    yield [rng.standard_normal((4, 3, 2)), np.array([2, 0, 3, 1])], {}
    yield [rng.standard_normal((2, 3)), np.array([0, 0], np.int32)], {}
    yield [rng.standard_normal((0, 3, 2)), np.array([], np.int64)], {}
    yield [rows(rng, 3), np.array([3, 0, 1, 2, 0, 3])], {}


# Mark the places of a padded batch that hold rows.


@operator(cost=nothing, rows="batch", gradient=False)
def sequence_mask(lengths, maxlen: int | None = None, dtype: str = "int64"):
    """Return 1 for each step of a sequence, and 0 for each step after its end.

    Parameters
    ----------
    lengths : Variable or array of integers, any shape
        At least 0.
    maxlen : int, optional
        The number of steps, by default the largest length.  The mask of a longer sequence is all ones.
    dtype : {"bool", "int32", "int64", "float32", "float64"}

    Returns
    -------
    Variable of shape `(*lengths.shape, maxlen)`; it has no gradient.

    Examples
    --------
    >>> np.asarray(sequence_mask(np.array([2, 0, 3])))
    array([[1, 1, 0],
           [0, 0, 0],
           [1, 1, 1]])

    Source: the operator `sequence_mask` of PaddlePaddle Fluid, where a `maxlen` of 0 is an error.
    """
    data = host_numbers(lengths.data).astype(INT64)
    wrong = np.flatnonzero(data < 0)
    if len(wrong):
        what = f"sequence_mask, lengths, entry {wrong[0]}"
        raise OutOfRangeError(what, expected="at least 0", got=data.flat[wrong[0]])
    steps = int(data.max(initial=0)) if maxlen is None else maxlen
    _check_maxlen("sequence_mask", steps)
    return lengths.like(beside((np.arange(steps) < data[..., None]).astype(dtype), lengths.data))


@sequence_mask.infer
def _infer_mask(lengths, maxlen, dtype):
    check_integer("sequence_mask", lengths=lengths)
    _check_maxlen("sequence_mask", maxlen)
    if dtype not in MASK_TYPES:
        raise ShapeError("sequence_mask, dtype", expected=f"one of {MASK_TYPES}", got=repr(dtype))
    return TensorSpec((*lengths.shape, -1 if maxlen is None else maxlen), np.dtype(dtype), lengths.lod_level)


@sequence_mask.examples
def _examples_of_mask(rng):
    yield [np.array([2, 0, 3])], {"maxlen": None, "dtype": "int64"}
    yield [np.array([[2], [0]], np.int32)], {"maxlen": 1, "dtype": "float64"}
    yield [np.array([], np.int64)], {"maxlen": None, "dtype": "bool"}


def _places_of_scatter(op, x, index, updates):
    """Return, for each update, the position in `x` at which it is added; positions go on from row to row."""
    shared_lod(op, index, updates, names=("index", "updates"))
    offsets = levels_of(index.structure)[-1]
    if len(x.data) != len(offsets) - 1:
        expected = f"{len(offsets) - 1} rows, one per sequence of index"
        raise LoDError(f"{op}, x", expected=expected, got=len(x.data))
    if len(updates.data) != len(index.data):
        expected = f"{len(index.data)} rows, one per row of index"
        raise ShapeError(f"{op}, updates", expected=expected, got=f"shape {updates.shape}")
    positions = indices(f"{op}, index", index, x.shape[1], "position")
    sequences = empty(positions.shape, positions)
    number_rows(offsets, sequences)
    return positions + sequences * x.shape[1]


@operator(cost=lambda inputs, outputs: size(inputs[2]), rows="batch")
def sequence_scatter(x, index, updates):
    """Return `x` with the updates of sequence i added to row i, at the positions in sequence i of `index`.

    Parameters
    ----------
    x : Variable or array, shape `(sequences, positions, ...)`
    index : Variable or LoDTensor of integers, shape `(rows,)` or `(rows, 1)`
        With at least one level; the sequences are taken from the last level.  Positions may repeat: all updates are
        added.
    updates : Variable or LoDTensor, shape `(rows, ...)`, the data type of `x`
        With the LoD of `index`, or without a LoD.  Updates of single numbers may have the shape `(rows, 1)`.

    Returns
    -------
    Variable of the shape of `x`

    Raises
    ------
    OutOfRangeError
        If `x` does not have a position.

    Examples
    --------
    >>> index = LoDTensor(np.array([2, 2, 0]), [[0, 2, 3]])
    >>> np.asarray(sequence_scatter(np.zeros((2, 3)), index, np.array([1.0, 2.0, 4.0])))
    array([[0., 0., 3.],
           [4., 0., 0.]])

    Source: the operator `sequence_scatter` of PaddlePaddle Fluid, which takes one level and does not check positions.
    """
    places = _places_of_scatter("sequence_scatter", x, index, updates)
    out = x.data.copy()
    added = as_operand(updates.data).reshape(len(places), math.prod(x.shape[2:]))
    scatter_add_rows(added, places, _flat_places(out))
    return x.like(out)


@sequence_scatter.infer
def _infer(x, index, updates):
    check_float("sequence_scatter", x=x, updates=updates)
    check_integer("sequence_scatter", index=index)
    check_lod_level("sequence_scatter", "index", index)
    if len(x.shape) < 2:
        raise ShapeError("sequence_scatter, x", expected="(sequences, positions, ...)", got=f"shape {x.shape}")
    if index.shape[1:] not in ((), (1,)):
        raise ShapeError("sequence_scatter, index", expected="one position per row", got=f"shape {index.shape}")
    element = x.shape[2:]
    if not updates.shape or not any(sizes_fit(updates.shape[1:], one) for one in (element, element or (1,))):
        expected = f"rows of shape {element}, as positions of x have"
        raise ShapeError("sequence_scatter, updates", expected=expected, got=f"shape {updates.shape}")
    return x


@sequence_scatter.backward("x", "updates")
def _backward(x, index, updates, d_out):
    places = _places_of_scatter("sequence_scatter_grad", x, index, updates)
    d_updates = rows_at(_flat_places(d_out.data), places)
    return x.like(d_out.data), updates.like(d_updates.reshape(updates.shape))


@sequence_scatter.examples
def _examples(rng):
    index = LoDTensor(np.array([1, 1, 0, 2, 2, 1], np.int32), LOD)
    yield [rng.standard_normal((4, 3)), index, rows(rng)], {}
    yield [rng.standard_normal((4, 3, 2)), index, rng.standard_normal((6, 2))], {}
    yield [rng.standard_normal((4, 3)), index.like(index.data[:, None]), rows(rng, 1)], {}
    for lod in TROUBLES:
        index = LoDTensor(rng.integers(0, 3, lod.num_rows), lod)
        yield [rng.standard_normal((len(lod.levels[-1]) - 1, 3)), index, rows(rng, lod=lod)], {}
