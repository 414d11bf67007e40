"""Pairs of rows of a block whose decays are vectors, in LLVM IR: the scores of all pairs, and their gradients.

`score_pairs` has a lane for each row j of a pair (i, j), and goes through the numbers r of a row.  The decays D_ij of
all j follow from the row above by one product.  `differentiate_pairs` has a lane for each r, and goes through pairs.
Both always compute `SOLVED` rows.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from varlen_rnn.linear_attention.blocks import CHUNK, SOLVED
from varlen_rnn.linear_attention.writer import I64, Writer


@intrinsic
def score_pairs(typing, q, k, decays, turned, sizes, factors, targets):
    """Write M and -A of a block, and to `turned` the keys decayed to the block's end, transposed.

    `sizes` are the strides of q, k, `decays` and `turned` from row to row, and the numbers of rows and of r; `factors`
    are the scale, and the least decay that is not 0; `targets` are M and -A.
    """

    def codegen(context, builder, signature, arguments):
        q, k, decays, turned, *tuples = arguments
        sizes, (scale, tiny), targets = (cgutils.unpack_tuple(builder, items) for items in tuples)
        q_stride, k_stride, padded, width, rows, depth = sizes
        writer = Writer(builder, context.get_value_type(signature.args[0].dtype), SOLVED)
        last = builder.sub(rows, ir.Constant(I64, 1))
        sums = [[cgutils.alloca_once(builder, writer.vector) for _ in range(2)] for _ in range(SOLVED)]
        for place in (place for pair in sums for place in pair):
            builder.store(writer.constant(0.0), place)
        tiny = writer.spread(tiny)
        starts = []
        for i in range(SOLVED):  # rows behind the block's end are its last row: their scores are not used
            number = ir.Constant(I64, i)
            number = builder.select(builder.icmp_signed("<", number, rows), number, last)
            at = [writer.at(array, builder.mul(number, stride)) for array, stride in ((q, q_stride), (k, k_stride))]
            starts.append((*at, writer.at(decays, builder.mul(ir.Constant(I64, i), padded))))
        with cgutils.for_range(builder, depth) as loop:
            place = writer.at(turned, builder.mul(loop.index, width))
            keys, between, left = writer.constant(0.0), writer.constant(0.0), None
            for i, (_, k, _) in enumerate(starts):
                number = builder.load(writer.at(k, loop.index))
                keys = builder.insert_element(keys, number, ir.Constant(ir.IntType(32), i))
            for i, (q, k, a) in enumerate(starts):
                if i:
                    between = writer.decay(between, writer.spread_from(writer.at(a, loop.index)), tiny)
                one = ir.Constant(writer.scalar, 1.0)
                between = builder.insert_element(between, one, ir.Constant(ir.IntType(32), i))
                left = builder.fmul(between, keys)
                for address, place_of_sum in zip((q, k), sums[i], strict=True):
                    weight = writer.spread_from(writer.at(address, loop.index))
                    builder.store(writer.add(builder.load(place_of_sum), weight, left), place_of_sum)
            writer.store(left, place)
        factors = writer.spread(scale), writer.constant(-1.0)
        for i, pair in enumerate(sums):
            for place, target, factor in zip(pair, targets, factors, strict=True):
                writer.store(builder.fmul(builder.load(place), factor), writer.at(target, i * CHUNK))
        return context.get_dummy_value()

    return types.void(q, k, decays, turned, sizes, factors, targets), codegen


@intrinsic
def differentiate_pairs(typing, q, k, decays, padded, scores, tiny, gradients):
    """Add the terms of all pairs of rows to the gradients of queries, keys and decays; rows are `padded` apart.

    `scores` are the gradients of M, times the scale, and of -A; both are 0 for rows behind the block's end.
    """

    def codegen(context, builder, signature, arguments):
        q, k, decays, padded, scores, tiny, gradients = arguments
        (d_scores, d_of_keys), gradients = (cgutils.unpack_tuple(builder, x) for x in (scores, gradients))
        scalar = context.get_value_type(signature.args[0].dtype)
        writer = Writer(builder, scalar)
        tiny, step, begin = writer.spread(tiny), ir.Constant(I64, writer.vector.count), ir.Constant(I64, 0)
        with cgutils.for_range_slice(builder, begin, padded, step, I64) as (r, _):
            places = [builder.add(builder.mul(ir.Constant(I64, i), padded), r) for i in range(SOLVED)]
            queries, keys, factors = ([writer.load(writer.at(x, at)) for at in places] for x in (q, k, decays))
            d_q, d_k, d_g = ([writer.load(writer.at(x, at)) for at in places] for x in gradients)
            weight = lambda scores, i, j: writer.spread_from(writer.at(scores, i * CHUNK + j))
            for j in range(SOLVED):
                between, passing = {j: writer.constant(1.0)}, writer.constant(0.0)
                for i in range(j + 1, SOLVED):
                    between[i] = writer.decay(between[i - 1], factors[i], tiny)
                for i in reversed(range(j + 1, SOLVED)):
                    m, a = weight(d_scores, i, j), builder.fneg(weight(d_of_keys, i, j))
                    decayed = builder.fmul(keys[j], between[i])
                    of_row = writer.add(builder.fmul(m, queries[i]), a, keys[i])
                    d_k[j] = writer.add(d_k[j], of_row, between[i])
                    passing = writer.add(passing, of_row, decayed)
                    d_g[i] = builder.fadd(d_g[i], passing)
                    d_q[i], d_k[i] = writer.add(d_q[i], m, decayed), writer.add(d_k[i], a, decayed)
                m = weight(d_scores, j, j)
                d_q[j], d_k[j] = writer.add(d_q[j], m, keys[j]), writer.add(d_k[j], m, queries[j])
            for target, found in zip(gradients, (d_q, d_k, d_g), strict=True):
                for at, value in zip(places, found, strict=True):
                    writer.store(value, writer.at(target, at))
        return context.get_dummy_value()

    return types.void(q, k, decays, padded, scores, tiny, gradients), codegen
