"""Updates of optimizers, in place, on listed rows of a parameter.

A sparse update lists the rows of a merged `SelectedRows`.  A dense update is the same kernel on views of one row,
`(1, size)`, with `rows = [0]`.  Scalars take the data type of the parameter, so float32 stays float32.
Kernels trust their indices, and check no bounds: see `varlen_rnn.kernels`.

Sources: the formulas of Fluid's operators `sgd`, `momentum`, `adagrad` and `adam`, whose epsilon stands outside of the
root and, in `adam`, is not scaled by the bias correction.
"""

import math

from numba import cuda

from varlen_rnn.runtime.device import beside, launch, on_device
from varlen_rnn.runtime.jit import body, cpu_kernel, cuda_kernel


def _typed(param, *scalars):
    """Return the scalars in the data type of `param`: a CUDA kernel would take a Python number as a float64."""
    return [param.dtype.type(scalar) for scalar in scalars]


@body
def sgd_step(g, lr, p):
    """Return (p,) = p - lr g."""
    return (p - lr * g,)


@cpu_kernel
def sgd_cpu(rows, grad, lr, param):
    """`param[rows[k]] -= lr grad[k]`, in the order of k.  No bounds are checked."""
    lr = param.dtype.type(lr)
    for k in range(grad.shape[0]):
        row = rows[k]
        for j in range(grad.shape[1]):
            (param[row, j],) = sgd_step(grad[k, j], lr, param[row, j])


@cuda_kernel
def sgd_cuda(rows, grad, lr, param):
    """Twin of `sgd_cpu`; one thread per column, so that repeated rows need no atomics."""
    j = cuda.grid(1)
    lr = param.dtype.type(lr)
    if j < grad.shape[1]:
        for k in range(grad.shape[0]):
            (param[rows[k], j],) = sgd_step(grad[k, j], lr, param[rows[k], j])


def sgd(rows, grad, lr, param):
    """Compute `param[rows[k]] -= lr * grad[k]` in place, one k after another, so rows may repeat.

    No bounds are checked.

    Parameters
    ----------
    rows : (n,) int64, `0 <= rows < height`
    grad : (n, features) C-contiguous, float32 or float64
    lr : float
        Learning rate.
    param : (height, features) C-contiguous, the data type of `grad`; changed

    Examples
    --------
    >>> import numpy as np
    >>> param = np.ones((2, 1)); sgd(np.array([1, 1]), np.array([[1.0], [3.0]]), 0.25, param); param.ravel()
    array([1., 0.])
    """
    (lr,) = _typed(param, lr)
    if on_device(param):
        launch(sgd_cuda, grad.shape[1], beside(rows, param), grad, lr, param)
    else:
        sgd_cpu(rows, grad, lr, param)


@body
def momentum_step(g, lr, mu, nesterov, v, p):
    """Return (v, p): v = mu v + g, then p - lr v, or p - lr (g + mu v) when `nesterov`."""
    v = mu * v + g
    return v, p - lr * (g + mu * v if nesterov else v)


@cpu_kernel
def momentum_cpu(rows, grad, lr, mu, nesterov, velocity, param):
    """`velocity, param = momentum_step(...)` at the listed rows.  No bounds are checked."""
    lr, mu = param.dtype.type(lr), param.dtype.type(mu)
    for k in range(grad.shape[0]):
        row = rows[k]
        for j in range(grad.shape[1]):
            v, p = momentum_step(grad[k, j], lr, mu, nesterov, velocity[row, j], param[row, j])
            velocity[row, j], param[row, j] = v, p


@cuda_kernel
def momentum_cuda(rows, grad, lr, mu, nesterov, velocity, param):
    """Twin of `momentum_cpu`; one thread per element of `grad`."""
    i = cuda.grid(1)
    lr, mu = param.dtype.type(lr), param.dtype.type(mu)
    if i < grad.size:
        k, j = i // grad.shape[1], i % grad.shape[1]
        row = rows[k]
        v, p = momentum_step(grad[k, j], lr, mu, nesterov, velocity[row, j], param[row, j])
        velocity[row, j], param[row, j] = v, p


