"""Rows on the wire: how many bytes each has, and where the rows of each rank begin."""

from __future__ import annotations

import math

import numpy as np

from varlen_rnn.errors import ShapeError


def row_bytes(array: np.ndarray) -> int:
    """Return the bytes of a row of an array.

    Examples
    --------
    >>> row_bytes(np.zeros((0, 3), np.float32))
    12
    """
    return array.dtype.itemsize * math.prod(array.shape[1:])


def ends_of(counts: np.ndarray) -> np.ndarray:
    """Return 0 and the sums of the counts up to each.

    Examples
    --------
    >>> ends_of(np.array([2, 0, 3]))
    array([0, 2, 2, 5])
    """
    return np.concatenate([[0], np.cumsum(counts)])


def check_same_rows(what: str, bytes_of_ranks: np.ndarray) -> None:
    """Raise unless the rows of all ranks have the same number of bytes; every rank knows all, so all raise.

    Examples
    --------
    >>> check_same_rows("all_gather", np.array([8, 8]))
    """
    if (bytes_of_ranks != bytes_of_ranks[0]).any():
        expected, got = "rows of one shape and data type on all ranks", f"rows of {bytes_of_ranks.tolist()} bytes"
        raise ShapeError(what, expected=expected, got=got)
