"""Kernels of losses: the log-likelihood of each row's class, the gradient of cross entropy, and sums by class.

Kernels trust their indices, and check no bounds: see `varlen_rnn.kernels`.
"""

import numpy as np

from varlen_rnn.kernels.activations import exp
from varlen_rnn.kernels.rows import scatter_add_rows
from varlen_rnn.kernels.twins import twins
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.device import zeros
from varlen_rnn.runtime.jit import cpu_kernel, cuda_kernel


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


def _cross_entropy_grad_by_numpy(log_probabilities, classes, d_loss, out):
    np.exp(log_probabilities, out=out)
    ignored = classes < 0
    if ignored.any():
        classes, d_loss = np.where(ignored, 0, classes), np.where(ignored, out.dtype.type(0), d_loss)
    out[np.arange(len(out)), classes] -= 1
    out *= d_loss[:, None]


@cuda_kernel
def cross_entropy_grad_cuda(log_probabilities, classes, d_loss, out):
    """Twin of `_cross_entropy_grad_by_numpy`."""
    i = cuda.grid(1)
    if i < out.size:
        r, j = i // out.shape[1], i % out.shape[1]
        one, zero = out.dtype.type(1), out.dtype.type(0)
        d = exp(log_probabilities[r, j]) - (one if j == classes[r] else zero)
        out[r, j] = d * (d_loss[r] if classes[r] >= 0 else zero)


@twins(_cross_entropy_grad_by_numpy, cross_entropy_grad_cuda)
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


def _sum_by_class_by_numpy(values, classes, out):
    counted = values if (classes >= 0).all() else np.where(classes < 0, 0, values)
    out[...] = np.bincount(np.maximum(classes, 0), counted, len(out))


def _sum_by_class_on_device(values, classes, out):
    """Add the values of each class; values of class -1 are added to one more class, which is then dropped."""
    kept = np.where(classes < 0, len(out), classes)
    sums = zeros((len(out) + 1, 1), out)
    scatter_add_rows(values.reshape((len(kept), 1)), kept, sums)
    out.copy_to_device(sums.reshape((len(out) + 1,))[: len(out)])


@twins(_sum_by_class_by_numpy, _sum_by_class_on_device, size=None)
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
