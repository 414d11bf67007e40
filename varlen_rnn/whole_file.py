"""Write files that appear whole or not at all, even if others write them or the writer is killed."""

import contextlib
import errno
import functools
import hashlib
import os
import secrets
import stat

try:
    import fcntl
except ImportError:  # not a POSIX system: leftovers of killed writers stay
    fcntl = None  # type: ignore[assignment]  # no other module


def write_file(path, payload, durable=True):
    """Write a file beside `path` and move it there, so that a crash leaves the old file.

    If several write at once, one of them wins.  An existing file keeps its mode; if `path` is a link, its target is
    replaced.  Leftovers of killed writers of the same path are removed.

    Parameters
    ----------
    path : path
        What is there and is no regular file, such as a pipe, is written to as it is.
    payload : bytes
    durable : bool
        Whether to wait until the file, and its name, would outlive a crash of the system.

    Raises
    ------
    OSError
        A path that cannot be written: the path given, not the file beside it.

    Examples
    --------
    >>> import tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "file")
    >>> write_file(path, b"whole")
    >>> os.path.getsize(path), os.listdir(os.path.dirname(path))
    (5, ['file'])
    """
    try:
        target = os.path.realpath(os.fsdecode(path))
        mode = _mode(target)
        if mode is None or stat.S_ISREG(mode):
            _replace(target, payload, mode, durable)
        else:
            with open(target, "wb") as file:
                file.write(payload)
    except OSError as error:
        if error.filename is None:  # a full disk, say
            raise
        raise OSError(error.errno, error.strerror, os.fsdecode(path)) from error


def _mode(target):
    """Return the mode of a file, or None where there is none."""
    try:
        return os.stat(target).st_mode
    except FileNotFoundError:
        return None


def _replace(target, payload, mode, durable):
    folder, name = os.path.split(target)
    # Equally long for any name and unique to it, so that leftovers of a killed writer can be recognised.
    beginning = f".varlen_rnn-{hashlib.sha256(os.fsencode(name)).hexdigest()[:16]}-"
    _remove_leftovers(folder, beginning)
    while True:
        beside = os.path.join(folder, f"{beginning}{secrets.token_hex(8)}.part")
        try:
            # The system takes the umask off.  Of a file with a mode, others may not read before it is there.
            create = functools.partial(os.open, mode=0o666 if mode is None else stat.S_IMODE(mode) & 0o777 | 0o200)
            with open(beside, "xb", opener=create) as file:
                if not _hold(file):
                    continue
                _fill(file, payload, mode, durable)
                if fcntl is None:
                    file.close()  # such a system moves no open file
                os.replace(beside, target)
            break
        except BaseException:  # an interrupt may come after the file was moved
            with contextlib.suppress(OSError):
                os.unlink(beside)
            raise
    if durable:
        _sync_folder(folder)


def _hold(file):
    """Lock a new file for as long as it is open; return False if somebody has removed it as a leftover before."""
    if fcntl is not None:
        with contextlib.suppress(OSError):  # a file system without locks: there, nobody can tell leftovers
            fcntl.flock(file, fcntl.LOCK_EX)
    return os.fstat(file.fileno()).st_nlink > 0


def _fill(file, payload, mode, durable):
    file.write(payload)
    file.flush()
    if mode is not None:
        os.chmod(file.name, stat.S_IMODE(mode))
    if durable:
        os.fsync(file.fileno())


def _remove_leftovers(folder, beginning):
    """Remove leftovers of killed writers; a living writer holds a lock on its file."""
    names = []
    with contextlib.suppress(OSError):  # a folder that may not be listed
        names = [name for name in os.listdir(folder) if name.startswith(beginning)]
    for name in names if fcntl is not None else ():
        path = os.path.join(folder, name)
        with contextlib.suppress(OSError), open(path, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)


def _sync_folder(folder):
    """Write the names of a folder to its disk, where the system lets us."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:  # a folder that may not be listed; or a system that opens none
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that syncs no folders
            raise
    finally:
        os.close(handle)
