"""Prefix beam search: find the most probable texts for the outputs of CTC.

Each step emits a class.  Equal neighbouring classes are one label, and blanks are left out.  A prefix is a text that
the steps so far can emit.  It is kept with two probabilities: the probability of its alignments that end with a blank,
and the probability of its alignments that end with its last label.

Prefixes are nodes of a tree, in which the parent of a prefix is the prefix without its last label.  A node stays in the
tree after its prefix is dropped, so a prefix never has two nodes.

Kernels trust their indices, and check no bounds: see `varlen_rnn.kernels`.

Source: Hannun, Maas, Jurafsky and Ng (2014), "First-pass large vocabulary continuous speech recognition using
bi-directional recurrent DNNs".
"""

import numpy as np

from varlen_rnn.kernels.activations import minimum
from varlen_rnn.kernels.ctc import log_add
from varlen_rnn.kernels.twins import twins
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.jit import body, cpu_kernel, cuda_kernel

# Columns of a node.  CHILD is its newest child, SIBLING the next older child of its parent, and PLACE its position
# among the kept prefixes; each is -1 if there is none.
PARENT, LABEL, DEPTH, CHILD, SIBLING, PLACE = range(6)
# Columns of a kept prefix: its node; for the next step, the new node, the prefix that is continued, and the new label
# or -1.
NODE, NEXT, ORIGIN, ADDED = range(4)
# Columns of numbers of a step: how many prefixes are kept, and how many nodes there are.
COUNT, NODES = range(2)
# Columns of log probabilities: alignments that end with a blank; alignments that end with the last label; the same two
# after this step if it adds no label; all alignments.
BLANK, LAST, STAYS_BLANK, STAYS_LAST, TOTAL = range(5)


@body
def make_node(nodes, node, parent, label):
    """Make a node, and put it in front of the children of its parent; the root has the parent -1."""
    nodes[node, PARENT], nodes[node, LABEL], nodes[node, DEPTH] = parent, label, 0
    nodes[node, CHILD], nodes[node, SIBLING], nodes[node, PLACE] = -1, -1, -1
    if parent >= 0:
        nodes[node, DEPTH] = nodes[parent, DEPTH] + 1
        nodes[node, SIBLING] = nodes[parent, CHILD]
        nodes[parent, CHILD] = node


@body
def child_of(nodes, node, label):
    """Return the child of a node with a label, or -1."""
    child = nodes[node, CHILD]
    while child >= 0 and nodes[child, LABEL] != label:
        child = nodes[child, SIBLING]
    return child


@body
def continued(log_probs, row, label, last, chances, at):
    """Return the log probability of a kept prefix, extended by the class `label` in this step."""
    if label == last:
        return chances[at, BLANK] + log_probs[row, label]
    return log_add(chances[at, BLANK], chances[at, LAST]) + log_probs[row, label]


@body
def stay(log_probs, row, blank, nodes, kept, chances, at, count):
    """Compute, for each kept prefix, the probability that it is the text after this step, too.

    Either the step adds no label to the prefix, or it adds the prefix's last label to its kept parent.
    """
    for k in range(at, at + count):
        nodes[kept[k, NODE], PLACE] = k
    for k in range(at, at + count):
        node = kept[k, NODE]
        label, parent = nodes[node, LABEL], nodes[node, PARENT]
        chances[k, STAYS_BLANK] = log_add(chances[k, BLANK], chances[k, LAST]) + log_probs[row, blank]
        chances[k, STAYS_LAST] = chances[k, LAST]
        if parent >= 0:
            total = chances[k, LAST] + log_probs[row, label]
            if nodes[parent, PLACE] >= 0:
                last, origin = nodes[parent, LABEL], nodes[parent, PLACE]
                total = log_add(total, continued(log_probs, row, label, last, chances, origin))
            chances[k, STAYS_LAST] = total


@body
def is_kept(nodes, node, label):
    """Return whether the prefix of a node, extended by a label, is kept already."""
    child = child_of(nodes, node, label)
    return child >= 0 and nodes[child, PLACE] >= 0


