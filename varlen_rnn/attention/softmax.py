"""The softmax of rows of scores, block by block: compiled on its own, so that its loops are vectorised."""

import functools
from typing import Any, NamedTuple

import numpy as np
from numba import from_dtype, types

from varlen_rnn.attention.blocks import KEYS, Block, Window, in_panels
from varlen_rnn.kernels.activations import exp
from varlen_rnn.products.vectors import largest_of, least, offset, sum_of, vectorise_widely
from varlen_rnn.runtime.jit import address_of, caller, cpu_inlined


class Running(NamedTuple):
    """Of each query: the largest score so far, the sum of weights relative to it, and the weighted sums of values."""

    maxima: Any
    totals: Any
    sums: Any
    padded: int


@cpu_inlined
def seen(window, query, block):
    """Return the first key of a block that a query sees, and the end of those."""
    first = query - window.left - block.key
    first = 0 if first < 0 else first
    end = least(block.num_keys, query + window.right - block.key + 1)
    return least(first, block.num_keys), end if end > first else least(first, block.num_keys)


@cpu_inlined
def scale_and_hide(scores, count, scale, first, end):
    """Scale the scores of a row, a whole number of panels; those of keys that are not seen become -infinity."""
    kind = type(scale)
    for j in range(count):
        scores[j] *= scale
    for j in range(first):
        scores[j] = -kind(np.inf)
    for j in range(end, count):
        scores[j] = -kind(np.inf)


def _weigh(scores, block, window, running, scale):
    """Turn the scores of a block into weights, and scale what earlier blocks gave to the new maxima."""
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


def _arguments(scalar):
    number, address = types.intp, types.CPointer(scalar)
    block, window = types.NamedTuple((number,) * 4, Block), types.NamedTuple((number,) * 2, Window)
    return address, block, window, types.NamedTuple((address, address, address, number), Running), scalar


weigh = caller(_arguments)


@functools.cache
def address_of_weigh(dtype):
    """Return the address that `weigh` calls, for numbers of a data type; compiled at its first use."""
    return address_of(_weigh, _arguments(from_dtype(dtype)))


def _differentiate(scores, d_weights, block, window, logsumexp, dots, scale):
    """Turn the scores of a block into weights, and the gradients of weights into those of scores."""
    vectorise_widely()
    kind, count = type(scale), in_panels(scores, block.num_keys)
    for r in range(block.num_queries):
        weights, d = offset(scores, r * KEYS), offset(d_weights, r * KEYS)
        first, end = seen(window, block.query + r, block)
        less, dot = logsumexp[r], dots[r]
        for j in range(count):
            weights[j] = exp(weights[j] * scale - less)
        for j in range(first):
            weights[j] = kind(0)
        for j in range(end, count):
            weights[j] = kind(0)
        for j in range(count):
            d[j] = weights[j] * (d[j] - dot) * scale


def _arguments_of_gradient(scalar):
    number, address = types.intp, types.CPointer(scalar)
    block, window = types.NamedTuple((number,) * 4, Block), types.NamedTuple((number,) * 2, Window)
    return address, address, block, window, address, address, scalar


differentiate = caller(_arguments_of_gradient)


@functools.cache
def address_of_differentiate(dtype):
    """Return the address that `differentiate` calls, for numbers of a data type; compiled at its first use."""
    return address_of(_differentiate, _arguments_of_gradient(from_dtype(dtype)))
