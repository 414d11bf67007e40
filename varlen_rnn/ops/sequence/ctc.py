"""Connectionist temporal classification (CTC): the loss of targets whose alignment is unknown, and decoders."""

import numpy as np

from varlen_rnn.errors import LoDError, OutOfRangeError, ShapeError
from varlen_rnn.kernels.arithmetic import divide
from varlen_rnn.kernels.copies import astype
from varlen_rnn.kernels.ctc import ctc, places_of
from varlen_rnn.kernels.prefixes import DEPTH, LABEL, NODE, PARENT, TOTAL, search_prefixes
from varlen_rnn.kernels.reductions import argmax_over
from varlen_rnn.kernels.softmax import log_softmax
from varlen_rnn.ops.cost import per_input_element
from varlen_rnn.ops.examples import TROUBLES, rows
from varlen_rnn.ops.indices import INT64, labels_of
from varlen_rnn.rows.checks import ends_of
from varlen_rnn.rows.lod import LoD, LoDTensor, levels_of
from varlen_rnn.runtime.device import as_operand, beside, empty, on_device, to_host
from varlen_rnn.tape.checks import check_float, check_integer, check_lod_level, check_rank
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import TensorSpec


def _run(log_probs, targets, blank, scales, d):
    """Check the targets, and return the loss of each sequence; if `d` has rows, write the gradient to it."""
    offsets, ends = levels_of(log_probs.structure)[-1], levels_of(targets.structure)[-1]
    if len(offsets) != len(ends):
        expected = f"{len(offsets) - 1} sequences, as many as log_probs has"
        raise LoDError("ctc_loss, targets", expected=expected, got=len(ends) - 1)
    labels = labels_of("ctc_loss, targets", targets, log_probs.shape[1], "classes", blank)
    rows = as_operand(log_probs.data)
    losses, places, size = empty((len(offsets) - 1,), rows), offsets, 0  # on the host, the kernel makes its own memory
    if on_device(rows):
        places = places_of(offsets, ends)
        size = int(places[-1])
    if scales is not None and scales.shape != losses.shape:
        raise ShapeError("ctc_loss_grad, d_out", expected=f"{len(losses)} sequences", got=scales.shape)
    scales = losses if scales is None else as_operand(scales)
    ctc(rows, offsets, labels, ends, blank, empty((size,), rows), places, losses, scales, d)
    return losses


@operator(name="ctc_loss", cost=per_input_element, rows="batch")
def ctc_losses(log_probs, targets, blank: int, per_label: bool):
    """Return minus the logarithm of each target's probability, which is a sum over all alignments with the steps.

    If `per_label`, each loss is divided by the number of labels of its target, or by 1 if there is no label.
    """
    losses = _run(log_probs, targets, blank, None, empty((0, log_probs.shape[1]), log_probs.data))
    return LoDTensor.wrap(divide(losses, _labels(targets, losses)) if per_label else losses)


def _labels(targets, like):
    ends = levels_of(targets.structure)[-1]
    return astype(beside(np.maximum(ends[1:] - ends[:-1], 1), like), like.dtype)


def check_scores(op, name, scores, blank):
    """Raise unless the spec is scores of classes, with sequences, and `blank` is a class."""
    check_float(op, **{name: scores})
    check_lod_level(op, name, scores)
    check_rank(op, name, scores, 2)
    if scores.shape[1] != -1 and not 0 <= blank < scores.shape[1]:
        raise OutOfRangeError(f"{op}, blank", expected=f"a class, 0 to {scores.shape[1] - 1}", got=blank)


def check_texts(op, name, texts):
    """Raise unless the spec is sequences of classes."""
    check_integer(op, **{name: texts})
    check_lod_level(op, name, texts)
    if len(texts.shape) != 1 and texts.shape[1:] != (1,):
        raise ShapeError(f"{op}, {name}", expected="one class per row", got=f"shape {texts.shape}")


