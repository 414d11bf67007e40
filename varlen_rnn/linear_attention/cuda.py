"""Linear attention on CUDA, step by step: a thread has one column, or one row, of the state of a sequence and head.

Columns of a state depend on each other neither forward nor in the gradient of values.  Given the written values and
their gradients, neither do its rows in the gradients of queries, keys, decays and beta.  So no thread waits for
another.  Neighbouring threads have neighbouring columns or rows, and read and write neighbouring numbers.
"""

import numpy as np

from varlen_rnn.kernels.activations import exp
from varlen_rnn.kernels.reductions import sum_over
from varlen_rnn.linear_attention.blocks import CHUNK, chunks_before
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.device import beside, copy_into, empty, launch
from varlen_rnn.runtime.jit import body, cuda_kernel


@body
def head_of(array, head, heads):
    """Return which head of an array (rows, its heads, ...) belongs to head `head` of a call."""
    return head * array.shape[1] // heads


@body
def decay_of(decay, row, own, r):
    """Return the decay of row `r` of a state in row `row`; `own` is the head of `decay`."""
    return exp(decay[row, own, r if decay.shape[2] > 1 else 0])


@cuda_kernel
def run_columns(operands, first, offsets, delta, scale, out, written, states, state):
    """Move the columns of states over all rows; write outputs, and operands of the gradient if `states` has rows.

    `state` (sequences, heads, depth, depth of values) has one column for each thread, and becomes the state after the
    last row.
    """
    q, k, v, decay, beta = operands
    i, heads, depth, wide, kind = cuda.grid(1), state.shape[1], state.shape[2], state.shape[3], q.dtype.type
    if i >= state.shape[0] * heads * wide:
        return
    x, head, sequence = i % wide, i // wide % heads, i // wide // heads
    of_q, of_k, of_v, own = (
        head_of(q, head, heads), head_of(k, head, heads), head_of(v, head, heads), head_of(beta, head, heads)
    )  # fmt: skip
    for r in range(depth):
        state[sequence, head, r, x] = first[sequence, own, r, x]
    begin, chunk = offsets[sequence], chunks_before(offsets[sequence], sequence)
    for row in range(begin, offsets[sequence + 1]):
        if states.shape[0] and (row - begin) % CHUNK == 0:
            for r in range(depth):
                states[chunk, head, r, x] = state[sequence, head, r, x]
            chunk += 1
        read, total = kind(0), kind(0)
        for r in range(depth):
            value = decay_of(decay, row, own, r) * state[sequence, head, r, x]
            state[sequence, head, r, x] = value
            read += k[row, of_k, r] * value
        u = v[row, of_v, x] - read if delta else v[row, of_v, x]
        if written.shape[0]:
            written[row, head, x] = u
        for r in range(depth):
            value = state[sequence, head, r, x] + beta[row, own] * k[row, of_k, r] * u
            state[sequence, head, r, x] = value
            total += q[row, of_q, r] * value
        out[row, head, x] = scale * total
    if states.shape[0] and chunk < chunks_before(offsets[sequence + 1], sequence + 1):
        for r in range(depth):
            states[chunk, head, r, x] = 0


