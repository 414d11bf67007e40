"""The recurrence step by step, for a sequence of one row, such as a step of a stream; and the gradient of a step.

A state is (depth, depth of values) here, and stays in the first-level cache.  A step reads it once for `S^T k`, with
`delta`, and once to update it and to read `S^T q`.  All functions are compiled separately, so that their inner loops,
over neighbours of a row of the state, are vectorised.
"""

from typing import Any, NamedTuple

from numba import types

from varlen_rnn.attention.blocks import in_panels
from varlen_rnn.kernels.activations import exp
from varlen_rnn.linear_attention.blocks import dot
from varlen_rnn.products.vectors import offset, sum_of, vectorise_widely
from varlen_rnn.runtime.jit import called_by_address, cpu_inlined


class Steps(NamedTuple):
    """Rows of one head: addresses in its first row, strides from row to row in elements, and sizes."""

    q: Any
    k: Any
    v: Any  # values; in the gradient with `delta`, corrected values
    decay: Any
    beta: Any
    state: Any  # the state before the first row
    normaliser: Any  # the same, with `normalise`
    memory: Any  # scratch of `scratch_of_steps` numbers
    q_stride: int
    k_stride: int
    v_stride: int
    decay_stride: int
    beta_stride: int
    rows: int
    depth: int
    depth_v: int
    rates: int  # decays of a row: 1, or `depth`
    delta: bool
    normalise: bool


class Written(NamedTuple):
    """Where steps write outputs, and then `u` for the gradient if `keep`: addresses, and elements from row to row."""

    out: Any
    u: Any
    norm: Any  # with `normalise`
    stride: int
    norm_stride: int
    keep: bool


class Gradients(NamedTuple):
    """Where the gradient of a step reads and writes; `d_decay` has one number for each decay."""

    d_out: Any
    d_norm: Any  # with `normalise`
    d_q: Any
    d_k: Any
    d_v: Any
    d_decay: Any
    d_beta: Any
    d_state: Any  # the gradient of the state after the row; becomes the gradient of the state before it
    d_normaliser: Any  # the same, with `normalise`


class _Scratch(NamedTuple):
    """Memory of the gradient of a row: decays, dS^T k, du, and products, which are summed over `count` numbers."""

    decays: Any
    written: Any
    d_u: Any
    first: Any
    second: Any
    count: int
    of_depth: Any  # products, one for each row of the state