@ctc_losses.infer
def _infer_ctc(log_probs, targets, blank, per_label):
    check_scores("ctc_loss", "log_probs", log_probs, blank)
    check_texts("ctc_loss", "targets", targets)
    return TensorSpec((-1,), log_probs.dtype)


@ctc_losses.backward("log_probs")
def _backward(log_probs, targets, d_out, blank, per_label):
    d, labels = empty(log_probs.shape, log_probs.data), _labels(targets, log_probs.data)
    if d_out.shape != labels.shape:
        raise ShapeError("ctc_loss_grad, d_out", expected=f"{len(labels)} sequences", got=d_out.shape)
    _run(log_probs, targets, blank, divide(d_out.data, labels) if per_label else d_out.data, d)
    return log_probs.like(d)


@ctc_losses.examples
def _ctc_examples(rng):
    lods = [LoD.from_lengths([lengths]) for lengths in ([5, 3, 4, 1], [2, 0, 3, 1])]
    logits = rng.standard_normal((13, 4))
    log_probs = log_softmax(logits)
    yield (
        [LoDTensor(log_probs, lods[0]), LoDTensor(np.array([1, 1, 3, 2, 3, 2]), lods[1])],
        {"blank": 0, "per_label": False},
    )
    none = LoDTensor(np.zeros(0, np.int64), [[0, 0, 0]])
    yield [LoDTensor(log_probs[:3], [[0, 3, 3]]), none], {"blank": 3, "per_label": True}
    yield (
        [LoDTensor(log_probs[:0], [[0]]), LoDTensor(np.zeros((0, 1), np.int32), [[0]])],
        {"blank": 0, "per_label": True},
    )


_WIDEST_BEAM = 2**16  # without a limit, a program of a few bytes could request any amount of memory


@operator(cost=per_input_element, rows="batch")
def ctc_greedy_decoder(log_probs, blank: int = 0):
    """Return the most probable class of each step, with repeats merged and blanks removed.

    Parameters
    ----------
    log_probs : Variable, shape `(rows, classes)`
        Scores or probabilities of classes, with at least one level; the sequences are taken from the last level.
    blank : int

    Returns
    -------
    Variable of ids, int64, shape `(ids,)`, with as many levels as `log_probs`.  A sequence may become empty; in
    Fluid, the result is -1 if all are empty.

    Examples
    --------
    >>> path = LoDTensor(np.eye(3)[[1, 1, 0, 1, 2, 0]], [[0, 5, 6]])
    >>> ids = ctc_greedy_decoder(path)
    >>> np.asarray(ids), ids.lod()
    (array([1, 1, 2]), [[0, 3, 3]])

    Source: the function `ctc_greedy_decoder` of PaddlePaddle Fluid; Graves et al. (2006), "best path decoding".
    """
    *above, offsets = levels_of(log_probs.structure)
    best = to_host(argmax_over(log_probs.data, 1))  # the sequences of the result depend on it
    begins = np.ones(len(best), bool)
    begins[1:] = best[1:] != best[:-1]
    begins[offsets[:-1][np.diff(offsets) > 0]] = True
    read = begins & (best != blank)
    before = ends_of(read)  # the number of ids read before each row
    return LoDTensor.wrap(beside(best[read], log_probs.data), LoD([*above, before[offsets]]))


@ctc_greedy_decoder.infer
def _infer_greedy(log_probs, blank):
    check_scores("ctc_greedy_decoder", "log_probs", log_probs, blank)
    return TensorSpec((-1,), INT64, log_probs.lod_level)


@ctc_greedy_decoder.examples
def _examples_of_greedy(rng):
    yield [rows(rng, 3)], {"blank": 2}
    for lod in TROUBLES:
        yield [rows(rng, 2, lod=lod)], {"blank": 0}


