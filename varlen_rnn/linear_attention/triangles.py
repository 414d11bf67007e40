"""The products of a diagonal block of scores with rows of values, in LLVM IR: eight rows stay in registers.

With weights w and three rows, `solve_lower` computes y_0 = t_0, y_1 = t_1 + w_10 y_0, y_2 = t_2 + w_20 y_0 + w_21 y_1,
where each row is multiplied by its factor before later rows read it.  `solve_upper` begins at the last row.
`add_lower` adds rows of another block, each row's own row included.

Every element is one chain of multiply-adds in the order of the rows.  A row beyond the end of a chunk changes no other
row of `solve_lower` and `add_lower`, so blocks are never cut.
"""

import functools

from numba import types
from numba.extending import intrinsic

from varlen_rnn.linear_attention.blocks import CHUNK, SOLVED
from varlen_rnn.linear_attention.writer import Writer
from varlen_rnn.products.vectors import TILE_VECTORS


class _Block(Writer):
    """Writes the instructions of a block: rows of one panel, which are a panel's width apart, and their weights."""

    def __init__(self, builder, scalar, weights):
        super().__init__(builder, scalar)
        self.weights = weights

    def addresses(self, at):
        """Return the address of each vector of a row, for each row."""
        width = TILE_VECTORS * self.vector.count
        return [self.each_of(self.at(at, i * width), width) for i in range(SOLVED)]

    def load_row(self, addresses):
        return [self.load(address) for address in addresses]

    def store_row(self, values, addresses):
        for value, address in zip(values, addresses, strict=True):
            self.store(value, address)

    def add_row(self, sums, i, j, row):
        """Return the sums of row `i` after row `j` is added, times its weight."""
        weight = self.spread_from(self.at(self.weights, i * CHUNK + j))
        return [self.add(total, weight, x) for x, total in zip(row, sums, strict=True)]


def _write_sums(block, source, target, factors):
    """Add to each row of the target the rows of the source up to itself."""
    rows = [block.load_row(row) for row in source]
    for i, row in enumerate(target):
        sums = block.load_row(row)
        for j in range(i + 1):
            sums = block.add_row(sums, i, j, rows[j])
        block.store_row(sums, row)


def _write_solve(block, source, target, factors, *, upper):
    """Solve in place in the source; the target gets the rows before they are multiplied by their factors."""
    rows, done = [block.load_row(row) for row in source], []
    for i in reversed(range(SOLVED)) if upper else range(SOLVED):
        sums = rows[i]
        for j in sorted(done):
            sums = block.add_row(sums, i, j, rows[j])
        block.store_row(sums, target[i])
        factor = block.spread_from(block.at(factors, i))
        rows[i] = [block.builder.fmul(value, factor) for value in sums]
        block.store_row(rows[i], source[i])
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
