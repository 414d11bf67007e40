"""Memory of a thread that computes the gradient of linear attention, and the addresses of a chunk's operands."""

import itertools
from typing import Any, NamedTuple

from varlen_rnn.attention.blocks import in_panels
from varlen_rnn.linear_attention.blocks import CHUNK, num_chunks
from varlen_rnn.linear_attention.normaliser import size_of_chunk
from varlen_rnn.linear_attention.steps import scratch_of_steps
from varlen_rnn.products.vectors import offset, pointer, width_of
from varlen_rnn.runtime.jit import cpu_inlined


class Memory(NamedTuple):
    """Memory of one thread.

    Panels are packed rows or columns; rows are `padded` or `padded_v` elements apart, in panels `width`.
    """

    state: Any
    d_state: Any
    state_turned: Any
    d_state_turned: Any
    keys: Any  # K^T in panels
    queries: Any  # Q^T in panels
    key_rows: Any  # K in panels
    query_rows: Any  # Q in panels
    d_out_rows: Any  # dO in panels
    reads: Any  # scale e dO, then -e dU: two chunks of rows
    reads_packed: Any  # the same in panels
    scores: Any  # M
    of_keys: Any  # -A
    between: Any  # D
    d_scores: Any  # dM, then N
    d_of_keys: Any  # the gradient of -A, then P
    turned: Any  # a transposed square
    y: Any  # rows
    y_turned: Any  # Y^T in panels
    d_y: Any  # in panels: dY, then dU
    d_written: Any  # in panels: dU before it is multiplied by beta
    read: Any  # two chunks of rows: dO S^T and dU S^T with their factors
    d_keys: Any  # rows of dK
    numbers: Any  # 5 numbers for each row of the chunk: `since`, `part`, `reads`, `leaves`, `d_beta`
    zeros: Any
    spare: Any
    normaliser: Any  # of `normaliser.OfChunk`
    steps: Any


class Part(NamedTuple):
    """The addresses of a head's operands and gradients in the first row of a chunk."""

    q: Any
    k: Any
    beta: Any
    u: Any  # as in Saved
    u_stride: int
    d_out: Any
    d_norm: Any
    d_q: Any
    d_k: Any
    d_v: Any
    d_decay: Any
    d_beta: Any
    norm_stride: int  # of `d_norm`


class Saved(NamedTuple):
    """What the forward loop saved for a task: addresses in row 0 or in the task's first chunk, and strides."""

    u: Any  # the corrected values of `forward_loop`, or the values without `delta`
    states: Any  # the state before each chunk
    norms: Any  # the normaliser before each chunk
    u_stride: int
    states_stride: int
    norms_stride: int


class Again(NamedTuple):
    """Memory of a thread that runs the rows of a task again."""

    numbers: Any  # scratch of `forward_loop`, as `offsets`
    last: Any  # a state and a normaliser that no task keeps
    u: Any
    states: Any
    norm: Any  # of each row
    norms: Any  # normalisers, as `states`
    offsets: Any


class Offsets(NamedTuple):
    """Lists of the offsets of rows."""

    q: Any
    k: Any
    values: Any  # of arrays with the columns of all heads
    panel: Any
    scores: Any
    padded: Any
    padded_v: Any
    none: Any


