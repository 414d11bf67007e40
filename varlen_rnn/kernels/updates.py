"""Updates of optimizers, in place, on listed rows of a parameter.

A sparse update lists the rows of a merged `SelectedRows`, in which no row repeats.  A dense update is the same kernel
on views of one row, `(1, size)`, with `rows = [0]`.  CPU loops leave out a row whose number is -1.  Numbers take the
data type of the parameter, so float32 stays float32.  Kernels trust their indices, and check no bounds: see
`varlen_rnn.kernels`.

An update is written as its step, which is the equation of one element, and the declaration of its kernel, which
documents the arrays.  From both, `update` makes the CPU loop and the CUDA kernel, and `varlen_rnn.ops.updates` makes
the operator.

Sources: the formulas of Fluid's operators `sgd`, `momentum`, `adagrad` and `adam`, whose epsilon is added outside of
the root and, in `adam`, is not scaled by the bias correction.
"""

import inspect
import math
from typing import Any, NamedTuple

from numba import types
from numba.extending import overload

from varlen_rnn.kernels.functions import power
from varlen_rnn.kernels.twins import launch_beside, twins
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.jit import body, cpu_kernel, cuda_kernel


class Update(NamedTuple):
    """An update, as `update` declares it.

    kernel: the front (see `kernels.twins`), `kernel(rows, grad, lr, *constants, *states, param)`
    states: the names of the arrays that it changes besides the parameter
    constants: the numbers besides the learning rate, with example values
    fractions: the constants `x` that must be less than 1, because the step also takes `share_of_x`, 1 - x
    rows: the rows that a sparse gradient changes: "all", "listed" or "repeated", as in `update`
    """

    kernel: Any
    states: tuple[str, ...]
    constants: dict[str, float]
    fractions: tuple[str, ...]
    rows: str


UPDATES: dict[str, Update] = {}
_SHARE = "share_of_"
_MOST_STEPS = 2**63 - 1
_LOOPS = '''
def {name}_cpu(rows, grad, {numbers}, {arrays}):
    """Compute `{arrays} = {step}(...)` at the listed rows."""
    number = param.dtype.type
    {shares}
    {values}
    for k in range(grad.shape[0]):
        row = rows[k]
        for j in range(grad.shape[1] if row >= 0 else 0):
            {elements}, = {step}(grad[k, j], {operands}, {elements})


def {name}_cuda(rows, grad, {operands}, {arrays}):
    """Twin of `{name}_cpu`, with the shares of numbers as arguments; one thread per {thread} of `grad`."""
    i, count, number = cuda.grid(1), {count}, param.dtype.type
    {typed}
    if i * count < grad.size:
        first, j = i // grad.shape[1], i % grad.shape[1]
        for k in range(first, first + count):
            row = rows[k]
            {elements}, = {step}(grad[k, j], {operands}, {elements})
'''


def value_of(number):
    """Return a number, or the first of an array; compiled code calls it."""


@overload(value_of)
def _value_of(number):
    return (lambda number: number[0]) if isinstance(number, types.Array) else (lambda number: number)


def update(step, rows="all", **constants):
    """Return a decorator that makes the kernel of an update: a CPU loop, its CUDA twin and their front.

    step: a `body` that returns the new states and the new parameter of one element.  Its arguments are the gradient,
        the numbers, the states and the parameter, in this order.  For a number `x`, an argument `share_of_x` is 1 - x,
        computed in float64: in float32, 1 - 0.99999999 is 0, and 1 - 0.999 is off by 1e-5.
    rows: the rows that a sparse gradient changes: "all" rows; the "listed" rows, each once; or "repeated", the listed
        rows as often as they are listed, one after another
    constants: the numbers besides the learning rate, in the order of the kernel's parameters, with example values

    The decorator takes a function `kernel(rows, grad, lr, *constants, *states, param)` that only documents the kernel.
    """

    def declare(documented):
        names = list(inspect.signature(documented).parameters)
        numbers, arrays = names[2 : 3 + len(constants)], names[3 + len(constants) :]
        operands = list(inspect.signature(step).parameters)[1 : -len(arrays)]
        typed = [name for name in operands if not isinstance(constants.get(name), bool)]
        is_per_column = rows == "repeated"  # with one thread per column, repeated rows need no atomics
        cpu, twin = _loops(documented, step, numbers, arrays, operands, typed, is_per_column)

        def on_device(listed, grad, *given):
            number, values = given[-1].dtype.type, dict(zip(numbers, given, strict=False))
            values |= {_SHARE + name: 1 - value for name, value in values.items()}
            scalars = [number(values[name]) if name in typed else values[name] for name in operands]
            num_threads = grad.shape[1] if is_per_column else grad.size
            launch_beside(twin, num_threads, listed, grad, *scalars, *given[len(numbers) :])

        front = twins(cpu, on_device, size=None)(documented)
        front.cuda = twin
        fractions = tuple(name for name in constants if _SHARE + name in operands)
        UPDATES[documented.__name__] = Update(front, tuple(arrays[:-1]), constants, fractions, rows)
        return front

    return declare


