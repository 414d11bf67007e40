"""Scores of the rows of a chunk: products of their queries or keys, times the decay between two rows.

The decay from row j to row i, D[i, j] = e^(g_{j+1} + ... + g_i), follows from the row above by one product,
D[i] = e^g_i D[i - 1], with D[i, i] = 1.  An exponential of a difference of sums would overflow above the diagonal.  The
decay from the chunk's begin to row i, e_i, is the exponential of a sum in float64: a product of many float32 near 1 is
biased, and through the state its error would grow with the length of the sequence.

The diagonal blocks of a triangle of scores are multiplied by loops here, not by the tile, which computes whole blocks
of rows: 0 times NaN is NaN, so a NaN of a later row would reach the rows before it.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import types

from varlen_rnn.kernels.activations import exp
from varlen_rnn.linear_attention.blocks import CHUNK
from varlen_rnn.products.vectors import offset, vectorise_widely, width_of
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


class Triangle(NamedTuple):
    """A diagonal block of `SOLVED` rows: weights, and rows in panels that are `step` elements apart."""

    weights: Any  # the first weight of the block; rows are `CHUNK` elements apart
    source: Any  # rows that are multiplied
    target: Any  # rows to which the products are added
    factors: Any  # the address of a factor for each row
    stride: int  # elements from factor to factor
    panels: int
    step: int
    rows: int
    adds: bool  # whether weights count; otherwise a solve only multiplies by the factors


def _arguments(scalar):
    number, address = types.intp, types.CPointer(scalar)
    return types.NamedTuple((*[address] * 5, number, number, types.boolean), Scores), scalar, scalar


def _arguments_of_triangle(scalar):
    number, address = types.intp, types.CPointer(scalar)
    return types.NamedTuple((*[address] * 4, *[number] * 4, types.boolean), Triangle), scalar


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


@called_by_address(_arguments_of_triangle)
def add_lower(it, like):
    """Add to each row of the target the rows of the source up to itself, times their weights."""
    vectorise_widely()
    width = width_of(it.source)
    for p in range(it.panels):
        source, target = offset(it.source, p * it.step), offset(it.target, p * it.step)
        for i in range(it.rows):
            row = offset(target, i * width)
            for j in range(i + 1):
                weight, other = it.weights[i * CHUNK + j], offset(source, j * width)
                for x in range(width):
                    row[x] += weight * other[x]


@called_by_address(_arguments_of_triangle)
def solve_lower(it, like):
    """Solve for the rows of a block, in place in the source: add the rows before, then multiply by the row's factor.

    The target gets the rows as they are before they are multiplied.
    """
    vectorise_widely()
    width = width_of(it.source)
    for p in range(it.panels):
        source, target = offset(it.source, p * it.step), offset(it.target, p * it.step)
        for i in range(it.rows):
            row, written, factor = offset(source, i * width), offset(target, i * width), it.factors[i * it.stride]
            for j in range(i):
                weight, other = it.weights[i * CHUNK + j], offset(source, j * width)
                for x in range(width):
                    row[x] += weight * other[x]
            for x in range(width):
                written[x] = row[x]
                row[x] *= factor


@called_by_address(_arguments_of_triangle)
def solve_upper(it, like):
    """As `solve_lower`, from the last row of the block to the first: add the rows behind."""
    vectorise_widely()
    width = width_of(it.source)
    for p in range(it.panels):
        source, target = offset(it.source, p * it.step), offset(it.target, p * it.step)
        for back in range(it.rows):
            i = it.rows - 1 - back
            row, written, factor = offset(source, i * width), offset(target, i * width), it.factors[i * it.stride]
            for j in range(i + 1, it.rows if it.adds else 0):
                weight, other = it.weights[i * CHUNK + j], offset(source, j * width)
                for x in range(width):
                    row[x] += weight * other[x]
            for x in range(width):
                written[x] = row[x]
                row[x] *= factor
