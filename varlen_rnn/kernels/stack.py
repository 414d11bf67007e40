"""Memory on the stack of compiled code: kernels take scratch memory from it, because they must not allocate any.

A kernel that sums columns holds the sums of `STRIP` columns at once, and reads wider rows strip by strip.  The numbers
of columns are unsigned, because Numba checks signed sums of indices, which keeps loops from being vectorised.
"""

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from varlen_rnn.runtime.jit import body
from varlen_rnn.runtime.memory import CACHE_LINE

STRIP = np.uint64(2048)  # columns, 16 KiB of float64; strips of 512 columns read rows of 2,000 up to 1.5 times slower
FIRST = np.uint64(0)  # column


def make_stack_memory(count_of):
    """Return a function for compiled code that returns the address of memory on its caller's stack.

    The function takes a number, or the address of numbers, and reads neither.  The memory holds `count_of(size)`
    numbers of the same type, which have `size` bytes.
    """

    @intrinsic
    def stack_memory(typing, like):
        kind = like.dtype if isinstance(like, types.CPointer) else like

        def codegen(context, builder, signature, arguments):
            count = count_of(kind.bitwidth // 8)
            memory = cgutils.alloca_once(builder, context.get_value_type(kind), size=count)
            memory.align = CACHE_LINE  # a vector in two cache lines would halve the speed of sums
            return memory

        return types.CPointer(kind)(like), codegen

    return stack_memory


# Memories of a power of two would be in the same places of the cache, where sums in two of them wait for each other.
strip_on_stack = make_stack_memory(lambda size: int(STRIP) + 3 * CACHE_LINE)


@body
def width_of_strip(begin, columns):
    """Return how many columns the strip has that begins with column `begin` of `columns`; all are uint64."""
    return STRIP if columns - begin > STRIP else columns - begin
