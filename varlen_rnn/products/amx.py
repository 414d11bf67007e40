"""Products of pairs of bfloat16 by AMX, the matrix unit of Intel's processors; `bfloat16` explains pairs.

A **register** of AMX has 16 rows of 64 bytes.  `tdpbf16ps` multiplies 16 rows of 16 pairs by 16 rows of a panel, half
the panel wide, and adds the products to a register of sums.  Registers have fixed purposes:

    6, 7        the two halves of 16 rows of a panel
    4   0, 1    16 rows of `a`, and the sums of these rows for both halves
    5   2, 3    the next 16 rows of `a`, and the sums of these rows

A register is loaded from rows at any fixed stride.  Sums whose rows are not equally far apart, and sums of fewer than
16 rows, pass through memory on the stack; so does the end of a panel, if its pairs are not a multiple of 16.

The unit must be configured before its first instruction, and released after its last one, in each thread: registers
that are not released make each switch of the thread save 8 KB.  No other code here uses the registers, so values stay
in them from one instruction to the next.

Source: Intel, "Intel 64 and IA-32 Architectures Software Developer's Manual", chapter "Programming with Intel AMX".
"""

import ctypes
import functools
import sys
from typing import Any, NamedTuple

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from varlen_rnn.products.vectors import (
    TILE_ROWS,
    TILE_VECTORS,
    WIDE,
    copy_units,
    lanes,
    least,
    load_vector,
    make_stack_memory,
    offset,
    transpose_block,
    vector_at,
    width_of,
)
from varlen_rnn.runtime.cache.level import TARGET
from varlen_rnn.runtime.jit import cpu_inlined

# Whether this host has the unit, and code may use it.  Code for a level of processors cannot, because levels lack it.
HAS_UNIT = (
    WIDE
    and TARGET is None
    and sys.platform == "linux"
    and all(map(llvm.get_host_cpu_features().get, ("amx-tile", "amx-bf16")))
)
if HAS_UNIT:
    llvm.initialize_native_asmparser()  # LLVM's intrinsics for AMX allocate registers, so instructions are assembly

MOST_ROWS = 48  # rows that are multiplied at once
_ROWS = 16  # rows of a register
PAIRS = 16  # pairs in a row of a register
_BYTES = 64  # bytes of a row of a register
_AHEAD = 2  # steps of `PAIRS` pairs after which the prefetched rows of a panel are used
_ARCH_PRCTL, _REQUEST, _REGISTERS = 158, 0x1023, 18  # Linux: the system call, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA


@functools.cache
def is_allowed():
    """Return whether this process may use the unit; the first call asks the kernel of Linux, and some sandboxes refuse.

    The answer holds for all threads of the process, and for processes that it forks.
    """
    if not HAS_UNIT:
        return False
    call = ctypes.CDLL(None).syscall
    call.argtypes, call.restype = [ctypes.c_long] * 3, ctypes.c_long
    return call(_ARCH_PRCTL, _REQUEST, _REGISTERS) == 0


def _write(builder, lines, operands=()):
    """Write instructions, in which `$0`, `$1` and so on are the operands, integers or addresses."""
    whole = ir.IntType(64)
    values = [builder.ptrtoint(v, whole) if isinstance(v.type, ir.PointerType) else v for v in operands]
    changed = "~{memory}", "~{dirflag}", "~{fpsr}", "~{flags}"
    kind = ir.FunctionType(ir.VoidType(), [whole] * len(values))
    builder.call(ir.InlineAsm(kind, "; ".join(lines), ",".join(["r"] * len(values) + list(changed)), True), values)


def _make_instructions(count, lines):
    """Return an intrinsic of an address and `count` numbers of bytes that writes instructions."""

    def codegen(context, builder, signature, arguments):
        _write(builder, lines, arguments)
        return context.get_dummy_value()

    if count == 1:
        return intrinsic(lambda typing, at, step: (types.void(at, types.intp), codegen))
    return intrinsic(lambda typing: (types.void(), codegen))


def _make_configure(rows):
    """Return an intrinsic that configures the unit, for `rows` rows of sums and of `a`."""

    @intrinsic
    def configure(typing):
        def codegen(context, builder, signature, arguments):
            of_register = [rows, rows, rows, rows, rows, rows, PAIRS, PAIRS]
            given = bytearray(_BYTES)  # the palette; from byte 16 on, the bytes of rows; from byte 48 on, the rows
            given[0], given[16:32:2], given[48:56] = 1, bytes([_BYTES] * 8), bytes(of_register)
            kind = ir.ArrayType(ir.IntType(8), _BYTES)
            constant = cgutils.global_constant(builder, "registers_of_amx", ir.Constant(kind, given))
            _write(builder, ["ldtilecfg ($0)"], [constant])
            return context.get_dummy_value()

        return types.void(), codegen

    return configure


configure = _make_configure(_ROWS)
configure_for_columns = _make_configure(TILE_ROWS)
release = _make_instructions(0, ["tilerelease"])


