"""The shrinking batch on the CPU: has the weights packed and runs the loops on as many threads as pay.

Rows stay where they are: the product of a step reads the states of the step before through the offsets of their rows.
"""

import functools

from varlen_rnn.kernels.gemm import pack_rows, panels_of_columns, panels_of_rows
from varlen_rnn.kernels.tile import panel_width
from varlen_rnn.memory import CACHE_LINE
from varlen_rnn.recurrence import cpu_backward, cpu_forward, sharing

_STREAMED = 16 * 2**20  # bytes of what is kept, from which on no cache is trusted to hold it until the gradient


def _streams(slots, whole_panels):
    """Return whether to write what is kept past the caches: they would lose it before the gradient asks for it."""
    if slots.nbytes < _STREAMED or not whole_panels:
        return False
    return slots.__array_interface__["data"][0] % CACHE_LINE == 0


def forward(cell, x, direction, initial, given, y, y_column, slots, last, plan, reverse, keep):
    """Run one direction of a layer; writes its columns of `y`, `last`, and, to `keep` it, what `slots` hold."""
    num_gates, hidden = len(cell.gates), direction.weight_hh.shape[1]
    panels = [panels_of_columns(weight, num_gates) for weight in direction[:2]]
    weights = *direction, *panels
    width = panel_width(y.dtype)
    sharing.run(
        cpu_forward.forward_kernel(cell, width), plan, reverse,
        len(x) * (direction.weight_ih.size + direction.weight_hh.size), -(-hidden // width),
        functools.partial(cpu_forward.memory_of, cell), cpu_forward.offsets_of,
        lambda: cpu_forward.pack(weights, num_gates, 0, len(panels[0]) // num_gates), y,
        weights, x, initial, given, y, y_column, slots, last, keep,
        keep and _streams(slots, whole_panels=hidden % width == 0),
    )  # fmt: skip


def backward(cell, slots, y, y_column, weight, initial, d_y, d_last, d_initial, plan, reverse):
    """Overwrite `slots` with the gradients of the gates; `weight` has its gates in the order of `cell.h_gates`."""
    width, panels = panel_width(y.dtype), panels_of_rows(weight)
    sharing.run(
        cpu_backward.backward_kernel(cell, width), plan, reverse,
        len(slots) * weight.size, -(-weight.shape[1] // width),
        functools.partial(cpu_backward.memory_of, cell), cpu_backward.offsets_of,
        lambda: pack_rows(weight, weight.ravel()[:0], 0, len(panels), panels), y,
        weight, panels, slots, y, y_column, initial, d_y, d_last, d_initial,
    )  # fmt: skip
