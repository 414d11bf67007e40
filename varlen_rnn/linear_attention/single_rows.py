"""One row of each sequence, such as a step of generation, by a single call of a compiled function.

The general loop cuts a call into tasks, whose lists take longer than a step of one sequence.  Here, all operands have
a row for each head of each sequence: for example, 2 sequences with 4 states each, whose keys serve 2 states, have 8
rows of values and 4 rows of keys, and row 5 of the values belongs to row 2 of the keys.
"""

from typing import Any, NamedTuple

from varlen_rnn.kernels.norms import LANES, normalise_row
from varlen_rnn.linear_attention.steps import Steps, Written, run_steps, scratch_of_steps
from varlen_rnn.products.vectors import panel_width, pointer, vectorise_widely
from varlen_rnn.runtime.device import empty
from varlen_rnn.runtime.jit import cpu_kernel
from varlen_rnn.runtime.threads import count_shards, for_each_shard


class _Call(NamedTuple):
    """Arrays with a row for each head of each sequence, and constants."""

    q: Any
    k: Any
    v: Any
    decay: Any
    beta: Any
    first: Any
    out: Any
    last: Any
    eps: float  # of `normalise_row`; below 0 if queries and keys stay as they are
    scale: Any
    delta: bool


@cpu_kernel
def _run(shard, num_shards, code, call, numbers):
    """Run the steps of a shard."""
    vectorise_widely()
    q, k, v, decay, beta, first, out, last, eps, scale, delta = call
    kind, depth, depth_v, units = out.dtype.type, q.shape[1], v.shape[1], eps >= 0
    own = numbers[shard]
    query, key, lanes = own[:depth], own[depth : 2 * depth], own[2 * depth : 2 * depth + LANES]
    memory, factor = pointer(own, 2 * depth + LANES), kind(depth**-0.5 if units else 1)
    for row in range(v.shape[0] * shard // num_shards, v.shape[0] * (shard + 1) // num_shards):
        of_key = row * k.shape[0] // v.shape[0]
        if units:
            normalise_row(q[of_key], eps, False, lanes, query)
            normalise_row(k[of_key], eps, False, lanes, key)
        else:
            query[:], key[:] = q[of_key], k[of_key]
        for r in range(depth):
            key[r] *= factor
        state, before = pointer(last, row * last.shape[1]), pointer(first, row * last.shape[1])
        for j in range(last.shape[1]):
            state[j] = before[j]
        steps = Steps(
            pointer(query, 0), pointer(key, 0), pointer(v, row * depth_v), pointer(decay, row * decay.shape[1]),
            pointer(beta, row), state, state, memory, 0, 0, 0, 0, 0, 1, depth, depth_v, decay.shape[1], delta, False,
        )  # fmt: skip
        at = pointer(out, row * depth_v)
        run_steps(code, (steps, Written(at, at, at, 0, 0, False), scale))


def run_single_rows(q, k, v, decay, beta, first, delta, units, scale):
    """Return the outputs and states of one step of each sequence, with the bits of the operator `linear_attention`.

    Parameters
    ----------
    q, k : (sequences * heads of keys, depth) C-contiguous, float32 or float64
        The rows of `v` are a multiple of theirs.
    v : (sequences * heads, depth of values)
    decay : (sequences * heads, 1), or (sequences * heads, depth)
        Logarithms.
    beta : (sequences * heads, 1)
    first : (sequences * heads, depth * depth of values)
    delta : bool
        As in `Call`.
    units : float, or None
        If it is given, vectors of queries and keys x become `x / sqrt(sum of x^2 + units)`.
    scale : float

    Returns
    -------
    out : (sequences * heads, depth of values)
    last : as `first`
    """
    depth, scratch = q.shape[1], scratch_of_steps(q.shape[1], v.shape[1], panel_width(q.dtype))
    shards = count_shards(4 * first.size, len(v))
    numbers, out, last = empty((shards, 2 * depth + LANES + scratch), q), empty(v.shape, q), empty(first.shape, q)
    eps, scale = (-1.0, scale) if units is None else (units / depth, scale * depth**-0.5)
    call = _Call(q, k, v, decay, beta, first, out, last, eps, q.dtype.type(scale), delta)
    for_each_shard(_run, run_steps.address(q.dtype), call, numbers, num_shards=shards)
    return out, last
