"""The gradient of linear attention on the CPU: a work item is one head of one sequence, whose last chunk comes first.

With the names of `forward_loop`, the state S before a chunk, and the gradient dS of the state after it:

    dY = M^T dO + f (K dS)            dU = b (dY - tril(A)^T dU)        an upper solve, from the last row (delta only)
    dM = dO Y^T, dA = -dU Y^T         N = scale D dM (lower), P = D dA (strictly lower)
    dQ = scale e (dO S^T) + N K       dK = -e (dU S^T) + f (Y dS^T) + (P + P^T) K + N^T Q
    dS <- e_last dS + Q^T (scale e dO) + K^T (-e dU)

where M = scale D (Q K^T) and A = D (K K^T) are the scores.  The gradient of the log decay of row l adds up, without a
difference of large numbers, all terms that row l decays: entries (i, j) of dM M + dA A with i >= l > j, the reads of
the state by rows i >= l, the rows j < l in the state after the chunk, and the product e_last <S, dS>.
"""

from typing import Any, NamedTuple

from varlen_rnn.attention.blocks import in_panels, pack_block
from varlen_rnn.linear_attention import forward_loop
from varlen_rnn.linear_attention.backward_memory import Saved, again_of, memory_of, offsets_of, part_of
from varlen_rnn.linear_attention.blocks import (
    CHUNK,
    SOLVED,
    Heads,
    Sizes,
    chunks_before,
    clear,
    copy_numbers,
    copy_rows,
    dot,
    load_state,
    operands_of,
    own_state,
    scale_all,
    store_state,
    task_of,
    times,
    transpose_scores,
    transpose_state,
)
from varlen_rnn.linear_attention.forward_loop import Places, first_normaliser, first_state, run_chunks
from varlen_rnn.linear_attention.normaliser import (
    Norms,
    add_to_beta,
    add_to_keys,
    add_to_reads,
    add_to_scores,
    load_chunk,
    move_gradient,
    of_chunk,
)
from varlen_rnn.linear_attention.scores import Scores, decay_scores, differentiate_row
from varlen_rnn.linear_attention.steps import Gradients, Steps, differentiate_step
from varlen_rnn.linear_attention.triangles import solve_upper
from varlen_rnn.linear_attention.writer import add_to_row, multiply_row
from varlen_rnn.products.sync import arrive
from varlen_rnn.products.tile import Panels, Rows, Sums
from varlen_rnn.products.vectors import copy_units, least, offset, pointer, sum_of, vectorise_widely, width_of
from varlen_rnn.runtime.jit import cpu_inlined, engine_kernel


class Code(NamedTuple):
    """The addresses of compiled functions that the loop calls."""

    multiply: int
    pack: int
    scores: int  # as the last three, of `forward_loop.Code`
    differentiate_step: int
    differentiate_block: int  # of `rates`, as the next; 0 if all rows of a state have one decay
    write_left: int
    run_steps: int
    pass_state: int
    run_rows: int


class Backward(NamedTuple):
    """The arrays of a call, as in `Forward`; gradients have a column for each of all heads."""

    q: Any
    k: Any
    v: Any
    decay: Any
    beta: Any
    first: Any  # the states before the first rows
    written: Any  # u, with `delta`; otherwise without rows
    states: Any  # without rows if nothing was saved
    d_out: Any
    d_last: Any  # a column for each head of states
    first_norms: Any  # as the next four, without rows if there is no normaliser
    kept_norms: Any
    d_norms: Any
    d_last_norms: Any
    d_first_norms: Any
    d_q: Any
    d_k: Any
    d_v: Any
    d_decay: Any
    d_beta: Any
    d_first: Any
    scale: Any
    tiny: Any