def momentum(rows, grad, lr, mu, nesterov, velocity, param):
    """Update in place, at the listed rows: v = mu v + g, then p -= lr v, or p -= lr (g + mu v) when `nesterov`.

    No bounds are checked.

    Parameters
    ----------
    rows : (n,) int64, `0 <= rows < height`, each at most once: merge before
    grad : (n, features) C-contiguous, float32 or float64
    lr, mu : float
        Learning rate; momentum.
    nesterov : bool
    velocity, param : (height, features) C-contiguous, the data type of `grad`; changed

    Examples
    --------
    >>> import numpy as np
    >>> velocity, param = np.ones((2, 1)), np.ones((2, 1))
    >>> momentum(np.array([1]), np.array([[1.0]]), 0.5, 0.5, False, velocity, param); velocity.ravel(), param.ravel()
    (array([1. , 1.5]), array([1.  , 0.25]))
    """
    lr, mu = _typed(param, lr, mu)
    if on_device(param):
        launch(momentum_cuda, grad.size, beside(rows, param), grad, lr, mu, nesterov, velocity, param)
    else:
        momentum_cpu(rows, grad, lr, mu, nesterov, velocity, param)


@body
def adagrad_step(g, lr, epsilon, m, p):
    """Return (m, p): m = m + g^2, then p - lr g / (sqrt(m) + epsilon)."""
    m = m + g * g
    return m, p - lr * g / (math.sqrt(m) + epsilon)


@cpu_kernel
def adagrad_cpu(rows, grad, lr, epsilon, moment, param):
    """`moment, param = adagrad_step(...)` at the listed rows.  No bounds are checked."""
    lr, epsilon = param.dtype.type(lr), param.dtype.type(epsilon)
    for k in range(grad.shape[0]):
        row = rows[k]
        for j in range(grad.shape[1]):
            m, p = adagrad_step(grad[k, j], lr, epsilon, moment[row, j], param[row, j])
            moment[row, j], param[row, j] = m, p


@cuda_kernel
def adagrad_cuda(rows, grad, lr, epsilon, moment, param):
    """Twin of `adagrad_cpu`; one thread per element of `grad`."""
    i = cuda.grid(1)
    lr, epsilon = param.dtype.type(lr), param.dtype.type(epsilon)
    if i < grad.size:
        k, j = i // grad.shape[1], i % grad.shape[1]
        row = rows[k]
        m, p = adagrad_step(grad[k, j], lr, epsilon, moment[row, j], param[row, j])
        moment[row, j], param[row, j] = m, p


def adagrad(rows, grad, lr, epsilon, moment, param):
    """Update in place, at the listed rows: m += g^2, then p -= lr g / (sqrt(m) + epsilon).

    No bounds are checked.

    Parameters
    ----------
    rows : (n,) int64, `0 <= rows < height`, each at most once: merge before
    grad : (n, features) C-contiguous, float32 or float64
    lr, epsilon : float
        Learning rate; what keeps the quotient finite.
    moment, param : (height, features) C-contiguous, the data type of `grad`; changed

    Examples
    --------
    >>> import numpy as np
    >>> moment, param = np.zeros((2, 1)), np.ones((2, 1))
    >>> adagrad(np.array([1]), np.array([[2.0]]), 0.5, 0.0, moment, param); moment.ravel(), param.ravel()
    (array([0., 4.]), array([1. , 0.5]))

    Source: Duchi, Hazan and Singer (2011).
    """
    lr, epsilon = _typed(param, lr, epsilon)
    if on_device(param):
        launch(adagrad_cuda, grad.size, beside(rows, param), grad, lr, epsilon, moment, param)
    else:
        adagrad_cpu(rows, grad, lr, epsilon, moment, param)


@body
def adam_step(g, lr, beta1, share1, beta2, share2, epsilon, m1, m2, p):
    """Return (m1, m2, p): m1 = b1 m1 + s1 g, m2 = b2 m2 + s2 g^2, then p - lr m1 / (sqrt(m2) + epsilon).

    The shares are 1 - beta, computed in float64: in float32, 1 - 0.99999999 is 0, and 1 - 0.999 is off by 1e-5.
    """
    m1 = beta1 * m1 + share1 * g
    m2 = beta2 * m2 + share2 * g * g
    return m1, m2, p - lr * m1 / (math.sqrt(m2) + epsilon)


@cpu_kernel
def adam_cpu(rows, grad, lr, beta1, beta2, epsilon, moment1, moment2, param):
    """`moment1, moment2, param = adam_step(...)` at the listed rows.  No bounds are checked."""
    number = param.dtype.type
    share1, share2 = number(1 - beta1), number(1 - beta2)
    lr, beta1, beta2, epsilon = number(lr), number(beta1), number(beta2), number(epsilon)
    for k in range(grad.shape[0]):
        row = rows[k]
        for j in range(grad.shape[1]):
            m1, m2, p = adam_step(
                grad[k, j], lr, beta1, share1, beta2, share2, epsilon, moment1[row, j], moment2[row, j], param[row, j]
            )
            moment1[row, j], moment2[row, j], param[row, j] = m1, m2, p


