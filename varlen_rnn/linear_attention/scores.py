"""Scores of the rows of a chunk: products of their queries or keys, times the decay between two rows.

The decay from row j to row i, D[i, j] = e^(g_{j+1} + ... + g_i), follows from the row above by one product,
D[i] = e^g_i D[i - 1], with D[i, i] = 1.  An exponential of a difference of sums would overflow above the diagonal.  The
decay from the chunk's begin to row i, e_i, is the exponential of a sum in float64: a product of many float32 near 1 is
biased, and through the state its error would grow with the length of the sequence.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from varlen_rnn.kernels.activations import exp
from varlen_rnn.linear_attention.blocks import CHUNK
from varlen_rnn.linear_attention.writer import Writer
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


def _lanes_of_row(writer, i):
    """Yield the first column of each vector of row i, and masks of columns before i, of column i, and of both."""
    row = writer.spread(i)
    for first in range(0, CHUNK, writer.vector.count):
        column = writer.lanes_from(first)
        before, here = (writer.builder.icmp_signed(sign, column, row) for sign in ("<", "=="))
        yield first, before, here, writer.builder.or_(before, here)


@intrinsic
def _decay_row(typing, i, step, factors, rows, delta):
    """Write row i of D, and of the scores; `rows` are the row of D above, and the rows of D and of both scores.

    `factors` are the scale and `tiny`.
    """

    def codegen(context, builder, signature, arguments):
        i, step, factors, rows, delta = arguments
        (above, between, *scores), (scale, tiny) = (cgutils.unpack_tuple(builder, x) for x in (rows, factors))
        writer = Writer(builder, context.get_value_type(signature.args[1]))
        step, scale, tiny = map(writer.spread, (step, scale, tiny))
        parts = list(_lanes_of_row(writer, i))
        decays = []
        for first, before, here, _ in parts:
            value = writer.where(before, writer.decay(writer.load(writer.at(above, first)), step, tiny))
            decays.append(builder.select(here, writer.constant(1.0), value))
            writer.store(decays[-1], writer.at(between, first))
        for (first, *_, both), decay in zip(parts, decays, strict=True):
            place = writer.at(scores[0], first)
            value = builder.fmul(writer.load(place), builder.fmul(scale, decay))
            writer.store(writer.where(both, value), place)
        with builder.if_then(delta):
            for (first, before, *_), decay in zip(parts, decays, strict=True):
                place = writer.at(scores[1], first)
                value = builder.fmul(builder.fneg(writer.load(place)), decay)
                writer.store(writer.where(before, value), place)
        return context.get_dummy_value()

    return types.void(types.intp, step, factors, rows, types.boolean), codegen


@called_by_address(_arguments)
def decay_scores(it, scale, tiny):
    """Multiply the scores of a chunk by decays; decays below `tiny` count as 0, because subnormal numbers are slow."""
    vectorise_widely()
    kind, total = type(scale), 0.0
    for i in range(it.rows):
        it.since[i] = it.decay[i * it.stride]
    for i in range(it.rows):  # of neighbours, which vectors hold
        it.since[i] = exp(it.since[i])
    for i in range(it.rows):
        row, above = offset(it.between, i * CHUNK), offset(it.between, (i - 1 if i else 0) * CHUNK)
        rows = above, row, offset(it.of_queries, i * CHUNK), offset(it.of_keys, i * CHUNK)
        _decay_row(i, it.since[i], (scale, tiny), rows, it.delta)
        total += np.float64(it.decay[i * it.stride])
        since = kind(exp(total))
        it.since[i] = kind(0) if since < tiny else since


@intrinsic
def differentiate_row(typing, i, scale, passing, rows, delta):
    """Add row i of dM M + dA A to `passing`, whose columns from i on become 0; replace dM by N, and dA by P.

    `rows` has row i of D, dM, M, dA, and A.
    """

    def codegen(context, builder, signature, arguments):
        i, scale, passing, rows, delta = arguments
        decays, d_m, m, d_a, a = cgutils.unpack_tuple(builder, rows)
        writer = Writer(builder, context.get_value_type(signature.args[1]))
        scale, parts = writer.spread(scale), list(_lanes_of_row(writer, i))

        def pass_on(first, before, d, of):
            d = writer.load(writer.at(d, first))
            value = writer.add(writer.load(writer.at(passing, first)), d, writer.load(writer.at(of, first)))
            writer.store(writer.where(before, value), writer.at(passing, first))
            return d, writer.load(writer.at(decays, first))

        for first, before, _, both in parts:
            d, decay = pass_on(first, before, d_m, m)
            value = builder.fmul(d, builder.fmul(scale, decay))
            writer.store(writer.where(both, value), writer.at(d_m, first))
        with builder.if_then(delta):
            for first, before, *_ in parts:
                d, decay = pass_on(first, before, d_a, a)
                value = builder.fmul(builder.fneg(d), decay)
                writer.store(writer.where(before, value), writer.at(d_a, first))
        return context.get_dummy_value()

    return types.void(types.intp, scale, passing, rows, types.boolean), codegen
