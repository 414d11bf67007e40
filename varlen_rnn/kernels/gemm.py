"""Products on tiles: `x W + b`, `dg W^T`, `x^T dg`, and the packing of weights into panels.

Every product reduces in an order that depends on the shapes alone: not on the number of rows beside a row, nor on
the number of threads.  CUDA twins are plain: a thread an element of the result.
"""

import numpy as np
from numba import cuda

from varlen_rnn.device import beside, empty, launch, on_device
from varlen_rnn.jit import cpu_kernel, cuda_kernel
from varlen_rnn.kernels.tile import TILE_ROWS, panel_width, rows_of_tile, tile
from varlen_rnn.threads import for_each_shard

_ROW_BLOCK = 48  # rows of A that stay in the first-level cache while panels pass
_DEPTH_BLOCK = 128  # rows that one block of a sum over rows takes
ALL_ROWS = np.empty(0, np.int64)


@cpu_kernel
def pack_rows(weight, panels):
    """Pack `weight` (depth, columns) into `panels` (num_panels, depth, width), the last one filled with zeros."""
    depth, columns = weight.shape
    width = panels.shape[2]
    for p in range(panels.shape[0]):
        for k in range(depth):
            for j in range(width):
                column = p * width + j
                panels[p, k, j] = weight[k, column] if column < columns else 0


@cpu_kernel
def pack_columns(weight, panels):
    """Pack the transpose of `weight` (columns, depth) into `panels` (num_panels, depth, width)."""
    columns, depth = weight.shape
    width = panels.shape[2]
    for p in range(panels.shape[0]):
        for j in range(width):
            column = p * width + j
            for k in range(depth):
                panels[p, k, j] = weight[column, k] if column < columns else 0


