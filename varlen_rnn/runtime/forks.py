"""Make forks wait until no thread compiles or runs a step of a stream, so that the child process can do so, too.

In a child process, only the thread that forked continues.  A lock that another thread holds would stay locked forever,
and the work under that lock would stay half done: LLVM's, or the states of a stream.
"""

import os
import threading
import weakref

from varlen_rnn.runtime.numba_internals import compiler_locks, replace_compiler_lock

LONGEST_WAIT = 60  # seconds; compiling the largest function takes about ten

_held = threading.local()  # the locks that the forking thread holds during the fork
_turns: set[weakref.ref[threading.Lock]] = set()  # weak references to the locks that `turn` has made


def turn():
    """Return a lock for threads that take turns; a fork waits for the thread that has it, at most `LONGEST_WAIT`."""
    lock = threading.Lock()
    _turns.add(weakref.ref(lock, _turns.discard))
    return lock


def _all_turns():
    return [lock for reference in list(_turns) if (lock := reference()) is not None]


class _Lost:
    """Replaces the compiler's lock in a child process that was forked during a compilation; it raises if acquired."""

    def acquire(self, *arguments, **named):
        raise RuntimeError(
            "this process was forked while another thread compiled a kernel, so it cannot compile kernels: "
            "fork before or after the compilation, or start processes with multiprocessing's 'spawn'"
        )


def _acquire():
    _held.locks = []
    for lock in (*_all_turns(), *compiler_locks()):  # whoever has a turn may compile, so turns come first
        if lock.acquire(timeout=LONGEST_WAIT):
            _held.locks.append(lock)


def _release():
    for lock in reversed(_held.locks):
        lock.release()


def _release_in_child():
    _release()
    for lock in _all_turns():
        if lock.locked():  # the thread that held it does not exist in the child
            lock.release()
    instead = (_Lost, threading.RLock)  # a new lock for LLVM, so that compiled code can still be called and freed
    for position, lock in enumerate(compiler_locks()):
        if lock.acquire(blocking=False):
            lock.release()
        else:
            replace_compiler_lock(position, instead[position]())


def let_forks_wait():
    """Make every fork of this process wait while another thread compiles, or has a turn."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_acquire, after_in_parent=_release, after_in_child=_release_in_child)
