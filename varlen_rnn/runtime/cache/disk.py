"""The cache that a compiled function gets: one file for a function and signature, in the folder of its environment."""

import functools
import hashlib
import threading

from varlen_rnn.runtime.cache import folders
from varlen_rnn.runtime.cache.alone import Alone
from varlen_rnn.runtime.cache.announce import announce_compiling
from varlen_rnn.runtime.cache.bundles import usable_bundles
from varlen_rnn.runtime.cache.environment import sources_known, this_environment
from varlen_rnn.runtime.cache.fingerprint import fingerprint
from varlen_rnn.runtime.cache.kernel_file import read_kernel, write_kernel
from varlen_rnn.runtime.cache.level import TARGET
from varlen_rnn.runtime.numba_internals import (
    Cache,
    can_be_saved,
    compiled_for_level,
    from_bytes,
    start_runtime,
    target,
    to_bytes,
)


def environment_folder():
    """Return the folder of the kernels of this process's environment."""
    return folders.cache_folder() / this_environment().name


class DiskCache(Cache):
    """Numba's interface of a cache, for one kernel; it never raises, for the cache is a convenience.

    Parameters
    ----------
    kernel : Dispatcher
    linkable : bool
        Whether other compiled code may make the kernel part of itself.
    """

    def __init__(self, kernel, linkable):
        self._kernel, self._function, self._linkable = kernel, kernel.py_func, linkable
        self._enabled = True
        self._alone = {}  # by thread: the right to compile, while other processes wait

    @property
    def cache_path(self):
        """The folder of this environment, as text."""
        return str(environment_folder())

    def enable(self):
        """Load and save from now on."""
        self._enabled = True

    def disable(self):
        """Neither load nor save from now on."""
        self._enabled = False

    def flush(self):
        """Forget nothing: a digest never names stale code."""

    def load_overload(self, signature, target_context):
        """Return the compiled function of a signature, or None if it must be compiled."""
        if not self._enabled:
            return None
        start_runtime(target_context)
        path = self._path(signature)
        if _is_for_others():
            return None
        compiled = self._found(path, target_context)
        if compiled is not None:
            return compiled
        announce_compiling(environment_folder())
        thread = threading.get_ident()
        if thread not in self._alone or not sources_known():  # nothing will be compiled, or saved for others
            return None
        self._alone[thread] = Alone(path)
        return self._load(path, target_context)  # which another process may have saved meanwhile

    def compile_alone(self, compile_one):
        """Return `compile_one`, which lets other processes compile the kernel when it has ended."""

        @functools.wraps(compile_one)
        def compile_and_release(signature):
            thread = threading.get_ident()
            if thread in self._alone:  # a function that calls itself
                return compile_one(signature)
            self._alone[thread] = None
            try:
                return compile_one(signature)
            finally:
                if (alone := self._alone.pop(thread)) is not None:
                    alone.release()

        return compile_and_release

    def _found(self, path, target_context):
        for folder in (path.parent, *usable_bundles()):
            compiled = self._load(folder / path.name, target_context)
            if compiled is not None:
                _mark_used(folder)
                return compiled
        return None

    def _load(self, path, target_context):
        try:
            return from_bytes(read_kernel(path), target_context, self._linkable)
        except Exception:  # not there, or damaged in any way: the kernel is compiled again
            return None

    def save_overload(self, signature, compiled):
        """Save a compiled function, if it can be found again."""
        # After an upgrade under a running process, its machine code may belong to neither version of the sources.
        if not self._enabled or not can_be_saved(compiled) or not sources_known():
            return
        path = self._path(signature)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if _is_for_others():
                compiled = compiled_for_level(TARGET, self._kernel, signature)
            write_kernel(path, to_bytes(compiled, self._linkable))
        except Exception:  # read-only, full, or gone; or a kernel that cannot be pickled
            return
        _describe_and_tidy()

    def _path(self, signature):
        digest = hashlib.sha256(f"{signature}\0{fingerprint(self._function)}".encode())
        return environment_folder() / f"{self._function.__name__}-{digest.hexdigest()[:32]}.nbc"


@functools.cache
def _is_for_others():
    """Return whether this process saves code for processors of a level that its own code is not for."""
    return TARGET is not None and target()[1:] != (TARGET, "")


# Each once per process, and cheap: `cache` remembers that it was done.


@functools.cache
def _mark_used(folder):
    if folder.parent == folders.cache_folder():  # the others came with an installation
        folders.mark_used(folder)


@functools.cache
def _describe_and_tidy():
    folders.mark_used(environment_folder(), this_environment().description)
    folders.remove_unused(keep=this_environment().name)
