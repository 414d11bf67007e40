"""A model of the time of an LSTM's step on an H100: the least time of each part, and the time of our kernels.

>>> round(reads_in_order(512, 64, 2 * 4 * 512), 1)  # 64 * 512 / 32 warps, 2 * 2048 reads each, 132 a cycle
16.0

Times are in microseconds, of one direction, with `batch` sequences that all have the step.
"""

from typing import NamedTuple

SIZES, BATCH = (256, 512, 1024), 64
FLOAT, WARP = 4, 32  # bytes, threads
GATES, SAVED = 4, 5  # of an LSTM; columns that the forward step saves, gates and cell states


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
