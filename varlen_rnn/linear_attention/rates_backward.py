"""The gradient of linear attention on the CPU where each row of a state has a decay, in blocks of `SOLVED` rows.

With the names of `rates_forward`, and the gradient dS of the state after a block:

    dY = tril(M)^T dO + left dS        dU = b (dY - tril(A, -1)^T dU)      an upper solve (delta only)
    dM = dO Y^T, dA = -dU Y^T          dqueries = dO S^T, dkeys = -dU S^T, dleft = Y dS^T
    dS <- whole dS + queries^T dO - keys^T dU

`rates` computes the gradients of queries, keys and decays from these.  The blocks of a chunk first run forward from the
state that was kept, and keep their scores and the states between them in memory of the thread.
"""

from typing import Any, NamedTuple

from varlen_rnn.attention.blocks import in_panels
from varlen_rnn.linear_attention.backward_loop import (
    Backward,
    Code,
    differentiate_by_steps,
    first_gradient,
    load_gradient,
    multiply_by_beta,
    saved_of,
    write_values,
    write_y,
)
from varlen_rnn.linear_attention.backward_memory import again_of, memory_of, offsets_of, part_of
from varlen_rnn.linear_attention.blocks import (
    CHUNK,
    SOLVED,
    Heads,
    Sizes,
    clear,
    load_state,
    operands_of,
    scale_all,
    store_state,
    task_of,
    times,
    transpose_state,
)
from varlen_rnn.linear_attention.rates import (
    Gradients,
    State,
    block_of,
    differentiate_block,
    pass_state,
    score_block,
    size_of_block,
    turn_block,
    write_left,
)
from varlen_rnn.linear_attention.rates_forward import given_of, leave
from varlen_rnn.linear_attention.triangles import solve_upper
from varlen_rnn.products.sync import arrive
from varlen_rnn.products.tile import Panels, Rows, Sums
from varlen_rnn.products.vectors import copy_units, least, offset, pointer, vectorise_widely, width_of
from varlen_rnn.runtime.jit import cpu_inlined, engine_kernel


class Kept(NamedTuple):
    """What the blocks of a chunk keep, in memory of a thread: addresses, and numbers from block to block."""

    blocks: Any
    states: Any  # the state before each block, in panels
    of_state: Any  # one row: `Gradients.of_state`
    block_step: int
    state_step: int


