"""Linear attention on the CPU: a work item is one head of one sequence, whose chunks of rows follow each other.

In a chunk, with the decays D and e of `scores`, f = D[last row], rates b, and the state S before the chunk:

    u = v - e (K S) - tril(D (K K^T), -1) y        y = b u          without `delta`, u = v
    o = scale e (Q S) + tril(scale D (Q K^T)) y    S <- e_last S + (f K)^T y

The first line is a triangular system for y.  All products run on the tile, but for the diagonal blocks of triangles.
"""

from typing import Any, NamedTuple

from numba import types

from varlen_rnn.attention.blocks import in_panels, pack_block
from varlen_rnn.linear_attention.blocks import (
    CHUNK,
    SOLVED,
    Heads,
    Operands,
    Sizes,
    chunks_before,
    clear,
    copy_numbers,
    load_state,
    operands_of,
    own_state,
    scale_all,
    store_state,
    task_of,
    times,
)
from varlen_rnn.linear_attention.normaliser import Norms, run_normaliser
from varlen_rnn.linear_attention.rates import size_of_block
from varlen_rnn.linear_attention.scores import Scores, decay_scores
from varlen_rnn.linear_attention.steps import Steps, Written, run_steps, scratch_of_steps
from varlen_rnn.linear_attention.triangles import add_lower, solve_lower
from varlen_rnn.linear_attention.writer import multiply_row, subtract_from_row
from varlen_rnn.products.sync import arrive
from varlen_rnn.products.tile import Panels, Rows, Sums
from varlen_rnn.products.vectors import (
    copy_units,
    least,
    offset,
    pointer,
    prefetch_row,
    vectorise_widely,
    width_of,
)
from varlen_rnn.runtime.jit import called_by_address, cpu_inlined, engine_kernel


class Code(NamedTuple):
    """The addresses of compiled functions that the loop calls."""

    multiply: int
    pack: int
    scores: int  # `decay_scores`, or `score_block` for a decay of each row of a state
    run_steps: int
    pass_state: int  # of `rates`; 0 if all rows of a state have one decay
    run_rows: int  # `run_chunks`, or `run_blocks` for a decay of each row of a state


class Forward(NamedTuple):
    """The arrays of a call: operands and outputs (rows, heads * size), and states (number, heads * size of a state)."""

    q: Any
    k: Any
    v: Any
    decay: Any
    beta: Any
    first: Any  # the states before the first rows
    out: Any
    last: Any
    written: Any  # u, with `delta` and `keep`; otherwise without rows
    states: Any  # the state before each chunk, with `keep`; otherwise without rows
    norms: Any  # (rows, heads); as the next three, without rows if there is no normaliser
    first_norms: Any  # normalisers (number, heads * depth): as `first`, `last` and `states`
    last_norms: Any
    kept_norms: Any
    scale: Any
    tiny: Any  # decays below count as 0


class Places(NamedTuple):
    """Where a task reads and writes: addresses in its first row or chunk, and strides in elements.

    `u` may have the address of `out`: the corrected values then replace the outputs.
    """

    first: Any  # the state before the first row
    last: Any  # the state after the last row
    out: Any
    u: Any  # the corrected values, with `delta` and `keep`
    states: Any  # the state before each chunk, with `keep`
    norms: Norms
    stride: int  # of `out` and `u`
    states_stride: int
    scale: Any
    tiny: Any


class _Later(NamedTuple):
    """Addresses of rows that the next chunk reads, which passes over rows of this chunk prefetch: see `_later`."""

    q: Any
    k: Any
    v: Any


class _Memory(NamedTuple):
    """Memory of one thread; the fields that end with `_rows` are lists of the offsets of rows."""

    state: Any
    keys: Any  # K^T, packed
    of_queries: Any
    of_keys: Any
    between: Any
    read: Any  # rows of values in panels: reads of the state by queries, then outputs
    y: Any
    u: Any  # y before it is multiplied by beta; then the rows of y, decayed to the end of the chunk
    since: Any
    betas: Any
    zeros: Any
    normaliser: Any
    steps: Any  # scratch of a sequence that runs step by step
    block: Any  # of `rates`
    q_rows: Any
    k_rows: Any
    panel_rows: Any
    score_rows: Any
    no_rows: Any
    block_rows: Any  # of `rates`


