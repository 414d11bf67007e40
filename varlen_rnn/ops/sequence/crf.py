"""Linear-chain conditional random fields over sequences: the cost of given labels, and the most probable labels."""

import numpy as np

from varlen_rnn.errors import LoDError, OutOfRangeError, ShapeError
from varlen_rnn.kernels.arithmetic import add, equal
from varlen_rnn.kernels.copies import astype, full
from varlen_rnn.kernels.crf import crf, viterbi
from varlen_rnn.kernels.n_best import search_labellings
from varlen_rnn.kernels.reductions import sum_over
from varlen_rnn.ops import traits
from varlen_rnn.ops.examples import TROUBLES, rows
from varlen_rnn.ops.indices import INT64, labels_of
from varlen_rnn.rows.checks import ends_of
from varlen_rnn.rows.lod import LoD, LoDTensor, levels_of, same_offsets
from varlen_rnn.runtime.device import as_operand, beside, empty, to_host, zeros
from varlen_rnn.tape.checks import check_float, check_integer, check_lod_level, check_rank, check_shape
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import TensorSpec


def _tags(emission, label, name):
    """Return labels as a flat int64 array; raise unless each row of `emission` has a label that is a tag."""
    if label.data.size != len(emission.data):
        raise ShapeError(f"{name}, label", expected=f"{len(emission.data)} rows", got=f"shape {label.shape}")
    if label.num_levels and not same_offsets(levels_of(label.structure)[-1], levels_of(emission.structure)[-1]):
        raise LoDError(f"{name}, label", expected="sequences of the same lengths as in emission", got="other lengths")
    return labels_of(f"{name}, label", label, emission.shape[1], "tags")


def _costs(emission, label, transition, scales, with_gradient):
    """Return the cost of each sequence, and the gradients of `emission` and of each sequence's transitions."""
    data, offsets, count = as_operand(emission.data), levels_of(emission.structure)[-1], emission.num_elements(-1)
    labels, tags = _tags(emission, label, "linear_chain_crf"), data.shape[1]
    alpha, costs = empty(data.shape, data), empty((count,), data)
    d_emission = empty((len(data) if with_gradient else 0, tags), data)
    memory = empty((count if with_gradient else 0, tags + 4, tags), data)
    d_transitions = empty((len(memory), tags + 2, tags), data)
    weights = as_operand(transition.data)
    scales = costs if scales is None else as_operand(scales)
    crf(data, labels, offsets, weights, alpha, memory, costs, scales, d_emission, d_transitions)
    return costs, d_emission, d_transitions


def _cost(inputs, outputs, **attrs):
    """4 operations per row and pair of tags."""
    emission = inputs[0]
    return 4 * max(1, emission.shape[0]) * max(1, emission.shape[1]) ** 2


@operator(cost=_cost, rows=traits.beside("batch", 2))
def linear_chain_crf(emission, label, transition):
    """Return minus the logarithm of the probability of the labels of each sequence.

    Parameters
    ----------
    emission : Variable, shape `(rows, tags)`
        Scores, with at least one level; the sequences are taken from the last level.
    label : integers, shape `(rows,)` or `(rows, 1)`
    transition : Variable, shape `(tags + 2, tags)`
        Row 0: scores of the first tag.  Row 1: scores of the last tag.  Row 2 + i: scores of the tag after tag i.

    Returns
    -------
    Variable of shape `(sequences,)`; 0 for an empty sequence

    Examples
    --------
    >>> emission = LoDTensor(np.zeros((3, 2)), [[0, 1, 3]])
    >>> np.exp(-np.asarray(linear_chain_crf(emission, np.array([0, 1, 1]), np.zeros((4, 2)))))
    array([0.5 , 0.25])

    Source: the operator `linear_chain_crf` of PaddlePaddle Fluid, which computes with exponentials of the scores.
    """
    return LoDTensor.wrap(_costs(emission, label, transition, None, with_gradient=False)[0])


def _check(name, emission, transition):
    check_float(name, emission=emission, transition=transition)
    check_lod_level(name, "emission", emission)
    check_rank(name, "emission", emission, 2)
    check_rank(name, "transition", transition, 2)
    tags = emission.shape[1]
    if tags == 0:
        raise ShapeError(f"{name}, emission", expected="at least one tag", got=f"shape {emission.shape}")
    check_shape(name, "transition", transition, (-1 if tags == -1 else tags + 2, tags))


def _check_label(name, label):
    check_integer(name, label=label)
    if len(label.shape) != 1 and label.shape[1:] != (1,):
        raise ShapeError(f"{name}, label", expected="one tag per row, (rows,) or (rows, 1)", got=f"shape {label.shape}")


