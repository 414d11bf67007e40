"""Arrays over memory maps of files: tables larger than the memory, of which the system keeps the pages in use."""

from __future__ import annotations

import mmap
import os
import tempfile

import numpy as np


def map_of(array: np.ndarray) -> np.ndarray | None:
    """Return the array that has the whole memory map that an array is a view of; None if its memory is no file."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array if isinstance(array.base, mmap.mmap) else None


def zeros_beside(array: np.ndarray) -> np.ndarray:
    """Return zeros of an array's shape and data type, which take no memory before they are written to.

    Zeros for a map of a file are a map of a file without a name, in the same folder: the file is sparse, so that it
    takes disk for the pages that were written to, and it is gone when the process ends.
    """
    path = getattr(map_of(array), "filename", None)
    if path is None or not array.size:
        return np.zeros(array.shape, array.dtype)  # by calloc: `np.zeros_like` would write to every page
    with tempfile.TemporaryFile(dir=os.path.dirname(os.path.abspath(path))) as file:
        return np.asarray(np.memmap(file, array.dtype, "w+", shape=array.shape))
