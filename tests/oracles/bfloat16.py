"""Products of bfloat16 with sums in float32, as two instructions of Intel compute them; numbers are float32 throughout.

Example: 1 + 2^-9 rounds to 1, since bfloat16 has 8 bits; 1 + 3 * 2^-9 rounds to 1 + 2^-6.

Sums are computed in float64 and then rounded to float32.  This rounds like one rounding, because the terms of a sum
have at most 24 bits: a sum near the middle of two float32 is then exact in float64.
"""

import numpy as np

_LEAST = 2.0**-126  # the smallest number that is not denormal
_AMX_DEPTH = 32  # the values of k that one AMX instruction sums


def without_denormals(x):
    """Replace denormal float32 by a zero of their sign."""
    return np.where(np.abs(x) < _LEAST, np.copysign(np.float32(0), x), x).astype(np.float32)


def rounded(x):
    """Round float32 to the nearest bfloat16, ties to even; denormals become zeros, and large numbers infinite."""
    x = without_denormals(np.asarray(x, np.float32))
    mantissa, exponent = np.frexp(x.astype(np.float64))
    with np.errstate(over="ignore"):
        return np.where(np.isfinite(x), np.ldexp(np.rint(mantissa * 256) / 256, exponent), x).astype(np.float32)


def _add(x, y):
    """Add float64 terms: round to 24 bits, then replace what is below 2^-126 by a zero of its sign."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.asarray(x, np.float64) + y
        is_tiny = np.abs(total) < _LEAST - 2.0**-151  # otherwise it rounds to 2^-126 or more
        return np.where(is_tiny, np.copysign(0, total), total).astype(np.float32)


def _operands(a, b, multiple):
    """Return rounded `a` and `b` as float64, with zeros to a multiple of `multiple` values of k."""
    more = -a.shape[1] % multiple
    return (
        np.pad(rounded(a).astype(np.float64), ((0, 0), (0, more))),
        np.pad(rounded(b).astype(np.float64), ((0, more), (0, 0))),
    )


def _products(a, b, k):
    with np.errstate(invalid="ignore"):
        return a[:, k, None] * b[k]  # exact: 16 bits


def avx512_product(a, b, start):
    """Return `start + a @ b` as `vdpbf16ps` does: for each pair of k, add the product of the odd k, then the even's."""
    if not a.shape[1]:
        return start
    (a, b), total = _operands(a, b, 2), without_denormals(start)
    for k in range(0, a.shape[1], 2):
        total = _add(_add(total, _products(a, b, k + 1)), _products(a, b, k))
    return total


def amx_product(a, b, start):
    """Return `start + a @ b` as `tdpbf16ps` does: per 32 values of k, add a sum over even k plus one over odd k."""
    if not a.shape[1]:
        return start
    (a, b), total = _operands(a, b, _AMX_DEPTH), without_denormals(start)
    for first in range(0, a.shape[1], _AMX_DEPTH):
        even, odd = np.zeros_like(total), np.zeros_like(total)
        for k in range(first, first + _AMX_DEPTH, 2):
            even, odd = _add(even, _products(a, b, k)), _add(odd, _products(a, b, k + 1))
        total = _add(total, _add(even, odd))
    return total


def row_product(a, b, product, block=128):
    """Return `a.T @ b`; each block of rows is a product that starts from zero, and float32 adds these products."""
    total = np.zeros((a.shape[1], b.shape[1]), np.float32)
    for k in range(0, len(a), block):
        with np.errstate(over="ignore", invalid="ignore"):
            total = total + product(a[k : k + block].T, b[k : k + block], np.zeros_like(total))
    return total
