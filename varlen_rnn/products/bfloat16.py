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
"bf16": `tdpbf16ps` of AMX adds up 16 pairs from zero, upper and lower halves apart; then it adds both to the sum
    (`amx`).

Sources: Intel, "Intel 64 and IA-32 Architectures Software Developer's Manual", VDPBF16PS, VCVTNE2PS2BF16 and TDPBF16PS.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import float32, float64, types
from numba.extending import intrinsic

from varlen_rnn.products import amx
from varlen_rnn.products.few_rows import MOST_ROWS
from varlen_rnn.products.packing import ALL_ROWS, Weight, arguments_of_pack, pack_block
from varlen_rnn.products.rounding import HAS_INSTRUCTIONS, pair_in_place, pair_panel, round_row
from varlen_rnn.products.sync import arrive, take_or_wait
from varlen_rnn.products.tile import (
    FEW_ROWS,
    K_PER_LINE,
    Panels,
    Prefetch,
    Rows,
    Sums,
    arguments_of_multiply,
    make_multiply_panels,
    make_tile,
    sums_from,
)
from varlen_rnn.products.vectors import (
    TILE_ROWS,
    TILE_VECTORS,
    copy_units,
    lanes_of,
    least,
    make_stack_memory,
    offset,
    optimise_for_size,
    pointer,
    vectorise_widely,
    width_of,
)
from varlen_rnn.runtime.cache.announce import announce_emulation
from varlen_rnn.runtime.jit import called_by_address, caller, cpu_inlined, cpu_linked

_ROWS = amx.MOST_ROWS  # rows that are rounded at once
_DEPTH = 512  # values of k that are rounded at once
_STRIDE = _DEPTH // 2 + 16  # pairs from row to row; not a multiple of 4 KB, so that rows fall into all sets of a cache
_LEAST = 2.0**-126 - 2.0**-151  # a sum of smaller magnitude rounds to less than 2^-126, the least normal float32


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
    for first in range(0, pairs, amx.PAIRS):
        for j in range(width):
            evens[j] = odds[j] = 0
        for k in range(first, least(first + amx.PAIRS, pairs)):
            x, row = a[k * a_step], offset(panel, k * width)
            upper, lower = float64(_half_of(x, True)), float64(_half_of(x, False))
            for j in range(width):
                evens[j] = _added(evens[j], lower * float64(_half_of(row[j], False)))
                odds[j] = _added(odds[j], upper * float64(_half_of(row[j], True)))
        for j in range(width):
            if first + amx.PAIRS > pairs:  # zeros follow, to which a negative zero is added
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


