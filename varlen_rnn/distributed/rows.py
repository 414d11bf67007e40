"""Exchange rows between ranks (processes): bytes per row, and headers with the number of rows of each rank.

Ranks that gather arrays first exchange headers with the sizes.  If all arrays fit into their headers, this exchange is
the only one.
"""

from __future__ import annotations

import math

import numpy as np

from varlen_rnn.errors import ShapeError

SMALL = 1024  # bytes; an array of at most this size is sent in its header
HEAD = 16 + SMALL


def row_bytes(array: np.ndarray) -> int:
    """Return the number of bytes of one row of an array."""
    return array.dtype.itemsize * math.prod(array.shape[1:])


def check_same_rows(what: str, bytes_of_ranks: np.ndarray) -> None:
    """Raise unless the rows of all ranks have the same number of bytes; all ranks have all numbers, so all raise."""
    if (bytes_of_ranks != bytes_of_ranks[0]).any():
        expected, got = "rows of one shape and data type on all ranks", f"rows of {bytes_of_ranks.tolist()} bytes"
        raise ShapeError(what, expected=expected, got=got)


def head_of(array: np.ndarray) -> np.ndarray:
    """Return a header of HEAD bytes: the number of rows, the bytes per row, and the rows themselves if they fit."""
    head = np.zeros(HEAD, np.uint8)
    head[:16].view(np.int64)[:] = len(array), row_bytes(array)
    if array.nbytes <= SMALL:
        head[16 : 16 + array.nbytes] = array.reshape(-1).view(np.uint8)
    return head


def read_heads(heads: np.ndarray, array: np.ndarray) -> tuple[np.ndarray, list[np.ndarray] | None]:
    """Return the number of rows of each rank, read from the headers, and the arrays; None if one is too large."""
    counts, widths = np.ascontiguousarray(heads[:, :16]).view(np.int64).T
    check_same_rows("all_gather", widths)
    ends = 16 + counts * widths
    if ends.max() > HEAD:
        return counts, None
    shapes = [(rows, *array.shape[1:]) for rows in counts.tolist()]
    parts = [head[16:end].copy() for head, end in zip(heads, ends.tolist(), strict=True)]
    return counts, [part.view(array.dtype).reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
