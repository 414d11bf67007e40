"""Edit distances of pairs of sequences: the fewest insertions, deletions and changes that turn one into the other.

Kernels trust their indices, and check no bounds: see `varlen_rnn.kernels`.

Source: Wagner and Fischer (1974), "The string-to-string correction problem".
"""

from varlen_rnn.kernels.activations import minimum
from varlen_rnn.kernels.twins import twins
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.jit import body, cpu_kernel, cuda_kernel


@body
def distance_of(i, ids, offsets, labels, label_offsets, scratch):
    """Return the distance of a pair.

    The scratch holds the distances of the ids so far from every prefix of the labels.  In the usual table of distances,
    `corner` is the entry up and left: without the latest id, and from the prefix that is one label shorter.
    """
    begin, first = offsets[i], label_offsets[i]
    length, at = label_offsets[i + 1] - first, label_offsets[i] + i
    for j in range(length + 1):
        scratch[at + j] = j
    for k in range(begin, offsets[i + 1]):
        corner, scratch[at] = scratch[at], k - begin + 1
        for j in range(length):
            changed = corner if ids[k] == labels[first + j] else corner + 1
            corner = scratch[at + j + 1]
            scratch[at + j + 1] = minimum(changed, minimum(corner, scratch[at + j]) + 1)
    return scratch[at + length]


@cpu_kernel
def edit_distance_cpu(shard, num_shards, ids, offsets, labels, label_offsets, scratch, distances):
    """Compare every `num_shards`-th pair, beginning with pair `shard`."""
    for i in range(shard, distances.shape[0], num_shards):
        distances[i] = distance_of(i, ids, offsets, labels, label_offsets, scratch)


@cuda_kernel
def edit_distance_cuda(ids, offsets, labels, label_offsets, scratch, distances):
    """Twin of `edit_distance_cpu`; one thread per pair."""
    i = cuda.grid(1)
    if i < distances.shape[0]:
        distances[i] = distance_of(i, ids, offsets, labels, label_offsets, scratch)


def _work(ids, offsets, labels, label_offsets, scratch, distances):
    return 4 * int((offsets[1:] - offsets[:-1]) @ (label_offsets[1:] - label_offsets[:-1]))


@twins(edit_distance_cpu, edit_distance_cuda, work=_work)
def edit_distance(ids, offsets, labels, label_offsets, scratch, distances):
    """Compute the edit distance of each sequence of ids from its sequence of labels.

    Parameters
    ----------
    ids : (ids,) int64
    offsets, label_offsets : (sequences + 1,) int64
    labels : (labels,) int64
    scratch : (labels + sequences,) int64; written
    distances : (sequences,) int64; written

    Examples
    --------
    >>> distances, text = np.empty(1, np.int64), np.array([*b"kitten", *b"sitting"])
    >>> edit_distance(text[:6], np.array([0, 6]), text[6:], np.array([0, 7]), np.empty(8, np.int64), distances)
    >>> distances
    array([3])
    """