@linear_chain_crf.infer
def _infer(emission, label, transition):
    _check("linear_chain_crf", emission, transition)
    _check_label("linear_chain_crf", label)
    return TensorSpec((-1,), emission.dtype)


@linear_chain_crf.backward("emission", "transition", cost=_cost)
def _backward(emission, label, transition, d_out):
    if d_out.shape != (emission.num_elements(-1),):
        expected = f"{emission.num_elements(-1)} sequences"
        raise ShapeError("linear_chain_crf_grad, d_out", expected=expected, got=d_out.shape)
    _, d_emission, d_transitions = _costs(emission, label, transition, d_out.data, with_gradient=True)
    return emission.like(d_emission), transition.like(sum_over(d_transitions, 0))


@linear_chain_crf.examples
def _examples(rng):
    yield [rows(rng, 3), rng.integers(0, 3, 6), rng.standard_normal((5, 3))], {}
    for lod in TROUBLES:
        yield [rows(rng, 2, lod=lod), rng.integers(0, 2, (lod.num_rows, 1)), rng.standard_normal((4, 2))], {}


@operator(cost=_cost, rows=traits.beside("batch", 1))
def crf_decoding(emission, transition, label=None):
    """Return the tag of each row in the most probable labelling of its sequence; if tags are equal, the first.

    Parameters
    ----------
    emission, transition
        As in `linear_chain_crf`.
    label : integers, shape `(rows,)` or `(rows, 1)`, optional

    Returns
    -------
    Variable of shape `(rows,)`, int64, with the LoD of `emission`; with labels, 1 where the tag is the label, else 0

    Examples
    --------
    >>> emission = LoDTensor(np.array([[0.0, 1.0], [2.0, 0.0]]), [[0, 2]])
    >>> np.asarray(crf_decoding(emission, np.zeros((4, 2))))
    array([1, 0])

    Source: the operator `crf_decoding` of PaddlePaddle Fluid (Viterbi, 1967).
    """
    data = as_operand(emission.data)
    best, back, path = empty(data.shape, data), empty(data.shape, data, INT64), empty((len(data),), data, INT64)
    viterbi(data, levels_of(emission.structure)[-1], as_operand(transition.data), best, back, path)
    if label is not None:
        path = astype(equal(path, beside(_tags(emission, label, "crf_decoding"), path)), INT64)
    return emission.like(path)


@crf_decoding.infer
def _infer_decoding(emission, transition, label):
    _check("crf_decoding", emission, transition)
    if label is not None:
        _check_label("crf_decoding", label)
    return TensorSpec(emission.shape[:1], INT64, emission.lod_level)


@crf_decoding.examples
def _examples_decoding(rng):
    yield [rows(rng, 3), rng.standard_normal((5, 3)), None], {}
    for lod in TROUBLES:
        yield [rows(rng, 2, lod=lod), rng.standard_normal((4, 2)), rng.integers(0, 2, lod.num_rows)], {}


@operator(cost=_cost, rows=traits.beside("batch", 1))
def crf_marginals(emission, transition):
    """Return the probability of each tag of each row, over all labellings of its sequence.

    Parameters
    ----------
    emission, transition
        As in `linear_chain_crf`.

    Returns
    -------
    Variable of shape `(rows, tags)`, with the LoD of `emission`

    Examples
    --------
    >>> emission = LoDTensor(np.log([[3.0, 1.0], [1.0, 1.0]]), [[0, 2]])
    >>> np.asarray(crf_marginals(emission, np.zeros((4, 2))))
    array([[0.75, 0.25],
           [0.5 , 0.5 ]])

    Source: the gradient of the logarithm of the normalising sum (Lafferty, McCallum and Pereira, 2001).
    """
    label = LoDTensor.wrap(zeros((len(emission.data),), levels_of(emission.structure)[-1]))
    scales = full((emission.num_elements(-1),), 1, emission.data)
    _, gradient, _ = _costs(emission, label, transition, scales, with_gradient=True)
    # The gradient of the costs is the probabilities, minus 1 at the labels, which are all 0 here.
    at_labels = np.zeros(gradient.shape[1], gradient.dtype)
    at_labels[0] = 1
    return emission.like(add(gradient, beside(at_labels, gradient)))


@crf_marginals.infer
def _infer_marginals(emission, transition):
    _check("crf_marginals", emission, transition)
    return emission


@crf_marginals.examples
def _examples_marginals(rng):
    yield [rows(rng, 3), rng.standard_normal((5, 3))], {}
    for lod in TROUBLES:
        yield [rows(rng, 2, lod=lod), rng.standard_normal((4, 2))], {}


_MOST_LABELLINGS = 2**12  # without a limit, a program of a few bytes could request any amount of memory


