"""Where arrays live: NumPy arrays on the host, Numba's device arrays on a GPU (or in its simulator)."""

import math

import numpy as np
from numba import cuda

from varlen_rnn.runtime import memory
from varlen_rnn.runtime.numba_internals import is_device_array

THREADS_PER_BLOCK = 128
_LARGE = 65_536  # bytes


def on_device(array):
    """Return whether `array` lives on a CUDA device."""
    return not isinstance(array, np.ndarray) and is_device_array(array)


def to_device(array):
    """Copy a NumPy array to the current CUDA device."""
    return cuda.to_device(np.ascontiguousarray(array))


def to_host(array):
    """Return a NumPy array: itself, or a copy of one on the device."""
    return array.copy_to_host() if on_device(array) else array


def beside(index, array):
    """Return `index` where `array` lives: moved to the device if it is still on the host."""
    return to_device(index) if on_device(array) and not on_device(index) else index


def as_operand(array):
    """Return a host array as kernels are compiled for, C-contiguous and writeable: itself, or a copy.

    For one that is read-only, as memory maps are, Numba would compile a kernel again: seconds, in mid-run.
    """
    return array if array.flags.carray else np.array(array, order="C")


def empty(shape, like):
    """Return an uninitialised array of `shape`, a tuple, with the data type and the place of `like`.

    On the host a large one begins at a cache line, so that rows of 16 float32, or a multiple, never share one, and its
    memory is used again.
    """
    dtype = like.dtype
    if not isinstance(like, np.ndarray):
        return cuda.device_array(shape, dtype)
    size = math.prod(shape) * dtype.itemsize
    return np.empty(shape, dtype) if size < _LARGE else memory.array(shape, dtype, size)


def zeros(shape, like):
    """Return zeros of `shape`, with the data type and the place of `like`."""
    array = np.zeros(shape, like.dtype)
    return array if isinstance(like, np.ndarray) else to_device(array)


def launch(kernel, num_threads, *arguments):
    """Run a CUDA kernel on at least `num_threads` threads, in blocks of `THREADS_PER_BLOCK`; none for none."""
    if num_threads:
        kernel[-(-num_threads // THREADS_PER_BLOCK), THREADS_PER_BLOCK](*arguments)
