"""Forced alignment: the most probable rows of each label of a text, given the outputs of CTC.

A text of L labels has 2 L + 1 states, as in `varlen_rnn.kernels.ctc`: state s is a blank if s is even, and label s // 2
otherwise.  From one row to the next, an alignment stays in its state, or moves one state on, or moves two states on to
a label that differs from the label before it.  An example, of the text "1 1" over 4 rows:

    classes 1 0 1 1    states 1 2 3 3    label 0 has rows 0 to 1, label 1 has rows 2 to 4

The score of a state is the log probability of the most probable alignment that ends in it, relative to the largest
score of the row before, so neither scores nor their rounding errors grow with the number of rows.

Kernels trust their indices, and check no bounds: see `varlen_rnn.kernels`.

Source: the algorithm of Viterbi (1967); `torchaudio.functional.forced_align`.
"""

import numpy as np

from varlen_rnn.kernels.ctc import label_of, largest_of, may_skip
from varlen_rnn.kernels.twins import twins
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.jit import body, cpu_kernel, cuda_kernel

# Columns of a text: the sequence with which it is aligned; where its labels, scores and moves begin.
SOURCE, LABELS, SCORES, MOVES = range(4)


@body
def run_forward(log_probs, begin, end, target, now, moves, place):
    """Fill the moves of a text; return the last state of its most probable alignment, or -1 if it has none.

    `target` is `(targets, first, states, blank)`, as in `varlen_rnn.kernels.ctc`.  Of equally probable moves, the
    smallest is taken, and of equally probable last states, the last.
    """
    targets, first, states, blank = target
    kind = log_probs.dtype.type
    nothing, base = -kind(np.inf), kind(0)
    for s in range(states):
        now[s] = nothing
    now[0] = kind(0)  # as if a blank preceded the first row
    for row in range(begin, end):
        here = place + (row - begin) * states
        for s in range(
            states - 1, -1, -1
        ):  # downwards, so that the scores of lower states are still from the row before
            best, move = now[s], 0
            if s > 0 and now[s - 1] > best:
                best, move = now[s - 1], 1
            if may_skip(targets, first, s, blank) and now[s - 2] > best:
                best, move = now[s - 2], 2
            now[s] = best + (log_probs[row, label_of(targets, first, s, blank)] - base)
            moves[here + s] = move
        base = largest_of(now)
    last = states - 1
    if states > 1 and now[states - 2] > now[states - 1]:
        last = states - 2
    return last if now[last] > nothing else -1


@body
def align_text(i, given, blank, scores, moves, spans):
    """Write the rows of the labels of text `i`, or -1 if it has no alignment.

    `given` is `(log_probs, offsets, targets, texts)`.
    """
    log_probs, offsets, targets, texts = given
    begin, end, first = offsets[texts[i, SOURCE]], offsets[texts[i, SOURCE] + 1], texts[i, LABELS]
    states, at, place = 2 * (texts[i + 1, LABELS] - first) + 1, texts[i, SCORES], texts[i, MOVES]
    target = targets, first, states, blank
    state, after = run_forward(log_probs, begin, end, target, scores[at : at + states], moves, place), -1
    for k in range(first, texts[i + 1, LABELS] if state < 0 else first):
        spans[0, k], spans[1, k] = -1, -1
    for row in range(end - 1, begin - 1 if state >= 0 else end - 1, -1):
        if state % 2 == 1:
            label = first + state // 2
            spans[0, label] = row - begin
            if state != after:
                spans[1, label] = row - begin + 1
        after = state
        state -= moves[place + (row - begin) * states + state]


@cpu_kernel
def align_texts_cpu(shard, num_shards, log_probs, offsets, targets, blank, texts, scores, moves, spans):
    """Align every `num_shards`-th text, beginning with text `shard`."""
    for i in range(shard, texts.shape[0] - 1, num_shards):
        align_text(i, (log_probs, offsets, targets, texts), blank, scores, moves, spans)


@cuda_kernel
def align_texts_cuda(log_probs, offsets, targets, blank, texts, scores, moves, spans):
    """Twin of `align_texts_cpu`; one thread per text."""
    i = cuda.grid(1)
    if i < texts.shape[0] - 1:
        align_text(i, (log_probs, offsets, targets, texts), blank, scores, moves, spans)


def table_of_texts(offsets, target_offsets, sources):
    """Return the texts as `align_texts` takes them, given the sequence with which each text is aligned."""
    states, texts = 2 * np.diff(target_offsets) + 1, np.zeros((len(target_offsets), 4), np.int64)
    texts[:-1, SOURCE], texts[:, LABELS] = sources, target_offsets
    texts[1:, SCORES] = np.cumsum(states)
    texts[1:, MOVES] = np.cumsum(states * np.diff(offsets)[sources])
    return texts


@twins(
    align_texts_cpu,
    align_texts_cuda,
    size=lambda log_probs, offsets, targets, blank, texts, *rest: len(texts) - 1,
    work=lambda *arguments: 5 * len(arguments[6]),  # of the moves
)
def align_texts(log_probs, offsets, targets, blank, texts, scores, moves, spans):
    """Find the rows of each label in the most probable alignment of its text.

    Parameters
    ----------
    log_probs : (rows, classes) C-contiguous
    offsets : (sequences + 1,) int64
    targets : (labels,) int64, classes except `blank`
    blank : int
    texts : (texts + 1, 4) int64, from `table_of_texts`; its last row has the sizes of `targets`, `scores` and `moves`
    scores : (numbers,) of the data type of `log_probs`; written
    moves : (numbers,) int8; written
    spans : (2, labels) int64; written: the first row of each label in its sequence, and the row after its last row, or
        -1 if the text has no alignment

    Examples
    --------
    >>> log_probs, offsets, targets = np.log(np.eye(2)[[0, 1, 1]] * 0.8 + 0.1), np.array([0, 3]), np.array([1])
    >>> texts, spans = table_of_texts(offsets, np.array([0, 1]), np.array([0])), np.empty((2, 1), np.int64)
    >>> scores, moves = np.empty(texts[-1, SCORES]), np.empty(texts[-1, MOVES], np.int8)
    >>> align_texts(log_probs, offsets, targets, 0, texts, scores, moves, spans)
    >>> spans
    array([[1],
           [3]])
    """
