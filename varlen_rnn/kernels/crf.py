"""Linear-chain conditional random fields: the probability of the labels of a sequence, and its most probable ones.

A transition matrix has the scores of beginning with each tag in row 0, of ending with it in row 1, and of tag j after
tag i in row 2 + i.  The forward variable of a row and tag is the logarithm of the sum over all labellings that end
there.

Kernels trust their indices, and check no bounds: see `varlen_rnn.kernels`.

Source: Lafferty, McCallum and Pereira (2001), "Conditional random fields"; the layout of Fluid's `linear_chain_crf`.
"""

import numpy as np
from numba import cuda

from varlen_rnn.kernels.activations import exp, log
from varlen_rnn.runtime.device import beside, launch, on_device
from varlen_rnn.runtime.jit import body, cpu_kernel, cuda_kernel
from varlen_rnn.runtime.threads import count_shards, for_each_shard


@body
def log_sum(emission, row, transition, alpha, before, tag, onward):
    """Return the logarithm of the sum of e**(score) over the tags beside one; all but `tag` are read from `alpha`.

    Onward, they are those before it; otherwise those after it, with their emissions at `row`.
    """
    tags = emission.shape[1]
    most = -emission.dtype.type(np.inf)
    for other in range(tags):
        score = alpha[before, other]
        score += transition[2 + other, tag] if onward else transition[2 + tag, other] + emission[row, other]
        most = score if score > most else most
    total = emission.dtype.type(0)
    less = most if most > -np.inf else total  # where no tag may stand, as a transition of minus infinity says
    for other in range(tags):
        score = alpha[before, other]
        score += transition[2 + other, tag] if onward else transition[2 + tag, other] + emission[row, other]
        total += exp(score - less)
    return less + log(total)


@body
def run_forward(emission, labels, begin, end, transition, alpha):
    """Fill the forward variables of a sequence; return its cost, log Z - score of its labels, and log Z."""
    tags, zero = emission.shape[1], emission.dtype.type(0)
    if begin == end:
        return zero, zero
    score = transition[0, labels[begin]] + emission[begin, labels[begin]] + transition[1, labels[end - 1]]
    for tag in range(tags):
        alpha[begin, tag] = transition[0, tag] + emission[begin, tag]
    for row in range(begin + 1, end):
        for tag in range(tags):
            alpha[row, tag] = log_sum(emission, row, transition, alpha, row - 1, tag, True) + emission[row, tag]
        score += transition[2 + labels[row - 1], labels[row]] + emission[row, labels[row]]
    most = -emission.dtype.type(np.inf)
    for tag in range(tags):
        last = alpha[end - 1, tag] + transition[1, tag]
        most = last if last > most else most
    total = zero
    for tag in range(tags):
        total += exp(alpha[end - 1, tag] + transition[1, tag] - most)
    log_z = most + log(total)
    return log_z - score, log_z


@body
def run_backward(emission, labels, begin, end, transition, alpha, beta, log_z, scale, d_emission, d_transition):
    """Write the gradient of a sequence's emissions, and add the gradient of the transitions, both times `scale`."""
    tags, one = emission.shape[1], emission.dtype.type(1)
    for row in range(end - 1, begin - 1, -1):
        for tag in range(tags):
            if row == end - 1:
                beta[row, tag] = transition[1, tag]
            else:
                beta[row, tag] = log_sum(emission, row + 1, transition, beta, row + 1, tag, False)
        for tag in range(tags):
            share = exp(alpha[row, tag] + beta[row, tag] - log_z)
            d_emission[row, tag] = scale * (share - (one if labels[row] == tag else 0 * one))
            if row == begin:
                d_transition[0, tag] += d_emission[row, tag]
            if row == end - 1:
                d_transition[1, tag] += d_emission[row, tag]
            for other in range(tags if row < end - 1 else 0):
                both = alpha[row, tag] + transition[2 + tag, other] + emission[row + 1, other] + beta[row + 1, other]
                d_transition[2 + tag, other] += scale * exp(both - log_z)
        if row < end - 1:
            d_transition[2 + labels[row], labels[row + 1]] -= scale


@body
def of_sequence(i, emission, labels, offsets, transition, alpha, beta, costs, scales, d_emission, d_transitions):
    """Write the cost of a sequence; where `d_transitions` has sequences, its gradients instead."""
    begin, end = offsets[i], offsets[i + 1]
    cost, log_z = run_forward(emission, labels, begin, end, transition, alpha)
    costs[i] = cost
    if d_transitions.shape[0]:
        d_transition = d_transitions[i]
        for row in range(d_transition.shape[0]):
            for tag in range(d_transition.shape[1]):
                d_transition[row, tag] = 0
        run_backward(emission, labels, begin, end, transition, alpha, beta, log_z, scales[i], d_emission, d_transition)