def _cost_of_n_best(inputs, outputs, n, **attrs):
    """2 operations per row, pair of tags and labelling."""
    return n * _cost(inputs, outputs) // 2


@operator(outputs=("tags", "scores"), cost=_cost_of_n_best, rows=traits.beside("batch", 1))
def crf_n_best(emission, transition, n: int = 10):
    """Return the n most probable labellings of each sequence, best first, with the logarithms of their probabilities.

    Equally probable labellings are sorted by the tag of the last row, then of the row before it, and so on.

    Parameters
    ----------
    emission, transition
        As in `linear_chain_crf`.
    n : int
        1 to 4096.  A sequence with fewer labellings has them all.

    Returns
    -------
    tags : Variable, int64, shape `(tags,)`
        Its LoD has the levels of `emission` above the last, the labellings of each sequence, and the tags of each
        labelling, one per row of the sequence.
    scores : Variable, shape `(labellings,)`
        Its LoD has the levels above the last, and the labellings of each sequence.

    Notes
    -----
    An empty sequence has one labelling, without tags, of probability 1.  Labellings of probability 0 are left out, as
    are those with a score of NaN or plus infinity.  There is no gradient; `linear_chain_crf` has one.

    Examples
    --------
    >>> emission = LoDTensor(np.log([[3.0, 1.0], [1.0, 4.0]]), [[0, 2]])
    >>> tags, scores = crf_n_best(emission, np.zeros((4, 2)), n=2)
    >>> tags.value.to_sequences(), np.exp(np.asarray(scores)).round(2)
    ([[array([0, 1]), array([1, 1])]], array([0.6, 0.2]))

    Source: the list Viterbi algorithm of Seshadri and Sundberg (1994).
    """
    data, (*above, offsets) = as_operand(emission.data), levels_of(emission.structure)
    (num_rows, tags), count = data.shape, len(offsets) - 1
    memory, back = empty((count, 2, tags, n), data), empty((num_rows, tags, n), data, INT64)
    heads, last = empty((count, tags), data, INT64), empty((count, n), data, INT64)
    totals = empty((count, n), data)
    search_labellings(data, offsets, as_operand(transition.data), memory, back, heads, totals, last)
    back, totals, last = map(to_host, (back, totals, last))  # the LoD of the result depends on them
    found = totals > -np.inf
    sequence, counts = np.nonzero(found)[0], found.sum(axis=1)
    ends = ends_of(np.diff(offsets)[sequence])
    path = _read_back(back, last[found], offsets[1:][sequence] - 1, ends)
    # Differences of totals are exact to their last digits, and the cost of the best labelling is, too.
    best = np.zeros(num_rows, np.int64)
    first = np.flatnonzero(np.diff(sequence, prepend=-1))
    for labelling in first:
        best[offsets[sequence[labelling]] : offsets[sequence[labelling] + 1]] = path[
            ends[labelling] : ends[labelling + 1]
        ]
    costs, _, _ = _costs(emission, LoDTensor.wrap(best), transition, None, with_gradient=False)
    scores = totals[found] - totals[sequence, 0] - to_host(costs)[sequence]
    levels = [*above, ends_of(counts)]
    path, scores = beside(path, data), beside(scores, data)
    return LoDTensor.wrap(path, LoD([*levels, ends])), LoDTensor.wrap(scores, LoD(levels))


def _read_back(back, at, row, ends):
    """Return the tags of labellings, one after another, given the last row of each and its place there."""
    path, place = np.empty(ends[-1], np.int64), ends[1:] - 1
    inside = place >= ends[:-1]
    at, row, place, begin = at[inside], row[inside], place[inside], ends[:-1][inside]
    while len(at):
        tag, rank = np.divmod(at, back.shape[2])
        path[place] = tag
        inside = place > begin
        at = back[row[inside], tag[inside], rank[inside]]
        row, place, begin = row[inside] - 1, place[inside] - 1, begin[inside]
    return path


@crf_n_best.infer
def _infer_n_best(emission, transition, n):
    _check("crf_n_best", emission, transition)
    if not 1 <= n <= _MOST_LABELLINGS:
        raise OutOfRangeError("crf_n_best, n", expected=f"1 to {_MOST_LABELLINGS} labellings", got=n)
    levels = emission.lod_level
    return TensorSpec((-1,), INT64, levels + 1), TensorSpec((-1,), emission.dtype, levels)


@crf_n_best.examples
def _examples_n_best(rng):
    yield [rows(rng, 3), rng.standard_normal((5, 3))], {"n": 4}
    for lod in TROUBLES:
        yield [rows(rng, 2, lod=lod), rng.standard_normal((4, 2))], {"n": 3}
