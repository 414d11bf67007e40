"""Create and move arrays: NumPy arrays on the host, DeviceArrays on a CUDA device."""

import math

import numpy as np

from varlen_rnn.errors import PlaceError
from varlen_rnn.runtime import cuda, memory
from varlen_rnn.runtime.cuda import is_device_array
from varlen_rnn.runtime.device_array import DeviceArray, size_of
from varlen_rnn.runtime.parameters import Parameters
from varlen_rnn.runtime.place import HOST
from varlen_rnn.runtime.placeholder import Placeholder

THREADS_PER_BLOCK = 128
_LARGE = 65_536  # bytes of an array from which on `empty` reuses freed memory
# Limits for remembered copies: the bytes of one copy, the bytes of all copies, and the number of copies.
_MOST_OF_ONE, _MOST_OF_ALL, _MOST_COPIES = 2**24, 2**28, 1024


def on_device(array):
    """Return whether `array` lives on a CUDA device."""
    return not isinstance(array, np.ndarray) and is_device_array(array)


def place_of(array):
    """Return the Place of an array: HOST, or its CUDA device."""
    return array.device if on_device(array) else HOST  # a NumPy array's own `device` is the text "cpu", not a Place


def moved(array, place):
    """Return `array` itself if it is at the place, otherwise a copy at the place."""
    if place_of(array) == place:
        return array
    return array.copy_to_host() if place == HOST else to_device(array)


def to_device(array):
    """Copy a NumPy array to the CUDA device; a copy of integers or bools also keeps their bytes on the host."""
    array = np.asarray(array, order="C")
    made = _new(array.shape, array.dtype)
    made.copy_to_device(array)
    if array.dtype.kind != "f":
        made.memory.host = bytes_of(array)
    return made


def to_host(array):
    """Return a NumPy array unchanged, or the numbers of a device array, copied unless the host has them already."""
    if not on_device(array):
        return array
    found = getattr(array, "host", None)  # arrays of Numba have no `host`
    return array.copy_to_host() if found is None else found


def host_numbers(array):
    """Return integers or bools as a NumPy array; raise if a kernel computed them, so that the host has no copy."""
    found = array if isinstance(array, np.ndarray) else array.host
    if found is None:
        expected, hint = "integers that came from the host", "x.to('cpu') copies them to the host"
        got = "integers that a kernel computed on the device"
        raise PlaceError("integers that the host must read", expected=expected, got=got, hint=hint)
    return found


def beside(index, array):
    """Return `index` at the place of `array`: a copy if `array` is on the device and `index` is not, else `index`.

    Copies are remembered by their content.  So the offsets of a LoD, a plan, or the ids of a batch are copied once,
    however often kernels get them.  Nobody may write to such a copy.  In a dry run, the copy is a constant.
    """
    if type(array) is Placeholder:
        return array.constant(index) if type(index) is np.ndarray else index
    if not on_device(array) or on_device(index):
        return index
    if index.nbytes > _MOST_OF_ONE:
        return to_device(index)
    copies, key = cuda.driver.uploads, (index.dtype, index.shape, bytes_of(index))
    found = copies.get(key)
    if found is None or not found.memory.is_upload:  # otherwise its bytes may have changed
        found = to_device(index)
        found.memory.is_upload = True
        _remember(copies, key, found)
    return found


def _remember(copies, key, found):
    """Remember a copy by its key; if the remembered copies become too many or too large, forget the oldest."""
    copies[key] = found
    held, total = list(copies.items()), 0
    for number, (key, copy) in enumerate(reversed(held)):
        total += copy.nbytes
        if total > _MOST_OF_ALL or number >= _MOST_COPIES:
            copies.pop(key, None)


def bytes_of(array):
    """Return the bytes of an array; for an array of a LoD or plan, the bytes object below it, which keeps its hash."""
    base = array.base
    base = base.base if isinstance(base, np.ndarray) else base  # the array may be a view of a view
    is_whole = type(base) is bytes and len(base) == array.nbytes and array.flags.c_contiguous
    return base if is_whole else array.tobytes()


def as_operand(array):
    """Return the array, copied unless it is C-contiguous and writeable: Numba compiles kernels again for any other."""
    if array.flags.carray:
        return array
    is_plain = isinstance(array, np.ndarray) and type(array) is not Placeholder
    return np.array(array, order="C") if is_plain else array.copy()