@cuda_kernel
def adam_cuda(rows, grad, lr, beta1, share1, beta2, share2, epsilon, moment1, moment2, param):
    """Twin of `adam_cpu`, but for the shares, 1 - beta, which come typed; one thread per element of `grad`."""
    i = cuda.grid(1)
    if i < grad.size:
        k, j = i // grad.shape[1], i % grad.shape[1]
        row = rows[k]
        m1, m2, p = adam_step(
            grad[k, j], lr, beta1, share1, beta2, share2, epsilon, moment1[row, j], moment2[row, j], param[row, j]
        )
        moment1[row, j], moment2[row, j], param[row, j] = m1, m2, p


def adam(rows, grad, lr, beta1, beta2, epsilon, moment1, moment2, param):
    """Update in place, at the listed rows: the two moments, then p -= lr m1 / (sqrt(m2) + epsilon).

    m1 = beta1 m1 + (1 - beta1) g and m2 = beta2 m2 + (1 - beta2) g^2.

    No bounds are checked.

    Parameters
    ----------
    rows : (n,) int64, `0 <= rows < height`, each at most once: merge before
    grad : (n, features) C-contiguous, float32 or float64
    lr : float
        Learning rate of step t, bias-corrected already: lr sqrt(1 - beta2^t) / (1 - beta1^t).
    beta1, beta2, epsilon : float
        Decays of the moments, in float64 also where `grad` is float32; what keeps the quotient finite.
    moment1, moment2, param : (height, features) C-contiguous, the data type of `grad`; changed

    Examples
    --------
    >>> import numpy as np
    >>> m1, m2, param = np.zeros((2, 1)), np.zeros((2, 1)), np.ones((2, 1))
    >>> adam(np.array([1]), np.array([[2.0]]), 0.5, 0.5, 0.75, 0.0, m1, m2, param)
    >>> m1.ravel(), m2.ravel(), param.ravel()
    (array([0., 1.]), array([0., 1.]), array([1. , 0.5]))

    Source: Kingma and Ba (2015), in the order of operations of its section 2's last paragraph.
    """
    if on_device(param):
        scalars = _typed(param, lr, beta1, 1 - beta1, beta2, 1 - beta2, epsilon)
        launch(adam_cuda, grad.size, beside(rows, param), grad, *scalars, moment1, moment2, param)
    else:
        adam_cpu(rows, grad, lr, beta1, beta2, epsilon, moment1, moment2, param)


@body
def rmsprop_step(g, lr, alpha, share, mu, epsilon, s, v, p):
    """Return (s, v, p): s = alpha s + share g^2, v = mu v + g / (sqrt(s) + epsilon), then p - lr v."""
    s = alpha * s + share * g * g
    v = mu * v + g / (math.sqrt(s) + epsilon)
    return s, v, p - lr * v


@cpu_kernel
def rmsprop_cpu(rows, grad, lr, alpha, mu, epsilon, square, velocity, param):
    """`square, velocity, param = rmsprop_step(...)` at the listed rows.  No bounds are checked."""
    number = param.dtype.type
    share = number(1 - alpha)
    lr, alpha, mu, epsilon = number(lr), number(alpha), number(mu), number(epsilon)
    for k in range(grad.shape[0]):
        row = rows[k]
        for j in range(grad.shape[1]):
            s, v, p = rmsprop_step(
                grad[k, j], lr, alpha, share, mu, epsilon, square[row, j], velocity[row, j], param[row, j]
            )
            square[row, j], velocity[row, j], param[row, j] = s, v, p


@cuda_kernel
def rmsprop_cuda(rows, grad, lr, alpha, share, mu, epsilon, square, velocity, param):
    """Twin of `rmsprop_cpu`, but for the share, 1 - alpha, which comes typed; one thread per element of `grad`."""
    i = cuda.grid(1)
    if i < grad.size:
        k, j = i // grad.shape[1], i % grad.shape[1]
        row = rows[k]
        s, v, p = rmsprop_step(
            grad[k, j], lr, alpha, share, mu, epsilon, square[row, j], velocity[row, j], param[row, j]
        )
        square[row, j], velocity[row, j], param[row, j] = s, v, p