def packed(weight, transposed=False):
    """Return the panels of a product with `weight` (depth, columns), or with its transpose."""
    columns, depth = weight.shape if transposed else weight.shape[::-1]
    width = panel_width(weight.dtype)
    panels = np.empty((-(-columns // width), depth, width), weight.dtype)
    (pack_columns if transposed else pack_rows)(weight, panels)
    return panels


@cpu_kernel
def product_cpu(shard, num_shards, a, a_column, depth, panels, bias, c, c_column, columns, accumulate):
    """`c[:, c_column:][:, :columns] (+)= a[:, a_column:][:, :depth] @ weight + bias`, this shard's blocks of rows.

    `a` (rows, ...) and `c` (rows, ...) are C-contiguous; `bias` (columns,), or empty for none.
    """
    num_rows, a_stride = a.shape
    c_stride = c.shape[1]
    width = panels.shape[2]
    offsets = np.empty(_ROW_BLOCK, np.int64)
    edge = np.zeros((TILE_ROWS, width), a.dtype)
    num_blocks = (num_rows + _ROW_BLOCK - 1) // _ROW_BLOCK
    for block in range(shard, num_blocks, num_shards):
        start = block * _ROW_BLOCK
        in_block = min(_ROW_BLOCK, num_rows - start)
        for r in range(in_block):
            offsets[r] = (start + r) * a_stride + a_column
        for p in range(panels.shape[0]):
            valid = min(width, columns - p * width)
            r = 0
            while r < in_block:
                m = rows_of_tile(in_block - r)
                row, column = start + r, c_column + p * width
                panel = p * depth * width
                if valid == width:
                    tile(m, a, offsets, r, 1, panels, panel, depth, c, row * c_stride + column, c_stride, accumulate)
                else:
                    tile(m, a, offsets, r, 1, panels, panel, depth, edge, 0, width, False)
                    for i in range(m):
                        for j in range(valid):
                            kept = c[row + i, column + j] if accumulate else edge.dtype.type(0)
                            c[row + i, column + j] = kept + edge[i, j]
                if bias.shape[0]:
                    for i in range(m):
                        for j in range(valid):
                            c[row + i, column + j] += bias[p * width + j]
                r += m


@cuda_kernel
def product_cuda(a, a_column, depth, weight, transposed, bias, c, c_column, columns, accumulate):
    """Twin of `product_cpu` on the weight itself, (depth, columns) or transposed; a thread a row and column."""
    i = cuda.grid(1)
    if i < a.shape[0] * columns:
        r, j = i // columns, i % columns
        total = c[r, c_column + j] if accumulate else c.dtype.type(0)
        for k in range(depth):
            total += a[r, a_column + k] * (weight[j, k] if transposed else weight[k, j])
        c[r, c_column + j] = total + bias[j] if bias.shape[0] else total


def product(a, weight, c, *, transposed=False, bias=None, a_column=0, c_column=0, accumulate=False):
    """Compute `c (+)= a @ weight + bias`, or with `weight` transposed, on windows of columns of `a` and `c`.

    Parameters
    ----------
    a : (rows, a_columns) C-contiguous; the product reads `depth` columns from `a_column` on.
    weight : (depth, columns), or (columns, depth) when `transposed`
    c : (rows, c_columns) C-contiguous; the product writes `columns` columns from `c_column` on.
    bias : (columns,), optional

    Examples
    --------
    >>> c = np.zeros((2, 1)); product(np.ones((2, 3)), np.ones((3, 1)), c, bias=np.ones(1)); c.ravel()
    array([4., 4.])
    """
    columns, depth = weight.shape if transposed else weight.shape[::-1]
    if bias is None:
        bias = empty(0, a)
    if on_device(a):
        arguments = (a, a_column, depth, weight, transposed, bias, c, c_column, columns, accumulate)
        launch(product_cuda, a.shape[0] * columns, *arguments)
        return
    arguments = (a, a_column, depth, packed(weight, transposed), bias, c, c_column, columns, accumulate)
    num_blocks = -(-a.shape[0] // _ROW_BLOCK)
    for_each_shard(product_cpu, *arguments, work=a.shape[0] * depth * columns, max_shards=num_blocks)


@cpu_kernel
def row_product_cpu(shard, num_shards, a, a_column, depth, b, b_column, columns, b_first, b_rows, c):
    """`c = a[:, a_column:][:, :depth]^T @ b[b_rows, b_column:][:, :columns]`, this shard's panels of columns.

    Row `b_rows[k]` of `b` stands at k; -1 - i means row i of `b_first`; an empty `b_rows` means `b` as it is.
    """
    num_rows, a_stride = a.shape
    width = c.shape[2]
    offsets = np.empty(depth, np.int64)
    panel = np.zeros((_DEPTH_BLOCK, width), a.dtype)
    for p in range(shard, c.shape[0], num_shards):
        valid = min(width, columns - p * width)
        if num_rows == 0:
            c[p] = 0
        for start in range(0, num_rows, _DEPTH_BLOCK):
            in_block = min(_DEPTH_BLOCK, num_rows - start)
            for k in range(in_block):
                row = b_rows[start + k] if b_rows.shape[0] else start + k
                if row >= 0:
                    for j in range(valid):
                        panel[k, j] = b[row, b_column + p * width + j]
                else:
                    for j in range(valid):
                        panel[k, j] = b_first[-1 - row, p * width + j]
            for m in range(depth):
                offsets[m] = start * a_stride + a_column + m
            m = 0
            while m < depth:
                rows = rows_of_tile(depth - m)
                first = (p * depth + m) * width
                tile(rows, a, offsets, m, a_stride, panel, 0, in_block, c, first, width, start > 0)
                m += rows


@cuda_kernel
def row_product_cuda(a, a_column, b, b_column, b_first, b_rows, c):
    """Twin of `row_product_cpu`; a thread an element of `c` (depth, columns)."""
    i = cuda.grid(1)
    if i < c.size:
        m, j = i // c.shape[1], i % c.shape[1]
        total = c.dtype.type(0)
        for k in range(a.shape[0]):
            row = b_rows[k] if b_rows.shape[0] else k
            value = b[row, b_column + j] if row >= 0 else b_first[-1 - row, j]
            total += a[k, a_column + m] * value
        c[m, j] = total


def row_product(a, a_column, depth, b, b_first=None, b_rows=ALL_ROWS, b_column=0, b_columns=None):
    """Return `a[:, a_column:][:, :depth]^T @ b[b_rows]`: the sum over rows that gives the gradient of a weight.

    Parameters
    ----------
    a : (rows, a_columns) C-contiguous
    b : (rows, ...) C-contiguous; the product reads `b_columns` columns from `b_column` on, by default all.
    b_first : (n, b_columns), optional
    b_rows : (rows,) int64, optional
        Row of `b` that stands at each row; -1 - i is row i of `b_first`.

    Returns
    -------
    (depth, b_columns)
    """
    columns = b.shape[1] if b_columns is None else b_columns
    b_first = empty((0, columns), a) if b_first is None else b_first
    if on_device(a):
        c = empty((depth, columns), a)
        launch(row_product_cuda, depth * columns, a, a_column, b, b_column, b_first, beside(b_rows, a), c)
        return c
    width = panel_width(a.dtype)
    panels = np.empty((-(-columns // width), depth, width), a.dtype)
    work = a.shape[0] * depth * columns
    arguments = (a, a_column, depth, b, b_column, columns, b_first, b_rows, panels)
    for_each_shard(row_product_cpu, *arguments, work=work, max_shards=len(panels))
    return np.ascontiguousarray(panels.transpose(1, 0, 2).reshape(depth, len(panels) * width)[:, :columns])


@cpu_kernel
def row_sum_cpu(a, out):
    """`out = a.sum(axis=0)`: in blocks of rows, so that rounding grows with their number's root."""
    num_rows, columns = a.shape
    out[:] = 0
    part = np.empty(columns, a.dtype)
    for start in range(0, num_rows, _DEPTH_BLOCK):
        part[:] = 0
        for r in range(start, min(start + _DEPTH_BLOCK, num_rows)):
            for j in range(columns):
                part[j] += a[r, j]
        for j in range(columns):
            out[j] += part[j]


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
    out = empty(a.shape[1], a)
    if on_device(a):
        launch(row_sum_cuda, out.size, a, out)
    else:
        row_sum_cpu(a, out)
    return out