@cpu_inlined
def saved_of(code, it, of, sizes, heads, task, again, counters):
    """Return the Saved of a task; if nothing was saved, run its rows again first, in the scratch `again`."""
    size, own = sizes.depth * sizes.depth_v, task.head * sizes.depth_v
    if sizes.keep:
        u, u_stride, states, stride = (
            pointer(it.written, own), it.written.shape[1], it.states.shape[1], it.kept_norms.shape[1]
        )  # fmt: skip
        chunk = chunks_before(task.first, task.sequence)
        at = pointer(it.states, chunk * states + task.head * size)
        norms = pointer(it.kept_norms, chunk * stride + task.head * sizes.depth)
    else:
        u, u_stride, states, stride = offset(again.u, -task.first * sizes.depth_v), sizes.depth_v, size, sizes.depth
        at, norms = again.states, again.norms
        of_norms = Norms(
            first_normaliser(it, sizes, heads, task), offset(again.last, size), again.norm, norms, 1, stride
        )
        places = Places(
            first_state(it, sizes, heads, task), again.last, again.u, again.u, at, of_norms, u_stride, states,
            it.scale, it.tiny,
        )  # fmt: skip
        memory = forward_loop.memory_of(again.numbers, again.offsets, of, sizes)
        keeping = Sizes(
            sizes.depth, sizes.depth_v, sizes.rates, sizes.delta, True, sizes.has_state, sizes.normalise
        )  # fmt: skip
        functions = forward_loop.Code(
            code.multiply, code.pack, code.scores, code.run_steps, code.pass_state, code.run_rows,
        )  # fmt: skip
        run_chunks(code.run_rows, (functions, memory, places, of, keeping, task.first, task.end, counters))
    if not sizes.delta:
        u, u_stride = of.v, of.v_stride
    return Saved(u, at, norms, u_stride, states, stride)


@cpu_inlined
def write_y(memory, of, sizes, part, rows):
    """Write the rows of y, the corrected values times beta."""
    padded_v = in_panels(memory.y, sizes.depth_v)
    for i in range(rows):
        to, u, beta = offset(memory.y, i * padded_v), offset(part.u, i * part.u_stride), part.beta[i * of.beta_stride]
        for x in range(sizes.depth_v):
            to[x] = beta * u[x]


@cpu_inlined
def _score_again(code, memory, rows_of, it, of, sizes, part, row, rows, counters):
    """Pack the operands of a chunk; write its scores M, -A and D, and the rows y with their transpose."""
    width, padded_v, depth = width_of(memory.y), in_panels(memory.y, sizes.depth_v), sizes.depth
    pack_block(code, part.k, rows, depth, of.k_stride, True, memory.keys, counters)
    pack_block(code, part.q, rows, depth, of.q_stride, True, memory.queries, counters)
    pack_block(code, part.k, rows, depth, of.k_stride, False, memory.key_rows, counters)
    pack_block(code, part.q, rows, depth, of.q_stride, False, memory.query_rows, counters)
    pack_block(code, part.d_out, rows, sizes.depth_v, it.d_out.shape[1], False, memory.d_out_rows, counters)
    keys, zeros = Panels(memory.keys, (depth + 1) * width, depth), Sums(memory.zeros, rows_of.none, 0)
    times(code, rows, rows, Rows(part.q, rows_of.q), keys, zeros, Sums(memory.scores, rows_of.scores, width))
    if sizes.delta:
        times(code, rows, rows, Rows(part.k, rows_of.k), keys, zeros, Sums(memory.of_keys, rows_of.scores, width))
    decay = offset(of.decay, row * of.decay_stride)
    scores = Scores(
        memory.scores, memory.of_keys, memory.between, memory.numbers, decay, of.decay_stride, rows, sizes.delta
    )
    decay_scores(code.scores, (scores, it.scale, it.tiny))
    write_y(memory, of, sizes, part, rows)
    pack_block(code, memory.y, rows, sizes.depth_v, padded_v, True, memory.y_turned, counters)


