"""Kernels of losses: the log-likelihood of each row's class, the gradient of cross entropy, and sums by class.

Kernels trust their indices, and check no bounds: see `varlen_rnn.kernels`.
"""

import numpy as np

from varlen_rnn.kernels.functions import exp
from varlen_rnn.kernels.rows import scatter_add_rows
from varlen_rnn.kernels.twins import twins
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.device import empty, zeros
from varlen_rnn.runtime.jit import cpu_kernel, cuda_kernel

_FLOAT64 = np.dtype(np.float64)


@cpu_kernel
def negative_log_likelihood_cpu(log_probabilities, classes, out):
    """`out[r] = -log_probabilities[r, classes[r]]`, 0 where the class is -1."""
    for r in range(out.shape[0]):
        out[r] = -log_probabilities[r, classes[r]] if classes[r] >= 0 else out.dtype.type(0)


@cuda_kernel
def negative_log_likelihood_cuda(log_probabilities, classes, out):
    """Twin of `negative_log_likelihood_cpu`."""
    r = cuda.grid(1)
    if r < out.size:
        out[r] = -log_probabilities[r, classes[r]] if classes[r] >= 0 else out.dtype.type(0)


@twins(negative_log_likelihood_cpu, negative_log_likelihood_cuda)
def negative_log_likelihood(log_probabilities, classes, out):
    """Compute `out[r] = -log_probabilities[r, classes[r]]`, and 0 where the class is -1, which means an ignored row.

    Indexing by NumPy would take three times as long.

    Parameters
    ----------
    log_probabilities : (rows, classes) C-contiguous
    classes : (rows,) int64, at least -1
    out : (rows,) the data type of `log_probabilities`; written

    Examples
    --------
    >>> out = np.empty(2); negative_log_likelihood(-np.arange(6.0).reshape(2, 3), np.array([1, 2]), out); out
    array([1., 5.])
    """


@cpu_kernel
def cross_entropy_grad_cpu(log_probabilities, classes, d_loss, out):
    """`out[r] = (exp(log_probabilities[r]) - the one-hot class) * d_loss[r]`, 0 where the class is -1."""
    one, zero = out.dtype.type(1), out.dtype.type(0)
    given, elements = log_probabilities.reshape(out.size), out.reshape(out.size)
    for i in range(out.size):  # one flat loop, which vectorises even if there are few columns
        elements[i] = exp(given[i])
    for r in range(out.shape[0]):
        if classes[r] >= 0:
            out[r, classes[r]] -= one
        d = d_loss[r] if classes[r] >= 0 else zero
        for j in range(out.shape[1]):
            out[r, j] *= d


@cuda_kernel
def cross_entropy_grad_cuda(log_probabilities, classes, d_loss, out):
    """Twin of `cross_entropy_grad_cpu`."""
    i = cuda.grid(1)
    if i < out.size:
        r, j = i // out.shape[1], i % out.shape[1]
        one, zero = out.dtype.type(1), out.dtype.type(0)
        d = exp(log_probabilities[r, j]) - (one if j == classes[r] else zero)
        out[r, j] = d * (d_loss[r] if classes[r] >= 0 else zero)


@twins(cross_entropy_grad_cpu, cross_entropy_grad_cuda)
def cross_entropy_grad(log_probabilities, classes, d_loss, out):
    """Compute `(softmax - one-hot class) * d_loss` for each row; 0 where the class is -1.

    Parameters
    ----------
    log_probabilities : (rows, classes) C-contiguous
    classes : (rows,) int64, at least -1
    d_loss : (rows,) the data type of `log_probabilities`
    out : (rows, classes) C-contiguous; written

    Examples
    --------
    >>> out = np.empty((1, 2))
    >>> cross_entropy_grad(np.log([[0.25, 0.75]]), np.array([1]), np.array([2.0]), out); out
    array([[ 0.5, -0.5]])
    """


@cpu_kernel
def sum_by_class_cpu(values, classes, totals, out):
    """`out[c]` = the sum of the values of class c, which is added in float64 in `totals`, and then rounded."""
    for c in range(out.shape[0]):
        totals[c] = 0
    for r in range(classes.shape[0]):
        if classes[r] >= 0:
            totals[classes[r]] += values[r]
    for c in range(out.shape[0]):
        out[c] = totals[c]


def _sum_by_class_on_host(values, classes, out):
    sum_by_class_cpu(values, classes, empty(out.shape, out, _FLOAT64), out)


def _sum_by_class_on_device(values, classes, out):
    """Add the values of each class; values of class -1 are added to one more class, which is then dropped."""
    kept = np.where(classes < 0, len(out), classes)
    sums = zeros((len(out) + 1, 1), out)
    scatter_add_rows(values.reshape((len(kept), 1)), kept, sums)
    out.copy_to_device(sums.reshape((len(out) + 1,))[: len(out)])


@twins(_sum_by_class_on_host, _sum_by_class_on_device, size=None)
def sum_by_class(values, classes, out):
    """Compute the sum of the values of each class; rows whose class is -1 are ignored.

    Parameters
    ----------
    values : (rows,) C-contiguous
    classes : (rows,) int64, on the host, `-1 <= classes < len(out)`
    out : (classes,) the data type of `values`; written

    Examples
    --------
    >>> out = np.empty(2); sum_by_class(np.array([1.0, 2.0, 4.0]), np.array([1, -1, 1]), out); out
    array([0., 5.])
    """
