"""Arrays over memory maps of files, for tables larger than the memory, which then holds only the pages in use."""

from __future__ import annotations

import mmap
import os
import tempfile

import numpy as np


def map_of(array: np.ndarray) -> np.ndarray | None:
    """Return the array over a whole memory map of which `array` is a view, or None if its memory is not a file."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array if isinstance(array.base, mmap.mmap) else None


def zeros_beside(array: np.ndarray) -> np.ndarray:
    """Return zeros with an array's shape and data type; they take no memory until they are written to.

    If `array` maps a file, the zeros map a file without a name in the same folder.  That file is sparse: only pages
    that were written to take disk space.  It is gone when the process ends.
    """
    path = getattr(map_of(array), "filename", None)
    if path is None or not array.size:
        return np.zeros(array.shape, array.dtype)  # takes no memory yet; `np.zeros_like` would write to every page
    with tempfile.TemporaryFile(dir=os.path.dirname(os.path.abspath(path))) as file:
        return np.asarray(np.memmap(file, array.dtype, "w+", shape=array.shape))
