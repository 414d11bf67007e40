"""Edit distances between sequences of ids and their labels."""

import numpy as np

from varlen_rnn.errors import LoDError, OutOfRangeError
from varlen_rnn.kernels.edit_distance import edit_distance as fill_distances
from varlen_rnn.ops.cost import per_input_element
from varlen_rnn.ops.examples import TROUBLES
from varlen_rnn.ops.sequence.ids import check_ids, erased
from varlen_rnn.rows.lod import NO_LOD, LoD, LoDTensor, levels_of
from varlen_rnn.runtime.device import beside, host_numbers
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import TensorSpec


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
        raise LoDError("edit_distance, label", expected=f"{len(offsets) - 1} sequences, as input", got=len(ends) - 1)
    ids, labels = _as_int64("input", input), _as_int64("label", label)
    distances, lengths = np.empty(len(offsets) - 1, np.int64), np.diff(ends)
    if normalized and (lengths == 0).any():
        got, hint = f"none in sequence {lengths.argmin()}", "normalized=False returns numbers of edits"
        raise LoDError("edit_distance, label", expected="labels of each sequence, to divide by", got=got, hint=hint)
    fill_distances(ids, offsets, labels, ends, np.empty(len(labels) + len(distances), np.int64), distances)
    result = beside((distances / lengths if normalized else distances).astype(np.float32), input.data)
    return LoDTensor.wrap(result, LoD(above) if above else NO_LOD), LoDTensor.wrap(np.array(len(distances)))


def _as_int64(name, x):
    ids = host_numbers(x.data).reshape(-1)
    if ids.dtype == np.uint64 and ids.size and ids.max() >= 2**63:
        raise OutOfRangeError(f"edit_distance, {name}", expected="ids that int64 has", got=ids.max())
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
