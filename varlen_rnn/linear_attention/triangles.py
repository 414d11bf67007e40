"""The products of a diagonal block of scores with rows of values, in LLVM IR: eight rows stay in registers.

With weights w and three rows, `solve_lower` computes y_0 = t_0, y_1 = t_1 + w_10 y_0, y_2 = t_2 + w_20 y_0 + w_21 y_1,
where each row is multiplied by its factor before later rows read it.  `solve_upper` begins at the last row.
`add_lower` adds rows of another block, each row's own row included.

Every element is one chain of multiply-adds in the order of the rows.  A row beyond the end of a chunk changes no other
row of `solve_lower` and `add_lower`, so blocks are never cut.
"""

import functools

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from varlen_rnn.linear_attention.blocks import CHUNK, SOLVED
from varlen_rnn.products.vectors import TILE_VECTORS, lanes, load_vector, vector_at


class _Block:
    """Writes the instructions of a block: rows of one panel, which are a panel's width apart, and their weights."""

    def __init__(self, builder, scalar, weights):
        self.builder, self.weights = builder, weights
        self.scalar_bytes = 4 if isinstance(scalar, ir.FloatType) else 8
        self.vector = ir.VectorType(scalar, lanes(self.scalar_bytes))

    def addresses(self, at):
        """Return the address of each vector of a row, for each row."""
        return [
            [vector_at(self.builder, at, self.vector, i * TILE_VECTORS + v) for v in range(TILE_VECTORS)]
            for i in range(SOLVED)
        ]

    def load(self, addresses):
        return [load_vector(self.builder, address, self.scalar_bytes) for address in addresses]

    def store(self, values, addresses):
        for value, address in zip(values, addresses, strict=True):
            self.builder.store(value, address).align = self.scalar_bytes

    def spread(self, address):
        """Load a number into every lane of a vector."""
        undefined, lane = ir.Constant(self.vector, ir.Undefined), ir.IntType(32)
        first = self.builder.insert_element(undefined, self.builder.load(address), ir.Constant(lane, 0))
        everywhere = ir.Constant(ir.VectorType(lane, self.vector.count), [0] * self.vector.count)
        return self.builder.shuffle_vector(first, undefined, everywhere)

    def add(self, sums, i, j, row):
        """Return the sums of row `i` after row `j` is added, times its weight."""
        kind = ir.FunctionType(self.vector, [self.vector] * 3)
        name = f"llvm.fmuladd.v{self.vector.count}f{self.scalar_bytes * 8}"
        function = cgutils.get_or_insert_function(self.builder.module, kind, name)
        weight = self.spread(self.builder.gep(self.weights, [ir.Constant(ir.IntType(64), i * CHUNK + j)]))
        return [self.builder.call(function, [weight, x, total]) for x, total in zip(row, sums, strict=True)]


def _write_sums(block, source, target, factors):
    """Add to each row of the target the rows of the source up to itself."""
    rows = [block.load(row) for row in source]
    for i, row in enumerate(target):
        sums = block.load(row)
        for j in range(i + 1):
            sums = block.add(sums, i, j, rows[j])
        block.store(sums, row)


def _write_solve(block, source, target, factors, *, upper):
    """Solve in place in the source; the target gets the rows before they are multiplied by their factors."""
    rows, done = [block.load(row) for row in source], []
    for i in reversed(range(SOLVED)) if upper else range(SOLVED):
        sums = rows[i]
        for j in sorted(done):
            sums = block.add(sums, i, j, rows[j])
        block.store(sums, target[i])
        factor = block.spread(block.builder.gep(factors, [ir.Constant(ir.IntType(64), i)]))
        rows[i] = [block.builder.fmul(value, factor) for value in sums]
        block.store(rows[i], source[i])
        done.append(i)


def _make(write):
    """Return an intrinsic of the addresses of weights, of the source, of the target, and of a factor for each row."""

    @intrinsic
    def triangle(typing, weights, source, target, factors):
        def codegen(context, builder, signature, arguments):
            weights, *others, factors = arguments
            block = _Block(builder, context.get_value_type(signature.args[0].dtype), weights)
            write(block, *map(block.addresses, others), factors)
            return context.get_dummy_value()

        return types.void(weights, source, target, factors), codegen

    return triangle


add_lower = _make(_write_sums)
solve_lower = _make(functools.partial(_write_solve, upper=False))
solve_upper = _make(functools.partial(_write_solve, upper=True))
