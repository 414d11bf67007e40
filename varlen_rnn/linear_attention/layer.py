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
from varlen_rnn.linear_attention.steps import differentiate_step, run_steps
from varlen_rnn.products.gemm import code_of
from varlen_rnn.products.tasks import UNLIMITED, run_tasks, tasks_of
from varlen_rnn.products.vectors import panel_width
from varlen_rnn.runtime.device import contiguous, empty, joined, on_device


def _tiny(dtype):
    return dtype.type(1e-25 if dtype == np.float32 else 1e-200)


def _sizes(q, v, decay, call):
    heads = call.heads
    depth, depth_v = q.shape[1] // heads.query, v.shape[1] // heads.value
    rates = decay.shape[1] // heads.state
    return Sizes(depth, depth_v, rates, call.delta, call.keep, call.has_state, call.normalise)


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


def forward(q, k, v, decay, beta, first, first_norms, call):
    """Return the outputs of linear attention, the last states, and operands of the gradient.

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
    first_norms : (sequences, heads of states * depth), with as many rows as `first`
        Normalisers; not read unless `call.normalise`.
    call : Call

    Returns
    -------
    out : (rows, heads * depth of values)
    last : (sequences, heads of states * depth * depth of values)
    written : (rows, heads * depth of values), with `delta` and `keep`; otherwise without rows
        The corrected values, u in `forward_loop`; with `normalise`, each head has another column, for values of 1.
    states : (chunks, heads * depth * depth of values) with `keep`; otherwise without rows
        The state before each chunk, and zeros for numbers of no chunk (`num_chunks`).
    norms : (rows, heads) with `normalise`; as the next two, otherwise without rows
    last_norms : (sequences, heads of states * depth)
    kept_norms : (chunks, heads * depth), as `states`
    """
    sizes, heads = _sizes(q, v, decay, call), call.heads
    if call.normalise and _needs_column(q, sizes):
        return _forward_by_column(q, k, v, decay, beta, first, first_norms, call)
    width, size = heads.all * sizes.depth_v, heads.all * sizes.depth * sizes.depth_v
    sequences = len(call.offsets) - 1
    chunks = num_chunks(len(q), sequences)
    out, last = empty((len(q), width), q), empty((sequences, first.shape[1]), q)
    written = empty((len(q) if call.delta and call.keep else 0, width + call.normalise * heads.all), q)
    states = empty((chunks if call.keep else 0, size), q)
    norms, last_norms, kept_norms = (
        empty((count if call.normalise else 0, columns), q) for count, columns in (
            (len(q), heads.all), (sequences, heads.state * sizes.depth), (len(states), heads.all * sizes.depth),
        )
    )  # fmt: skip
    if on_device(q):
        cuda.forward((q, k, v, decay, beta), first, (out, last, written, states), sizes, call)
        return out, last, written, states, norms, last_norms, kept_norms
    it = (
        q, k, v, decay, beta, first, out, last, written, states, norms, first_norms, last_norms, kept_norms,
        q.dtype.type(call.scale), _tiny(q.dtype),
    )  # fmt: skip
    of_size, work = (sizes.depth, sizes.depth_v, panel_width(q.dtype)), len(q) * size * 4
    given = it, tuple(sizes), tuple(heads)
    code = *code_of(q.dtype), *_forward_functions(sizes.rates, q.dtype)
    run_tasks(forward_loop.forward, code, _tasks(call), forward_loop.scratch_of(*of_size), work, q, given)
    return out, last, written, states, norms, last_norms, kept_norms


def _needs_column(q, sizes):
    """Return whether kernels compute a normaliser as a column of the state, for values of 1."""
    return on_device(q) or sizes.delta or sizes.rates > 1


