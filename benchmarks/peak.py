"""The multiply-add rate of the processor: what its vector units do where nothing is read and nothing waits.

Each thread runs chains of multiply-adds on registers, as many as a tile of the engine's products has sums.  The chains
are independent, so the units always have work, and no operand comes from memory: no product can be faster, whoever
wrote it.  A BLAS is a slower yardstick where it does not know the processor.
"""

import functools
from concurrent.futures import ThreadPoolExecutor

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from benchmarks.clock import seconds_per_step
from varlen_rnn.products.vectors import TILE_ROWS, TILE_VECTORS, lanes

CHAINS = TILE_ROWS * TILE_VECTORS  # 12 or 24 of 16 or 32 registers; two units of latency 4 need 8
LANES = lanes(4)  # float32 numbers of a vector
STEPS = 2_000_000  # some 10 ms


def multiply_add_rate(threads):
    """Return the rate of all threads together, in operations per second; a multiply-add is two."""
    team = _team(threads)
    seconds = seconds_per_step(lambda: list(team.map(run, [STEPS] * threads, [0.5] * threads, [1.0] * threads)))
    return 2 * STEPS * CHAINS * LANES * threads / seconds


@intrinsic
def _chains(typing, steps, a, b):
    """Return the sum of all numbers of all chains after so many steps, at least 1, of `c = a b + c`.

    The chain goes through the addend, as in a tile: arm64's instruction overwrites its addend, so a chain through a
    factor would cost a copy at each step.  All numbers of the first chain begin with 3, those of the second with 4, and
    so on: LLVM computes chains that are alike once.
    """

    def codegen(context, builder, signature, arguments):
        vector, integer = ir.VectorType(ir.FloatType(), LANES), arguments[0].type
        kind = ir.FunctionType(vector, [vector] * 3)
        multiply_add = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fmuladd.v{LANES}f32")
        factors = [_spread(builder, value, vector) for value in arguments[1:]]
        before, loop, after = builder.block, builder.append_basic_block("loop"), builder.append_basic_block("after")
        builder.branch(loop)
        builder.position_at_end(loop)
        step, sums = builder.phi(integer), [builder.phi(vector) for _ in range(CHAINS)]
        next_step, grown = builder.add(step, integer(1)), [builder.call(multiply_add, [*factors, c]) for c in sums]
        builder.cbranch(builder.icmp_signed("<", next_step, arguments[0]), loop, after)
        starts = [integer(0), *(vector([float(k)] * LANES) for k in range(3, CHAINS + 3))]
        for value, start, end in zip([step, *sums], starts, [next_step, *grown], strict=True):
            value.add_incoming(start, before)
            value.add_incoming(end, loop)
        builder.position_at_end(after)
        total = functools.reduce(builder.fadd, grown)
        return functools.reduce(builder.fadd, [builder.extract_element(total, integer(k)) for k in range(LANES)])

    return types.float32(types.intp, types.float32, types.float32), codegen


def _spread(builder, number, vector):
    """Return a vector with a number in every lane."""
    value = vector(ir.Undefined)
    for lane in range(LANES):
        value = builder.insert_element(value, number, ir.IntType(32)(lane))
    return value


@numba.njit("float32(intp, float32, float32)", nogil=True)
def run(steps, a, b):
    """Run the chains; return the sum of their numbers, which nobody needs."""
    return _chains(steps, a, b)


@functools.cache
def _team(threads):
    return ThreadPoolExecutor(threads)
