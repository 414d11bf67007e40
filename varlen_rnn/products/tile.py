"""The register tile, in LLVM IR, and products of rows with packed panels that are made of it.

`C[r, :] = start[r, :] + sum over k of A[r, k] * P[k, :]` for up to `TILE_ROWS` rows of A and one panel P of
`panel_width` columns.  All of C stays in registers while k runs, so a product of three rows runs at the full rate of
the multiply-add units, like a product of three hundred rows.  Rows of A are given by their offsets, so they need not be
adjacent.  A, the panel, the start and the sums have one data type, `_Writer.vector`.

Each element of C is a sum over blocks of `DEPTH_BLOCK` values of k.  A block is one chain of multiply-adds in the order
of k, whatever the number of rows.  So the bits of a row's result never depend on the rows beside it.
"""

import itertools
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from varlen_rnn.products.vectors import (
    TILE_ROWS,
    TILE_VECTORS,
    WIDE,
    add_panel,
    emit_prefetch,
    lanes,
    lanes_of,
    least,
    load_vector,
    make_stack_memory,
    offset,
    optimise_for_size,
    vector_at,
    width_of,
)
from varlen_rnn.runtime.jit import called_by_address, cpu_inlined

FEW_ROWS = TILE_ROWS // 2  # tiles with at most so many rows multiply by several panels at once
DEPTH_BLOCK = 512  # the longest chain of multiply-adds, because rounding errors grow with its length
K_PER_LINE = 4  # values of k after which a tile prefetches one cache line, if the line is read much later
_ROWS_AHEAD = 16  # with vectors of 64 bytes, reading row k of a panel prefetches row k + 16


class Rows(NamedTuple):
    """Rows of numbers: an address, and the offset of each row from that address, in elements."""

    at: Any
    offsets: Any


class Panels(NamedTuple):
    """Packed weights: the address of the first panel, the elements from panel to panel, and the depth of a panel."""

    at: Any
    step: int
    depth: int


class Sums(NamedTuple):
    """Sums of rows times panels: the fields of `Rows`, and the elements from one panel's sums to the next panel's."""

    at: Any
    offsets: Any
    step: int


class Prefetch(NamedTuple):
    """Memory to prefetch: an address, and `count` offsets from that address, one for each of the next tiles."""

    at: Any
    offsets: Any
    count: int


class _Tile(NamedTuple):
    rows: int  # the number of rows of A
    panels: int
    k_step: int  # elements of A from one k to the next
    lines: float  # cache lines that the tile prefetches into L2 at each k
    adds: bool  # whether chains begin at zero and are added to the start; otherwise they begin at the start
    dots: bool  # whether numbers are pairs of bfloat16, which `vdpbf16ps` multiplies: see `bfloat16`


