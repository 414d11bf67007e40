"""The transducer loss: the probability of all alignments of labels with frames, where a frame may emit several labels.

Row t (U + 1) + u of a sequence's lattice has the scores of classes at frame t after u of its U labels.  From there, an
alignment emits the blank and goes to frame t + 1, or emits label u and goes to u + 1.  It begins at (0, 0), and ends
with the blank of the last frame after all labels.  With 2 frames and the label a, the alignments are a-- and -a-.

The forward variable of a row is the log-probability of reaching the row.  The backward variable is the log-probability
of going on from the row to the end.  Both are sums of hundreds of logarithms, so each is a pair: a number, and the sum
of the errors that its additions made (`kernels.sums`).  So float32 keeps its digits over thousands of frames, without
float64, which is slow on a GPU.

Kernels trust their indices, and check no bounds: see `varlen_rnn.kernels`.

Source: Graves (2012), "Sequence transduction with recurrent neural networks".
"""

import numpy as np

from varlen_rnn.kernels.activations import log
from varlen_rnn.kernels.functions import exp, log1p
from varlen_rnn.kernels.lattice import sequence_of
from varlen_rnn.kernels.pairwise import highest_of, pairwise_sum
from varlen_rnn.kernels.sums import BLOCK, add_block, end_of_block, settled
from varlen_rnn.kernels.twins import elements, rows_of_last, sequences, twins
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.device import empty
from varlen_rnn.runtime.jit import body, cpu_kernel, cuda_kernel
from varlen_rnn.runtime.threads import count_shards, for_each_shard

# Columns of `lattice`: the largest score of the row; the logarithm of the sum of exp(score - largest); the
# log-probabilities of the blank and of the label; the forward variable, and its lost part.
HIGHEST, NORM, BLANK, LABEL, FORWARD, LOST = range(6)
COLUMNS = 6


@body
def label_at(row, offsets, labels, ends):
    """Return the label that an alignment can emit at a row, or -1 if all labels are behind it."""
    i = sequence_of(row, offsets)
    width = ends[i + 1] - ends[i] + 1
    u = (row - offsets[i]) % width
    return labels[ends[i] + u] if u < width - 1 else -1


@body
def set_emissions(logits, row, blank, label, highest, norm, lattice):
    """Write the first four columns of a row; without a label, its log-probability is minus infinity."""
    lattice[row, 0], lattice[row, 1] = highest, norm
    lattice[row, 2] = (logits[row, blank] - highest) - norm
    last = (logits[row, label if label >= 0 else blank] - highest) - norm
    lattice[row, 3] = last if label >= 0 else -lattice.dtype.type(np.inf)


@body
def plus(total, lost, part):
    """Return the pair of a sum of logarithms and another logarithm, which may be minus infinity."""
    total, lost = add_block(total, lost, part)
    return total, lost if lost == lost else type(total)(0)  # it is NaN if the total is infinite


@body
def log_add_pairs(a, a_lost, b, b_lost):
    """Return the pair of log(e**a + e**b), for two pairs."""
    kind = type(a)
    difference = (b - a) + (b_lost - a_lost)
    difference = -kind(np.inf) if b == -kind(np.inf) else difference  # minus infinity less itself is NaN
    is_b = difference > kind(0)
    more = log1p(exp(-abs(difference)))
    total, lost = plus(b if is_b else a, b_lost if is_b else a_lost, more)
    return total, lost


@body
def share_of(forward, lost, backward, backward_lost, total, total_lost):
    """Return exp(forward + backward - total): which share of the probability passes through a step of the lattice."""
    kind = type(forward)
    either = forward == -kind(np.inf) or backward == -kind(np.inf)
    product, missing = add_block(forward, lost + backward_lost, backward)
    product, missing = add_block(product, missing, -total)
    return kind(0) if either else exp(product + (missing - total_lost))