def places_of(depth, depth_v, width):
    """Return where each field of `Memory` begins, in numbers, and how many numbers a thread needs, as one tuple."""
    padded, padded_v = (-(-size // width) * width for size in (depth, depth_v))
    state, square, keys, values = padded * padded_v, CHUNK * CHUNK, CHUNK * padded, CHUNK * padded_v
    sizes = (
        *[state] * 4, CHUNK * (depth + 1), CHUNK * (depth + 1), keys + padded, keys + padded, values + padded_v,
        2 * values, 2 * (values + padded_v), *[square] * 6, values, CHUNK * (depth_v + 1), values, values, 2 * keys,
        keys, 5 * CHUNK, width, padded + padded_v, size_of_chunk(depth),
        depth * depth_v + scratch_of_steps(depth, depth_v, width),
    )  # fmt: skip
    return tuple(itertools.accumulate(sizes, initial=0))


def num_offsets(depth, depth_v, width):
    """Return how many int64 offsets a thread needs."""
    return 8 * max(CHUNK, -(-max(depth, depth_v) // width) * width)


def places_of_again(rows, depth, depth_v, begin, scratch):
    """Return where each field of `Again` begins in the memory of a thread, and how many numbers and offsets it needs.

    `begin` is where the memory of the gradient ends, and `scratch` is the result of `forward_loop.scratch_of`.
    """
    size, (numbers, offsets) = depth * depth_v, scratch
    u, chunks = begin[0] + numbers, num_chunks(rows, 1)
    states = u + rows * depth_v
    norm = states + chunks * size
    places = begin[0], u - size - depth, u, states, norm, norm + rows, begin[1]
    return places, (norm + rows + chunks * depth, begin[1] + offsets)


@cpu_inlined
def again_of(at, offsets, p):
    """Return the Again whose fields begin at `places_of_again`."""
    return Again(
        offset(at, p[0]), offset(at, p[1]), offset(at, p[2]), offset(at, p[3]), offset(at, p[4]),
        offset(at, p[5]), offset(offsets, p[6]),
    )  # fmt: skip


@cpu_inlined
def memory_of(at, p):
    """Return the Memory that begins at an address, with fields at `places_of`."""
    return Memory(
        offset(at, p[0]), offset(at, p[1]), offset(at, p[2]), offset(at, p[3]), offset(at, p[4]), offset(at, p[5]),
        offset(at, p[6]), offset(at, p[7]), offset(at, p[8]), offset(at, p[9]), offset(at, p[10]), offset(at, p[11]),
        offset(at, p[12]), offset(at, p[13]), offset(at, p[14]), offset(at, p[15]), offset(at, p[16]),
        offset(at, p[17]), offset(at, p[18]), offset(at, p[19]), offset(at, p[20]), offset(at, p[21]),
        offset(at, p[22]), offset(at, p[23]), offset(at, p[24]), offset(at, p[25]), offset(at, p[26]),
        offset(at, p[27]),
    )  # fmt: skip


@cpu_inlined
def offsets_of(at, of, stride, like, sizes):
    """Write the lists of offsets to an address; `stride` is the number of columns of values of all heads."""
    padded, padded_v = in_panels(like, sizes.depth), in_panels(like, sizes.depth_v)
    most = padded if padded > padded_v else padded_v
    count = CHUNK if most < CHUNK else most
    strides = of.q_stride, of.k_stride, stride, width_of(like), CHUNK, padded, padded_v, 0
    for number in range(8):
        for r in range(count):
            at[number * count + r] = r * strides[number]
    return Offsets(
        at, offset(at, count), offset(at, 2 * count), offset(at, 3 * count), offset(at, 4 * count),
        offset(at, 5 * count), offset(at, 6 * count), offset(at, 7 * count),
    )  # fmt: skip


@cpu_inlined
def part_of(it, of, saved, row, head, sizes):
    """Return the Part that begins at `row`."""
    return Part(
        offset(of.q, row * of.q_stride), offset(of.k, row * of.k_stride), offset(of.beta, row * of.beta_stride),
        offset(saved.u, row * saved.u_stride), saved.u_stride,
        pointer(it.d_out, row * it.d_out.shape[1] + head * sizes.depth_v),
        pointer(it.d_norms, row * it.d_norms.shape[1] + head),
        pointer(it.d_q, row * it.d_q.shape[1] + head * sizes.depth),
        pointer(it.d_k, row * it.d_k.shape[1] + head * sizes.depth),
        pointer(it.d_v, row * it.d_v.shape[1] + head * sizes.depth_v),
        pointer(it.d_decay, row * it.d_decay.shape[1] + head * sizes.rates),
        pointer(it.d_beta, row * it.d_beta.shape[1] + head), it.d_norms.shape[1],
    )  # fmt: skip
