"""The big products, computed in register tiles: `x W + b`, and `dg W^T` with the gradients dg of the gates.

Every element of a result is a sum over k (the depth) whose bits depend neither on other rows nor on the number of
threads.  The CUDA twin has its own tile (`tile_cuda`).  On CUDA, cuBLAS computes instead if the precision is "tf32" and
CuPy is installed.  Its sums can depend on the number of rows.
"""

import functools
from typing import NamedTuple

import numpy as np
from numba import uint32

from varlen_rnn.products.bfloat16 import FewRows, multiply_few, pack_pairs, rounded_of
from varlen_rnn.products.few_rows import MOST_ROWS, multiply_few_rows
from varlen_rnn.products.packing import ALL_ROWS, Blocks, no_weight, pack, weight_of
from varlen_rnn.products.sync import COUNTER, arrive
from varlen_rnn.products.tile import Panels, Prefetch, Rows, Sums, multiply
from varlen_rnn.products.tile_cuda import (
    ALIGNMENT,
    DEPTH,
    THREADS,
    own_column,
    place_of,
    products_of,
    size_of_stage,
    straight,
    tile_for,
    turned,
)
from varlen_rnn.products.vectors import (
    L2_ELEMENTS,
    TILE_ROWS,
    TILE_VECTORS,
    least,
    make_stack_memory,
    offset,
    optimise_for_size,
    panel_width,
    pointer,
)
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.device import contiguous, empty, on_device, zeros
from varlen_rnn.runtime.jit import cpu_inlined, cuda_kernel, engine_kernel
from varlen_rnn.runtime.precision import get_float32_matmul_precision, precision_on_cuda
from varlen_rnn.runtime.threads import count_shards, for_each_shard

ROW_BLOCK = 48  # the most rows that are multiplied by one panel before the next panel


class Code(NamedTuple):
    """The addresses of the two compiled functions that the kernels of products call."""

    multiply: int
    pack: int


def code_of(dtype, precision="fp32", of_pairs=False):
    """Return the Code for numbers of a data type in a precision, compiled at its first use.

    The precisions "bf16" and "bf16-avx512" round operands of float32 to bfloat16 (`bfloat16`).
    If `of_pairs`, the rows are pairs of bfloat16 already, of an even number of values of k.
    """
    if (rounded := rounded_of(dtype, precision)) is not None:
        return Code(rounded.of_rows(of_pairs).multiply.address(dtype), pack_pairs.address(dtype))
    return Code(multiply.address(dtype), pack.address(dtype))


@functools.cache
def addresses_of(dtype, precision, of_pairs=False):
    """Return the Code as a plain tuple, and the address of the function for few rows of bfloat16, or 0."""
    rounded = rounded_of(dtype, precision)
    few = 0 if rounded is None else rounded.of_rows(of_pairs).multiply_few.address(dtype)
    return tuple(code_of(dtype, precision, of_pairs)), few


class Product(NamedTuple):
    """The operands of `product`."""

    a: np.ndarray
    a_column: int
    weight: np.ndarray
    transposed: bool
    bias: np.ndarray
    panels: np.ndarray  # memory for the packed weight
    c: np.ndarray
    c_column: int
    accumulate: bool
    piece: int  # rows in each piece of work
    few: int  # the address of the function for few rows of bfloat16; 0 for other products
    parts: np.ndarray  # tile i of a piece prefetches from element `parts[i]` of the next piece of `a` on


