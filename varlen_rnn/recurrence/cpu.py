"""The shrinking batch on the CPU: runs the loops on as many threads as pay.

Rows stay where they are: products read inputs, and the gradients of gates, through the offsets of their rows.
"""

from varlen_rnn.device import empty
from varlen_rnn.memory import CACHE_LINE
from varlen_rnn.recurrence import cpu_backward, cpu_forward, sharing

_STREAMED = 16 * 2**20  # bytes of what is kept, from which on no cache is trusted to hold it until the gradient
_LONG = 16  # cache lines of a row of slots that are worth one more


def slots_of_rows(x, columns):
    """Return memory for what the rows of `x` keep, each `columns` numbers and perhaps some that `forward` clears.

    Long rows that fill cache lines get one more where that makes their number odd: rows that are a multiple of 4 KB
    apart would all be in one set of a first-level cache, and tiles read several at once.
    """
    line = CACHE_LINE // x.itemsize
    odd = columns + line if columns >= _LONG * line and columns % (2 * line) == 0 else columns
    return empty((len(x), odd), x)


def _streams(slots, whole_panels):
    """Return whether to write what is kept past the caches: they would lose it before the gradient asks for it."""
    if slots.nbytes < _STREAMED or not whole_panels:
        return False
    return slots.__array_interface__["data"][0] % CACHE_LINE == 0


def forward(cell, x, direction, initial, given, y, y_column, slots, last, plan, reverse, keep):
    """Run one direction of a layer; writes its columns of `y`, `last`, and, to `keep` it, what `slots` hold."""
    num_gates, hidden, weights = len(cell.gates), initial.shape[2], tuple(direction)
    loop = cpu_forward.forward_loop(cell, y.dtype)
    depths, unit_blocks = x.shape[1] + hidden, -(-hidden // loop.width)
    sharing.run(
        loop, plan, reverse, len(x) * num_gates * hidden * depths, unit_blocks,
        unit_blocks * num_gates * (depths + 2), y,
        weights, x, initial, given, y, y_column, slots, last, keep,
        keep and _streams(slots, whole_panels=hidden % loop.width == 0),
    )  # fmt: skip


def backward(cell, slots, y, y_column, weight, weight_rows, initial, d_y, d_last, d_initial, plan, reverse):
    """Overwrite `slots` with the gradients of the gates; column k has row `weight_rows[k]` of `weight`."""
    loop = cpu_backward.backward_loop(cell, y.dtype)
    depth, hidden = weight.shape
    unit_blocks = -(-hidden // loop.width)
    sharing.run(
        loop, plan, reverse, len(slots) * weight.size, unit_blocks,
        unit_blocks * (depth + 1), y,
        weight, weight_rows, slots, y, y_column, initial, d_y, d_last, d_initial,
    )  # fmt: skip
