"""The recurrence on the CPU: the two loops, and the memory that they keep.

Rows stay where they are: products read inputs, and the gradients of gates, through the offsets of their rows.
"""

import functools

from varlen_rnn.device import empty
from varlen_rnn.memory import CACHE_LINE
from varlen_rnn.products.packing import address_of_pack
from varlen_rnn.products.tile import address_of_multiply
from varlen_rnn.products.vectors import panel_width
from varlen_rnn.recurrence import backward_loop, forward_loop
from varlen_rnn.recurrence.equations import Code, backward_equations, forward_equations, sizes_of
from varlen_rnn.recurrence.schedule import Loop, run

_NON_TEMPORAL = 16 * 2**20  # bytes of what is kept, from which on no cache is trusted to hold it until the gradient
_LONG = 16  # cache lines of a row of slots that are worth one more


@functools.cache
def _compiled(cell, dtype, equations):
    """Return the Code of a loop, as the plain tuple that kernels take, and the Sizes of its cell."""
    code = Code(address_of_multiply(dtype), address_of_pack(dtype), equations(cell, dtype))
    return tuple(code), sizes_of(cell)


def kept_of_rows(x, columns):
    """Return memory for what the rows of `x` keep, each `columns` numbers and perhaps some that `forward` clears.

    Long rows that fill cache lines get one more where that makes their number odd: rows that are a multiple of 4 KB
    apart would all be in one set of a first-level cache, and tiles read several at once.
    """
    line = CACHE_LINE // x.itemsize
    odd = columns + line if columns >= _LONG * line and columns % (2 * line) == 0 else columns
    return empty((len(x), odd), x)


def _past_caches(kept, whole_panels):
    """Return whether to write what is kept past the caches: they would lose it before the gradient asks for it."""
    if kept.nbytes < _NON_TEMPORAL or not whole_panels:
        return False
    return kept.__array_interface__["data"][0] % CACHE_LINE == 0


def _plain(task):
    return task.x, tuple(task.weights), *task[2:]


def forward(cell, task, last, plan, reverse, keep):
    """Run a task: write its outputs, the last states, and, to `keep` it, what its rows keep."""
    code, sizes = _compiled(cell, task.y.dtype, forward_equations)
    width, (gates, hidden) = panel_width(task.y.dtype), task.weights.weight_hh.shape
    depths, unit_blocks = task.x.shape[1] + hidden, -(-hidden // width)
    memory_of = functools.partial(forward_loop.memory_of, sizes)
    carry_rows = 2 * forward_loop.output_blocks(unit_blocks) + (len(cell.states) - 1) * unit_blocks
    panel_rows = unit_blocks * len(cell.gates) * (depths + 2)
    run(
        Loop(forward_loop.forward, memory_of, width, carry_rows, panel_rows), plan, reverse,
        len(task.x) * gates * depths, unit_blocks, task.y,
        code, tuple(sizes), _plain(task), last, keep, keep and _past_caches(task.kept, hidden % width == 0),
    )  # fmt: skip


def backward(cell, task, weight_rows, d_y, d_last, d_initial, plan, reverse):
    """Overwrite the slots of a task with gradients of gates; column k has row `weight_rows[k]` of `weight_hh`."""
    code, sizes = _compiled(cell, task.y.dtype, backward_equations)
    width, weight = panel_width(task.y.dtype), task.weights.weight_hh
    depth, hidden = weight.shape
    unit_blocks = -(-hidden // width)
    memory_of = functools.partial(backward_loop.memory_of, sizes)
    run(
        Loop(backward_loop.backward, memory_of, width, len(cell.states) * unit_blocks, unit_blocks * (depth + 1)),
        plan, reverse, len(task.y) * weight.size, unit_blocks, task.y,
        code, tuple(sizes), _plain(task), weight_rows, d_y, d_last, d_initial,
    )  # fmt: skip