@cpu_inlined
def _differentiate_values(code, memory, rows_of, of, sizes, part, rows, last):
    """Write dU in panels to `memory.d_y`, and to the gradient of values; write the gradient of beta so far.

    `last` is the row of D of the last row of the chunk.
    """
    width, panels = width_of(memory.y), in_panels(memory.y, sizes.depth_v) // width_of(memory.y)
    step, zeros = CHUNK * width, Sums(memory.zeros, rows_of.none, 0)
    state = Panels(memory.d_state, in_panels(memory.y, sizes.depth) * width, sizes.depth)
    times(code, rows, sizes.depth_v, Rows(part.k, rows_of.k), state, zeros, Sums(memory.d_y, rows_of.panel, step))
    for p in range(panels):
        for i in range(rows):
            d_y = offset(memory.d_y, p * step + i * width)
            multiply_row(d_y, d_y, last[i])
    transpose_scores(memory.scores, memory.turned)
    for begin in range(0, rows, SOLVED):
        here, count = Sums(offset(memory.d_y, begin * width), rows_of.panel, step), least(SOLVED, rows - begin)
        weights = Rows(offset(memory.turned, begin * CHUNK + begin), rows_of.scores)
        d_out = Panels(offset(memory.d_out_rows, begin * width), (rows + 1) * width, rows - begin)
        times(code, count, sizes.depth_v, weights, d_out, here, here)
    if sizes.delta:
        _solve(code, memory, rows_of, of, sizes, part, rows)
    else:
        multiply_by_beta(memory, of, sizes, part, rows)