def scratch_of_steps(depth, depth_v, width):
    """Return how many numbers `Steps.memory` has."""
    padded, padded_v = (-(-size // width) * width for size in (depth, depth_v))
    return depth + 4 * padded_v + padded


def _steps(scalar):
    number, address = types.intp, types.CPointer(scalar)
    return types.NamedTuple((*[address] * 8, *[number] * 9, *[types.boolean] * 2), Steps)


def _arguments(scalar):
    number, address = types.intp, types.CPointer(scalar)
    return _steps(scalar), types.NamedTuple((*[address] * 3, number, number, types.boolean), Written), scalar


def _arguments_of_gradient(scalar):
    return _steps(scalar), types.NamedTuple([types.CPointer(scalar)] * 9, Gradients), scalar


@cpu_inlined
def _read_decays(it, t, to):
    """Write the decay of each row of the state in step `t`."""
    for r in range(it.depth):
        to[r] = exp(it.decay[t * it.decay_stride + (r if it.rates > 1 else 0)])


@called_by_address(_arguments)
def run_steps(it, to, scale):
    """Run some rows, in place on the state: write outputs, and corrected values if `keep`."""
    vectorise_widely()
    kind = type(scale)
    decays, read, out = it.memory, offset(it.memory, it.depth), offset(it.memory, it.depth + it.depth_v)
    for t in range(it.rows):
        q, k, v = offset(it.q, t * it.q_stride), offset(it.k, t * it.k_stride), offset(it.v, t * it.v_stride)
        beta = it.beta[t * it.beta_stride]
        _read_decays(it, t, decays)
        for x in range(it.depth_v):
            read[x], out[x] = kind(0), kind(0)
        for r in range(it.depth if it.delta else 0):
            weight, row = k[r] * decays[r], offset(it.state, r * it.depth_v)
            for x in range(it.depth_v):
                read[x] += weight * row[x]
        for x in range(it.depth_v):
            read[x] = v[x] - read[x]
        for r in range(it.depth):
            decay, weight, factor, row = decays[r], beta * k[r], scale * q[r], offset(it.state, r * it.depth_v)
            for x in range(it.depth_v):
                value = decay * row[x] + weight * read[x]
                row[x] = value
                out[x] += factor * value
        o = offset(to.out, t * to.stride)
        for x in range(it.depth_v):
            o[x] = out[x]
        if to.keep:
            u = offset(to.u, t * to.stride)
            for x in range(it.depth_v):
                u[x] = read[x]
        if it.normalise:
            for r in range(it.depth):
                it.normaliser[r] = decays[r] * it.normaliser[r] + beta * k[r]
            products = _of_depth(it)
            to.norm[t * to.norm_stride] = scale * dot(q, it.normaliser, it.depth, products)


@cpu_inlined
def _of_depth(it):
    """Return the address of scratch for a product of each row of the state."""
    return offset(it.memory, it.depth + 4 * in_panels(it.memory, it.depth_v))


@cpu_inlined
def _read_back(it, to, scale, own):
    """Write the gradient of the query; add the read to dS; write dS^T k to `own.written`."""
    beta = it.beta[0]
    for x in range(it.depth_v):
        own.written[x] = type(scale)(0)
    for r in range(it.depth):
        row, d_row = offset(it.state, r * it.depth_v), offset(to.d_state, r * it.depth_v)
        decay, weight, factor, of_key = own.decays[r], beta * it.k[r], scale * it.q[r], it.k[r]
        for x in range(it.depth_v):
            d = to.d_out[x]
            own.first[x] = (decay * row[x] + weight * it.v[x]) * d
            total = d_row[x] + factor * d
            d_row[x] = total
            own.written[x] += of_key * total
        to.d_q[r] = scale * sum_of(own.first, own.count)


@cpu_inlined
def _write_back(it, to, scale, own):
    """Write the gradients of the key and of decays; move dS before the row."""
    d_u, beta = own.d_u, it.beta[0]
    total = type(scale)(0)
    for r in range(it.depth):
        row, d_row = offset(it.state, r * it.depth_v), offset(to.d_state, r * it.depth_v)
        decay, erased = own.decays[r], it.k[r] if it.delta else type(scale)(0)
        for x in range(it.depth_v):
            own.first[x] = beta * (d_row[x] * it.v[x])
            value = d_row[x] - erased * d_u[x]
            own.second[x] = value * row[x]
            d_row[x] = decay * value
        if it.delta:
            for x in range(it.depth_v):
                own.first[x] -= decay * (row[x] * d_u[x])
        to.d_k[r] = sum_of(own.first, own.count)
        of_decay = decay * sum_of(own.second, own.count)
        total += of_decay
        if it.rates > 1:
            to.d_decay[r] = of_decay
    if it.rates == 1:
        to.d_decay[0] = total


@cpu_inlined
def _add_norms(it, to, scale, own):
    """Add to the gradients of a step the terms of its norm, and move the gradient of the normaliser before the row."""
    n, d_n, beta, decay, d = it.normaliser, to.d_normaliser, it.beta[0], own.decays[0], scale * to.d_norm[0]
    for r in range(it.depth):
        to.d_q[r] += d * (decay * n[r] + beta * it.k[r])
        d_n[r] += d * it.q[r]
        to.d_k[r] += beta * d_n[r]
    to.d_beta[0] += dot(it.k, d_n, it.depth, own.of_depth)
    to.d_decay[0] += decay * dot(n, d_n, it.depth, own.of_depth)
    for r in range(it.depth):
        d_n[r] *= decay


@called_by_address(_arguments_of_gradient)
def differentiate_step(it, to, scale):
    """Write the gradients of the first row; strides are not read."""
    vectorise_widely()
    count, written = in_panels(it.memory, it.depth_v), offset(it.memory, it.depth)
    first = offset(written, 2 * it.depth_v)
    own = _Scratch(it.memory, written, offset(written, it.depth_v), first, offset(first, count), count, _of_depth(it))
    for x in range(2 * count):
        first[x] = type(scale)(0)
    _read_decays(it, 0, own.decays)
    _read_back(it, to, scale, own)
    for x in range(it.depth_v):
        first[x] = own.written[x] * it.v[x]
        own.d_u[x] = it.beta[0] * own.written[x]
        to.d_v[x] = own.d_u[x]
    to.d_beta[0] = sum_of(first, count)
    _write_back(it, to, scale, own)
    if it.normalise:
        _add_norms(it, to, scale, own)
