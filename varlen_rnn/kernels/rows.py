"""Rows by index: gathering, and its gradient, which adds where rows repeat.  An embedding is nothing else.

Kernels trust their indices, and check no bounds (see `varlen_rnn.kernels`): callers check once, where they come from,
that they are rows of the table.
"""

from numba import cuda

from varlen_rnn.device import beside, launch, on_device
from varlen_rnn.jit import cpu_kernel, cuda_kernel


@cpu_kernel
def first_outside(ids, height):
    """Return the position of the first of `ids` (n,), on the host, that is not `0 <= id < height`; -1 if all are.

    Examples
    --------
    >>> import numpy as np
    >>> first_outside(np.array([1, 0, 2, -1]), 2), first_outside(np.array([1, 0]), 2)
    (2, -1)
    """
    for k in range(ids.shape[0]):
        if ids[k] < 0 or ids[k] >= height:
            return k
    return -1


@cpu_kernel
def negative_log_likelihood(log_probabilities, classes, out):
    """`out[r] = -log_probabilities[r, classes[r]]`, on the host, where NumPy's index takes three times as long.

    No bounds are checked.

    Examples
    --------
    >>> import numpy as np
    >>> out = np.empty(2); negative_log_likelihood(-np.arange(6.0).reshape(2, 3), np.array([1, 2]), out); out
    array([1., 5.])
    """
    for r in range(out.shape[0]):
        out[r] = -log_probabilities[r, classes[r]]


@cpu_kernel
def gather_rows_cpu(table, ids, out):
    """`out[k] = table[ids[k]]`, 0 where the id is -1.  No bounds are checked."""
    for k in range(out.shape[0]):
        row = ids[k]
        if row >= 0:
            for j in range(out.shape[1]):
                out[k, j] = table[row, j]
        else:
            for j in range(out.shape[1]):
                out[k, j] = 0


@cuda_kernel
def gather_rows_cuda(table, ids, out):
    """Twin of `gather_rows_cpu`."""
    i = cuda.grid(1)
    if i < out.size:
        k, j = i // out.shape[1], i % out.shape[1]
        row = ids[k]
        out[k, j] = table[row, j] if row >= 0 else out.dtype.type(0)


def gather_rows(table, ids, out):
    """Compute `out[k] = table[ids[k]]`, and 0 where the id is -1.

    The gradient of `table` is `scatter_add_rows`, of the ids that are not -1.

    No bounds are checked.

    Parameters
    ----------
    table : (height, features) C-contiguous, any data type
    ids : (n,) int64, `-1 <= ids < height`; may repeat
    out : (n, features) C-contiguous, the data type of `table`; written

    Examples
    --------
    >>> import numpy as np
    >>> out = np.empty((3, 2)); gather_rows(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1, -1, 1]), out); out
    array([[3., 4.],
           [0., 0.],
           [3., 4.]])
    """
    if on_device(out):
        launch(gather_rows_cuda, out.size, table, beside(ids, out), out)
    else:
        gather_rows_cpu(table, ids, out)


@cpu_kernel
def scatter_add_rows_cpu(values, ids, out):
    """`out[ids[k]] += values[k]`, in the order of k.  No bounds are checked."""
    for k in range(values.shape[0]):
        row = ids[k]
        for j in range(values.shape[1]):
            out[row, j] += values[k, j]


@cuda_kernel
def scatter_add_rows_cuda(values, ids, out):
    """Twin of `scatter_add_rows_cpu`; a thread a column, so that sums need no atomics and keep their order."""
    j = cuda.grid(1)
    if j < out.shape[1]:
        for k in range(values.shape[0]):
            out[ids[k], j] += values[k, j]


def scatter_add_rows(values, ids, out):
    """Compute `out[ids[k]] += values[k]` in the order of k: the gradient of `gather_rows`.

    No bounds are checked.

    Parameters
    ----------
    values : (n, features) C-contiguous, any data type
    ids : (n,) int64, `0 <= ids < height`; may repeat
    out : (height, features) C-contiguous, the data type of `values`; added to

    Examples
    --------
    >>> import numpy as np
    >>> out = np.zeros((2, 1)); scatter_add_rows(np.array([[1.0], [2.0], [4.0]]), np.array([1, 0, 1]), out); out
    array([[2.],
           [5.]])
    """
    if on_device(out):
        launch(scatter_add_rows_cuda, out.shape[1], values, beside(ids, out), out)
    else:
        scatter_add_rows_cpu(values, ids, out)
