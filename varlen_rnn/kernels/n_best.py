"""The n best labellings of a linear-chain conditional random field, by a Viterbi search that keeps n labellings a tag.

The labellings that end with a tag at a row are sorted, best first.  They extend the labellings of the row before, whose
lists are sorted, too, so they are merged: the next best labelling is the best of one candidate per tag of the row
before.  Scores are relative to the largest score of the row before, so neither they nor their rounding errors grow with
the number of rows.

Kernels trust their indices, and check no bounds: see `varlen_rnn.kernels`.

Source: the list Viterbi algorithm of Seshadri and Sundberg (1994), in its parallel form.
"""

import numpy as np

from varlen_rnn.kernels.twins import twins
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.jit import body, cpu_kernel, cuda_kernel


@body
def best_candidate(before, transition, tag, heads):
    """Return the best candidate as its score and the tag of the row before; the first such tag if scores are equal.

    `heads` has the number of labellings of each tag that were taken.  If `tag` is -1, the sequence ends.
    """
    kind, n = before.dtype.type, before.shape[1]
    most, at = -kind(np.inf), -1
    for other in range(before.shape[0]):
        if heads[other] < n:
            score = before[other, heads[other]] + (transition[1, other] if tag < 0 else transition[2 + other, tag])
            if score > most:
                most, at = score, other
    return most, at


@body
def n_best_of_sequence(i, given, n, scores, back, heads, totals, last):
    """Write the scores of a sequence's labellings, and their last places; see `search_labellings`."""
    emission, offsets, transition = given
    begin, end, tags = offsets[i], offsets[i + 1], emission.shape[1]
    kind = emission.dtype.type
    nothing, base = -kind(np.inf), kind(0)
    for row in range(begin, end):
        now, before, most = scores[i, (row - begin) % 2], scores[i, (row - begin + 1) % 2], nothing
        for tag in range(tags):
            own = emission[row, tag] - base
            for other in range(tags):
                heads[i, other] = 0
            for k in range(n):
                best, at = nothing, -1
                if row > begin:
                    best, at = best_candidate(before, transition, tag, heads[i])
                elif k == 0:
                    best, at = transition[0, tag], 0
                if at >= 0:
                    back[row, tag, k] = at * n + heads[i, at]
                    heads[i, at] += 1
                now[tag, k] = best + own
            most = now[tag, 0] if now[tag, 0] > most else most
        base = most if most > nothing else kind(0)
    for other in range(tags):
        heads[i, other] = 0
    for k in range(n):
        totals[i, k], last[i, k] = nothing, -1
        if begin == end:
            totals[i, k] = kind(0) if k == 0 else nothing
        else:
            best, at = best_candidate(scores[i, (end - begin - 1) % 2], transition, -1, heads[i])
            if at >= 0:
                totals[i, k], last[i, k] = best, at * n + heads[i, at]
                heads[i, at] += 1


@cpu_kernel
def search_labellings_cpu(shard, num_shards, emission, offsets, transition, scores, back, heads, totals, last):
    """Search the labellings of every `num_shards`-th sequence, beginning with sequence `shard`."""
    for i in range(shard, last.shape[0], num_shards):
        n_best_of_sequence(i, (emission, offsets, transition), last.shape[1], scores, back, heads, totals, last)


@cuda_kernel
def search_labellings_cuda(emission, offsets, transition, scores, back, heads, totals, last):
    """Twin of `search_labellings_cpu`; one thread per sequence."""
    i = cuda.grid(1)
    if i < last.shape[0]:
        n_best_of_sequence(i, (emission, offsets, transition), last.shape[1], scores, back, heads, totals, last)


@twins(
    search_labellings_cpu,
    search_labellings_cuda,
    size=lambda emission, offsets, *rest: offsets.size - 1,
    work=lambda emission, offsets, transition, scores, back, *rest: 2 * back.size * emission.shape[1],
)
def search_labellings(emission, offsets, transition, scores, back, heads, totals, last):
    """Find the n best labellings of each sequence, best first; equal scores keep the order of their last tags.

    Place `tag * n + k` of a row is the labelling k that ends with `tag` there.

    Parameters
    ----------
    emission : (rows, tags) C-contiguous
    offsets : (sequences + 1,) int64
    transition : (tags + 2, tags) C-contiguous
    scores : (sequences, 2, tags, n) of the data type of `emission`, memory; written
    back : (rows, tags, n) int64; written: the place in the row before of each labelling
    heads : (sequences, tags) int64, memory; written
    totals : (sequences, n) of the data type of `emission`; written: scores relative to a number of the sequence, or
        minus infinity if there are fewer labellings
    last : (sequences, n) int64; written: the place of each labelling in the last row, or -1

    Examples
    --------
    >>> emission, offsets, back = np.array([[0.0, 1.0], [2.0, 0.0]]), np.array([0, 2]), np.empty((2, 2, 3), np.int64)
    >>> totals, last, heads = np.empty((1, 3)), np.empty((1, 3), np.int64), np.empty((1, 2), np.int64)
    >>> search_labellings(emission, offsets, np.zeros((4, 2)), np.empty((1, 2, 2, 3)), back, heads, totals, last)
    >>> last // 3, totals - totals[0, 0]  # the last tags of three labellings
    (array([[0, 0, 1]]), array([[ 0., -1., -2.]]))
    """