@body
def rank_of(total, extra, slot, label, blank):
    """Return the rank of a prefix: its log probability, plus its score in `extra` if `extra` has rows."""
    return total + extra[slot, label if label >= 0 else blank] if extra.shape[0] > 0 else total


@body
def select(log_probs, row, blank, nodes, kept, chances, at, count, beam_size, extra):
    """Choose the best prefixes after a step, best first; return their number.  Equally good prefixes keep their order.

    If `extra` has rows, row k has the scores that are added to the log probabilities of kept prefix k extended by each
    class; in the column of the blank, to the prefix itself.
    """
    chosen, nothing = 0, -log_probs.dtype.type(np.inf)
    for origin in range(at, at + count):
        node = kept[origin, NODE]
        total, last = log_add(chances[origin, BLANK], chances[origin, LAST]), nodes[node, LABEL]
        for label in range(-1, log_probs.shape[1]):
            if label < 0:
                score = log_add(chances[origin, STAYS_BLANK], chances[origin, STAYS_LAST])
            else:
                score = (chances[origin, BLANK] if label == last else total) + log_probs[row, label]
            rank, least, k = rank_of(score, extra, origin - at, label, blank), nothing, at + chosen - 1
            if chosen == beam_size:
                least = rank_of(chances[k, TOTAL], extra, kept[k, ORIGIN] - at, kept[k, ADDED], blank)
            if label == blank or not rank > least or (label >= 0 and is_kept(nodes, node, label)):
                continue
            k = at + (chosen if chosen < beam_size else chosen - 1)
            while k > at and rank > rank_of(
                chances[k - 1, TOTAL], extra, kept[k - 1, ORIGIN] - at, kept[k - 1, ADDED], blank
            ):
                chances[k, TOTAL] = chances[k - 1, TOTAL]
                kept[k, ORIGIN], kept[k, ADDED] = kept[k - 1, ORIGIN], kept[k - 1, ADDED]
                k -= 1
            chances[k, TOTAL], kept[k, ORIGIN], kept[k, ADDED] = score, origin, label
            chosen = minimum(chosen + 1, beam_size)
    return chosen


@body
def advance(nodes, num_nodes, kept, chances, at, count, chosen):
    """Replace the kept prefixes by the chosen prefixes; return the position of the next new node."""
    for k in range(at, at + count):
        nodes[kept[k, NODE], PLACE] = -1
    for k in range(at, at + chosen):
        origin, label = kept[k, ORIGIN], kept[k, ADDED]
        node = kept[origin, NODE]
        if label < 0:
            kept[k, NEXT] = node
            chances[k, BLANK], chances[k, LAST] = chances[origin, STAYS_BLANK], chances[origin, STAYS_LAST]
            continue
        child = child_of(nodes, node, label)
        if child < 0:
            child, num_nodes = num_nodes, num_nodes + 1
            make_node(nodes, child, node, label)
        kept[k, NEXT] = child
        chances[k, BLANK], chances[k, LAST] = -chances.dtype.type(np.inf), chances[k, TOTAL]
    for k in range(at, at + chosen):
        kept[k, NODE] = kept[k, NEXT]
    return num_nodes


@body
def search(i, log_probs, offsets, blank, beam_size, nodes, kept, chances, counts):
    """Search the prefixes of a sequence; if it has no steps, the empty prefix is the only one."""
    at, root = i * beam_size, offsets[i] * beam_size + i
    make_node(nodes, root, -1, -1)
    kept[at, NODE], num_nodes, count = root, root + 1, 1
    chances[at, BLANK], chances[at, LAST], chances[at, TOTAL] = 0, -chances.dtype.type(np.inf), 0
    for row in range(offsets[i], offsets[i + 1]):
        stay(log_probs, row, blank, nodes, kept, chances, at, count)
        chosen = select(log_probs, row, blank, nodes, kept, chances, at, count, beam_size, log_probs[:0])
        num_nodes = advance(nodes, num_nodes, kept, chances, at, count, chosen)
        count = chosen
    counts[i] = count