class _Writer:
    """Writes the instructions of one tile.  Its vectors of sums are phi values of LLVM, so they stay in registers."""

    def __init__(self, builder, scalar, tile, a, panels, start, c, later):
        self.builder, self.tile, self.panels, self.later = builder, tile, panels, later
        self.scalar_bytes = 4 if isinstance(scalar, ir.FloatType) else 8
        self.vector = ir.VectorType(scalar, lanes(self.scalar_bytes))
        self.a, self.start, self.c = a, start, c
        places = itertools.product(range(tile.panels), range(TILE_VECTORS), range(tile.rows))
        self.places = [(r, q, v) for q, v, r in places]
        if tile.rows > tile.panels * TILE_VECTORS:  # the order of loops decides which operands stay in registers
            self.places.sort()

    def write(self):
        """Write the tile: load the sums at `start`, loop over k, and store the sums at `c`."""
        builder, depth = self.builder, self.panels[2]
        a_rows, starts = self._rows(self.a), list(self._sums(self.start))
        zeros = [ir.Constant(self.vector, None)] * len(starts)
        begins = zeros if self.tile.adds else [self._load(address) for address in starts]
        before, loop, end = builder.block, *(builder.append_basic_block(name) for name in ("loop", "end"))
        builder.cbranch(builder.icmp_signed(">", depth, _index(0)), loop, end)
        builder.position_at_end(loop)
        k, *sums = self._phis([_index(0), *begins], before)
        totals = self._write_step(k, a_rows, sums)
        next_k = builder.add(k, _index(1))
        for phi, value in zip((k, *sums), (next_k, *totals), strict=True):
            phi.add_incoming(value, builder.block)
        builder.cbranch(builder.icmp_signed("<", next_k, depth), loop, end)
        builder.position_at_end(end)
        results = self._phis(begins, before)
        for phi, total, start, address in zip(results, totals, starts, self._sums(self.c), strict=True):
            phi.add_incoming(total, loop)
            result = builder.fadd(self._load(start), phi) if self.tile.adds else phi
            builder.store(result, address).align = self.scalar_bytes

    def _write_step(self, k, a_rows, sums):
        """Write the multiply-adds and the prefetches of one k; return the sums after these multiply-adds."""
        builder, tile = self.builder, self.tile
        row_of_panel = builder.gep(self.panels[0], [builder.mul(k, _index(TILE_VECTORS * self.vector.count))])
        vectors = list(itertools.product(range(tile.panels), range(TILE_VECTORS)))
        if tile.lines:
            step = builder.mul(k, _index(int(self.vector.count * tile.lines)))
            emit_prefetch(builder, builder.gep(self.later, [step]), to_write=False, cache=2)
        for q, v in vectors if WIDE and tile.rows > 1 else ():
            ahead = self._vector_of_panel(row_of_panel, q, v + _ROWS_AHEAD * TILE_VECTORS)
            emit_prefetch(builder, ahead, to_write=False, cache=1)
        k_offset = k if tile.k_step == 1 else builder.mul(k, _index(tile.k_step))
        # Vectors of a panel are at constant offsets, because row addresses alone take twelve of sixteen registers.
        of_rows, of_panels, totals, multiply_add = {}, {}, [], self._multiply_add()
        for (r, q, v), value in zip(self.places, sums, strict=True):
            if r not in of_rows:
                of_rows[r] = self._spread(builder.load(builder.gep(a_rows[r], [k_offset])))
            if (q, v) not in of_panels:
                of_panels[q, v] = self._load(self._vector_of_panel(row_of_panel, q, v))
            totals.append(builder.call(multiply_add, [of_rows[r], of_panels[q, v], value]))
        return totals

    def _rows(self, rows):
        at, offsets, builder = rows[0], rows[1], self.builder
        return [builder.gep(at, [builder.load(builder.gep(offsets, [_index(r)]))]) for r in range(self.tile.rows)]

    def _sums(self, sums):
        rows = self._rows(sums)
        for r, q, v in self.places:
            yield vector_at(self.builder, self._further(rows[r], sums[2], q), self.vector, v)

    def _vector_of_panel(self, row, q, v):
        return vector_at(self.builder, self._further(row, self.panels[1], q), self.vector, v)

    def _further(self, address, step, count):
        return self.builder.gep(address, [self.builder.mul(step, _index(count))]) if count else address

    def _load(self, address):
        return load_vector(self.builder, address, self.scalar_bytes)

    def _phis(self, values, block):
        """Write phis that have `values` if control comes from `block`; the caller adds values for other blocks."""
        phis = [self.builder.phi(value.type) for value in values]
        for phi, value in zip(phis, values, strict=True):
            phi.add_incoming(value, block)
        return phis

    def _spread(self, scalar):
        """Return a vector with a scalar in every lane."""
        undefined, lane = ir.Constant(self.vector, ir.Undefined), ir.IntType(32)
        first = self.builder.insert_element(undefined, scalar, ir.Constant(lane, 0))
        everywhere = ir.Constant(ir.VectorType(lane, self.vector.count), [0] * self.vector.count)
        return self.builder.shuffle_vector(first, undefined, everywhere)

    def _multiply_add(self):
        kind = ir.FunctionType(self.vector, [self.vector] * 3)
        if self.tile.dots:
            return ir.InlineAsm(kind, "vdpbf16ps $2, $1, $0", "=v,v,v,0")
        name = f"llvm.fmuladd.v{self.vector.count}f{self.scalar_bytes * 8}"
        return cgutils.get_or_insert_function(self.builder.module, kind, name)


_INDEX = ir.IntType(64)


