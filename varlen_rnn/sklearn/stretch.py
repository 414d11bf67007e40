"""Sequences shortened by means, or stretched and scaled at random, so that small data are not learned by heart.

Example: the rows 0, 10, 20, 30 stretched to five rows are 0, 7.5, 15, 22.5, 30, and shortened to two rows 5, 25.
"""

from __future__ import annotations

import numpy as np

from varlen_rnn.nn import functional
from varlen_rnn.rows.checks import ends_of
from varlen_rnn.rows.lod import LoD, LoDTensor
from varlen_rnn.tape.variable import Variable

SPREAD = 0.1  # the standard deviation of the logarithms of lengths and of factors


def stretched(x: LoDTensor, generator: np.random.Generator) -> LoDTensor:
    """Return sequences whose lengths and rows are multiplied by random factors of about 0.9 to 1.1.

    New rows are interpolated linearly between two rows.  A sequence keeps its first and its last row as ends.  A rank's
    part of a batch has the positions of its sequences, so they are stretched as in the whole batch.
    """
    (offsets,) = map(np.asarray, x.lod())
    lengths = np.diff(offsets)
    factors = np.exp(SPREAD * _normal(x.structure.positions, len(lengths), generator))
    new = np.where(lengths > 1, np.maximum(2, np.rint(lengths * factors[0]).astype(np.int64)), lengths)
    ends = np.cumsum(new)
    steps = np.arange(int(new.sum())) - np.repeat(ends - new, new)
    places = steps * np.repeat((lengths - 1) / np.maximum(new - 1, 1), new)
    before = np.minimum(places.astype(np.int64), np.repeat(np.maximum(lengths - 2, 0), new))
    behind = np.minimum(before + 1, np.repeat(lengths - 1, new))
    share = (places - before).astype(np.float32)[:, None]
    begin = np.repeat(offsets[:-1], new)
    rows = x.data[begin + before] * (1 - share) + x.data[begin + behind] * share
    rows *= np.repeat(factors[1].astype(np.float32), new)[:, None]
    return LoDTensor(rows, LoD([np.concatenate([[0], ends])]).at(x.structure.positions))


def shortened(x: Variable | LoDTensor, stride: int) -> Variable:
    """Return the means of parts of each sequence: neighbouring rows, about equally many, and at most `stride`."""
    x = x if isinstance(x, Variable) else Variable(x)
    whole = x.value.structure
    offsets = whole.levels[0]
    lengths = np.diff(offsets)
    parts = -(-lengths // stride)
    above = ends_of(parts)
    number = np.arange(above[-1]) - np.repeat(above[:-1], parts)  # the number of each part within its sequence
    begin = np.repeat(offsets[:-1], parts) + number * np.repeat(lengths, parts) // np.repeat(parts, parts)
    structure = LoD([above, np.append(begin, offsets[-1])]).at_positions_of(whole)
    return functional.sequence_pool(x.with_lod(structure), "mean")


def _normal(positions: np.ndarray | None, number: int, generator: np.random.Generator) -> np.ndarray:
    """Return normal numbers, shape `(2, number)`; a sequence's numbers depend only on its place in the whole batch."""
    if positions is None:
        return generator.standard_normal((2, number))
    drawn = np.random.default_rng(generator.integers(2**63))  # so that `generator` draws equally often on all ranks
    return drawn.standard_normal((positions.max(initial=0) + 1, 2))[positions].T
