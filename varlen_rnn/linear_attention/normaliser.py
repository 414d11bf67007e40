"""The normaliser of linear attention on the CPU: a vector n beside the state of a sequence and head.

It is the column that a state has for values of 1, without the delta rule.  In a chunk, with the names of
`forward_loop`, and the scores M = scale D (Q K^T) up to the diagonal:

    norm_i = scale e_i (q_i . n) + sum of M_ij b_j for j <= i        n <- e_last n + sum of f_j b_j k_j

and with the gradients d of norms, and dn of the vector after the chunk, these terms are added to the gradients of
`backward_loop`:

    dM_ij: d_i b_j     dq_i: scale e_i d_i n     dk_j: f_j b_j dn     db_j: f_j (k_j . dn) + sum of M_ij d_i for i >= j
    dn <- e_last dn + sum of scale e_i d_i q_i

A column of values would take a whole panel in each product.
"""

from typing import Any, NamedTuple

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from varlen_rnn.kernels.norms import LANES
from varlen_rnn.linear_attention.blocks import CHUNK, copy_numbers, dot, scale_all
from varlen_rnn.linear_attention.writer import Writer
from varlen_rnn.products.vectors import fold_lanes, offset
from varlen_rnn.runtime.jit import cpu_inlined


class Norms(NamedTuple):
    """Where the norms and normalisers of a task are: addresses in its first row or chunk, and strides in elements."""

    first: Any  # the normaliser before the first row
    last: Any  # the normaliser after the last row
    out: Any
    states: Any  # the normaliser before each chunk, with `keep`
    stride: int  # of `out`
    states_stride: int


class OfChunk(NamedTuple):
    """Memory of a thread for the gradient of a chunk."""

    n: Any  # the normaliser before the chunk
    d_n: Any
    d_norms: Any  # of the chunk's rows
    betas: Any


def size_of_chunk(depth):
    """Return how many numbers OfChunk has."""
    return 2 * (depth + CHUNK)


@cpu_inlined
def of_chunk(at, depth):
    """Return the OfChunk at an address."""
    return OfChunk(at, offset(at, depth), offset(at, 2 * depth), offset(at, 2 * depth + CHUNK))