def _index(number):
    return ir.Constant(_INDEX, number)


def make_tile(numbers_of_rows, panels, k_step=1, lines=0.0, adds=False, dots=False):
    """Return an intrinsic that multiplies rows by `panels` panels; it has a tile for each item of `numbers_of_rows`.

    Its arguments are the number of `rows`, then `Rows`, `Panels`, the `Sums` to start from, the `Sums` to write, and an
    address to prefetch from.  Tiles of more than `FEW_ROWS` rows prefetch `lines` cache lines from that address at each
    k.  `k_step`, `adds` and `dots` are as in `_Tile`.
    """

    @intrinsic
    def tile(typing, rows, a, packed, start, c, later):
        def codegen(context, builder, signature, arguments):
            groups = [cgutils.unpack_tuple(builder, group) for group in arguments[1:5]]
            flat = [arguments[0], *itertools.chain.from_iterable(groups), arguments[5]]
            kind = ir.FunctionType(ir.VoidType(), [value.type for value in flat])
            function = ir.Function(builder.module, kind, builder.module.get_unique_name(f"tile{panels}"))
            function.linkage = "internal"
            function.attributes.add("noinline")  # otherwise LLVM would inline all tiles at each call
            _write_tiles(function, [_Tile(rows, panels, k_step, lines, adds, dots) for rows in numbers_of_rows])
            builder.call(function, flat)
            return context.get_dummy_value()

        return types.void(types.intp, a, packed, start, c, later), codegen

    return tile


def _write_tiles(function, tiles):
    """Write the body of a function that runs one of several tiles: its first argument is the tile's number of rows."""
    builder, (choice, *flat) = ir.IRBuilder(function.append_basic_block("entry")), function.args
    a, packed, start, c, later = flat[:2], flat[2:5], flat[5:8], flat[8:11], flat[11]
    end = builder.append_basic_block("end")
    switch = builder.switch(choice, end)
    for tile in tiles:
        block = builder.append_basic_block(f"rows{tile.rows}")
        switch.add_case(_index(tile.rows), block)
        builder.position_at_end(block)
        shape = tile._replace(lines=tile.lines if WIDE and tile.rows > FEW_ROWS else 0)
        _Writer(builder, a[0].type.pointee, shape, a, packed, start, c, later).write()
        builder.branch(end)
    builder.position_at_end(end)
    builder.ret_void()


# Tiles of few rows multiply by several panels at once: eight independent sums hide the latency of a multiply-add, and
# an element of A that was broadcast to a vector serves all panels.
_two_panels = make_tile(range(2, FEW_ROWS + 1), 2)
_three_panels, _four_panels = make_tile((1,), 3), make_tile((1,), 4)
_one_panel = make_tile(range(1, TILE_ROWS + 1), 1, lines=1)
_one_panel_slowly = make_tile(range(FEW_ROWS + 1, TILE_ROWS + 1), 1, lines=1 / K_PER_LINE)


_offsets_on_stack = make_stack_memory(lambda lanes: 2 * TILE_ROWS)
_panels_on_stack = make_stack_memory(lambda lanes: 4 * TILE_VECTORS * lanes)
_sums_on_stack = make_stack_memory(lambda lanes: TILE_ROWS * 2 * TILE_VECTORS * lanes)


@cpu_inlined
def rows_of_tile(left):
    """Return how many rows the next tile gets, if `left` rows are left and tiles get nearly equal numbers of rows."""
    tiles = (left + TILE_ROWS - 1) // TILE_ROWS
    return (left + tiles - 1) // tiles


@cpu_inlined
def _panels_of_tile(rows, left):
    """Return by how many panels a tile of `rows` rows multiplies at once, if `left` panels are left."""
    if rows > FEW_ROWS or left == 1:
        return 1
    if rows > 1:
        return 2
    return 4 if left > 3 else 3 if left > 2 else 1


@cpu_inlined
def _multiply_tile(rows, num_panels, a, panels, start, c, later, slowly):
    """Run the tile for `rows` rows and `num_panels` panels."""
    if num_panels == 2:
        _two_panels(rows, a, panels, start, c, later)
    elif num_panels == 3:
        _three_panels(rows, a, panels, start, c, later)
    elif num_panels == 4:
        _four_panels(rows, a, panels, start, c, later)
    elif WIDE and slowly:
        _one_panel_slowly(rows, a, panels, start, c, later)
    else:
        _one_panel(rows, a, panels, start, c, later)


