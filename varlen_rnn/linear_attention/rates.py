"""Scores and their gradients where each row r of a state has a decay of its own, in blocks of at most `SOLVED` rows.

With the decays a_i = e^g_i, vectors over r, E_i = a_1 ... a_i from the block's begin, and D_ij = a_{j+1} ... a_i:

    queries_i = scale E_i q_i      keys_i = E_i k_i      left_j = D_{last, j} k_j      whole = E_last
    M_ij = scale sum_r q_i D_ij k_j  (j <= i)            A_ij = sum_r k_i D_ij k_j     (j < i)

A block reads the state before it by `queries` and `keys`, and leaves `left` in the state, which it multiplies by
`whole`.  No decay is a quotient, or an exponential of a difference, so decays near 0 neither overflow nor cancel.
`whole` is the exponential of a sum: its rounding error is the only one that grows with the length of a sequence.

Source: Yang et al. (2024), "Gated Linear Attention Transformers with Hardware-Efficient Training", section 4.3.
"""

from typing import Any, NamedTuple

from numba import types

from varlen_rnn.kernels.activations import exp
from varlen_rnn.linear_attention.blocks import CHUNK, SOLVED, copy_rows
from varlen_rnn.linear_attention.pairs import differentiate_pairs, score_pairs
from varlen_rnn.products.vectors import lanes_of, offset, sum_of, transpose_block, vectorise_widely, width_of
from varlen_rnn.runtime.jit import called_by_address, cpu_inlined


class Block(NamedTuple):
    """Memory of a block: rows are `padded` elements apart, and scores `CHUNK`."""

    decays: Any
    since: Any  # E
    queries: Any
    keys: Any
    left: Any  # by `write_left`
    whole: Any  # one row
    of_queries: Any  # M
    of_keys: Any  # -A
    spare: Any  # `SOLVED` rows
    products: Any  # one row


class Given(NamedTuple):
    """Operands of a head: addresses in the first row of a block, and strides from row to row in elements."""

    q: Any
    k: Any
    decay: Any
    q_stride: int
    k_stride: int
    decay_stride: int
    turned: Any  # becomes `left` transposed: rows r and r + 1 are `width` elements apart
    width: int
    rows: int
    depth: int
    padded: int


class Gradients(NamedTuple):
    """The operands and results of the gradient of a block."""

    d_scores: Any  # dM
    d_of_keys: Any  # the gradient of -A
    d_queries: Any  # rows, `padded` elements apart
    d_keys: Any  # the gradient of -keys
    d_left: Any
    of_state: Any  # (depth,), the products of `whole`, S and dS, summed over columns
    d_q: Any
    d_k: Any
    d_decay: Any
    depth_stride: int  # of `d_q` and `d_k`
    decay_stride: int
    delta: bool


class State(NamedTuple):
    """A state in panels, `step` elements apart, and the decays of its rows over a block."""

    at: Any
    whole: Any
    other: Any  # another state; with `has_products`, the products with its rows are written to `of_state`
    of_state: Any
    products: Any  # scratch of a row of the state
    step: int
    panels: int
    depth: int
    has_products: bool


def size_of_block(padded):
    """Return how many numbers `block_of` needs."""
    return (6 * SOLVED + 2) * padded + 2 * SOLVED * CHUNK


@cpu_inlined
def block_of(at, padded):
    """Return the Block that begins at an address."""
    rows, scores = SOLVED * padded, SOLVED * CHUNK
    whole = offset(at, 5 * rows)
    of_queries = offset(whole, padded)
    spare = offset(of_queries, 2 * scores)
    return Block(
        at, offset(at, rows), offset(at, 2 * rows), offset(at, 3 * rows), offset(at, 4 * rows), whole, of_queries,
        offset(of_queries, scores), spare, offset(spare, rows),
    )  # fmt: skip


