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
    return Sizes(depth, depth_v, decay.shape[1] // heads.state, call.delta, call.keep, call.has_state)


def _tasks(call):
    offsets = call.offsets
    sequences = empty((len(offsets) - 1,), offsets)
    place_evenly(1, sequences)
    ones = full(sequences.shape, 1, sequences)
    return tasks_of(offsets, 0, UNLIMITED, call.heads.all, ones, sequences)


def _forward_functions(rates, dtype):
    """Return the addresses of the functions that the forward loop calls; `rates` are the decays of a head in a row."""
    functions = (decay_scores, run_steps) if rates == 1 else (score_block, run_steps, pass_state)
    found = [function.address(dtype) for function in functions]
    run_rows = forward_loop.run_chunks if rates == 1 else rates_forward.run_blocks
    return *found, *([0] if rates == 1 else []), run_rows.address(dtype)


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
        On the host, a single row may belong to all sequences.
    call : Call

    Returns
    -------
    out : (rows, heads * depth of values)
    last : (sequences, heads of states * depth * depth of values)
    written : (rows, heads * depth of values), with `delta` and `keep`; otherwise without rows
        The corrected values, u in `forward_loop`.
    states : (chunks, heads * depth * depth of values) with `keep`; otherwise without rows
        The state before each chunk, and zeros for numbers of no chunk (`num_chunks`).
    """
    sizes, heads = _sizes(q, v, decay, call), call.heads
    width, size = heads.all * sizes.depth_v, heads.all * sizes.depth * sizes.depth_v
    sequences = len(call.offsets) - 1
    chunks = num_chunks(len(q), sequences)
    out, last = empty((len(q), width), q), empty((sequences, first.shape[1]), q)
    written = empty((len(q) if call.delta and call.keep else 0, width), q)
    states = empty((chunks if call.keep else 0, size), q)
    if on_device(q):
        cuda.forward((q, k, v, decay, beta), first, (out, last, written, states), sizes, call)
        return out, last, written, states
    it = q, k, v, decay, beta, first, out, last, written, states, q.dtype.type(call.scale), _tiny(q.dtype)
    of_size, work = (sizes.depth, sizes.depth_v, panel_width(q.dtype)), len(q) * size * 4
    given = it, tuple(sizes), tuple(heads)
    code = *code_of(q.dtype), *_forward_functions(sizes.rates, q.dtype)
    run_tasks(forward_loop.forward, code, _tasks(call), forward_loop.scratch_of(*of_size), work, q, given)
    return out, last, written, states


def backward(q, k, v, decay, beta, first, written, states, d_out, d_last, call):
    """Return the gradients of queries, keys, values, decays, beta and first states, for each of all heads.

    Parameters
    ----------
    written, states
        The results of `forward`, with `keep`; without `keep`, the rows of a task are run again first.
    d_out : (rows, heads * depth of values) C-contiguous
    d_last : as `first`
    """
    if on_device(q) and not call.keep:
        call = call._replace(keep=True)
        _, _, written, states = forward(q, k, v, decay, beta, first, call)
    sizes, heads = _sizes(q, v, decay, call), call.heads
    columns, size = (sizes.depth, sizes.depth, sizes.depth_v, sizes.rates, 1), sizes.depth * sizes.depth_v
    gradients = [empty((len(q), heads.all * size), q) for size in columns]
    gradients.append(empty((len(call.offsets) - 1, heads.all * size), q))
    if on_device(q):
        given = q, k, written if call.delta else v, decay, beta
        cuda.backward(given, states, d_out, d_last, gradients, sizes, call)
        return gradients
    it = q, k, v, decay, beta, first, written, states, d_out, d_last, *gradients, q.dtype.type(call.scale)
    of_size, work = (sizes.depth, sizes.depth_v, panel_width(q.dtype)), len(q) * heads.all * 12 * size
    (*places, count), offsets = backward_memory.places_of(*of_size), backward_memory.num_offsets(*of_size)
    kernel, kept, functions = backward_loop.backward, (), (0, 0)
    if sizes.rates > 1:
        kernel, functions = rates_backward.backward, [f.address(q.dtype) for f in (differentiate_block, write_left)]
        *steps, more = rates_backward.sizes_of(*of_size)
        kept, count = ((count, *steps),), count + more
    scores, of_steps, *others = _forward_functions(sizes.rates, q.dtype)
    code = *code_of(q.dtype), scores, differentiate_steps.address(q.dtype), *functions, of_steps, *others
    again, scratch = (count, count, count, count, offsets), (count, offsets)
    if not call.keep:
        of_forward = forward_loop.scratch_of(*of_size)
        again, scratch = backward_memory.places_of_again(len(q), *of_size[:2], scratch, of_forward)
    given = (*it, _tiny(q.dtype)), tuple(sizes), tuple(heads), tuple(places), again, *kept
    run_tasks(kernel, code, _tasks(call), scratch, work, q, given)
    return gradients