@cpu_inlined
def _multiply_blocks(rows, num_panels, a, panels, start, c, later, slowly):
    """Run the tile for `rows` rows and `num_panels` panels on each block of k, and sum the results of the blocks."""
    width, lines = width_of(a.at), lanes_of(a.at)
    offsets, zeros, sums = _offsets_on_stack(a.offsets), _panels_on_stack(a.at), _sums_on_stack(a.at)
    begin, end = start, c
    for first in range(0, panels.depth + (panels.depth == 0), DEPTH_BLOCK):
        if first == DEPTH_BLOCK:
            for r in range(TILE_ROWS):
                offsets[r], offsets[TILE_ROWS + r] = r * 2 * width, 0
            for j in range(4 * width):
                zeros[j] = 0
            begin, end = Sums(zeros, offset(offsets, TILE_ROWS), width), Sums(sums, offsets, width)
        depth = least(DEPTH_BLOCK, panels.depth - first)
        block = Panels(offset(panels.at, first * width), panels.step, depth)
        further = first * lines // K_PER_LINE if slowly else first * lines
        part = Rows(offset(a.at, first), a.offsets)
        _multiply_tile(rows, num_panels, part, block, begin, end, offset(later, further), slowly)
        for r in range(rows if first else 0):
            for q in range(num_panels):
                add_panel(offset(sums, r * 2 * width + q * width), offset(c.at, c.offsets[r] + q * c.step))


@cpu_inlined
def sums_from(sums, row, panel):
    """Return Sums without the rows before `row` and the panels before `panel`."""
    return Sums(offset(sums.at, panel * sums.step), offset(sums.offsets, row), sums.step)


def arguments_of_multiply(scalar):
    """Return the types of the arguments of `multiply`."""
    number, offsets, address = types.intp, types.CPointer(types.int64), types.CPointer(scalar)
    sums = types.NamedTuple((address, offsets, number), Sums)
    a = types.NamedTuple((address, offsets), Rows)
    panels = types.NamedTuple((address, number, number), Panels)
    return number, number, a, panels, sums, sums, types.NamedTuple((address, offsets, number), Prefetch)


def make_multiply_panels(multiply_tile):
    """Return a function that multiplies rows by panels, tile after tile.

    It takes the arguments of `multiply`, then the number of tiles that ran before, and returns how many have run now.
    """

    @cpu_inlined
    def multiply_panels(rows, num_panels, a, panels, start, c, prefetch, number):
        p = 0
        while p < num_panels:  # a panel stays in the caches while all rows are multiplied by it
            q, r = _panels_of_tile(rows, num_panels - p), 0
            panel = Panels(offset(panels.at, p * panels.step), panels.step, panels.depth)
            next_panel = offset(panel.at, panels.step)
            while r < rows:
                m = rows_of_tile(rows - r)
                slowly = m > FEW_ROWS and number < prefetch.count
                later = offset(prefetch.at, prefetch.offsets[number]) if slowly else next_panel
                part, begin, end = Rows(a.at, offset(a.offsets, r)), sums_from(start, r, p), sums_from(c, r, p)
                multiply_tile(m, q, part, panel, begin, end, later, slowly)
                next_panel, number, r = offset(next_panel, panels.depth * lanes_of(a.at)), number + 1, r + m
            p += q
        return number

    return multiply_panels


_multiply_panels = make_multiply_panels(_multiply_blocks)


@called_by_address(arguments_of_multiply)
def multiply(rows, num_panels, a, panels, start, c, prefetch):
    """Multiply `rows` rows of `a` by `num_panels` panels; with a depth of 0, copy the start and read no panel.

    Tiles of more than `FEW_ROWS` rows prefetch `depth / 4` cache lines each: the first `prefetch.count` tiles from the
    addresses of `prefetch`, later tiles from the next panel.
    """
    optimise_for_size()
    _multiply_panels(rows, num_panels, a, panels, start, c, prefetch, 0)
