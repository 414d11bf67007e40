"""Sums and means of neighbouring numbers, added in pairs of halves: the order, and so the bits, of `np.add.reduce`.

Up to 128 numbers are summed in eight lanes: lane k adds the numbers k, k + 8, k + 16 ..., and then the lanes are added
in pairs.  More numbers are cut into halves, the first of a multiple of 8 numbers, whose sums are added.  So 300 numbers
are summed as 144 and 156, and these as 72 and 72, 72 and 84.  The error grows with the logarithm of their number.

Kernels trust their indices, and check no bounds: see `varlen_rnn.kernels`.

Source: the pairwise summation of NumPy; Higham (1993), "The accuracy of floating point summation".
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from varlen_rnn.kernels.stack import make_stack_memory
from varlen_rnn.runtime.jit import body, cpu_inlined, cpu_kernel

_LANES = 8
_BLOCK = 128  # numbers that are summed without halves
_on_stack = make_stack_memory(lambda size: 64)  # for halves of halves; more than any array has


def _of_lanes(combine, number_of_lanes=_LANES):
    """Return a function for compiled code that reduces neighbours in lanes: at least one for each, and a multiple.

    `combine(builder, a, b)` writes the code that combines two numbers, or two vectors of numbers.  It is written in
    LLVM's language because Numba does not turn eight scalars into a vector.
    """

    def write(context, builder, signature, arguments):
        array, first, count = arguments
        kind, number = signature.args[0], context.get_data_type(signature.return_type)
        data, word = context.make_array(kind)(context, builder, array).data, ir.IntType(64)
        lanes, size = ir.VectorType(number, number_of_lanes).as_pointer(), context.get_abi_sizeof(number)

        def lanes_at(place):
            return builder.load(builder.bitcast(builder.gep(data, [place]), lanes), align=size)

        held, step = cgutils.alloca_once_value(builder, lanes_at(first)), ir.Constant(word, number_of_lanes)
        with cgutils.for_range_slice(builder, step, count, step, intp=word) as (index, _):
            builder.store(combine(builder, builder.load(held), lanes_at(builder.add(first, index))), held)
        places = [ir.Constant(ir.IntType(32), k) for k in range(number_of_lanes)]
        parts = [builder.extract_element(builder.load(held), place) for place in places]
        while len(parts) > 1:
            parts = [combine(builder, *parts[k : k + 2]) for k in range(0, len(parts), 2)]
        return parts[0]

    return intrinsic(lambda typing, x, first, count: (x.dtype(x, types.intp, types.intp), write))


def extreme_of_lanes(sign, number_of_lanes):
    """Return `_of_lanes` of the extreme of floats or signed integers: the largest if `sign` is ">", or NaN."""

    def combine(builder, best, value):
        if isinstance(getattr(best.type, "element", best.type), ir.IntType):
            return builder.select(builder.icmp_signed(sign, value, best), value, best)
        is_nan = builder.fcmp_unordered("uno", value, value)
        return builder.select(builder.or_(builder.fcmp_ordered(sign, value, best), is_nan), value, best)

    return _of_lanes(combine, number_of_lanes)


def _larger(builder, a, b):
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


_sum_of_lanes = _of_lanes(lambda builder, a, b: builder.fadd(a, b))
_highest_of_lanes = _of_lanes(_larger)


@body
def _check_last(x, first, count):
    """Raise if `VARLEN_RNN_CHECK` is 1 and the last of `count` neighbours is not there, since lanes are not checked."""
    if count:
        x[first + count - 1]


@cpu_inlined
def _sum_of_block(x, first, count):
    """Return the sum of up to `_BLOCK` neighbours."""
    whole = count - count % _LANES
    _check_last(x, first, whole)
    total = _sum_of_lanes(x, first, whole) if whole else -x.dtype.type(0)
    for i in range(first + whole, first + count):
        total += x[i]
    return total


@cpu_kernel
def pairwise_sum(x, first, count):
    """Return the sum of `count` neighbours in `x` (n,), C-contiguous floats, from `x[first]` on; -0 if there are none.

    Examples
    --------
    >>> pairwise_sum(np.arange(6.0), 1, 3)
    6.0
    """
    if count <= _BLOCK:
        return _sum_of_block(x, first, count)
    # Without a recursion, which Numba cannot load from a disk cache.  At each depth, `later` counts the numbers of the
    # second half, or is 0 if the second half is being summed; then `sums` has the sum of the first half.
    later, sums, depth = _on_stack(first), _on_stack(x[first]), 0
    while True:
        while count > _BLOCK:
            half = count // 2
            half -= half % _LANES
            later[depth], count, depth = count - half, half, depth + 1
        total = _sum_of_block(x, first, count)
        first += count
        while depth and not later[depth - 1]:
            depth -= 1
            total = sums[depth] + total
        if not depth:
            return total
        sums[depth - 1], count, later[depth - 1] = total, later[depth - 1], 0


@cpu_kernel
def highest_of(x, first, count):
    """Return the highest of `count` neighbours, at least one, in `x`, as `pairwise_sum`; any number if one is NaN.

    Examples
    --------
    >>> highest_of(np.arange(6.0), 1, 3)
    3.0
    """
    whole = count - count % _LANES
    _check_last(x, first, whole)
    highest = _highest_of_lanes(x, first, whole) if whole else x[first]
    for i in range(first + whole, first + count):
        highest = x[i] if x[i] > highest else highest
    return highest


@cpu_kernel
def mean_of_neighbours(x, count, divisor, out):
    """Compute the sum of each `count` neighbours in `x`, divided by `divisor`.

    Parameters
    ----------
    x : (n * count,) C-contiguous, float32 or float64
    count : int
    divisor : int
        For example `count`, for means, or 1, for sums.
    out : (n,) the data type of `x`; written

    Examples
    --------
    >>> out = np.empty(2); mean_of_neighbours(np.arange(6.0), 3, 3, out); out
    array([1., 4.])
    """
    zero, number = out.dtype.type(0), out.dtype.type(divisor)
    for i in range(out.shape[0]):
        out[i] = (zero + pairwise_sum(x, i * count, count)) / number
