"""Products whose operands are rounded to bfloat16; sums, biases and results are float32.

The functions here take the place of `tile.multiply`, `packing.pack` and the column tile of `row_sums`: code that calls
these by address computes in bfloat16 without further change (`gemm.code_of`).  Rows lie where they are, as float32,
and `multiply` rounds them into memory on the stack.  `pack` rounds a weight in its panel.

A **pair** is the bits of two numbers of bfloat16 in the place of one float32: k in the lower half, k + 1 in the upper
one.  So a panel of 5 values of k has 3 rows of pairs, the last with zeros as its upper halves, then 2 unused rows, then
the bias.  A tile of pairs is a tile of float32 with another multiplication.

There are two orders of additions, of two instructions of x86-64.  Both replace denormal operands and sums by zeros, and
add exact products.  Where a host has no such instruction, `_emulate_avx512` or `_emulate_amx` computes the same bits.

"bf16-avx512": `vdpbf16ps` adds the product of the upper halves to the sum, then the product of the lower halves.
"bf16": `tdpbf16ps` of AMX adds up 16 pairs from zero, upper and lower halves apart; then it adds both to the sum.  No
    code here uses AMX yet.  Rows of pairs and panels are as its tiles load them, at fixed strides.

Sources: Intel, "Intel 64 and IA-32 Architectures Software Developer's Manual", VDPBF16PS, VCVTNE2PS2BF16 and TDPBF16PS.
"""

import math
from typing import Any, NamedTuple

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import float32, float64, types
from numba.extending import intrinsic

from varlen_rnn.products.packing import arguments_of_pack, pack_block
from varlen_rnn.products.sync import arrive, take_or_wait
from varlen_rnn.products.tile import (
    FEW_ROWS,
    K_PER_LINE,
    Panels,
    Rows,
    arguments_of_multiply,
    make_multiply_panels,
    make_tile,
    sums_from,
)
from varlen_rnn.products.vectors import (
    TILE_ROWS,
    TILE_VECTORS,
    WIDE,
    lanes,
    lanes_of,
    least,
    load_vector,
    make_stack_memory,
    offset,
    optimise_for_size,
    vector_at,
    vectorise_widely,
    width_of,
)
from varlen_rnn.runtime.cache.announce import announce_emulation
from varlen_rnn.runtime.cache.level import TARGET
from varlen_rnn.runtime.jit import called_by_address, caller, cpu_inlined, cpu_linked

# Code for a level of processors can use no instruction that its level lacks.
HAS_DOTS = WIDE and TARGET is None and bool(llvm.get_host_cpu_features().get("avx512bf16"))
if HAS_DOTS:
    llvm.initialize_native_asmparser()  # LLVM's names for these instructions differ from release to release

_ROWS = 48  # rows that are rounded at once
_DEPTH = 512  # values of k that are rounded at once
_STRIDE = _DEPTH // 2 + 16  # pairs from row to row; not a multiple of 4 KB, so that rows fall into all sets of a cache
_AMX_PAIRS = 16  # the pairs that `tdpbf16ps` sums
_LEAST = 2.0**-126 - 2.0**-151  # a sum of smaller magnitude rounds to less than 2^-126, the least normal float32


class _Bits:
    """Writes operations on the bits of vectors of float32."""

    def __init__(self, builder):
        self.builder, self.count = builder, lanes(4)
        self.kind = ir.VectorType(ir.IntType(32), self.count)
        self.numbers = ir.VectorType(ir.FloatType(), self.count)

    def constant(self, number):
        return ir.Constant(self.kind, [number] * self.count)

    def load(self, address, number=0):
        return load_vector(self.builder, vector_at(self.builder, address, self.numbers, number), 4)

    def store(self, value, address, number=0):
        self.builder.store(value, vector_at(self.builder, address, value.type, number)).align = 4

    def rounded(self, value):
        """Return numbers rounded to the nearest bfloat16, ties to even, as bits with zeros as their lower halves."""
        builder, bits = self.builder, self.builder.bitcast(value, self.kind)
        odd = builder.and_(builder.lshr(bits, self.constant(16)), self.constant(1))
        near = builder.add(builder.add(bits, self.constant(0x7FFF)), odd)
        exponent = builder.and_(bits, self.constant(0x7F800000))
        is_tiny = builder.icmp_unsigned("==", exponent, self.constant(0))
        near = builder.select(is_tiny, builder.and_(bits, self.constant(0x80000000)), near)
        # The bits of a quiet NaN are not added to, because that could make them infinity or zero.
        is_nan, quiet = builder.fcmp_unordered("uno", value, value), builder.or_(bits, self.constant(0x00400000))
        return builder.and_(builder.select(is_nan, quiet, near), self.constant(0xFFFF0000))


