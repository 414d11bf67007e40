"""What both loops are made of: a task, its memory, products of blocks, and the softmax of a row of scores."""

from typing import Any, NamedTuple

from varlen_rnn.products.packing import ALL_ROWS, Blocks, Weight, no_weight, pack
from varlen_rnn.products.tile import Panels, Prefetch, Sums, multiply
from varlen_rnn.products.vectors import offset, pointer, width_of
from varlen_rnn.runtime.jit import cpu_inlined

QUERIES, KEYS = 96, 192  # rows of a block; of keys, whole panels
CHUNK = 4 * QUERIES  # rows of queries that are one piece of work of the forward loop


class Task(NamedTuple):
    """Rows of queries from `first` to `end`, of a sequence that begins at `origin`; keys; and which head."""

    head: int
    first: int
    end: int
    origin: int
    first_key: int
    end_key: int


class Operands(NamedTuple):
    """The rows of a head: queries, keys and values; how far rows are apart, and how many numbers each has."""

    q: Any
    k: Any
    v: Any
    q_stride: int
    k_stride: int
    v_stride: int
    depth: int
    depth_v: int


class Block(NamedTuple):
    """A block of queries, and one of keys: the first, counted from where their sequences begin, and how many."""

    query: int
    num_queries: int
    key: int
    num_keys: int


class Window(NamedTuple):
    """Query i sees keys from i - left to i + right."""

    left: int
    right: int


@cpu_inlined
def task_of(tasks, number):
    """Return a task of the list."""
    at = pointer(tasks, number * 6)
    return Task(at[0], at[1], at[2], at[3], at[4], at[5])


@cpu_inlined
def operands_of(q, k, v, heads, head):
    """Return the operands of a head."""
    depth, depth_v = q.shape[1] // heads, v.shape[1] // heads
    of_q, of_k, of_v = pointer(q, head * depth), pointer(k, head * depth), pointer(v, head * depth_v)
    return Operands(of_q, of_k, of_v, q.shape[1], k.shape[1], v.shape[1], depth, depth_v)


@cpu_inlined
def in_panels(like, count):
    """Return how many numbers so many columns take in whole panels."""
    width = width_of(like)
    return (count + width - 1) // width * width


@cpu_inlined
def sees_nothing(window, query, num_queries, key, num_keys):
    """Return whether no query of a block sees a key of one."""
    return key > query + num_queries - 1 + window.right or key + num_keys - 1 < query - window.left


@cpu_inlined
def pack_block(code, at, rows, columns, stride, transposed, panels, counters):
    """Pack rows as a weight (rows, columns), or as its columns."""
    weight = Weight(at, rows, columns, 1, at, False, pointer(ALL_ROWS, 0), 0, panels, stride)
    count = (in_panels(at, rows if transposed else columns)) // width_of(at)
    pack(code.pack, ((weight, no_weight(panels)), transposed, Blocks(0, count, False, counters, counters)))


@cpu_inlined
def offsets_of_rows(offsets, step):
    """Fill in the offsets of the rows of a block that are `step` numbers apart."""
    for r in range(KEYS):
        offsets[r] = r * step


@cpu_inlined
def product_of_block(code, rows, a, panels, depth, columns, c, no_offsets):
    """`c = a @ panels`: of the last row of each panel, which is zeros, sums begin."""
    width = width_of(a.at)
    step, count = (depth + 1) * width, in_panels(a.at, columns) // width
    zeros, nothing = Sums(offset(panels, depth * width), no_offsets, step), Prefetch(a.at, no_offsets, 0)
    multiply(code.multiply, (rows, count, a, Panels(panels, step, depth), zeros, Sums(c.at, c.offsets, width), nothing))


@cpu_inlined
def add_product(code, rows, a, panels, depth, columns, c, no_offsets):
    """`c += a @ panels`."""
    width = width_of(a.at)
    step, count = (depth + 1) * width, in_panels(a.at, columns) // width
    sums, nothing = Sums(c.at, c.offsets, width), Prefetch(a.at, no_offsets, 0)
    multiply(code.multiply, (rows, count, a, Panels(panels, step, depth), sums, sums, nothing))
