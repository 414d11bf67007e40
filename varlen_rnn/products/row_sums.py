"""Sums over rows, `x^T dg` and the columns' sums of dg: what the gradients of weights and biases are made of.

They reduce in blocks of rows of a fixed size, so the order depends on the number of rows alone, not on the number of
threads.  CUDA twins are plain: a thread an element of the result.
"""

from typing import NamedTuple

import numpy as np
from numba import cuda

from varlen_rnn.device import beside, empty, launch, on_device, zeros
from varlen_rnn.jit import cpu_inlined, cpu_kernel, cuda_kernel
from varlen_rnn.memory import CACHE_LINE
from varlen_rnn.products.gemm import ALL_ROWS, size_of_piece
from varlen_rnn.products.sync import COUNTER, arrive, wait_until
from varlen_rnn.products.tile import (
    TILE_ROWS,
    copy_run,
    copy_tile_row,
    offset,
    panel_width,
    pointer,
    prefetch_to_read,
    prefetch_to_write,
    tile,
)
from varlen_rnn.threads import count_shards, for_each_shard

_DEPTH_BLOCK = 192  # rows that one block of a sum over rows takes
_PANEL_STEP = _DEPTH_BLOCK + 1  # rows from panel to panel: a power of two would put all in one set of a cache
_COLUMN_BLOCK = 384  # and the most columns of it that are one piece of work
_ROWS_AHEAD = 4  # what is copied: too short a part of a row for the processor to see a pattern


class Factor(NamedTuple):
    """The other side of a sum over rows: `a[:, first:end]^T @ b[rows, column:][:, :columns]`.

    Row `rows[k]` of `b` stands at k; -1 - i means row i of `initial` (n, columns); empty `rows` mean `b` as it is.
    Row i of the result becomes row `targets[i]`; empty `targets` leave it where it is.
    """

    first: int
    end: int
    b: np.ndarray
    column: int
    columns: int
    initial: np.ndarray
    rows: np.ndarray
    targets: np.ndarray = ALL_ROWS


@cpu_inlined
def _gather(factor, start, count, panels, width):
    """Copy a block of rows of a factor into panels [panel][row][width]; the last one keeps its zeros."""
    b, initial, stride = factor.b.ravel(), factor.initial.ravel(), factor.b.shape[1]
    for k in range(count):
        row = factor.rows[start + k] if factor.rows.shape[0] else start + k
        source, at = (b, row * stride + factor.column) if row >= 0 else (initial, (-1 - row) * factor.columns)
        for p in range(0, factor.columns, width):
            copy_run(source, at + p, panels, p * _PANEL_STEP + k * width, min(width, factor.columns - p), width)


@cpu_inlined
def _offsets_of_rows(factor, lowest, highest, stride):
    """Return where the sums of each column from `lowest` to `highest` begin."""
    offsets, first = np.arange(highest - lowest) * stride, factor.first - lowest
    for i in range(len(factor.targets)):
        offsets[first + i] = (first + factor.targets[i]) * stride
    return offsets


