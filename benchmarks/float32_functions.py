"""How accurate and how fast functions of float32 are, beside the same formulas by NumPy and SciPy.

    python -m benchmarks.float32_functions            # print the table
    python -m benchmarks.float32_functions --write    # write it to results/float32_functions.txt

Errors are in units in the last place, against the formula in float64, over 2 million numbers of all magnitudes.
"""

import itertools
import time
from pathlib import Path

import numpy as np
from scipy import special

from benchmarks.machine import publish_as_asked
from varlen_rnn.kernels import arithmetic
from varlen_rnn.ops import activations, losses

FILE = Path(__file__).parent / "results" / "float32_functions.txt"
ROUNDS, SIZES = 15, {10: 3000, 1000: 1000, 1_000_000: 2}
STEEPNESS, CUBIC = np.sqrt(2 / np.pi).item(), 0.044715


def softplus(x):
    return np.where(x > 20, x, np.logaddexp(x, 0, dtype=x.dtype))


def silu_grad(x, d):
    gate = special.expit(x)
    return d * (gate + x * gate * (1 - gate))


def gelu_grad(x, d):
    near = np.clip(x, -40, 40)
    return d * (special.ndtr(near) + near * (np.exp(-0.5 * (near * near)) * (1 / np.sqrt(2 * np.pi)).item()))


def nearly_normal(x):
    return special.expit(2 * STEEPNESS * (x + CUBIC * (x * x * x)))


def tanh_gelu_grad(x, d):
    near = np.clip(x, -40, 40)
    p = nearly_normal(near)
    return d * (p + near * (2 * p * (1 - p) * (STEEPNESS * (1 + 3 * CUBIC * (near * near)))))


def focal_grad(x, d):
    wrong = -np.expm1(-x)
    return d * (wrong * wrong + 2 * wrong * np.exp(-x) * x)


def operator(made, *numbers):
    """Return the function of arrays of an operator, and its gradient given the operand and the gradient alone."""
    return lambda x: made.compute(x, *numbers), lambda x, d: made.gradient(x, made.compute(x, *numbers), d, *numbers)


SOFTPLUS, SOFTPLUS_GRAD = operator(activations.softplus, 1.0, 20.0)
SILU, SILU_GRAD = operator(activations.silu)
ELU, ELU_GRAD = operator(activations.elu, 1.0)
# Ours, the formula, and the smallest and the largest number that it is tried with.
FUNCTIONS = {
    "exp": (arithmetic.exp, np.exp, -103, 88.7),
    "log": (arithmetic.log, np.log, 0, 3e38),
    "tanh": (arithmetic.tanh, np.tanh, -3e38, 3e38),
    "sigmoid": (arithmetic.sigmoid, special.expit, -87, 3e38),
    "expm1": (arithmetic.expm1, np.expm1, -3e38, 88.7),
    "log1p": (arithmetic.log1p, np.log1p, -1, 3e38),
    "softplus": (SOFTPLUS, softplus, -87, 3e38),
    "silu": (SILU, lambda x: x * special.expit(x), -80, 3e38),
    "elu": (ELU, lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))), -3e38, 3e38),
    "gelu": (activations.exact_gelu, lambda x: x * special.ndtr(np.clip(x, -40, 40)), -12, 3e38),
    "gelu, tanh": (activations.tanh_gelu, lambda x: x * nearly_normal(np.clip(x, -40, 40)), -8, 3e38),
    "focal, 2": (lambda x: losses.focal_loss(x, 2.0), lambda x: (-np.expm1(-x)) ** 2 * x, 1e-12, 3e38),
    "binary cross entropy of 0": (
        lambda x: losses.logistic_loss(x, 0 * x),
        lambda x: np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0) - x * 0,
        -87,
        3e38,
    ),
}
GRADIENTS = {
    "softplus": (SOFTPLUS_GRAD, lambda x, d: np.where(x > 20, d, d * -np.expm1(-softplus(x))), -87, 3e38),
    "silu": (SILU_GRAD, silu_grad, 0, 80),
    "elu": (ELU_GRAD, lambda x, d: np.where(x > 0, d, d * np.exp(np.minimum(x, 0))), -87, 3e38),
    "gelu": (activations.exact_gelu_grad, gelu_grad, 0, 3e38),
    "gelu, tanh": (activations.tanh_gelu_grad, tanh_gelu_grad, 0, 3e38),
    "focal, 2": (lambda x, d: losses.focal_loss_grad(x, d, 2.0), focal_grad, 1e-12, 80),
}


def numbers(low, high):
    """Return numbers of all magnitudes between two bounds."""
    x = np.arange(0, np.float32(np.inf).view(np.int32), 1999, dtype=np.int32).view(np.float32)
    x = np.concatenate([x, -x])
    return x[(x > low) & (x < high)]


def errors(function, formula, low, high, gradient):
    """Return the largest errors of our function and of the formula in float32."""
    x = numbers(low, high)
    operands = (x, np.ones_like(x)) if gradient else (x,)
    with np.errstate(all="ignore"):
        exact = formula(*(operand.astype(np.float64) for operand in operands))
        unit = np.spacing(np.abs(exact.astype(np.float32))).astype(np.float64)
        usual = np.isfinite(unit) & (np.abs(exact) > np.finfo(np.float32).tiny)
        return [np.max((np.abs(each(*operands) - exact) / unit)[usual]) for each in (function, formula)]


def times(function, formula, gradient, size):
    """Return the least times of a call of our function and of the formula, in microseconds, taken in turns."""
    x = np.abs(np.random.default_rng(0).standard_normal(size)).astype(np.float32)
    operands = (x, np.ones_like(x)) if gradient else (x,)
    least = [np.inf, np.inf]
    for _, (place, each) in itertools.product(range(ROUNDS), enumerate((function, formula))):
        began = time.perf_counter()
        for _ in range(SIZES[size]):
            each(*operands)
        least[place] = min(least[place], (time.perf_counter() - began) / SIZES[size] * 1e6)
    return least


def lines():
    """Yield the lines of the table."""
    yield "Ours / NumPy's or SciPy's: largest error in units, then microseconds a call; our gradients compute y, too."
    yield f"{'':34}{'error':>16}" + "".join(f"{f'{size:,} elements':>22}" for size in SIZES)
    for table, gradient in ((FUNCTIONS, False), (GRADIENTS, True)):
        for name, (function, formula, low, high) in table.items():
            ours, theirs = errors(function, formula, low, high, gradient)
            spent = [times(function, formula, gradient, size) for size in SIZES]
            row = f"{name + ', gradient' * gradient:34}{f'{ours:.2f} / {theirs:.2f}':>16}"
            yield row + "".join(f"{f'{mine:.2f} / {others:.2f}':>22}" for mine, others in spent)


if __name__ == "__main__":
    publish_as_asked(lines(), FILE, __doc__)
