"""Connectionist temporal classification: the probability of all alignments of a target with the steps of a sequence.

A target of L labels has 2 L + 1 states: state s is a blank if s is even, and label s // 2 otherwise.  The forward
variable of a step and a state is the log probability of all alignments up to that step that end in the state.  The
backward variable is the log probability of all alignments that go on from there.  Both are relative to a number of
their step, so neither they nor their rounding errors grow with the number of steps.

Kernels trust their indices, and check no bounds: see `varlen_rnn.kernels`.

Source: Graves, Fernandez, Gomez and Schmidhuber (2006), "Connectionist temporal classification".
"""

import numpy as np

from varlen_rnn.kernels.activations import exp, log
from varlen_rnn.kernels.sums import add_block, settled
from varlen_rnn.kernels.twins import sequences, twins
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.jit import body, cpu_kernel, cuda_kernel


@body
def log_add(a, b):
    """Return log(e**a + e**b)."""
    kind, most = type(a), a if a > b else b
    return most if most == -kind(np.inf) else most + log(exp(a - most) + exp(b - most))


@body
def label_of(targets, first, state, blank):
    """Return the class that a state emits."""
    return blank if state % 2 == 0 else targets[first + state // 2]


@body
def may_skip(targets, first, state, blank):
    """Return whether the label of a state can follow the label before it directly, without a blank between them."""
    return state % 2 == 1 and state > 1 and targets[first + state // 2] != targets[first + state // 2 - 1]


@body
def log_add_of_three(a, b, c, more):
    """Return log(e**a + e**b + e**c) + more.

    Small numbers are added first, so that only the last addition rounds to the digits of a large result.
    """
    kind, most = type(a), a if a > b else b
    most = c if c > most else most
    less = most if most > -kind(np.inf) else kind(0)
    return less + (log(exp(a - less) + exp(b - less) + exp(c - less)) + more)


@body
def largest_of(x):
    """Return the largest number of `x`, or 0 if all are minus infinity.

    It keeps four maxima, each over every fourth number, so that comparisons need not wait for each other.
    """
    lowest, whole = -x.dtype.type(np.inf), x.shape[0] - x.shape[0] % 4
    a, b, c, d = lowest, lowest, lowest, lowest
    for j in range(0, whole, 4):
        a = x[j] if x[j] > a else a
        b = x[j + 1] if x[j + 1] > b else b
        c = x[j + 2] if x[j + 2] > c else c
        d = x[j + 3] if x[j + 3] > d else d
    for j in range(whole, x.shape[0]):
        a = x[j] if x[j] > a else a
    a, c = b if b > a else a, d if d > c else c
    a = c if c > a else a
    return a if a > lowest else x.dtype.type(0)


@body
def sum_of(x):
    """Return the sum of `x`, from four sums of every fourth number, so that additions need not wait for each other."""
    zero, whole = x.dtype.type(0), x.shape[0] - x.shape[0] % 4
    a, b, c, d = zero, zero, zero, zero
    for j in range(0, whole, 4):
        a += x[j]
        b += x[j + 1]
        c += x[j + 2]
        d += x[j + 3]
    for j in range(whole, x.shape[0]):
        a += x[j]
    return (a + b) + (c + d)


@body
def fill_skips(targets, first, states, blank, memory, skips):
    """Write 0 for each state that can directly follow the state two before it, otherwise minus infinity.

    Loops over states add these numbers to log probabilities, instead of branching.
    """
    kind = type(memory[skips])
    for s in range(states):
        memory[skips + s] = kind(0) if may_skip(targets, first, s, blank) else -kind(np.inf)
    memory[skips + states] = memory[skips + states + 1] = -kind(np.inf)


@body
def run_forward(log_probs, begin, end, target, memory, at):
    """Fill the forward variables of a sequence; return minus the logarithm of the probability of all alignments.

    `memory` has a row for each step: two padding entries for missing states, then the states.  The numbers of a row are
    relative to the largest number of the row before.

    `target` is `(targets, first, states, blank)`: the labels of all sequences, the position of the sequence's first
    label, the number of its states, and the blank class.
    """
    targets, first, states, blank = target
    kind, width = log_probs.dtype.type, states + 2
    nothing, total, lost, base = -kind(np.inf), kind(0), kind(0), kind(0)
    skips = at + (end - begin) * width
    fill_skips(targets, first, states, blank, memory, skips)
    over = memory[skips : skips + width]
    for row in range(begin, end):
        here = at + (row - begin) * width
        now = memory[here : here + width]
        now[0], now[1] = nothing, nothing
        for s in range(states):
            now[s + 2] = log_probs[row, label_of(targets, first, s, blank)] - base
        if row == begin:
            for s in range(2, states):
                now[s + 2] = nothing
        else:
            before = memory[here - width : here]
            for s in range(states):
                now[s + 2] = log_add_of_three(before[s + 2], before[s + 1], before[s] + over[s], now[s + 2])
        base = largest_of(now[2:])
        total, lost = add_block(total, lost, base)
    if begin == end:
        return kind(0) if states == 1 else -nothing
    last = skips - 1
    end_of_all = memory[last] if states == 1 else log_add(memory[last], memory[last - 1])
    return -(settled(total, lost) + (end_of_all - base))


@body
def run_backward(log_probs, begin, end, target, memory, at, scale, d):
    """Subtract the probability of each class at each step, times `scale`, from `d`.

    In `memory`, three parts follow the forward variables and the skips: the backward variables of a step; their sums
    with the step's log probabilities; and the shares, which are the probabilities of the states.  The first two parts
    end with padding entries.

    The shares of a step are divided by their sum, so they add up to 1.  Backward variables are relative to the variable
    of the most probable state of the step after, so all variables that matter are small numbers.
    """
    targets, first, states, blank = target
    kind, width = log_probs.dtype.type, states + 2
    nothing, base = -kind(np.inf), kind(0)
    skips = at + (end - begin) * width
    over, now = memory[skips : skips + width], memory[skips + width : skips + 2 * width]
    later, last = memory[skips + 2 * width : skips + 3 * width], skips + 3 * width
    shares = memory[last : last + states]
    for s in range(width):
        later[s] = nothing
    for row in range(end - 1, begin - 1, -1):
        if row == end - 1:
            for s in range(states):
                now[s] = kind(0) if s >= states - 2 else nothing
        else:
            for s in range(states):
                now[s] = log_add_of_three(later[s], later[s + 1], later[s + 2] + over[s + 2], -base)
        here = at + (row - begin) * width + 2
        forward = memory[here : here + states]
        for s in range(states):
            shares[s] = forward[s] + now[s]
        most = largest_of(shares)
        for s in range(states):
            shares[s] = exp(shares[s] - most)
        part = scale / sum_of(shares)
        for s in range(states):
            label = label_of(targets, first, s, blank)
            base = now[s] if shares[s] == kind(1) else base
            d[row, label] -= shares[s] * part
            later[s] = now[s] + log_probs[row, label]


@body
def of_sequence(i, given, scratch, at, losses, scales, d):
    """Write the loss of a sequence; if `d` has rows, also write its gradient, times the sequence's scale.

    `given` is `(log_probs, offsets, targets, target_offsets, blank)`.  The memory of the sequence begins at
    `scratch[at]`.
    """
    log_probs, offsets, targets, target_offsets, blank = given
    begin, end, first = offsets[i], offsets[i + 1], target_offsets[i]
    target = targets, first, 2 * (target_offsets[i + 1] - first) + 1, blank
    loss = run_forward(log_probs, begin, end, target, scratch, at)
    losses[i] = loss
    for row in range(begin, end if d.shape[0] else begin):
        for j in range(d.shape[1]):
            d[row, j] = 0
    if d.shape[0] and loss != log_probs.dtype.type(np.inf):  # an infinite loss means no alignment, so no gradient
        run_backward(log_probs, begin, end, target, scratch, at, scales[i], d)


@cpu_kernel
def ctc_cpu(shard, num_shards, log_probs, offsets, targets, target_offsets, blank, scratch, places, losses, scales, d):
    """Compute the losses of every `num_shards`-th sequence, beginning with sequence `shard`."""
    most, memory, is_given = 0, scratch, scratch.shape[0] > 0
    for i in range(shard, losses.shape[0] if not is_given else 0, num_shards):
        size = (offsets[i + 1] - offsets[i] + 4) * (2 * (target_offsets[i + 1] - target_offsets[i]) + 3)
        most = size if size > most else most
    if not is_given:
        memory = np.empty(most, log_probs.dtype)
    for i in range(shard, losses.shape[0], num_shards):
        given = log_probs, offsets, targets, target_offsets, blank
        of_sequence(i, given, memory, places[i] if is_given else 0, losses, scales, d)


@cuda_kernel
def ctc_cuda(log_probs, offsets, targets, target_offsets, blank, scratch, places, losses, scales, d):
    """Twin of `ctc_cpu`; one thread per sequence."""
    i = cuda.grid(1)
    if i < losses.shape[0]:
        given = log_probs, offsets, targets, target_offsets, blank
        of_sequence(i, given, scratch, places[i], losses, scales, d)


def _work(log_probs, offsets, targets, *rest):
    """Return about how many operations the losses take: 20 for each step and state of its sequence."""
    return 20 * len(log_probs) * (2 * len(targets) // max(1, len(offsets) - 1) + 3)


def places_of(offsets, target_offsets):
    """Return where each sequence's numbers begin in the scratch (working memory) of `ctc`, and then its size."""
    widths = 2 * np.diff(target_offsets) + 3
    return np.concatenate([[0], np.cumsum((np.diff(offsets) + 4) * widths)])


@twins(ctc_cpu, ctc_cuda, sequences, work=_work)
def ctc(log_probs, offsets, targets, target_offsets, blank, scratch, places, losses, scales, d):
    """Compute the losses of sequences and, if `d` has rows, the gradient of the sum of scale * loss.

    Parameters
    ----------
    log_probs : (rows, classes) C-contiguous
    offsets, target_offsets : (sequences + 1,) int64
    targets : (labels,) int64, classes except `blank`
    blank : int
    scratch : (numbers,) of the data type of `log_probs`, as many as `places_of` says; written
        On the host, it may be empty: then each thread makes memory for its largest sequence.
    places : (sequences + 1,) int64, from `places_of`
    losses : (sequences,) of the data type of `log_probs`; written: infinity where no alignment exists
    scales : (sequences,) of the data type of `log_probs`
    d : (rows, classes), or (0, classes); written

    Examples
    --------
    >>> log_probs, ends = np.log(np.full((2, 2), 0.5)), np.array([0, 2])
    >>> losses, none = np.empty(1), np.empty((0, 2))
    >>> places = places_of(ends, np.array([0, 1]))
    >>> ctc(log_probs, ends, np.array([1]), np.array([0, 1]), 0, np.empty(places[-1]), places, losses, losses, none)
    >>> np.exp(-losses)  # of "1 1", "blank 1" and "1 blank"
    array([0.75])
    """