@cpu_kernel
def crf_cpu(
    shard, num_shards, emission, labels, offsets, transition, alpha, beta, costs, scales, d_emission, d_transitions
):
    """Run every `num_shards`-th sequence, from the shard's on.  No bounds are checked."""
    for i in range(shard, costs.shape[0], num_shards):
        of_sequence(i, emission, labels, offsets, transition, alpha, beta, costs, scales, d_emission, d_transitions)


@cuda_kernel
def crf_cuda(emission, labels, offsets, transition, alpha, beta, costs, scales, d_emission, d_transitions):
    """Twin of `crf_cpu`; one thread per sequence."""
    i = cuda.grid(1)
    if i < costs.shape[0]:
        of_sequence(i, emission, labels, offsets, transition, alpha, beta, costs, scales, d_emission, d_transitions)


def crf(emission, labels, offsets, transition, alpha, beta, costs, scales, d_emission, d_transitions):
    """Compute minus the logarithm of the probability of each sequence's labels, or the gradients of these costs.

    No bounds are checked.

    Parameters
    ----------
    emission : (rows, tags) C-contiguous
    labels : (rows,) int64, tags
    offsets : (sequences + 1,) int64
    transition : (tags + 2, tags) C-contiguous
    alpha, beta : (rows, tags); written; `beta` has no rows where there are no gradients
    costs, scales : (sequences,); costs are written, 0 for an empty sequence; gradients are multiplied by the scales
    d_emission : (rows, tags), or (0, tags); written
    d_transitions : (sequences, tags + 2, tags), or no sequences; written

    Examples
    --------
    >>> emission, none = np.zeros((2, 2)), np.empty((0, 2))
    >>> costs, zeros = np.empty(1), np.zeros((4, 2))
    >>> ends, labels = np.array([0, 2]), np.array([0, 1])
    >>> crf(emission, labels, ends, zeros, np.empty((2, 2)), none, costs, costs, none, np.empty((0, 4, 2)))
    >>> np.exp(-costs)  # one of four labellings
    array([0.25])
    """
    arguments = emission, labels, offsets, transition, alpha, beta, costs, scales, d_emission, d_transitions
    if on_device(costs):
        launch(crf_cuda, costs.size, *(beside(a, costs) for a in arguments))
    else:
        shards = count_shards(20 * emission.size * emission.shape[1], max(1, len(costs)))
        for_each_shard(crf_cpu, *arguments, num_shards=shards)


@body
def label_sequence(emission, begin, end, transition, best, back, path):
    """Write the most probable tags of a sequence; of equal ones, the first."""
    tags = emission.shape[1]
    for row in range(begin, end):
        for tag in range(tags):
            most, at = transition[0, tag], 0
            for other in range(tags if row > begin else 0):
                score = best[row - 1, other] + transition[2 + other, tag]
                if other == 0 or score > most:
                    most, at = score, other
            best[row, tag], back[row, tag] = most + emission[row, tag], at
    for row in range(end - 1, begin - 1, -1):
        tag = 0
        if row < end - 1:
            tag = back[row + 1, path[row + 1]]
        for other in range(1, tags if row == end - 1 else 1):
            if best[row, other] + transition[1, other] > best[row, tag] + transition[1, tag]:
                tag = other
        path[row] = tag


@cpu_kernel
def viterbi_cpu(emission, offsets, transition, best, back, path):
    """Label all sequences.  No bounds are checked."""
    for i in range(offsets.shape[0] - 1):
        label_sequence(emission, offsets[i], offsets[i + 1], transition, best, back, path)


@cuda_kernel
def viterbi_cuda(emission, offsets, transition, best, back, path):
    """Twin of `viterbi_cpu`; one thread per sequence."""
    i = cuda.grid(1)
    if i < offsets.shape[0] - 1:
        label_sequence(emission, offsets[i], offsets[i + 1], transition, best, back, path)


def viterbi(emission, offsets, transition, best, back, path):
    """Compute the most probable tags of every sequence; of equal ones, the first.

    No bounds are checked.

    Parameters
    ----------
    emission : (rows, tags) C-contiguous
    offsets : (sequences + 1,) int64
    transition : (tags + 2, tags) C-contiguous
    best : (rows, tags); written
    back : (rows, tags) int64; written
    path : (rows,) int64; written

    Examples
    --------
    >>> emission, path = np.array([[0.0, 1.0], [2.0, 0.0]]), np.empty(2, np.int64)
    >>> viterbi(emission, np.array([0, 2]), np.zeros((4, 2)), np.empty((2, 2)), np.empty((2, 2), np.int64), path); path
    array([1, 0])
    """
    if on_device(path):
        offsets = beside(offsets, path)
        launch(viterbi_cuda, offsets.size, emission, offsets, transition, best, back, path)
    else:
        viterbi_cpu(emission, offsets, transition, best, back, path)
