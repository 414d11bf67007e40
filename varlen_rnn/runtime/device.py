"""Create and move arrays: NumPy arrays on the host, Numba's device arrays on a GPU."""

import math

import numpy as np

from varlen_rnn.runtime import cuda, memory
from varlen_rnn.runtime.cuda import is_device_array

THREADS_PER_BLOCK = 128
_LARGE = 65_536  # bytes


def on_device(array):
    """Return whether `array` lives on a CUDA device."""
    return not isinstance(array, np.ndarray) and is_device_array(array)


def to_device(array):
    """Copy a NumPy array to the current CUDA device."""
    return cuda.driver.to_device(np.asarray(array, order="C"))


def to_host(array):
    """Return a NumPy array unchanged, or a host copy of a device array."""
    return array.copy_to_host() if on_device(array) else array


def host_numbers(array):
    """Return integers or bools as an array of NumPy, without a copy from a device."""
    return to_host(array)


def beside(index, array):
    """Return `index`, copied to the device if `array` is on the device and `index` is not."""
    return to_device(index) if on_device(array) and not on_device(index) else index


def as_operand(array):
    """Return a host array unchanged if it is C-contiguous and writeable, otherwise a copy that is.

    Kernels are compiled for such arrays.  For a read-only array, such as a memory map, Numba would compile the kernel
    again, which takes seconds.
    """
    return array if array.flags.carray else np.array(array, order="C")


def empty(shape, like, dtype=None):
    """Return an uninitialised array of `shape`, a tuple, on the device of `like`, and of its data type unless given.

    On the host, a large array reuses freed memory, and begins at a cache line, so that rows of 16 float32, or of a
    multiple, never share a cache line.
    """
    dtype = like.dtype if dtype is None else dtype
    if not isinstance(like, np.ndarray):
        return cuda.driver.empty(shape, dtype)
    size = math.prod(shape) * dtype.itemsize
    return np.empty(shape, dtype) if size < _LARGE else memory.array(shape, dtype, size)


def zeros(shape, like, dtype=None):
    """Return zeros of `shape`, on the device of `like`, and of its data type unless given."""
    array = np.zeros(shape, like.dtype if dtype is None else dtype)
    return array if isinstance(like, np.ndarray) else to_device(array)


def launch(kernel, num_threads, *arguments):
    """Run a CUDA kernel on at least `num_threads` threads, in blocks of `THREADS_PER_BLOCK`; do nothing for 0."""
    if num_threads:
        kernel[-(-num_threads // THREADS_PER_BLOCK), THREADS_PER_BLOCK](*arguments)
