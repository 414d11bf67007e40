"""Scores of the rows of a chunk: products of their queries or keys, times the decay between two rows.

The decay from row j to row i, D[i, j] = e^(g_{j+1} + ... + g_i), follows from the row above by one product,
D[i] = e^g_i D[i - 1], with D[i, i] = 1.  An exponential of a difference of sums would overflow above the diagonal.  The
decay from the chunk's begin to row i, e_i, is the exponential of a sum in float64: a product of many float32 near 1 is
biased, and through the state its error would grow with the length of the sequence.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import types

from varlen_rnn.kernels.activations import exp
from varlen_rnn.linear_attention.blocks import CHUNK
from varlen_rnn.products.vectors import offset, vectorise_widely
from varlen_rnn.runtime.jit import called_by_address


class Scores(NamedTuple):
    """The scores of a chunk, (CHUNK, CHUNK) each, and decays; `decay` and `stride` as in `Steps`."""

    of_queries: Any  # Q K^T; becomes scale D (Q K^T) up to the diagonal, and 0 behind it
    of_keys: Any  # K K^T; becomes -D (K K^T) before the diagonal, and 0 from it on; unused without `delta`
    between: Any  # becomes D
    since: Any  # (CHUNK,), becomes the decay e_i from the chunk's begin to row i
    decay: Any
    stride: int
    rows: int
    delta: bool


def _arguments(scalar):
    number, address = types.intp, types.CPointer(scalar)
    return types.NamedTuple((*[address] * 5, number, number, types.boolean), Scores), scalar, scalar


@called_by_address(_arguments)
def decay_scores(it, scale, tiny):
    """Multiply the scores of a chunk by decays; decays below `tiny` count as 0, because subnormal numbers are slow."""
    vectorise_widely()
    kind, total = type(scale), 0.0
    for i in range(it.rows):
        step = kind(exp(it.decay[i * it.stride]))
        total += np.float64(it.decay[i * it.stride])
        since = kind(exp(total))
        it.since[i] = kind(0) if since < tiny else since
        row, above = offset(it.between, i * CHUNK), offset(it.between, (i - 1 if i else 0) * CHUNK)
        for j in range(CHUNK):
            value = above[j] * step if j < i else kind(0)
            row[j] = kind(0) if value < tiny else value
        row[i] = kind(1)
        scores = offset(it.of_queries, i * CHUNK)
        for j in range(CHUNK):
            value = scores[j] * (scale * row[j])
            scores[j] = value if j <= i else kind(0)
        if it.delta:
            scores = offset(it.of_keys, i * CHUNK)
            for j in range(CHUNK):
                value = -scores[j] * row[j]
                scores[j] = value if j < i else kind(0)