def sizes_of(depth, depth_v, width):
    """Return how many numbers a block and a state take, and how many numbers a thread needs for Kept."""
    padded, padded_v = (-(-size // width) * width for size in (depth, depth_v))
    steps = size_of_block(padded), padded * padded_v
    return *steps, CHUNK // SOLVED * sum(steps) + padded


@cpu_inlined
def rows_to_panels(source, stride, rows, sizes, target):
    """Copy the rows of a block to panels of `SOLVED` rows, whose numbers behind the depth stay 0."""
    width = width_of(target)
    for p in range(in_panels(target, sizes.depth_v) // width):
        valid = least(width, sizes.depth_v - p * width)
        copy_units(rows, offset(source, p * width), stride, offset(target, p * SOLVED * width), width, valid)


@cpu_inlined
def _run_again(code, memory, kept, rows_of, it, of, sizes, row, rows):
    """Run the blocks of a chunk forward: write their scores, and the state before each of them."""
    width, padded, padded_v = width_of(memory.y), in_panels(memory.y, sizes.depth), in_panels(memory.y, sizes.depth_v)
    for begin in range(0, rows, SOLVED):
        number, count = begin // SOLVED, least(SOLVED, rows - begin)
        block = block_of(offset(kept.blocks, number * kept.block_step), padded)
        given = given_of(of, row + begin, count, sizes, memory.keys)
        score_block(code.scores, (block, given, it.scale, it.tiny))
        write_left(code.write_left, (block, given, it.scale, it.tiny))
        if begin + SOLVED < rows:
            state = offset(kept.states, number * kept.state_step)
            behind = offset(state, kept.state_step)
            for j in range(kept.state_step):
                behind[j] = state[j]
            rows_to_panels(offset(memory.y, begin * padded_v), padded_v, count, sizes, memory.reads_packed)
            y = Panels(memory.reads_packed, SOLVED * width, count)
            leave(code, block, behind, memory.keys, y, rows_of.panel, sizes, it.scale)


@cpu_inlined
def _turn(scores, turned, rows):
    """Transpose a block of scores up to the diagonal; behind it, and behind the rows, write zeros."""
    for i in range(SOLVED):
        for j in range(SOLVED):
            turned[j * CHUNK + i] = scores[i * CHUNK + j] if j <= i and i < rows else 0


@cpu_inlined
def _differentiate_values(code, memory, block, rows_of, it, of, sizes, part, rows):
    """Write dU in panels to `memory.d_y`, and to the gradient of values; write the gradient of beta."""
    width, panels = width_of(memory.y), in_panels(memory.y, sizes.depth_v) // width_of(memory.y)
    step, zeros = CHUNK * width, Sums(memory.zeros, rows_of.none, 0)
    d_state = Panels(memory.d_state, in_panels(memory.y, sizes.depth) * width, sizes.depth)
    here = Sums(memory.d_y, rows_of.panel, step)
    times(code, rows, sizes.depth_v, Rows(block.left, rows_of.padded), d_state, zeros, here)
    _turn(block.of_queries, memory.turned, rows)
    rows_to_panels(part.d_out, it.d_out.shape[1], rows, sizes, memory.d_out_rows)
    d_out = Panels(memory.d_out_rows, SOLVED * width, rows)
    times(code, rows, sizes.depth_v, Rows(memory.turned, rows_of.scores), d_out, here, here)
    if sizes.delta:
        _turn(block.of_keys, memory.turned, rows)
        betas = offset(memory.numbers, CHUNK)
        for i in range(SOLVED):
            betas[i] = part.beta[(i if i < rows else 0) * of.beta_stride]
        for p in range(panels):
            clear(offset(memory.d_y, p * step + rows * width), (SOLVED - rows) * width, it.scale)
            solve_upper(memory.turned, offset(memory.d_y, p * step), offset(memory.d_written, p * step), betas)
    else:
        multiply_by_beta(memory, of, sizes, part, rows)
    write_values(memory, it, sizes, part, rows)
    for i in range(rows):
        part.d_beta[i * it.d_beta.shape[1]] = memory.numbers[4 * CHUNK + i]


@cpu_inlined
def _differentiate_products(code, memory, state, y, rows_of, sizes, part, rows):
    """Write dM, dA, dqueries, dkeys and dleft; `y` are the rows of the block."""
    width, padded, padded_v = width_of(y), in_panels(y, sizes.depth), in_panels(y, sizes.depth_v)
    zeros, step = Sums(memory.zeros, rows_of.none, 0), padded_v * width
    turn_block(y, padded_v, sizes.depth_v, memory.reads)
    y_turned, given = Panels(memory.reads, 0, sizes.depth_v), rows_of.values
    times(code, rows, rows, Rows(part.d_out, given), y_turned, zeros, Sums(memory.d_scores, rows_of.scores, width))
    transpose_state(state, sizes, memory.state_turned)
    turned, read = Panels(memory.state_turned, step, sizes.depth_v), Sums(memory.read, rows_of.padded, width)
    times(code, rows, sizes.depth, Rows(part.d_out, given), turned, zeros, read)
    if sizes.delta:
        times(code, rows, rows, Rows(part.d_v, given), y_turned, zeros, Sums(memory.d_of_keys, rows_of.scores, width))
        read = Sums(offset(memory.read, CHUNK * padded), rows_of.padded, width)
        times(code, rows, sizes.depth, Rows(part.d_v, given), turned, zeros, read)
    transpose_state(memory.d_state, sizes, memory.d_state_turned)
    turned = Panels(memory.d_state_turned, step, sizes.depth_v)
    times(code, rows, sizes.depth, Rows(y, rows_of.padded_v), turned, zeros, Sums(memory.d_keys, rows_of.padded, width))


@cpu_inlined
def _move_state(code, memory, kept, block, state, rows_of, sizes, rows, like):
    """Move the gradient of the state before the block: dS <- whole dS + queries^T dO - keys^T dU."""
    width, padded = width_of(memory.y), in_panels(memory.y, sizes.depth)
    panels = in_panels(memory.y, sizes.depth_v) // width
    whole = State(
        memory.d_state, block.whole, state, kept.of_state, memory.spare, padded * width, panels, sizes.depth, True
    )
    pass_state(code.pass_state, (whole, like))
    here = Sums(memory.d_state, rows_of.panel, padded * width)
    turn_block(block.queries, padded, sizes.depth, memory.query_rows)
    d_out = Panels(memory.d_out_rows, SOLVED * width, rows)
    times(code, sizes.depth, sizes.depth_v, Rows(memory.query_rows, rows_of.panel), d_out, here, here)
    if sizes.delta:
        for p in range(panels):
            scale_all(offset(memory.d_y, p * CHUNK * width), rows * width, -1)
        turn_block(block.keys, padded, sizes.depth, memory.key_rows)
        d_u = Panels(memory.d_y, CHUNK * width, rows)
        times(code, sizes.depth, sizes.depth_v, Rows(memory.key_rows, rows_of.panel), d_u, here, here)


@cpu_inlined
def _differentiate_chunk(code, memory, kept, rows_of, it, of, saved, sizes, row, task):
    """Write the gradients of the rows of a chunk, given the state before it in `kept.states`."""
    padded, padded_v = in_panels(memory.y, sizes.depth), in_panels(memory.y, sizes.depth_v)
    rows = least(CHUNK, task.end - row)
    write_y(memory, of, sizes, part_of(it, of, saved, row, task.head, sizes), rows)
    _run_again(code, memory, kept, rows_of, it, of, sizes, row, rows)
    blocks = (rows + SOLVED - 1) // SOLVED
    for back in range(blocks):
        number = blocks - 1 - back
        begin = number * SOLVED
        count, part = least(SOLVED, rows - begin), part_of(it, of, saved, row + begin, task.head, sizes)
        block = block_of(offset(kept.blocks, number * kept.block_step), padded)
        state = offset(kept.states, number * kept.state_step)
        _differentiate_values(code, memory, block, rows_of, it, of, sizes, part, count)
        y = offset(memory.y, begin * padded_v)
        _differentiate_products(code, memory, state, y, rows_of, sizes, part, count)
        to = Gradients(
            memory.d_scores, memory.d_of_keys, memory.read, offset(memory.read, CHUNK * padded), memory.d_keys,
            kept.of_state, part.d_q, part.d_k, part.d_decay, it.d_q.shape[1], it.d_decay.shape[1], sizes.delta,
        )  # fmt: skip
        given = given_of(of, row + begin, count, sizes, memory.keys)
        _move_state(code, memory, kept, block, state, rows_of, sizes, count, it.scale)
        differentiate_block(code.differentiate_block, (block, given, to, it.scale, it.tiny))


@engine_kernel
def backward(shard, num_shards, code, counters, tasks, numbers, offsets, call):
    """Run the tasks that a thread takes; `call` ends with the places of Memory, Again, and Kept (with steps)."""
    vectorise_widely()
    code, it, sizes, heads = Code(*code), Backward(*call[0]), Sizes(*call[1]), Heads(*call[2])
    counter, own = pointer(counters, 0), pointer(numbers, shard * numbers.shape[1])
    clear(own, call[4][2], it.scale)  # other numbers could be subnormal, which makes every product slow
    own_offsets = pointer(offsets, shard * offsets.shape[1])
    memory, again = memory_of(own, call[3]), again_of(own, own_offsets, call[4])
    begin, block_step, state_step = call[5]
    states = offset(own, begin + CHUNK // SOLVED * block_step)
    kept = Kept(
        offset(own, begin), states, offset(states, CHUNK // SOLVED * state_step), block_step, state_step
    )  # fmt: skip
    while True:
        number = arrive(counter)
        if number >= tasks.shape[0]:
            return
        task = task_of(tasks, number)
        of = operands_of(it, sizes, heads, task.head)
        rows_of = offsets_of(own_offsets, of, it.d_out.shape[1], own, sizes)
        saved = saved_of(code, it, of, sizes, heads, task, again, counter)
        load_gradient(it, sizes, heads, task)
        if task.end - task.first < 2:
            differentiate_by_steps(code, memory, it, of, saved, sizes, task)
            continue
        load_state(first_gradient(it, sizes, task), sizes, memory.d_state)
        chunks = (task.end - task.first + CHUNK - 1) // CHUNK
        for back in range(chunks):
            chunk = chunks - 1 - back
            load_state(offset(saved.states, chunk * saved.states_stride), sizes, kept.states)
            row = task.first + chunk * CHUNK
            _differentiate_chunk(code, memory, kept, rows_of, it, of, saved, sizes, row, task)
        store_state(memory.d_state, sizes, first_gradient(it, sizes, task))
