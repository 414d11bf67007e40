"""Write files atomically: a reader sees the old or the new file, even if the writer is killed."""

import contextlib
import errno
import functools
import hashlib
import os
import secrets
import stat

try:
    import fcntl
except ImportError:  # without POSIX locks, temporary files of killed writers are not removed
    fcntl = None  # type: ignore[assignment]


def write_file(path, payload, durable=True):
    """Write a temporary file beside `path` and move it to `path`, so that a crash leaves the old file intact.

    If several processes write at once, the last move wins.  The new file gets the mode of an existing file; if `path`
    is a link, its target is replaced.  Temporary files that killed writers of the same path have left are removed.

    If `path` is no regular file but, for example, a pipe, the payload is written directly to it.  The payload is bytes,
    or an iterable of buffers, which can reuse one memory.  With `durable`, return only after the disk has stored the
    file and its name.  An OSError names the path, not the temporary file.
    """
    try:
        target = os.path.realpath(os.fsdecode(path))
        mode = None  # None if the file does not exist
        with contextlib.suppress(FileNotFoundError):
            mode = os.stat(target).st_mode
        if mode is None or stat.S_ISREG(mode):
            _replace(target, payload, mode, durable)
        else:
            with open(target, "wb") as file:
                _write(file, payload)
    except OSError as error:
        if error.filename is None:  # for example, the disk is full
            raise
        raise OSError(error.errno, error.strerror, os.fsdecode(path)) from error


def _replace(target, payload, mode, durable):
    folder, name = os.path.split(target)
    # A prefix of fixed length identifies the target, so that temporary files of killed writers can be recognised.
    beginning = f".varlen_rnn-{hashlib.sha256(os.fsencode(name)).hexdigest()[:16]}-"
    _remove_leftovers(folder, beginning)
    while True:
        beside = os.path.join(folder, f"{beginning}{secrets.token_hex(8)}.part")
        try:
            # A new file gets the default mode, from which the system subtracts the umask.  A replacement of an existing
            # file gets the old mode from the start, so that nobody without permission can read it.
            create = functools.partial(os.open, mode=0o666 if mode is None else stat.S_IMODE(mode) & 0o777 | 0o200)
            with open(beside, "xb", opener=create) as file:
                if not _hold(file):
                    continue
                _fill(file, payload, mode, durable)
                if fcntl is None:
                    file.close()  # Windows cannot move an open file
                os.replace(beside, target)
            break
        except BaseException:  # after an interrupt, the temporary file may still exist, or be moved already
            with contextlib.suppress(OSError):
                os.unlink(beside)
            raise
    if durable:
        _sync_folder(folder)


def _hold(file):
    """Lock a new file while it is open; return False if another writer removed it before it was locked."""
    if fcntl is not None:
        with contextlib.suppress(OSError):  # without locks on this file system, nobody removes such files
            fcntl.flock(file, fcntl.LOCK_EX)
    return os.fstat(file.fileno()).st_nlink > 0


def _write(file, payload):
    file.writelines([payload] if isinstance(payload, bytes) else payload)


def _fill(file, payload, mode, durable):
    _write(file, payload)
    file.flush()
    if mode is not None:
        os.chmod(file.name, stat.S_IMODE(mode))
    if durable:
        os.fsync(file.fileno())


def _remove_leftovers(folder, beginning):
    # A temporary file with a lock belongs to a writer that still runs.
    names = []
    with contextlib.suppress(OSError):  # the folder may not be readable
        names = [name for name in os.listdir(folder) if name.startswith(beginning)]
    for name in names if fcntl is not None else ():
        path = os.path.join(folder, name)
        with contextlib.suppress(OSError), open(path, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)


def _sync_folder(folder):
    """Store a folder's entries (names of files) on the disk, if the system supports this."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:  # the folder is not readable, or the system opens no folders
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # EINVAL: the file system cannot sync folders
            raise
    finally:
        os.close(handle)
