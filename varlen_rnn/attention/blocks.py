"""Code that the forward and backward loops share: named tuples for a task and its operands, and products of blocks."""

from typing import Any, NamedTuple

from varlen_rnn.products.packing import ALL_ROWS, Blocks, Weight, no_weight, pack
from varlen_rnn.products.tasks import UNLIMITED
from varlen_rnn.products.tile import Panels, Prefetch, Sums, multiply
from varlen_rnn.products.vectors import offset, pointer, width_of
from varlen_rnn.runtime.device import empty
from varlen_rnn.runtime.jit import cpu_inlined

QUERIES, KEYS = 96, 192  # rows of a block of queries, and of a block of keys (a multiple of a panel's width)
CHUNK = 4 * QUERIES  # the most rows of queries in a task of the forward loop


class Call(NamedTuple):
    """Which keys each query sees, and how scores are computed.

    Attributes
    ----------
    q_offsets, k_offsets : (sequences + 1,) int64, in rows
    heads : int
    scale : float
        The factor of the scores.
    left, right : int
        Query i of a sequence sees the keys i - left to i + right of the same sequence.
    weight : (depth,), optional
        For additive scores, which have one head: `weight . tanh(query + key)` instead of a dot product.
    """

    q_offsets: Any
    k_offsets: Any
    heads: int
    scale: float
    left: int = UNLIMITED
    right: int = UNLIMITED
    weight: Any = None

    def weight_like(self, array):
        """Return the weight, or an empty array of the same type for dot products."""
        return empty((0,), array) if self.weight is None else self.weight


class Task(NamedTuple):
    """A work item: one head of some rows of queries, which attend to the keys of their sequence."""

    head: int
    first: int  # the first row of `q`
    end: int
    origin: int  # the row of `q` at which the queries' sequence begins
    first_key: int  # the first row of `k` and `v`
    end_key: int


class Operands(NamedTuple):
    """The addresses of a head's first query, key and value, and strides from row to row in elements."""

    q: Any
    k: Any
    v: Any
    q_stride: int
    k_stride: int
    v_stride: int
    depth: int  # elements of a query or key
    depth_v: int  # elements of a value


class Block(NamedTuple):
    """A block of queries and a block of keys: the first row of each, counted in its sequence, and how many rows."""

    query: int
    num_queries: int
    key: int
    num_keys: int


class Window(NamedTuple):
    """The window of keys that a query sees: query i sees keys i - left to i + right of its sequence."""

    left: int
    right: int


@cpu_inlined
def task_of(tasks, number):
    """Return row `number` of the array of tasks as a Task."""
    at = pointer(tasks, number * 6)
    return Task(at[0], at[1], at[2], at[3], at[4], at[5])


@cpu_inlined
def operands_of(q, k, v, heads, head):
    """Return the Operands of a head."""
    depth, depth_v = q.shape[1] // heads, v.shape[1] // heads
    of_q, of_k, of_v = pointer(q, head * depth), pointer(k, head * depth), pointer(v, head * depth_v)
    return Operands(of_q, of_k, of_v, q.shape[1], k.shape[1], v.shape[1], depth, depth_v)


@cpu_inlined
def in_panels(like, count):
    """Return `count` columns rounded up to whole panels."""
    width = width_of(like)
    return (count + width - 1) // width * width


@cpu_inlined
def sees_nothing(window, query, num_queries, key, num_keys):
    """Return whether no query of a block of queries sees any key of a block of keys."""
    return key > query + num_queries - 1 + window.right or key + num_keys - 1 < query - window.left


@cpu_inlined
def pack_block(code, at, rows, columns, stride, transposed, panels, counters):
    """Pack the rows at an address into panels, as a weight (rows, columns), or as its transpose if `transposed`."""
    weight = Weight(at, rows, columns, 1, at, False, pointer(ALL_ROWS, 0), 0, panels, stride, 1, 1)
    count = (in_panels(at, rows if transposed else columns)) // width_of(at)
    pack(code.pack, ((weight, no_weight(panels)), transposed, Blocks(0, count, False, counters, counters)))


@cpu_inlined
def offsets_of_rows(offsets, step):
    """Write the offsets of the `KEYS` rows of a block; rows are `step` numbers apart."""
    for r in range(KEYS):
        offsets[r] = r * step


@cpu_inlined
def product_of_block(code, rows, a, panels, depth, columns, c, no_offsets):
    """Compute `c = a @ panels`; sums begin with the bias, the last row of each panel, which holds zeros here."""
    width = width_of(a.at)
    step, count = (depth + 1) * width, in_panels(a.at, columns) // width
    zeros, nothing = Sums(offset(panels, depth * width), no_offsets, step), Prefetch(a.at, no_offsets, 0)
    multiply(code.multiply, (rows, count, a, Panels(panels, step, depth), zeros, Sums(c.at, c.offsets, width), nothing))


@cpu_inlined
def add_product(code, rows, a, panels, depth, columns, c, no_offsets):
    """Compute `c += a @ panels`."""
    width = width_of(a.at)
    step, count = (depth + 1) * width, in_panels(a.at, columns) // width
    sums, nothing = Sums(c.at, c.offsets, width), Prefetch(a.at, no_offsets, 0)
    multiply(code.multiply, (rows, count, a, Panels(panels, step, depth), sums, sums, nothing))
