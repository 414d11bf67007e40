"""A fork waits for the thread that compiles, so that the child can compile too.

In a child, only the thread that forked continues.  A lock held by another thread would stay locked forever, and work of
LLVM under it would stay half done.
"""

import os
import threading

from varlen_rnn.runtime.numba_internals import compiler_locks, replace_compiler_lock

LONGEST_WAIT = 60  # seconds, for one function; the largest takes some ten

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
    for lock in compiler_locks():
        if lock.acquire(timeout=LONGEST_WAIT):
            _held.locks.append(lock)


def _release():
    for lock in reversed(_held.locks):
        lock.release()


def _release_in_child():
    _release()
    instead = (_Lost, threading.RLock)  # finished machine code can still be called and freed
    for position, lock in enumerate(compiler_locks()):
        if lock.acquire(blocking=False):
            lock.release()
        else:  # the thread that held it does not exist here
            replace_compiler_lock(position, instead[position]())


def let_forks_wait():
    """Have every fork of this process wait while another thread compiles."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_acquire, after_in_parent=_release, after_in_child=_release_in_child)