@cpu_inlined
def add_rows(rows, stride, weights, count, target, depth):
    """Add to a vector `count` rows, times their weights."""
    for i in range(0, count - 3, 4):
        a, b, c, d = weights[i], weights[i + 1], weights[i + 2], weights[i + 3]
        first, second = offset(rows, i * stride), offset(rows, (i + 1) * stride)
        third, fourth = offset(rows, (i + 2) * stride), offset(rows, (i + 3) * stride)
        for r in range(depth):
            total = target[r] + a * first[r]
            total += b * second[r]
            total += c * third[r]
            target[r] = total + d * fourth[r]
    for i in range(count // 4 * 4, count):
        row, weight = offset(rows, i * stride), weights[i]
        for r in range(depth):
            target[r] += weight * row[r]


@intrinsic
def _norm(typing, i, scores, reads, factor, depth):
    """Return the norm of row i of a chunk, where `scores` are its scores and b, and `reads` its query and n."""

    def codegen(context, builder, signature, arguments):
        i, scores, reads, factor, depth = arguments
        writer = Writer(builder, context.get_value_type(signature.return_type), LANES)
        (row, betas), (query, n) = (cgutils.unpack_tuple(builder, pair) for pair in (scores, reads))
        total, last = writer.constant(0.0), writer.spread(i)
        for first in range(0, CHUNK, LANES):
            product = builder.fmul(writer.load(writer.at(row, first)), writer.load(writer.at(betas, first)))
            is_read = builder.icmp_signed("<=", writer.lanes_from(first), last)
            total = builder.fadd(total, writer.where(is_read, product))
        reads, factor = cgutils.alloca_once_value(builder, writer.constant(0.0)), writer.spread(factor)
        begin, step = (context.get_constant(types.intp, number) for number in (0, LANES))
        whole = builder.sub(depth, builder.srem(depth, step))

        def add(first, load):
            product = [load(writer.at(address, first)) for address in (query, n)]
            builder.store(writer.add(builder.load(reads), *product), reads)

        with cgutils.for_range_slice(builder, begin, whole, step, inc=True) as (first, _):
            add(first, writer.load)
        with builder.if_then(builder.icmp_signed("<", whole, depth)):
            left = builder.icmp_signed("<", writer.lanes_from(0), writer.spread(builder.sub(depth, whole)))
            add(whole, lambda address: writer.load_where(left, address))
        total = writer.add(total, factor, builder.load(reads))
        return fold_lanes(builder, total, lambda builder, a, b: builder.fadd(a, b))

    return factor(i, scores, reads, factor, types.intp), codegen


@cpu_inlined
def run_normaliser(memory, it, of, sizes, first, row, rows):
    """Write the norms of the chunk that begins at `row`, and move the normaliser behind it."""
    n, products, f = memory.normaliser, memory.steps, offset(memory.between, (rows - 1) * CHUNK)
    q, k, to = offset(of.q, row * of.q_stride), offset(of.k, row * of.k_stride), it.norms
    if sizes.keep:
        copy_numbers(n, offset(to.states, (row - first) // CHUNK * to.states_stride), sizes.depth)
    count = sizes.depth if sizes.has_state or row > first else 0
    for i in range(rows):
        scores, factor = offset(memory.of_queries, i * CHUNK), it.scale * memory.since[i]
        norm = _norm(i, (scores, memory.betas), (offset(q, i * of.q_stride), n), factor, count)
        to.out[(row - first + i) * to.stride] = norm
    scale_all(n, sizes.depth, memory.since[rows - 1])
    for j in range(rows):
        products[j] = f[j] * memory.betas[j]
    add_rows(k, of.k_stride, products, rows, n, sizes.depth)


@cpu_inlined
def load_chunk(own, saved, of, sizes, part, chunk, rows):
    """Copy the normaliser, the gradients of norms and the beta of a chunk to OfChunk."""
    copy_numbers(offset(saved.norms, chunk * saved.norms_stride), own.n, sizes.depth)
    for i in range(rows):
        own.d_norms[i], own.betas[i] = part.d_norm[i * part.norm_stride], part.beta[i * of.beta_stride]


@cpu_inlined
def add_to_scores(own, d_scores, rows):
    """Add the terms of norms to dM."""
    for i in range(rows):
        row, d = offset(d_scores, i * CHUNK), own.d_norms[i]
        for j in range(CHUNK):
            row[j] += d * own.betas[j]


@cpu_inlined
def add_to_beta(own, of, sizes, part, rows, scores, f, d_beta, products):
    """Add the terms of norms to the gradients of beta; `scores` is M, and `f` the last row of D."""
    for i in range(rows):
        row, d = offset(scores, i * CHUNK), own.d_norms[i]
        for j in range(CHUNK):
            total = d_beta[j] + d * row[j]
            d_beta[j] = total if j <= i else d_beta[j]
    for j in range(rows):
        d_beta[j] += f[j] * dot(offset(part.k, j * of.k_stride), own.d_n, sizes.depth, products)


@cpu_inlined
def add_to_reads(own, it, sizes, since, rows, reads, stride):
    """Add to the rows of `reads`, dO S^T with its factors, the terms of norms."""
    for i in range(rows):
        row, weight = offset(reads, i * stride), it.scale * since[i] * own.d_norms[i]
        for r in range(sizes.depth):
            row[r] += weight * own.n[r]


@cpu_inlined
def add_to_keys(own, sizes, rows, d_keys, stride):
    """Add to the rows of `d_keys`, Y dS^T before its factors, the terms of norms."""
    for j in range(rows):
        row, weight = offset(d_keys, j * stride), own.betas[j]
        for r in range(sizes.depth):
            row[r] += weight * own.d_n[r]


@cpu_inlined
def move_gradient(own, it, of, sizes, part, rows, since, weights):
    """Move the gradient of the normaliser before the chunk; `weights` is scratch of a number a row."""
    for i in range(rows):
        weights[i] = it.scale * since[i] * own.d_norms[i]
    scale_all(own.d_n, sizes.depth, since[rows - 1])
    add_rows(part.q, of.q_stride, weights, rows, own.d_n, sizes.depth)
