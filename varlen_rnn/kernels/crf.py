"""Linear-chain conditional random fields: the probability of a sequence's labels, and the most probable labels.

Row 0 of a transition matrix has the score of beginning with each tag, row 1 the score of ending with it, and row 2 + i
the score of each tag after tag i.  The forward variable of a row and a tag is log(sum of e**score) over all labellings
of the rows up to this row that end with the tag.  The backward variable is the same over all labellings of the rows
after it.  From both, the kernels subtract a number that all tags of a row share, so neither they nor their rounding
errors grow with the length of a sequence.

Kernels trust their indices, and check no bounds: see `varlen_rnn.kernels`.

Source: Lafferty, McCallum and Pereira (2001), "Conditional random fields"; the layout of Fluid's `linear_chain_crf`.
"""

import numpy as np

from varlen_rnn.kernels.activations import exp, log
from varlen_rnn.kernels.sums import add_block, settled
from varlen_rnn.kernels.twins import sequences, twins
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.jit import body, cpu_kernel, cuda_kernel


@body
def or_zero(score):
    """Return a score, or 0 if it is minus infinity, so that other scores can be made relative to the result."""
    kind = type(score)
    return score if score > -kind(np.inf) else kind(0)


@body
def log_sum(variables, transition, tag, onward):
    """Return log(sum of e**score) over the tags of a neighbouring row as two summands: the largest score, and the rest.

    If `onward`, the neighbour is the row before, and `tag` follows its tags; otherwise, it is the row after.
    """
    kind = variables.dtype.type
    most, total = -kind(np.inf), kind(0)
    for other in range(variables.shape[0]):
        score = variables[other] + (transition[2 + other, tag] if onward else transition[2 + tag, other])
        most = score if score > most else most
    most = or_zero(most)  # it is minus infinity if transitions allow no tag
    for other in range(variables.shape[0]):
        score = variables[other] + (transition[2 + other, tag] if onward else transition[2 + tag, other])
        total += exp(score - most)
    return most, log(total)


@body
def run_forward(emission, labels, begin, end, transition, alpha):
    """Fill the forward variables of a sequence, relative to the largest of their row; return the cost of its labels.

    Scores are relative to the label's score, so the path of the labels has the score 0.  Therefore, the cost is the sum
    of each row's largest variable, and no large number is subtracted from another.
    """
    tags, kind = emission.shape[1], emission.dtype.type
    cost, lost = kind(0), kind(0)
    for row in range(begin, end):
        label = labels[row]
        step, own = transition[0 if row == begin else 2 + labels[row - 1], label], emission[row, label]
        most = -kind(np.inf)
        for tag in range(tags):
            if row == begin:
                score = transition[0, tag] - or_zero(step)
            else:
                largest, rest = log_sum(alpha[row - 1], transition, tag, True)
                score = (largest - or_zero(step)) + rest
            score += emission[row, tag] - or_zero(own)
            alpha[row, tag] = score
            most = score if score > most else most
        for tag in range(tags):
            alpha[row, tag] -= or_zero(most)
        # Both differences are 0, or infinity if a score of minus infinity forbids the label.
        cost, lost = add_block(cost, lost, most + ((or_zero(step) - step) + (or_zero(own) - own)))
    if begin < end:
        last, total = transition[1, labels[end - 1]], kind(0)
        most = -kind(np.inf)
        for tag in range(tags):
            score = alpha[end - 1, tag] + (transition[1, tag] - or_zero(last))
            most = score if score > most else most
        for tag in range(tags):
            total += exp(alpha[end - 1, tag] + (transition[1, tag] - or_zero(last)) - or_zero(most))
        cost, lost = add_block(cost, lost, or_zero(most) + log(total) + (or_zero(last) - last))
    return settled(cost, lost)


@body
def share_row(alpha, beta, shares):
    """Write the probability of each tag of a row to `shares`; return log(sum of e**(alpha + beta)) over the tags."""
    kind = alpha.dtype.type
    most, total = -kind(np.inf), kind(0)
    for tag in range(alpha.shape[0]):
        score = alpha[tag] + beta[tag]
        most = score if score > most else most
    for tag in range(alpha.shape[0]):
        shares[tag] = exp(alpha[tag] + beta[tag] - most)
        total += shares[tag]
    for tag in range(alpha.shape[0]):
        shares[tag] /= total
    return most + log(total)


@body
def add_to(sums, lost, row, column, part):
    """Add `part` to `sums[row, column]`, and the rounding error of this addition to `lost`."""
    sums[row, column], lost[row, column] = add_block(sums[row, column], lost[row, column], part)


