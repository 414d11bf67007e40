"""The folders of compiled kernels, one per environment: find them, list them, remove unused ones.

Other processes may save, load and remove at the same time, and a folder may be read-only.  So a missing file is no
error, and a file that cannot be removed stays.  Only files that we wrote are ever removed, because the user's folder
may hold others.
"""

import contextlib
import os
import re
import time
from pathlib import Path
from typing import NamedTuple

from numba import config

KEPT_UNUSED = 30 * 24 * 3600  # seconds after which the folder of another environment is removed

# Its text describes the environment; its time of modification is the last use of the folder by any process.
MARKER = "environment.txt"

_NAME = re.compile(r"[0-9a-f]{32}")
_OURS = ("*.nbc", "*.lock", "*.part", MARKER)


class KernelFolder(NamedTuple):
    """What the folder of an environment holds: `size` in bytes, `last_used` in seconds since the epoch."""

    path: Path
    description: str
    num_kernels: int
    size: int
    last_used: float


def cache_folder():
    """Return the folder of all environments: `NUMBA_CACHE_DIR`/varlen_rnn, else `varlen_rnn` in the user's cache."""
    if config.CACHE_DIR:
        return Path(config.CACHE_DIR) / "varlen_rnn"
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "varlen_rnn"


def kernel_folders(place=None):
    """Return a KernelFolder for each environment in `place`, or in the user's cache; the last used first."""
    return sorted(map(_look_into, _folders(place)), key=lambda folder: -folder.last_used)


def mark_used(folder, description=None):
    """Note that this process uses `folder`; write the description if one is given."""
    with contextlib.suppress(OSError):
        if description is None:
            os.utime(folder / MARKER)
        else:
            (folder / MARKER).write_text(description, encoding="utf-8")


def remove(folder):
    """Remove the kernels of an environment, and its folder if nothing else is in it."""
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
    """Return a field of the status of a file; 0 if the file is gone."""
    try:
        return getattr(path.stat(), field)
    except OSError:
        return 0