def rmsprop(rows, grad, lr, alpha, mu, epsilon, square, velocity, param):
    """Update in place, at the listed rows: v = mu v + g / (sqrt(s) + epsilon), p -= lr v.

    s = alpha s + (1 - alpha) g^2 before.  No bounds are checked.

    Parameters
    ----------
    rows : (n,) int64, `0 <= rows < height`, each at most once: merge before
    grad : (n, features) C-contiguous, float32 or float64
    lr, alpha, mu, epsilon : float
        Learning rate; decay of the squares; momentum; what keeps the quotient finite.
    square, velocity, param : (height, features) C-contiguous, the data type of `grad`; changed

    Examples
    --------
    >>> import numpy as np
    >>> s, v, param = np.zeros((2, 1)), np.zeros((2, 1)), np.ones((2, 1))
    >>> rmsprop(np.array([1]), np.array([[2.0]]), 0.5, 0.75, 0.5, 0.0, s, v, param)
    >>> s.ravel(), v.ravel(), param.ravel()
    (array([0., 1.]), array([0., 2.]), array([1., 0.]))

    Source: Tieleman and Hinton (2012), in the form of `torch.optim.RMSprop`.
    """
    if on_device(param):
        scalars = _typed(param, lr, alpha, 1 - alpha, mu, epsilon)
        launch(rmsprop_cuda, grad.size, beside(rows, param), grad, *scalars, square, velocity, param)
    else:
        rmsprop_cpu(rows, grad, lr, alpha, mu, epsilon, square, velocity, param)


@body
def adadelta_step(g, lr, rho, share, epsilon, s, a, p):
    """Return (s, a, p): s = rho s + share g^2, d = g sqrt(a + e) / sqrt(s + e), a = rho a + share d^2, p - lr d."""
    s = rho * s + share * g * g
    d = math.sqrt(a + epsilon) / math.sqrt(s + epsilon) * g
    return s, rho * a + share * d * d, p - lr * d


@cpu_kernel
def adadelta_cpu(rows, grad, lr, rho, epsilon, square, delta, param):
    """`square, delta, param = adadelta_step(...)` at the listed rows.  No bounds are checked."""
    number = param.dtype.type
    share = number(1 - rho)
    lr, rho, epsilon = number(lr), number(rho), number(epsilon)
    for k in range(grad.shape[0]):
        row = rows[k]
        for j in range(grad.shape[1]):
            s, a, p = adadelta_step(grad[k, j], lr, rho, share, epsilon, square[row, j], delta[row, j], param[row, j])
            square[row, j], delta[row, j], param[row, j] = s, a, p


@cuda_kernel
def adadelta_cuda(rows, grad, lr, rho, share, epsilon, square, delta, param):
    """Twin of `adadelta_cpu`, but for the share, 1 - rho, which comes typed; one thread per element of `grad`."""
    i = cuda.grid(1)
    if i < grad.size:
        k, j = i // grad.shape[1], i % grad.shape[1]
        row = rows[k]
        s, a, p = adadelta_step(grad[k, j], lr, rho, share, epsilon, square[row, j], delta[row, j], param[row, j])
        square[row, j], delta[row, j], param[row, j] = s, a, p


def adadelta(rows, grad, lr, rho, epsilon, square, delta, param):
    """Update in place, at the listed rows: d = g sqrt(a + epsilon) / sqrt(s + epsilon), p -= lr d.

    s = rho s + (1 - rho) g^2 before, and a = rho a + (1 - rho) d^2 after.  No bounds are checked.

    Parameters
    ----------
    rows : (n,) int64, `0 <= rows < height`, each at most once: merge before
    grad : (n, features) C-contiguous, float32 or float64
    lr, rho, epsilon : float
        Learning rate; decay of the squares; what keeps the quotient finite, more than 0.
    square, delta, param : (height, features) C-contiguous, the data type of `grad`; changed

    Examples
    --------
    >>> import numpy as np
    >>> s, a, param = np.zeros((2, 1)), np.ones((2, 1)), np.ones((2, 1))
    >>> adadelta(np.array([1]), np.array([[2.0]]), 0.5, 0.75, 0.0, s, a, param)
    >>> s.ravel(), a.ravel(), param.ravel()
    (array([0., 1.]), array([1.  , 1.75]), array([1., 0.]))

    Source: Zeiler (2012), in the form of `torch.optim.Adadelta`.
    """
    if on_device(param):
        scalars = _typed(param, lr, rho, 1 - rho, epsilon)
        launch(adadelta_cuda, grad.size, beside(rows, param), grad, *scalars, square, delta, param)
    else:
        adadelta_cpu(rows, grad, lr, rho, epsilon, square, delta, param)
