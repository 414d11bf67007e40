"""Allocate large arrays, and reuse the memory of a freed array for the next array of about its size.

The system clears each page of fresh memory at its first use, and takes all pages back when an array is freed.  That
would take a tenth of a training step.  So each step reuses the memory that the previous step has freed.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import numpy as np

from varlen_rnn.runtime.cache import PROCESSOR

CACHE_LINE = PROCESSOR.line_bytes
MOST_OWNED = 2**30  # bytes: the limit for the sum of all memory in use and idle
LEAST_COUNTED = 2**22  # bytes: in this sum, a smaller array counts as so many bytes
_owned: set[_Lender] = set()  # lenders whose memory is in use or idle
_waiting: list[_Lender] = []  # lenders with idle memory, in the order in which it was freed
on_release: list[Callable[[], None]] = []  # functions that `release_memory` calls, such as `device_memory._release_all`


def address_of(array: np.ndarray) -> int:
    """Return the address of the first element of an array."""
    return array.__array_interface__["data"][0]


class _Memory:
    """A buffer whose usable bytes begin `start` bytes after its beginning, at a cache line."""

    __slots__ = ("buffer", "counted", "size", "start")

    buffer: Any

    def __init__(self, size: int) -> None:
        array: Any = np.empty(size + CACHE_LINE, np.uint8)
        # The buffer is not an array: otherwise NumPy would make it the base of views, and the array that `array` lends
        # would be freed too early.
        self.buffer = (ctypes.c_char * len(array)).from_buffer(array)
        self.start = -address_of(array) % CACHE_LINE
        self.size, self.counted = size, max(size, LEAST_COUNTED)


class _Lender(weakref.ref):
    """Owns the memory of one array, and appends itself to `_waiting` when the last view of the array is deleted.

    It is a weak reference whose callback is implemented in C.  In a `__del__` method, an interrupt would be lost.
    """

    __slots__ = ("memory",)

    memory: _Memory

    __eq__, __hash__ = object.__eq__, object.__hash__  # a weak reference uses the array's hash, but arrays have none


_counted = attrgetter("memory.counted")


def array(shape: tuple[int, ...], dtype: np.dtype, size: int) -> np.ndarray:
    """Return an uninitialised array of `size` bytes that begins at a cache line."""
    roomy = with_room_to_grow(size)
    memory = _waiting_memory(size, roomy) or _Memory(roomy)
    loan = np.ndarray(shape, dtype, memory.buffer, memory.start)
    if _make_room(memory):
        lender = _Lender(loan, _waiting.append)
        lender.memory = memory
        _owned.add(lender)
    return loan[...]  # every view, and every view of a view, holds a reference to the loan


def _waiting_memory(size: int, roomy: int) -> _Memory | None:
    """Return the smallest idle block of `size` to `2 * size` bytes, or None; `roomy` bytes count as the smallest."""
    while True:
        found, smallest = None, 2 * size + 1
        for lender in reversed(_waiting):  # the latest block may still be in the processor's caches
            if size <= lender.memory.size < smallest:
                found, smallest = lender, lender.memory.size
                if smallest == roomy:
                    break
        if found is None:
            return None
        if _take_back(found):
            return found.memory


def _take_back(lender: _Lender) -> bool:
    """Remove a lender from the lists; return whether its memory was still idle, so that the caller can use it."""
    _owned.discard(lender)  # first, so that after an interrupt the lender is still in `_waiting`
    try:
        _waiting.remove(lender)
    except ValueError:  # another thread took the memory
        return False
    return True


def with_room_to_grow(size: int) -> int:
    """Round `size` up by at most a quarter, so that a slightly larger batch fits into the same memory."""
    step = 1 << (size.bit_length() - 3)
    return -(-size // step) * step


def _make_room(memory: _Memory) -> bool:
    """Return whether `memory` fits under the limit; if necessary, release the memory that has been idle longest."""
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
    """Return to the operating system the memory of freed large arrays, at most 1 GiB, and to CUDA all idle memory.

    Without this call, a process reuses it for its next large arrays, because fresh memory would cost a tenth of a
    training step's time.

    Examples
    --------
    >>> release_memory()
    """
    for lender in list(_waiting):
        _take_back(lender)
    for release in on_release:
        release()


def _forget() -> None:
    _owned.clear()
    _waiting.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)  # writing to a page that is shared with the parent would copy it
