"""Round float32 to bfloat16, as pairs of bfloat16 in the place of float32 (`bfloat16`).

Numbers are rounded to the nearest bfloat16, ties to even.  Denormal numbers become zeros, and NaNs quiet NaNs.  The
instruction of AVX512-BF16 does so; other hosts compute the same bits by operations on integers.
"""

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from varlen_rnn.products.vectors import (
    TILE_ROWS,
    TILE_VECTORS,
    WIDE,
    lanes,
    lanes_of,
    load_vector,
    make_stack_memory,
    offset,
    vector_at,
    width_of,
)
from varlen_rnn.runtime.cache.level import TARGET
from varlen_rnn.runtime.jit import cpu_inlined

# Whether code uses the instructions of AVX512-BF16.  Code for a level of processors cannot, because levels lack them.
HAS_INSTRUCTIONS = WIDE and TARGET is None and bool(llvm.get_host_cpu_features().get("avx512bf16"))
if HAS_INSTRUCTIONS:
    llvm.initialize_native_asmparser()  # they are written as assembly, because LLVM's intrinsics for them change


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

    def instruction(self, first, second):
        """Return two vectors of numbers as one vector of bfloat16, by the instruction, in the type of `numbers`."""
        kind = ir.FunctionType(self.numbers, [self.numbers] * 2)
        return self.builder.call(ir.InlineAsm(kind, "vcvtne2ps2bf16 $1, $2, $0", "=v,v,v"), [first, second])

    def in_order(self, halves, order):
        """Return a vector of pairs whose halves, 16 bits each, are the halves of `halves` in an order."""
        order = ir.Constant(ir.VectorType(ir.IntType(32), 2 * self.count), order)
        return self.builder.bitcast(self.builder.shuffle_vector(*halves, order), self.kind)

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


@intrinsic
def _round_span(typing, source, target):
    """Round two neighbouring vectors of float32 to one vector of pairs."""

    def codegen(context, builder, signature, arguments):
        bits, (source, target) = _Bits(builder), arguments
        numbers = [bits.load(source, number) for number in range(2)]
        if HAS_INSTRUCTIONS:
            pairs = bits.instruction(*numbers)
        else:
            half = ir.VectorType(ir.IntType(16), bits.count)
            upper = [builder.lshr(bits.rounded(value), bits.constant(16)) for value in numbers]
            pairs = bits.in_order([builder.trunc(value, half) for value in upper], list(range(2 * bits.count)))
        bits.store(pairs, target)
        return context.get_dummy_value()

    return types.void(source, target), codegen


def _make_pairing(num_vectors):
    """Return an intrinsic that rounds two rows of `num_vectors(lanes)` vectors to a row of pairs."""

    @intrinsic
    def pair(typing, lower, upper, target, has_upper):
        def codegen(context, builder, signature, arguments):
            bits, (lower, upper, target, has_upper) = _Bits(builder), arguments
            halves = ir.VectorType(ir.IntType(16), 2 * bits.count)
            order, rows = [half for k in range(bits.count) for half in (k, bits.count + k)], []
            for v in range(num_vectors(bits.count)):
                low, high = bits.load(lower, v), bits.load(upper, v)
                high = builder.select(has_upper, high, ir.Constant(bits.numbers, None))
                if HAS_INSTRUCTIONS:
                    both = builder.bitcast(bits.instruction(low, high), halves)
                    rows.append(bits.in_order([both, both], order))
                else:
                    low, high = builder.lshr(bits.rounded(low), bits.constant(16)), bits.rounded(high)
                    rows.append(builder.or_(low, high))
            for v, row in enumerate(rows):  # stored after all loads, because the target can overlap the rows
                bits.store(row, target, v)
            return context.get_dummy_value()

        return types.void(lower, upper, target, types.boolean), codegen

    return pair


# Both take the addresses of two rows and of the row of pairs, and whether to read the second row, or zeros instead.
pair_panel = _make_pairing(lambda lanes: TILE_VECTORS)
_pair_span = _make_pairing(lambda lanes: -(-TILE_ROWS // lanes))


@cpu_inlined
def pair_in_place(at, depth, step):
    """Round `depth` rows of numbers to rows of pairs, in place.

    Rows are `step` elements apart: a panel's width, or `TILE_ROWS`.  In the second case, a vector after the last row of
    pairs can be overwritten.
    """
    for k in range(0, depth, 2):
        row, target = offset(at, k * step), offset(at, k // 2 * step)
        if step == width_of(at):
            pair_panel(row, offset(row, step), target, k + 1 < depth)
        else:
            _pair_span(row, offset(row, step), target, k + 1 < depth)


@intrinsic
def number_of_half(typing, half):
    """Return the number whose bfloat16 has these 16 bits."""

    def codegen(context, builder, signature, arguments):
        whole = ir.IntType(32)
        bits = builder.shl(builder.zext(arguments[0], whole), ir.Constant(whole, 16))
        return builder.bitcast(bits, ir.FloatType())

    return types.float32(types.uint16), codegen


@intrinsic
def last_bits(typing, number):
    """Return the last 16 bits of a float64."""

    def codegen(context, builder, signature, arguments):
        return builder.trunc(builder.bitcast(arguments[0], ir.IntType(64)), ir.IntType(16))

    return types.uint16(types.float64), codegen


_spare_on_stack = make_stack_memory(lambda lanes: 2 * lanes)


@cpu_inlined
def round_row(source, target, count):
    """Round `count` neighbouring numbers to pairs; zeros fill the last vector of pairs."""
    span, done, spare = 2 * lanes_of(source), 0, _spare_on_stack(source)
    while done + span <= count:
        _round_span(offset(source, done), offset(target, done // 2))
        done += span
    if done < count:
        for j in range(span):
            spare[j] = source[done + j] if done + j < count else 0
        _round_span(spare, offset(target, done // 2))