def _arguments(scalar):
    number, address = types.intp, types.CPointer(scalar)
    block = types.NamedTuple((address,) * 10, Block)
    return block, types.NamedTuple((*[address] * 3, *[number] * 3, address, *[number] * 4), Given), scalar, scalar


def _arguments_of_gradient(scalar):
    number, address = types.intp, types.CPointer(scalar)
    gradients = types.NamedTuple((*[address] * 9, number, number, types.boolean), Gradients)
    return (*_arguments(scalar)[:2], gradients, scalar, scalar)


@cpu_inlined
def _decay(factor, a, count, tiny):
    """Multiply numbers by decays; results below `tiny` become 0, because subnormal numbers are slow."""
    for r in range(count):
        value = factor[r] * a[r]
        factor[r] = type(tiny)(0) if value < tiny else value


@called_by_address(_arguments)
def score_block(to, it, scale, tiny):
    """Write all of a Block but the rows `left`, and `it.turned`."""
    vectorise_widely()
    kind, count, since, total = type(scale), it.depth, to.spare, to.products
    for r in range(count):
        since[r], total[r] = kind(1), kind(0)
    for i in range(it.rows):
        a, g, e = (
            offset(to.decays, i * it.padded),
            offset(it.decay, i * it.decay_stride),
            offset(to.since, i * it.padded),
        )
        for r in range(count):
            a[r] = exp(g[r])
        for r in range(count):
            total[r] += g[r]
        _decay(since, a, count, tiny)
        q, queries = offset(it.q, i * it.q_stride), offset(to.queries, i * it.padded)
        k, keys = offset(it.k, i * it.k_stride), offset(to.keys, i * it.padded)
        for r in range(count):
            e[r] = since[r]
            queries[r] = q[r] * (scale * since[r])
        for r in range(count):
            keys[r] = k[r] * since[r]
    for r in range(count):
        value = exp(total[r])
        to.whole[r] = kind(0) if value < tiny else value
    for i in range(it.rows, SOLVED):
        for r in range(it.padded):
            to.decays[i * it.padded + r] = 1
    sizes = it.q_stride, it.k_stride, it.padded, it.width, it.rows, it.depth
    score_pairs(it.q, it.k, to.decays, it.turned, sizes, (scale, tiny), (to.of_queries, to.of_keys))


@cpu_inlined
def _differentiate_reads(of, it, to, scale, reads):
    """Replace dqueries and dleft by their terms of dQ and dK; write the terms of decays to `of.left`."""
    count, total, zero = it.depth, of.products, scale - scale
    for r in range(count):
        total[r] = to.of_state[r]
    for j in range(it.rows):  # `left`: row j leaves its key in the state, which rows behind it decay
        k, d_k, d_g = offset(it.k, j * it.k_stride), offset(to.d_left, j * it.padded), offset(of.left, j * it.padded)
        for r in range(count):
            d_g[r] = total[r]
        for r in range(count):
            total[r] += k[r] * d_k[r]
    for r in range(count):
        total[r] = zero
    for back in range(it.rows):  # `queries` and `keys`: row i and all rows before it decay the state that row i reads
        i = it.rows - 1 - back
        q, since, d_q = (
            offset(it.q, i * it.q_stride), offset(of.since, i * it.padded), offset(to.d_queries, i * it.padded)
        )  # fmt: skip
        for r in range(count):
            d_q[r] *= scale * since[r]
        for r in range(count):
            total[r] += q[r] * d_q[r]
        if to.delta:
            k, d = offset(it.k, i * it.k_stride), offset(to.d_keys, i * it.padded)
            d_k = offset(to.d_left, i * it.padded)
            for r in range(count):
                reads[r] = -(since[r] * d[r])
            for r in range(count):
                d_k[r] += reads[r]
            for r in range(count):
                total[r] += k[r] * reads[r]
        d_g = offset(of.left, i * it.padded)
        for r in range(count):
            d_g[r] += total[r]


