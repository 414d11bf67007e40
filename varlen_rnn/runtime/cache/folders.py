"""Find, list and remove the folders of compiled kernels; read and write their files.

There is one folder per environment (versions, processor and settings for which kernels are compiled).

Other processes may save, load and remove kernels at the same time, and a folder may be read-only.  So a missing file is
no error, and a file that cannot be removed stays.  Only files with the cache's own names are removed, because users can
put other files into the folder.

A kernel's file begins with a digest of the kernel and of the file's name; the kernel follows.  The digest detects a
file that is damaged, truncated or renamed, whose machine code must not run.  It is not a signature: whoever can write
to the folder can run code.
"""

import contextlib
import functools
import hashlib
import os
import re
import time
from pathlib import Path
from typing import NamedTuple

from numba import config

from varlen_rnn.whole_file import write_file

KEPT_UNUSED = 30 * 24 * 3600  # seconds after which an unused folder is removed

# A file in each folder; its text describes the environment, and its modification time is the folder's last use.
MARKER = "environment.txt"

_NAME = re.compile(r"[0-9a-f]{32}")
_OURS = ("*.nbc", "*.lock", "*.part", MARKER)


class KernelFolder(NamedTuple):
    """The contents of an environment's folder: `size` is in bytes, `last_used` in seconds since the epoch."""

    path: Path
    description: str
    num_kernels: int
    size: int
    last_used: float


def cache_folder():
    """Return the folder that holds all environments' folders: in `NUMBA_CACHE_DIR`, or else in the user's cache."""
    if config.CACHE_DIR:
        return _folder_in(config.CACHE_DIR)
    return _folder_in(os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache"))


@functools.cache  # Python takes long to join paths, and each kernel asks for the folder
def _folder_in(base):
    return Path(base) / "varlen_rnn"


def kernel_folders(place=None):
    """Return a KernelFolder for each environment in `place`, by default the user's cache; last used first."""
    return sorted(map(_look_into, _folders(place)), key=lambda folder: -folder.last_used)


def mark_used(folder, description=None):
    """Set the folder's time of last use to now, and write its description if one is given."""
    with contextlib.suppress(OSError):
        if description is None:
            os.utime(folder / MARKER)
        else:
            (folder / MARKER).write_text(description, encoding="utf-8")


def remove(folder):
    """Remove the kernels in an environment's folder, and the folder itself if it is then empty."""
    for pattern in _OURS:
        for path in _files(folder, pattern):
            with contextlib.suppress(OSError):
                path.unlink()
    with contextlib.suppress(OSError):
        folder.rmdir()


def remove_unused(keep):
    """Remove the folders that no process has used for 30 days, except the folder named `keep`."""
    for folder in _folders():
        if folder.name != keep and time.time() - _last_used(folder) > KEPT_UNUSED:
            remove(folder)


def has_kernels(folder):
    """Return whether `folder` holds any compiled kernel."""
    return bool(_files(folder, "*.nbc"))


def _folders(place=None):
    return [path for path in _files(place or cache_folder(), "*") if _NAME.fullmatch(path.name) and path.is_dir()]


def _files(folder, pattern):
    try:
        return list(folder.glob(pattern))
    except OSError:
        return []


def _look_into(folder):
    kernels = _files(folder, "*.nbc")
    try:
        description = (folder / MARKER).read_text(encoding="utf-8", errors="replace")
    except OSError:
        description = "unknown"
    size = sum(_stat(path, "st_size") for path in kernels)
    return KernelFolder(folder, description, len(kernels), size, _last_used(folder))


def _last_used(folder):
    return _stat(folder / MARKER, "st_mtime") or _stat(folder, "st_mtime")


def _stat(path, field):
    """Return a field of a file's status, or 0 if the file is gone."""
    try:
        return getattr(path.stat(), field)
    except OSError:
        return 0


def write_kernel(path, payload):
    """Write a kernel's file without waiting for the disk; `read_kernel` detects a file that a crash has damaged."""
    write_file(path, _digest(path, payload) + payload, durable=False)


def read_kernel(path):
    """Return the kernel in a file; raise OSError if it cannot be read, or ValueError if it is damaged."""
    content = memoryview(path.read_bytes())
    digest, payload = content[:32], content[32:]
    if digest != _digest(path, payload):
        raise ValueError(f"kernel {path}: expected the digest of its content, got another digest: the file is damaged")
    return payload


def _digest(path, payload):
    digest = hashlib.sha256(f"{path.parent.name}/{path.name}\0".encode())
    digest.update(payload)
    return digest.digest()