def _loops(documented, step, numbers, arrays, operands, typed, is_per_column):
    """Return the CPU loop and the CUDA twin of an update, made from source text because each has other arguments."""
    shares = [name for name in operands if name.startswith(_SHARE)]
    text = _LOOPS.format(
        name=documented.__name__,
        step=step.__name__,
        numbers=", ".join(numbers),
        arrays=", ".join(arrays),
        operands=", ".join(operands),
        elements=", ".join(f"{name}[row, j]" for name in arrays),
        shares="; ".join(f"{name} = number(1 - {name.removeprefix(_SHARE)})" for name in shares),
        typed="; ".join(f"{name} = number({name})" for name in typed),
        values="; ".join(f"{name} = number(value_of({name}))" for name in typed),
        thread="column" if is_per_column else "element",
        count="grad.shape[0]" if is_per_column else "1",
    )
    space = {"cuda": cuda, "value_of": value_of, step.__name__: step, "__name__": documented.__module__}
    exec(compile(text, f"<update {documented.__name__}>", "exec"), space)
    return cpu_kernel(space[f"{documented.__name__}_cpu"]), cuda_kernel(space[f"{documented.__name__}_cuda"])


@body
def sgd_step(g, lr, p):
    """Return (p,) = p - lr g."""
    return (p - lr * g,)


@update(sgd_step, rows="repeated")
def sgd(rows, grad, lr, param):
    """Update by `p -= lr g`.

    Compute `param[rows[k]] -= lr * grad[k]` in place, one k after another, so rows can repeat.

    Parameters
    ----------
    rows : (n,) int64, `0 <= rows < height`
    grad : (n, features) C-contiguous, float32 or float64
    lr : float
        Learning rate.
    param : (height, features) C-contiguous, the data type of `grad`; changed

    Examples
    --------
    >>> param = np.ones((2, 1)); sgd(np.array([1, 1]), np.array([[1.0], [3.0]]), 0.25, param); param.ravel()
    array([1., 0.])
    """


@body
def momentum_step(g, lr, momentum, nesterov, v, p):
    """Return (v, p): v = momentum v + g, then p - lr v, or p - lr (g + momentum v) when `nesterov`."""
    v = momentum * v + g
    return v, p - lr * (g + momentum * v if nesterov else v)


@update(momentum_step, momentum=0.9, nesterov=True)
def momentum(rows, grad, lr, momentum, nesterov, velocity, param):
    """Update by `v = momentum v + g; p -= lr v`, or with Nesterov's `p -= lr (g + momentum v)`.

    The arrays change in place, at the listed rows.

    Parameters
    ----------
    rows : (n,) int64, `0 <= rows < height`, each at most once; merge repeated rows first
    grad : (n, features) C-contiguous, float32 or float64
    lr, momentum : float
        The learning rate, and the factor of the old velocity.
    nesterov : bool
    velocity, param : (height, features) C-contiguous, the data type of `grad`; changed

    Examples
    --------
    >>> velocity, param = np.ones((2, 1)), np.ones((2, 1))
    >>> momentum(np.array([1]), np.array([[1.0]]), 0.5, 0.5, False, velocity, param); velocity.ravel(), param.ravel()
    (array([1. , 1.5]), array([1.  , 0.25]))
    """


@body
def adagrad_step(g, lr, epsilon, m, p):
    """Return (m, p): m = m + g^2, then p - lr g / (sqrt(m) + epsilon)."""
    m = m + g * g
    return m, p - lr * g / (math.sqrt(m) + epsilon)


@update(adagrad_step, rows="listed", epsilon=1e-6)
def adagrad(rows, grad, lr, epsilon, moment, param):
    """Update by `m += g^2; p -= lr g / (sqrt(m) + epsilon)`.

    The arrays change in place, at the listed rows.

    Parameters
    ----------
    rows : (n,) int64, `0 <= rows < height`, each at most once; merge repeated rows first
    grad : (n, features) C-contiguous, float32 or float64
    lr, epsilon : float
        The learning rate, and a small number that keeps the quotient finite.
    moment, param : (height, features) C-contiguous, the data type of `grad`; changed

    Examples
    --------
    >>> moment, param = np.zeros((2, 1)), np.ones((2, 1))
    >>> adagrad(np.array([1]), np.array([[2.0]]), 0.5, 0.0, moment, param); moment.ravel(), param.ravel()
    (array([0., 4.]), array([1. , 0.5]))

    Source: Duchi, Hazan and Singer (2011).
    """


