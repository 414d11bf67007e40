"""Products of many pairs of small matrices.  They use no tile, because packing each matrix would take longer.

Kernels trust their indices, and check no bounds: see `varlen_rnn.kernels`.
"""

from varlen_rnn.kernels.elementwise import unravel
from varlen_rnn.kernels.twins import twins
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.jit import cpu_kernel, cuda_kernel


@cpu_kernel
def multiply_matrices_cpu(a, of_a, b, of_b, out):
    """`out[i] = a[of_a[i]] @ b[of_b[i]]`."""
    for i in range(out.shape[0]):
        left, right = a[of_a[i]], b[of_b[i]]
        for row in range(out.shape[1]):
            for j in range(out.shape[2]):
                out[i, row, j] = 0
            for k in range(left.shape[1]):
                factor = left[row, k]
                for j in range(out.shape[2]):
                    out[i, row, j] += factor * right[k, j]


@cuda_kernel
def multiply_matrices_cuda(a, of_a, b, of_b, out):
    """Twin of `multiply_matrices_cpu`."""
    thread = cuda.grid(1)
    if thread < out.size:
        i, row, j = unravel(thread, out.shape[1], out.shape[2])
        left, right, total = of_a[i], of_b[i], out.dtype.type(0)
        for k in range(a.shape[2]):
            total += a[left, row, k] * b[right, k, j]
        out[i, row, j] = total


@twins(multiply_matrices_cpu, multiply_matrices_cuda)
def multiply_matrices(a, of_a, b, of_b, out):
    """`out[i] = a[of_a[i]] @ b[of_b[i]]`; a product depends only on its two matrices, to the bit.

    Parameters
    ----------
    a : (matrices, rows, depth) C-contiguous
    of_a, of_b : (n,) int64, the matrices of each product
    b : (matrices, depth, columns) C-contiguous, the data type of `a`
    out : (n, rows, columns) C-contiguous, the data type of `a`; written

    Examples
    --------
    >>> out = np.empty((2, 1, 1)); a, b = np.ones((1, 1, 2)), np.array([[[1.0], [2.0]], [[3.0], [4.0]]])
    >>> multiply_matrices(a, np.zeros(2, int), b, np.arange(2), out); out.ravel()
    array([3., 7.])
    """