@cpu_inlined
def multiply_by_beta(memory, of, sizes, part, rows):
    """Write dU without `delta`: dY times beta."""
    width = width_of(memory.y)
    for p in range(in_panels(memory.y, sizes.depth_v) // width):
        for i in range(rows):
            at = p * CHUNK * width + i * width
            d_y = offset(memory.d_y, at)
            copy_units(1, d_y, width, offset(memory.d_written, at), width, width)
            multiply_row(d_y, d_y, part.beta[i * of.beta_stride])


@cpu_inlined
def _solve(code, memory, rows_of, of, sizes, part, rows):
    """Solve dU = b (dY - tril(A)^T dU) from the last row on; rows of the last block behind the chunk count as zeros."""
    width, panels = width_of(memory.y), in_panels(memory.y, sizes.depth_v) // width_of(memory.y)
    step, whole, betas = CHUNK * width, (rows + SOLVED - 1) // SOLVED * SOLVED, offset(memory.numbers, CHUNK)
    transpose_scores(memory.of_keys, memory.turned)
    for i in range(whole):
        betas[i] = part.beta[(i if i < rows else 0) * of.beta_stride]
        clear(offset(memory.turned, i * CHUNK + rows), whole - rows, betas[0])
    for p in range(panels):
        clear(offset(memory.d_y, p * step + rows * width), (whole - rows) * width, betas[0])
    for back in range(whole // SOLVED):
        begin = whole - SOLVED - back * SOLVED
        end = least(rows, begin + SOLVED)
        if end < rows:
            here = Sums(offset(memory.d_y, begin * width), rows_of.panel, step)
            weights = Rows(offset(memory.turned, begin * CHUNK + end), rows_of.scores)
            behind = Panels(offset(memory.d_y, end * width), step, rows - end)
            times(code, SOLVED, sizes.depth_v, weights, behind, here, here)
        for p in range(panels):
            at, block = p * step + begin * width, offset(memory.turned, begin * CHUNK + begin)
            solve_upper(block, offset(memory.d_y, at), offset(memory.d_written, at), offset(betas, begin))


@cpu_inlined
def write_values(memory, it, sizes, part, rows):
    """Write dU as the gradient of values, and the gradient of beta so far."""
    width, padded_v = width_of(memory.y), in_panels(memory.y, sizes.depth_v)
    d_beta = offset(memory.numbers, 4 * CHUNK)
    for p in range(padded_v // width):
        d_v, valid = offset(part.d_v, p * width), least(width, sizes.depth_v - p * width)
        copy_units(rows, offset(memory.d_y, p * CHUNK * width), width, d_v, it.d_v.shape[1], valid)
    for i in range(rows):
        for p in range(padded_v // width):
            u, valid = offset(part.u, i * part.u_stride + p * width), least(width, sizes.depth_v - p * width)
            products = offset(memory.spare, p * width)
            if valid < width:  # a whole row of the panel would be read from behind the values
                copy_units(1, u, width, products, width, valid)
                u = products
            multiply_row(products, u, offset(memory.d_written, p * CHUNK * width + i * width))
            clear(offset(products, valid), width - valid, it.scale)
        d_beta[i] = sum_of(memory.spare, padded_v)


@cpu_inlined
def _differentiate_scores(code, memory, rows_of, it, sizes, part, rows):
    """Write N and P, and the terms of the gradients of decays that belong to pairs of rows of the chunk."""
    width, zeros = width_of(memory.y), Sums(memory.zeros, rows_of.none, 0)
    y = Panels(memory.y_turned, (sizes.depth_v + 1) * width, sizes.depth_v)
    d_out, d_u = Rows(part.d_out, rows_of.values), Rows(part.d_v, rows_of.values)
    times(code, rows, rows, d_out, y, zeros, Sums(memory.d_scores, rows_of.scores, width))
    if sizes.delta:
        times(code, rows, rows, d_u, y, zeros, Sums(memory.d_of_keys, rows_of.scores, width))
    if sizes.normalise:
        add_to_scores(of_chunk(memory.normaliser, sizes.depth), memory.d_scores, rows)
    passing = offset(memory.numbers, CHUNK)
    clear(passing, CHUNK, it.scale)
    for back in range(rows):
        i = rows - 1 - back
        at = i * CHUNK
        of_row = (
            offset(memory.between, at), offset(memory.d_scores, at), offset(memory.scores, at),
            offset(memory.d_of_keys, at), offset(memory.of_keys, at),
        )  # fmt: skip
        differentiate_row(i, it.scale, passing, of_row, sizes.delta)
        part.d_decay[i * it.d_decay.shape[1]] = sum_of(passing, CHUNK)


@cpu_inlined
def _read_states(code, memory, rows_of, it, sizes, part, rows, counters):
    """Write the terms of dQ and dK that belong to reads of the state: scale e (dO S^T) and -e (dU S^T)."""
    width, padded, padded_v = width_of(memory.y), in_panels(memory.y, sizes.depth), in_panels(memory.y, sizes.depth_v)
    zeros, since = Sums(memory.zeros, rows_of.none, 0), memory.numbers
    transpose_state(memory.state, sizes, memory.state_turned)
    state = Panels(memory.state_turned, padded_v * width, sizes.depth_v)
    for half in range(2 if sizes.delta else 1):
        for i in range(rows):
            to = offset(memory.reads, (half * CHUNK + i) * padded_v)
            given = offset(part.d_v if half else part.d_out, i * it.d_out.shape[1])
            weight = -since[i] if half else it.scale * since[i]
            for x in range(sizes.depth_v):
                to[x] = weight * given[x]
        of_half = offset(memory.reads, half * CHUNK * padded_v)
        packed = offset(memory.reads_packed, half * (CHUNK + 1) * padded_v)
        pack_block(code, of_half, rows, sizes.depth_v, padded_v, False, packed, counters)
        read = Sums(offset(memory.read, half * CHUNK * padded), rows_of.padded, width)
        times(code, rows, sizes.depth, Rows(of_half, rows_of.padded_v), state, zeros, read)
    if sizes.normalise:
        add_to_reads(of_chunk(memory.normaliser, sizes.depth), it, sizes, since, rows, memory.read, padded)


@cpu_inlined
def _differentiate_queries(code, memory, rows_of, it, of, sizes, part, rows):
    """Write the gradient of queries, and for each row the dot products of its reads with its query and key."""
    width, padded, reads = width_of(memory.y), in_panels(memory.y, sizes.depth), offset(memory.numbers, 2 * CHUNK)
    for i in range(rows):
        reads[i] = dot(offset(part.q, i * of.q_stride), offset(memory.read, i * padded), sizes.depth, memory.spare)
        if sizes.delta:
            k, read = offset(part.k, i * of.k_stride), offset(memory.read, (CHUNK + i) * padded)
            reads[i] += dot(k, read, sizes.depth, memory.spare)
    here, keys = Sums(memory.read, rows_of.padded, width), Panels(memory.key_rows, (rows + 1) * width, rows)
    times(code, rows, sizes.depth, Rows(memory.d_scores, rows_of.scores), keys, here, here)
    copy_rows(rows, sizes.depth, memory.read, padded, part.d_q, it.d_q.shape[1])


@cpu_inlined
def _differentiate_keys(code, memory, rows_of, it, of, sizes, part, rows, last):
    """Write the gradient of keys, and for each row the dot product of its key with f (Y dS^T)."""
    width, padded, padded_v = width_of(memory.y), in_panels(memory.y, sizes.depth), in_panels(memory.y, sizes.depth_v)
    leaves, zeros = offset(memory.numbers, 3 * CHUNK), Sums(memory.zeros, rows_of.none, 0)
    transpose_state(memory.d_state, sizes, memory.d_state_turned)
    state = Panels(memory.d_state_turned, padded_v * width, sizes.depth_v)
    here = Sums(memory.d_keys, rows_of.padded, width)
    times(code, rows, sizes.depth, Rows(memory.y, rows_of.padded_v), state, zeros, here)
    if sizes.normalise:
        add_to_keys(of_chunk(memory.normaliser, sizes.depth), sizes, rows, memory.d_keys, padded)
    for i in range(rows):
        row, k = offset(memory.d_keys, i * padded), offset(part.k, i * of.k_stride)
        scale_all(row, padded, last[i])
        leaves[i] = dot(k, row, sizes.depth, memory.spare)
        if sizes.delta:
            read = offset(memory.read, (CHUNK + i) * padded)
            for r in range(padded):
                row[r] += read[r]
    if sizes.delta:
        transpose_scores(memory.d_of_keys, memory.turned)
        for i in range(rows):
            pair, turned = offset(memory.d_of_keys, i * CHUNK), offset(memory.turned, i * CHUNK)
            for j in range(rows):
                pair[j] += turned[j]
        keys = Panels(memory.key_rows, (rows + 1) * width, rows)
        times(code, rows, sizes.depth, Rows(memory.d_of_keys, rows_of.scores), keys, here, here)
    transpose_scores(memory.d_scores, memory.turned)
    queries = Panels(memory.query_rows, (rows + 1) * width, rows)
    times(code, rows, sizes.depth, Rows(memory.turned, rows_of.scores), queries, here, here)
    copy_rows(rows, sizes.depth, memory.d_keys, padded, part.d_k, it.d_k.shape[1])


@cpu_inlined
def _differentiate_decays(memory, it, sizes, part, rows):
    """Add to the gradients of decays the terms that belong to the state; write the gradients of beta."""
    width, padded, padded_v = width_of(memory.y), in_panels(memory.y, sizes.depth), in_panels(memory.y, sizes.depth_v)
    reads, leaves = offset(memory.numbers, 2 * CHUNK), offset(memory.numbers, 3 * CHUNK)
    clear(memory.spare, padded_v, it.scale)
    for p in range(padded_v // width):
        products = offset(memory.spare, p * width)
        for r in range(sizes.depth):
            at = p * padded * width + r * width
            add_to_row(products, offset(memory.state, at), offset(memory.d_state, at))
    total = sum_of(memory.spare, padded_v)
    if sizes.normalise:
        own = of_chunk(memory.normaliser, sizes.depth)
        total += dot(own.n, own.d_n, sizes.depth, memory.spare)
    total *= memory.numbers[rows - 1]  # e_last <S, dS>
    stride = it.d_decay.shape[1]
    for i in range(rows):
        part.d_decay[i * stride] += total
        total += leaves[i]
        part.d_beta[i * it.d_beta.shape[1]] = memory.numbers[4 * CHUNK + i]
    total = it.scale - it.scale
    for back in range(rows):
        total += reads[rows - 1 - back]
        part.d_decay[(rows - 1 - back) * stride] += total


@cpu_inlined
def _move_state(code, memory, rows_of, sizes, rows):
    """Move the gradient of the state before the chunk: dS <- e_last dS + Q^T (scale e dO) + K^T (-e dU)."""
    width, padded, padded_v = width_of(memory.y), in_panels(memory.y, sizes.depth), in_panels(memory.y, sizes.depth_v)
    scale_all(memory.d_state, padded * padded_v, memory.numbers[rows - 1])
    state = Sums(memory.d_state, rows_of.panel, padded * width)
    for half in range(2 if sizes.delta else 1):
        for first in range(0, rows, width):
            turned = offset(memory.keys if half else memory.queries, first * (sizes.depth + 1))
            packed = offset(memory.reads_packed, half * (CHUNK + 1) * padded_v + first * width)
            reads = Panels(packed, (rows + 1) * width, least(width, rows - first))
            times(code, sizes.depth, sizes.depth_v, Rows(turned, rows_of.panel), reads, state, state)


@cpu_inlined
def _differentiate_by_chunks(code, memory, rows_of, it, of, saved, sizes, task, counters):
    """Run a task by chunks."""
    chunks = (task.end - task.first + CHUNK - 1) // CHUNK
    for back in range(chunks):
        chunk = chunks - 1 - back
        row = task.first + chunk * CHUNK
        rows, part = least(CHUNK, task.end - row), part_of(it, of, saved, row, task.head, sizes)
        last = offset(memory.between, (rows - 1) * CHUNK)
        load_state(offset(saved.states, chunk * saved.states_stride), sizes, memory.state)
        _score_again(code, memory, rows_of, it, of, sizes, part, row, rows, counters)
        _differentiate_values(code, memory, rows_of, of, sizes, part, rows, last)
        write_values(memory, it, sizes, part, rows)
        own, d_beta = of_chunk(memory.normaliser, sizes.depth), offset(memory.numbers, 4 * CHUNK)
        if sizes.normalise:
            load_chunk(own, saved, of, sizes, part, chunk, rows)
            add_to_beta(own, of, sizes, part, rows, memory.scores, last, d_beta, memory.spare)
        _differentiate_scores(code, memory, rows_of, it, sizes, part, rows)
        _read_states(code, memory, rows_of, it, sizes, part, rows, counters)
        _differentiate_queries(code, memory, rows_of, it, of, sizes, part, rows)
        _differentiate_keys(code, memory, rows_of, it, of, sizes, part, rows, last)
        _differentiate_decays(memory, it, sizes, part, rows)
        _move_state(code, memory, rows_of, sizes, rows)
        if sizes.normalise:
            # `spare` can have fewer numbers than a chunk has rows.
            move_gradient(own, it, of, sizes, part, rows, memory.numbers, offset(memory.numbers, CHUNK))


@cpu_inlined
def differentiate_by_steps(code, memory, it, of, saved, sizes, task):
    """Run a task of one row, or of none, by a step, in place on the gradient of its first state."""
    for row in range(task.first, task.end):
        part = part_of(it, of, saved, row, task.head, sizes)
        steps = Steps(
            part.q, part.k, part.u, offset(of.decay, row * of.decay_stride), part.beta, saved.states, saved.norms,
            memory.steps, of.q_stride, of.k_stride, part.u_stride, of.decay_stride, of.beta_stride, 1, sizes.depth,
            sizes.depth_v, sizes.rates, sizes.delta, sizes.normalise,
        )  # fmt: skip
        to = Gradients(
            part.d_out, part.d_norm, part.d_q, part.d_k, part.d_v, part.d_decay, part.d_beta,
            first_gradient(it, sizes, task), first_gradient_of_norms(it, sizes, task),
        )  # fmt: skip
        differentiate_step(code.differentiate_step, (steps, to, it.scale))


@cpu_inlined
def load_gradient(it, sizes, heads, task):
    """Copy the gradient of a task's last state to its first state's, or zeros if another head writes this state."""
    own = own_state(heads, task.head)
    sequence, size, to = (
        task.sequence % it.d_last.shape[0],
        sizes.depth * sizes.depth_v,
        first_gradient(it, sizes, task),
    )
    if own >= 0:
        copy_numbers(pointer(it.d_last, sequence * it.d_last.shape[1] + own * size), to, size)
    else:
        clear(to, size, it.scale)
    if sizes.normalise:
        to = first_gradient_of_norms(it, sizes, task)
        if own >= 0:
            d_last = pointer(it.d_last_norms, sequence * it.d_last_norms.shape[1] + own * sizes.depth)
            copy_numbers(d_last, to, sizes.depth)
        else:
            clear(to, sizes.depth, it.scale)


@cpu_inlined
def first_gradient(it, sizes, task):
    """Return the address of the gradient of a task's first state."""
    size = sizes.depth * sizes.depth_v
    return pointer(it.d_first, task.sequence * it.d_first.shape[1] + task.head * size)


@cpu_inlined
def first_gradient_of_norms(it, sizes, task):
    """Return the address of the gradient of a task's first normaliser."""
    return pointer(it.d_first_norms, task.sequence * it.d_first_norms.shape[1] + task.head * sizes.depth)


@cpu_inlined
def _run(code, memory, rows_of, it, of, saved, sizes, heads, task, counters):
    """Run a task: write the gradients of its rows, and of its first state."""
    load_gradient(it, sizes, heads, task)
    if task.end - task.first < 2:
        differentiate_by_steps(code, memory, it, of, saved, sizes, task)
        return
    d_state, d_n = first_gradient(it, sizes, task), of_chunk(memory.normaliser, sizes.depth).d_n
    load_state(d_state, sizes, memory.d_state)
    if sizes.normalise:
        copy_numbers(first_gradient_of_norms(it, sizes, task), d_n, sizes.depth)
    _differentiate_by_chunks(code, memory, rows_of, it, of, saved, sizes, task, counters)
    store_state(memory.d_state, sizes, d_state)
    if sizes.normalise:
        copy_numbers(d_n, first_gradient_of_norms(it, sizes, task), sizes.depth)


@engine_kernel
def backward(shard, num_shards, code, counters, tasks, numbers, offsets, call):
    """Run the tasks that a thread takes; `call` ends with the places of Memory and of Again."""
    vectorise_widely()
    code, it, sizes, heads = Code(*code), Backward(*call[0]), Sizes(*call[1]), Heads(*call[2])
    counter, own = pointer(counters, 0), pointer(numbers, shard * numbers.shape[1])
    clear(own, call[4][2], it.scale)  # other numbers could be subnormal, which makes every product slow
    own_offsets = pointer(offsets, shard * offsets.shape[1])
    memory, again = memory_of(own, call[3]), again_of(own, own_offsets, call[4])
    while True:
        number = arrive(counter)
        if number >= tasks.shape[0]:
            return
        task = task_of(tasks, number)
        of = operands_of(it, sizes, heads, task.head)
        rows_of = offsets_of(own_offsets, of, it.d_out.shape[1], own, sizes)
        saved = saved_of(code, it, of, sizes, heads, task, again, counter)
        _run(code, memory, rows_of, it, of, saved, sizes, heads, task, counter)
