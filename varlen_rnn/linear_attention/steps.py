"""The recurrence step by step, for a sequence of one row, and for decays of each row of a state; and its gradient.

A state is (depth, depth of values) here, and stays in the first-level cache.  A step reads it once for `S^T k`, with
`delta`, and once to update it and to read `S^T q`.  All functions are compiled separately, so that their inner loops,
over neighbours of a row of the state, are vectorised.
"""

from typing import Any, NamedTuple

from numba import types

from varlen_rnn.kernels.activations import exp
from varlen_rnn.products.vectors import offset, vectorise_widely
from varlen_rnn.runtime.jit import called_by_address, cpu_inlined


class Steps(NamedTuple):
    """Rows of one head: addresses in its first row, strides from row to row in elements, and sizes."""

    q: Any
    k: Any
    v: Any  # values; in the gradient with `delta`, corrected values
    decay: Any
    beta: Any
    state: Any  # the state before the first row
    memory: Any  # 2 depth + 2 (depth of values) numbers of scratch
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
    """Where steps write outputs, and `u` for the gradient if `keep`: addresses, and elements from row to row."""

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


def scratch_of_steps(depth, depth_v):
    """Return how many numbers `Steps.memory` has."""
    return 2 * depth + 2 * depth_v


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
        if to.keep:
            u = offset(to.u, t * to.stride)
            for x in range(it.depth_v):
                u[x] = read[x]
        for r in range(it.depth):
            decay, weight, factor, row = decays[r], beta * k[r], scale * q[r], offset(it.state, r * it.depth_v)
            for x in range(it.depth_v):
                value = decay * row[x] + weight * read[x]
                row[x] = value
                out[x] += factor * value
        o = offset(to.out, t * to.stride)
        for x in range(it.depth_v):
            o[x] = out[x]


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


@called_by_address(_arguments_of_gradient)
def differentiate_steps(it, to, scale):
    """Write the gradients of some rows, from the last to the first; `it.state` is used as memory."""
    vectorise_widely()
    kind = type(scale)
    _states_again(it, to)
    decays, of_key = it.memory, offset(it.memory, it.depth)
    written, d_u = offset(of_key, it.depth), offset(of_key, it.depth + it.depth_v)
    for back in range(it.rows):
        t = it.rows - 1 - back
        q, k, u = offset(it.q, t * it.q_stride), offset(it.k, t * it.k_stride), offset(it.v, t * it.v_stride)
        d_o, d_q, d_k = (
            offset(to.d_out, t * to.v_stride), offset(to.d_q, t * to.depth_stride), offset(to.d_k, t * to.depth_stride)
        )  # fmt: skip
        beta, before, d_beta = it.beta[t * it.beta_stride], offset(to.states, t * it.depth * it.depth_v), kind(0)
        _read_decays(it, t, decays)
        for x in range(it.depth_v):
            written[x] = kind(0)
        for r in range(it.depth):  # dq, and dS^T k in `written`
            row, d_row = offset(before, r * it.depth_v), offset(to.d_state, r * it.depth_v)
            decay, weight, factor, total = decays[r], beta * k[r], scale * q[r], kind(0)
            for x in range(it.depth_v):
                total += (decay * row[x] + weight * u[x]) * d_o[x]
                d_row[x] += factor * d_o[x]
                written[x] += k[r] * d_row[x]
            d_q[r] = scale * total
        for x in range(it.depth_v):
            d_beta += written[x] * u[x]
            d_u[x] = beta * written[x]
            to.d_v[t * to.v_stride + x] = d_u[x]
        to.d_beta[t * to.beta_stride] = d_beta
        for r in range(it.depth):  # dk and the gradient of the decay
            row, d_row = offset(before, r * it.depth_v), offset(to.d_state, r * it.depth_v)
            decay, erased = decays[r], k[r] if it.delta else kind(0)
            of_writing, of_reading, of_decay = kind(0), kind(0), kind(0)
            for x in range(it.depth_v):
                of_writing += d_row[x] * u[x]
                of_reading += row[x] * d_u[x]
                value = d_row[x] - erased * d_u[x]
                of_decay += value * row[x]
                d_row[x] = decay * value
            d_k[r] = beta * of_writing - (decay * of_reading if it.delta else kind(0))
            of_key[r] = decay * of_decay
        d_decay, total = offset(to.d_decay, t * to.decay_stride), kind(0)
        for r in range(it.depth):
            total += of_key[r]
            if it.rates > 1:
                d_decay[r] = of_key[r]
        if it.rates == 1:
            d_decay[0] = total
