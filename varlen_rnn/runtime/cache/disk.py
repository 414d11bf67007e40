"""The cache that a compiled function gets: one file for a function and signature, in the folder of its environment."""

import contextlib
import functools
import hashlib
import os
import sys

from varlen_rnn.runtime.cache import folders
from varlen_rnn.runtime.cache.environment import sources_known, this_environment
from varlen_rnn.runtime.cache.fingerprint import fingerprint
from varlen_rnn.runtime.numba_internals import Cache, can_be_saved, from_bytes, start_runtime, to_bytes
from varlen_rnn.whole_file import write_file

COLD_START = (
    "varlen_rnn: compiling kernels for this machine, once; about 10 s "
    "(ahead of time: python -m varlen_rnn cache warm; silence: VARLEN_RNN_QUIET=1)"
)


def environment_folder():
    """Return the folder of the kernels of this process's environment."""
    return folders.cache_folder() / this_environment().name


class DiskCache(Cache):
    """Numba's interface of a cache, for one function; it never raises, for the cache is a convenience."""

    def __init__(self, function):
        self._function = function
        self._enabled = True

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
        try:
            compiled = from_bytes(_read(self._path(signature)), target_context)
        except Exception:  # not there, or damaged in any way: the kernel is compiled again and the file replaced
            _announce_cold_start()
            return None
        _mark_used()
        return compiled

    def save_overload(self, signature, compiled):
        """Save a compiled function, if it can be found again."""
        # After an upgrade under a running process, its machine code may belong to neither version of the sources.
        if not self._enabled or not can_be_saved(compiled) or not sources_known():
            return
        path = self._path(signature)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            payload = to_bytes(compiled)
            # What a crash of the system leaves of it is found damaged.
            write_file(path, _digest(path, payload) + payload, durable=False)
        except Exception:  # read-only, full, or gone; or a kernel that cannot be pickled
            return
        _describe_and_tidy()

    def _path(self, signature):
        digest = hashlib.sha256(f"{signature}\0{fingerprint(self._function)}".encode())
        return environment_folder() / f"{self._function.__name__}-{digest.hexdigest()[:32]}.nbc"


def _digest(path, payload):
    """Return the digest of a kernel and of its place, 32 bytes: machine code with a wrong bit would be run."""
    digest = hashlib.sha256(f"{path.parent.name}/{path.name}\0".encode())
    digest.update(payload)
    return digest.digest()


def _read(path):
    """Return the kernel that was written to a file, or raise: the file is not there, or damaged."""
    content = memoryview(path.read_bytes())
    digest, payload = content[:32], content[32:]
    if digest != _digest(path, payload):
        raise ValueError(path)
    return payload


# Each once per process, and cheap: `cache` remembers that it was done.


@functools.cache
def _announce_cold_start():
    """Say why the first step takes long, on the standard error, when this environment has no kernel yet."""
    quiet = os.environ.get("VARLEN_RNN_QUIET", "0") not in ("", "0")
    if sys.stderr is None or quiet or folders.has_kernels(environment_folder()):
        return
    with contextlib.suppress(OSError, ValueError):  # a closed one
        print(COLD_START, file=sys.stderr, flush=True)


@functools.cache
def _mark_used():
    folders.mark_used(environment_folder())


@functools.cache
def _describe_and_tidy():
    folders.mark_used(environment_folder(), this_environment().description)
    folders.remove_unused(keep=this_environment().name)
