"""The softmax of rows of scores, block by block.  It is compiled separately, so that its loops are vectorised."""

from typing import Any, NamedTuple

import numpy as np
from numba import types

from varlen_rnn.attention.blocks import KEYS, Block, Window, in_panels
from varlen_rnn.kernels.activations import exp
from varlen_rnn.products.vectors import largest_of, least, offset, sum_of, vectorise_widely
from varlen_rnn.runtime.jit import called_by_address, cpu_inlined


class Running(NamedTuple):
    """For each query: its largest score so far, the sum of its weights exp(score - largest), and its weighted values.

    `sums` holds the sums of weighted values, in rows that are `padded` elements apart.
    """

    maxima: Any
    totals: Any
    sums: Any
    padded: int


class Sums(NamedTuple):
    """For each query: its largest score, 1 / sum of exp(score - largest), and the dot product out . d_out."""

    maxima: Any
    parts: Any
    dots: Any


@cpu_inlined
def seen(window, query, block):
    """Return the range (first, end) of the keys that a query sees, counted within the block."""
    first = query - window.left - block.key
    first = 0 if first < 0 else first
    end = least(block.num_keys, query + window.right - block.key + 1)
    return least(first, block.num_keys), end if end > first else least(first, block.num_keys)


@cpu_inlined
def scale_and_hide(scores, count, scale, first, end):
    """Scale a row of `count` scores; set the scores of keys that the query does not see to -infinity."""
    kind = type(scale)
    for j in range(count):
        scores[j] *= scale
    for j in range(first):
        scores[j] = -kind(np.inf)
    for j in range(end, count):
        scores[j] = -kind(np.inf)


def _arguments(scalar):
    number, address = types.intp, types.CPointer(scalar)
    block, window = types.NamedTuple((number,) * 4, Block), types.NamedTuple((number,) * 2, Window)
    return address, block, window, types.NamedTuple((address, address, address, number), Running), scalar


def _arguments_of_gradient(scalar):
    number, address = types.intp, types.CPointer(scalar)
    block, window = types.NamedTuple((number,) * 4, Block), types.NamedTuple((number,) * 2, Window)
    return address, address, block, window, types.NamedTuple((address,) * 3, Sums), scalar


@called_by_address(_arguments)
def weigh(scores, block, window, running, scale):
    """Replace the scores of a block by weights, and scale the sums of earlier blocks to the new largest scores."""
    vectorise_widely()
    kind, count = type(scale), in_panels(scores, block.num_keys)
    for r in range(block.num_queries):
        row = offset(scores, r * KEYS)
        first, end = seen(window, block.query + r, block)
        scale_and_hide(row, count, scale, first, end)
        before = running.maxima[r]
        now = largest_of(row, count)
        now = now if now > before else before
        less = kind(0) if now == -kind(np.inf) else now
        for j in range(count):
            row[j] = exp(row[j] - less)
        if now > before:
            shrink, sums = exp(before - less), offset(running.sums, r * running.padded)
            for j in range(running.padded):
                sums[j] *= shrink
            running.totals[r] *= shrink
        running.totals[r] += sum_of(row, count)
        running.maxima[r] = now


@called_by_address(_arguments_of_gradient)
def differentiate(scores, d_weights, block, window, sums, scale):
    """Replace the scores of a block by weights, and the gradients of weights by the gradients of scores.

    `scale_and_hide` is the function of the forward pass, too, so that both passes get the same bits.  At a score of
    1e8, one rounding less would change a weight by a factor of 50.
    """
    vectorise_widely()
    count = in_panels(scores, block.num_keys)
    for r in range(block.num_queries):
        weights, d = offset(scores, r * KEYS), offset(d_weights, r * KEYS)
        first, end = seen(window, block.query + r, block)
        scale_and_hide(weights, count, scale, first, end)
        less, part, dot = sums.maxima[r], sums.parts[r], sums.dots[r]
        for j in range(count):
            weights[j] = exp(weights[j] - less) * part
        for j in range(count):
            d[j] = weights[j] * (d[j] - dot) * scale