@body
def run_backward(emission, labels, begin, end, transition, alpha, memory, scale, d_emission, d_transition):
    """Write the gradients of a sequence's emissions and of its transitions, times `scale`.

    The probabilities of each row are divided by their sum, so errors do not add up from row to row.  The first
    `tags + 2` rows of `memory` hold the rounding errors of the sums in `d_transition`.  The last two rows hold backward
    variables: of a row, and of the row after it, to which its emissions are added.
    """
    tags, kind = emission.shape[1], emission.dtype.type
    beta, behind = memory[tags + 2], memory[tags + 3]
    for row in range(tags + 2):
        for tag in range(tags):
            d_transition[row, tag], memory[row, tag] = kind(0), kind(0)
    for row in range(end - 1, begin - 1, -1):
        label = labels[row]
        for tag in range(tags):
            if row == end - 1:
                beta[tag] = transition[1, tag]
            else:
                largest, rest = log_sum(behind, transition, tag, False)
                beta[tag] = largest + rest
        sum_of_row = share_row(alpha[row], beta, d_emission[row])
        for tag in range(tags if row < end - 1 else 0):
            start = alpha[row, tag] - sum_of_row
            for other in range(tags):
                share = exp(start + transition[2 + tag, other] + behind[other])
                add_to(d_transition, memory, 2 + tag, other, scale * share)
        if row < end - 1:
            add_to(d_transition, memory, 2 + label, labels[row + 1], -scale)
        for tag in range(tags):
            behind[tag] = (beta[tag] - sum_of_row) + (emission[row, tag] - or_zero(emission[row, label]))
            d_emission[row, tag] = scale * (d_emission[row, tag] - (kind(1) if tag == label else kind(0)))
            if row == begin:
                d_transition[0, tag] = d_emission[row, tag]
            if row == end - 1:
                d_transition[1, tag] = d_emission[row, tag]
    for row in range(2, tags + 2):
        for tag in range(tags):
            d_transition[row, tag] = settled(d_transition[row, tag], memory[row, tag])


@body
def of_sequence(i, given, alpha, memory, costs, scales, d_emission, d_transitions):
    """Write the cost of a sequence, and also its gradients if `d_transitions` has any sequences.

    `given` is `(emission, labels, offsets, transition)`.
    """
    emission, labels, offsets, transition = given
    begin, end = offsets[i], offsets[i + 1]
    costs[i] = run_forward(emission, labels, begin, end, transition, alpha)
    if d_transitions.shape[0]:
        d_transition = d_transitions[i]
        run_backward(emission, labels, begin, end, transition, alpha, memory[i], scales[i], d_emission, d_transition)


@cpu_kernel
def crf_cpu(
    shard, num_shards, emission, labels, offsets, transition, alpha, memory, costs, scales, d_emission, d_transitions
):
    """Compute the costs of every `num_shards`-th sequence, beginning with sequence `shard`."""
    for i in range(shard, costs.shape[0], num_shards):
        given = emission, labels, offsets, transition
        of_sequence(i, given, alpha, memory, costs, scales, d_emission, d_transitions)


@cuda_kernel
def crf_cuda(emission, labels, offsets, transition, alpha, memory, costs, scales, d_emission, d_transitions):
    """Twin of `crf_cpu`; one thread per sequence."""
    i = cuda.grid(1)
    if i < costs.shape[0]:
        given = emission, labels, offsets, transition
        of_sequence(i, given, alpha, memory, costs, scales, d_emission, d_transitions)


@twins(
    crf_cpu,
    crf_cuda,
    size=lambda emission, labels, offsets, *rest: offsets.size - 1,
    work=lambda emission, *rest: 20 * emission.size * emission.shape[1],
)
def crf(emission, labels, offsets, transition, alpha, memory, costs, scales, d_emission, d_transitions):
    """Compute the cost of each sequence, -log(probability of its labels), and optionally the gradients of the costs.

    Parameters
    ----------
    emission : (rows, tags) C-contiguous
    labels : (rows,) int64, the tag of each row
    offsets : (sequences + 1,) int64
    transition : (tags + 2, tags) C-contiguous
    alpha : (rows, tags), the forward variables; written
    memory : (sequences, tags + 4, tags), or (0, tags + 4, tags) if no gradients are wanted; written
    costs, scales : (sequences,); costs are written, 0 for an empty sequence; gradients are multiplied by the scales
    d_emission : (rows, tags), or (0, tags); written
    d_transitions : (sequences, tags + 2, tags), or (0, tags + 2, tags) if no gradients are wanted; written

    Examples
    --------
    >>> emission, costs, zeros = np.zeros((2, 2)), np.empty(1), np.zeros((4, 2))
    >>> ends, labels, none = np.array([0, 2]), np.array([0, 1]), np.empty((0, 4, 2))
    >>> crf(emission, labels, ends, zeros, np.empty((2, 2)), none, costs, costs, emission[:0], none)
    >>> np.exp(-costs)  # one of four labellings
    array([0.25])
    """


@body
def label_sequence(emission, begin, end, transition, best, back, path):
    """Write the most probable tags of a sequence; among equally probable tags, the first."""
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
    """Label all sequences."""
    for i in range(offsets.shape[0] - 1):
        label_sequence(emission, offsets[i], offsets[i + 1], transition, best, back, path)


@cuda_kernel
def viterbi_cuda(emission, offsets, transition, best, back, path):
    """Twin of `viterbi_cpu`; one thread per sequence."""
    i = cuda.grid(1)
    if i < offsets.shape[0] - 1:
        label_sequence(emission, offsets[i], offsets[i + 1], transition, best, back, path)


@twins(viterbi_cpu, viterbi_cuda, sequences)
def viterbi(emission, offsets, transition, best, back, path):
    """Compute the most probable tags of every sequence; among equally probable tags, the first.

    Parameters
    ----------
    emission : (rows, tags) C-contiguous
    offsets : (sequences + 1,) int64
    transition : (tags + 2, tags) C-contiguous
    best : (rows, tags), the score of the best labelling that ends with each tag; written
    back : (rows, tags) int64, the tag of the row before in this labelling; written
    path : (rows,) int64, the most probable tags; written

    Examples
    --------
    >>> emission, path = np.array([[0.0, 1.0], [2.0, 0.0]]), np.empty(2, np.int64)
    >>> viterbi(emission, np.array([0, 2]), np.zeros((4, 2)), np.empty((2, 2)), np.empty((2, 2), np.int64), path); path
    array([1, 0])
    """
