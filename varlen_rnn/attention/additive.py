"""Additive scores, `weight . tanh(query + key)`, and their gradients, for blocks whose keys are packed into panels.

These functions are compiled separately and called by address, so that loops for dot products do not contain them.
Inner loops run over the neighbouring keys of a panel.  So each score sums its features in order, and its bits do not
depend on other keys.  A panel is scored for the queries that see one of its keys: tanh takes most of the time.
"""

from typing import Any, NamedTuple

from numba import types

from varlen_rnn.attention.blocks import KEYS, Block, Window, in_panels
from varlen_rnn.kernels.activations import tanh
from varlen_rnn.products.vectors import folded_at_once, least, offset, sum_of, vectorise_widely, width_of
from varlen_rnn.runtime.jit import called_by_address, cpu_inlined


class Scored(NamedTuple):
    """A block to score: rows of queries, packed keys, the weights of features, and the window of keys that count."""

    q: Any
    q_stride: int
    panels: Any
    weight: Any
    depth: int
    block: Block
    window: Window


class Gradients(NamedTuple):
    """The addresses to which gradients are added: rows of `d_q` and `d_k`, `step` elements apart, and `d_weight`."""

    d_q: Any
    d_k: Any
    d_weight: Any
    step: int


def _block(scalar):
    number, address = types.intp, types.CPointer(scalar)
    block, window = types.NamedTuple((number,) * 4, Block), types.NamedTuple((number,) * 2, Window)
    return types.NamedTuple((address, number, address, address, number, block, window), Scored)


def _arguments(scalar):
    return _block(scalar), types.CPointer(scalar)


def _arguments_of_gradient(scalar):
    number, address = types.intp, types.CPointer(scalar)
    return _block(scalar), address, types.NamedTuple((address, address, address, number), Gradients), address


@cpu_inlined
def _queries_of_panel(it, first, width):
    """Return the range (begin, end) of the block's queries that see one of the `width` keys from `first` on."""
    begin = it.block.key + first - it.window.right - it.block.query
    end = it.block.key + first + width + it.window.left - it.block.query
    return 0 if begin < 0 else begin, least(end, it.block.num_queries)


@called_by_address(_arguments)
def score(it, scores):
    """Write the scores of a block: one row per query; rows are `KEYS` elements apart.

    A score stays unwritten if no key of its panel is in the window of its query.
    """
    vectorise_widely()
    width = width_of(it.panels)
    for first in range(0, in_panels(it.panels, it.block.num_keys), width):
        panel = offset(it.panels, first * (it.depth + 1))
        begin, end = _queries_of_panel(it, first, width)
        for r in range(begin, end):
            row, query = offset(scores, r * KEYS + first), offset(it.q, r * it.q_stride)
            for j in range(width):
                row[j] = 0
            for f in range(it.depth):
                x, weight, keys = query[f], it.weight[f], offset(panel, f * width)
                for j in range(width):
                    row[j] += weight * tanh(x + keys[j])


@called_by_address(_arguments_of_gradient)
def score_grad(it, d_scores, to, row):
    """Add the gradients of queries, keys and weight, given the gradients of scores; `row` is scratch, 3 panels wide.

    Panels are processed whole.  Beyond the last key, gradients of scores must be zeros, and `d_k` must have rows.  Sums
    over the keys of a panel are added by `folded_at_once`, because panels differ between processors.
    """
    vectorise_widely()
    width, step = width_of(it.panels), folded_at_once(it.panels)
    of_keys, of_weight = offset(row, width), offset(row, 2 * width)
    for first in range(0, in_panels(it.panels, it.block.num_keys), width):
        panel = offset(it.panels, first * (it.depth + 1))
        begin, end = _queries_of_panel(it, first, width)
        for f in range(it.depth):
            weight, keys = it.weight[f], offset(panel, f * width)
            for j in range(width):
                of_keys[j], of_weight[j] = 0, 0
            for r in range(begin, end):
                x, d = it.q[r * it.q_stride + f], offset(d_scores, r * KEYS + first)
                for j in range(width):
                    value = tanh(x + keys[j])
                    row[j] = d[j] * (weight - weight * value * value)
                    of_keys[j] += row[j]
                    of_weight[j] += d[j] * value
                for j in range(0, width, step):
                    to.d_q[r * to.step + f] += sum_of(offset(row, j), step)
            for j in range(width):
                to.d_k[(first + j) * to.step + f] += of_keys[j]
            for j in range(0, width, step):
                to.d_weight[f] += sum_of(offset(of_weight, j), step)
