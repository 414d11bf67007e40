"""Sums over rows: `x^T dg` and the column sums of dg, the gradients of weights and biases.

Rows are summed in blocks of a fixed size, so the order of additions depends on the number of rows alone, not on the
number of threads.

Rounding errors of products do not grow with the number of rows, although sums have the data's own type.  Take 10,000
rows.  The 128 rows of a block are one chain of multiply-adds that begins at zero.  The sums of 32 blocks (4,096 rows, a
group) are added one after another.  The sums of groups are added with a correction for the rounding error of each
addition, as in `kernels.sums`.  So the error of an element is at most 162 roundings, 1e-5 in float32, of the sum of
magnitudes |a b|, however many rows there are.  Column sums on the CPU add the rows of a block in the data's own type,
and the sums of blocks in float64.  On CUDA, they are a pooled sum (`kernels.sums`).

Products of bfloat16 (`bfloat16`) have the same blocks, but no groups, whose memory is twice the gradient's.  The sums
of blocks are added one after another: an error of at most a rounding per block, 5e-4 with a million rows, while
rounding the operands costs up to 4e-3.  The rows of a slab are rounded and paired once for all tiles.  Sums of columns
add numbers that are not rounded.

On CUDA, products run in tiles (`tile_cuda`) and add rows as pooled sums do: blocks of 48 rows, with a correction.  From
2,048 rows on, rows are cut into up to eight slices, so that a small product has work for more multiprocessors.  Sums of
slices are added by a pooled sum.
"""

import functools
from typing import Any, NamedTuple

import numpy as np
from numba import types, uint32

from varlen_rnn.kernels.pool import pool_sum
from varlen_rnn.kernels.sums import BLOCK, add_block, settled
from varlen_rnn.products.bfloat16 import add_columns, begin_or_end, pair_rows, rounded_of
from varlen_rnn.products.gemm import size_of_piece
from varlen_rnn.products.packing import ALL_ROWS
from varlen_rnn.products.rounding import number_of_half
from varlen_rnn.products.sync import COUNTER, arrive, wait_until
from varlen_rnn.products.tile import Panels, Rows, Sums, make_tile
from varlen_rnn.products.tile_cuda import (
    ALIGNMENT,
    DEPTH,
    THREADS,
    WIDE,
    own_column,
    pitch_of,
    place_of,
    products_of,
    size_of_stage,
    straight,
)
from varlen_rnn.products.vectors import (
    TILE_ROWS,
    VECTOR_BYTES,
    copy_and_add_span,
    copy_units,
    halves_at,
    lanes_of,
    least,
    offset,
    optimise_for_size,
    panel_width,
    pointer,
    prefetch_to_read,
    prefetch_to_write,
    span_of_tile,
    vectorise_widely,
    width_of,
)
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.device import beside, contiguous, copy_into, empty, joined, on_device, zeros
from varlen_rnn.runtime.jit import body, called_by_address, cpu_inlined, cuda_kernel, engine_kernel
from varlen_rnn.runtime.memory import CACHE_LINE
from varlen_rnn.runtime.precision import get_float32_matmul_precision
from varlen_rnn.runtime.threads import count_shards, for_each_shard

_DEPTH_BLOCK = 128  # rows of a block, whose products are one chain of multiply-adds
_GROUP = 32  # blocks of a group, whose sums are added without correction
MANY_ROWS = _GROUP * _DEPTH_BLOCK  # with more rows than this, functions called by address add the sums of groups
_SLAB = 2  # blocks of a slab (the rows of a piece of work, added while L1 holds the sums); a divisor of `_GROUP`
_ALL_SLABS = 2**62  # more than any array has
_COLUMN_BLOCK = 192  # the most columns of `a` in a piece of work
_ROWS_AHEAD = 4  # rows to prefetch while copying: a copied part of a row is too short for the hardware's prefetcher
_SLICE_ROWS, _MOST_SLICES = 1024, 8  # on CUDA: the fewest rows of a slice, and the most slices
_K_PER_LINE = 8  # rows per prefetched cache line: a block of 128 rows prefetches 256 float32, at least a row of a piece

_column_tile = make_tile((TILE_ROWS,), 1, k_step=TILE_ROWS, lines=1 / _K_PER_LINE, adds=True)


