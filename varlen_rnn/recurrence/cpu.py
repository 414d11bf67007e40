"""The shrinking batch on the CPU: has the weights packed and runs the loops on as many threads as pay.

Rows stay where they are: the product of a step reads the states of the step before through the offsets of their rows.
"""

import functools

from varlen_rnn.kernels.gemm import pack_rows, panels_of_columns, panels_of_rows
from varlen_rnn.kernels.tile import panel_width
from varlen_rnn.memory import CACHE_LINE
from varlen_rnn.recurrence import cpu_backward, cpu_forward, sharing

_STREAMED = 16 * 2**20  # bytes of what is kept, from which on no cache is trusted to hold it until the gradient


def _batch(plan, reverse):
    return sharing.Batch(plan.starts, plan.seq_lens, plan.sorted_indices, reverse)


def _streams(slots, states, whole_panels):
    """Return whether to write what is kept past the caches: they would lose it before the gradient asks for it."""
    if slots.nbytes + states.nbytes < _STREAMED or not whole_panels:
        return False
    return all(array.__array_interface__["data"][0] % CACHE_LINE == 0 for array in (slots, states) if array.size)


def forward(cell, x, direction, initial, given, y, y_column, slots, states, last, plan, reverse, keep):
    """Run one direction of a layer; writes its columns of `y`, `last`, and, to `keep` them, `slots` and `states`."""
    num_gates, hidden = len(cell.gates), direction.weight_hh.shape[1]
    weights = cpu_forward.Weights(
        *direction,
        *panels_of_columns(direction.weight_ih, num_gates),
        *panels_of_columns(direction.weight_hh, num_gates),
    )
    width = panel_width(y.dtype)
    sharing.run(
        cpu_forward.forward_kernel(cell, width), _batch(plan, reverse),
        len(x) * (direction.weight_ih.size + direction.weight_hh.size), -(-hidden // width),
        functools.partial(cpu_forward.memory_of, cell), cpu_forward.offsets_of,
        lambda: cpu_forward.pack(weights, num_gates, 0, len(weights.h_panels) // num_gates), y,
        weights, x, initial, given, y, y_column, slots, states, last, keep,
        keep and _streams(slots, states, whole_panels=hidden % width == 0),
    )  # fmt: skip


def backward(cell, slots, y, y_column, states, weight, initial, d_y, d_last, d_initial, plan, reverse):
    """Overwrite `slots` with the gradients of the gates; `weight` has its gates in the order of `cell.h_gates`."""
    width, panels = panel_width(y.dtype), panels_of_rows(weight)
    sharing.run(
        cpu_backward.backward_kernel(cell, width), _batch(plan, reverse),
        len(slots) * weight.size, -(-weight.shape[1] // width),
        functools.partial(cpu_backward.memory_of, cell), cpu_backward.offsets_of,
        lambda: pack_rows(weight, 0, len(panels), panels), y,
        weight, panels, slots, y, y_column, states, initial, d_y, d_last, d_initial,
    )  # fmt: skip
