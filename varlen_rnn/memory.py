"""Memory of large arrays, which waits for the next array of about its size.

A system hands memory out page by page, clears each page at its first use, and wants all of them back when an array is
freed: a tenth of the time of a training step.  So what one step lets go is what the next one gets.
"""

import contextlib
import weakref
from operator import attrgetter

import numpy as np

CACHE_LINE = 64  # bytes
MOST_OWNED = 2**30  # bytes, lent and waiting; arrays beyond are the system's
_owned = set()
_waiting = []  # what was let go last stands last


class _Memory:
    """Bytes that begin at a cache line."""

    __slots__ = ("address", "array", "size")

    def __init__(self, size):
        self.array, self.size = np.empty(size + CACHE_LINE, np.uint8), size
        start = self.array.__array_interface__["data"][0]
        self.address = start + -start % CACHE_LINE


class _Lender(weakref.ref):
    """Owns the memory behind one array, and appends itself to those who wait when the last view of it is gone.

    A weak reference, whose callback is a function of C: in a `__del__`, an interrupt would be lost.
    """

    __slots__ = ("memory",)


class _Loan:
    """Stands behind one array and all views of it."""

    __slots__ = ("__array_interface__", "__weakref__", "memory")

    def __init__(self, memory, shape, dtype):
        data = memory.address, False
        self.__array_interface__ = {"version": 3, "data": data, "typestr": dtype.str, "shape": shape}
        self.memory = memory


def array(shape, dtype, size):
    """Return an uninitialised array of `size` bytes that begins at a cache line.

    Examples
    --------
    >>> address = array((4, 256), np.dtype(np.float32), 4096).__array_interface__["data"][0]
    >>> address % CACHE_LINE, array((4096,), np.dtype(np.int8), 4096).__array_interface__["data"][0] == address
    (0, True)
    """
    memory = _take(size)
    loan = _Loan(memory, shape, dtype)
    if sum([lender.memory.size for lender in list(_owned)]) + memory.size <= MOST_OWNED:
        lender = _Lender(loan, _waiting.append)
        lender.memory = memory
        _owned.add(lender)
    return np.asarray(loan)


def _take(size):
    """Return memory that waits, the smallest that is large enough and not twice too large, or new memory."""
    while fitting := [lender for lender in _waiting if size <= lender.memory.size <= 2 * size]:
        lender = min(fitting, key=attrgetter("memory.size"))
        with contextlib.suppress(ValueError):  # another thread was faster
            _waiting.remove(lender)
            _owned.discard(lender)
            return lender.memory
    step = 1 << (size.bit_length() - 3)  # up to a quarter more, for the batches that are a little larger
    size = -(-size // step) * step
    with contextlib.suppress(IndexError):  # what waits longest goes
        while sum([lender.memory.size for lender in list(_owned)]) + size > MOST_OWNED:
            _owned.discard(_waiting.pop(0))
    return _Memory(size)


def release():
    """Give the system back what waits."""
    with contextlib.suppress(IndexError):
        while True:
            _owned.discard(_waiting.pop())