@body
def adam_step(g, lr, beta1, share_of_beta1, beta2, share_of_beta2, epsilon, m1, m2, p):
    """Return (m1, m2, p): m1 = beta1 m1 + (1 - beta1) g, m2 = beta2 m2 + (1 - beta2) g^2, p as in `adam`."""
    m1 = beta1 * m1 + share_of_beta1 * g
    m2 = beta2 * m2 + share_of_beta2 * g * g
    return m1, m2, p - lr * m1 / (math.sqrt(m2) + epsilon)


@update(adam_step, beta1=0.9, beta2=0.99, epsilon=1e-8)
def adam(rows, grad, lr, beta1, beta2, epsilon, moment1, moment2, param):
    """Update by `m1 = beta1 m1 + (1 - beta1) g; m2 = beta2 m2 + (1 - beta2) g^2; p -= lr m1 / (sqrt(m2) + epsilon)`.

    The arrays change in place, at the listed rows.

    Parameters
    ----------
    rows : (n,) int64, `0 <= rows < height`, each at most once; merge repeated rows first
    grad : (n, features) C-contiguous, float32 or float64
    lr : float
        The learning rate of step t, already corrected for bias: lr sqrt(1 - beta2^t) / (1 - beta1^t).
    beta1, beta2, epsilon : float
        The decays of both moments, in float64 even if `grad` is float32; a number that keeps the quotient finite.
    moment1, moment2, param : (height, features) C-contiguous, the data type of `grad`; changed

    Examples
    --------
    >>> m1, m2, param = np.zeros((2, 1)), np.zeros((2, 1)), np.ones((2, 1))
    >>> adam(np.array([1]), np.array([[2.0]]), 0.5, 0.5, 0.75, 0.0, m1, m2, param)
    >>> m1.ravel(), m2.ravel(), param.ravel()
    (array([0., 1.]), array([0., 1.]), array([1. , 0.5]))

    Source: Kingma and Ba (2015), in the order of operations of its section 2's last paragraph.
    """


@body
def rmsprop_step(g, lr, alpha, share_of_alpha, momentum, epsilon, s, v, p):
    """Return (s, v, p): s = alpha s + (1 - alpha) g^2, v = momentum v + g / (sqrt(s) + epsilon), then p - lr v."""
    s = alpha * s + share_of_alpha * g * g
    v = momentum * v + g / (math.sqrt(s) + epsilon)
    return s, v, p - lr * v


@update(rmsprop_step, alpha=0.9, momentum=0.5, epsilon=1e-8)
def rmsprop(rows, grad, lr, alpha, momentum, epsilon, square, velocity, param):
    """Update by `s = alpha s + (1 - alpha) g^2; v = momentum v + g / (sqrt(s) + epsilon); p -= lr v`.

    The arrays change in place, at the listed rows.

    Parameters
    ----------
    rows : (n,) int64, `0 <= rows < height`, each at most once; merge repeated rows first
    grad : (n, features) C-contiguous, float32 or float64
    lr, alpha, momentum, epsilon : float
        The learning rate, the decay of the squares, the momentum, and a number that keeps the quotient finite.
    square, velocity, param : (height, features) C-contiguous, the data type of `grad`; changed

    Examples
    --------
    >>> s, v, param = np.zeros((2, 1)), np.zeros((2, 1)), np.ones((2, 1))
    >>> rmsprop(np.array([1]), np.array([[2.0]]), 0.5, 0.75, 0.5, 0.0, s, v, param)
    >>> s.ravel(), v.ravel(), param.ravel()
    (array([0., 1.]), array([0., 2.]), array([1., 0.]))

    Source: Tieleman and Hinton (2012), in the form of `torch.optim.RMSprop`.
    """


@body
def adadelta_step(g, lr, rho, share_of_rho, epsilon, s, a, p):
    """Return (s, a, p): s = rho s + (1 - rho) g^2, a = rho a + (1 - rho) d^2 and p - lr d, with d as in `adadelta`."""
    s = rho * s + share_of_rho * g * g
    d = math.sqrt(a + epsilon) / math.sqrt(s + epsilon) * g
    return s, rho * a + share_of_rho * d * d, p - lr * d


