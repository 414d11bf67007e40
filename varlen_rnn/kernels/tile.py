"""The SIMD register tile: the only LLVM IR in the house, and the only place that knows the width of a vector.

`C[r, :] (+)= sum over k of A[r, k] * P[k, :]` for up to `TILE_ROWS` rows of A and one panel P of `panel_width`
columns.  All of C stays in registers while k runs, so a product runs at the rate of the fused multiply-add units at
three rows as at three hundred.  Rows of A are given by their offsets, so they need not be adjacent; the step between
neighbours in k is free, so A may be read transposed.

Each element of C is one chain of multiply-adds in the order of k, whatever the number of rows: a row's result never
depends on the rows beside it, to the bit.
"""

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from varlen_rnn.jit import cpu_inlined, cpu_kernel

_FEATURES = llvm.get_host_cpu_features()
_WIDE = bool(_FEATURES.get("avx512f"))
_MANY_REGISTERS = _WIDE or llvm.get_process_triple().startswith("aarch64")
_VECTOR_BYTES = 64 if _WIDE else 32 if _FEATURES.get("avx") else 16
_VECTORS = 4 if _MANY_REGISTERS else 2  # of accumulators a row: 24 of 32 registers, or 12 of 16

TILE_ROWS = 6


def panel_width(dtype):
    """Return the columns of a panel, which depend on the host's vectors.

    Examples
    --------
    >>> panel_width(np.float32) == 2 * panel_width(np.float64)
    True
    """
    return _VECTORS * _VECTOR_BYTES // np.dtype(dtype).itemsize


def _make_tile(rows):
    """Return the tile of exactly `rows` rows as a function for compiled code.

    Its arguments are array `a`, `a_rows[first + r]` (the offset in elements of row r in `a`), `a_step` (elements
    from k to k + 1), array `panels` and the offset of the panel in it, the depth `k`, array `c`, the offset of its
    first row, its row stride, and whether to add to what `c` holds.
    """

    @intrinsic
    def tile(typing, a, a_rows, first, a_step, panels, panel, depth, c, c_first, c_stride, accumulate):
        number = types.intp
        signature = types.void(a, a_rows, number, number, panels, number, number, c, number, number, types.boolean)
        lanes = _VECTOR_BYTES // (a.dtype.bitwidth // 8)

        def codegen(context, builder, signature, arguments):
            a, a_rows, first, a_step, panels, panel, depth, c, c_first, c_stride, accumulate = arguments
            scalar = context.get_value_type(signature.args[0].dtype)
            vector = ir.VectorType(scalar, lanes)
            index = ir.IntType(64)

            def data(position, value):
                return context.make_array(signature.args[position])(context, builder, value=value).data

            def vectors_at(pointer):
                return [
                    builder.bitcast(builder.gep(pointer, [ir.Constant(index, v * lanes)]), vector.as_pointer())
                    for v in range(_VECTORS)
                ]

            def load(pointer):
                value = builder.load(pointer)
                value.align = scalar_bytes
                return value

            scalar_bytes = signature.args[0].dtype.bitwidth // 8
            offsets = builder.gep(data(1, a_rows), [first])
            a_row = [
                builder.gep(data(0, a), [builder.load(builder.gep(offsets, [ir.Constant(index, r)]))])
                for r in range(rows)
            ]
            c_start = builder.gep(data(7, c), [c_first])
            c_row = [
                vectors_at(builder.gep(c_start, [builder.mul(c_stride, ir.Constant(index, r))])) for r in range(rows)
            ]
            panel_start = builder.gep(data(4, panels), [panel])
            sums = [[cgutils.alloca_once(builder, vector) for _ in range(_VECTORS)] for _ in range(rows)]
            with builder.if_else(accumulate) as (add, fresh):
                with add:
                    for r in range(rows):
                        for v in range(_VECTORS):
                            builder.store(load(c_row[r][v]), sums[r][v])
                with fresh:
                    for r in range(rows):
                        for v in range(_VECTORS):
                            builder.store(ir.Constant(vector, None), sums[r][v])
            name = f"llvm.fmuladd.v{lanes}f{scalar_bytes * 8}"
            multiply_add = cgutils.get_or_insert_function(builder.module, ir.FunctionType(vector, [vector] * 3), name)
            undefined = ir.Constant(vector, ir.Undefined)
            everywhere = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)
            with cgutils.for_range(builder, depth, intp=index) as loop:
                width = ir.Constant(index, _VECTORS * lanes)
                step = [
                    load(pointer) for pointer in vectors_at(builder.gep(panel_start, [builder.mul(loop.index, width)]))
                ]
                offset = builder.mul(loop.index, a_step)
                for r in range(rows):
                    one = builder.load(builder.gep(a_row[r], [offset]))
                    first_lane = builder.insert_element(undefined, one, ir.Constant(ir.IntType(32), 0))
                    spread = builder.shuffle_vector(first_lane, undefined, everywhere)
                    for v in range(_VECTORS):
                        total = builder.call(multiply_add, [spread, step[v], builder.load(sums[r][v])])
                        builder.store(total, sums[r][v])
            for r in range(rows):
                for v in range(_VECTORS):
                    builder.store(builder.load(sums[r][v]), c_row[r][v]).align = scalar_bytes
            return context.get_dummy_value()

        return signature, codegen

    return tile