@body
def run_forward(lattice, begin, end, width):
    """Fill the forward variables of a sequence with `width` - 1 labels; return the pair of all alignments' logarithm.

    Without frames, the only alignment is the empty one, which has no label.
    """
    kind = lattice.dtype.type
    for row in range(begin, end):
        u = (row - begin) % width
        total, lost = kind(0) if row == begin else -kind(np.inf), kind(0)
        if row >= begin + width:
            above = row - width
            total, lost = plus(lattice[above, 4], lattice[above, 5], lattice[above, 2])
        if u > 0:
            other, other_lost = plus(lattice[row - 1, 4], lattice[row - 1, 5], lattice[row - 1, 3])
            total, lost = log_add_pairs(total, lost, other, other_lost)
        lattice[row, 4], lattice[row, 5] = total, lost
    total, lost = kind(0) if width == 1 else -kind(np.inf), kind(0)
    if end > begin:
        total, lost = plus(lattice[end - 1, 4], lattice[end - 1, 5], lattice[end - 1, 2])
    return total, lost


@body
def run_backward(lattice, begin, end, width, scale, later, first, shares):
    """Write the shares of a sequence: the probabilities that an alignment emits the blank or the label at a row.

    Both are multiplied by `scale`.  `later[first + u]` has the backward variable of the frame after the current one,
    until the current one's is written.
    """
    kind = lattice.dtype.type
    all_total, all_lost = plus(lattice[end - 1, 4], lattice[end - 1, 5], lattice[end - 1, 2])
    for u in range(width):
        later[first + u, 0], later[first + u, 1] = kind(0) if u == width - 1 else -kind(np.inf), kind(0)
    for row in range(end - 1, begin - 1, -1):
        at = first + (row - begin) % width
        forward, lost = lattice[row, 4], lattice[row, 5]
        total, total_lost = plus(later[at, 0], later[at, 1], lattice[row, 2])
        shares[row, 0] = scale * share_of(forward, lost, total, total_lost, all_total, all_lost)
        shares[row, 1] = kind(0)
        if at - first < width - 1:
            other, other_lost = plus(later[at + 1, 0], later[at + 1, 1], lattice[row, 3])
            shares[row, 1] = scale * share_of(forward, lost, other, other_lost, all_total, all_lost)
            total, total_lost = log_add_pairs(total, total_lost, other, other_lost)
        later[at, 0], later[at, 1] = total, total_lost


@body
def loss_of_sequence(i, lattice, offsets, ends, losses):
    """Write the loss of a sequence."""
    total, lost = run_forward(lattice, offsets[i], offsets[i + 1], ends[i + 1] - ends[i] + 1)
    losses[i] = -settled(total, lost)


@body
def shares_of_sequence(i, lattice, offsets, ends, scales, later, shares):
    """Write the shares of a sequence; they are 0 if its loss is infinite, because then there is no alignment."""
    begin, end = offsets[i], offsets[i + 1]
    if end > begin:
        total = lattice[end - 1, 4] + lattice[end - 1, 2]
        if total == -lattice.dtype.type(np.inf):
            for row in range(begin, end):
                shares[row, 0] = shares[row, 1] = lattice.dtype.type(0)
        else:
            run_backward(lattice, begin, end, ends[i + 1] - ends[i] + 1, scales[i], later, ends[i] + i, shares)