def _make_rounding(by_instruction):
    """Return an intrinsic that rounds two neighbouring vectors of float32 to one vector of pairs."""

    @intrinsic
    def round_span(typing, source, target):
        def codegen(context, builder, signature, arguments):
            bits, (source, target) = _Bits(builder), arguments
            numbers = [bits.load(source, number) for number in range(2)]
            if by_instruction:
                kind = ir.FunctionType(bits.numbers, [bits.numbers] * 2)
                pairs = builder.call(ir.InlineAsm(kind, "vcvtne2ps2bf16 $1, $2, $0", "=v,v,v"), numbers)
            else:
                half = ir.VectorType(ir.IntType(16), bits.count)
                upper = [builder.lshr(bits.rounded(value), bits.constant(16)) for value in numbers]
                halves = [builder.trunc(value, half) for value in upper]
                order = ir.Constant(ir.VectorType(ir.IntType(32), 2 * bits.count), list(range(2 * bits.count)))
                pairs = builder.bitcast(builder.shuffle_vector(*halves, order), bits.kind)
            bits.store(pairs, target)
            return context.get_dummy_value()

        return types.void(source, target), codegen

    return round_span


def _make_pairing(num_vectors):
    """Return an intrinsic that rounds two rows of `num_vectors(lanes)` vectors to a row of pairs."""

    @intrinsic
    def pair(typing, lower, upper, target, has_upper):
        def codegen(context, builder, signature, arguments):
            bits, (lower, upper, target, has_upper) = _Bits(builder), arguments
            rows = []
            for v in range(num_vectors(bits.count)):
                low = builder.lshr(bits.rounded(bits.load(lower, v)), bits.constant(16))
                high = builder.select(has_upper, bits.rounded(bits.load(upper, v)), bits.constant(0))
                rows.append(builder.or_(low, high))
            for v, row in enumerate(rows):  # stored after all loads, because the target can overlap the rows
                bits.store(row, target, v)
            return context.get_dummy_value()

        return types.void(lower, upper, target, types.boolean), codegen

    return pair