class Code(NamedTuple):
    """The addresses of the compiled functions that `row_products_cpu` calls; 0 for functions that it does not need."""

    add_up: int  # for groups of blocks, as is the next; 0 if there are no groups
    add_last: int
    pair_rows: int  # for products of bfloat16, like the following
    begin_columns: int
    add_columns: int
    end_columns: int
    copy_halves: int  # for columns that are halves of pairs


def code_of_sums(dtype, precision, has_groups, of_pairs=False):
    """Return the Code for numbers of a data type in a precision, compiled at its first use.

    `has_groups` says whether there are more rows than `MANY_ROWS`; sums of products of bfloat16 have no groups.
    `of_pairs` says whether `a` has pairs of bfloat16.
    """
    rounded = rounded_of(dtype, precision)
    if rounded is None:
        of_groups = [function.address(dtype) if has_groups else 0 for function in (add_up, _add_last)]
        return Code(*of_groups, 0, 0, 0, 0, 0)
    copy_halves = _copy_halves.address(dtype) if of_pairs else 0
    return Code(0, 0, *(function.address(dtype) for function in rounded.columns), copy_halves)


class Factor(NamedTuple):
    """The second operand of a product summed over rows: `a[:, first:end]^T @ b[rows, column:][:, :columns]`."""

    first: int
    end: int
    b: np.ndarray
    column: int
    columns: int
    initial: np.ndarray  # (n, columns); an entry -1 - i of `rows` means row i of `initial`
    rows: np.ndarray  # row k of `a` is multiplied by row `rows[k]` of `b`; by row k if `rows` is empty
    targets: np.ndarray = ALL_ROWS  # row i of the product goes to row `targets[i]`; to row i if `targets` is empty
    # Heads of a block-diagonal product; 1 if it has none.  Row i belongs to unit `i % columns`, column j to unit j, and
    # only products of units of one head are computed.
    heads: int = 1


class Cut(NamedTuple):
    """How row products are cut into pieces of work: a piece has a slab of rows (`_SLAB` blocks) and some columns."""

    lowest: int  # the first column of `a` that has products
    highest: int  # the end of the columns of `a` that have products
    piece: int  # columns of `a` in a piece of work, whole tiles
    depth: int  # rows of a slab
    panel_rows: int  # rows from a panel to the next; odd, so that panels do not share one set of a cache
    whole: int  # in the first `whole` slabs, a thread takes all pieces of columns at once


class _Columns(NamedTuple):
    """The rows of `a`, a shard's copy of one slab of these rows, and the sums of the slab's columns."""

    at: Any  # the address of `a`
    stride: int  # elements from row to row
    num_rows: int
    tiles: Any  # a copy of `a` in which the `TILE_ROWS` columns that one tile reads lie side by side
    size: int  # elements of the copy for the columns of each tile
    sums: Any  # sums of columns in float64, block after block
    span: int  # elements of `sums` for each tile
    add_columns: int  # the address of the tile of pairs of bfloat16; 0 if numbers are not rounded


class _Side(NamedTuple):
    """A Factor as addresses, with one shard's packed slab of the factor's rows, and the sums of its products."""

    first: int  # the first column of `a`
    end: int
    b: Any
    stride: int
    columns: int
    initial: Any
    rows: Any
    num_listed: int
    panels: Any  # the packed slab; panels are `panel_step` elements apart
    panel_step: int
    c: Any  # totals, sums of a group of blocks, and rounding errors, `c_step` elements apart
    c_rows: Any  # the offset of each row of sums
    c_columns: int  # elements of a row of sums
    c_step: int
    head: int  # columns of a head; `columns` if there are no heads
    spans: Any  # the two results of `_columns_of_tile` for tile i of the columns of `a`, at 2 * i


_addition = called_by_address(lambda scalar: (*[types.CPointer(scalar)] * 3, types.intp))


@_addition
def add_up(part, total, lost, count):
    """Add sums `part` to their totals, add the rounding errors of these additions to `lost`, and set `part` to zero."""
    for j in range(count):
        total[j], lost[j] = add_block(total[j], lost[j], part[j])
        part[j] = 0


