"""Operators on sequences of ids: remove some ids, list windows of ids, and count the edits between two sequences."""

import numpy as np

from varlen_rnn.errors import LoDError, OutOfRangeError, ShapeError
from varlen_rnn.kernels.edit_distance import edit_distance as fill_distances
from varlen_rnn.ops.cost import nothing, per_input_element
from varlen_rnn.ops.examples import LOD, TROUBLES
from varlen_rnn.rows.checks import ends_of
from varlen_rnn.rows.lod import NO_LOD, LoD, LoDTensor, levels_of
from varlen_rnn.runtime.device import beside, host_numbers
from varlen_rnn.tape.checks import check_integer, check_lod_level
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import TensorSpec

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
    before = ends_of(stays)  # the number of remaining ids before each row
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
    left = np.repeat(offsets[1:], lengths) - np.arange(len(ids))  # rows from each row to its sequence's end
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


@operator(outputs=("distances", "num_sequences"), cost=per_input_element, rows="batch", gradient=False)
def edit_distance(input, label, normalized: bool = True, ignored_tokens: tuple[int, ...] | None = None):
    """Return how many insertions, deletions and changes of ids turn each sequence into its label.

    Parameters
    ----------
    input : Variable, integers, shape `(ids,)` or `(ids, 1)`
        With at least one level; the sequences are taken from the last level.
    label : Variable, integers, shape `(labels,)` or `(labels, 1)`
        The right sequences, as many as in `input`.
    normalized : bool
        Whether to divide each distance by the number of labels of its sequence.
    ignored_tokens : tuple of int, optional
        Ids that count neither in `input` nor in `label`.

    Returns
    -------
    distances : Variable, float32, shape `(sequences,)`
        With the levels above the last.  They have no gradient.
    num_sequences : Variable, int64, a single number

    Raises
    ------
    DTypeError, ShapeError, LoDError
        If `input` and `label` have different numbers of sequences, or if `normalized` and a sequence has no labels.

    Examples
    --------
    >>> found = LoDTensor(np.array([1, 2, 3, 5]), [[0, 3, 4]])
    >>> right = LoDTensor(np.array([1, 3, 5, 5]), [[0, 2, 4]])
    >>> distances, number = edit_distance(found, right)
    >>> np.asarray(distances), int(number)
    (array([0.5, 0.5], dtype=float32), 2)

    Source: the operator `edit_distance` of PaddlePaddle Fluid; Levenshtein (1966).
    """
    if ignored_tokens:
        input, label = erased(input, ignored_tokens), erased(label, ignored_tokens)
    *above, offsets = levels_of(input.structure)
    ends = levels_of(label.structure)[-1]
    if len(offsets) != len(ends):
        expected = f"{len(offsets) - 1} sequences, as many as input has"
        raise LoDError("edit_distance, label", expected=expected, got=len(ends) - 1)
    ids, labels = _as_int64("input", input), _as_int64("label", label)
    distances, lengths = np.empty(len(offsets) - 1, np.int64), np.diff(ends)
    if normalized and (lengths == 0).any():
        got, hint = f"none in sequence {lengths.argmin()}", "normalized=False returns numbers of edits"
        expected = "labels in each sequence, because normalized divides by their number"
        raise LoDError("edit_distance, label", expected=expected, got=got, hint=hint)
    fill_distances(ids, offsets, labels, ends, np.empty(len(labels) + len(distances), np.int64), distances)
    result = beside((distances / lengths if normalized else distances).astype(np.float32), input.data)
    return LoDTensor.wrap(result, LoD(above) if above else NO_LOD), LoDTensor.wrap(np.array(len(distances)))


def _as_int64(name, x):
    ids = host_numbers(x.data).reshape(-1)
    if ids.dtype == np.uint64 and ids.size and ids.max() >= 2**63:
        raise OutOfRangeError(f"edit_distance, {name}", expected="ids that int64 can hold", got=ids.max())
    return ids.astype(np.int64)


@edit_distance.infer
def _infer(input, label, normalized, ignored_tokens):
    check_ids("edit_distance", input=input, label=label)
    return TensorSpec((-1,), np.dtype(np.float32), input.lod_level - 1), TensorSpec((), np.dtype(np.int64))


@edit_distance.examples
def _examples(rng):
    for lod in TROUBLES:
        pair = [LoDTensor(rng.integers(0, 3, lod.num_rows), lod) for _ in range(2)]
        yield pair, {"normalized": False, "ignored_tokens": (1,)}
    words = LoDTensor(rng.integers(0, 3, (9, 1)).astype(np.int32), [[0, 4, 9]])
    yield [LoDTensor(rng.integers(0, 3, 7), [[0, 0, 7]]), words], {"normalized": True, "ignored_tokens": None}