@cpu_kernel
def emissions_cpu(shard, num_shards, logits, offsets, labels, ends, blank, memory, lattice):
    """Fill the first four columns of `lattice`, for the rows of a shard; `memory` is (num_shards, classes)."""
    count, classes, kind = logits.shape[0], logits.shape[1], lattice.dtype.type
    flat, powers = logits.reshape(logits.size), memory[shard]
    for row in range(count * shard // num_shards, count * (shard + 1) // num_shards):
        highest = highest_of(flat, row * classes, classes)
        highest = highest if abs(highest) < kind(np.inf) else kind(0)  # 0 instead of NaN and infinity
        for j in range(classes):
            powers[j] = exp(logits[row, j] - highest)
        norm = kind(log(kind(0) + pairwise_sum(powers, 0, classes)))
        set_emissions(logits, row, blank, label_at(row, offsets, labels, ends), highest, norm, lattice)


@cuda_kernel
def emissions_cuda(logits, offsets, labels, ends, blank, lattice):
    """Twin of `emissions_cpu`; one thread per row."""
    row = cuda.grid(1)
    if row < lattice.shape[0]:
        kind, classes = lattice.dtype.type, logits.shape[1]
        highest = logits[row, 0]
        for j in range(1, classes):
            highest = logits[row, j] if logits[row, j] > highest else highest
        highest = highest if abs(highest) < kind(np.inf) else kind(0)
        total = lost = kind(0)
        for start in range(0, classes, BLOCK):
            part = kind(0)
            for j in range(start, end_of_block(start, classes)):
                part += exp(logits[row, j] - highest)
            total, lost = add_block(total, lost, part)
        norm = log(settled(total, lost))
        set_emissions(logits, row, blank, label_at(row, offsets, labels, ends), highest, norm, lattice)


def _emissions_on_host(*arguments):
    (logits, *others), lattice = arguments[:-1], arguments[-1]
    shards = count_shards(8 * logits.size, max(1, len(lattice)))
    memory = empty((shards, logits.shape[1]), logits)
    for_each_shard(emissions_cpu, logits, *others, memory, lattice, num_shards=shards)


@twins(_emissions_on_host, emissions_cuda, rows_of_last)
def emissions(logits, offsets, labels, ends, blank, lattice):
    """Compute the first four columns of `lattice`: the normalisation of each row, and the two log-probabilities.

    Parameters
    ----------
    logits : (rows, classes) C-contiguous, at least one class
    offsets : (sequences + 1,) int64, in rows: T (U + 1) rows a sequence
    labels : (labels,) int64, classes
    ends : (sequences + 1,) int64, in labels
    blank : int, a class
    lattice : (rows, COLUMNS) C-contiguous, the data type of `logits`; its first four columns are written

    Examples
    --------
    >>> lattice = np.zeros((2, COLUMNS))
    >>> emissions(np.zeros((2, 2)), np.array([0, 2]), np.array([1]), np.array([0, 1]), 0, lattice)
    >>> np.exp(lattice[:, [BLANK, LABEL]])
    array([[0.5, 0.5],
           [0.5, 0. ]])
    """


@cpu_kernel
def transducer_cpu(shard, num_shards, lattice, offsets, ends, losses):
    """Compute the losses of every `num_shards`-th sequence, beginning with sequence `shard`."""
    for i in range(shard, losses.shape[0], num_shards):
        loss_of_sequence(i, lattice, offsets, ends, losses)


@cuda_kernel
def transducer_cuda(lattice, offsets, ends, losses):
    """Twin of `transducer_cpu`; one thread per sequence."""
    i = cuda.grid(1)
    if i < losses.shape[0]:
        loss_of_sequence(i, lattice, offsets, ends, losses)


@twins(transducer_cpu, transducer_cuda, sequences, work=lambda lattice, *rest: 40 * len(lattice))
def transducer(lattice, offsets, ends, losses):
    """Compute the loss of each sequence, and the last two columns of `lattice`, which `emissions` began.

    Parameters
    ----------
    lattice : (rows, COLUMNS) C-contiguous; its columns FORWARD and LOST are written
    offsets : (sequences + 1,) int64, in rows: T (U + 1) rows a sequence
    ends : (sequences + 1,) int64, in labels
    losses : (sequences,) the data type of `lattice`; written: infinity where no alignment exists

    Examples
    --------
    >>> lattice, losses = np.log(np.full((4, COLUMNS), 0.5)), np.empty(1)
    >>> transducer(lattice, np.array([0, 4]), np.array([0, 1]), losses)  # two frames, one label: a--, -a-
    >>> np.exp(-losses)
    array([0.25])
    """


@cpu_kernel
def transducer_shares_cpu(shard, num_shards, lattice, offsets, ends, scales, later, shares):
    """Compute the shares of every `num_shards`-th sequence, beginning with sequence `shard`."""
    for i in range(shard, offsets.shape[0] - 1, num_shards):
        shares_of_sequence(i, lattice, offsets, ends, scales, later, shares)


@cuda_kernel
def transducer_shares_cuda(lattice, offsets, ends, scales, later, shares):
    """Twin of `transducer_shares_cpu`; one thread per sequence."""
    i = cuda.grid(1)
    if i < offsets.shape[0] - 1:
        shares_of_sequence(i, lattice, offsets, ends, scales, later, shares)


@twins(
    transducer_shares_cpu, transducer_shares_cuda, sequences, work=lambda lattice, *rest: 100 * len(lattice)
)  # two logarithms and four exponentials a row
def transducer_shares(lattice, offsets, ends, scales, later, shares):
    """Compute, for each row, the probabilities that an alignment emits the blank or the label there, times a scale.

    Parameters
    ----------
    lattice : (rows, COLUMNS) C-contiguous, as `transducer` left it
    offsets, ends : as in `transducer`
    scales : (sequences,) the data type of `lattice`
    later : (labels + sequences, 2) the data type of `lattice`; written, memory of backward variables
    shares : (rows, 2) the data type of `lattice`; written, 0 where no alignment exists

    Examples
    --------
    >>> lattice, losses, shares = np.log(np.full((4, COLUMNS), 0.5)), np.empty(1), np.empty((4, 2))
    >>> offsets, ends = np.array([0, 4]), np.array([0, 1])
    >>> transducer(lattice, offsets, ends, losses)
    >>> transducer_shares(lattice, offsets, ends, np.ones(1), np.empty((2, 2)), shares); shares
    array([[0.5, 0.5],
           [0.5, 0. ],
           [0. , 0.5],
           [1. , 0. ]])
    """


@body
def gradient_of(row, j, logits, lattice, shares):
    """Return the gradient of a score, before the shares of the blank and of the label are subtracted."""
    return (shares[row, 0] + shares[row, 1]) * exp((logits[row, j] - lattice[row, 0]) - lattice[row, 1])


@cpu_kernel
def transducer_grad_cpu(shard, num_shards, logits, offsets, labels, ends, blank, lattice, shares, d):
    """Write the gradient of the rows of a shard."""
    count = logits.shape[0]
    for row in range(count * shard // num_shards, count * (shard + 1) // num_shards):
        for j in range(d.shape[1]):
            d[row, j] = gradient_of(row, j, logits, lattice, shares)
        d[row, blank] -= shares[row, 0]
        label = label_at(row, offsets, labels, ends)
        if label >= 0:
            d[row, label] -= shares[row, 1]


@cuda_kernel
def transducer_grad_cuda(logits, offsets, labels, ends, blank, lattice, shares, d):
    """Twin of `transducer_grad_cpu`."""
    thread = cuda.grid(1)
    if thread < d.size:
        row, j = thread // d.shape[1], thread % d.shape[1]
        found = gradient_of(row, j, logits, lattice, shares)
        found -= shares[row, 0] if j == blank else d.dtype.type(0)
        label = label_at(row, offsets, labels, ends)
        d[row, j] = found - (shares[row, 1] if j == label else d.dtype.type(0))


@twins(transducer_grad_cpu, transducer_grad_cuda, elements, work=lambda logits, *rest: 8 * logits.size)
def transducer_grad(logits, offsets, labels, ends, blank, lattice, shares, d):
    """Compute the gradient of the sum of scale * loss, from the shares.

    It is each row's softmax times the sum of its shares, less the shares at the blank and at the label.

    Parameters
    ----------
    logits, offsets, labels, ends, blank, lattice : as in `emissions`
    shares : (rows, 2), from `transducer_shares`
    d : (rows, classes) C-contiguous, the data type of `logits`; written

    Examples
    --------
    >>> lattice, d = np.zeros((1, COLUMNS)), np.empty((1, 2))
    >>> lattice[0, NORM] = np.log(2.0)
    >>> one, none = np.array([0, 1]), np.array([0, 0])
    >>> transducer_grad(np.zeros((1, 2)), one, none[:0], none, 0, lattice, np.array([[1.0, 0.0]]), d); d
    array([[-0.5,  0.5]])
    """
