"""The tile of products on CUDA: a block of threads computes a rectangle of results from operands in shared memory.

If each thread read its own operands, it would read two numbers for each multiply-add.  Here the 64 threads of a block
go through k in stages of 16: they copy the operands of a stage to shared memory, and each thread adds products of these
to its own results in registers.  With a tile of 64 x 64, a thread has 8 x 8 results.  For each k, it reads 8 + 8
numbers of shared memory for 64 multiply-adds: a quarter of a number for each.  The block reads 64 + 64 numbers of
global memory for 64 x 64 multiply-adds: one number for 32.

Every result is one chain of multiply-adds in the order of k, in any tile.  A kernel of all threads of a block:

    for each stage:
        cuda.syncthreads()  # all have read the stage before
        copy both operands of the stage: `turned` or `straight`
        cuda.syncthreads()  # all have copied
        multiply the stage: `products_of`
"""

import functools
from typing import NamedTuple

from numba import uint32, uint64

from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.jit import body

THREADS = 64  # threads of a block
DEPTH = 16  # values of k in each stage
NEIGHBOURS = 4  # side of a thread's square of results, whose operands are 16 bytes in float32
SQUARES = 8 * NEIGHBOURS  # side of the square that the squares of 8 x 8 threads fill
ALIGNMENT = 16  # bytes by which shared memory is aligned, so that one load reads four neighbours
_PADDING = 4  # unused numbers after a row of shared memory, so that `turned` has at most two threads write to one bank


class Tile(NamedTuple):
    """The rectangle of results that a block of threads computes."""

    below: int  # how many 4 x 4 squares of results a thread computes below each other
    beside: int  # how many such squares it computes beside each other

    @property
    def rows(self):
        """The rows of a tile."""
        return self.below * SQUARES

    @property
    def columns(self):
        """The columns of a tile."""
        return self.beside * SQUARES

    @property
    def own(self):
        """How many rows and columns of a tile a thread computes."""
        return self.below * NEIGHBOURS, self.beside * NEIGHBOURS

    def count(self, rows, columns):
        """Return how many tiles cover results of a size."""
        return -(-rows // self.rows) * -(-columns // self.columns)


LARGE, WIDE, SMALL = Tile(2, 2), Tile(2, 1), Tile(1, 1)


def tile_for(rows, columns):
    """Return LARGE if results have more than 32 rows and columns, and two tiles per multiprocessor; otherwise SMALL."""
    enough = 2 * cuda.driver.limits.multiprocessors
    return LARGE if min(rows, columns) > SQUARES and LARGE.count(rows, columns) >= enough else SMALL


def pitch_of(length):
    """Return the distance in shared memory from one k to the next, in numbers, for `length` rows or columns."""
    return length + _PADDING


def size_of_stage(length):
    """Return how many numbers of shared memory a stage needs, for `length` rows or columns of a tile."""
    return DEPTH * pitch_of(length)


@body
def own_column(thread):
    """Return the first column of a thread's first square, or its first row if called with `thread >> 1`.

    Bits of a thread's number alternate between columns and rows.  So threads i and i ^ 1 have the same rows, and
    threads i and i ^ 2 have the same columns.  As both threads of a pair read the same numbers, a load of 16 bytes
    takes half the cycles.  Source: NVIDIA's Greg Smith, forums.developer.nvidia.com/t/77228.
    """
    return uint32(NEIGHBOURS * ((thread & 1) | ((thread >> 1) & 2) | ((thread >> 2) & 4)))


@body
def place_of(i):
    """Return the distance of a thread's row or column i from its first one; squares of other threads lie between."""
    return uint32(i // NEIGHBOURS * SQUARES + i % NEIGHBOURS)


@functools.cache
def turned(length):
    """Return a body (a function that kernels inline) that copies a stage of an operand, transposed.

    `shared[k, r] = source[r * row_size + k]` for k below `depth`.  Rows from `count` on repeat row `count - 1`.
    """
    pitch, passes, apart = pitch_of(length), length * DEPTH // THREADS, THREADS // DEPTH

    @body
    def copy(thread, source, row_size, count, depth, shared):
        k, first, last = uint32(thread % DEPTH), uint32(thread // DEPTH), uint32(count - 1)
        if k < depth:
            for i in range(passes):
                r = uint32(first + i * apart)
                shared[uint32(k * pitch + r)] = source[uint64(min(r, last)) * uint64(row_size) + uint64(k)]

    return copy


@functools.cache
def straight(length):
    """Return a body that copies a stage of an operand in which the numbers of one k are neighbours.

    `shared[k, j] = source[k * row_size + j]` for k below `depth`.  Columns from `count` on repeat column `count - 1`.
    """
    pitch, squares, passes, apart = pitch_of(length), length // SQUARES, DEPTH * SQUARES // THREADS, THREADS // SQUARES

    @body
    def copy(thread, source, row_size, count, depth, shared):
        first, last = uint32(thread % SQUARES), uint32(count - 1)
        for i in range(passes):
            k = uint32(thread // SQUARES + i * apart)
            if k < depth:
                for square in range(squares):
                    j = uint32(first + square * SQUARES)
                    shared[uint32(k * pitch + j)] = source[uint64(k) * uint64(row_size) + uint64(min(j, last))]

    return copy


@functools.cache
def products_of(tile):
    """Return a body that multiplies a stage: `sums[i, j] += left[k, i] * right[k, j]`, for a thread's rows and columns.

    `x` and `y` are arrays in registers for the operands of one k.
    """
    from varlen_rnn.runtime.cuda_intrinsics import load_four

    left_pitch, right_pitch = pitch_of(tile.rows), pitch_of(tile.columns)
    (below, beside), (rows, columns) = tile, tile.own

    @body
    def multiply_one(left, right, row, column, k, x, y, sums):
        for square in range(below):
            of_four = load_four(left, k * left_pitch + row + square * SQUARES)
            for n in range(NEIGHBOURS):
                x[square * NEIGHBOURS + n] = of_four[n]
        for square in range(beside):
            of_four = load_four(right, k * right_pitch + column + square * SQUARES)
            for n in range(NEIGHBOURS):
                y[square * NEIGHBOURS + n] = of_four[n]
        for i in range(rows):
            for j in range(columns):
                sums[i, j] += x[i] * y[j]

    @body
    def multiply(left, right, row, column, depth, x, y, sums):
        k = uint32(0)
        while uint32(k + 4) <= depth:  # four k at a time, so that loads for the next k begin early
            multiply_one(left, right, row, column, k, x, y, sums)
            multiply_one(left, right, row, column, k + 1, x, y, sums)
            multiply_one(left, right, row, column, k + 2, x, y, sums)
            multiply_one(left, right, row, column, k + 3, x, y, sums)
            k = uint32(k + 4)
        while k < depth:
            multiply_one(left, right, row, column, k, x, y, sums)
            k = uint32(k + 1)

    return multiply
