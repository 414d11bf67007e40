"""Layer normalisation of rows, also without the mean (RMS normalisation), and its gradient.

To sum the features of a row, add every 16th feature into one of 16 lanes, then add the lanes in their order.
Kernels trust their arguments, and check no bounds: see `varlen_rnn.kernels`.

Source: Ba, Kiros and Hinton (2016), "Layer normalization"; Zhang and Sennrich (2019), "Root mean square layer
normalization".
"""

import math

from varlen_rnn.kernels.stack import make_stack_memory
from varlen_rnn.kernels.twins import rows_of_last, twins
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.device import empty
from varlen_rnn.runtime.jit import cpu_inlined, cpu_kernel, cuda_kernel

LANES = 16  # the number of sums that are kept, so that additions need not wait for each other
_lanes_on_stack = make_stack_memory(lambda size: LANES)


@cpu_inlined
def _mean(a, b, lanes, both):
    """Return the mean of `a`, or of `a * b` if `both`."""
    width, whole = a.shape[0], a.shape[0] // LANES * LANES
    for k in range(LANES):
        lanes[k] = 0
    for start in range(0, whole, LANES):
        for k in range(LANES):
            lanes[k] += a[start + k] * b[start + k] if both else a[start + k]
    total = a.dtype.type(0)
    for k in range(LANES):
        part = lanes[k]
        if whole + k < width:  # the last numbers are not stored in lanes, which would then be read again at once
            part += a[whole + k] * b[whole + k] if both else a[whole + k]
        total = total + part if k else part
    return total / a.dtype.type(width)


@cpu_inlined
def normalise_row(x, epsilon, centres, lanes, out):
    """Write `(x - mean) / sqrt(variance + epsilon)` of a row to `out`; return 1 / sqrt(variance + epsilon).

    Unless `centres`, 0 takes the place of the mean.
    """
    mean = _mean(x, x, lanes, False) if centres else out.dtype.type(0)
    for j in range(x.shape[0]):
        out[j] = x[j] - mean
    inverse = out.dtype.type(1) / math.sqrt(_mean(out, out, lanes, True) + out.dtype.type(epsilon))
    for j in range(x.shape[0]):
        out[j] *= inverse
    return inverse


@cpu_kernel
def layer_norm_cpu(x, weight, bias, epsilon, centres, out):
    """`out = (x - mean) / sqrt(variance + epsilon) * weight + bias`, row by row."""
    lanes = _lanes_on_stack(out.dtype.type(0))
    for row in range(out.shape[0]):
        normalise_row(x[row], epsilon, centres, lanes, out[row])
        for j in range(out.shape[1]):
            out[row, j] = out[row, j] * weight[j] + bias[j]


@cuda_kernel
def layer_norm_cuda(x, weight, bias, epsilon, centres, out):
    """Twin of `layer_norm_cpu`; one thread per row."""
    row = cuda.grid(1)
    if row < out.shape[0]:
        number, width = out.dtype.type, out.shape[1]
        mean = variance = number(0)
        for j in range(width if centres else 0):
            mean += x[row, j]
        mean /= number(width)
        for j in range(width):
            variance += (x[row, j] - mean) * (x[row, j] - mean)
        inverse = number(1) / math.sqrt(variance / number(width) + number(epsilon))
        for j in range(width):
            out[row, j] = (x[row, j] - mean) * inverse * weight[j] + bias[j]


@twins(layer_norm_cpu, layer_norm_cuda, rows_of_last)
def layer_norm(x, weight, bias, epsilon, centres, out):
    """Compute `out = (x - mean) / sqrt(variance + epsilon) * weight + bias`, with the mean and variance of each row.

    The gradient of `x` is `layer_norm_grad`.

    Parameters
    ----------
    x : (rows, features) C-contiguous; at least one feature
    weight, bias : (features,) the data type of `x`
    epsilon : float
    centres : bool
        Whether the mean is subtracted; otherwise 0 takes its place, also in the variance.
    out : (rows, features) C-contiguous, the data type of `x`; written

    Examples
    --------
    >>> out = np.empty((1, 2)); layer_norm(np.array([[1.0, 3.0]]), np.ones(2), np.zeros(2), 0.0, True, out); out
    array([[-1.,  1.]])
    """


@cpu_kernel
def layer_norm_grad_cpu(x, weight, d_y, epsilon, centres, y, d_x):
    """`d_x = (g - mean of g - y * mean of g y) / deviation`, with g = weight d_y and y the normalised values.

    `y` is memory for a row.
    """
    lanes = _lanes_on_stack(d_x.dtype.type(0))
    for row in range(d_x.shape[0]):
        inverse, g = normalise_row(x[row], epsilon, centres, lanes, y), d_x[row]
        for j in range(g.shape[0]):
            g[j] = weight[j] * d_y[row, j]
        mean = _mean(g, g, lanes, False) if centres else g.dtype.type(0)
        slope = _mean(g, y, lanes, True)
        for j in range(g.shape[0]):
            g[j] = inverse * (g[j] - mean - y[j] * slope)


@cuda_kernel
def layer_norm_grad_cuda(x, weight, d_y, epsilon, centres, d_x):
    """Twin of `layer_norm_grad_cpu`; one thread per row."""
    row = cuda.grid(1)
    if row < d_x.shape[0]:
        number, width = d_x.dtype.type, d_x.shape[1]
        mean_x = variance = mean = slope = number(0)
        for j in range(width if centres else 0):
            mean_x += x[row, j]
            mean += weight[j] * d_y[row, j]
        mean_x /= number(width)
        mean /= number(width)
        for j in range(width):
            variance += (x[row, j] - mean_x) * (x[row, j] - mean_x)
        inverse = number(1) / math.sqrt(variance / number(width) + number(epsilon))
        for j in range(width):
            slope += weight[j] * d_y[row, j] * (x[row, j] - mean_x) * inverse
        slope /= number(width)
        for j in range(width):
            y = (x[row, j] - mean_x) * inverse
            d_x[row, j] = inverse * (weight[j] * d_y[row, j] - mean - y * slope)


def _grad_on_host(*arguments):
    *given, d_x = arguments
    layer_norm_grad_cpu(*given, empty(d_x.shape[1:], d_x), d_x)


@twins(_grad_on_host, layer_norm_grad_cuda, rows_of_last)
def layer_norm_grad(x, weight, d_y, epsilon, centres, d_x):
    """Compute the gradient of `x` in `layer_norm`, whose statistics are computed again.

    Parameters
    ----------
    x, d_y : (rows, features) C-contiguous; at least one feature
        The input of `layer_norm`, and the gradient of its result.
    weight : (features,) the data type of `x`
    epsilon : float
    centres : bool
        As in `layer_norm`.
    d_x : (rows, features) C-contiguous, the data type of `x`; written

    Examples
    --------
    >>> x, d_y, d_x = np.array([[1.0, 3.0]]), np.array([[1.0, 0.0]]), np.empty((1, 2))
    >>> layer_norm_grad(x, np.ones(2), d_y, 3.0, True, d_x); d_x
    array([[ 0.1875, -0.1875]])
    """
