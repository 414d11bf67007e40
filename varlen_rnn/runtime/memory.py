"""Memory of large arrays, which waits for the next array of about its size.

The system clears each page of new memory at its first use and takes all pages back when an array is freed.  That would
cost a tenth of a training step.  So memory that one step releases is lent to the next.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from operator import attrgetter
from typing import Any

import numpy as np

CACHE_LINE = 64  # bytes
MOST_OWNED, LEAST_COUNTED = 2**30, 2**22  # bytes, lent and waiting together; each array counts as at least 4 MiB
_owned: set[_Lender] = set()  # lenders of memory that is lent or waits
_waiting: list[_Lender] = []  # lenders in the order of their release


class _Memory:
    """Bytes that begin at a cache line: `start` bytes into a buffer."""

    __slots__ = ("buffer", "counted", "size", "start")

    buffer: Any

    def __init__(self, size: int) -> None:
        array: Any = np.empty(size + CACHE_LINE, np.uint8)
        # No array: NumPy takes for the base of a view the array at the bottom, and that is to be the loan's.
        self.buffer = (ctypes.c_char * len(array)).from_buffer(array)
        self.start = -array.__array_interface__["data"][0] % CACHE_LINE
        self.size, self.counted = size, max(size, LEAST_COUNTED)


class _Lender(weakref.ref):
    """Owns the memory behind one array, and appends itself to those who wait when the last view of it is gone.

    A weak reference, whose callback is a function of C: in a `__del__`, an interrupt would be lost.
    """

    __slots__ = ("memory",)

    memory: _Memory

    __eq__, __hash__ = object.__eq__, object.__hash__  # a weak reference would take them from the array, which has none


_counted = attrgetter("memory.counted")


def array(shape: tuple[int, ...], dtype: np.dtype, size: int) -> np.ndarray:
    """Return an uninitialised array of `size` bytes that begins at a cache line.

    Examples
    --------
    >>> address = array((4, 256), np.dtype(np.float32), 4096).__array_interface__["data"][0]
    >>> address % CACHE_LINE, array((4096,), np.dtype(np.int8), 4096).__array_interface__["data"][0] == address
    (0, True)
    """
    roomy = _with_room_to_grow(size)
    memory = _waiting_memory(size, roomy) or _Memory(roomy)
    loan = np.ndarray(shape, dtype, memory.buffer, memory.start)
    if _make_room(memory):
        lender = _Lender(loan, _waiting.append)
        lender.memory = memory
        _owned.add(lender)
    return loan[...]  # whoever holds a view of it, or a view of that, holds the loan


def _waiting_memory(size: int, roomy: int) -> _Memory | None:
    """Return memory that waits, the smallest that is large enough and not twice too large, or None.

    A fitting block has at least `roomy` bytes, the size of new memory for this request; an exact fit ends the search.
    """
    while True:
        found, smallest = None, 2 * size + 1
        for lender in reversed(_waiting):  # the latest of equal sizes may still be in the caches
            if size <= lender.memory.size < smallest:
                found, smallest = lender, lender.memory.size
                if smallest == roomy:
                    break
        if found is None:
            return None
        if _take_back(found):
            return found.memory


def _take_back(lender: _Lender) -> bool:
    """Return whether the lender got its memory back before anybody else took it."""
    _owned.discard(lender)  # first, so that an interrupt leaves it in the waiting list at worst
    try:
        _waiting.remove(lender)
    except ValueError:  # another thread was faster
        return False
    return True


def _with_room_to_grow(size: int) -> int:
    """Return up to a quarter more than `size`, for the batches that are a little larger."""
    step = 1 << (size.bit_length() - 3)
    return -(-size // step) * step


def _make_room(memory: _Memory) -> bool:
    """Return whether `size` more bytes may be owned; release the memory that waits longest if that helps."""
    need, owned = memory.counted, sum(map(_counted, list(_owned)))
    if owned + need <= MOST_OWNED:
        return True
    waiting = list(_waiting)
    if owned + need - sum(map(_counted, waiting)) > MOST_OWNED:
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
