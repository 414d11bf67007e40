"""Forced alignment of texts with the outputs of CTC: at which step each label begins and ends."""

import numpy as np

from varlen_rnn.errors import LoDError
from varlen_rnn.kernels.alignment import MOVES, SCORES, align_texts, table_of_texts
from varlen_rnn.ops.examples import LOD
from varlen_rnn.ops.indices import INT64, labels_of
from varlen_rnn.ops.sequence.ctc import check_scores, check_texts
from varlen_rnn.rows.lod import LoD, LoDTensor, levels_of
from varlen_rnn.runtime.device import as_operand, empty, unstacked
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import TensorSpec


def _cost(inputs, outputs, **attrs):
    """5 operations per element of the first input."""
    return 5 * max(1, inputs[0].shape[0]) * max(1, inputs[0].shape[1])


@operator(outputs=("begins", "ends"), cost=_cost, rows="batch")
def ctc_forced_align(log_probs, targets, blank: int = 0):
    """Return the steps of each label in the most probable alignment of its text with the outputs of CTC.

    Label k of a text is emitted at the steps `begins[k]` to `ends[k] - 1` of its sequence, counted from 0.

    Parameters
    ----------
    log_probs : Variable, shape `(rows, classes)`
        Logarithms of probabilities, as from `log_softmax`, with at least one level; the sequences are taken from the
        last level.
    targets : Variable of ids, shape `(ids,)` or `(ids, 1)`
        With as many levels as `log_probs`, it has a text for each sequence, as from `ctc_greedy_decoder`.  With one
        level more, it has any number of texts for each sequence, as from `ctc_beam_search_decoder`.
    blank : int

    Returns
    -------
    begins, ends : Variable, int64, shape `(ids,)`, with the LoD of `targets`
        The first step of each label, and the step after its last step.  Both are -1 if the text has no alignment of a
        probability above 0, for example if it is too long for its steps, or if a log probability is NaN.

    Raises
    ------
    DTypeError, ShapeError, LoDError
    OutOfRangeError
        If a label is no class, or is the blank.

    Notes
    -----
    Among equally probable alignments, the alignment is taken whose last step reads as far into the text as possible,
    then the step before it, and so on; so labels begin early.

    Examples
    --------
    >>> path = LoDTensor(np.log(np.eye(3)[[1, 1, 0, 1, 2, 0]] * 0.7 + 0.1), [[0, 5, 6]])
    >>> ids = vr.ctc_greedy_decoder(path)
    >>> begins, ends = ctc_forced_align(path, ids)
    >>> np.asarray(ids), np.asarray(begins), np.asarray(ends)
    (array([1, 1, 2]), array([0, 3, 4]), array([2, 4, 5]))

    Source: `torchaudio.functional.forced_align`, which returns a label for each step of one sequence.
    """
    offsets, (*above, text_offsets) = levels_of(log_probs.structure)[-1], levels_of(targets.structure)
    count = len(offsets) - 1
    has_many = targets.num_levels > log_probs.num_levels  # texts for each sequence
    texts = np.diff(above[-1]) if has_many else np.ones(len(text_offsets) - 1, np.int64)
    if len(texts) != count:
        expected = f"{count} sequences, as many as log_probs has"
        raise LoDError("ctc_forced_align, targets", expected=expected, got=len(texts))
    labels = labels_of("ctc_forced_align, targets", targets, log_probs.shape[1], "classes", blank)
    rows, sources = as_operand(log_probs.data), np.repeat(np.arange(count), texts)
    table = table_of_texts(offsets, text_offsets, sources)
    scores, moves = empty((int(table[-1, SCORES]),), rows), empty((int(table[-1, MOVES]),), rows, np.dtype(np.int8))
    spans = empty((2, len(labels)), rows, INT64)
    align_texts(rows, offsets, labels, blank, table, scores, moves, spans)
    begins, ends = unstacked(spans)
    return targets.like(begins), targets.like(ends)


@ctc_forced_align.infer
def _infer(log_probs, targets, blank):
    name = "ctc_forced_align"
    check_scores(name, "log_probs", log_probs, blank)
    check_texts(name, "targets", targets)
    levels = log_probs.lod_level
    if targets.lod_level not in (levels, levels + 1):
        expected = f"{levels} levels, a text per sequence, or {levels + 1}, several texts per sequence"
        raise LoDError(f"{name}, targets", expected=expected, got=f"{targets.lod_level} levels")
    spec = TensorSpec(targets.shape[:1], INT64, targets.lod_level)
    return spec, spec


@ctc_forced_align.examples
def _examples(rng):
    log_probs = LoDTensor(rng.standard_normal((6, 4)), LOD)
    yield (
        [log_probs, LoDTensor(np.array([1, 3, 1, 1, 2]), [[0, 1, 1, 3, 5]])],
        {"blank": 0},
    )  # the last text is too long
    several = LoDTensor(np.array([0, 1, 0, 2, 2]), [[0, 1, 2, 4, 4], [0, 1, 1, 3, 5]])
    yield [log_probs, several], {"blank": 3}
    none = LoDTensor(np.zeros((0, 1), np.int32), LoD.from_lengths([[]]))
    yield [LoDTensor(np.zeros((0, 3)), [[0]]), none], {"blank": 0}
    above = LoDTensor(rng.standard_normal((3, 3)), [[0, 0, 2], [0, 0, 3]])
    yield [above, LoDTensor(np.array([2, 2]), [[0, 0, 2], [0, 0, 2]])], {"blank": 0}
