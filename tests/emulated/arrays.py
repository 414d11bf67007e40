"""Memory of the emulated device: memory of the host that only kernels and counted copies may read."""

import ctypes

import numpy as np

from tests.emulated.ledger import ALLOCATION, ON_DEVICE, TO_DEVICE, TO_HOST, count
from varlen_rnn.runtime.cuda import Driver
from varlen_rnn.runtime.device_memory import Block

_ALIGNED = 512  # bytes, as on a GPU
_UNREAD = 0xFF  # every byte of new memory: NaN as a float, -1 as an integer


class MemoryOfHost(Driver):
    """The part of a driver that allocates and copies; every event is counted, with the line that asks for it."""

    cublas = None  # a real one would need a GPU

    def memory(self, size):
        """Return memory full of NaN, new or used before, so that a kernel that reads it is found."""
        found = super().memory(size)
        ctypes.memset(found.address, _UNREAD, size)
        return found

    def allocate(self, size):
        count(ALLOCATION)
        owner = np.empty(size + _ALIGNED, np.uint8)
        address = owner.ctypes.data
        return Block(address + -address % _ALIGNED, size, owner)

    def copy_to_device(self, address, array):
        count(TO_DEVICE)
        ctypes.memmove(address, array.ctypes.data, array.nbytes)

    def copy_to_host(self, array, address):
        count(TO_HOST)
        ctypes.memmove(array.ctypes.data, address, array.nbytes)

    def copy(self, address, source, size):
        count(ON_DEVICE)
        ctypes.memmove(address, source, size)

    def clear(self, address, size):
        ctypes.memset(address, 0, size)

    def synchronize(self):
        """Do nothing: every launch has ended."""