def empty(shape, like, dtype=None):
    """Return an uninitialised array at the place of `like`, of its data type unless `dtype` is given.

    `shape` is a tuple.  On the host, a large array reuses freed memory, and begins at a cache line, so that rows of 16
    float32, or a multiple of 16, never share a cache line.
    """
    dtype = like.dtype if dtype is None else np.dtype(dtype)
    if type(like) is Placeholder:
        return like.dry_run.empty(shape, dtype)
    if not isinstance(like, np.ndarray):
        return _new(shape, dtype)
    size = math.prod(shape) * dtype.itemsize
    return np.empty(shape, dtype) if size < _LARGE else memory.array(shape, dtype, size)


def zeros(shape, like, dtype=None):
    """Return zeros of `shape` at the place of `like`, of its data type unless `dtype` is given."""
    dtype = like.dtype if dtype is None else dtype
    if type(like) is Placeholder:
        return like.dry_run.zeros(shape, dtype)
    if isinstance(like, np.ndarray):
        return np.zeros(shape, dtype)
    array = _new(shape if isinstance(shape, tuple) else (shape,), np.dtype(dtype))
    array.clear()
    return array


def _new(shape, dtype):
    return DeviceArray(cuda.driver.memory(size_of(shape, dtype)), shape, dtype)


def overwrite(array, rows, source):
    """Overwrite `array[rows]`, where `rows` is a slice or `...`, by `source`, broadcast to the shape of these rows.

    `source` is an array on the host, or on the device of `array`.
    """
    if isinstance(array, np.ndarray):
        array[rows] = source
        return
    target = array[rows]
    if not on_device(source):
        source = np.broadcast_to(source, target.shape).astype(target.dtype, copy=False)
    target.copy_to_device(source)


def copy_into(target, source):
    """Overwrite an array or a view by another array of the same shape at the same place."""
    if isinstance(target, np.ndarray):
        target[...] = source
    else:
        target.copy_from(source)


def launch(kernel, num_threads, *arguments):
    """Run a CUDA kernel on at least `num_threads` threads, in whole blocks; do nothing if `num_threads` is 0."""
    if num_threads:
        kernel[-(-num_threads // THREADS_PER_BLOCK), THREADS_PER_BLOCK](*arguments)


class Prepared:
    """A CUDA kernel with its arguments, to be launched more than once by this thread of Python.

    Each launch replaces the first arguments, which are integers.  With many arrays, it takes a tenth of the time of the
    function `launch`.
    """

    __slots__ = ("_function", "_parameters", "_run")

    def __init__(self, kernel, *arguments):
        self._parameters, self._run = Parameters(arguments), cuda.driver.run
        self._function = cuda.driver.function(kernel, self._parameters)

    def launch(self, num_threads, *first):
        """Run the kernel on at least `num_threads` threads, if that is not 0; `first` are its first arguments."""
        if num_threads:
            self._parameters.replace(*first)
            self._run(self._function, -(-num_threads // THREADS_PER_BLOCK), THREADS_PER_BLOCK, self._parameters)


def contiguous(array):
    """Return an array unchanged if it is C-contiguous, otherwise a C-contiguous copy."""
    if array.flags.c_contiguous:
        return array
    is_plain = isinstance(array, np.ndarray) and type(array) is not Placeholder
    return np.ascontiguousarray(array) if is_plain else array.copy()


def joined(parts, axis=0):
    """Concatenate `parts`, arrays at the same place, along an existing axis; return the new array."""
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts, axis=axis)
    shape, before, end = list(parts[0].shape), (slice(None),) * axis, 0
    shape[axis] = sum(part.shape[axis] for part in parts)
    out = empty(tuple(shape), parts[0])
    for part in parts:
        copy_into(out[(*before, slice(end, end + part.shape[axis]))], part)
        end += part.shape[axis]
    return out


def stacked(parts, axis=0):
    """Stack `parts`, arrays of the same shape at the same place, along a new axis; return the new array."""
    if isinstance(parts[0], np.ndarray):
        return np.stack(parts, axis=axis)
    before = (slice(None),) * axis
    return joined([part[(*before, None)] for part in parts], axis)


def unstacked(array):
    """Return a tuple of views of an array: `array[0]`, `array[1]`, and so on."""
    return tuple(array[number] for number in range(len(array)))
