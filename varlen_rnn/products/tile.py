"""The SIMD register tile, in LLVM IR: the only place that knows the width of a vector.

`C[r, :] (+)= sum over k of A[r, k] * P[k, :]` for up to `TILE_ROWS` rows of A and one panel P of `panel_width`
columns.  All of C stays in registers while k runs, so a product runs at the rate of the fused multiply-add units at
three rows as at three hundred.  Rows of A are given by their offsets, so they need not be adjacent; the step between
neighbours in k is free, so A may be read transposed.

Each element of C is one chain of multiply-adds in the order of k, whatever the number of rows: a row's result never
depends on the rows beside it, to the bit.
"""

import itertools

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from varlen_rnn.jit import cpu_inlined, cpu_kernel

_FEATURES = llvm.get_host_cpu_features()
WIDE = bool(_FEATURES.get("avx512f"))  # vectors of 64 bytes: a cache line
_VECTOR_BYTES = 64 if WIDE else 32 if _FEATURES.get("avx") else 16
BLOCK_BYTES = 256  # of neighbours that move at once: whole panels
FAR = 2**19  # numbers, of four bytes as a rule, more of which are far: no cache near the core holds them
# Sums of a tile fill 24 of 32 registers, or 12 of 16: rows, and vectors of a row.
TILE_ROWS, _VECTORS = (12, 2) if WIDE else (6, 4 if llvm.get_process_triple().startswith("aarch64") else 2)
FEW_ROWS = TILE_ROWS // 2  # of which a tile takes several panels at once
_SOON = 16  # rows further on in a panel: each row asks for those, with long vectors


def panel_width(dtype):
    """Return the columns of a panel, which depend on the host's vectors.

    Examples
    --------
    >>> panel_width(np.float32) == 2 * panel_width(np.float64)
    True
    """
    return _VECTORS * _VECTOR_BYTES // np.dtype(dtype).itemsize


@intrinsic
def pointer(typing, array, start):
    """Return the address of entry `start` of a C-contiguous array, whose last use must come later than the address's.

    Numba frees a local array after its last use, and an address is none: take addresses of arguments, or inside the
    loop that uses them.
    """

    def codegen(context, builder, signature, arguments):
        array = context.make_array(signature.args[0])(context, builder, value=arguments[0])
        return builder.gep(array.data, [arguments[1]])

    return types.CPointer(array.dtype)(array, types.intp), codegen


@intrinsic
def offset(typing, address, count):
    """Return the address `count` elements further."""
    return address(address, types.intp), lambda context, builder, signature, arguments: builder.gep(
        arguments[0], [arguments[1]]
    )


def _emit_prefetch(builder, address, to_write, near):
    """Ask for the cache line at an address, to read or to write it, into the first cache (3) or the second (2)."""
    line, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [line, flag, flag, flag])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    flags = [ir.Constant(flag, number) for number in (int(to_write), near, 1)]
    builder.call(function, [builder.bitcast(address, line), *flags])


def _make_prefetch(to_write):
    """Return a function that asks for the cache line at an address, to be read or overwritten a little later."""

    @intrinsic
    def prefetch(typing, address):
        def codegen(context, builder, signature, arguments):
            _emit_prefetch(builder, arguments[0], to_write, near=3)
            return context.get_dummy_value()

        return types.void(address), codegen

    return prefetch


prefetch_to_read, prefetch_to_write = _make_prefetch(to_write=False), _make_prefetch(to_write=True)


@intrinsic
def vectorise_widely(typing):
    """Let loops of the function that calls this take vectors of 64 bytes, where LLVM would rather take 32 of a host."""

    def codegen(context, builder, signature, arguments):
        if WIDE:  # llvmlite knows no attribute with a value, and refuses what it does not know
            set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.void(), codegen


