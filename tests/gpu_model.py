"""A model of an H100: of an LSTM's step, the least time of each part and that of our kernels; and of a large product.

>>> round(reads_in_order(512, 64, 2 * 4 * 512), 1)  # 64 * 512 / 32 warps, 2 * 2048 reads each, 132 a cycle
16.0

Times are in microseconds, of one direction, with `batch` sequences that all have the step.
"""

from typing import NamedTuple

from varlen_rnn.products.tile_cuda import DEPTH, LARGE, SMALL, THREADS

SIZES, BATCH = (256, 512, 1024), 64
FLOAT, WARP = 4, 32  # bytes, threads
GATES, SAVED = 4, 5  # of an LSTM; columns that the forward step saves, gates and cell states
ROWS, INPUTS, COLUMNS = BATCH * 100, 512, GATES * 512  # of the projection of the inputs of 100 steps
UNROLLED = 4  # values of k in a round of the loop
OTHERS = {LARGE: 30, SMALL: 20}  # instructions of such a round beside multiply-adds, in PTX
PER_LOAD = 2  # cycles of a load of 16 bytes a thread, two of four neighbours at the same address


class Gpu(NamedTuple):
    """Assumptions, each with where it comes from."""

    multiprocessors: int = 132
    cycles: float = 1980.0  # a microsecond: 67 TFLOP/s over 132 * 128 * 2
    memory: float = 3.35e6  # bytes a microsecond
    cache: float = 5.5e6  # bytes a microsecond, of L2
    fp32: float = 67e6  # operations a microsecond
    tf32: float = 494.7e6
    barrier: float = 1.2
    launch: float = 3.0
    units: int = 16  # of a block of a persistent kernel


ASSUMPTIONS = {
    "multiprocessors": "NVIDIA, H100 SXM data sheet",
    "cycles": "a microsecond; follows from the peak of float32",
    "memory": "bytes a microsecond; NVIDIA, H100 SXM data sheet (3.35 TB/s)",
    "cache": "bytes a microsecond from L2; assumed",
    "fp32": "operations a microsecond; NVIDIA, H100 SXM data sheet (67 TFLOP/s)",
    "tf32": "operations a microsecond; the same, dense (494.7 TFLOP/s)",
    "barrier": "microseconds between the end of a step in all blocks and the first read of its states; assumed",
    "launch": "microseconds: 1 of Python (`benchmarks/results/launches.txt`), and 2 of the driver, assumed",
    "units": "units in a block of a persistent kernel; each block reads the states of all units; assumed",
}
H100 = Gpu()


def of_weights(hidden, gpu=H100):
    """Return the time to read the recurrent weights once from L2, as a launch per step does."""
    return GATES * hidden * hidden * FLOAT / gpu.cache


def of_states(hidden, batch, gpu=H100):
    """Return the time to read the projected inputs, and to write gates, cell states and outputs, in memory."""
    return (GATES + SAVED + 1) * hidden * batch * FLOAT / gpu.memory


def of_products(hidden, batch, rate):
    """Return the time of a recurrent product at a peak rate."""
    return 2 * GATES * hidden * hidden * batch / rate


def of_exchange(hidden, batch, gpu=H100):
    """Return the time in which all blocks of a persistent kernel read the states of a step from L2."""
    return batch * hidden * FLOAT * (hidden / gpu.units) / gpu.cache


def reads_in_order(hidden, batch, reads, gpu=H100):
    """Return the time of a thread per unit that makes a number of reads, each in one cache line per warp.

    A multiprocessor reads one cache line of 128 bytes a cycle.
    """
    return batch * hidden / WARP * reads / (gpu.multiprocessors * gpu.cycles)


def persistent(hidden, batch, rate, gpu=H100):
    """Return the time of a step of a kernel that keeps weights on chip, if nothing overlaps."""
    return gpu.barrier + of_exchange(hidden, batch, gpu) + of_products(hidden, batch, rate)