@cpu_inlined
def _copy_pairs(source, target, depth):
    """Copy the pairs of `depth` numbers; zeros fill the last vector, as `round_row` fills it."""
    count, lanes = depth // 2, lanes_of(source)
    copy_units(1, source, 0, target, 0, count)
    for j in range(count, (count + lanes - 1) // lanes * lanes):
        target[j] = 0


_rounded_on_stack = make_stack_memory(lambda lanes: _ROWS * _STRIDE)
_offsets_on_stack = make_stack_memory(lambda lanes: _ROWS)


def _make_multiply(multiply_panels, of_pairs):
    """Return a function with the arguments of `tile.multiply` that rounds rows to pairs, and multiplies these.

    If `of_pairs`, rows are pairs already, of an even number of values of k.
    """

    @cpu_inlined
    def multiply(rows, num_panels, a, panels, start, c, prefetch):
        own, offsets = _rounded_on_stack(a.at), _offsets_on_stack(a.offsets)
        width, number = width_of(a.at), 0
        for r in range(_ROWS):
            offsets[r] = r * _STRIDE
        for top in range(0, rows, _ROWS):
            count = least(_ROWS, rows - top)
            for first in range(0, panels.depth + (panels.depth == 0), _DEPTH):
                depth = least(_DEPTH, panels.depth - first)
                for r in range(count):
                    target = offset(own, r * _STRIDE)
                    if of_pairs:
                        _copy_pairs(offset(a.at, a.offsets[top + r] + first // 2), target, depth)
                    else:
                        round_row(offset(a.at, a.offsets[top + r] + first), target, depth)
                block = Panels(offset(panels.at, first // 2 * width), panels.step, (depth + 1) // 2)
                begin, end = sums_from(c if first else start, top, 0), sums_from(c, top, 0)
                number = multiply_panels(count, num_panels, Rows(own, offsets), block, begin, end, prefetch, number)

    return multiply


def _arguments_of_columns(scalar):
    """Return the types of the arguments of the column tile of `row_sums`."""
    number, a, panels, start, c = (arguments_of_multiply(scalar)[k] for k in (0, 2, 3, 4, 5))
    return number, a, panels, start, c, types.CPointer(scalar)


def _arguments_of_pairs(scalar):
    """Return the types of the arguments of `rounding.pair_in_place`."""
    return types.CPointer(scalar), types.intp, types.intp


def _arguments_of_turn(scalar):
    return (types.CPointer(scalar),)  # any address, by which `caller` finds the type of the numbers


pair_rows, add_columns = caller(_arguments_of_pairs), caller(_arguments_of_columns)
begin_or_end = caller(_arguments_of_turn)


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
            pair_in_place(offset(panel, segment * depth * width), depth, width)


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


# Few rows are multiplied by blocks of a weight, which are packed on the stack and not in memory.
_BLOCK_PANELS, _BLOCK_DEPTH = 4, 64
_sums_on_stack = make_stack_memory(lambda lanes: MOST_ROWS * _BLOCK_PANELS * TILE_VECTORS * lanes)
_block_on_stack = make_stack_memory(lambda lanes: _BLOCK_PANELS * (_BLOCK_DEPTH + 1) * TILE_VECTORS * lanes)
_offsets_of_few = make_stack_memory(lambda lanes: 2 * MOST_ROWS)


class FewRows(NamedTuple):
    """A product of few rows: `c = a @ weight + bias` for `a` (rows, depth) and `weight` (depth, columns)."""

    rows: int
    a: Any
    a_stride: int  # elements from row to row
    weight: Any
    depth: int
    columns: int
    bias: Any
    c: Any
    c_stride: int


def _arguments_of_few(scalar):
    number, address = types.intp, types.CPointer(scalar)
    return (types.NamedTuple((number, address, number, address, number, number, address, address, number), FewRows),)


multiply_few = caller(_arguments_of_few)


@cpu_inlined
def _pack_block_of_weight(it, k, depth, first, count, packed):
    """Pack `depth` rows and `count` columns of a weight, from row `k` and column `first` on; return their Panels."""
    width, at = width_of(it.a), offset(it.weight, k * it.columns + first)
    step, whole = (depth + 1) * width, count // width
    for row in range(0, depth, 2):
        lower, apart = offset(at, row * it.columns), it.columns if row + 1 < depth else 0
        for p in range(whole):
            of_panel, target = offset(lower, p * width), offset(packed, p * step + row // 2 * width)
            pair_panel(of_panel, offset(of_panel, apart), target, apart > 0)
    if whole * width < count:
        weight = Weight(at, depth, count, 1, at, False, pointer(ALL_ROWS, 0), 0, packed, it.columns, 1, 1)
        pack_block(weight, False, whole)
        _pair_block(weight, False, whole)
    return Panels(packed, step, depth)


def _make_multiply_few(begin, multiply, end, numbers):
    """Return a function of a FewRows, given a function with the arguments of `tile.multiply`, to call in between.

    An element of a row has so many `numbers`: 2 if rows are pairs.
    """

    def multiply_few_rounded(it):
        optimise_for_size()
        sums, packed, offsets = _sums_on_stack(it.a), _block_on_stack(it.a), _offsets_of_few(pointer(ALL_ROWS, 0))
        width, of_sums, none = width_of(it.a), offset(offsets, MOST_ROWS), Prefetch(packed, offsets, 0)
        size = _BLOCK_PANELS * width
        begin()
        for r in range(MOST_ROWS):
            offsets[r], of_sums[r] = r * it.a_stride, r * size
        for first in range(0, it.columns, size):
            count, totals = least(size, it.columns - first), Sums(sums, of_sums, width)
            for r in range(it.rows):
                for j in range(count):
                    sums[r * size + j] = it.bias[first + j]
            for k in range(0, it.depth, _BLOCK_DEPTH):
                panels = _pack_block_of_weight(it, k, least(_BLOCK_DEPTH, it.depth - k), first, count, packed)
                num_panels, a = (count + width - 1) // width, Rows(offset(it.a, k // numbers), offsets)
                multiply(it.rows, num_panels, a, panels, totals, totals, none)
            for r in range(it.rows):
                for j in range(count):
                    it.c[r * it.c_stride + first + j] = sums[r * size + j]
        end()

    return called_by_address(_arguments_of_few)(multiply_few_rounded)


class OfRows(NamedTuple):
    """Functions for products of rows.  Compiled code calls all functions of a Rounded by address.

    multiply: takes the place of `tile.multiply`
    multiply_few: multiplies few rows by a weight that lies unpacked, with the bits of `multiply`
    """

    multiply: Any
    multiply_few: Any


class OfColumns(NamedTuple):
    """Functions for sums over rows, `row_sums`.

    pair: rounds rows to pairs as `rounding.pair_in_place` does, in the order in which `add` reads them
    begin: must be called before the first `add` of a thread
    add: multiplies the columns of a tile by a panel, and adds the products to sums
    end: must be called after the last `add` of a thread
    """

    pair: Any
    begin: Any
    add: Any
    end: Any


class Rounded(NamedTuple):
    """The functions of one order of additions.

    rows: for rows of float32
    pairs: for rows that are pairs already, with an even number of values of k
    columns: for sums over rows
    """

    rows: OfRows
    pairs: OfRows
    columns: OfColumns

    def of_rows(self, of_pairs):
        """Return the functions for rows that are pairs already, or for rows of float32."""
        return self.pairs if of_pairs else self.rows


class _Unit(NamedTuple):
    """The inlined functions of a unit that multiplies pairs."""

    begin: Any  # before the first product of a call
    begin_columns: Any
    end: Any  # after the last product of a call
    multiply_panels: Any  # as `make_multiply_panels` returns it
    turn_columns: Any  # arranges rows of `TILE_ROWS` pairs for `add_columns`
    add_columns: Any


@cpu_inlined
def _nothing():
    pass


@cpu_inlined
def _as_they_are(at, pairs):
    pass


def _unit_of_tile(tile, columns):
    return _Unit(_nothing, _nothing, _nothing, make_multiply_panels(tile), _as_they_are, columns)


def _make_rounded(unit):
    begin, begin_unit_columns, end, multiply_panels, turn_columns, add_unit_columns = unit

    def called(multiply):
        def multiply_rounded(rows, num_panels, a, panels, start, c, prefetch):
            optimise_for_size()
            begin()
            multiply(rows, num_panels, a, panels, start, c, prefetch)
            end()

        return called_by_address(arguments_of_multiply)(multiply_rounded)

    def of_rows(of_pairs):
        multiply = _make_multiply(multiply_panels, of_pairs)
        return OfRows(called(multiply), _make_multiply_few(begin, multiply, end, numbers=1 + of_pairs))

    def pair_or_turn(at, depth, step):
        optimise_for_size()
        pair_in_place(at, depth, step)
        if step == TILE_ROWS:
            turn_columns(at, (depth + 1) // 2)

    def begin_columns(at):
        begin_unit_columns()

    def add_products(rows, a, panels, start, c, later):
        optimise_for_size()
        add_unit_columns(rows, a, panels, start, c, later)

    def end_columns(at):
        end()

    of_columns = OfColumns(
        pair=called_by_address(_arguments_of_pairs)(pair_or_turn),
        begin=called_by_address(_arguments_of_turn)(begin_columns),
        add=called_by_address(_arguments_of_columns)(add_products),
        end=called_by_address(_arguments_of_turn)(end_columns),
    )
    return Rounded(of_rows(False), of_rows(True), of_columns)


_AMX = _Unit(
    amx.configure, amx.configure_for_columns, amx.release, amx.multiply_panels, amx.turn_columns, amx.add_columns
)
WITH_INSTRUCTIONS = {
    "bf16": _make_rounded(_AMX),
    "bf16-avx512": _make_rounded(_unit_of_tile(_avx512_tile, _columns)),
}
EMULATED = {
    "bf16": _make_rounded(_unit_of_tile(_make_emulated_tile(_emulate_amx), _make_emulated_columns(_emulate_amx))),
    "bf16-avx512": _make_rounded(
        _unit_of_tile(_make_emulated_tile(_emulate_avx512), _make_emulated_columns(_emulate_avx512))
    ),
}


def has_instruction(precision):
    """Return whether this process computes products in a precision by an instruction of its host."""
    return amx.is_allowed() if precision == "bf16" else HAS_INSTRUCTIONS


def rounded_of(dtype, precision):
    """Return the Rounded for products of a data type in a precision; None if these do not round operands."""
    if precision not in EMULATED or dtype != np.float32:
        return None
    if has_instruction(precision):
        return WITH_INSTRUCTIONS[precision]
    refused = precision == "bf16" and amx.HAS_UNIT
    announce_emulation(
        precision, "Linux refuses AMX to this process" if refused else "this processor lacks the instruction"
    )
    return EMULATED[precision]
