"""Products on tiles: `x W + b` and `dg W^T`, and the packing of weights into panels.

A panel is `width` columns of a weight, (depth + 1, width): the rows of the weight, then the bias, where sums begin.

Every element is one chain of multiply-adds in the order of the weight's rows: it does not depend on the rows beside it,
nor on the number of threads.  CUDA twins are plain: a thread an element of the result.
"""

import numpy as np
from numba import cuda

from varlen_rnn.device import empty, launch, on_device, zeros
from varlen_rnn.jit import cpu_kernel, cuda_kernel
from varlen_rnn.products.sync import COUNTER, arrive, take_or_wait
from varlen_rnn.products.tile import (
    FAR,
    FEW_ROWS,
    TILE_ROWS,
    copy_run,
    lanes_of,
    offset,
    panel_width,
    pointer,
    rows_of_tile,
    tile,
    transpose_block,
)
from varlen_rnn.threads import count_shards, for_each_shard

ALL_ROWS = np.empty(0, np.int64)  # in place of a list of rows: as they are
ALL_ROWS.flags.writeable = False  # as all lists of rows: other types would have kernels compiled again
_ROW_BLOCK = 48  # the most rows of the result that one panel serves before the next


def size_of_piece(count, num_shards, most):
    """Return the size of pieces of `count`, whole tiles and at most `most`, that divides them evenly among shards.

    Examples
    --------
    >>> size_of_piece(144, 2, 48), size_of_piece(10**6, 2, 48)
    (36, 48)
    """
    pieces = num_shards * -(-count // (num_shards * most))
    return -(-max(1, count) // max(1, pieces) // TILE_ROWS) * TILE_ROWS


@cpu_kernel
def pack_rows(weight, bias, rows, first, end, panels):
    """Pack `weight` (depth, columns) and `bias` (columns,) into `panels` (..., width), those from `first` to `end`.

    Row k of a panel is row `rows[k]` of the weight, or row k where `rows` is empty.  The last panel is filled with
    zeros.  An empty `bias` leaves the last row as it is, for products that accumulate.
    """
    depth, columns = weight.shape
    width = panels.shape[-1]
    weight, flat = weight.ravel(), panels.ravel()
    for p in range(first, end):
        valid = min(width, columns - p * width)
        for k in range(depth + (len(bias) > 0)):
            row = rows[k] if k < len(rows) else k
            source, start = (weight, row * columns) if k < depth else (bias, 0)
            target = (p * (depth + 1) + k) * width
            copy_run(source, start + p * width, flat, target, valid, width)
            for j in range(valid, width):
                flat[target + j] = 0


@cpu_kernel
def pack_columns(weight, bias, num_groups, first_panel, end_panel, panels):
    """Pack the transpose of `weight` (columns, depth), and `bias` (columns,), into `panels` (..., width).

    The columns are `num_groups` groups of equal size.  Neighbouring panels hold the same columns of each group, and
    end in zeros where the group does: panel `i * num_groups + g` begins at column `i * width` of group g.
    """
    columns, depth = weight.shape
    size, width = columns // num_groups, panels.shape[-1]
    weight, flat = weight.ravel(), panels.ravel()
    lanes = lanes_of(pointer(flat, 0))
    for p in range(first_panel, end_panel):
        unit, group = p // num_groups * width, p % num_groups
        valid, first = min(width, size - unit), group * size + unit
        for j in range(width):
            flat[(p * (depth + 1) + depth) * width + j] = bias[first + j] if j < valid else 0
        for k in range(0, depth, lanes):
            for j in range(0, width, lanes):
                source, target = (first + j) * depth + k, (p * (depth + 1) + k) * width + j
                if k + lanes <= depth and j + lanes <= valid:
                    transpose_block(pointer(weight, source), depth, pointer(flat, target), width)
                else:
                    for i in range(min(lanes, depth - k)):
                        for lane in range(lanes):
                            flat[target + i * width + lane] = (
                                weight[source + lane * depth + i] if j + lane < valid else 0
                            )


@cpu_kernel
def tiles(
    rows, a, a_rows, panels, panel_step, num_panels, depth, start, start_rows, start_step, c, c_rows, c_step, wanted
):  # fmt: skip
    """Run `rows` rows of `a` over `num_panels` panels; a depth of 0 copies the start, and reads no panel.

    All are addresses.  Row r begins at its `..._rows[r]`; from a panel, and from its sums, to the next it is a step.
    What is `wanted` later is an address, offsets from there, and how many: a tile each of more than `FEW_ROWS` asks for
    `depth` quarters of a line, and tiles beyond them ask for the next panel.
    """
    wanted_from, wanted_rows, num_wanted = wanted
    if rows <= FEW_ROWS:
        tile(
            rows, num_panels, a, a_rows, 1, panels, panel_step, depth, start, start_rows, start_step, c, c_rows, c_step,
            panels, False,
        )  # fmt: skip
        return
    number = 0
    for p in range(num_panels):  # a panel stays in the caches while rows pass
        panel, here, there = offset(panels, p * panel_step), offset(start, p * start_step), offset(c, p * c_step)
        next_panel, r = offset(panel, panel_step), 0
        while r < rows:
            m = rows_of_tile(rows - r)
            ask = offset(wanted_from, wanted_rows[number]) if number < num_wanted else next_panel
            tile(
                m, 1, a, offset(a_rows, r), 1, panel, 0, depth, here, offset(start_rows, r), 0, there,
                offset(c_rows, r), 0, ask, number < num_wanted,
            )  # fmt: skip
            next_panel, number, r = offset(next_panel, depth * lanes_of(a)), number + 1, r + m


@cpu_kernel
def _pack_shared(weight, transposed, bias, counters, panels):
    """Pack the panels of a weight that no other shard takes, and return when all are packed."""
    taken, packed = pointer(counters, 0), pointer(counters, COUNTER)
    number = take_or_wait(taken, packed, len(panels))
    while number < len(panels):
        if transposed:
            pack_columns(weight, bias, 1, number, number + 1, panels)
        else:
            pack_rows(weight, bias, ALL_ROWS, number, number + 1, panels)
        arrive(packed)
        number = take_or_wait(taken, packed, len(panels))


@cpu_kernel
def product_cpu(
    shard, num_shards, counters, piece, a, a_column, weight, transposed, bias, panels, c, c_column, accumulate
):  # fmt: skip
    """`c[:, c_column:][:, :columns] (+)= a[:, a_column:][:, :depth] @ weight + bias`, `piece` rows at a time.

    Shards take panels to pack, and when all are packed pieces of rows, one after another, so that none waits long for
    one whose core is slow.  The `counters` are of panels taken, panels packed, and pieces taken.  `a` (rows, ...) and
    `c` (rows, ...) are C-contiguous; the bias is unused when accumulating.
    """
    columns, depth = weight.shape if transposed else weight.shape[::-1]
    a_stride, c_stride, width = a.shape[1], c.shape[1], panels.shape[2]
    a_rows, c_rows, no_rows = (
        np.empty(_ROW_BLOCK, np.int64),
        np.empty(_ROW_BLOCK, np.int64),
        np.zeros(_ROW_BLOCK, np.int64),
    )
    for r in range(_ROW_BLOCK):
        a_rows[r], c_rows[r] = r * a_stride, r * c_stride
    whole, valid, step = columns // width, columns % width, (depth + 1) * width
    edge_rows = np.arange(_ROW_BLOCK) * width
    edge = np.zeros(_ROW_BLOCK * width, a.dtype)
    # Where caches near the core hold the panels, tiles ask for what the shard reads next of `a`, each from a part on.
    num_parts = 0 if panels.size > FAR else whole * ((piece + TILE_ROWS - 1) // TILE_ROWS)
    parts = np.arange(max(1, num_parts)) * (piece * a_stride // max(1, num_parts))
    _pack_shared(weight, transposed, bias, counters, panels)
    while True:
        block = arrive(pointer(counters, 2 * COUNTER)) * piece
        if block >= a.shape[0]:
            return
        rows = min(piece, a.shape[0] - block)
        rows_of_a, here = pointer(a, block * a_stride + a_column), block * c_stride + c_column
        next_rows = pointer(a, (block + num_shards * piece) * a_stride + a_column)
        start, start_rows, start_step = pointer(c, here), c_rows, width
        if not accumulate:
            start, start_rows, start_step = pointer(panels, depth * width), no_rows, step
        tiles(
            rows, rows_of_a, pointer(a_rows, 0), pointer(panels, 0), step, whole, depth, start, pointer(start_rows, 0),
            start_step, pointer(c, here), pointer(c_rows, 0), width, (next_rows, pointer(parts, 0), num_parts),
        )  # fmt: skip
        if valid:
            column = c_column + whole * width
            for r in range(rows):
                for j in range(valid):
                    edge[r * width + j] = c[block + r, column + j] if accumulate else panels[whole, depth, j]
            at = pointer(edge_rows, 0)
            panel = pointer(panels, whole * step)
            tiles(
                rows, rows_of_a, pointer(a_rows, 0), panel, step, 1, depth, pointer(edge, 0), at, 0,
                pointer(edge, 0), at, 0, (panel, at, 0),
            )  # fmt: skip
            for r in range(rows):
                for j in range(valid):
                    c[block + r, column + j] = edge[r * width + j]


@cuda_kernel
def product_cuda(a, a_column, depth, weight, transposed, bias, c, c_column, columns, accumulate):
    """Twin of `product_cpu`, which reads the weight where it is; a thread a row and column."""
    i = cuda.grid(1)
    if i < a.shape[0] * columns:
        r, j = i // columns, i % columns
        total = c[r, c_column + j] if accumulate else bias[j]
        for k in range(depth):
            total += a[r, a_column + k] * (weight[j, k] if transposed else weight[k, j])
        c[r, c_column + j] = total


def product(a, weight, c, *, transposed=False, bias=None, a_column=0, c_column=0, accumulate=False):
    """Compute `c = a @ weight + bias`, or add `a @ weight` to `c`, on windows of columns of `a` and `c`.

    Parameters
    ----------
    a : (rows, a_columns) C-contiguous; the product reads `depth` columns from `a_column` on.
    weight : (depth, columns), or (columns, depth) when `transposed`; C-contiguous
    c : (rows, c_columns) C-contiguous; the product writes `columns` columns from `c_column` on.
    bias : (columns,), optional; where the sums start unless they `accumulate`

    Examples
    --------
    >>> c = np.zeros((2, 1)); product(np.ones((2, 3)), np.ones((3, 1)), c, bias=np.ones(1)); c.ravel()
    array([4., 4.])
    """
    columns, depth = weight.shape if transposed else weight.shape[::-1]
    if on_device(a):
        bias = zeros(columns, a) if bias is None else bias
        arguments = (a, a_column, depth, weight, transposed, bias, c, c_column, columns, accumulate)
        launch(product_cuda, a.shape[0] * columns, *arguments)
        return
    bias = np.zeros(columns, a.dtype) if bias is None else np.ascontiguousarray(bias)
    width = panel_width(weight.dtype)
    panels = empty((-(-columns // width), depth + 1, width), weight)
    num_shards = count_shards(a.shape[0] * depth * columns, -(-a.shape[0] // TILE_ROWS))
    counters, piece = np.zeros(3 * COUNTER, np.int64), size_of_piece(a.shape[0], num_shards, _ROW_BLOCK)
    arguments = (counters, piece, a, a_column, weight, transposed, bias, panels, c, c_column, accumulate)
    for_each_shard(product_cpu, *arguments, num_shards=num_shards)
