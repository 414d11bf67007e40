"""Arrays of the emulated device: host memory that NumPy cannot read, with the interface of Numba's device arrays."""

import numpy as np

from tests.emulated.ledger import ALLOCATION, ON_DEVICE, TO_DEVICE, TO_HOST, count


class DeviceArray:
    """Memory that only kernels read; slices are views.

    Reading a number, turning it into an array of NumPy, or iterating over it would copy it to the host unseen, so each
    is an error or counted.
    """

    __cuda_ndarray__ = True
    __array_ufunc__ = None
    __hash__ = None
    __slots__ = ("_memory",)

    def __init__(self, memory):
        self._memory = memory

    shape, strides, dtype, ndim, size, nbytes, itemsize = (
        property(lambda self, name=name: getattr(self._memory, name))
        for name in ("shape", "strides", "dtype", "ndim", "size", "nbytes", "itemsize")
    )

    @property
    def __cuda_array_interface__(self):
        memory = self._memory
        place = {"data": (memory.ctypes.data, False), "strides": memory.strides}
        return {"shape": memory.shape, "typestr": memory.dtype.str, "version": 3, **place}

    def __array__(self, *_, **__):
        raise TypeError("expected an array on the host, got one on the device: copy_to_host() copies it")

    def __len__(self):
        return len(self._memory)

    def __iter__(self):
        raise TypeError("iterating over a device array would copy it number by number")

    def __bool__(self):
        raise TypeError("the truth of a device array is not known on the host")

    def __getitem__(self, key):
        found = self._memory[key]
        if not isinstance(found, np.ndarray):
            count(TO_HOST)
            return found
        return self._view(found)

    def __setitem__(self, key, value):
        count(ON_DEVICE if isinstance(value, DeviceArray) else TO_DEVICE)
        self._memory[key] = value._memory if isinstance(value, DeviceArray) else value

    def reshape(self, *shape):
        return self._view(self._memory.reshape(*shape))

    def ravel(self, order="C"):
        return self._view(self._memory.reshape(-1))

    def transpose(self, axes=None):
        return DeviceArray(self._memory.transpose(axes))

    T = property(transpose)

    def _view(self, found):
        if found.size and not np.may_share_memory(found, self._memory):
            raise TypeError("expected a view of a device array, got a selection that copies it")
        return DeviceArray(found)

    def copy_to_host(self, ary=None, stream=0):
        count(TO_HOST)
        if ary is None:
            return self._memory.copy()
        ary[...] = self._memory
        return ary

    def copy_to_device(self, ary, stream=0):
        count(ON_DEVICE if isinstance(ary, DeviceArray) else TO_DEVICE)
        source = ary._memory if isinstance(ary, DeviceArray) else np.asarray(ary)
        if source.shape != self.shape:
            raise ValueError(f"expected an array of shape {self.shape}, got {source.shape}")
        self._memory[...] = source

    def layout(self):
        """Return the letter by which Numba types the array: C or F if it is contiguous, otherwise A."""
        flags = self._memory.flags
        return "C" if flags.c_contiguous else "F" if flags.f_contiguous else "A"

    def __repr__(self):
        return f"DeviceArray({self.shape}, {self.dtype})"


def to_device(array):
    """Return a copy of an array of NumPy."""
    count(TO_DEVICE)
    count(ALLOCATION)
    return DeviceArray(np.array(array, order="C", copy=True))


def empty(shape, dtype):
    """Return memory full of NaN, or of -1 as an integer, so that a kernel that reads it is found."""
    count(ALLOCATION)
    memory = np.empty(shape, dtype)
    memory.reshape(-1).view(np.uint8)[...] = 0xFF
    return DeviceArray(memory)
