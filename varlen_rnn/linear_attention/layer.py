"""The entry to linear attention: choose the device, and cut a call into tasks (work items)."""

import numpy as np

from varlen_rnn.kernels.copies import full
from varlen_rnn.kernels.plans import place_evenly
from varlen_rnn.linear_attention import (
    backward_loop,
    backward_memory,
    cuda,
    forward_loop,
    rates_backward,
    rates_forward,
)
from varlen_rnn.linear_attention.blocks import Sizes, num_chunks
from varlen_rnn.linear_attention.rates import differentiate_block, pass_state, score_block, write_left
from varlen_rnn.linear_attention.scores import decay_scores
from varlen_rnn.linear_attention.steps import differentiate_steps, run_steps
from varlen_rnn.products.gemm import code_of
from varlen_rnn.products.tasks import UNLIMITED, run_tasks, tasks_of
from varlen_rnn.products.vectors import panel_width
from varlen_rnn.runtime.device import empty, on_device


def _tiny(dtype):
    return dtype.type(1e-25 if dtype == np.float32 else 1e-200)


def _sizes(q, v, decay, call):
    heads = call.heads
    depth, depth_v = q.shape[1] // heads.query, v.shape[1] // heads.value
    return Sizes(depth, depth_v, decay.shape[1] // heads.state, call.delta, call.keep)


def _tasks(call):
    offsets = call.offsets
    sequences = empty((len(offsets) - 1,), offsets)
    place_evenly(1, sequences)
    ones = full(sequences.shape, 1, sequences)
    return tasks_of(offsets, 0, UNLIMITED, call.heads.all, ones, sequences)


def forward(q, k, v, decay, beta, first, call):
    """Return the outputs of linear attention, the last states, and two operands of the gradient.

    Parameters
    ----------
    q : (rows, heads of queries * depth) C-contiguous, float32 or float64
    k : (rows, heads of keys * depth)
    v : (rows, heads of values * depth of values)
    decay : (rows, heads of states), or (rows, heads of states * depth)
        Logarithms.
    beta : (rows, heads of states)
    first : (sequences, heads of states * depth * depth of values)
    call : Call

    Returns
    -------
    out : (rows, heads * depth of values)
    last : as `first`
    written : (rows, heads * depth of values), with `delta` and `keep`; otherwise without rows
        The corrected values, u in `forward_loop`.
    states : (chunks, heads * depth * depth of values) with `keep`; otherwise without rows
        The state before each chunk, and zeros for numbers of no chunk (`num_chunks`).
    """
    sizes, heads = _sizes(q, v, decay, call), call.heads
    width, size = heads.all * sizes.depth_v, heads.all * sizes.depth * sizes.depth_v
    chunks = num_chunks(len(q), len(first))
    out, last = empty((len(q), width), q), empty(first.shape, q)
    written = empty((len(q) if call.delta and call.keep else 0, width), q)
    states = empty((chunks if call.keep else 0, size), q)
    if on_device(q):
        cuda.forward((q, k, v, decay, beta), first, (out, last, written, states), sizes, call)
        return out, last, written, states
    it = q, k, v, decay, beta, first, out, last, written, states, q.dtype.type(call.scale), _tiny(q.dtype)
    of_size, work = (sizes.depth, sizes.depth_v, panel_width(q.dtype)), len(q) * size * 4
    given = it, tuple(sizes), tuple(heads)
    if sizes.rates == 1:
        code = *code_of(q.dtype), decay_scores.address(q.dtype), run_steps.address(q.dtype), 0
        run_tasks(forward_loop.forward, code, _tasks(call), forward_loop.scratch_of(*of_size), work, q, given)
    else:
        functions = score_block, run_steps, pass_state
        code = *code_of(q.dtype), *(function.address(q.dtype) for function in functions)
        given = *given, forward_loop.scratch_of(*of_size)[0]
        run_tasks(rates_forward.forward, code, _tasks(call), rates_forward.scratch_of(*of_size), work, q, given)
    return out, last, written, states


def backward(q, k, v, decay, beta, written, states, d_out, d_last, call):
    """Return the gradients of queries, keys, values, decays, beta and first states, for each of all heads.

    Parameters
    ----------
    written, states
        The results of `forward`, with `keep`.
    d_out : (rows, heads * depth of values) C-contiguous
    d_last : (sequences, heads of states * depth * depth of values)
    """
    sizes, heads = _sizes(q, v, decay, call), call.heads
    columns, size = (sizes.depth, sizes.depth, sizes.depth_v, sizes.rates, 1), sizes.depth * sizes.depth_v
    gradients = [empty((len(q), heads.all * size), q) for size in columns]
    gradients.append(empty((len(d_last), heads.all * size), q))
    if on_device(q):
        given = q, k, written if call.delta else v, decay, beta
        cuda.backward(given, states, d_out, d_last, gradients, sizes, call)
        return gradients
    it = q, k, v, decay, beta, written, states, d_out, d_last, *gradients, q.dtype.type(call.scale), _tiny(q.dtype)
    of_size, work = (sizes.depth, sizes.depth_v, panel_width(q.dtype)), len(q) * heads.all * 12 * size
    (*places, count), offsets = backward_memory.places_of(*of_size), backward_memory.num_offsets(*of_size)
    given = it, tuple(sizes), tuple(heads), tuple(places)
    if sizes.rates == 1:
        code = *code_of(q.dtype), decay_scores.address(q.dtype), differentiate_steps.address(q.dtype), 0, 0, 0
        run_tasks(backward_loop.backward, code, _tasks(call), (count, offsets), work, q, given)
    else:
        functions = score_block, differentiate_steps, differentiate_block, write_left, pass_state
        code = *code_of(q.dtype), *(function.address(q.dtype) for function in functions)
        *steps, more = rates_backward.sizes_of(*of_size)
        given = *given, (count, *steps)
        run_tasks(rates_backward.backward, code, _tasks(call), (count + more, offsets), work, q, given)
    return gradients