def _emit_tile(builder, scalar, rows, panels, ahead, arguments):
    """Write the tile of exactly `rows` rows and `panels` panels, which may ask for `ahead` lines of what is wanted."""
    a, a_rows, a_step, panel, panel_step, depth, start, start_rows, start_step, c, c_rows, c_step, wanted = arguments
    scalar_bytes = 4 if isinstance(scalar, ir.FloatType) else 8
    lanes = _VECTOR_BYTES // scalar_bytes
    vector, index = ir.VectorType(scalar, lanes), ir.IntType(64)
    cells = [(r, q, v) for q in range(panels) for v in range(_VECTORS) for r in range(rows)]
    if rows > panels * _VECTORS:
        cells.sort()

    def row_at(address, offsets, r):
        return builder.gep(address, [builder.load(builder.gep(offsets, [ir.Constant(index, r)]))])

    def panel_at(address, step, q):
        return builder.gep(address, [builder.mul(step, ir.Constant(index, q))])

    def vector_at(address, v):
        address = builder.gep(address, [ir.Constant(index, v * lanes)])
        return builder.bitcast(address, vector.as_pointer())

    def load(address):
        value = builder.load(address)
        value.align = scalar_bytes
        return value

    a_row = [row_at(a, a_rows, r) for r in range(rows)]
    start_row = [row_at(start, start_rows, r) for r in range(rows)]
    c_row = [row_at(c, c_rows, r) for r in range(rows)]
    sums = {cell: cgutils.alloca_once(builder, vector) for cell in cells}
    for r, q, v in cells:
        builder.store(load(vector_at(panel_at(start_row[r], start_step, q), v)), sums[r, q, v])
    name = f"llvm.fmuladd.v{lanes}f{scalar_bytes * 8}"
    multiply_add = cgutils.get_or_insert_function(builder.module, ir.FunctionType(vector, [vector] * 3), name)
    undefined = ir.Constant(vector, ir.Undefined)
    everywhere = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)
    with cgutils.for_range(builder, depth, intp=index) as loop:
        offset = builder.mul(loop.index, a_step)
        here = builder.gep(panel, [builder.mul(loop.index, ir.Constant(index, _VECTORS * lanes))])
        # Constants, so that the addresses take no registers: rows take twelve of sixteen.
        if ahead:
            step = builder.mul(loop.index, ir.Constant(index, int(lanes * ahead)))
            _emit_prefetch(builder, builder.gep(wanted, [step]), to_write=False, near=2)
        for q, v in itertools.product(range(panels if WIDE and rows > 1 else 0), range(_VECTORS)):
            soon = vector_at(panel_at(here, panel_step, q), v + _SOON * _VECTORS)
            _emit_prefetch(builder, soon, to_write=False, near=3)
        spread, steps = {}, {}
        for r, q, v in cells:  # the order decides what stays in registers beside the sums
            if r not in spread:
                one = builder.load(builder.gep(a_row[r], [offset]))
                first_lane = builder.insert_element(undefined, one, ir.Constant(ir.IntType(32), 0))
                spread[r] = builder.shuffle_vector(first_lane, undefined, everywhere)
            if (q, v) not in steps:
                steps[q, v] = load(vector_at(panel_at(here, panel_step, q), v))
            total = builder.call(multiply_add, [spread[r], steps[q, v], builder.load(sums[r, q, v])])
            builder.store(total, sums[r, q, v])
    for r, q, v in cells:
        address = vector_at(panel_at(c_row[r], c_step, q), v)
        builder.store(builder.load(sums[r, q, v]), address).align = scalar_bytes


def _make_tile(numbers_of_rows, panels, ahead=0):
    """Return the tile of so many `panels`, for some numbers of rows, as a function of addresses, for compiled code.

    Its arguments: how many `rows`; `a`, and `a_rows[r]`, the offset in elements of row r from `a`; `a_step`, elements
    from k to k + 1; the first `panel`, elements from panel to panel, and their `depth`; `start`, where the sums begin,
    and `c`, where they go, each with the offsets of its rows, and elements from the sums of a panel to those of the
    next; and an address of what is `wanted` later, of which tiles of more than `FEW_ROWS` ask for `ahead` lines at each
    k.
    """

    @intrinsic
    def tile(
        typing, rows, a, a_rows, a_step, panel, panel_step, depth, start, start_rows, start_step, c, c_rows, c_step,
        wanted,
    ):  # fmt: skip
        number = types.intp
        signature = types.void(
            number, a, a_rows, number, panel, number, number, start, start_rows, number, c, c_rows, number, wanted
        )  # fmt: skip

        def codegen(context, builder, signature, arguments):
            scalar = context.get_value_type(signature.args[1].dtype)
            end = builder.append_basic_block("end")
            choice = builder.switch(arguments[0], end)
            for rows in numbers_of_rows:
                block = builder.append_basic_block(f"rows{rows}")
                choice.add_case(ir.Constant(ir.IntType(64), rows), block)
                builder.position_at_end(block)
                lines = ahead if WIDE and rows > FEW_ROWS else 0
                _emit_tile(builder, scalar, rows, panels, lines, arguments[1:])
                builder.branch(end)
            builder.position_at_end(end)
            return context.get_dummy_value()

        return signature, codegen

    return tile


# Few rows take several panels at once: eight sums in flight hide the latency of the multiply-add, and a row's number
# that is spread over a vector serves them all.
_two_panels = _make_tile(range(2, FEW_ROWS + 1), 2)
_three_panels, _four_panels = _make_tile((1,), 3), _make_tile((1,), 4)
_tile, _tile_asking_less = (_make_tile(range(1, TILE_ROWS + 1), 1, ahead) for ahead in (1, 1 / 4))


