"""The entry to linear attention: choose the device, and cut a call into tasks (work items)."""

import numpy as np

from varlen_rnn.kernels.copies import full
from varlen_rnn.kernels.plans import place_evenly
from varlen_rnn.linear_attention import backward_loop, backward_memory, cuda, forward_loop
from varlen_rnn.linear_attention.blocks import Sizes, num_chunks
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
    functions = decay_scores, run_steps
    code = *code_of(q.dtype), *(function.address(q.dtype) for function in functions)
    scratch = forward_loop.scratch_of(sizes.depth, sizes.depth_v, panel_width(q.dtype))
    work = len(q) * heads.all * 4 * sizes.depth * sizes.depth_v
    run_tasks(forward_loop.forward, code, _tasks(call), scratch, work, q, (it, tuple(sizes), tuple(heads)))
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
    of = {"depth": sizes.depth, "depth_v": sizes.depth_v}
    columns = sizes.depth, sizes.depth, sizes.depth_v, sizes.rates, 1
    gradients = [empty((len(q), heads.all * size), q) for size in columns]
    gradients.append(empty((len(d_last), heads.all * sizes.depth * sizes.depth_v), q))
    if on_device(q):
        given = q, k, written if call.delta else v, decay, beta
        cuda.backward(given, states, d_out, d_last, gradients, sizes, call)
        return gradients
    it = q, k, v, decay, beta, written, states, d_out, d_last, *gradients, q.dtype.type(call.scale), _tiny(q.dtype)
    functions = decay_scores, differentiate_steps
    code = *code_of(q.dtype), *(function.address(q.dtype) for function in functions)
    width = panel_width(q.dtype)
    places = backward_memory.places_of(**of, rates=sizes.rates, width=width)
    scratch = places[-1], backward_memory.num_offsets(**of, width=width)
    work = len(q) * heads.all * 12 * sizes.depth * sizes.depth_v
    tasks = _tasks(call)
    run_tasks(backward_loop.backward, code, tasks, scratch, work, q, (it, tuple(sizes), tuple(heads), places[:-1]))
    return gradients