def size_of_piece(count, num_shards, most):
    """Return how many of `count` rows a piece gets: whole tiles, at most `most`, nearly equal shares for all shards."""
    pieces = num_shards * -(-count // (num_shards * most))
    return -(-max(1, count) // max(1, pieces) // TILE_ROWS) * TILE_ROWS


_offsets_on_stack = make_stack_memory(lambda lanes: ROW_BLOCK)
_edge_on_stack = make_stack_memory(lambda lanes: ROW_BLOCK * TILE_VECTORS * lanes)


@cpu_inlined
def _rows_apart(like, step):
    """Return the offsets of `ROW_BLOCK` rows that are `step` numbers apart, in memory on the stack."""
    offsets = _offsets_on_stack(like)
    for r in range(ROW_BLOCK):
        offsets[r] = r * step
    return offsets


@cpu_inlined
def _multiply_edge(code, it, rows, a, panel, c, columns, edge):
    """Multiply by the last, partly filled panel: write its sums to the buffer `edge`, then copy `columns` to `c`."""
    for r in range(rows):
        for j in range(columns):
            begin = c.at[c.offsets[r] + j] if it.accumulate else panel.at[panel.depth * c.step + j]
            edge.at[edge.offsets[r] + j] = begin
    multiply(code.multiply, (rows, 1, a, panel, edge, edge, Prefetch(panel.at, edge.offsets, 0)))
    for r in range(rows):
        for j in range(columns):
            c.at[c.offsets[r] + j] = edge.at[edge.offsets[r] + j]


@cpu_inlined
def _multiply_few(it):
    """Multiply few rows by a weight that is not transposed, where it lies."""
    if it.few:
        a, weight, bias = pointer(it.a, it.a_column), pointer(it.weight, 0), pointer(it.bias, 0)
        rows, (depth, columns), c = it.a.shape[0], it.weight.shape, pointer(it.c, it.c_column)
        few = FewRows(rows, a, it.a.shape[1], weight, depth, columns, bias, c, it.c.shape[1])
        multiply_few(it.few, (few,))
    else:
        multiply_few_rows(it.a, it.a_column, it.weight, it.bias, it.c, it.c_column)


@engine_kernel
def product_cpu(shard, num_shards, code, counters, it):
    """Compute `c[:, c_column:][:, :columns] (+)= a[:, a_column:][:, :depth] @ weight + bias`, by pieces of rows.

    A shard (one thread's share of a call) takes panels to pack, one after another.  When all panels are packed, it
    takes pieces of rows.  So no shard waits long for a slow core.  The `counters` count panels taken, panels packed,
    and pieces taken.  A weight that is not transposed is not packed for few rows.  `a` (rows, ...) and `c` (rows, ...)
    are C-contiguous; the bias is unused when accumulating.
    """
    optimise_for_size()
    code, it = Code(*code), Product(*it)
    if it.a.shape[0] <= MOST_ROWS and not (it.transposed or it.accumulate):
        _multiply_few(it)
        return
    num_rows, a_stride, c_stride, width = it.a.shape[0], it.a.shape[1], it.c.shape[1], it.panels.shape[2]
    depth, columns = it.panels.shape[1] - 1, it.weight.shape[0 if it.transposed else 1]
    whole, left, step = columns // width, columns % width, (depth + 1) * width
    like, at_panels = pointer(counters, 0), pointer(it.panels, 0)
    a_rows, c_rows, edge_rows, no_rows = (
        _rows_apart(like, a_stride), _rows_apart(like, c_stride), _rows_apart(like, width), _rows_apart(like, 0)
    )  # fmt: skip
    edge = Sums(_edge_on_stack(at_panels), edge_rows, width)
    panels, last = Panels(at_panels, step, depth), Panels(offset(at_panels, whole * step), step, depth)
    biases = Sums(offset(at_panels, depth * width), no_rows, step)
    weights = weight_of(it.weight, it.bias, 1, at_panels), no_weight(at_panels)
    blocks = Blocks(0, it.panels.shape[0], True, like, pointer(counters, COUNTER))
    pack(code.pack, (weights, it.transposed, blocks))
    while True:
        first = arrive(pointer(counters, 2 * COUNTER)) * it.piece
        if first >= num_rows:
            return
        rows = least(it.piece, num_rows - first)
        a = Rows(pointer(it.a, first * a_stride + it.a_column), a_rows)
        c = Sums(pointer(it.c, first * c_stride + it.c_column), c_rows, width)
        later = Prefetch(offset(a.at, num_shards * it.piece * a_stride), pointer(it.parts, 0), len(it.parts))
        multiply(code.multiply, (rows, whole, a, panels, c if it.accumulate else biases, c, later))
        if left:
            there = Sums(offset(c.at, whole * width), c_rows, width)
            _multiply_edge(code, it, rows, a, last, there, left, edge)


def _parts_of_piece(a, panels, num_panels, piece):
    """Return, for each tile, the offset in the next piece from which it prefetches; an empty list if L2 has no room."""
    num_tiles = num_panels * -(-piece // TILE_ROWS)
    return ALL_ROWS if panels.size > L2_ELEMENTS else _equal_parts(piece * a.shape[1], num_tiles)


@functools.lru_cache(256)
def _equal_parts(size, count):
    """Return where each of `count` parts of `size` numbers begins."""
    parts = np.arange(count) * (size // max(1, count))
    parts.flags.writeable = False
    return parts


@functools.cache
def product_kernel(tile):
    """Return the CUDA twin of `product_cpu`: each block of threads computes a tile; the weight is not packed."""
    tile_rows, tile_columns, (num_rows, num_columns) = tile.rows, tile.columns, tile.own
    left_size, right_size = size_of_stage(tile_rows), size_of_stage(tile_columns)
    turned_rows, turned_columns, straight_columns = turned(tile_rows), turned(tile_columns), straight(tile_columns)
    multiply_stage = products_of(tile)

    def product_tiles(a, a_column, depth, weight, transposed, bias, c, c_column, columns, accumulate):
        left = cuda.shared.array(left_size, a.dtype, alignment=ALIGNMENT)
        right = cuda.shared.array(right_size, a.dtype, alignment=ALIGNMENT)
        sums, x = cuda.local.array((num_rows, num_columns), a.dtype), cuda.local.array(num_rows, a.dtype)
        y = cuda.local.array(num_columns, a.dtype)
        thread, across = uint32(cuda.threadIdx.x), (columns + tile_columns - 1) // tile_columns
        first_row, first_column = cuda.blockIdx.x // across * tile_rows, cuda.blockIdx.x % across * tile_columns
        rows_inside = uint32(min(tile_rows, a.shape[0] - first_row))
        columns_inside = uint32(min(tile_columns, columns - first_column))
        row, column, zero = own_column(thread >> 1), own_column(thread), a.dtype.type(0)
        for i in range(num_rows):
            for j in range(num_columns):
                r, at, start = uint32(row + place_of(i)), uint32(column + place_of(j)), zero
                if r < rows_inside and at < columns_inside:
                    start = c[first_row + r, c_column + first_column + at] if accumulate else bias[first_column + at]
                sums[i, j] = start
        a_size, weight_size = uint32(a.shape[1]), uint32(weight.shape[1])
        for k in range(0, depth, DEPTH):
            stage = uint32(min(DEPTH, depth - k))
            cuda.syncthreads()
            # A stage may read beyond the end of a row of `a`: the next row follows there.
            turned_rows(thread, a[first_row][a_column + k :], a_size, rows_inside, stage, left)
            if transposed:
                turned_columns(thread, weight[first_column][k:], weight_size, columns_inside, stage, right)
            else:
                straight_columns(thread, weight[k][first_column:], weight_size, columns_inside, stage, right)
            cuda.syncthreads()
            if row < rows_inside and column < columns_inside:
                multiply_stage(left, right, row, column, stage, x, y, sums)
        for i in range(num_rows):
            for j in range(num_columns):
                r, at = uint32(row + place_of(i)), uint32(column + place_of(j))
                if r < rows_inside and at < columns_inside:
                    c[first_row + r, c_column + first_column + at] = sums[i, j]

    product_tiles.__name__ = f"product_{tile_rows}_cuda"
    return cuda_kernel(product_tiles)


def _product_on_device(a, a_column, weight, transposed, bias, c, c_column, accumulate):
    columns, depth = weight.shape if transposed else weight.shape[::-1]
    cublas = _cublas_for(a, weight, c)
    if cublas is not None and (bias is None or accumulate):
        cublas.multiply(a, a_column, weight, transposed, c, c_column, accumulate)
        return
    bias = zeros(columns, a) if bias is None else bias
    by_kernel = 0 if cublas is not None else depth  # with depth 0, the kernel only writes the bias
    if a.shape[0] and columns:
        arguments = contiguous(a), a_column, by_kernel, contiguous(weight), transposed, bias, c, c_column, columns
        tile = tile_for(a.shape[0], columns)
        product_kernel(tile)[tile.count(a.shape[0], columns), THREADS](*arguments, accumulate)
    if cublas is not None:
        cublas.multiply(a, a_column, weight, transposed, c, c_column, True)


def _cublas_for(a, weight, c):
    operands = a, weight, c
    if any(array.dtype != np.float32 for array in operands) or precision_on_cuda("product") != "tf32":
        return None
    return cuda.driver.cublas if all(array.flags.c_contiguous and array.size for array in operands) else None


def product(a, weight, c, *, transposed=False, bias=None, a_column=0, c_column=0, accumulate=False, of_pairs=False):
    """Compute `c = a @ weight + bias`, or add `a @ weight` to `c`, on windows of columns of `a` and `c`.

    The arrays are C-contiguous.  The shape of `weight` is (depth, columns), or (columns, depth) if `transposed`.  If
    `accumulate`, the product is added to `c`, and `bias` (columns,) is not used.  On the host, `a_column + depth` can
    exceed the columns of `a`: the row then continues in the next rows, which must exist, as for a convolution's window.

    If `of_pairs`, an element of `a` is a pair of bfloat16, and the depth is even.
    """
    columns, depth = weight.shape if transposed else weight.shape[::-1]
    if on_device(a):
        _product_on_device(a, a_column, weight, transposed, bias, c, c_column, accumulate)
        return
    bias = zeros(columns, a) if bias is None else contiguous(bias)
    width = panel_width(weight.dtype)
    panels = empty((-(-columns // width), depth + 1, width), weight)
    num_shards = count_shards(a.shape[0] * depth * columns, -(-a.shape[0] // TILE_ROWS))
    counters = zeros(3 * COUNTER, a, np.int64)
    # A single shard's pieces do not depend on the number of rows, so that a bound program has them for all batches.
    piece = ROW_BLOCK if num_shards == 1 else size_of_piece(a.shape[0], num_shards, ROW_BLOCK)
    parts = _parts_of_piece(a, panels, columns // width, piece)
    code, few = addresses_of(a.dtype, get_float32_matmul_precision(), of_pairs)
    it = (a, a_column, weight, transposed, bias, panels, c, c_column, accumulate, piece, few, parts)
    for_each_shard(product_cpu, code, counters, it, num_shards=num_shards)
