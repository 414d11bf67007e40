"""Errors of products whose float32 factors are sums of bfloat16 parts, simulated with NumPy against float64.

    python -m benchmarks.split_products            # print the lines
    python -m benchmarks.split_products --write    # write them to results/split_products.txt

For example, 1.001 is 1 + 0.00099945 + 6.0e-07 in three parts of 8 bits each.  Three products of two parts leave out the
product of both low parts.  Six products of three parts leave out products below 2^-24 of the largest.  Sums are in the
order of AMX: for 32 of k an even and an odd chain in float32, whose sum is added to the result.  Small products are
added first.
"""

from pathlib import Path

import numpy as np

from benchmarks.machine import publish_as_asked

FILE = Path(__file__).parent / "results" / "split_products.txt"
DEPTHS, SIZE, SEEDS = (32, 64, 256, 512, 2048), 64, 3
PRODUCTS = {  # the parts of both factors that are multiplied, in the order of addition
    "one product": [(0, 0)],
    "three": [(1, 0), (0, 1), (0, 0)],
    "six": [(2, 0), (1, 1), (0, 2), (1, 0), (0, 1), (0, 0)],
}


def rounded(x):
    """Return float32 numbers rounded to bfloat16, to nearest even.

    Examples
    --------
    >>> rounded(np.float32([1.001, 1.00390625, 1.01171875]))
    array([1.      , 1.      , 1.015625], dtype=float32)
    """
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def parts_of(x, count):
    """Return the parts of float32 numbers, the largest first."""
    parts = []
    for _ in range(count):
        parts.append(rounded(x))
        x = x - parts[-1]
    return parts


def by_parts(a, b, products):
    """Return `a @ b` as a sum of products of bfloat16 parts."""
    count, sums = 1 + max(map(max, products)), np.zeros((len(a), b.shape[1]), np.float32)
    a_parts, b_parts = parts_of(a, count), parts_of(b, count)
    for i, j in products:
        for begin in range(0, len(b), 32):
            chains = [np.zeros_like(sums), np.zeros_like(sums)]
            for k in range(begin, min(begin + 32, len(b))):
                chains[k % 2] += a_parts[i][:, k : k + 1] * b_parts[j][k]  # exact in float32
            sums += chains[0] + chains[1]
    return sums


def by_tile(a, b):
    """Return `a @ b` as the float32 tile adds it: chains of fused multiply-adds, a new one every 512 k."""
    sums = np.zeros((len(a), b.shape[1]), np.float32)
    for begin in range(0, len(b), 512):
        chain = np.zeros_like(sums)
        for k in range(begin, min(begin + 512, len(b))):
            chain = (chain + a[:, k : k + 1].astype(np.float64) * b[k]).astype(np.float32)
        sums += chain
    return sums


def errors(depth, seed):
    """Return the error of each way to multiply, relative to the norm of the product in float64."""
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((SIZE, depth)).astype(np.float32)
    b = (rng.uniform(-1, 1, (depth, SIZE)) / np.sqrt(depth)).astype(np.float32)
    exact = a.astype(np.float64) @ b
    found = {"float32": by_tile(a, b)} | {name: by_parts(a, b, products) for name, products in PRODUCTS.items()}
    return {name: np.linalg.norm(value - exact) / np.linalg.norm(exact) for name, value in found.items()}


def lines():
    """Yield the lines of the result."""
    yield f"normal numbers ({SIZE}, k) by uniform ones (k, {SIZE}); errors relative to the norm, means of {SEEDS} seeds"
    for depth in DEPTHS:
        found = [errors(depth, seed) for seed in range(SEEDS)]
        mean = {name: np.mean([its[name] for its in found]) for name in found[0]}
        each = ", ".join(f"{name} {error:.1e} ({error / mean['float32']:.2g})" for name, error in mean.items())
        yield f"k = {depth}: {each}"


if __name__ == "__main__":
    publish_as_asked(lines(), FILE, __doc__)
