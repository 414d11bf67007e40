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
    """A weight to pack: its address `at`, its shape (0 rows if there is no weight), and the address of its panels.

    A weight with heads is block-diagonal, and only its blocks are stored.  Within each group of rows, the rows of head
    1 follow the rows of head 0, and each head multiplies its own part of the operand.  A piece of a panel has the
    numbers of one head, and zeros in the columns of other heads.
    """

    at: Any
    rows: int
    columns: int
    groups: int  # groups of equally many rows (gates); panel p of a transposed weight belongs to group p % groups
    bias: Any
    has_bias: bool  # if False, the last row of a panel is not written
    order: Any  # row k of a panel is row `order[k]` of the weight
    num_ordered: int  # the length of `order`; 0 if rows keep their own order
    panels: Any
    stride: int  # elements from row to row
    heads: int  # blocks of the diagonal; 1 for a weight without heads
    pieces: int  # pieces of a panel: the most heads whose columns a panel has


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
    return Weight(pointer(weight, 0), rows, columns, groups, pointer(bias, 0), True, none, 0, panels, columns, 1, 1)


@cpu_inlined
def part_of_weight(weight, bias, first, groups, size, panels, heads, pieces):
    """Return the Weight for packing `groups` groups of `size` rows of an array from row `first` on, and their bias."""
    none, columns = pointer(ALL_ROWS, 0), weight.shape[1]
    at, rows = pointer(weight, first * columns), groups * size
    return Weight(at, rows, columns, groups, pointer(bias, first), True, none, 0, panels, columns, heads, pieces)


@cpu_inlined
def weight_without_bias(weight, panels):
    """Return the Weight for packing an array (rows, columns) without a bias."""
    rows, columns = weight.shape
    at = pointer(weight, 0)
    return Weight(at, rows, columns, 1, at, False, pointer(ALL_ROWS, 0), 0, panels, columns, 1, 1)


@cpu_inlined
def no_weight(panels):
    """Return a Weight without rows, if there is nothing to pack."""
    return Weight(panels, 0, 0, 1, panels, False, pointer(ALL_ROWS, 0), 0, panels, 0, 1, 1)


@cpu_inlined
def _columns_of_piece(unit, piece, head, valid):
    """Return the head of a piece of the panel that begins at `unit`, and where its columns in the panel begin and end.

    `head` is the number of units of a head.  With heads of 20 units and panels of 32, piece 1 of the panel at unit 32
    has head 2, whose columns 8 to 28 are units 40 to 60.
    """
    number = unit // head + piece
    return number, number * head - unit if piece else 0, least(valid, (number + 1) * head - unit)


@cpu_inlined
def _pack_rows(weight, first, end):
    """Pack panels `first` to `end` of a weight that is not transposed; zeros fill the last panel."""
    panels, width, pieces, head = weight.panels, width_of(weight.panels), weight.pieces, weight.columns
    size, units = weight.rows // weight.groups, weight.columns * weight.heads
    of_head = size // weight.heads
    depth = weight.groups * of_head
    for p in range(first * pieces, least(end, (units + width - 1) // width) * pieces):
        unit = p // pieces * width
        number, low, high = _columns_of_piece(unit, p % pieces, head, least(width, units - unit))
        panel, source = offset(panels, p * (depth + 1) * width), offset(weight.at, unit + low - number * head)
        for group in range(weight.groups if low < high else 0):
            target = offset(panel, group * of_head * width + low)
            for k in range(of_head):
                at = group * size + number * of_head + k
                row = weight.order[at] if at < weight.num_ordered else at
                copy_units(1, offset(source, row * weight.stride), 0, offset(target, k * width), 0, high - low)
        if weight.has_bias:
            copy_units(1, offset(weight.bias, unit), 0, offset(panel, depth * width), 0, high)
        for k in range(depth + weight.has_bias if high - low < width else 0):
            for j in range(low):
                panel[k * width + j] = 0
            for j in range(high, width):
                panel[k * width + j] = 0


@cpu_inlined
def _pack_columns(weight, first, end):
    """Pack rows of a weight as columns of panels; whole square blocks are transposed in vectors, edges one by one."""
    panels = weight.panels
    depth, width, lanes = weight.columns, width_of(panels), lanes_of(panels)
    if weight.rows == 0:
        return
    groups, pieces, size = weight.groups, weight.pieces, weight.rows // weight.groups
    for p in range(first * groups * pieces, end * groups * pieces):
        unit, panel = p // (groups * pieces) * width, offset(panels, p * (depth + 1) * width)
        piece, row = p // groups % pieces, p % groups * size + unit
        _, low, high = _columns_of_piece(unit, piece, size // weight.heads, least(width, size - unit))
        for j in range(width):
            panel[depth * width + j] = weight.bias[row + j] if low <= j < high and weight.has_bias else 0
        for k in range(0, depth, lanes):
            for j in range(0, width, lanes):
                source, target = offset(weight.at, (row + j) * weight.stride + k), offset(panel, k * width + j)
                if k + lanes <= depth and low <= j and j + lanes <= high:
                    transpose_block(source, weight.stride, target, width)
                else:
                    for i in range(least(lanes, depth - k)):
                        for lane in range(lanes):
                            is_own = low <= j + lane < high
                            target[i * width + lane] = source[lane * weight.stride + i] if is_own else 0


@cpu_inlined
def pack_block(weight, transposed, block):
    """Pack one block of panels of a weight, or of its transpose."""
    if transposed:
        _pack_columns(weight, block, block + 1)
    else:
        _pack_rows(weight, block, block + 1)


def arguments_of_pack(scalar):
    """Return the types of the arguments of `pack`."""
    number, address, numbers = types.intp, types.CPointer(scalar), types.CPointer(types.int64)
    fields = address, number, number, number, address, types.boolean, numbers, number, address, *[number] * 3
    weight = types.NamedTuple(fields, Weight)
    blocks = types.NamedTuple((number, number, types.boolean, numbers, numbers), Blocks)
    return types.UniTuple(weight, 2), types.boolean, blocks


@called_by_address(arguments_of_pack)
def pack(weights, transposed, blocks):
    """Pack blocks of panels of two weights, or of their transposes; return when all blocks are packed.

    If a weight is transposed, block i has one panel for each group: panel `i * groups + g` begins at row `i * width` of
    group g.  A panel that reaches beyond the end of its group is filled with zeros.  With several pieces, block i has
    all panels of its first piece, then all panels of its next piece.
    """
    optimise_for_size()
    block = blocks.first
    while True:
        if blocks.shared:
            block = take_or_wait(blocks.taken, blocks.packed, blocks.end)
        if block >= blocks.end:
            return
        for weight in weights:
            pack_block(weight, transposed, block)
        if blocks.shared:
            arrive(blocks.packed)
        block += 1
