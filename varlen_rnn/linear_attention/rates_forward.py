"""Linear attention on the CPU where each row of a state has a decay: chunks are run in blocks of `SOLVED` rows.

With the names of `rates`, and the state S before a block:

    u = v - keys S - tril(A, -1) y        y = b u          without `delta`, u = v
    o = queries S + tril(M) y             S <- whole S + left^T y
"""

from varlen_rnn.attention.blocks import in_panels
from varlen_rnn.linear_attention import forward_loop
from varlen_rnn.linear_attention.blocks import (
    CHUNK,
    SOLVED,
    Heads,
    Sizes,
    chunks_before,
    clear,
    load_state,
    operands_of,
    own_state,
    store_state,
    task_of,
    times,
)
from varlen_rnn.linear_attention.forward_loop import (
    Code,
    Forward,
    clear_unused,
    memory_of,
    run_by_steps,
    states_of,
    values_to_panels,
    write_rows,
)
from varlen_rnn.linear_attention.rates import Given, State, block_of, pass_state, score_block, size_of_block
from varlen_rnn.linear_attention.triangles import add_lower, solve_lower
from varlen_rnn.products.sync import arrive
from varlen_rnn.products.tile import Panels, Rows, Sums
from varlen_rnn.products.vectors import least, offset, pointer, vectorise_widely, width_of
from varlen_rnn.runtime.jit import cpu_inlined, engine_kernel


def scratch_of(depth, depth_v, width):
    """Return how many elements of the data type, and how many int64 offsets, a thread needs."""
    numbers, offsets = forward_loop.scratch_of(depth, depth_v, width)
    return numbers + size_of_block(-(-depth // width) * width), offsets + SOLVED


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
def _run_block(code, memory, block, block_rows, it, of, sizes, row, rows):
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
        Rows(block.queries, block_rows),
        state,
        zeros,
        Sums(memory.read, rows_of, step),
    )
    if sizes.delta:
        times(
            code,
            rows,
            sizes.depth_v,
            Rows(block.keys, block_rows),
            state,
            zeros,
            Sums(memory.y, rows_of, step),
        )
    values_to_panels(memory, offset(of.v, row * of.v_stride), of.v_stride, sizes, rows)
    for p in range(panels):
        y, u = offset(memory.y, p * step), offset(memory.u, p * step)
        if sizes.delta:
            solve_lower(block.of_keys, y, u, memory.betas)
        add_lower(block.of_queries, y, offset(memory.read, p * step), memory.betas)


@cpu_inlined
def _run_by_blocks(code, memory, block, block_rows, it, of, sizes, task):
    """Run a task by blocks."""
    size, own = sizes.depth * sizes.depth_v, task.head * sizes.depth_v
    for row in range(task.first, task.end, SOLVED):
        rows, done = least(SOLVED, task.end - row), row - task.first
        if sizes.keep and done % CHUNK == 0:
            chunk = chunks_before(task.first, task.sequence) + done // CHUNK
            store_state(memory.state, sizes, pointer(it.states, chunk * it.states.shape[1] + task.head * size))
        _run_block(code, memory, block, block_rows, it, of, sizes, row, rows)
        write_rows(memory.read, rows, sizes, pointer(it.out, row * it.out.shape[1] + own), it.out.shape[1])
        if sizes.delta and sizes.keep:
            written = pointer(it.written, row * it.written.shape[1] + own)
            write_rows(memory.u, rows, sizes, written, it.written.shape[1])
        y = Panels(memory.y, CHUNK * width_of(memory.y), rows)
        leave(code, block, memory.state, memory.keys, y, memory.panel_rows, sizes, it.scale)


@engine_kernel
def forward(shard, num_shards, code, counters, tasks, numbers, offsets, call):
    """Run the tasks that a thread takes; `call[3]` is where the memory of blocks begins, in numbers."""
    vectorise_widely()
    code, it, sizes, heads = Code(*code), Forward(*call[0]), Sizes(*call[1]), Heads(*call[2])
    counter, own = pointer(counters, 0), pointer(numbers, shard * numbers.shape[1])
    clear(own, numbers.shape[1], it.scale)  # other numbers could be subnormal, which makes every product slow
    padded = in_panels(own, sizes.depth)
    block = block_of(offset(own, call[3]), padded)
    block_rows = pointer(offsets, shard * offsets.shape[1] + offsets.shape[1] - SOLVED)
    for i in range(SOLVED):
        block_rows[i] = i * padded
    while True:
        number = arrive(counter)
        if number >= tasks.shape[0]:
            return
        task = task_of(tasks, number)
        of = operands_of(it, sizes, heads, task.head)
        memory = memory_of(own, pointer(offsets, shard * offsets.shape[1]), of, sizes)
        clear_unused(it, sizes, task)
        if task.end - task.first > 1:
            first, last = states_of(it, sizes, heads, task)
            load_state(first, sizes, memory.state)
            _run_by_blocks(code, memory, block, block_rows, it, of, sizes, task)
            if own_state(heads, task.head) >= 0:
                store_state(memory.state, sizes, last)
        else:
            run_by_steps(code, memory, it, of, sizes, heads, task)