def _make_moves(first):
    """Return intrinsics that zero, load and store the sums in registers `first` and `first + 1`."""
    low, high = f"%tmm{first}", f"%tmm{first + 1}"
    zero = _make_instructions(0, [f"tilezero {low}", f"tilezero {high}"])
    load = _make_instructions(1, [f"tileloadd ($0,$1,1), {low}", f"tileloadd {_BYTES}($0,$1,1), {high}"])
    store = _make_instructions(1, [f"tilestored {low}, ($0,$1,1)", f"tilestored {high}, {_BYTES}($0,$1,1)"])
    return zero, load, store


_zero_first, _load_first, _store_first = _make_moves(0)
_, _load_second, _store_second = _make_moves(2)
_PANEL_STEP = 2 * _BYTES * PAIRS  # bytes of 16 rows of a panel


def _make_products(both):
    """Return an intrinsic that adds products to the sums of 16 rows, or of 32 rows if `both`.

    Its arguments are the address of the first row of `a`, the bytes from row to row and from step to step, the address
    of a panel, and the number of steps, of 16 pairs each.
    """
    lines = ["tileloadd ($0,$2,1), %tmm4", "tileloadd ($1,$3,1), %tmm6", f"tileloadd {_BYTES}($1,$3,1), %tmm7"]
    lines += ["tdpbf16ps %tmm6, %tmm4, %tmm0"] + ["tileloadd ($4,$2,1), %tmm5"] * both
    lines += ["tdpbf16ps %tmm7, %tmm4, %tmm1"]
    lines += ["tdpbf16ps %tmm6, %tmm5, %tmm2", "tdpbf16ps %tmm7, %tmm5, %tmm3"] * both
    ahead = [f"prefetcht0 {_AHEAD * _PANEL_STEP + line}($1)" for line in range(0, _PANEL_STEP, _BYTES)]
    share = -(-len(ahead) // len(lines))  # prefetches between two instructions of the unit
    spread = [part for k, line in enumerate(lines) for part in (line, *ahead[k * share : (k + 1) * share])]

    @intrinsic
    def add_products(typing, a, row_bytes, step_bytes, panel, steps):
        def codegen(context, builder, signature, arguments):
            a, row_bytes, step_bytes, panel, steps = arguments
            whole = ir.IntType(64)
            a, panel = builder.ptrtoint(a, whole), builder.ptrtoint(panel, whole)
            second = builder.add(a, builder.mul(row_bytes, ir.Constant(whole, _ROWS)))
            with cgutils.for_range(builder, steps) as loop:
                further = builder.mul(loop.index, step_bytes)
                rows = builder.add(panel, builder.mul(loop.index, ir.Constant(whole, _PANEL_STEP)))
                operands = [builder.add(a, further), rows, row_bytes, ir.Constant(whole, 2 * _BYTES)]
                _write(builder, spread, [*operands, builder.add(second, further)][: 4 + both])
            return context.get_dummy_value()

        return types.void(a, types.intp, types.intp, panel, types.intp), codegen

    return add_products


_add_products_of_16, _add_products_of_32 = _make_products(False), _make_products(True)
_sums_on_stack = make_stack_memory(lambda lanes: 2 * _ROWS * TILE_VECTORS * lanes)
_edge_on_stack = make_stack_memory(lambda lanes: PAIRS * TILE_VECTORS * lanes)
_rows_on_stack = make_stack_memory(lambda lanes: _ROWS * PAIRS)
_steps_on_stack = make_stack_memory(lambda lanes: 2 * MOST_ROWS // _ROWS)


@cpu_inlined
def _copy_edge(panel, left, edge):
    """Copy the last `left` rows of pairs of a panel, fewer than 16, and fill up with zeros."""
    width = width_of(panel)
    copy_units(left, panel, width, edge, width, width)
    for j in range(left * width, PAIRS * width):
        edge[j] = 0


@cpu_inlined
def _steps_between(sums, rows, steps):
    """Write, for each 16 rows, the elements from row to row; -1 if fewer rows are left or their distances differ."""
    for first in range(0, rows, _ROWS):
        offsets = offset(sums.offsets, first)
        step = offsets[1] - offsets[0] if rows - first >= _ROWS else -1
        for r in range(2, least(_ROWS, rows - first)):
            step = step if offsets[r] - offsets[r - 1] == step else -1
        steps[first // _ROWS] = step


class _Half(NamedTuple):
    """The sums of up to 16 rows by a panel, and where a register finds these."""

    sums: Any  # Sums
    first: int  # row
    count: int  # rows
    panel: int
    at: Any  # the address of the first row
    step: int  # bytes from row to row
    is_apart: bool  # whether `at` is memory on the stack


@cpu_inlined
def _half_of(sums, rows, steps, first, panel, own):
    step, count = steps[first // _ROWS], least(_ROWS, rows - first)
    if step < 0:
        return _Half(sums, first, count, panel, own, 4 * width_of(own), True)
    return _Half(sums, first, count, panel, offset(sums.at, panel * sums.step + sums.offsets[first]), 4 * step, False)


@cpu_inlined
def _fetch(half):
    """Copy sums to the stack unless a register loads them from where they are."""
    sums, width = half.sums, width_of(half.at)
    for r in range(half.count if half.is_apart else 0):
        source = offset(sums.at, half.panel * sums.step + sums.offsets[half.first + r])
        copy_units(1, source, 0, offset(half.at, r * width), 0, width)


@cpu_inlined
def _bring_back(half):
    """Copy sums from the stack to where they belong unless a register stored them there."""
    sums, width = half.sums, width_of(half.at)
    for r in range(half.count if half.is_apart else 0):
        target = offset(sums.at, half.panel * sums.step + sums.offsets[half.first + r])
        copy_units(1, offset(half.at, r * width), 0, target, 0, width)


@cpu_inlined
def multiply_panels(rows, num_panels, a, panels, start, c, prefetch, number):
    """Multiply up to `MOST_ROWS` rows of pairs, at a fixed stride, by panels, as `tile.make_multiply_panels` says.

    16 rows of `a` are read where fewer are left: the spare rows can hold anything.
    """
    edge, own, width = _edge_on_stack(a.at), _sums_on_stack(a.at), width_of(a.at)
    more, steps, left = offset(own, _ROWS * width), panels.depth // PAIRS, panels.depth % PAIRS
    at_start = _steps_on_stack(a.offsets)
    at_end, stride = offset(at_start, MOST_ROWS // _ROWS), 4 * (a.offsets[1] - a.offsets[0])
    _steps_between(start, rows, at_start)
    _steps_between(c, rows, at_end)
    for p in range(num_panels):
        panel = offset(panels.at, p * panels.step)
        if left:
            _copy_edge(offset(panel, steps * PAIRS * width), left, edge)
        for r in range(0, rows, 2 * _ROWS):
            of_rows, of_edge = offset(a.at, a.offsets[r]), offset(a.at, a.offsets[r] + steps * PAIRS)
            first, has_second = _half_of(start, rows, at_start, r, p, own), rows - r > _ROWS
            _fetch(first)
            _load_first(first.at, first.step)
            if has_second:
                second = _half_of(start, rows, at_start, r + _ROWS, p, more)
                _fetch(second)
                _load_second(second.at, second.step)
                _add_products_of_32(of_rows, stride, _BYTES, panel, steps)
                if left:
                    _add_products_of_32(of_edge, stride, _BYTES, edge, 1)
                second = _half_of(c, rows, at_end, r + _ROWS, p, more)
                _store_second(second.at, second.step)
                _bring_back(second)
            else:
                _add_products_of_16(of_rows, stride, _BYTES, panel, steps)
                if left:
                    _add_products_of_16(of_edge, stride, _BYTES, edge, 1)
            first = _half_of(c, rows, at_end, r, p, own)
            _store_first(first.at, first.step)
            _bring_back(first)
    return number


@cpu_inlined
def turn_columns(at, pairs):
    """Transpose each 16 rows of `TILE_ROWS` pairs, in place: a row of the result has 16 pairs of one column.

    Rows of fewer than 16 at the end stay as they are.
    """
    own, size = _rows_on_stack(at), TILE_ROWS * PAIRS
    for k in range(pairs // PAIRS):
        block = offset(at, k * size)
        transpose_block(block, TILE_ROWS, own, PAIRS)  # it reads beyond the block, and writes rows that nobody reads
        copy_units(TILE_ROWS // TILE_VECTORS, own, TILE_VECTORS * PAIRS, block, TILE_VECTORS * PAIRS, width_of(at))


@intrinsic
def _add_rows(typing, first, second, target):
    """Write the sum of two rows as wide as a panel."""

    def codegen(context, builder, signature, arguments):
        kind = ir.VectorType(ir.FloatType(), lanes(4))
        for v in range(TILE_VECTORS):
            *given, there = (vector_at(builder, address, kind, v) for address in arguments)
            builder.store(builder.fadd(*(load_vector(builder, address, 4) for address in given)), there).align = 4
        return context.get_dummy_value()

    return types.void(first, second, target), codegen


@cpu_inlined
def add_columns(rows, a, panels, start, c, later):
    """Multiply columns that `turn_columns` transposed by a panel, and add the products to the sums of `start`."""
    own, width = _sums_on_stack(a.at), width_of(a.at)
    steps, left, at = panels.depth // PAIRS, panels.depth % PAIRS, offset(a.at, a.offsets[0])
    _zero_first()
    _add_products_of_16(at, _BYTES, TILE_ROWS * _BYTES, panels.at, steps)
    if left:
        edge, of_edge = _edge_on_stack(a.at), _rows_on_stack(a.at)
        _copy_edge(offset(panels.at, steps * PAIRS * width), left, edge)
        for r in range(TILE_ROWS):
            for k in range(PAIRS):
                of_edge[r * PAIRS + k] = at[(steps * PAIRS + k) * TILE_ROWS + r] if k < left else 0
        _add_products_of_16(of_edge, _BYTES, 0, edge, 1)
    _store_first(own, 4 * width)
    for r in range(rows):
        _add_rows(offset(start.at, start.offsets[r]), offset(own, r * width), offset(c.at, c.offsets[r]))