@cpu_inlined
def turn_block(source, stride, count, target):
    """Transpose the rows of a block, of `count` numbers; numbers of the target behind the rows have any value."""
    lanes, width = lanes_of(source), width_of(source)
    for r in range(0, count, lanes):
        for i in range(0, SOLVED, lanes):
            transpose_block(offset(source, i * stride + r), stride, offset(target, r * width + i), width)


@called_by_address(_arguments_of_gradient)
def differentiate_block(of, it, to, scale, tiny):
    """Write the gradients of queries, keys and decays of a block; rows of the block are used as memory."""
    vectorise_widely()
    kind, count, padded = type(scale), it.depth, it.padded
    for i in range(SOLVED):
        for j in range(SOLVED):
            m, a = to.d_scores[i * CHUNK + j], to.d_of_keys[i * CHUNK + j]
            is_pair = j <= i and i < it.rows
            to.d_scores[i * CHUNK + j] = scale * m if is_pair else kind(0)
            to.d_of_keys[i * CHUNK + j] = a if is_pair and to.delta else kind(0)
    after = of.spare
    for r in range(count):
        after[r] = kind(1)
    for back in range(it.rows):
        j = it.rows - 1 - back
        d_left = offset(to.d_left, j * padded)
        for r in range(count):
            d_left[r] *= after[r]
        _decay(after, offset(of.decays, j * padded), count, tiny)
    _differentiate_reads(of, it, to, scale, of.spare)
    # Whole rows of the operands, whose numbers behind the depth are 0, as they are in `queries` and `keys` before.
    copy_rows(it.rows, count, it.q, it.q_stride, of.queries, padded)
    copy_rows(it.rows, count, it.k, it.k_stride, of.keys, padded)
    for at in range(it.rows * padded, SOLVED * padded):
        of.queries[at], of.keys[at] = kind(0), kind(0)
    scores, gradients = (to.d_scores, to.d_of_keys), (to.d_queries, to.d_left, of.left)
    differentiate_pairs(of.queries, of.keys, of.decays, padded, scores, tiny, gradients)
    copy_rows(it.rows, count, to.d_queries, padded, to.d_q, to.depth_stride)
    copy_rows(it.rows, count, to.d_left, padded, to.d_k, to.depth_stride)
    copy_rows(it.rows, count, of.left, padded, to.d_decay, to.decay_stride)


@called_by_address(_arguments)
def write_left(to, it, scale, tiny):
    """Write `left`: rows of keys, decayed to the end of the block."""
    vectorise_widely()
    after, kind = to.spare, type(scale)
    for r in range(it.depth):
        after[r] = kind(1)
    for back in range(it.rows):
        j = it.rows - 1 - back
        k, left = offset(it.k, j * it.k_stride), offset(to.left, j * it.padded)
        for r in range(it.depth):
            left[r] = k[r] * after[r]
        _decay(after, offset(to.decays, j * it.padded), it.depth, tiny)


def _arguments_of_state(scalar):
    number, address = types.intp, types.CPointer(scalar)
    return types.NamedTuple((*[address] * 5, *[number] * 3, types.boolean), State), scalar


@called_by_address(_arguments_of_state)
def pass_state(it, like):
    """Multiply the rows of a state, or of the gradient of a state, by their decays over a block."""
    vectorise_widely()
    width = width_of(it.at)
    for r in range(it.depth if it.has_products else 0):
        for p in range(it.panels):
            here, products = p * it.step + r * width, offset(it.products, p * width)
            one, other = offset(it.at, here), offset(it.other, here)
            for x in range(width):
                products[x] = one[x] * other[x]
        it.of_state[r] = it.whole[r] * sum_of(it.products, it.panels * width)
    for p in range(it.panels):
        for r in range(it.depth):
            row, factor = offset(it.at, p * it.step + r * width), it.whole[r]
            for x in range(width):
                row[x] *= factor