@cpu_kernel
def tile(
    rows, panels, a, a_rows, a_step, panel, panel_step, depth, start, start_rows, start_step, c, c_rows, c_step,
    wanted, asks_less,
):  # fmt: skip
    """Run the tile of `rows` rows, 1 to `TILE_ROWS`, on `panels` panels; the arguments are those of `_make_tile`.

    With long vectors, a tile of more than `FEW_ROWS` asks for a line of what is `wanted` at each k, or for a quarter if
    it `asks_less`.
    """
    q = 0
    while q < panels:
        p, s, d = offset(panel, q * panel_step), offset(start, q * start_step), offset(c, q * c_step)
        if rows == 1 and q + 3 < panels:
            _four_panels(
                rows, a, a_rows, a_step, p, panel_step, depth, s, start_rows, start_step, d, c_rows, c_step, wanted
            )  # fmt: skip
            q += 4
        elif rows == 1 and q + 2 < panels:
            _three_panels(
                rows, a, a_rows, a_step, p, panel_step, depth, s, start_rows, start_step, d, c_rows, c_step, wanted
            )  # fmt: skip
            q += 3
        elif 1 < rows <= FEW_ROWS and q + 1 < panels:
            _two_panels(
                rows, a, a_rows, a_step, p, panel_step, depth, s, start_rows, start_step, d, c_rows, c_step, wanted
            )  # fmt: skip
            q += 2
        elif WIDE and asks_less:
            _tile_asking_less(rows, a, a_rows, a_step, p, 0, depth, s, start_rows, 0, d, c_rows, 0, wanted)
            q += 1
        else:
            _tile(rows, a, a_rows, a_step, p, 0, depth, s, start_rows, 0, d, c_rows, 0, wanted)
            q += 1


@intrinsic
def transpose_block(typing, source, source_step, target, target_step):
    """Write the transpose of a block of `lanes_of` vectors, `source_step` apart, as as many, `target_step` apart."""
    scalar_bytes = source.dtype.bitwidth // 8
    lanes = _VECTOR_BYTES // scalar_bytes

    def codegen(context, builder, signature, arguments):
        source, source_step, target, target_step = arguments
        vector, index = ir.VectorType(context.get_value_type(signature.args[0].dtype), lanes), ir.IntType(64)

        def vector_at(address, step, number):
            address = builder.gep(address, [builder.mul(step, ir.Constant(index, number))])
            return builder.bitcast(address, vector.as_pointer())

        def interleave(low, high, half):
            order = [lane // 2 + half * lanes // 2 + lane % 2 * lanes for lane in range(lanes)]
            return builder.shuffle_vector(low, high, ir.Constant(ir.VectorType(ir.IntType(32), lanes), order))

        block = []
        for number in range(lanes):
            block.append(builder.load(vector_at(source, source_step, number)))
            block[-1].align = scalar_bytes
        for _ in range(lanes.bit_length() - 1):
            pairs = zip(block[: lanes // 2], block[lanes // 2 :], strict=True)
            block = [interleave(low, high, half) for low, high in pairs for half in (0, 1)]
        for number, value in enumerate(block):
            builder.store(value, vector_at(target, target_step, number)).align = scalar_bytes
        return context.get_dummy_value()

    return types.void(source, types.intp, target, types.intp), codegen


@intrinsic
def lanes_of(typing, address):
    """Return how many of the numbers at an address a vector holds."""
    lanes = _VECTOR_BYTES // (address.dtype.bitwidth // 8)
    return types.intp(address), lambda context, builder, signature, arguments: ir.Constant(ir.IntType(64), lanes)


def _make_move(vectors=lambda lanes: _VECTORS, add=False, stream=False):
    """Return a function that copies, or adds, neighbours from one flat array to another, some vectors of them.

    How many depends on the lanes of a vector; as many as a panel has, as a rule.  To `stream` is to write past the
    caches, which do not fetch the lines first; the target is aligned to a vector.
    """

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
                steps = [ir.Constant(ir.IntType(64), v * lanes) for v in range(vectors(lanes))]
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
                store = builder.store(value, pointer)
                store.align = _VECTOR_BYTES if stream else scalar_bytes
                if stream:
                    one = ir.Constant(ir.IntType(32), 1)
                    store.set_metadata("nontemporal", builder.module.add_metadata([one]))
            return context.get_dummy_value()

        return signature, codegen

    return move


def _vectors_of_block(lanes):
    return BLOCK_BYTES // _VECTOR_BYTES


_copy_panel, _add_panel, stream_panel = _make_move(), _make_move(add=True), _make_move(stream=True)
_copy_block, _add_block = _make_move(_vectors_of_block), _make_move(_vectors_of_block, add=True)
copy_tile_row = _make_move(lambda lanes: -(-TILE_ROWS // lanes))


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


def _make_units(move_block, move_run):
    """Return a function that moves `count` neighbours: `BLOCK_BYTES` of them at once, or a panel's width at a time."""

    @cpu_inlined
    def move_units(source, source_start, target, target_start, count, width):
        if count * source.itemsize == BLOCK_BYTES:
            move_block(source, source_start, target, target_start)
        else:
            for j in range(0, count, width):
                move_run(source, source_start + j, target, target_start + j, min(width, count - j), width)

    return move_units


copy_units, add_units = _make_units(_copy_block, copy_run), _make_units(_add_block, add_run)


@cpu_inlined
def rows_of_tile(left):
    """Return how many of the `left` rows the next tile takes, so that all tiles have about as many."""
    tiles = (left + TILE_ROWS - 1) // TILE_ROWS
    return (left + tiles - 1) // tiles