def scratch_of(depth, depth_v, width):
    """Return how many numbers and int64 offsets a thread needs.

    The last numbers are a state and a normaliser that no task keeps.
    """
    padded, padded_v = (-(-size // width) * width for size in (depth, depth_v))
    numbers = (
        padded * padded_v + CHUNK * (depth + 1) + 3 * CHUNK * CHUNK + 3 * CHUNK * padded_v + 2 * CHUNK + width + padded
    )
    numbers += scratch_of_steps(depth, depth_v, width) + size_of_block(padded)
    return numbers + depth * (depth_v + 1), 5 * max(CHUNK, padded) + SOLVED


@cpu_inlined
def memory_of(numbers, offsets, of, sizes):
    """Return the _Memory of a thread, and write its lists of offsets."""
    padded, padded_v = in_panels(numbers, sizes.depth), in_panels(numbers, sizes.depth_v)
    square, values, count = CHUNK * CHUNK, CHUNK * padded_v, CHUNK if padded < CHUNK else padded
    strides = of.q_stride, of.k_stride, width_of(numbers), CHUNK, 0
    for number in range(5):
        for r in range(count):
            offsets[number * count + r] = r * strides[number]
    for r in range(SOLVED):
        offsets[5 * count + r] = r * padded
    keys = offset(numbers, padded * padded_v)
    scores = offset(keys, CHUNK * (sizes.depth + 1))
    read = offset(scores, 3 * square)
    since = offset(read, 3 * values)
    normaliser = offset(since, 2 * CHUNK + width_of(numbers))
    steps = offset(normaliser, padded)
    return _Memory(
        numbers, keys, scores, offset(scores, square), offset(scores, 2 * square), read, offset(read, values),
        offset(read, 2 * values), since, offset(since, CHUNK), offset(since, 2 * CHUNK), normaliser, steps,
        offset(steps, sizes.depth + padded + 4 * padded_v), offsets,  # behind `scratch_of_steps` numbers
        offset(offsets, count), offset(offsets, 2 * count), offset(offsets, 3 * count), offset(offsets, 4 * count),
        offset(offsets, 5 * count),
    )  # fmt: skip


@cpu_inlined
def values_to_panels(memory, v, stride, sizes, rows, later):
    """Write y: v - e (K S) with `delta`, whose second term y has before; otherwise values times beta.

    The values at `later` are prefetched.
    """
    width = width_of(memory.y)
    for p in range(in_panels(memory.y, sizes.depth_v) // width):
        valid, value, step = least(width, sizes.depth_v - p * width), offset(v, p * width), stride
        if valid < width:  # a whole row of the panel would be read from behind the values
            value, step = offset(memory.u, p * CHUNK * width), width
            copy_units(rows, offset(v, p * width), stride, value, width, valid)
        for i in range(rows):
            to, row = offset(memory.y, p * CHUNK * width + i * width), offset(value, i * step)
            prefetch_row(offset(later, i * stride + p * width))
            if sizes.delta:
                subtract_from_row(to, row, memory.since[i])
            else:
                multiply_row(to, row, memory.betas[i])


@cpu_inlined
def write_rows(panels, rows, sizes, target, stride):
    """Copy rows of values from panels to an array."""
    width = width_of(panels)
    for p in range(in_panels(panels, sizes.depth_v) // width):
        source, valid = offset(panels, p * CHUNK * width), least(width, sizes.depth_v - p * width)
        copy_units(rows, source, width, offset(target, p * width), stride, valid)


@cpu_inlined
def _add_before(code, memory, weights, target, sizes, begin, end):
    """Add to rows `begin` to `end` of the target the rows of y before `begin`, times their weights."""
    width = width_of(memory.y)
    to = Sums(offset(target, begin * width), memory.panel_rows, CHUNK * width)
    a, y = Rows(offset(weights, begin * CHUNK), memory.score_rows), Panels(memory.y, CHUNK * width, begin)
    times(code, end - begin, sizes.depth_v, a, y, to, to)


@cpu_inlined
def _score(code, memory, it, of, sizes, row, rows, reads):
    """Write the scores and decays of a chunk, and the reads of the state by queries and keys.

    If `reads` is False, the state is zeros, and so are its reads.
    """
    width, padded = width_of(memory.y), in_panels(memory.y, sizes.depth)
    q, k = Rows(offset(of.q, row * of.q_stride), memory.q_rows), Rows(offset(of.k, row * of.k_stride), memory.k_rows)
    zeros, keys = Sums(memory.zeros, memory.no_rows, 0), Panels(memory.keys, (sizes.depth + 1) * width, sizes.depth)
    state = Panels(memory.state, padded * width, sizes.depth)
    times(code, rows, rows, q, keys, zeros, Sums(memory.of_queries, memory.score_rows, width))
    if reads:
        times(code, rows, sizes.depth_v, q, state, zeros, Sums(memory.read, memory.panel_rows, CHUNK * width))
    else:
        clear(memory.read, 2 * CHUNK * in_panels(memory.y, sizes.depth_v), it.scale)  # also y, which lies behind
    if sizes.delta:
        times(code, rows, rows, k, keys, zeros, Sums(memory.of_keys, memory.score_rows, width))
    if sizes.delta and reads:
        times(code, rows, sizes.depth_v, k, state, zeros, Sums(memory.y, memory.panel_rows, CHUNK * width))
    decay = offset(of.decay, row * of.decay_stride)
    scores = Scores(
        memory.of_queries, memory.of_keys, memory.between, memory.since, decay, of.decay_stride, rows, sizes.delta
    )
    decay_scores(code.scores, (scores, it.scale, it.tiny))


@cpu_inlined
def _write_to_state(code, memory, of, sizes, rows, later):
    """Move the state behind the chunk: S <- e_last S + (f K)^T y."""
    width, padded = width_of(memory.y), in_panels(memory.y, sizes.depth)
    panels, f = in_panels(memory.y, sizes.depth_v) // width, offset(memory.between, (rows - 1) * CHUNK)
    for p in range(panels):
        for i in range(rows):
            at = p * CHUNK * width + i * width
            prefetch_row(offset(later.k, i * of.k_stride + p * width))
            multiply_row(offset(memory.u, at), offset(memory.y, at), f[i])
    scale_all(memory.state, panels * padded * width, memory.since[rows - 1])
    state = Sums(memory.state, memory.panel_rows, padded * width)
    for first in range(0, rows, width):
        keys = Rows(offset(memory.keys, first * (sizes.depth + 1)), memory.panel_rows)
        values = Panels(offset(memory.u, first * width), CHUNK * width, least(width, rows - first))
        times(code, sizes.depth, sizes.depth_v, keys, values, state, state)


@cpu_inlined
def _run_chunk(code, memory, it, of, sizes, row, rows, reads, later):
    """Run the chunk that begins at `row`: write its outputs in panels to `memory.read`, and u to `memory.u`."""
    width, beta = width_of(memory.y), offset(of.beta, row * of.beta_stride)
    panels, step = in_panels(memory.y, sizes.depth_v) // width, CHUNK * width
    for i in range(rows):
        memory.betas[i] = beta[i * of.beta_stride]
    _score(code, memory, it, of, sizes, row, rows, reads)
    values_to_panels(memory, offset(of.v, row * of.v_stride), of.v_stride, sizes, rows, later.v)
    for begin in range(0, rows if sizes.delta else 0, SOLVED):
        end = least(rows, begin + SOLVED)
        if begin:
            _add_before(code, memory, memory.of_keys, memory.y, sizes, begin, end)
        weights, at = offset(memory.of_keys, begin * CHUNK + begin), begin * width
        for p in range(panels):
            y, u = offset(memory.y, p * step + at), offset(memory.u, p * step + at)
            solve_lower(weights, y, u, offset(memory.betas, begin))
    for p in range(panels):
        for i in range(rows):
            read = offset(memory.read, p * CHUNK * width + i * width)
            prefetch_row(offset(later.q, i * of.q_stride + p * width))
            multiply_row(read, read, it.scale * memory.since[i])
    for begin in range(0, rows, SOLVED):
        end = least(rows, begin + SOLVED)
        if begin:
            _add_before(code, memory, memory.of_queries, memory.read, sizes, begin, end)
        weights, at = offset(memory.of_queries, begin * CHUNK + begin), begin * width
        for p in range(panels):
            add_lower(weights, offset(memory.y, p * step + at), offset(memory.read, p * step + at), memory.betas)


@cpu_inlined
def _later(of, sizes, row, first, end):
    """Return the _Later of the chunk at `row`: of the chunk behind it, or else of the first chunk of the next head.

    The hardware does not foresee a head's part of the next row.
    """
    is_last = row + CHUNK >= end
    after = first if is_last else row + CHUNK
    depth, depth_v = (sizes.depth, sizes.depth_v) if is_last else (0, 0)
    return _Later(
        offset(of.q, after * of.q_stride + depth), offset(of.k, after * of.k_stride + depth),
        offset(of.v, after * of.v_stride + depth_v),
    )  # fmt: skip


@cpu_inlined
def keep_state(memory, it, sizes, done):
    """Copy the state to its place if a chunk begins after `done` rows."""
    if sizes.keep and done % CHUNK == 0:
        store_state(memory.state, sizes, offset(it.states, done // CHUNK * it.states_stride))


@cpu_inlined
def write_results(memory, it, sizes, done, rows):
    """Copy the outputs and corrected values of some rows from panels to their places."""
    write_rows(memory.read, rows, sizes, offset(it.out, done * it.stride), it.stride)
    if sizes.delta and sizes.keep:
        write_rows(memory.u, rows, sizes, offset(it.u, done * it.stride), it.stride)


@cpu_inlined
def run_by_steps(code, memory, it, of, sizes, first, end):
    """Run the rows `first` to `end` step by step, and keep the state before each chunk."""
    size, state = sizes.depth * sizes.depth_v, it.last
    copy_numbers(it.first, state, size)
    if sizes.normalise:
        copy_numbers(it.norms.first, it.norms.last, sizes.depth)
    for row in range(first, end, CHUNK):
        done = row - first
        copy_numbers(state, offset(it.states, done // CHUNK * it.states_stride), size if sizes.keep else 0)
        if sizes.normalise and sizes.keep:
            copy_numbers(it.norms.last, offset(it.norms.states, done // CHUNK * it.norms.states_stride), sizes.depth)
        steps = Steps(
            offset(of.q, row * of.q_stride), offset(of.k, row * of.k_stride), offset(of.v, row * of.v_stride),
            offset(of.decay, row * of.decay_stride), offset(of.beta, row * of.beta_stride), state, it.norms.last,
            memory.steps, of.q_stride, of.k_stride, of.v_stride, of.decay_stride, of.beta_stride,
            least(CHUNK, end - row), sizes.depth, sizes.depth_v, sizes.rates, sizes.delta, sizes.normalise,
        )  # fmt: skip
        out, u, norms = offset(it.out, done * it.stride), offset(it.u, done * it.stride), it.norms
        written = Written(
            out, u, offset(norms.out, done * norms.stride), it.stride, norms.stride, sizes.delta and sizes.keep
        )
        run_steps(code.run_steps, (steps, written, it.scale))


def arguments_of_rows(scalar):
    """Return the types of the arguments of `run_chunks`, for numbers of a type."""
    number, address = types.intp, types.CPointer(scalar)
    integers = types.CPointer(number)
    memory = types.NamedTuple((*[address] * 14, *[integers] * 6), _Memory)
    norms = types.NamedTuple((*[address] * 4, number, number), Norms)
    places = types.NamedTuple((*[address] * 5, norms, number, number, scalar, scalar), Places)
    sizes = types.NamedTuple((*[number] * 3, *[types.boolean] * 4), Sizes)
    operands = types.NamedTuple((*[address] * 5, *[number] * 5), Operands)
    return types.NamedTuple((number,) * 6, Code), memory, places, operands, sizes, number, number, integers


@called_by_address(arguments_of_rows)
def run_chunks(code, memory, it, of, sizes, first, end, counters):
    """Run the rows `first` to `end`, all of a task, by chunks, or a single row by a step."""
    vectorise_widely()
    if end - first < 2:
        run_by_steps(code, memory, it, of, sizes, first, end)
        return
    load_state(it.first, sizes, memory.state)
    if sizes.normalise:
        copy_numbers(it.norms.first, memory.normaliser, sizes.depth)
    for row in range(first, end, CHUNK):
        rows, done = least(CHUNK, end - row), row - first
        keep_state(memory, it, sizes, done)
        pack_block(code, offset(of.k, row * of.k_stride), rows, sizes.depth, of.k_stride, True, memory.keys, counters)
        later = _later(of, sizes, row, first, end)
        _run_chunk(code, memory, it, of, sizes, row, rows, sizes.has_state or row > first, later)
        write_results(memory, it, sizes, done, rows)
        if sizes.normalise:
            run_normaliser(memory, it, of, sizes, first, row, rows)
        _write_to_state(code, memory, of, sizes, rows, later)
    store_state(memory.state, sizes, it.last)
    if sizes.normalise:
        copy_numbers(memory.normaliser, it.norms.last, sizes.depth)


@cpu_inlined
def _clear_unused(it, sizes, task):
    """Write zeros for the number of no chunk that a sequence may have."""
    size, unused = sizes.depth * sizes.depth_v, (task.end - task.first + CHUNK - 1) // CHUNK
    unused += chunks_before(task.first, task.sequence)
    if sizes.keep and unused < chunks_before(task.end, task.sequence + 1):
        clear(pointer(it.states, unused * it.states.shape[1] + task.head * size), size, it.scale)
        if sizes.normalise:
            own = pointer(it.kept_norms, unused * it.kept_norms.shape[1] + task.head * sizes.depth)
            clear(own, sizes.depth, it.scale)


@cpu_inlined
def first_state(it, sizes, heads, task):
    """Return the address of the state before the first row of a task; `first` may have one row for all sequences."""
    own = task.head * heads.state // heads.all * sizes.depth * sizes.depth_v
    return pointer(it.first, task.sequence % it.first.shape[0] * it.first.shape[1] + own)


@cpu_inlined
def first_normaliser(it, sizes, heads, task):
    """Return the address of the normaliser before the first row of a task, as `first_state`."""
    own = task.head * heads.state // heads.all * sizes.depth
    return pointer(it.first_norms, task.sequence % it.first.shape[0] * it.first_norms.shape[1] + own)


@cpu_inlined
def _places_of(it, sizes, heads, task, spare):
    """Return the Places of a task; its last state is written to `spare` if another head writes it in its place."""
    size, own, columns = sizes.depth * sizes.depth_v, task.head * sizes.depth_v, it.out.shape[1]
    last = task.sequence * it.last.shape[1] + task.head * heads.state // heads.all * size
    chunk = chunks_before(task.first, task.sequence) if sizes.keep else 0
    is_own, of_norms, of_kept = own_state(heads, task.head) >= 0, it.norms.shape[1], it.kept_norms.shape[1]
    last_norm = task.sequence * it.last_norms.shape[1] + task.head * heads.state // heads.all * sizes.depth
    norms = Norms(
        first_normaliser(it, sizes, heads, task),
        pointer(it.last_norms, last_norm) if is_own else offset(spare, size),
        pointer(it.norms, task.first * of_norms + task.head),
        pointer(it.kept_norms, chunk * of_kept + task.head * sizes.depth), of_norms, of_kept,
    )  # fmt: skip
    return Places(
        first_state(it, sizes, heads, task), pointer(it.last, last) if is_own else spare,
        pointer(it.out, task.first * columns + own), pointer(it.written, task.first * columns + own),
        pointer(it.states, chunk * it.states.shape[1] + task.head * size), norms, columns, it.states.shape[1],
        it.scale, it.tiny,
    )  # fmt: skip


@engine_kernel
def forward(shard, num_shards, code, counters, tasks, numbers, offsets, call):
    """Run the tasks that a thread takes; the last numbers of its scratch are a state and a normaliser."""
    vectorise_widely()
    code, it, sizes, heads = Code(*code), Forward(*call[0]), Sizes(*call[1]), Heads(*call[2])
    counter, own = pointer(counters, 0), pointer(numbers, shard * numbers.shape[1])
    clear(own, numbers.shape[1], it.scale)  # other numbers could be subnormal, which makes every product slow
    spare = offset(own, numbers.shape[1] - sizes.depth * (sizes.depth_v + 1))
    while True:
        number = arrive(counter)
        if number >= tasks.shape[0]:
            return
        task = task_of(tasks, number)
        of = operands_of(it, sizes, heads, task.head)
        memory = memory_of(own, pointer(offsets, shard * offsets.shape[1]), of, sizes)
        _clear_unused(it, sizes, task)
        places = _places_of(it, sizes, heads, task, spare)
        run_chunks(code.run_rows, (code, memory, places, of, sizes, task.first, task.end, counter))
