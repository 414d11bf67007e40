"""Code for the host's vectors, in LLVM IR: shapes of tiles, copies of neighbouring numbers, prefetches, transposes.

Addresses are typed pointers, as `pointer` returns them.  Compiled code reads and writes `address[i]`, unchecked.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from varlen_rnn.kernels import stack
from varlen_rnn.runtime.cache import PROCESSOR
from varlen_rnn.runtime.jit import cpu_inlined
from varlen_rnn.runtime.memory import CACHE_LINE

VECTOR_BYTES = PROCESSOR.vector_bytes
WIDE = VECTOR_BYTES == 64  # whether a vector is as long as a cache line of x86
RUN_BYTES = 256  # bytes of a run (neighbouring numbers that are moved at once), a multiple of a panel row's bytes
FOLD_BYTES = min(64, PROCESSOR.tile[1] * VECTOR_BYTES)  # of a vector of `sum_of`
L2_ELEMENTS = PROCESSOR.l2_bytes // 4  # packed weights of more elements are assumed not to stay in L2
TILE_ROWS, TILE_VECTORS = PROCESSOR.tile  # the shape of a tile: rows, and vectors of a row


def panel_width(dtype):
    """Return how many columns a panel has, for numbers of a data type."""
    return TILE_VECTORS * VECTOR_BYTES // np.dtype(dtype).itemsize


def lanes(scalar_bytes):
    """Return how many numbers of `scalar_bytes` bytes a vector holds."""
    return VECTOR_BYTES // scalar_bytes


@intrinsic
def pointer(typing, array, start):
    """Return the address of entry `start` of a C-contiguous array.

    The caller must keep the array alive until after the last use of the address: Numba frees a local array after the
    array's own last use.
    """

    def codegen(context, builder, signature, arguments):
        array = context.make_array(signature.args[0])(context, builder, value=arguments[0])
        return builder.gep(array.data, [arguments[1]])

    return types.CPointer(array.dtype)(array, types.intp), codegen


@intrinsic
def offset(typing, address, count):
    """Return the address `count` elements further."""

    def codegen(context, builder, signature, arguments):
        return builder.gep(arguments[0], [arguments[1]])

    return address(address, types.intp), codegen


@intrinsic
def halves_at(typing, address):
    """Return the address of the two halves, 16 bits each, of the numbers of float32 at an address."""

    def codegen(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(16).as_pointer())

    return types.CPointer(types.uint16)(address), codegen


def make_stack_memory(count_of):
    """Return a function as `kernels.stack` makes it, for `count_of(lanes)` numbers."""
    return stack.make_stack_memory(lambda size: count_of(lanes(size)))


@intrinsic
def lanes_of(typing, address):
    """Return how many numbers of the type at an address a vector holds."""
    count = lanes(address.dtype.bitwidth // 8)
    return types.intp(address), lambda context, builder, signature, arguments: ir.Constant(ir.IntType(64), count)


@cpu_inlined
def width_of(address):
    """Return the `panel_width` for the type of the numbers at an address."""
    return TILE_VECTORS * lanes_of(address)


def emit_prefetch(builder, address, to_write, cache):
    """Write the instruction that prefetches the cache line at an address into L1 or L2, to read or to write it."""
    line, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [line, flag, flag, flag])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    flags = [ir.Constant(flag, number) for number in (int(to_write), 4 - cache, 1)]
    builder.call(function, [builder.bitcast(address, line), *flags])


def _make_prefetch(to_write):
    """Return a function that prefetches the cache line at an address, to be read or overwritten a little later."""

    @intrinsic
    def prefetch(typing, address):
        def codegen(context, builder, signature, arguments):
            emit_prefetch(builder, arguments[0], to_write, cache=1)
            return context.get_dummy_value()

        return types.void(address), codegen

    return prefetch


prefetch_to_read, prefetch_to_write = _make_prefetch(to_write=False), _make_prefetch(to_write=True)


@intrinsic
def prefetch_row(typing, address):
    """Prefetch a panel's row, to be read a little later."""

    def codegen(context, builder, signature, arguments):
        scalar_bytes = signature.args[0].dtype.bitwidth // 8
        for first in range(0, TILE_VECTORS * lanes(scalar_bytes), CACHE_LINE // scalar_bytes):
            at = builder.gep(arguments[0], [ir.Constant(ir.IntType(64), first)])
            emit_prefetch(builder, at, to_write=False, cache=1)
        return context.get_dummy_value()

    return types.void(address), codegen


@intrinsic
def vectorise_widely(typing):
    """Let LLVM use vectors of 64 bytes in the calling function; by default it prefers 32."""

    def codegen(context, builder, signature, arguments):
        if WIDE:  # `set.add` inserts the text, because `add` of llvmlite refuses attributes with a value
            set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def optimise_for_size(typing):
    """Keep LLVM from vectorising or unrolling loops of the calling function, because that makes compiling slow."""

    def codegen(context, builder, signature, arguments):
        builder.function.attributes.add("optsize")
        return context.get_dummy_value()

    return types.void(), codegen


def vector_at(builder, address, kind, number=0):
    """Return the address of vector `number` of type `kind`, counted from a scalar's address."""
    if number:
        address = builder.gep(address, [ir.Constant(ir.IntType(64), number * kind.count)])
    return builder.bitcast(address, kind.as_pointer())


def load_vector(builder, address, scalar_bytes):
    """Load the vector at an address that is aligned to scalars only."""
    value = builder.load(address)
    value.align = scalar_bytes
    return value


class _Mover:
    """Writes moves of neighbouring numbers to another address: copies, additions, or stores that bypass the caches."""

    def __init__(self, context, builder, like, add=False, non_temporal=False):
        self.builder, self.add, self.non_temporal = builder, add, non_temporal
        self.scalar_bytes = like.dtype.bitwidth // 8
        self.kind = ir.VectorType(context.get_value_type(like.dtype), lanes(self.scalar_bytes))

    def move(self, source, target, num_vectors):
        """Write the move of `num_vectors` vectors; the target of a non-temporal store must be aligned to a vector."""
        here, there = ([vector_at(self.builder, a, self.kind, v) for v in range(num_vectors)] for a in (source, target))
        values = [load_vector(self.builder, address, self.scalar_bytes) for address in here]
        if self.add:
            before = [load_vector(self.builder, address, self.scalar_bytes) for address in there]
            values = [self.builder.fadd(*pair) for pair in zip(before, values, strict=True)]
        for address, value in zip(there, values, strict=True):
            store = self.builder.store(value, address)
            store.align = VECTOR_BYTES if self.non_temporal else self.scalar_bytes
            if self.non_temporal:
                one = ir.Constant(ir.IntType(32), 1)
                store.set_metadata("nontemporal", self.builder.module.add_metadata([one]))

    def move_few(self, source, target, count):
        """Write the move of `count` neighbouring numbers without vectors; `count` is known only when the code runs."""
        if self.add:
            with cgutils.for_range(self.builder, count) as loop:
                here, there = (self.builder.gep(address, [loop.index]) for address in (source, target))
                self.builder.store(self.builder.fadd(self.builder.load(there), self.builder.load(here)), there)
        else:  # LLVM would vectorise a loop, which takes long to compile
            cgutils.raw_memcpy(self.builder, target, source, count, self.scalar_bytes)

    def move_run(self, source, target, count, whole):
        """Write the move of `count` neighbouring numbers, fast if they are exactly `whole` vectors."""
        usual = ir.Constant(ir.IntType(64), whole * self.kind.count)
        with self.builder.if_else(self.builder.icmp_signed("==", count, usual), likely=True) as (then, otherwise):
            with then:
                self.move(source, target, whole)
            with otherwise:
                self.move_few(source, target, count)


def _make_planes(whole, **options):
    """Return an intrinsic that copies neighbouring numbers in several planes, fast if they fill `whole` vectors."""

    @intrinsic
    def copy_planes(typing, num_planes, source, source_step, target, target_step, count):
        def codegen(context, builder, signature, arguments):
            num_planes, source, source_step, target, target_step, count = arguments
            mover = _Mover(context, builder, signature.args[1], **options)
            with cgutils.for_range(builder, num_planes) as loop:
                here = builder.gep(source, [builder.mul(loop.index, source_step)])
                there = builder.gep(target, [builder.mul(loop.index, target_step)])
                if mover.non_temporal:
                    mover.move(here, there, whole)
                else:
                    mover.move_run(here, there, count, whole)
            return context.get_dummy_value()

        number = types.intp
        return types.void(number, source, number, target, number, number), codegen

    return copy_planes


# `copy_units` copies at most a panel's units of each plane, `copy_runs` at most `RUN_BYTES` bytes.  Their arguments are
# `(num_planes, source, source_step, target, target_step, count)`, with steps from plane to plane in elements.
# `store_units_non_temporal` writes whole panels past the caches.
copy_units, copy_runs = _make_planes(TILE_VECTORS), _make_planes(RUN_BYTES // VECTOR_BYTES)
store_units_non_temporal = _make_planes(TILE_VECTORS, non_temporal=True)


def _make_move(num_vectors, **options):
    """Return an intrinsic that moves `num_vectors(lanes)` vectors from an address to another."""

    @intrinsic
    def move(typing, source, target):
        def codegen(context, builder, signature, arguments):
            mover = _Mover(context, builder, signature.args[0], **options)
            mover.move(*arguments, num_vectors(mover.kind.count))
            return context.get_dummy_value()

        return types.void(source, target), codegen

    return move


add_panel = _make_move(lambda lanes: TILE_VECTORS, add=True)
_copy_span = _make_move(lambda lanes: -(-TILE_ROWS // lanes))


@intrinsic
def _add_span(typing, source, sums):
    """Add `span_of_tile` neighbouring numbers to as many sums in float64."""

    def codegen(context, builder, signature, arguments):
        mover = _Mover(context, builder, signature.args[0])
        wide = ir.VectorType(ir.DoubleType(), mover.kind.count)
        for v in range(-(-TILE_ROWS // mover.kind.count)):
            value = load_vector(builder, vector_at(builder, arguments[0], mover.kind, v), mover.scalar_bytes)
            value = value if mover.kind == wide else builder.fpext(value, wide)
            there = vector_at(builder, arguments[1], wide, v)
            builder.store(builder.fadd(load_vector(builder, there, 8), value), there).align = 8
        return context.get_dummy_value()

    return types.void(source, types.CPointer(types.float64)), codegen


@intrinsic
def add_run(typing, source, target, count):
    """Add `count` neighbouring numbers, usually `RUN_BYTES` bytes, to the numbers at `target`."""

    def codegen(context, builder, signature, arguments):
        _Mover(context, builder, signature.args[0], add=True).move_run(*arguments, RUN_BYTES // VECTOR_BYTES)
        return context.get_dummy_value()

    return types.void(source, target, types.intp), codegen


def fold_lanes(builder, value, write):
    """Join the halves of a vector, and again the halves of the result, until one number is left; return it."""
    half = value.type.count
    while half > 1:
        half //= 2
        low, high = (
            builder.shuffle_vector(value, value, ir.Constant(ir.VectorType(ir.IntType(32), half), order))
            for order in (list(range(half)), list(range(half, 2 * half)))
        )
        value = write(builder, low, high)
    return builder.extract_element(value, ir.Constant(ir.IntType(64), 0))


def _make_fold(write, from_zero):
    """Return an intrinsic that reduces `count` numbers to one; `count` is a positive multiple of `folded_at_once`.

    Vectors of 64 bytes are joined lane by lane; then the halves of the result are joined until one number is left.  So
    the order depends on `count` alone, on every host whose panels have 64 bytes or more: all but x86-64 without AVX.
    With `from_zero`, the first vector is added to 0: so zeros behind the numbers, as panels have them, change no bits.
    """

    @intrinsic
    def fold(typing, address, count):
        def codegen(context, builder, signature, arguments):
            (address, count), scalar_bytes = arguments, signature.args[0].dtype.bitwidth // 8
            kind = ir.VectorType(context.get_value_type(signature.return_type), FOLD_BYTES // scalar_bytes)
            step = ir.Constant(ir.IntType(64), kind.count)

            def vector_from(address):
                return load_vector(builder, vector_at(builder, address, kind), scalar_bytes)

            first = vector_from(address)
            first = write(builder, ir.Constant(kind, [0.0] * kind.count), first) if from_zero else first
            total = cgutils.alloca_once_value(builder, first)
            with cgutils.for_range_slice(builder, step, count, step, inc=True) as (at, _):
                here = vector_from(builder.gep(address, [at]))
                builder.store(write(builder, builder.load(total), here), total)
            return fold_lanes(builder, builder.load(total), write)

        return address.dtype(address, types.intp), codegen

    return fold


sum_of = _make_fold(lambda builder, a, b: builder.fadd(a, b), True)
largest_of = _make_fold(lambda builder, a, b: builder.select(builder.fcmp_ordered(">", b, a), b, a), False)


@intrinsic
def folded_at_once(typing, address):
    """Return how many numbers `sum_of` loads at once: the same on every host with AVX, and on arm64."""
    count = FOLD_BYTES // (address.dtype.bitwidth // 8)
    return types.intp(address), lambda context, builder, signature, arguments: ir.Constant(ir.IntType(64), count)


@cpu_inlined
def span_of_tile(like):
    """Return the rows of a tile, rounded up to whole vectors of numbers."""
    lanes = lanes_of(like)
    return (TILE_ROWS + lanes - 1) // lanes * lanes


@cpu_inlined
def copy_and_add_span(source, target, sums):
    """Copy `span_of_tile` neighbouring numbers, and add them to as many sums in float64."""
    _copy_span(source, target)
    _add_span(source, sums)


@intrinsic
def least(typing, a, b):
    """Return the smaller of two integers; Numba takes long to compile Python's `min`."""

    def codegen(context, builder, signature, arguments):
        return builder.select(builder.icmp_signed("<", *arguments), *arguments)

    return types.intp(types.intp, types.intp), codegen


@intrinsic
def transpose_block(typing, source, source_step, target, target_step):
    """Transpose a square block of `lanes_of` vectors; a step is the number of elements from vector to vector."""
    scalar_bytes = source.dtype.bitwidth // 8
    count = lanes(scalar_bytes)

    def interleave(builder, low, high, half):
        order = [lane // 2 + half * count // 2 + lane % 2 * count for lane in range(count)]
        return builder.shuffle_vector(low, high, ir.Constant(ir.VectorType(ir.IntType(32), count), order))

    def codegen(context, builder, signature, arguments):
        source, source_step, target, target_step = arguments
        kind, index = ir.VectorType(context.get_value_type(signature.args[0].dtype), count), ir.IntType(64)

        def row_at(address, step, number):
            address = builder.gep(address, [builder.mul(step, ir.Constant(index, number))])
            return builder.bitcast(address, kind.as_pointer())

        block = [load_vector(builder, row_at(source, source_step, number), scalar_bytes) for number in range(count)]
        for _ in range(count.bit_length() - 1):
            pairs = zip(block[: count // 2], block[count // 2 :], strict=True)
            block = [interleave(builder, low, high, half) for low, high in pairs for half in (0, 1)]
        for number, value in enumerate(block):
            builder.store(value, row_at(target, target_step, number)).align = scalar_bytes
        return context.get_dummy_value()

    return types.void(source, types.intp, target, types.intp), codegen
