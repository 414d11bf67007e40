"""Let one process compile a kernel while others wait, so that it is compiled only once."""

import os
import time

try:
    import fcntl
except ImportError:  # without POSIX locks, each process compiles for itself
    fcntl = None  # type: ignore[assignment]

LONGEST_WAIT = 60  # seconds; a process that was stopped while it compiled holds its file for longer
_BETWEEN_TRIES = 0.02  # seconds


class Alone:
    """The right to compile a kernel, held by locking a file beside the kernel's file.

    The constructor waits for the lock, at most `LONGEST_WAIT`.  The system unlocks the file when its process is killed.

    Parameters
    ----------
    path : Path
        The file in which the kernel will be saved.
    """

    def __init__(self, path):
        self._path, self._file = path.with_suffix(".lock"), None
        deadline = time.monotonic() + LONGEST_WAIT
        while self._is_locked_by_another() and time.monotonic() < deadline:
            time.sleep(_BETWEEN_TRIES)

    def release(self):
        """Unlock the file, so that other processes go on."""
        if self._file is not None:
            self._path.unlink(missing_ok=True)
            fcntl.flock(self._file, fcntl.LOCK_UN)  # `close` alone leaves the lock to a process forked meanwhile
            self._file.close()

    def _is_locked_by_another(self):
        """Try to lock the file; return True if another process holds it, False if it is locked or cannot be."""
        if fcntl is None:
            return False
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = self._path.open("ab")
        except OSError:  # the folder cannot be written
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            return isinstance(error, BlockingIOError)  # other errors mean a file system without locks
        if os.fstat(file.fileno()).st_nlink == 0:  # the holder of the lock has removed this file: try a new one
            file.close()
            return True
        self._file = file
        return False
