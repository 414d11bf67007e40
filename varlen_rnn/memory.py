"""Memory of large arrays, which waits for the next array of about its size.

A system hands memory out page by page, clears each page at its first use, and wants all of them back when an array is
freed: a tenth of the time of a training step.  So what one step lets go is what the next one gets.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from operator import attrgetter

import numpy as np

CACHE_LINE = 64  # bytes
MOST_OWNED, LEAST_COUNTED = 2**30, 2**22  # bytes: of all, lent and waiting, where an array counts as 4 MiB at least
_owned: set[_Lender] = set()  # lenders of memory that is lent or waits
_waiting: list[_Lender] = []  # lenders; what was let go last stands last


class _Memory:
    """Bytes that begin at a cache line."""

    __slots__ = ("address", "array", "counted", "size")

    def __init__(self, size: int) -> None:
        self.array, self.size, self.counted = np.empty(size + CACHE_LINE, np.uint8), size, max(size, LEAST_COUNTED)
        start = self.array.__array_interface__["data"][0]
        self.address = start + -start % CACHE_LINE


class _Lender(weakref.ref):
    """Owns the memory behind one array, and appends itself to those who wait when the last view of it is gone.

    A weak reference, whose callback is a function of C: in a `__del__`, an interrupt would be lost.
    """

    __slots__ = ("memory",)

    memory: _Memory


class _Loan:
    """Stands behind one array and all views of it, and keeps their memory, whoever owns it."""

    __slots__ = ("__array_interface__", "__weakref__", "memory")

    def __init__(self, memory: _Memory, shape: tuple[int, ...], dtype: np.dtype) -> None:
        data = memory.address, False
        self.__array_interface__ = {"version": 3, "data": data, "typestr": dtype.str, "shape": shape}
        self.memory = memory


def array(shape: tuple[int, ...], dtype: np.dtype, size: int) -> np.ndarray:
    """Return an uninitialised array of `size` bytes that begins at a cache line.

    Examples
    --------
    >>> address = array((4, 256), np.dtype(np.float32), 4096).__array_interface__["data"][0]
    >>> address % CACHE_LINE, array((4096,), np.dtype(np.int8), 4096).__array_interface__["data"][0] == address
    (0, True)
    """
    memory = _waiting_memory(size) or _Memory(_with_room_to_grow(size))
    loan = _Loan(memory, shape, dtype)
    if _make_room(memory):
        lender = _Lender(loan, _waiting.append)
        lender.memory = memory
        _owned.add(lender)
    return np.asarray(loan)[...]  # a view of an array, which its user may make read-only and writable again


def _waiting_memory(size: int) -> _Memory | None:
    """Return memory that waits, the smallest that is large enough and not twice too large, or None."""
    while fitting := [lender for lender in _waiting if size <= lender.memory.size <= 2 * size]:
        lender = min(reversed(fitting), key=attrgetter("memory.size"))  # of equals, what is still in the caches
        if _take_back(lender):
            return lender.memory
    return None


def _take_back(lender: _Lender) -> bool:
    """Return whether nobody else took what a lender has."""
    _owned.discard(lender)  # first: what an interrupt leaves waiting is found again
    with contextlib.suppress(ValueError):  # another thread was faster
        _waiting.remove(lender)
        return True
    return False


def _with_room_to_grow(size: int) -> int:
    """Return up to a quarter more than `size`, for the batches that are a little larger."""
    step = 1 << (size.bit_length() - 3)
    return -(-size // step) * step


def _make_room(memory: _Memory) -> bool:
    """Return whether some more memory may be owned, after letting go what waits longest where that helps."""
    waiting, need = list(_waiting), memory.counted
    owned = sum([lender.memory.counted for lender in list(_owned)])
    if owned - sum([lender.memory.counted for lender in waiting]) + need > MOST_OWNED:
        return False
    for lender in waiting:
        if owned + need <= MOST_OWNED:
            break
        owned -= lender.memory.counted if _take_back(lender) else 0
    return True


def release_memory() -> None:
    """Return idle memory, which waits for the next large arrays, to the operating system: 1 GiB at most.

    A process keeps it after arrays are freed, since fresh memory costs a training step a tenth of its time.

    Examples
    --------
    >>> release_memory()
    """
    for lender in list(_waiting):
        _take_back(lender)


def _forget() -> None:
    _owned.clear()
    _waiting.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)  # pages shared with the parent cost a copy, new ones do not