@_addition
def _add_last(part, total, lost, count):
    """Add the sums of the last group, and the collected rounding errors, to their totals."""
    for j in range(count):
        total[j] += settled(part[j], lost[j])


@cpu_inlined
def _columns_of_tile(first, end, columns, head):
    """Return the first column that rows `first` to `end` of a product need, and the end of these columns.

    If the rows begin with the last units of a gate and end with the first units of the next gate, they need the columns
    from the first one on, and those before the end.  Then the end is not greater than the first column.
    """
    if head == columns or end <= first or end - first >= columns:
        return 0, columns
    low, high = first % columns // head * head, ((end - 1) % columns // head + 1) * head
    wraps = first % columns > (end - 1) % columns
    return (0, columns) if wraps and low < high else (low, high)


@cpu_inlined
def _needs(side, tile, column, width):
    """Return whether a tile of the columns of `a` needs the panel that begins with a column."""
    low, high = side.spans[2 * tile], side.spans[2 * tile + 1]
    return column + width > low and column < high if low < high else column + width > low or column < high


@cpu_inlined
def _side_of(factor, c, cut, num_rows, panels, c_rows):
    """Return the _Side of a shard for a factor; set the columns that pad the factor's last panel to zero."""
    before, width = factor.first - cut.lowest, width_of(panels)
    panel_step = cut.panel_rows * width
    for i in range(c.shape[1]):
        c_rows[i] = i * c.shape[2]
    for i in range(len(factor.targets)):
        c_rows[before + i] = (before + factor.targets[i]) * c.shape[2]
    head, spans = factor.columns // factor.heads, offset(c_rows, c.shape[1])
    for i in range(c.shape[1] // TILE_ROWS):
        begin, end = i * TILE_ROWS - before, least((i + 1) * TILE_ROWS, factor.end - cut.lowest) - before
        begin = begin if begin > 0 else 0
        spans[2 * i], spans[2 * i + 1] = _columns_of_tile(begin, end, factor.columns, head)
    last = (factor.columns - 1) // width
    for k in range(least(cut.depth, num_rows) if factor.columns else 0):
        for j in range(factor.columns - last * width, width):
            panels[last * panel_step + k * width + j] = 0
    return _Side(
        factor.first, factor.end, pointer(factor.b, factor.column), factor.b.shape[1], factor.columns,
        pointer(factor.initial, 0), pointer(factor.rows, 0), len(factor.rows), panels, panel_step,
        pointer(c, 0), c_rows, c.shape[2], c.shape[1] * c.shape[2], head, spans,
    )  # fmt: skip


@cpu_inlined
def _zeros_of(numbers, offsets):
    """Return Sums that are zeros: every row has the offset 0 and reads one panel of zeros.

    The offsets 0, 1, 2, ... are written after these offsets, for `_add_products`.
    """
    for j in range(width_of(numbers)):
        numbers[j] = 0
    for r in range(TILE_ROWS):
        offsets[r], offsets[TILE_ROWS + r] = 0, r
    return Sums(numbers, offsets, 0)


@cpu_inlined
def _next_piece(counter, slab, number, until, cut, pieces):
    """Return (slab, piece of columns, end of the pieces that this shard took in the slab) of the next work."""
    if number < until:
        return slab, number, until
    taken = arrive(counter)
    if taken < cut.whole:
        return taken, 0, pieces
    slab, number = cut.whole + (taken - cut.whole) // pieces, (taken - cut.whole) % pieces
    return slab, number, number + 1


@cpu_inlined
def _gather(side, start, count):
    """Copy `count` rows of a factor, from row `start` on, into panels [panel][row][width]."""
    width = width_of(side.panels)
    for k in range(count):
        row = side.rows[start + k] if side.num_listed else start + k
        source = offset(side.b, row * side.stride) if row >= 0 else offset(side.initial, (-1 - row) * side.columns)
        target, whole = offset(side.panels, k * width), side.columns // width
        copy_units(whole, source, width, target, side.panel_step, width)
        left = side.columns - whole * width
        copy_units(left > 0, offset(source, whole * width), 0, offset(target, whole * side.panel_step), 0, left)


@cpu_inlined
def _pair_panels(code, side, count):
    """Round `count` rows of all panels to pairs of bfloat16."""
    width = width_of(side.panels)
    for p in range(0, side.columns, width):
        pair_rows(code.pair_rows, (offset(side.panels, p // width * side.panel_step), count, width))


@cpu_inlined
def _copy_columns(code, columns, start, count, first, end):
    """Copy columns `first` to `end` of a slab of rows of `a`, and sum the columns of each block."""
    stride, past = columns.stride, columns.num_rows * columns.stride - 1
    size = (end - first + TILE_ROWS - 1) // TILE_ROWS * columns.span
    for j in range((count + _DEPTH_BLOCK - 1) // _DEPTH_BLOCK * size):
        columns.sums[j] = 0
    if code.copy_halves:
        of_tiles = columns.tiles, columns.size, columns.sums, columns.span
        _copy_halves(code.copy_halves, (columns.at, stride, start, count, first, end, *of_tiles))
        return
    for k in range(count):
        row, target = (start + k) * stride, offset(columns.tiles, k * TILE_ROWS)
        sums = offset(columns.sums, k // _DEPTH_BLOCK * size)
        for m in range(first, end, TILE_ROWS):
            prefetch_to_read(offset(columns.at, least(row + _ROWS_AHEAD * stride + m, past)))
            source = offset(columns.at, row + m)
            if m + columns.span <= stride:  # it can copy too many elements, which the next row's copy overwrites
                copy_and_add_span(source, target, sums)
            else:
                for j in range(least(TILE_ROWS, end - m)):
                    target[j] = source[j]
                    sums[j] += source[j]
            target, sums = offset(target, columns.size), offset(sums, columns.span)


def _arguments_of_halves(scalar):
    number, address = types.intp, types.CPointer(scalar)
    return address, *[number] * 5, address, number, types.CPointer(types.float64), number


@called_by_address(_arguments_of_halves)
def _copy_halves(at, stride, start, count, first, end, tiles, size, sums, span):
    """Copy and sum columns as `_copy_columns` does, where columns are halves of pairs of bfloat16; `sums` are zeros."""
    vectorise_widely()
    for k in range(count):
        row, target = halves_at(offset(at, (start + k) * stride)), offset(tiles, k * TILE_ROWS)
        of_block = offset(sums, k // _DEPTH_BLOCK * ((end - first + TILE_ROWS - 1) // TILE_ROWS * span))
        for m in range(first, end, TILE_ROWS):
            for j in range(least(TILE_ROWS, end - m)):
                value = number_of_half(row[m + j])
                target[j] = value
                of_block[j] += value
            target, of_block = offset(target, size), offset(of_block, span)


@cpu_inlined
def _prefetch_sums(side, c, row, end, column):
    """Prefetch the sums of the tile that begins with `row`, because a block reads each of many sums only once."""
    line = lanes_of(c) * CACHE_LINE // VECTOR_BYTES
    for r in range(row, least(row + TILE_ROWS, end)):
        for j in range(column, column + width_of(c), line):
            prefetch_to_write(offset(c, side.c_rows[r] + j))


@cpu_inlined
def _add_products(columns, side, cut, block, count, first, end, zeros, later, later_step):
    """Add the products of a slab's rows to the sums that belong to columns `first` to `end` of `a`.

    `block` is the slab's first block.  Blocks of the first group are added to the totals, later blocks to the sums of
    their group.  Both start from zero.  A tile adds the blocks of a slab one after another, while L1
    holds its sums.  Each tile prefetches one row that is read later.
    """
    number, width, begins = 0, width_of(side.c), block == 0 or block == _GROUP
    c = side.c if block < _GROUP else offset(side.c, side.c_step)
    steps = offset(zeros.offsets, TILE_ROWS)
    for p in range(0, side.columns, width):
        panels = offset(side.panels, p // width * side.panel_step)
        for m in range(first, end, TILE_ROWS):
            is_of_side = m < side.end and m + TILE_ROWS > side.first
            if is_of_side and _needs(side, (m - cut.lowest) // TILE_ROWS, p, width):
                _prefetch_sums(side, c, m + TILE_ROWS - cut.lowest, end - cut.lowest, p)
                tile = offset(columns.tiles, (m - first) // TILE_ROWS * columns.size)
                sums = Sums(offset(c, p), offset(side.c_rows, m - cut.lowest), 0)
                for k in range(0, count, _DEPTH_BLOCK):
                    start, rows = zeros if begins and k == 0 else sums, least(_DEPTH_BLOCK, count - k)
                    ahead = offset(later, number * later_step)
                    if columns.add_columns:
                        a, panel = offset(tile, k // 2 * TILE_ROWS), offset(panels, k // 2 * width)
                        given = TILE_ROWS, Rows(a, steps), Panels(panel, 0, (rows + 1) // 2), start, sums, ahead
                        add_columns(columns.add_columns, given)
                    else:
                        a, panel = offset(tile, k * TILE_ROWS), offset(panels, k * width)
                        _column_tile(TILE_ROWS, Rows(a, steps), Panels(panel, 0, rows), start, sums, ahead)
                    number = least(number + 1, cut.depth - 1)


@cpu_inlined
def _end_group(code, side, cut, block, is_last, first, end):
    """Add a group's sums, for columns `first` to `end` of `a`, to the totals."""
    for m in range(first, end):
        if side.first <= m < side.end:
            total, count = offset(side.c, side.c_rows[m - cut.lowest]), side.c_columns
            if side.head < side.columns:  # only the columns of the row's head have sums
                total, count = offset(total, (m - side.first) % side.columns // side.head * side.head), side.head
            part, lost = offset(total, side.c_step), offset(total, 2 * side.c_step)
            for j in range(count if block < 2 * _GROUP else 0):  # the first rounding errors start from zero
                lost[j] = 0
            if is_last:
                _add_last(code.add_last, (part, total, lost, count))
            else:
                add_up(code.add_up, (part, total, lost, count))


@cpu_inlined
def _add_sums(columns, totals, count, first, end):
    """Add each block's sums of the columns `first` to `end` of `a` to `totals`, in float64."""
    sums = columns.sums
    for _ in range(0, count, _DEPTH_BLOCK):
        for m in range(first, end, TILE_ROWS):
            for j in range(least(TILE_ROWS, end - m)):
                totals[m - first + j] += sums[j]
            sums = offset(sums, columns.span)


@engine_kernel
def row_products_cpu(shard, num_shards, code, cut, a, factors, c, numbers, totals, integers):
    """Compute this shard's pieces of the products of `a` with two factors, and of the sums of the columns of `a`.

    `c` has one array per factor, padded to whole tiles and panels: its layer 0 gets the product.  If blocks are added
    in groups, layers 1 and 2 are memory for the sums of a group and for rounding errors.  Row 0 of
    `totals`, zeros at first, gets the columns' sums.  Row i of a layer, and entry i of the sums, belong to column
    `cut.lowest + i`.  Each shard has a row of `numbers`, and a row each of `totals` and `integers` after row 0.

    In the first `whole` slabs, a shard takes all pieces of a slab, so that it gathers the factors once.  In later
    slabs, it takes single pieces, so that no shard waits long for a slow core.  Row 0 of `integers` has the counters.
    The first counts the work taken.  Each later counter belongs to a piece of columns and counts the slabs that were
    added to it.
    """
    optimise_for_size()
    code, cut = Code(*code), Cut(*cut)
    lowest, depth, own = cut.lowest, cut.depth, pointer(numbers, shard * numbers.shape[1])
    span, sums = span_of_tile(own), pointer(totals, (1 + shard) * totals.shape[1])
    columns = _Columns(
        pointer(a, 0), a.shape[1], a.shape[0], own, depth * TILE_ROWS + span, sums, span, code.add_columns
    )
    after_tiles = offset(own, cut.piece // TILE_ROWS * columns.size)
    zeros, c_rows = _zeros_of(after_tiles, pointer(integers, (1 + shard) * integers.shape[1])), c[0].shape[1]
    panels, at = offset(after_tiles, width_of(own)), offset(zeros.offsets, 2 * TILE_ROWS)
    more = offset(panels, c[0].shape[2] * cut.panel_rows)
    sides = (
        _side_of(Factor(*factors[0]), c[0], cut, columns.num_rows, panels, at),
        _side_of(Factor(*factors[1]), c[1], cut, columns.num_rows, more, offset(at, c_rows + 2 * c_rows // TILE_ROWS)),
    )
    pieces, gathered = (cut.highest - lowest + cut.piece - 1) // cut.piece, -1
    slab, number, until = -1, 0, 0
    if code.add_columns:
        begin_or_end(code.begin_columns, (own,))
    # Nothing here may raise, because other shards wait for each piece that was taken.
    while True:
        slab, number, until = _next_piece(pointer(integers, 0), slab, number, until, cut, pieces)
        start, first = slab * depth, lowest + number * cut.piece
        if start >= columns.num_rows:
            if code.add_columns:
                begin_or_end(code.end_columns, (own,))
            return
        count, end = least(depth, columns.num_rows - start), least(first + cut.piece, cut.highest)
        for side in sides:
            if slab != gathered:
                _gather(side, start, count)
                if code.add_columns:
                    _pair_panels(code, side, count)
        gathered = slab
        _copy_columns(code, columns, start, count, first, end)
        for m in range(first, end if code.add_columns else first, TILE_ROWS):
            tile = offset(columns.tiles, (m - first) // TILE_ROWS * columns.size)
            pair_rows(code.pair_rows, (tile, count, TILE_ROWS))
        # The part of `a` that this shard probably copies next: other columns of this slab, or a slab further on.
        next_slab = start + num_shards * depth
        next_a = start * columns.stride + end if number + 1 < until else next_slab * columns.stride + lowest
        later, step = offset(sides[0].b, next_slab * sides[0].stride), sides[0].stride
        added = pointer(integers, (1 + number) * COUNTER)
        wait_until(added, slab)
        block = slab * _SLAB if code.add_up or slab == 0 else 1  # without groups, every block is of the first one
        for side in sides:
            _add_products(columns, side, cut, block, count, first, end, zeros, later, step)
            later, step = offset(columns.at, next_a), columns.stride
        _add_sums(columns, pointer(totals, first - lowest), count, first, end)
        block, is_last = (start + count - 1) // _DEPTH_BLOCK, start + depth >= columns.num_rows
        if code.add_up and block >= _GROUP and (is_last or block % _GROUP == _GROUP - 1):
            for side in sides:
                _end_group(code, side, cut, block, is_last, first, end)
        arrive(added)
        number += 1


@functools.cache
def row_product_kernel():
    """Return the CUDA twin of `row_products_cpu` for one factor; a block of threads computes a tile of a slice's sums.

    `c[z]`, in `c` (slices, end - first, columns), gets the sum over slice z: `slice_rows` rows, a multiple of `BLOCK`.
    """
    tile_rows, tile_columns, (num_rows, num_columns) = WIDE.rows, WIDE.columns, WIDE.own
    left_size, right_size = size_of_stage(tile_rows), size_of_stage(tile_columns)
    straight_rows, multiply_stage, right_pitch = straight(tile_rows), products_of(WIDE), pitch_of(tile_columns)
    passes, apart = DEPTH * tile_columns // THREADS, THREADS // tile_columns

    @body
    def gather(thread, b, column, b_first, first_column, b_rows, start, count, depth, shared):
        """Copy a stage (up to `DEPTH` rows) of the factor to shared memory."""
        j = uint32(thread % tile_columns)
        at = first_column + min(j, uint32(count - 1))
        for i in range(passes):
            k = uint32(thread // tile_columns + i * apart)
            if k < depth:
                row = b_rows[start + k] if b_rows.shape[0] else start + k
                shared[uint32(k * right_pitch + j)] = b[row, column + at] if row >= 0 else b_first[-1 - row, at]

    def row_product_cuda(a, a_column, b, b_column, b_first, b_rows, targets, slice_rows, c):
        left = cuda.shared.array(left_size, a.dtype, alignment=ALIGNMENT)
        right = cuda.shared.array(right_size, a.dtype, alignment=ALIGNMENT)
        part, x = cuda.local.array((num_rows, num_columns), a.dtype), cuda.local.array(num_rows, a.dtype)
        total, y = cuda.local.array((num_rows, num_columns), a.dtype), cuda.local.array(num_columns, a.dtype)
        lost, zero = cuda.local.array((num_rows, num_columns), a.dtype), a.dtype.type(0)
        thread, across = uint32(cuda.threadIdx.x), (c.shape[2] + tile_columns - 1) // tile_columns
        tile, z = cuda.blockIdx.x // c.shape[0], cuda.blockIdx.x % c.shape[0]
        first_row, first_column = tile // across * tile_rows, tile % across * tile_columns
        rows_inside = uint32(min(tile_rows, c.shape[1] - first_row))
        columns_inside = uint32(min(tile_columns, c.shape[2] - first_column))
        row, column = own_column(thread >> 1), own_column(thread)
        for i in range(num_rows):
            for j in range(num_columns):
                part[i, j], total[i, j], lost[i, j] = zero, zero, zero
        end = min(z * slice_rows + slice_rows, a.shape[0])
        for start in range(z * slice_rows, end, DEPTH):
            stage = uint32(min(DEPTH, end - start))
            cuda.syncthreads()
            straight_rows(thread, a[start][a_column + first_row :], uint32(a.shape[1]), rows_inside, stage, left)
            gather(thread, b, b_column, b_first, first_column, b_rows, start, columns_inside, stage, right)
            cuda.syncthreads()
            if row < rows_inside and column < columns_inside:
                multiply_stage(left, right, row, column, stage, x, y, part)
            if (start + DEPTH) % BLOCK == 0 or start + DEPTH >= end:  # the end of a block of BLOCK rows, or of all rows
                for i in range(num_rows):
                    for j in range(num_columns):
                        total[i, j], lost[i, j] = add_block(total[i, j], lost[i, j], part[i, j])
                        part[i, j] = zero
        for i in range(num_rows):
            for j in range(num_columns):
                r, at = uint32(row + place_of(i)), uint32(column + place_of(j))
                if r < rows_inside and at < columns_inside:
                    m = first_row + r
                    c[z, targets[m] if targets.shape[0] else m, first_column + at] = settled(total[i, j], lost[i, j])

    return cuda_kernel(row_product_cuda)


def row_products(a, one, two, num_columns=0, of_pairs=False):
    """Return the products of the rows of `a` (rows, a_columns) with two factors, and the sums of the columns of `a`.

    The product with a factor has the shape (end - first, columns / heads): a row has the products of its head.  On the
    CPU, the sum of a column that no factor uses can be 0 instead; the sums of the first `num_columns` columns are
    always computed.  If `of_pairs`, columns of `a` are numbers of bfloat16, two in each element.
    """
    if on_device(a):
        return [*(_head_products_on_device(a, factor) for factor in (one, two)), _row_sum_on_device(a)]
    windows = [factor for factor in (one, two) if factor.end > factor.first]
    lowest = 0 if num_columns else min((f.first for f in windows), default=0)
    highest = max([num_columns, *(f.end for f in windows)])
    sums, width = zeros(max(a.shape[1], highest), a), panel_width(a.dtype)
    allocate, rows = empty if len(a) else zeros, -(-(highest - lowest) // TILE_ROWS) * TILE_ROWS
    code = code_of_sums(a.dtype, get_float32_matmul_precision(), len(a) > MANY_ROWS, of_pairs)
    copies = 3 if code.add_up else 1
    wide = tuple(allocate((copies, rows, -(-f.columns // width) * width), a) for f in (one, two))
    if highest > lowest:
        num_shards = count_shards(len(a) * sum(c[0].size for c in wide), -(-(highest - lowest) // TILE_ROWS))
        cut, numbers, totals, integers = memory_of(len(a), lowest, highest, [c.shape[2] for c in wide], a, num_shards)
        given = tuple(code), cut, a, (tuple(one), tuple(two)), wide, numbers, totals, integers
        for_each_shard(row_products_cpu, *given, num_shards=num_shards)
        sums[lowest:highest] = totals[0, : highest - lowest]  # rounds the float64 totals to the type of `sums`
    narrow = [c[0, f.first - lowest : f.end - lowest, : f.columns] for c, f in zip(wide, (one, two), strict=True)]
    return [*(_blocks_of_heads(c, f.heads) for c, f in zip(narrow, (one, two), strict=True)), sums]


def _blocks_of_heads(product, heads):
    """Return the blocks of a product's heads as a contiguous array, given the product of all rows and columns."""
    if heads == 1:
        return contiguous(product)
    rows, columns = product.shape
    head = columns // heads
    apart, blocks = product.reshape(-1, heads, head, columns), empty((rows // columns, heads, head, head), product)
    for number in range(heads):
        copy_into(blocks[:, number], apart[:, number, :, number * head : (number + 1) * head])
    return blocks.reshape(rows, head)


def memory_of(num_rows, lowest, highest, padded, like, num_shards):
    """Return a Cut as a plain tuple, and the arrays `numbers`, `totals` and `integers` of `row_products_cpu`.

    `padded` has the columns of each factor's product, rounded up to whole panels.  `like` is an array of their data
    type.
    """
    # Bound programs have one cut for all batches, so with one shard it does not depend on the number of rows.
    columns, width, depth = highest - lowest, panel_width(like.dtype), _SLAB * _DEPTH_BLOCK
    panel_rows, rows = depth | 1, -(-columns // TILE_ROWS) * TILE_ROWS
    piece = size_of_piece(columns, num_shards, _COLUMN_BLOCK)
    whole = _ALL_SLABS if num_shards == 1 else max(0, -(-num_rows // depth) - 2 * num_shards)
    num_tiles, span = piece // TILE_ROWS, TILE_ROWS + width  # `span` is an upper bound
    size = num_tiles * (depth * TILE_ROWS + span) + width + sum(padded) * panel_rows
    counters, offsets = COUNTER * (1 + -(-columns // piece)), 2 * (TILE_ROWS + rows + 2 * rows // TILE_ROWS)
    totals = zeros((1 + num_shards, max(columns, _SLAB * num_tiles * span)), like, np.float64)
    integers = zeros((1 + num_shards, max(counters, offsets)), like, np.int64)
    return (lowest, highest, piece, depth, panel_rows, whole), empty((num_shards, size), like), totals, integers


def _head_products_on_device(a, factor):
    """Return the product of `a` with a factor, block by block if it has heads."""
    *plain, heads = factor
    if heads == 1:
        return _row_product_on_device(a, *plain)
    (first, end, b, column, columns, initial, rows, targets), blocks = plain, {}
    head = columns // heads
    for row in range(0, end - first, head):
        of_head = row % columns
        begin, to = contiguous(initial[:, of_head : of_head + head]), targets[row] if len(targets) else row
        window = first + row, first + row + head, b, column + of_head, head
        blocks[to] = _row_product_on_device(a, *window, begin, rows, ALL_ROWS)
    return joined([blocks[to] for to in sorted(blocks)]) if blocks else empty((0, head), a)


def _row_product_on_device(a, first, end, b, column, columns, initial, rows, targets):
    # Slices of rows are summed at the same time: 1,000 rows are one slice, 6,400 rows 6 slices, a million 8.
    most = min(_MOST_SLICES, max(1, len(a) // _SLICE_ROWS))
    slice_rows = max(1, -(-len(a) // (most * BLOCK))) * BLOCK
    slices = max(1, -(-len(a) // slice_rows))
    c = empty((slices, end - first, columns), a)
    if c.size:
        arguments = contiguous(a), first, b, column, initial, beside(rows, a), beside(targets, a), slice_rows, c
        row_product_kernel()[slices * WIDE.count(end - first, columns), THREADS](*arguments)
    return c[0] if slices == 1 else _row_sum_on_device(c.reshape(slices, -1)).reshape(end - first, columns)


def _row_sum_on_device(a):
    out = empty((1, a.shape[1]), a)
    pool_sum(a, np.array([0, a.shape[0]]), np.ones(1, a.dtype), out)
    return out.reshape(a.shape[1])


def row_product(a, b):
    """Return `a^T @ b` for `a` (rows, depth) and `b` (rows, columns): the gradient of a weight."""
    none = empty((0, 0), a)
    factor = Factor(0, a.shape[1], b, 0, b.shape[1], none, ALL_ROWS)
    if on_device(a):
        return _head_products_on_device(a, factor)
    return row_products(a, factor, Factor(0, 0, none, 0, 0, none, ALL_ROWS))[0]