def _forward_by_column(q, k, v, decay, beta, first, first_norms, call):
    """Return the results of `forward`, whose normalisers are the last columns of states."""
    heads, groups = call.heads, call.heads.all * (q.shape[1] // call.heads.query)
    wide, first = _with_ones(v, heads.value), _with_column(first, first_norms)
    call = call._replace(normalise=False)
    out, last, written, states, *_ = forward(q, k, wide, decay, beta, first, first_norms, call)
    (out, norms), (last, last_norms) = _without_column(out, heads.all), _without_column(last, first_norms.shape[1])
    states, kept_norms = _without_column(states, groups)
    return out, last, written, states, norms, last_norms, kept_norms


def _with_ones(v, heads):
    return _with_column(v, full((len(v), heads), 1, v))


def _with_column(array, column):
    """Return an array whose groups of columns end with a column each."""
    count, groups = column.shape
    size = array.shape[1] // groups
    found = joined([array.reshape(count, groups, size), column.reshape(count, groups, 1)], 2)
    return found.reshape(count, groups * (size + 1))


def _without_column(array, groups):
    """Return an array without the last column of each group, and these columns."""
    count, size = len(array), array.shape[1] // groups - 1
    parts = array.reshape(count, groups, size + 1)
    whole, column = contiguous(parts[:, :, :size]), contiguous(parts[:, :, size:])
    return whole.reshape(count, groups * size), column.reshape(count, groups)


def backward(operands, saved, gradients, call):
    """Return the gradients of the operands, for each of all heads.

    Parameters
    ----------
    operands
        The arguments of `forward` but `call`.
    saved : written, states, kept_norms
        Results of `forward`, with `keep`; without `keep`, the rows of a task are run again first.
    gradients : d_out, d_last, d_norms, d_last_norms
        The gradients of results of `forward`; the last two are not read unless `call.normalise`.
    call : Call
    """
    q, k, v, decay, beta, first, first_norms = operands
    written, states, kept_norms = saved
    d_out, d_last, d_norms, d_last_norms = gradients
    sizes, heads = _sizes(q, v, decay, call), call.heads
    if call.normalise and _needs_column(q, sizes):
        return _backward_by_column(operands, saved, gradients, call)
    if on_device(q) and not call.keep:
        call = call._replace(keep=True)
        _, _, written, states, *_ = forward(*operands, call)
    columns, size = (sizes.depth, sizes.depth, sizes.depth_v, sizes.rates, 1), sizes.depth * sizes.depth_v
    found = [empty((len(q), heads.all * size), q) for size in columns]
    found.append(empty((len(call.offsets) - 1, heads.all * size), q))
    d_first_norms = empty((len(call.offsets) - 1 if call.normalise else 0, heads.all * sizes.depth), q)
    if on_device(q):
        given = q, k, written if call.delta else v, decay, beta
        cuda.backward(given, states, d_out, d_last, found, sizes, call)
        return *found, d_first_norms
    it = (
        q, k, v, decay, beta, first, written, states, d_out, d_last, first_norms, kept_norms, d_norms, d_last_norms,
        d_first_norms, *found, q.dtype.type(call.scale),
    )  # fmt: skip
    of_size, work = (sizes.depth, sizes.depth_v, panel_width(q.dtype)), len(q) * heads.all * 12 * size
    (*places, count), offsets = backward_memory.places_of(*of_size), backward_memory.num_offsets(*of_size)
    kernel, kept, functions = backward_loop.backward, (), (0, 0)
    if sizes.rates > 1:
        kernel, functions = rates_backward.backward, [f.address(q.dtype) for f in (differentiate_block, write_left)]
        *steps, more = rates_backward.sizes_of(*of_size)
        kept, count = ((count, *steps),), count + more
    scores, of_steps, *others = _forward_functions(sizes.rates, q.dtype)
    code = *code_of(q.dtype), scores, differentiate_step.address(q.dtype), *functions, of_steps, *others
    again, scratch = (count, *[count] * 5, offsets), (count, offsets)
    if not call.keep:
        of_forward = forward_loop.scratch_of(*of_size)
        again, scratch = backward_memory.places_of_again(len(q), *of_size[:2], scratch, of_forward)
    given = (*it, _tiny(q.dtype)), tuple(sizes), tuple(heads), tuple(places), again, *kept
    run_tasks(kernel, code, _tasks(call), scratch, work, q, given)
    return *found, d_first_norms


def _backward_by_column(operands, saved, gradients, call):
    """Return the results of `backward`, whose normalisers are the last columns of states."""
    q, k, v, decay, beta, first, first_norms = operands
    (written, states, kept_norms), (d_out, d_last, d_norms, d_last_norms) = saved, gradients
    heads = call.heads
    first = _with_column(first, first_norms)
    operands = q, k, _with_ones(v, heads.value), decay, beta, first, first_norms
    saved = written, _with_column(states, kept_norms) if call.keep else states, kept_norms
    gradients = _with_column(d_out, d_norms), _with_column(d_last, d_last_norms), d_norms, d_last_norms
    *found, d_v, d_g, d_b, d_first, _ = backward(operands, saved, gradients, call._replace(normalise=False))
    d_v, _ = _without_column(d_v, heads.all)
    return *found, d_v, d_g, d_b, *_without_column(d_first, heads.all * (q.shape[1] // heads.query))
