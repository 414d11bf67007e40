"""The cache of one compiled function: a file per signature, in the folder of the environment.

One process compiles a kernel while other processes wait, so that it is compiled only once.
"""

import functools
import hashlib
import os
import threading
import time

from varlen_rnn.runtime.cache import folders
from varlen_rnn.runtime.cache.announce import announce_compiling
from varlen_rnn.runtime.cache.bundles import usable_bundles
from varlen_rnn.runtime.cache.environment import fingerprint, sources_known, this_environment
from varlen_rnn.runtime.cache.folders import read_kernel, write_kernel
from varlen_rnn.runtime.cache.level import LEVELS, TARGET
from varlen_rnn.runtime.numba_internals import (
    Cache,
    can_be_saved,
    code_from_bytes,
    compiled_for_processor,
    from_bytes,
    start_runtime,
    target,
    to_bytes,
)

try:
    import fcntl
except ImportError:  # without POSIX locks, each process compiles for itself
    fcntl = None  # type: ignore[assignment]

LONGEST_WAIT = 60  # seconds to wait for a lock; a process that is paused while it compiles may hold it for longer
_BETWEEN_TRIES = 0.02  # seconds


class Alone:
    """The right of one process to compile a kernel: a lock on a file beside `path`, the kernel's own file.

    The constructor waits for the lock, at most `LONGEST_WAIT`.  The system unlocks the file when its process is killed.
    """

    def __init__(self, path):
        self._path, self._file = path.with_suffix(".lock"), None
        deadline = time.monotonic() + LONGEST_WAIT
        while self._is_locked_by_another() and time.monotonic() < deadline:
            time.sleep(_BETWEEN_TRIES)

    def release(self):
        """Unlock the file, so that waiting processes continue."""
        if self._file is not None:
            self._path.unlink(missing_ok=True)
            fcntl.flock(self._file, fcntl.LOCK_UN)  # after `close` alone, a forked process would still hold it
            self._file.close()

    def _is_locked_by_another(self):
        """Try to lock the file; return True if another process holds the lock, False if this one does or locks fail."""
        if fcntl is None:
            return False
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = self._path.open("ab")
        except OSError:  # the folder is not writable
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            return isinstance(error, BlockingIOError)  # other errors mean a file system without locks
        if os.fstat(file.fileno()).st_nlink == 0:  # the former holder of the lock has removed this file: try a new file
            file.close()
            return True
        self._file = file
        return False


def environment_folder():
    """Return the folder for kernels that this process compiles."""
    return _folder_in(folders.cache_folder(), this_environment())


class DiskCache(Cache):
    """A cache for one kernel, with Numba's interface; it never raises, so that it cannot stop a program."""

    def __init__(self, kernel, linkable):
        self._kernel, self._function, self._linkable = kernel, kernel.py_func, linkable
        self._enabled = True
        self._alone = {}  # for each compiling thread: the `Alone` that makes other processes wait, or None

    @property
    def cache_path(self):
        """The folder of this environment, as a string."""
        return str(environment_folder())

    def enable(self):
        """From now on, load compiled kernels from the disk and save new ones there."""
        self._enabled = True

    def disable(self):
        """From now on, neither load nor save kernels."""
        self._enabled = False

    def flush(self):
        """Do nothing: there is no stale code to flush, because a file's name is a digest of its function."""

    def load_overload(self, signature, target_context):
        """Return the compiled function of a signature, or None if it must be compiled."""
        if not self._enabled:
            return None
        start_runtime()
        path = self._path(signature)
        if _is_for_others():
            return None

        def load(payload):
            return from_bytes(payload, target_context, self._linkable)

        compiled = self._found(path, load)
        if compiled is not None:
            return compiled
        announce_compiling(environment_folder())
        thread = threading.get_ident()
        if thread not in self._alone or not sources_known():  # no compilation follows, or its result cannot be saved
            return None
        self._alone[thread] = Alone(path)
        return self._load(path, load)  # another process can have saved it during the wait

    def find_code(self, signature):
        """Return the address of the saved code of a signature, and whether it returns nothing; None if none is saved.

        It is for functions that Python does not call.
        """
        if not self._enabled or _is_for_others():
            return None
        start_runtime()
        return self._found(self._path(signature), code_from_bytes)

    def compile_alone(self, compile_one):
        """Return a version of `compile_one` that lets waiting processes continue when the compilation has ended."""

        @functools.wraps(compile_one)
        def compile_and_release(signature):
            thread = threading.get_ident()
            if thread in self._alone:  # a recursive kernel compiles itself again
                return compile_one(signature)
            self._alone[thread] = None
            try:
                return compile_one(signature)
            finally:
                if (alone := self._alone.pop(thread)) is not None:
                    alone.release()

        return compile_and_release

    def _found(self, path, load):
        for folder in (path.parent, *usable_bundles()):
            found = self._load(folder / path.name, load)
            if found is not None:
                _mark_used(folder)
                return found
        return None

    def _load(self, path, load):
        try:
            return load(read_kernel(path))
        except Exception:  # the file is missing or damaged, so the kernel is compiled
            return None

    def save_overload(self, signature, compiled):
        """Save a compiled function, unless its code depends on this process or the sources have changed."""
        # If the package is upgraded while a process runs, code compiled afterwards can belong to neither version.
        if not self._enabled or not can_be_saved(compiled) or not sources_known():
            return
        path = self._path(signature)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if _is_for_others():
                compiled = compiled_for_processor(LEVELS[TARGET].cpu, self._kernel, signature)
            write_kernel(path, to_bytes(compiled, self._linkable))
        except Exception:  # the disk is read-only or full, or the kernel cannot be pickled
            return
        _describe_and_tidy()

    def _path(self, signature):
        digest = hashlib.sha256(f"{signature}\0{fingerprint(self._function)}".encode())
        return environment_folder() / f"{self._function.__name__}-{digest.hexdigest()[:32]}.nbc"


@functools.cache
def _is_for_others():
    """Return whether this process compiles kernels for another processor level than its own."""
    return TARGET is not None and target()[1:] != (LEVELS[TARGET].cpu, "")


# `functools.cache` makes each of these functions run once per process and argument.


@functools.cache
def _folder_in(folder, environment):
    return folder / environment.name


@functools.cache
def _mark_used(folder):
    if folder.parent == folders.cache_folder():  # installed folders are left unchanged
        folders.mark_used(folder)


@functools.cache
def _describe_and_tidy():
    folders.mark_used(environment_folder(), this_environment().description)
    folders.remove_unused(keep=this_environment().name)