@operator(outputs=("ids", "scores"), cost=per_input_element, rows="batch")
def ctc_beam_search_decoder(log_probs, beam_size: int = 10, blank: int = 0):
    """Return the most probable texts of each sequence, found by a beam search, best first.

    The probability of a text is the sum over its alignments.  Only the best prefixes are kept after each step, so each
    probability that is returned is a lower bound.  It is exact if the beam has room for all prefixes.

    Parameters
    ----------
    log_probs : Variable, shape `(rows, classes)`
        Logarithms of probabilities, as from `log_softmax`, with at least one level; the sequences are taken from the
        last level.
    beam_size : int
        The largest number of prefixes to keep, and of texts to return, per sequence.
    blank : int

    Returns
    -------
    ids : Variable, int64, shape `(ids,)`
        Its LoD has the levels above the last, the texts of each sequence, and the ids of each text.
    scores : Variable, shape `(texts,)`
        The logarithm of each text's probability.  Its LoD has the levels above the last, and the texts of each
        sequence.

    Raises
    ------
    DTypeError, ShapeError, LoDError, OutOfRangeError

    Notes
    -----
    A sequence without steps gives the empty text.  Texts with probability 0 or NaN are left out.  So are all texts if a
    step has a log probability of plus infinity.  There is no gradient; `functional.ctc_loss` has one.

    Examples
    --------
    >>> ids, scores = ctc_beam_search_decoder(LoDTensor(np.log([[0.4, 0.6], [0.4, 0.6]]), [[0, 2]]), beam_size=2)
    >>> ids.value.to_sequences(), np.exp(np.asarray(scores))
    ([[array([1]), array([], dtype=int64)]], array([0.84, 0.16]))

    Source: Hannun, Maas, Jurafsky and Ng (2014), "First-pass large vocabulary continuous speech recognition using
    bi-directional recurrent DNNs", without a language model.
    """
    *above, offsets = levels_of(log_probs.structure)
    data, count = as_operand(log_probs.data), len(offsets) - 1
    nodes = empty((len(data) * beam_size + count, 6), data, INT64)
    kept, counts = empty((count * beam_size, 4), data, INT64), empty((count,), data, INT64)
    chances = empty((count * beam_size, 5), data)
    search_prefixes(data, offsets, blank, beam_size, nodes, kept, chances, counts)
    nodes, kept, chances, counts = map(to_host, (nodes, kept, chances, counts))  # the result's LoD depends on them
    found = (np.arange(beam_size) < counts[:, None]).ravel()
    ids, ends = _read(nodes, kept[found, NODE])
    texts = ends_of(counts)
    scores = np.ascontiguousarray(chances[found, TOTAL])
    ids, scores = beside(ids, data), beside(scores, data)
    return LoDTensor.wrap(ids, LoD([*above, texts, ends])), LoDTensor.wrap(scores, LoD([*above, texts]))


def _read(nodes, at):
    """Return the labels on the path to each node, one text after another, and the offsets of the texts."""
    ends = ends_of(nodes[at, DEPTH])
    ids, place = np.empty(ends[-1], np.int64), ends[1:] - 1
    while len(at):
        inside = nodes[at, PARENT] >= 0
        at, place = at[inside], place[inside]
        ids[place] = nodes[at, LABEL]
        at, place = nodes[at, PARENT], place - 1
    return ids, ends


def check_decoder(op, log_probs, beam_size, blank):
    """Raise unless the spec is log probabilities of sequences, the blank is a class, and the beam is not too wide."""
    check_scores(op, "log_probs", log_probs, blank)
    if not 1 <= beam_size <= _WIDEST_BEAM:
        raise OutOfRangeError(f"{op}, beam_size", expected=f"1 to {_WIDEST_BEAM}", got=beam_size)


@ctc_beam_search_decoder.infer
def _infer_decoders(log_probs, beam_size, blank):
    check_decoder("ctc_beam_search_decoder", log_probs, beam_size, blank)
    levels = log_probs.lod_level
    return TensorSpec((-1,), INT64, levels + 1), TensorSpec((-1,), log_probs.dtype, levels)


@ctc_beam_search_decoder.examples
def _decoders_examples(rng):
    for classes, lod in enumerate(TROUBLES, 2):
        yield [rows(rng, classes, lod=lod)], {"beam_size": 3, "blank": 1}
