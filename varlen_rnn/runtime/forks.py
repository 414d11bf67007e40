"""A fork waits for the thread that compiles, so that the child can compile too.

In a child, only the thread that forked goes on.  A lock that another one held would stay locked forever, and what LLVM
was doing under it half done.
"""

import os
import threading

from llvmlite.binding import ffi
from numba.core.compiler_lock import global_compiler_lock

LONGEST_WAIT = 60  # seconds, for one function; the largest takes some ten

# The lock of Numba's compiler, and of each call of LLVM, in the order in which a compilation takes them.
_OWNERS = (global_compiler_lock, ffi.lib._lock)
_held = threading.local()  # by the thread that forks


class _Lost:
    """Stands for the lock of the compiler in a child that was forked in the middle of a compilation."""

    def acquire(self, *arguments, **named):
        raise RuntimeError(
            "this process was forked while a thread compiled, and cannot compile itself: "
            "fork before or after, or start processes with multiprocessing's 'spawn'"
        )


def _acquire():
    _held.locks = []
    for owner in _OWNERS:
        if owner._lock.acquire(timeout=LONGEST_WAIT):
            _held.locks.append(owner._lock)


def _release():
    for lock in reversed(_held.locks):
        lock.release()


def _release_in_child():
    _release()
    for owner, instead in zip(_OWNERS, (_Lost, threading.RLock), strict=True):
        if owner._lock.acquire(blocking=False):
            owner._lock.release()
        else:  # whoever held it does not exist here; what LLVM has made can still be called, and freed
            owner._lock = instead()


def let_forks_wait():
    """Have every fork of this process wait while another thread compiles."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_acquire, after_in_parent=_release, after_in_child=_release_in_child)