@cuda_kernel
def differentiate_columns(operands, offsets, delta, scale, d_out, d_last, d_v, d_state):
    """Write the gradients of values to `d_v`, and the gradients of first states to `d_state`.

    `d_state` (sequences, heads, depth, depth of values) has one column for each thread.
    """
    q, k, decay, beta = operands
    i, heads, depth, wide, kind = cuda.grid(1), d_state.shape[1], d_state.shape[2], d_state.shape[3], q.dtype.type
    if i >= d_state.shape[0] * heads * wide:
        return
    x, head, sequence = i % wide, i // wide % heads, i // wide // heads
    of_q, of_k, own = head_of(q, head, heads), head_of(k, head, heads), head_of(beta, head, heads)
    is_own = head % (heads // d_last.shape[1]) == 0  # the first head of a group writes the last state
    for r in range(depth):
        d_state[sequence, head, r, x] = d_last[sequence, own, r, x] if is_own else kind(0)
    for row in range(offsets[sequence + 1] - 1, offsets[sequence] - 1, -1):
        read = kind(0)
        for r in range(depth):
            d = d_state[sequence, head, r, x] + scale * q[row, of_q, r] * d_out[row, head, x]
            d_state[sequence, head, r, x] = d
            read += k[row, of_k, r] * d
        d_u = beta[row, own] * read
        d_v[row, head, x] = d_u
        for r in range(depth):
            erased = k[row, of_k, r] * d_u if delta else kind(0)
            d_state[sequence, head, r, x] = decay_of(decay, row, own, r) * (d_state[sequence, head, r, x] - erased)


@body
def states_again(k, u, decay, beta, states, place, rows, own, before):
    """Write row `r` of the state before each row of a chunk to `before`, (rows, depth of values, depth)."""
    head, r, chunk = place
    of_k, of_u = head_of(k, head, states.shape[1]), head_of(u, head, states.shape[1])
    for x in range(before.shape[1]):
        before[0, x, r] = states[chunk, head, r, x]
    for row in range(rows[0], rows[1] - 1):
        a, weight, t = decay_of(decay, row, own, r), beta[row, own] * k[row, of_k, r], row - rows[0]
        for x in range(before.shape[1]):
            before[t + 1, x, r] = a * before[t, x, r] + weight * u[row, of_u, x]


@body
def row_back(given, row, place, rates, before, d_state, found):
    """Write the gradients of row `row` by row `r` of the state before it, and move the gradient of the state."""
    q_r, k_r, u, d_out, d_u = given
    head, r, of_u = place
    a, b, scale, delta = rates
    kind = type(scale)
    of_q, of_k, of_decay, of_beta = kind(0), kind(0), kind(0), kind(0)
    for x in range(d_out.shape[2]):
        value, d_o, s = u[row, of_u, x], d_out[row, head, x], a * before[x, r]
        d = d_state[x, r] + scale * q_r * d_o
        of_q += (s + b * k_r * value) * d_o
        of_k += b * d * value
        of_beta += d * value
        if delta:
            of_k -= s * d_u[row, head, x]
            d -= k_r * d_u[row, head, x]
        of_decay += d * s
        d_state[x, r] = a * d
    d_q, d_k, d_decay, d_beta = found
    d_q[row, head, r], d_k[row, head, r] = scale * of_q, of_k
    d_decay[row, head, r], d_beta[row, head, r] = of_decay, k_r * of_beta


@cuda_kernel
def differentiate_rows(operands, offsets, delta, scale, states, given, before, found, d_state):
    """Write gradients that belong to the rows of states; `d_state` is (sequences, heads, depth of values, depth).

    `operands` are q, k, the written values, decay and beta; `given` are the gradients of outputs, values, and last
    states.  The gradients of decays and beta in `found` have a term for each row of the state.
    """
    (q, k, u, decay, beta), (d_out, d_u, d_last) = operands, given
    i, heads, wide, depth, kind = cuda.grid(1), d_state.shape[1], d_state.shape[2], d_state.shape[3], q.dtype.type
    if i >= d_state.shape[0] * heads * depth:
        return
    r, head, sequence = i % depth, i // depth % heads, i // depth // heads
    of_q, of_k, own, of_u = (
        head_of(q, head, heads), head_of(k, head, heads), head_of(beta, head, heads), head_of(u, head, heads)
    )  # fmt: skip
    is_own, d = head % (heads // d_last.shape[1]) == 0, d_state[sequence, head]
    for x in range(wide):
        d[x, r] = d_last[sequence, own, r, x] if is_own else kind(0)
    begin, end, kept = offsets[sequence], offsets[sequence + 1], before[sequence, head]
    chunks = (end - begin + CHUNK - 1) // CHUNK
    for back in range(chunks):
        start, chunk = begin + (chunks - 1 - back) * CHUNK, chunks_before(begin, sequence) + chunks - 1 - back
        stop = end if end < start + CHUNK else start + CHUNK
        states_again(k, u, decay, beta, states, (head, r, chunk), (start, stop), own, kept)
        for row in range(stop - 1, start - 1, -1):
            rates = decay_of(decay, row, own, r), beta[row, own], scale, delta
            of_row = q[row, of_q, r], k[row, of_k, r], u, d_out, d_u
            row_back(of_row, row, (head, r, of_u), rates, kept[row - start], d, found)


def _by_heads(array, size):
    """Return a view (rows, heads, size)."""
    return array.reshape(len(array), array.shape[1] // size, size)


def _operands(q, k, v, decay, beta, sizes):
    """Return views of the operands by heads."""
    return (
        _by_heads(q, sizes.depth), _by_heads(k, sizes.depth), _by_heads(v, sizes.depth_v),
        _by_heads(decay, sizes.rates), beta,
    )  # fmt: skip


def _states(array, heads, sizes):
    """Return a view (number, heads, depth, depth of values) of states."""
    return array.reshape(len(array), heads, sizes.depth, sizes.depth_v)


def forward(given, first, outputs, sizes, call):
    """Twin of `layer.forward`: write the outputs; `given` are q, k, v, decay and beta."""
    out, last, written, states = outputs
    heads, of_state, scale = call.heads.all, call.heads.state, first.dtype.type(call.scale)
    state = empty((len(first), heads, sizes.depth, sizes.depth_v), first)
    results = _by_heads(out, sizes.depth_v), _by_heads(written, sizes.depth_v), _states(states, heads, sizes), state
    columns = len(first) * heads * sizes.depth_v
    operands, offsets = _operands(*given, sizes), beside(call.offsets, first)
    launch(run_columns, columns, operands, _states(first, of_state, sizes), offsets, call.delta, scale, *results)
    copy_into(_states(last, of_state, sizes), state[:, :: heads // of_state])


def backward(given, states, d_out, d_last, gradients, sizes, call):
    """Twin of `layer.backward`: write the gradients; `given` are q, k, the written values, decay and beta."""
    d_q, d_k, d_v, d_decay, d_beta, d_first = gradients
    rows, heads, depth, wide = len(d_out), call.heads.all, sizes.depth, sizes.depth_v
    offsets, scale = beside(call.offsets, d_out), d_out.dtype.type(call.scale)
    operands = q, k, _, decay, beta = _operands(*given, sizes)
    d_out, d_v, d_last = _by_heads(d_out, wide), _by_heads(d_v, wide), _states(d_last, call.heads.state, sizes)
    of_columns = (q, k, decay, beta), offsets, call.delta, scale, d_out, d_last, d_v
    launch(differentiate_columns, len(d_first) * heads * wide, *of_columns, _states(d_first, heads, sizes))
    longest = min(CHUNK, int(np.diff(call.offsets).max(initial=0)))
    before, moving = (empty((len(d_first), heads, *shape), d_out) for shape in ((longest, wide, depth), (wide, depth)))
    terms = [empty((rows, heads, depth), d_out) for _ in range(2)]
    found = _by_heads(d_q, depth), _by_heads(d_k, depth), *terms
    of_rows = operands, offsets, call.delta, scale, _states(states, heads, sizes), (d_out, d_v, d_last), before, found
    launch(differentiate_rows, len(d_first) * heads * depth, *of_rows, moving)
    copy_into(d_beta, sum_over(terms[1], 2))
    copy_into(d_decay, terms[0].reshape(rows, heads * depth) if sizes.rates > 1 else sum_over(terms[0], 2))