@cpu_kernel
def step_prefixes(log_probs, row, blank, nodes, kept, chances, numbers, extra):
    """Take one step in the search of one sequence, with scores of the caller that are added to log probabilities.

    The arrays have the rows of a single sequence in `search_prefixes`.  A search begins with a node that has
    -1 in all columns but a DEPTH of 0, as the only kept prefix.

    Parameters
    ----------
    log_probs : (rows, classes) C-contiguous
    row, blank : int
    nodes : (rows * beam_size + 1, 6) int64; written
    kept : (beam_size, 4) int64; written: column NODE, best first
    chances : (beam_size, 5) of the data type of `log_probs`; written
    numbers : (2,) int64; written: COUNT, the number of kept prefixes, and NODES, the number of nodes
    extra : (beam_size, classes) of the data type of `log_probs`
        In row k, the score of kept prefix k extended by each class; in the column of the blank, of the prefix itself.

    Examples
    --------
    >>> log_probs, nodes, kept = np.log([[0.4, 0.6]]), np.array([[-1, -1, 0, -1, -1, -1]] * 3), np.zeros((2, 4), int)
    >>> chances, numbers = np.array([[0, -np.inf, 0, 0, 0]] * 2), np.array([1, 1])
    >>> step_prefixes(log_probs, 0, 0, nodes, kept, chances, numbers, np.array([[0, -2.0]] * 2))
    >>> nodes[kept[:, NODE], LABEL], np.exp(chances[:, TOTAL])  # nothing, and "1", which has the score -2
    (array([-1,  1]), array([0.4, 0.6]))
    """
    stay(log_probs, row, blank, nodes, kept, chances, 0, numbers[COUNT])
    chosen = select(log_probs, row, blank, nodes, kept, chances, 0, numbers[COUNT], kept.shape[0], extra)
    numbers[NODES] = advance(nodes, numbers[NODES], kept, chances, 0, numbers[COUNT], chosen)
    numbers[COUNT] = chosen


@cpu_kernel
def search_prefixes_cpu(shard, num_shards, log_probs, offsets, blank, beam_size, nodes, kept, chances, counts):
    """Search every `num_shards`-th sequence, beginning with sequence `shard`."""
    for i in range(shard, counts.shape[0], num_shards):
        search(i, log_probs, offsets, blank, beam_size, nodes, kept, chances, counts)


@cuda_kernel
def search_prefixes_cuda(log_probs, offsets, blank, beam_size, nodes, kept, chances, counts):
    """Twin of `search_prefixes_cpu`; one thread per sequence."""
    i = cuda.grid(1)
    if i < counts.shape[0]:
        search(i, log_probs, offsets, blank, beam_size, nodes, kept, chances, counts)


@twins(
    search_prefixes_cpu,
    search_prefixes_cuda,
    work=lambda log_probs, offsets, blank, beam_size, *rest: 4 * log_probs.size * beam_size,
)
def search_prefixes(log_probs, offsets, blank, beam_size, nodes, kept, chances, counts):
    """Find the most probable texts of each sequence, as nodes of a tree.

    Parameters
    ----------
    log_probs : (rows, classes) C-contiguous
    offsets : (sequences + 1,) int64
    blank, beam_size : int
    nodes : (rows * beam_size + sequences, 6) int64; written: columns PARENT, LABEL, DEPTH and others
    kept : (sequences * beam_size, 4) int64; written: column NODE, best first
    chances : (sequences * beam_size, 5) of the data type of `log_probs`; written: column TOTAL
    counts : (sequences,) int64; written: how many of its `beam_size` rows of `kept` and `chances` a sequence uses

    Examples
    --------
    >>> log_probs, offsets = np.log([[0.4, 0.6], [0.4, 0.6]]), np.array([0, 2])
    >>> nodes, kept, chances = np.empty((5, 6), np.int64), np.empty((2, 4), np.int64), np.empty((2, 5))
    >>> search_prefixes(log_probs, offsets, 0, 2, nodes, kept, chances, np.empty(1, np.int64))
    >>> nodes[kept[:, NODE], LABEL], np.exp(chances[:, TOTAL])  # "1", and nothing
    (array([ 1, -1]), array([0.84, 0.16]))
    """
