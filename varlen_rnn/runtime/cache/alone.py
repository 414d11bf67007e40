"""One process compiles a kernel while the others wait, so that many on an empty cache compile each kernel once."""

import os
import time

try:
    import fcntl
except ImportError:  # not a POSIX system: there, each process compiles
    fcntl = None  # type: ignore[assignment]  # no other module

LONGEST_WAIT = 60  # seconds; a process that was stopped while it compiled holds its file for longer
_BETWEEN_TRIES = 0.02  # seconds


class Alone:
    """The right to compile a kernel: a locked file beside the one that the kernel will be saved in.

    The system unlocks the file when its process is killed.

    Parameters
    ----------
    path : Path
        Of the kernel.
    """

    def __init__(self, path):
        self._path, self._file = path.with_suffix(".lock"), None
        deadline = time.monotonic() + LONGEST_WAIT
        while self._is_locked_by_another() and time.monotonic() < deadline:
            time.sleep(_BETWEEN_TRIES)

    def release(self):
        """Let others compile."""
        if self._file is not None:
            self._path.unlink(missing_ok=True)
            fcntl.flock(self._file, fcntl.LOCK_UN)  # for a process that was forked meanwhile, too
            self._file.close()

    def _is_locked_by_another(self):
        """Return whether to try again; where nobody can lock files, there is nothing to wait for."""
        if fcntl is None:
            return False
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = self._path.open("ab")
        except OSError:  # a folder that cannot be written
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            return isinstance(error, BlockingIOError)  # else a file system without locks
        if os.fstat(file.fileno()).st_nlink == 0:  # whoever had it has removed it
            file.close()
            return True
        self._file = file
        return False
