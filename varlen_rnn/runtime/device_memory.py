"""Lend memory of a CUDA device to arrays, and reuse a freed array's memory for the next array of about its size.

An allocation by the driver takes longer than many kernels run, and can wait for all of them.  All launches are on one
stream.  So memory can be lent again as soon as no array refers to it, because launches that still use it run first.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

from varlen_rnn.runtime.memory import on_release, with_room_to_grow

_LEAST = 512  # bytes, the driver's alignment


class Block(NamedTuple):
    """Memory that the driver has allocated."""

    address: int
    size: int  # bytes
    owner: Any  # an object that frees the memory when it is deleted


class Memory:
    """The memory of an array and of all its views; the pool gets it back when the last of these is deleted."""

    __slots__ = ("__weakref__", "address", "host", "is_upload", "owner", "size")

    def __init__(self, address: int, size: int, owner: Any) -> None:
        self.address, self.size, self.owner = address, size, owner
        self.host: bytes | None = None  # the same bytes on the host, if they are integers or bools that came from there
        self.is_upload = False  # whether it is a copy that `device.beside` remembers, and not overwritten

    def changes(self) -> None:
        """Record that the bytes change, or that another library can change them from now on."""
        self.host, self.is_upload = None, False


class _Lender(weakref.ref):
    """Owns the block of a Memory, and appends itself to a list of idle blocks when the Memory is deleted."""

    __slots__ = ("block",)

    block: Block

    __eq__, __hash__ = object.__eq__, object.__hash__


class Pool:
    """The blocks that a driver has allocated, in use and idle.

    `allocate(size)` returns a Block of at least `size` bytes, or raises if the device has no more memory; `forget`
    drops the copies that `device.beside` remembers.
    """

    def __init__(self, allocate: Callable[[int], Block], forget: Callable[[], object]) -> None:
        self._allocate, self._forget = allocate, forget
        self._lent: set[_Lender] = set()
        self._idle: dict[int, list[_Lender]] = defaultdict(list)  # idle blocks by their bytes
        _pools.add(self)

    def lend(self, size: int) -> Memory:
        """Return uninitialised memory of `size` bytes."""
        if not size:
            return Memory(0, 0, None)
        roomy = with_room_to_grow(max(_LEAST, size))
        block = self._idle_block(roomy) or self._new_block(roomy)
        memory = Memory(block.address, size, block)
        lender = _Lender(memory, self._idle[roomy].append)
        lender.block = block
        self._lent.add(lender)
        return memory

    def _idle_block(self, size: int) -> Block | None:
        try:
            lender = self._idle[size].pop()
        except IndexError:
            return None
        self._lent.discard(lender)
        return lender.block

    def _new_block(self, size: int) -> Block:
        """Return a new Block; if the device is full, release idle blocks and remembered copies, then try once more."""
        try:
            return self._allocate(size)
        except Exception as error:
            if not _is_full(error):
                raise
        self.release()
        try:
            return self._allocate(size)
        except Exception as error:
            if not _is_full(error):
                raise
            held = sum(lender.block.size for lender in list(self._lent))
            expected, got = f"room for {size:,} bytes", f"a device on which arrays hold {held:,} bytes"
            hint = "use smaller batches"
            raise MemoryError(f"CUDA memory: expected {expected}, got {got} ({hint})") from error

    def release(self) -> None:
        """Forget the copies that `device.beside` remembers, and give all idle blocks back to the driver."""
        self._forget()
        for size in list(self._idle):
            while self._idle_block(size) is not None:
                pass


def _is_full(error: Exception) -> bool:
    return isinstance(error, MemoryError) or "OUT_OF_MEMORY" in str(error)  # part of the driver's error


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


def _release_all() -> None:
    for pool in list(_pools):
        pool.release()


on_release.append(_release_all)
