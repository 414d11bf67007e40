"""Pack weights into panels (blocks of columns), in the order in which tiles read them.

A panel holds `width` columns of a weight and has the shape (depth + 1, width).  Its last row is the bias, where the
sums begin.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import types

from varlen_rnn.products.sync import arrive, take_or_wait
from varlen_rnn.products.vectors import (
    copy_units,
    lanes_of,
    least,
    offset,
    optimise_for_size,
    pointer,
    transpose_block,
    width_of,
)
from varlen_rnn.runtime.jit import called_by_address, cpu_inlined

ALL_ROWS = np.empty(0, np.int64)  # an empty list of rows means all rows in order
ALL_ROWS.flags.writeable = False  # all lists of rows are read-only, because kernels are compiled for one type of array


class Weight(NamedTuple):
    """A weight to pack: its address `at`, its shape (0 rows if there is no weight), and the address of its panels."""

    at: Any
    rows: int
    columns: int
    groups: int  # groups of equally many rows (gates) of a transposed weight; panel p belongs to group p % groups
    bias: Any
    has_bias: bool  # if False, the last row of a panel is not written
    order: Any  # row k of a panel is row `order[k]` of the weight
    num_ordered: int  # the length of `order`; 0 if rows keep their own order
    panels: Any
    stride: int  # elements from row to row


class Blocks(NamedTuple):
    """The blocks of panels that a thread packs: `first` to `end`, or, if `shared`, the blocks that it takes itself."""

    first: int
    end: int
    shared: bool
    taken: Any  # the number of blocks that threads have taken
    packed: Any  # the number of blocks that are packed


@cpu_inlined
def weight_of(weight, bias, groups, panels):
    """Return the Weight for packing an array (rows, columns) and its bias."""
    rows, columns = weight.shape
    none = pointer(ALL_ROWS, 0)
    return Weight(pointer(weight, 0), rows, columns, groups, pointer(bias, 0), True, none, 0, panels, columns)


@cpu_inlined
def part_of_weight(weight, bias, first, groups, size, panels):
    """Return the Weight for packing `groups` groups of `size` rows of an array from row `first` on, and their bias."""
    none, columns = pointer(ALL_ROWS, 0), weight.shape[1]
    at = pointer(weight, first * columns)
    return Weight(at, groups * size, columns, groups, pointer(bias, first), True, none, 0, panels, columns)


@cpu_inlined
def weight_without_bias(weight, panels):
    """Return the Weight for packing an array (rows, columns) without a bias."""
    rows, columns = weight.shape
    at = pointer(weight, 0)
    return Weight(at, rows, columns, 1, at, False, pointer(ALL_ROWS, 0), 0, panels, columns)


@cpu_inlined
def no_weight(panels):
    """Return a Weight without rows, if there is nothing to pack."""
    return Weight(panels, 0, 0, 1, panels, False, pointer(ALL_ROWS, 0), 0, panels, 0)


@cpu_inlined
def _pack_rows(weight, first, end):
    """Pack panels `first` to `end` of a weight that is not transposed; zeros fill the last panel."""
    panels, depth, width = weight.panels, weight.rows, width_of(weight.panels)
    for p in range(first, least(end, (weight.columns + width - 1) // width)):
        valid, panel = least(width, weight.columns - p * width), offset(panels, p * (depth + 1) * width)
        for k in range(depth):
            row = weight.order[k] if k < weight.num_ordered else k
            copy_units(1, offset(weight.at, row * weight.stride + p * width), 0, offset(panel, k * width), 0, valid)
        if weight.has_bias:
            copy_units(1, offset(weight.bias, p * width), 0, offset(panel, depth * width), 0, valid)
        for k in range(depth + weight.has_bias if valid < width else 0):
            for j in range(valid, width):
                panel[k * width + j] = 0


@cpu_inlined
def _pack_columns(weight, first, end):
    """Pack rows of a weight as columns of panels; whole square blocks are transposed in vectors, edges one by one."""
    panels = weight.panels
    depth, width, lanes = weight.columns, width_of(panels), lanes_of(panels)
    if weight.rows == 0:
        return
    groups, size = weight.groups, weight.rows // weight.groups
    for p in range(first * groups, end * groups):
        unit, panel = p // groups * width, offset(panels, p * (depth + 1) * width)
        valid, row = least(width, size - unit), p % groups * size + unit
        for j in range(width):
            panel[depth * width + j] = weight.bias[row + j] if j < valid and weight.has_bias else 0
        for k in range(0, depth, lanes):
            for j in range(0, width, lanes):
                source, target = offset(weight.at, (row + j) * weight.stride + k), offset(panel, k * width + j)
                if k + lanes <= depth and j + lanes <= valid:
                    transpose_block(source, weight.stride, target, width)
                else:
                    for i in range(least(lanes, depth - k)):
                        for lane in range(lanes):
                            target[i * width + lane] = source[lane * weight.stride + i] if j + lane < valid else 0


def _arguments(scalar):
    number, address, numbers = types.intp, types.CPointer(scalar), types.CPointer(types.int64)
    fields = address, number, number, number, address, types.boolean, numbers, number, address, number
    weight = types.NamedTuple(fields, Weight)
    blocks = types.NamedTuple((number, number, types.boolean, numbers, numbers), Blocks)
    return types.UniTuple(weight, 2), types.boolean, blocks


@called_by_address(_arguments)
def pack(weights, transposed, blocks):
    """Pack blocks of panels of two weights, or of their transposes; return when all blocks are packed.

    If a weight is transposed, block i has one panel for each group: panel `i * groups + g` begins at row `i * width` of
    group g.  A panel that reaches beyond the end of its group is filled with zeros.
    """
    optimise_for_size()
    block = blocks.first
    while True:
        if blocks.shared:
            block = take_or_wait(blocks.taken, blocks.packed, blocks.end)
        if block >= blocks.end:
            return
        for weight in weights:
            if transposed:
                _pack_columns(weight, block, block + 1)
            else:
                _pack_rows(weight, block, block + 1)
        if blocks.shared:
            arrive(blocks.packed)
        block += 1
