"""Instructions for vectors of numbers, in LLVM IR, and passes over the rows of a panel.

A loop over a panel's row has a length that LLVM knows.  It would unroll the loop into instructions for single numbers.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from varlen_rnn.products.vectors import TILE_VECTORS, lanes

I64 = ir.IntType(64)


class Writer:
    """Writes instructions for vectors; `count` is how many numbers a vector has, as many as a register by default."""

    def __init__(self, builder, scalar, count=None):
        self.bytes = 4 if isinstance(scalar, ir.FloatType) else 8
        self.builder, self.scalar = builder, scalar
        self.vector = ir.VectorType(scalar, count or lanes(self.bytes))

    def constant(self, value):
        """Return a vector whose lanes all have a number that is known now."""
        return ir.Constant(self.vector, [value] * self.vector.count)

    def at(self, address, *offsets):
        """Return the address that is the sum of some offsets further; each is a value of LLVM or an integer."""
        for count in offsets:
            address = self.builder.gep(address, [ir.Constant(I64, count) if isinstance(count, int) else count])
        return address

    def each_of(self, address, count):
        """Return the addresses of the vectors that hold `count` neighbouring numbers."""
        return [self.at(address, number) for number in range(0, count, self.vector.count)]

    def _vector_at(self, address):
        return self.builder.bitcast(address, self.vector.as_pointer())

    def load(self, address):
        """Load the vector at the address of a number."""
        value = self.builder.load(self._vector_at(address))
        value.align = self.bytes
        return value

    def load_where(self, condition, address):
        """Load the lanes where a condition holds; the others are 0, and their memory is not read."""
        count, bits = self.vector.count, self.bytes * 8
        place = self._vector_at(address)
        kind = ir.FunctionType(self.vector, [place.type, ir.IntType(32), condition.type, self.vector])
        name = f"llvm.masked.load.v{count}f{bits}.p0"
        function = cgutils.get_or_insert_function(self.builder.module, kind, name)
        align = ir.Constant(ir.IntType(32), self.bytes)
        return self.builder.call(function, [place, align, condition, self.constant(0.0)])

    def store(self, value, address):
        """Store a vector at the address of a number."""
        self.builder.store(value, self._vector_at(address)).align = self.bytes

    def spread(self, number):
        """Return a vector whose lanes all have a number, or an integer."""
        lane, kind = ir.IntType(32), ir.VectorType(number.type, self.vector.count)
        undefined, everywhere = ir.Constant(kind, ir.Undefined), ir.VectorType(lane, self.vector.count)
        first = self.builder.insert_element(undefined, number, ir.Constant(lane, 0))
        return self.builder.shuffle_vector(first, undefined, ir.Constant(everywhere, [0] * self.vector.count))

    def spread_from(self, address):
        """Load a number into every lane of a vector."""
        return self.spread(self.builder.load(address))

    def lanes_from(self, first):
        """Return a vector of the integers `first`, `first + 1`, and so on."""
        return ir.Constant(ir.VectorType(I64, self.vector.count), [first + lane for lane in range(self.vector.count)])

    def where(self, condition, value, otherwise=0.0):
        """Return the lanes of a vector where a condition holds, and a constant in the others."""
        return self.builder.select(condition, value, self.constant(otherwise))

    def add(self, total, a, b):
        """Return `total + a * b`."""
        kind = ir.FunctionType(self.vector, [self.vector] * 3)
        name = f"llvm.fmuladd.v{self.vector.count}f{self.bytes * 8}"
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind, name), [a, b, total])

    def decay(self, value, factor, tiny):
        """Return `value * factor`, or 0 if it is below `tiny`."""
        value = self.builder.fmul(value, factor)
        return self.builder.select(self.builder.fcmp_ordered("<", value, tiny), self.constant(0.0), value)


def _make_pass(combine):
    """Return an intrinsic that overwrites a panel's row, given a row, and a number or another row."""

    @intrinsic
    def pass_over(typing, target, row, other):
        def codegen(context, builder, signature, arguments):
            target, row, other = arguments
            writer = Writer(builder, context.get_value_type(signature.args[0].dtype))
            is_row, count = isinstance(signature.args[2], types.CPointer), TILE_VECTORS * writer.vector.count
            others = writer.each_of(other, count) if is_row else [writer.spread(other)] * TILE_VECTORS
            for to, x, y in zip(writer.each_of(target, count), writer.each_of(row, count), others, strict=True):
                writer.store(combine(writer, writer.load(to), writer.load(x), writer.load(y) if is_row else y), to)
            return context.get_dummy_value()

        return types.void(target, row, other if isinstance(other, types.CPointer) else target.dtype), codegen

    return pass_over


# `(target, row, other)`: the row times the other, such as a number; the row minus the target times the other; the
# target plus the row times the other.
multiply_row = _make_pass(lambda writer, target, row, other: writer.builder.fmul(row, other))
subtract_from_row = _make_pass(lambda writer, target, row, other: writer.add(row, writer.builder.fneg(other), target))
add_to_row = _make_pass(lambda writer, target, row, other: writer.add(target, row, other))