@update(adadelta_step, rho=0.9, epsilon=1e-6)
def adadelta(rows, grad, lr, rho, epsilon, square, delta, param):
    """Update by `s = rho s + (1 - rho) g^2; d = g sqrt(a + epsilon) / sqrt(s + epsilon); p -= lr d`.

    Then `a = rho a + (1 - rho) d^2`.  The arrays change in place, at the listed rows.

    Parameters
    ----------
    rows : (n,) int64, `0 <= rows < height`, each at most once; merge repeated rows first
    grad : (n, features) C-contiguous, float32 or float64
    lr, rho, epsilon : float
        The learning rate, the decay of the squares, and a positive number that keeps the quotient finite.
    square, delta, param : (height, features) C-contiguous, the data type of `grad`; changed

    Examples
    --------
    >>> s, a, param = np.zeros((2, 1)), np.ones((2, 1)), np.ones((2, 1))
    >>> adadelta(np.array([1]), np.array([[2.0]]), 0.5, 0.75, 0.0, s, a, param)
    >>> s.ravel(), a.ravel(), param.ravel()
    (array([0., 1.]), array([1.  , 1.75]), array([1., 0.]))

    Source: Zeiler (2012), in the form of `torch.optim.Adadelta`.
    """


@cpu_kernel
def numbers_of_adam(lr, step, beta1, beta2, epsilon, corrected, weight_decay, numbers, found):
    """Count a step of Adam, and compute its numbers in float64, unless too many steps were counted.

    Parameters
    ----------
    lr : (1,) float64
    step : (1,) int64; changed
        The number of steps so far, at least 0 and less than 2**63 - 1.
    beta1, beta2, epsilon : float
    corrected : bool
        Whether epsilon is added to the root after its bias correction.
    weight_decay : float
    numbers : (3,) float64; written
        The learning rate of `adam`, its epsilon, and the share of the weights that a decoupled decay takes.
    found : (1,) int64; written
        -1, or 0 if `step` is wrong.

    Examples
    --------
    >>> step, numbers, found = np.array([0]), np.empty(3), np.empty(1, np.int64)
    >>> numbers_of_adam(np.array([0.5]), step, 0.5, 0.75, 1.0, True, 0.5, numbers, found); step, numbers, found
    (array([1]), array([0.5 , 0.5 , 0.25]), array([-1]))
    """
    found[0] = -1 if 0 <= step[0] < _MOST_STEPS else 0
    if found[0] < 0:
        step[0] += 1
        t = float(step[0])
        # The kernel divides by the root of the second moment without its correction, so multiply the rate and `epsilon`
        # by the correction's root.
        root = math.sqrt(1 - power(beta2, t))
        numbers[0] = lr[0] * root / (1 - power(beta1, t))
        numbers[1] = epsilon * root if corrected else epsilon
        numbers[2] = lr[0] * weight_decay


@cpu_kernel
def shrink_cpu(rows, factor, param):
    """`param[rows[k]] *= factor`, a number or an array of one."""
    factor = param.dtype.type(value_of(factor))
    for k in range(rows.shape[0]):
        row = rows[k]
        for j in range(param.shape[1] if row >= 0 else 0):
            param[row, j] *= factor


@cuda_kernel
def shrink_cuda(rows, factor, param):
    """`param[rows[k]] *= factor`; one thread per column of a listed row."""
    thread, width = cuda.grid(1), param.shape[1]
    if thread < rows.shape[0] * width:
        param[rows[thread // width], thread % width] *= factor


@twins(shrink_cpu, shrink_cuda, lambda rows, factor, param: rows.shape[0] * param.shape[1])
def shrink(rows, factor, param):
    """Multiply the listed rows of a parameter by a factor, in place.

    Parameters
    ----------
    rows : (n,) int64, `0 <= rows < height`, each at most once
    factor : float
    param : (height, features) C-contiguous; changed

    Examples
    --------
    >>> param = np.ones((2, 1)); shrink(np.array([1]), 0.5, param); param.ravel()
    array([1. , 0.5])
    """


# Names with which other compiled code calls the loops, and launches the CUDA kernels directly.
sgd_cpu, sgd_cuda = sgd.cpu, sgd.cuda
momentum_cpu, momentum_cuda = momentum.cpu, momentum.cuda
adagrad_cpu, adagrad_cuda = adagrad.cpu, adagrad.cuda
adam_cpu, adam_cuda = adam.cpu, adam.cuda
rmsprop_cpu, rmsprop_cuda = rmsprop.cpu, rmsprop.cuda
adadelta_cpu, adadelta_cuda = adadelta.cpu, adadelta.cuda