_one, _two, _three, _four, _five, _six = (_make_tile(rows) for rows in range(1, TILE_ROWS + 1))


@cpu_kernel
def tile(rows, a, a_rows, first, a_step, panels, panel, depth, c, c_first, c_stride, accumulate):
    """Run the tile of `rows` rows, 1 to `TILE_ROWS`; the arguments are those of `_make_tile`."""
    if rows == 6:
        _six(a, a_rows, first, a_step, panels, panel, depth, c, c_first, c_stride, accumulate)
    elif rows == 5:
        _five(a, a_rows, first, a_step, panels, panel, depth, c, c_first, c_stride, accumulate)
    elif rows == 4:
        _four(a, a_rows, first, a_step, panels, panel, depth, c, c_first, c_stride, accumulate)
    elif rows == 3:
        _three(a, a_rows, first, a_step, panels, panel, depth, c, c_first, c_stride, accumulate)
    elif rows == 2:
        _two(a, a_rows, first, a_step, panels, panel, depth, c, c_first, c_stride, accumulate)
    else:
        _one(a, a_rows, first, a_step, panels, panel, depth, c, c_first, c_stride, accumulate)


def _make_move(add):
    """Return a function that copies, or adds, one panel's width of neighbours from one flat array to another."""

    @intrinsic
    def move(typing, source, source_start, target, target_start):
        signature = types.void(source, types.intp, target, types.intp)
        scalar_bytes = source.dtype.bitwidth // 8
        lanes = _VECTOR_BYTES // scalar_bytes

        def codegen(context, builder, signature, arguments):
            source, source_start, target, target_start = arguments
            vector = ir.VectorType(context.get_value_type(signature.args[0].dtype), lanes)

            def pointers(position, value, start):
                data = context.make_array(signature.args[position])(context, builder, value=value).data
                first = builder.gep(data, [start])
                steps = [ir.Constant(ir.IntType(64), v * lanes) for v in range(_VECTORS)]
                return [builder.bitcast(builder.gep(first, [step]), vector.as_pointer()) for step in steps]

            def load(pointer):
                value = builder.load(pointer)
                value.align = scalar_bytes
                return value

            there = pointers(2, target, target_start)
            values = [load(pointer) for pointer in pointers(0, source, source_start)]
            if add:
                values = [builder.fadd(load(pointer), value) for pointer, value in zip(there, values, strict=True)]
            for pointer, value in zip(there, values, strict=True):
                builder.store(value, pointer).align = scalar_bytes
            return context.get_dummy_value()

        return signature, codegen

    return move


_copy_panel, _add_panel = _make_move(add=False), _make_move(add=True)


@cpu_inlined
def copy_run(source, source_start, target, target_start, count, width):
    """Copy `count` neighbours, at most `width`, the panel's, from one flat array to another."""
    if count == width:
        _copy_panel(source, source_start, target, target_start)
    else:
        for j in range(count):
            target[target_start + j] = source[source_start + j]


@cpu_inlined
def add_run(source, source_start, target, target_start, count, width):
    """Add `count` neighbours, at most `width`, the panel's, of one flat array to those of another."""
    if count == width:
        _add_panel(source, source_start, target, target_start)
    else:
        for j in range(count):
            target[target_start + j] += source[source_start + j]


@cpu_inlined
def rows_of_tile(left):
    """Return how many of the `left` rows the next tile takes: six, but never leaving one or two for the last."""
    if left > 8 or left == 6:
        return 6
    return left if left < 6 else 4
