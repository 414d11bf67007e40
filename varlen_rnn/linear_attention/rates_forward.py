"""Linear attention on the CPU where each row of a state has a decay: chunks are run in blocks of `SOLVED` rows.

With the names of `rates`, and the state S before a block:

    u = v - keys S - tril(A, -1) y        y = b u          without `delta`, u = v
    o = queries S + tril(M) y             S <- whole S + left^T y
"""

from varlen_rnn.attention.blocks import in_panels
from varlen_rnn.linear_attention.blocks import CHUNK, SOLVED, load_state, store_state, times
from varlen_rnn.linear_attention.forward_loop import (
    arguments_of_rows,
    keep_state,
    run_by_steps,
    values_to_panels,
    write_results,
)
from varlen_rnn.linear_attention.rates import Given, State, block_of, pass_state, score_block
from varlen_rnn.linear_attention.triangles import add_lower, solve_lower
from varlen_rnn.products.tile import Panels, Rows, Sums
from varlen_rnn.products.vectors import least, offset, vectorise_widely, width_of
from varlen_rnn.runtime.jit import called_by_address, cpu_inlined


@cpu_inlined
def given_of(of, row, rows, sizes, turned):
    """Return the Given of the block that begins at `row`."""
    k = offset(of.k, row * of.k_stride)
    return Given(
        offset(of.q, row * of.q_stride), k, offset(of.decay, row * of.decay_stride), of.q_stride, of.k_stride,
        of.decay_stride, turned, width_of(turned), rows, sizes.depth, in_panels(turned, sizes.depth),
    )  # fmt: skip


@cpu_inlined
def leave(code, block, state, left_turned, y, rows_of, sizes, like):
    """Move a state in panels behind a block: S <- whole S + left^T y; `y` are Panels."""
    width, padded = width_of(state), in_panels(state, sizes.depth)
    whole = State(
        state, block.whole, state, state, state, padded * width, in_panels(state, sizes.depth_v) // width, sizes.depth,
        False,
    )  # fmt: skip
    pass_state(code.pass_state, (whole, like))
    to = Sums(state, rows_of, padded * width)
    times(code, sizes.depth, sizes.depth_v, Rows(left_turned, rows_of), y, to, to)


@cpu_inlined
def _run_block(code, memory, block, it, of, sizes, row, rows):
    """Run a block: write its outputs in panels to `memory.read`, u to `memory.u`, and y to `memory.y`."""
    width, beta = width_of(memory.y), offset(of.beta, row * of.beta_stride)
    panels, step = in_panels(memory.y, sizes.depth_v) // width, CHUNK * width
    for i in range(rows):
        memory.betas[i], memory.since[i] = beta[i * of.beta_stride], 1
    given = given_of(of, row, rows, sizes, memory.keys)
    score_block(code.scores, (block, given, it.scale, it.tiny))
    zeros, rows_of = Sums(memory.zeros, memory.no_rows, 0), memory.panel_rows
    state = Panels(memory.state, in_panels(memory.y, sizes.depth) * width, sizes.depth)
    times(
        code,
        rows,
        sizes.depth_v,
        Rows(block.queries, memory.block_rows),
        state,
        zeros,
        Sums(memory.read, rows_of, step),
    )
    if sizes.delta:
        times(
            code,
            rows,
            sizes.depth_v,
            Rows(block.keys, memory.block_rows),
            state,
            zeros,
            Sums(memory.y, rows_of, step),
        )
    v = offset(of.v, row * of.v_stride)
    values_to_panels(memory, v, of.v_stride, sizes, rows, offset(v, SOLVED * of.v_stride))
    for p in range(panels):
        y, u = offset(memory.y, p * step), offset(memory.u, p * step)
        if sizes.delta:
            solve_lower(block.of_keys, y, u, memory.betas)
        add_lower(block.of_queries, y, offset(memory.read, p * step), memory.betas)


@called_by_address(arguments_of_rows)
def run_blocks(code, memory, it, of, sizes, first, end, counters):
    """Run the rows `first` to `end`, all of a task, by blocks, or a single row by a step."""
    vectorise_widely()
    if end - first < 2:
        run_by_steps(code, memory, it, of, sizes, first, end)
        return
    block = block_of(memory.block, in_panels(memory.y, sizes.depth))
    load_state(it.first, sizes, memory.state)
    for row in range(first, end, SOLVED):
        rows, done = least(SOLVED, end - row), row - first
        keep_state(memory, it, sizes, done)
        _run_block(code, memory, block, it, of, sizes, row, rows)
        write_results(memory, it, sizes, done, rows)
        y = Panels(memory.y, CHUNK * width_of(memory.y), rows)
        leave(code, block, memory.state, memory.keys, y, memory.panel_rows, sizes, it.scale)
    store_state(memory.state, sizes, it.last)
