"""The recurrence step by step, for a sequence of one row, such as a step of a stream; and its gradient.

A state is (depth, depth of values) here, and stays in the first-level cache.  A step reads it once for `S^T k`, with
`delta`, and once to update it and to read `S^T q`.  All functions are compiled separately, so that their inner loops,
over neighbours of a row of the state, are vectorised.
"""

from typing import Any, NamedTuple

from numba import types

from varlen_rnn.attention.blocks import in_panels
from varlen_rnn.kernels.activations import exp
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


class Written(NamedTuple):
    """Where steps write outputs, and then `u` for the gradient if `keep`: addresses, and elements from row to row."""

    out: Any
    u: Any
    stride: int
    keep: bool


class Gradients(NamedTuple):
    """Where the gradient of steps reads and writes; `d_decay` has one number for each decay."""

    d_out: Any
    d_q: Any
    d_k: Any
    d_v: Any
    d_decay: Any
    d_beta: Any
    d_state: Any  # the gradient of the state after the last row; becomes the gradient of the state before the first row
    states: Any  # scratch for the state before each row
    depth_stride: int  # of `d_q` and `d_k`
    v_stride: int  # of `d_out` and `d_v`
    decay_stride: int
    beta_stride: int


class _Scratch(NamedTuple):
    """Memory of the gradient of a row: decays, dS^T k, du, and products, which are summed over `count` numbers."""

    decays: Any
    written: Any
    d_u: Any
    first: Any
    second: Any
    count: int


def scratch_of_steps(depth, depth_v, width):
    """Return how many numbers `Steps.memory` has."""
    return depth + 4 * (-(-depth_v // width) * width)


def _steps(scalar):
    number, address = types.intp, types.CPointer(scalar)
    return types.NamedTuple((*[address] * 7, *[number] * 9, types.boolean), Steps)


def _arguments(scalar):
    number, address = types.intp, types.CPointer(scalar)
    return _steps(scalar), types.NamedTuple((address, address, number, types.boolean), Written), scalar


def _arguments_of_gradient(scalar):
    number, address = types.intp, types.CPointer(scalar)
    return _steps(scalar), types.NamedTuple((*[address] * 8, *[number] * 4), Gradients), scalar


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


@cpu_inlined
def _states_again(it, to):
    """Write the state before each row, and run the steps in place on the state."""
    for t in range(it.rows):
        k, u, beta = offset(it.k, t * it.k_stride), offset(it.v, t * it.v_stride), it.beta[t * it.beta_stride]
        decays, before = it.memory, offset(to.states, t * it.depth * it.depth_v)
        _read_decays(it, t, decays)
        for r in range(it.depth):
            decay, weight = decays[r], beta * k[r]
            row, saved = offset(it.state, r * it.depth_v), offset(before, r * it.depth_v)
            for x in range(it.depth_v):
                saved[x] = row[x]
                row[x] = decay * row[x] + weight * u[x]


@cpu_inlined
def _read_back(it, to, scale, t, own):
    """Write the gradient of the query of row `t`; add the row's read to dS; write dS^T k to `own.written`."""
    q, k, u = offset(it.q, t * it.q_stride), offset(it.k, t * it.k_stride), offset(it.v, t * it.v_stride)
    d_o, d_q = offset(to.d_out, t * to.v_stride), offset(to.d_q, t * to.depth_stride)
    before, beta = offset(to.states, t * it.depth * it.depth_v), it.beta[t * it.beta_stride]
    for x in range(it.depth_v):
        own.written[x] = type(scale)(0)
    for r in range(it.depth):
        row, d_row = offset(before, r * it.depth_v), offset(to.d_state, r * it.depth_v)
        decay, weight, factor, of_key = own.decays[r], beta * k[r], scale * q[r], k[r]
        for x in range(it.depth_v):
            d = d_o[x]
            own.first[x] = (decay * row[x] + weight * u[x]) * d
            total = d_row[x] + factor * d
            d_row[x] = total
            own.written[x] += of_key * total
        d_q[r] = scale * sum_of(own.first, own.count)


@cpu_inlined
def _write_back(it, to, scale, t, own):
    """Write the gradients of the key and of decays of row `t`; move dS before the row."""
    k, u, d_k = offset(it.k, t * it.k_stride), offset(it.v, t * it.v_stride), offset(to.d_k, t * to.depth_stride)
    before, d_u, beta = offset(to.states, t * it.depth * it.depth_v), own.d_u, it.beta[t * it.beta_stride]
    total, d_decay = type(scale)(0), offset(to.d_decay, t * to.decay_stride)
    for r in range(it.depth):
        row, d_row = offset(before, r * it.depth_v), offset(to.d_state, r * it.depth_v)
        decay, erased = own.decays[r], k[r] if it.delta else type(scale)(0)
        for x in range(it.depth_v):
            own.first[x] = beta * (d_row[x] * u[x])
            value = d_row[x] - erased * d_u[x]
            own.second[x] = value * row[x]
            d_row[x] = decay * value
        if it.delta:
            for x in range(it.depth_v):
                own.first[x] -= decay * (row[x] * d_u[x])
        d_k[r] = sum_of(own.first, own.count)
        of_decay = decay * sum_of(own.second, own.count)
        total += of_decay
        if it.rates > 1:
            d_decay[r] = of_decay
    if it.rates == 1:
        d_decay[0] = total


@called_by_address(_arguments_of_gradient)
def differentiate_steps(it, to, scale):
    """Write the gradients of some rows, from the last to the first; `it.state` is used as memory."""
    vectorise_widely()
    kind = type(scale)
    _states_again(it, to)
    count, written = in_panels(it.memory, it.depth_v), offset(it.memory, it.depth)
    first = offset(written, 2 * it.depth_v)
    own = _Scratch(it.memory, written, offset(written, it.depth_v), first, offset(first, count), count)
    for x in range(2 * count):
        first[x] = kind(0)
    for back in range(it.rows):
        t = it.rows - 1 - back
        u, beta = offset(it.v, t * it.v_stride), it.beta[t * it.beta_stride]
        _read_decays(it, t, own.decays)
        _read_back(it, to, scale, t, own)
        for x in range(it.depth_v):
            first[x] = own.written[x] * u[x]
            own.d_u[x] = beta * own.written[x]
            to.d_v[t * to.v_stride + x] = own.d_u[x]
        to.d_beta[t * to.beta_stride] = sum_of(first, count)
        _write_back(it, to, scale, t, own)
