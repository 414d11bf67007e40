"""Rows of lattices: each row of one sequence beside each row of another, as the joint network of a transducer has them.

Sequence i has T frames and W rows of a predictor.  Its lattice has T W rows: row t W + u belongs to frame t and to row
u of the predictor.  With 2 frames a, b and 3 rows x, y, z, the rows are a + x, a + y, a + z, b + x, b + y, b + z.

Kernels trust their indices, and check no bounds: see `varlen_rnn.kernels`.
"""

import numpy as np

from varlen_rnn.kernels.twins import elements, twins
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.jit import body, cpu_kernel, cuda_kernel


@body
def sequence_of(row, offsets):
    """Return the sequence that has a row, by bisection."""
    low, high = 0, offsets.shape[0] - 1
    while high - low > 1:
        middle = (low + high) // 2
        if offsets[middle] <= row:
            low = middle
        else:
            high = middle
    return low


@cpu_kernel
def lattice_rows_cpu(shard, num_shards, encoder, offsets, predictor, ends, places, out):
    """`out = encoder + predictor` for each pair of rows, in every `num_shards`-th sequence from sequence `shard` on."""
    for i in range(shard, offsets.shape[0] - 1, num_shards):
        row = places[i]
        for t in range(offsets[i], offsets[i + 1]):
            for u in range(ends[i], ends[i + 1]):
                for j in range(out.shape[1]):
                    out[row, j] = encoder[t, j] + predictor[u, j]
                row += 1


@cuda_kernel
def lattice_rows_cuda(encoder, offsets, predictor, ends, places, out):
    """Twin of `lattice_rows_cpu`."""
    thread = cuda.grid(1)
    if thread < out.size:
        row, j = thread // out.shape[1], thread % out.shape[1]
        i = sequence_of(row, places)
        width = ends[i + 1] - ends[i]
        t, u = (row - places[i]) // width, (row - places[i]) % width
        out[row, j] = encoder[offsets[i] + t, j] + predictor[ends[i] + u, j]


def lattice_places(offsets, ends):
    """Return the offsets of the lattices, in rows, from the offsets of frames and of the predictor's rows.

    Examples
    --------
    >>> lattice_places(np.array([0, 2, 2]), np.array([0, 3, 4]))
    array([0, 6, 6])
    """
    return np.concatenate([[0], np.cumsum(np.diff(offsets) * np.diff(ends))])


@cpu_kernel
def check_lattices(offsets, ends, found):
    """Find the first sequence whose rows are no multiple of its labels and one more.

    Parameters
    ----------
    offsets : (sequences + 1,) int64, in rows
    ends : (sequences + 1,) int64, in labels
    found : (1,) int64; written
        The number of the sequence; -1 if there is none.

    Examples
    --------
    >>> found = np.empty(1, np.int64); check_lattices(np.array([0, 4, 7]), np.array([0, 1, 2]), found); found
    array([1])
    """
    found[0] = -1
    for i in range(offsets.shape[0] - 2, -1, -1):
        if (offsets[i + 1] - offsets[i]) % (ends[i + 1] - ends[i] + 1):
            found[0] = i


@twins(lattice_rows_cpu, lattice_rows_cuda, elements, work=lambda *arguments: arguments[-1].size)
def lattice_rows(encoder, offsets, predictor, ends, places, out):
    """Compute the sum of each frame and each row of the predictor, sequence by sequence.

    The gradient for the encoder is `pool.pool_sum`, and the gradient for the predictor `pool.sum_copies`.

    Parameters
    ----------
    encoder : (frames, features) C-contiguous
    offsets : (sequences + 1,) int64, in frames
    predictor : (rows, features) C-contiguous, the data type of `encoder`
    ends : (sequences + 1,) int64, in rows of the predictor
    places : (sequences + 1,) int64, from `lattice_places`
    out : (places[-1], features) C-contiguous, the data type of `encoder`; written

    Examples
    --------
    >>> frames, words, out = np.array([[10.0], [20.0]]), np.array([[1.0], [2.0], [3.0]]), np.empty((6, 1))
    >>> lattice_rows(frames, np.array([0, 2]), words, np.array([0, 3]), np.array([0, 6]), out); out.ravel()
    array([11., 12., 13., 21., 22., 23.])
    """