def floors(hidden, batch=BATCH, gpu=H100):
    """Return the cells of a line of floors."""
    products = of_products(hidden, batch, gpu.fp32), of_products(hidden, batch, gpu.tf32)
    return [hidden, of_weights(hidden, gpu), of_states(hidden, batch, gpu), *products, gpu.barrier]


def predictions(hidden, batch=BATCH, gpu=H100):
    """Return the cells of a line: what the kernels of a step read, the step, and persistent kernels.

    A thread of the forward step reads an output once for all gates, a thread of the backward step a gradient per gate.
    """
    forward = reads_in_order(hidden, batch, (GATES + 1) * hidden, gpu)
    backward = reads_in_order(hidden, batch, 2 * GATES * hidden, gpu)
    # The device works while Python hands over the next launch.
    steps = max(gpu.launch, forward), max(gpu.launch, backward)
    persisting = persistent(hidden, batch, gpu.fp32, gpu), persistent(hidden, batch, gpu.tf32, gpu)
    return [hidden, forward, steps[0], backward, steps[1], *persisting]


def of_tiles(tile, turned, rows=ROWS, columns=COLUMNS, depth=INPUTS, gpu=H100):
    """Return the time in which tiles of a product copy their operands to shared memory, and read them there.

    A warp copies 32 numbers at a time.  It reads them in one cycle, and writes them in one.  Each takes two cycles if
    the numbers are turned, because they are in two cache lines, and then two of them in each bank.  So operands that
    are turned take twice as long: the rows always, the columns if `turned`.
    """
    copies = (tile.rows * 2 + tile.columns * (2 if turned else 1)) * DEPTH / WARP * 2
    loads = THREADS / WARP * DEPTH * (tile.below + tile.beside) * PER_LOAD
    return _rounds(tile, rows, columns, gpu) * -(-depth // DEPTH) * (copies + loads) / gpu.cycles


def of_instructions(tile, rows=ROWS, columns=COLUMNS, depth=INPUTS, gpu=H100):
    """Return the time of the loop over k, for whole tiles: multiply-adds at their peak rate, and all others."""
    own_rows, own_columns = tile.own
    work = 2 * tile.rows * tile.columns * depth / (gpu.fp32 / gpu.multiprocessors)
    return _rounds(tile, rows, columns, gpu) * work * (1 + OTHERS[tile] / (UNROLLED * own_rows * own_columns))


def _rounds(tile, rows, columns, gpu):
    """Return the most tiles that a multiprocessor computes."""
    return -(-tile.count(rows, columns) // gpu.multiprocessors)


def product_lines(gpu=H100):
    """Return the lines of the table of a product: a thread per result, tiles, and the floor.

    Cells are numbers of global and of shared memory per multiply-add, and times: of instructions, and for a weight in
    either order, of memory and the larger one.
    """
    floor, once = 2 * ROWS * COLUMNS * INPUTS / gpu.fp32, ROWS * INPUTS + INPUTS * COLUMNS + ROWS * COLUMNS
    # The weights of a warp are in 32 cache lines, or in one; it shares the other number.
    plain = [reads_in_order(COLUMNS, ROWS, lines * INPUTS, gpu) for lines in (WARP + 1, 2)]
    lines = [_line("a thread per result", "2", "0", floor, plain)]
    for tile in (SMALL, LARGE):
        memory = [of_tiles(tile, turned, gpu=gpu) for turned in (True, False)]
        of_global, of_shared = _per_multiply_add(tile.rows, tile.columns), _per_multiply_add(*tile.own)
        name = f"tiles of {tile.rows} x {tile.columns}"
        lines.append(_line(name, of_global, of_shared, of_instructions(tile, gpu=gpu), memory))
    return [*lines, _line("floor", "0", "0", floor, [FLOAT * once / gpu.memory] * 2)]


def _per_multiply_add(rows, columns):
    """Return how many numbers are read per multiply-add, if each is read once for all of a rectangle."""
    return f"1/{rows * columns // (rows + columns)}"


def _line(name, of_global, of_shared, instructions, memory):
    return [
        name,
        of_global,
        of_shared,
        instructions,
        *(cell for time in memory for cell in (time, max(time, instructions))),
    ]