_pair_panel = _make_pairing(lambda lanes: TILE_VECTORS)
_pair_span = _make_pairing(lambda lanes: -(-TILE_ROWS // lanes))


@cpu_inlined
def pair_panel(panel, depth):
    """Round `depth` rows of a panel to rows of pairs, in place."""
    width = width_of(panel)
    for k in range(0, depth, 2):
        row = offset(panel, k * width)
        _pair_panel(row, offset(row, width), offset(panel, k // 2 * width), k + 1 < depth)


@cpu_inlined
def pair_columns(columns, depth):
    """Round `depth` rows of `TILE_ROWS` numbers to rows of pairs, in place; this can overwrite a vector after them."""
    for k in range(0, depth, 2):
        row = offset(columns, k * TILE_ROWS)
        _pair_span(row, offset(row, TILE_ROWS), offset(columns, k // 2 * TILE_ROWS), k + 1 < depth)


_spare_on_stack = make_stack_memory(lambda lanes: 2 * lanes)


def _make_round_row(round_span):
    @cpu_inlined
    def round_row(source, target, count, spare):
        """Round `count` neighbouring numbers to pairs; zeros fill the last vector of pairs."""
        span, done = 2 * lanes_of(source), 0
        while done + span <= count:
            round_span(offset(source, done), offset(target, done // 2))
            done += span
        if done < count:
            for j in range(span):
                spare[j] = source[done + j] if done + j < count else 0
            round_span(spare, offset(target, done // 2))

    return round_row


# The tiles of `vdpbf16ps`: see the tiles of float32 in `tile`.  A row of pairs has the numbers of two k, so a tile that
# prefetches slowly prefetches twice as much per row.
_two_panels = make_tile(range(2, FEW_ROWS + 1), 2, dots=True)
_three_panels, _four_panels = make_tile((1,), 3, dots=True), make_tile((1,), 4, dots=True)
_one_panel = make_tile(range(1, TILE_ROWS + 1), 1, lines=1, dots=True)
_one_panel_slowly = make_tile(range(FEW_ROWS + 1, TILE_ROWS + 1), 1, lines=2 / K_PER_LINE, dots=True)
_columns = make_tile((TILE_ROWS,), 1, k_step=TILE_ROWS, lines=1 / 4, adds=True, dots=True)


@cpu_inlined
def _avx512_tile(rows, num_panels, a, panels, start, c, later, slowly):
    """Run the tile for `rows` rows of pairs and `num_panels` panels, by `vdpbf16ps`."""
    if num_panels == 2:
        _two_panels(rows, a, panels, start, c, later)
    elif num_panels == 3:
        _three_panels(rows, a, panels, start, c, later)
    elif num_panels == 4:
        _four_panels(rows, a, panels, start, c, later)
    elif slowly:
        _one_panel_slowly(rows, a, panels, start, c, later)
    else:
        _one_panel(rows, a, panels, start, c, later)


@intrinsic
def _half_of(typing, number, upper):
    """Return one half of a pair as float32; `upper` is a constant."""

    def codegen(context, builder, signature, arguments):
        whole = ir.IntType(32)
        bits = builder.bitcast(arguments[0], whole)
        lower = builder.shl(bits, ir.Constant(whole, 16))
        own = builder.select(arguments[1], builder.and_(bits, ir.Constant(whole, 0xFFFF0000)), lower)
        return builder.bitcast(own, ir.FloatType())

    return types.float32(types.float32, types.boolean), codegen


@cpu_inlined
def _flushed(total):
    return float32(math.copysign(0.0, total) if abs(total) < _LEAST else total)


@cpu_inlined
def _added(x, y):
    """Return x + y, rounded from float64 to float32; a sum below 2^-126 becomes zero.

    Terms have at most 24 bits, so rounding twice gives the same bits as rounding once.
    """
    return _flushed(float64(x) + y)


@cpu_linked  # not inlined, because its caller is compiled without vectors
def _emulate_avx512(a, a_step, panel, pairs, sums):
    """Add the products of `pairs` pairs, `a_step` apart, with a panel to the panel's sums, as `vdpbf16ps` does."""
    vectorise_widely()
    width = width_of(panel)
    for k in range(pairs):
        x, row = a[k * a_step], offset(panel, k * width)
        upper, lower = float64(_half_of(x, True)), float64(_half_of(x, False))
        for j in range(width):
            total = _added(sums[j], upper * float64(_half_of(row[j], True)))
            sums[j] = _added(total, lower * float64(_half_of(row[j], False)))


@cpu_linked
def _emulate_amx(a, a_step, panel, pairs, sums):
    """Add the products of `pairs` pairs, `a_step` apart, with a panel to the panel's sums, as `tdpbf16ps` does."""
    vectorise_widely()
    width = width_of(panel)
    evens, odds = offset(sums, width), offset(sums, 2 * width)
    for first in range(0, pairs, _AMX_PAIRS):
        for j in range(width):
            evens[j] = odds[j] = 0
        for k in range(first, least(first + _AMX_PAIRS, pairs)):
            x, row = a[k * a_step], offset(panel, k * width)
            upper, lower = float64(_half_of(x, True)), float64(_half_of(x, False))
            for j in range(width):
                evens[j] = _added(evens[j], lower * float64(_half_of(row[j], False)))
                odds[j] = _added(odds[j], upper * float64(_half_of(row[j], True)))
        for j in range(width):
            if first + _AMX_PAIRS > pairs:  # zeros follow, to which a negative zero is added
                evens[j], odds[j] = evens[j] + float32(0), odds[j] + float32(0)
            sums[j] = _added(sums[j], float64(_added(evens[j], float64(odds[j]))))


_emulated_sums = make_stack_memory(lambda lanes: 3 * TILE_VECTORS * lanes)


def _make_emulated_tile(emulate):
    @cpu_inlined
    def tile(rows, num_panels, a, panels, start, c, later, slowly):
        sums, width = _emulated_sums(a.at), width_of(a.at)
        for q in range(num_panels):
            for r in range(rows):
                begin, end = offset(start.at, start.offsets[r] + q * start.step), c.offsets[r] + q * c.step
                for j in range(width):  # a denormal start becomes zero, unless there is nothing to add
                    sums[j] = _flushed(float64(begin[j])) if panels.depth else begin[j]
                emulate(offset(a.at, a.offsets[r]), 1, offset(panels.at, q * panels.step), panels.depth, sums)
                for j in range(width):
                    c.at[end + j] = sums[j]

    return tile


def _make_emulated_columns(emulate):
    @cpu_inlined
    def columns(rows, a, panels, start, c, later):
        sums, width = _emulated_sums(a.at), width_of(a.at)
        for r in range(rows):
            begin, end = offset(start.at, start.offsets[r]), offset(c.at, c.offsets[r])
            for j in range(width):
                sums[j] = 0
            emulate(offset(a.at, a.offsets[r]), TILE_ROWS, panels.at, panels.depth, sums)
            for j in range(width):
                end[j] = begin[j] + sums[j]

    return columns


_rounded_on_stack = make_stack_memory(lambda lanes: _ROWS * _STRIDE)
_offsets_on_stack = make_stack_memory(lambda lanes: _ROWS)


def _make_multiply(tile, round_span):
    """Return the function with the arguments of `tile.multiply` that rounds rows to pairs, for `tile` to multiply."""
    multiply_panels, round_row = make_multiply_panels(tile), _make_round_row(round_span)

    def multiply(rows, num_panels, a, panels, start, c, prefetch):
        optimise_for_size()
        own, offsets, spare = _rounded_on_stack(a.at), _offsets_on_stack(a.offsets), _spare_on_stack(a.at)
        width, number = width_of(a.at), 0
        for r in range(_ROWS):
            offsets[r] = r * _STRIDE
        for top in range(0, rows, _ROWS):
            count = least(_ROWS, rows - top)
            for first in range(0, panels.depth + (panels.depth == 0), _DEPTH):
                depth = least(_DEPTH, panels.depth - first)
                for r in range(count):
                    round_row(offset(a.at, a.offsets[top + r] + first), offset(own, r * _STRIDE), depth, spare)
                block = Panels(offset(panels.at, first // 2 * width), panels.step, (depth + 1) // 2)
                begin, end = sums_from(c if first else start, top, 0), sums_from(c, top, 0)
                number = multiply_panels(count, num_panels, Rows(own, offsets), block, begin, end, prefetch, number)

    return called_by_address(arguments_of_multiply)(multiply)


def _arguments_of_columns(scalar):
    """Return the types of the arguments of the column tile of `row_sums`."""
    number, a, panels, start, c = (arguments_of_multiply(scalar)[k] for k in (0, 2, 3, 4, 5))
    return number, a, panels, start, c, types.CPointer(scalar)


add_columns = caller(_arguments_of_columns)


def _make_add_columns(tile):
    """Return the function with the arguments of `row_sums`' column tile, for a tile that multiplies pairs."""

    def add_products(rows, a, panels, start, c, later):
        optimise_for_size()
        tile(rows, a, panels, start, c, later)

    return called_by_address(_arguments_of_columns)(add_products)


@cpu_inlined
def _pair_block(weight, transposed, block):
    """Round a packed block of panels to pairs, in each panel group by group of its values of k."""
    width, groups, pieces = width_of(weight.panels), weight.groups, weight.pieces
    if transposed:
        segments, depth = 1, weight.columns
        first, count = block * groups * pieces, groups * pieces if weight.rows else 0
    else:
        segments, depth = groups, weight.rows // groups // weight.heads
        first, count = block * pieces, pieces if block * width < weight.columns * weight.heads else 0
    for p in range(first, first + count):
        panel = offset(weight.panels, p * (segments * depth + 1) * width)
        for segment in range(segments):
            pair_panel(offset(panel, segment * depth * width), depth)


@called_by_address(arguments_of_pack)
def pack_pairs(weights, transposed, blocks):
    """Pack blocks of panels as `packing.pack` does, as pairs; biases stay float32.

    Each group of rows of a weight that is not transposed has pairs of its own, which begin where its rows would.
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
            _pair_block(weight, transposed, block)
        if blocks.shared:
            arrive(blocks.packed)
        block += 1


class Rounded(NamedTuple):
    """Functions that compute in bfloat16, in the order of additions of one instruction.

    multiply: takes the place of `tile.multiply`
    add_columns: multiplies the columns of a tile of `row_sums` by a panel, and adds the products to sums
    """

    multiply: Any
    add_columns: Any


def _emulated(emulate):
    multiply = _make_multiply(_make_emulated_tile(emulate), _make_rounding(by_instruction=False))
    return Rounded(multiply, _make_add_columns(_make_emulated_columns(emulate)))


AVX512 = Rounded(_make_multiply(_avx512_tile, _make_rounding(by_instruction=True)), _make_add_columns(_columns))
EMULATED = {"bf16": _emulated(_emulate_amx), "bf16-avx512": _emulated(_emulate_avx512)}


def rounded_of(dtype, precision):
    """Return the Rounded for products of a data type in a precision; None if these do not round operands."""
    if dtype != np.float32 or precision not in EMULATED:
        return None
    if precision == "bf16-avx512" and HAS_DOTS:
        return AVX512
    announce_emulation(precision)
    return EMULATED[precision]
