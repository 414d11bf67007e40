"""Code that the forward and backward loops share: a call, its sizes, a task, and moves of states.

A state in memory of a thread is a list of panels: panel p holds columns p * width to (p + 1) * width of all rows of
the state.  Rows and columns are padded with zeros to whole panels, so every state is cut into square blocks.
"""

from typing import Any, NamedTuple

from varlen_rnn.attention.blocks import in_panels
from varlen_rnn.products.tile import Prefetch, multiply
from varlen_rnn.products.vectors import copy_units, lanes_of, least, offset, pointer, sum_of, transpose_block, width_of
from varlen_rnn.runtime.jit import body, cpu_inlined

CHUNK = 32  # rows of a chunk: a multiple of a panel's width, and the same on every processor
SOLVED = 8  # rows of a diagonal block of scores, which loops multiply; the tile multiplies the columns before it


class Call(NamedTuple):
    """How the states of a call develop.

    Attributes
    ----------
    offsets : (sequences + 1,) int64, in rows
    heads : Heads
    scale : float
        The factor of the outputs.
    delta : bool
        Whether the state's own value for a key is subtracted from the value before it is written.
    keep : bool
        Whether the gradient will be asked for.
    has_state : bool
        Whether the states before the first rows are given; otherwise they are zeros.
    normalise : bool
        Whether each state has a normaliser.
    """

    offsets: Any
    heads: Any
    scale: float
    delta: bool
    keep: bool = True
    has_state: bool = True
    normalise: bool = False


class Heads(NamedTuple):
    """The numbers of heads: each divides `all`, and head h of a call uses head `h * own // all` of an array."""

    all: int
    query: int
    key: int
    value: int
    state: int


class Sizes(NamedTuple):
    """The sizes of a call in numbers, and the flags of its Call."""

    depth: int  # of a query or key
    depth_v: int  # of a value
    rates: int  # decays of a head in a row: 1, or `depth`
    delta: bool
    keep: bool
    has_state: bool
    normalise: bool


class Task(NamedTuple):
    """A work item: one head of a sequence."""

    head: int
    first: int  # the first row
    end: int
    sequence: int


class Operands(NamedTuple):
    """The addresses of a head's operands in the first row of all, and strides from row to row in elements."""

    q: Any
    k: Any
    v: Any
    decay: Any
    beta: Any
    q_stride: int
    k_stride: int
    v_stride: int
    decay_stride: int
    beta_stride: int


@cpu_inlined
def task_of(tasks, number):
    """Return row `number` of the array of tasks as a Task."""
    at = pointer(tasks, number * 4)
    return Task(at[0], at[1], at[2], at[3])


def num_chunks(rows, sequences):
    """Return how many numbers for chunks some sequences have, given the number of their rows.

    A sequence has a number for each `CHUNK` rows, and at most one number more, which it does not use.  So the number of
    its first chunk follows from the rows before it.

    Examples
    --------
    Sequences of 40, 8 and 16 rows have numbers 0 and 1, number 2, and number 3; number 4 is not used.

    >>> [num_chunks(0, 0), num_chunks(40, 1), num_chunks(48, 2), num_chunks(64, 3)]
    [0, 2, 3, 5]
    """
    return rows // CHUNK + sequences


chunks_before = body(num_chunks)


@cpu_inlined
def operands_of(it, sizes, heads, head):
    """Return the Operands of a head."""
    depth, depth_v, rates, state = sizes.depth, sizes.depth_v, sizes.rates, head * heads.state // heads.all
    return Operands(
        pointer(it.q, head * heads.query // heads.all * depth), pointer(it.k, head * heads.key // heads.all * depth),
        pointer(it.v, head * heads.value // heads.all * depth_v), pointer(it.decay, state * rates),
        pointer(it.beta, state), it.q.shape[1], it.k.shape[1], it.v.shape[1], it.decay.shape[1], it.beta.shape[1],
    )  # fmt: skip


@cpu_inlined
def own_state(heads, head):
    """Return the number of a head's state, or -1 if another head reads and writes this state in its place."""
    group = heads.all // heads.state
    return head // group if head % group == 0 else -1


@cpu_inlined
def times(code, rows, columns, a, panels, start, c):
    """Compute `c = start + a @ panels` for some rows, and columns rounded up to whole panels."""
    nothing = Prefetch(a.at, a.offsets, 0)
    multiply(code.multiply, (rows, in_panels(a.at, columns) // width_of(a.at), a, panels, start, c, nothing))


@cpu_inlined
def clear(at, count, like):
    """Write `count` zeros."""
    for j in range(count):
        at[j] = type(like)(0)


@cpu_inlined
def copy_numbers(source, target, count):
    """Copy `count` neighbours."""
    for j in range(count):
        target[j] = source[j]


@cpu_inlined
def copy_rows(rows, count, source, stride, target, target_stride):
    """Copy the first `count` numbers of some rows; strides are from row to row in elements."""
    for i in range(rows):
        copy_numbers(offset(source, i * stride), offset(target, i * target_stride), count)


@cpu_inlined
def scale_all(at, count, factor):
    """Multiply `count` neighbours by a number."""
    for j in range(count):
        at[j] *= factor


@cpu_inlined
def dot(a, b, count, products):
    """Return the dot product of `count` neighbours; `products` is scratch of as many numbers, in whole panels."""
    for x in range(count):
        products[x] = a[x] * b[x]
    for x in range(count, in_panels(products, count)):
        products[x] = 0
    return sum_of(products, in_panels(products, count))


@cpu_inlined
def load_state(source, sizes, panels):
    """Copy a state (depth, depth of values) at an address to panels whose padding is zeros."""
    width, step = width_of(panels), in_panels(panels, sizes.depth) * width_of(panels)
    for j in range(step * (in_panels(panels, sizes.depth_v) // width)):
        panels[j] = 0
    for p in range(in_panels(panels, sizes.depth_v) // width):
        valid = least(width, sizes.depth_v - p * width)
        copy_units(sizes.depth, offset(source, p * width), sizes.depth_v, offset(panels, p * step), width, valid)


@cpu_inlined
def store_state(panels, sizes, target):
    """Copy a state from panels to an address, as (depth, depth of values)."""
    width, step = width_of(panels), in_panels(panels, sizes.depth) * width_of(panels)
    for p in range(in_panels(panels, sizes.depth_v) // width):
        valid = least(width, sizes.depth_v - p * width)
        copy_units(sizes.depth, offset(panels, p * step), width, offset(target, p * width), sizes.depth_v, valid)


@cpu_inlined
def transpose_state(panels, sizes, target):
    """Write the transpose of a state in panels, as panels of its own."""
    width, lanes = width_of(panels), lanes_of(panels)
    rows, columns = in_panels(panels, sizes.depth), in_panels(panels, sizes.depth_v)
    for r in range(0, rows, lanes):
        for x in range(0, columns, lanes):
            source = offset(panels, x // width * rows * width + r * width + x % width)
            transpose_block(source, width, offset(target, r // width * columns * width + x * width + r % width), width)


@cpu_inlined
def transpose_scores(source, target):
    """Transpose a square of `CHUNK` rows."""
    lanes = lanes_of(source)
    for i in range(0, CHUNK, lanes):
        for j in range(0, CHUNK, lanes):
            transpose_block(offset(source, i * CHUNK + j), CHUNK, offset(target, j * CHUNK + i), CHUNK)
