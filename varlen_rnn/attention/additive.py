"""Additive scores: `weight . tanh(query + key)`, of blocks whose keys are packed, and their gradients.

Compiled on its own and called by address: the loops of dot products know nothing of it.  Loops run over the keys of a
panel, which are neighbours, so that a score is the sum of its features in their order, whatever stands beside it.
"""

import functools
from typing import Any, NamedTuple

from numba import from_dtype, types

from varlen_rnn.attention.blocks import KEYS, in_panels
from varlen_rnn.kernels.activations import tanh
from varlen_rnn.products.vectors import offset, sum_of, vectorise_widely, width_of
from varlen_rnn.runtime.jit import address_of, caller


class Scored(NamedTuple):
    """A block: rows of queries, packed keys, the weight of features, and how many there are of each."""

    q: Any
    q_stride: int
    panels: Any
    weight: Any
    depth: int
    num_queries: int
    num_keys: int


class Gradients(NamedTuple):
    """Where gradients are added: of rows of queries and of keys, `step` numbers apart, and of the weight."""

    d_q: Any
    d_k: Any
    d_weight: Any
    step: int


def _score(it, scores):
    """Write the scores of a block, rows of queries."""
    vectorise_widely()
    width = width_of(it.panels)
    for first in range(0, in_panels(it.panels, it.num_keys), width):
        panel = offset(it.panels, first * (it.depth + 1))
        for r in range(it.num_queries):
            row, query = offset(scores, r * KEYS + first), offset(it.q, r * it.q_stride)
            for j in range(width):
                row[j] = 0
            for f in range(it.depth):
                x, weight, keys = query[f], it.weight[f], offset(panel, f * width)
                for j in range(width):
                    row[j] += weight * tanh(x + keys[j])


def _score_grad(it, d_scores, to, row):
    """Add the gradients of queries, keys and the weight, from those of scores; `row` is memory as wide as 3 panels.

    Panels are taken whole: behind the last key, gradients of scores are zeros, and memory has rows for what they add.
    """
    vectorise_widely()
    width = width_of(it.panels)
    of_keys, of_weight = offset(row, width), offset(row, 2 * width)
    for first in range(0, in_panels(it.panels, it.num_keys), width):
        panel = offset(it.panels, first * (it.depth + 1))
        for f in range(it.depth):
            weight, keys = it.weight[f], offset(panel, f * width)
            for j in range(width):
                of_keys[j], of_weight[j] = 0, 0
            for r in range(it.num_queries):
                x, d = it.q[r * it.q_stride + f], offset(d_scores, r * KEYS + first)
                for j in range(width):
                    value = tanh(x + keys[j])
                    row[j] = d[j] * (weight - weight * value * value)
                    of_keys[j] += row[j]
                    of_weight[j] += d[j] * value
                to.d_q[r * to.step + f] += sum_of(row, width)
            for j in range(width):
                to.d_k[(first + j) * to.step + f] += of_keys[j]
            to.d_weight[f] += sum_of(of_weight, width)


def _block(scalar):
    number, address = types.intp, types.CPointer(scalar)
    return types.NamedTuple((address, number, address, address, number, number, number), Scored)


def _arguments(scalar):
    return _block(scalar), types.CPointer(scalar)


def _arguments_of_gradient(scalar):
    number, address = types.intp, types.CPointer(scalar)
    return _block(scalar), address, types.NamedTuple((address, address, address, number), Gradients), address


score, score_grad = caller(_arguments), caller(_arguments_of_gradient)


@functools.cache
def address_of_score(dtype):
    """Return the address that `score` calls, for numbers of a data type; compiled at its first use."""
    return address_of(_score, _arguments(from_dtype(dtype)))


@functools.cache
def address_of_score_grad(dtype):
    """Return the address that `score_grad` calls, for numbers of a data type; compiled at its first use."""
    return address_of(_score_grad, _arguments_of_gradient(from_dtype(dtype)))