@cpu_inlined
def _ask(c, c_rows, row, end, column, width):
    """Ask for the sums of the tile that begins with a row of `c`: many, and each is read only once a block."""
    for r in range(row, min(row + TILE_ROWS, end)):
        for j in range(column, column + width, CACHE_LINE // c.itemsize):
            prefetch_to_write(pointer(c, c_rows[r] + j))


@cpu_inlined
def _add_products(
    factor, lowest, first, end, count, tiles, tile_size, columns_of_tile, panels, zeros, c_rows, c, begins, width,
    wanted, wanted_stride,
):  # fmt: skip
    """Add the products of a block of rows to the rows of `c` that belong to columns `first` to `end` of `a`.

    The block that `begins` the sums starts from zeros, whatever is in `c`: a panel's width and an offset for each row.
    Tiles ask for rows that are `wanted` later, one each.
    """
    at_columns, asked = pointer(columns_of_tile, 0), 0
    for p in range(0, factor.columns, width):
        for m in range(first, end, TILE_ROWS):
            n = min(TILE_ROWS, end - m)
            if m < factor.end and m + n > factor.first:
                _ask(c, c_rows, m + TILE_ROWS - lowest, end - lowest, p, width)
                here, at_rows = pointer(c, p), pointer(c_rows, m - lowest)
                start, start_rows = (pointer(zeros[0], 0), pointer(zeros[1], 0)) if begins else (here, at_rows)
                panel = pointer(panels, p * _PANEL_STEP)
                tile(
                    n, 1, pointer(tiles, (m - first) // TILE_ROWS * tile_size), at_columns, TILE_ROWS,
                    panel, 0, count, start, start_rows, 0, here, at_rows, 0,
                    offset(wanted, asked * wanted_stride), True,
                )  # fmt: skip
                asked = min(asked + 1, _DEPTH_BLOCK - 1)


@cpu_inlined
def _add(source, source_start, target, target_start, count):
    """Add `count` neighbours of one flat array to those of another."""
    here, there = source[source_start : source_start + count], target[target_start : target_start + count]
    for j in range(count):
        there[j] += here[j]


@cpu_kernel
def row_products_cpu(
    shard, num_shards, counters, piece, whole, width, lowest, highest, a, one, two, c_one, c_two, sums
):
    """Three sums over the rows of `a`, read once: its products with two factors, and its own.

    They take the columns of `a` from `lowest` to `highest`.  Row i of `c_one` and `c_two`, which have whole panels, and
    entry i of `sums`, zeros at first, belong to column `lowest + i`.  Factors come as plain tuples.

    A piece of work is a block of rows and `piece` columns, whole tiles.  Shards take all pieces of the next block,
    whose factors they gather once; or, after the first `whole` blocks, the next piece, so that none waits long for one
    whose core is slow.  They take at the first of the `counters`; the others count the blocks that each piece of
    columns has added, which are added in order.
    """
    one, two = Factor(*one), Factor(*two)
    pieces, gathered = (highest - lowest + piece - 1) // piece, -1
    if (whole + (counters[0] - whole) // pieces) * _DEPTH_BLOCK >= a.shape[0]:
        return  # too late: others have taken all
    flat, flat_one = a.ravel(), one.b.ravel()
    # Tiles read `a` down its columns, a whole row apart: each tile gets a copy where its neighbours are neighbours.
    tile_size = _DEPTH_BLOCK * TILE_ROWS + width
    tiles = np.empty(piece // TILE_ROWS * tile_size, a.dtype)
    panels_one = np.zeros(c_one.shape[1] * _PANEL_STEP, a.dtype)
    panels_two = np.zeros(c_two.shape[1] * _PANEL_STEP, a.dtype)
    part = np.empty(piece, a.dtype)
    steps = np.arange(TILE_ROWS)
    rows_one = _offsets_of_rows(one, lowest, highest, c_one.shape[1])
    rows_two = _offsets_of_rows(two, lowest, highest, c_two.shape[1])
    zeros = np.zeros(width, a.dtype), np.zeros(TILE_ROWS, np.int64)
    # Nothing may raise from here on: others wait for a piece that was taken.
    block, number, until = 0, 0, 0
    while True:
        if number == until:
            block, number, until = arrive(pointer(counters, 0)), 0, pieces
            if block >= whole:
                block, number = whole + (block - whole) // pieces, (block - whole) % pieces
                until = number + 1
        start, first = block * _DEPTH_BLOCK, lowest + number * piece
        if start >= a.shape[0]:
            return
        count, end = min(_DEPTH_BLOCK, a.shape[0] - start), min(first + piece, highest)
        if block != gathered:
            _gather(one, start, count, panels_one, width)
            _gather(two, start, count, panels_two, width)
            gathered = block
        part[:] = 0
        for k in range(count):
            target, row = k * TILE_ROWS, (start + k) * a.shape[1]
            for m in range(first, end, TILE_ROWS):
                prefetch_to_read(pointer(flat, min(row + _ROWS_AHEAD * a.shape[1] + m, len(flat) - 1)))
                # Whole vectors where the row has them: what is too much is overwritten by the next row.
                if m + width <= a.shape[1] and width >= TILE_ROWS:
                    copy_tile_row(flat, row + m, tiles, target)
                else:
                    for j in range(min(TILE_ROWS, end - m)):
                        tiles[target + j] = flat[row + m + j]
                target += tile_size
            _add(flat, row + first, part, 0, end - first)
        # What is copied next, as a rule: other columns of this block, or the block after those that other shards take.
        next_block = start + num_shards * _DEPTH_BLOCK
        next_start, next_first = (start, end) if number + 1 < until else (next_block, lowest)
        added = pointer(counters, (1 + number) * COUNTER)
        wait_until(added, block)
        _add_products(
            one, lowest, first, end, count, tiles, tile_size, steps, panels_one, zeros, rows_one, c_one, block == 0,
            width, pointer(flat_one, next_block * one.b.shape[1] + one.column), one.b.shape[1],
        )  # fmt: skip
        _add_products(
            two, lowest, first, end, count, tiles, tile_size, steps, panels_two, zeros, rows_two, c_two, block == 0,
            width, pointer(flat, next_start * a.shape[1] + next_first), a.shape[1],
        )  # fmt: skip
        _add(part, 0, sums, first - lowest, end - first)
        arrive(added)
        number += 1


@cuda_kernel
def row_product_cuda(a, a_column, b, b_column, b_first, b_rows, targets, c):
    """Twin of `row_products_cpu` for one factor; a thread an element of `c` (end - first, columns)."""
    i = cuda.grid(1)
    if i < c.size:
        m, j = i // c.shape[1], i % c.shape[1]
        total = c.dtype.type(0)
        for k in range(a.shape[0]):
            row = b_rows[k] if b_rows.shape[0] else k
            value = b[row, b_column + j] if row >= 0 else b_first[-1 - row, j]
            total += a[k, a_column + m] * value
        c[targets[m] if targets.shape[0] else m, j] = total


def row_products(a, one, two):
    """Return three sums over the rows of `a` (rows, a_columns), C-contiguous: its products with two factors, its own.

    Returns
    -------
    of_one, of_two : (end - first, columns) of each factor
    of_all : (a_columns,); columns that neither factor sees may be missing from the sum
    """
    if on_device(a):
        return [*(_row_product_on_device(a, *factor) for factor in (one, two)), row_sum(a)]
    width = panel_width(a.dtype)
    windows = [factor for factor in (one, two) if factor.end > factor.first]
    lowest, highest = min((f.first for f in windows), default=0), max((f.end for f in windows), default=0)
    allocate = empty if len(a) else zeros
    wide = [allocate((highest - lowest, -(-f.columns // width) * width), a) for f in (one, two)]
    sums = np.zeros(a.shape[1], a.dtype)
    columns = highest - lowest
    num_shards = count_shards(a.shape[0] * sum(c.size for c in wide), -(-columns // TILE_ROWS))
    piece = size_of_piece(columns, num_shards, _COLUMN_BLOCK)
    counters = np.zeros(COUNTER * (1 + -(-columns // piece)), np.int64)
    whole = max(0, -(-a.shape[0] // _DEPTH_BLOCK) - 2 * num_shards)
    arguments = (counters, piece, whole, width, lowest, highest, a, tuple(one), tuple(two), *wide, sums[lowest:highest])
    if columns:
        for_each_shard(row_products_cpu, *arguments, num_shards=num_shards)
    cut = [c[f.first - lowest : f.end - lowest, : f.columns] for c, f in zip(wide, (one, two), strict=True)]
    return [*map(np.ascontiguousarray, cut), sums]


def _row_product_on_device(a, first, end, b, column, columns, initial, rows, targets):
    c = empty((end - first, columns), a)
    launch(row_product_cuda, c.size, a, first, b, column, initial, beside(rows, a), beside(targets, a), c)
    return c


def row_product(a, b):
    """Return `a^T @ b` for `a` (rows, depth) and `b` (rows, columns): the gradient of a weight.

    Examples
    --------
    >>> row_product(np.ones((3, 1)), np.array([[1.0], [2.0], [3.0]]))
    array([[6.]])
    """
    none = empty((0, 0), a)
    factor = Factor(0, a.shape[1], b, 0, b.shape[1], none, ALL_ROWS)
    return row_products(a, factor, Factor(0, 0, none, 0, 0, none, ALL_ROWS))[0]


@cpu_inlined
def _share(shard, num_shards, count):
    """Return the first and the end of a shard's share of `count` columns, in whole tiles."""
    tiles = (count + TILE_ROWS - 1) // TILE_ROWS
    return tiles * shard // num_shards * TILE_ROWS, min(count, tiles * (shard + 1) // num_shards * TILE_ROWS)


@cpu_kernel
def row_sum_cpu(shard, num_shards, a, out):
    """`out = a.sum(axis=0)`, this shard's columns: in blocks of rows, so that rounding grows slowly."""
    first, end = _share(shard, num_shards, a.shape[1])
    out[first:end] = 0
    flat, part = a.ravel(), np.empty(end - first, a.dtype)
    for start in range(0, a.shape[0], _DEPTH_BLOCK):
        part[:] = 0
        for r in range(start, min(start + _DEPTH_BLOCK, a.shape[0])):
            _add(flat, r * a.shape[1] + first, part, 0, end - first)
        _add(part, 0, out, first, end - first)


@cuda_kernel
def row_sum_cuda(a, out):
    """Twin of `row_sum_cpu`."""
    j = cuda.grid(1)
    if j < out.size:
        total = out.dtype.type(0)
        for r in range(a.shape[0]):
            total += a[r, j]
        out[j] = total


def row_sum(a):
    """Return the sum of the rows of `a` (rows, columns): the gradient of a bias."""
    out = empty((a.shape[1],), a)
    if on_device(a):
        launch(row_sum_cuda, out.size, a, out)
    else:
        for_each_shard(row_sum_cpu, a, out, num_shards=count_shards(8 * a.size, -(-a.shape[1] // TILE_ROWS)))
    return out
