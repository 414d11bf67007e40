"""How user input becomes LoD levels and rows: every check of a structure stands here.

Errors say which level and which entry, what was expected, what came, and what was probably meant.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from varlen_rnn.errors import DTypeError, LoDError, ShapeError, count
from varlen_rnn.typing import Offsets, Rows


def as_levels(levels: Any) -> list:
    """Return the levels as a list, or raise."""
    if isinstance(levels, (str, bytes, dict)) or not np.iterable(levels):
        raise LoDError("LoD", expected="a list of levels", got=repr(levels)[:80])
    return list(levels)


def _as_integers(level: Any, number: int, example: str) -> np.ndarray:
    if isinstance(level, (str, bytes, dict)) or not np.iterable(level):
        hint = f"a single level is a list in a list: {example}"
        raise LoDError(f"level {number}", expected="a list of integers", got=repr(level)[:80], hint=hint)
    try:
        array = np.asarray(level if isinstance(level, np.ndarray) else list(level))
    except (ValueError, TypeError, OverflowError) as error:
        raise LoDError(f"level {number}", expected="a flat list of integers", got=repr(level)[:80]) from error
    if array.ndim != 1:
        raise LoDError(f"level {number}", expected="a flat list of integers", got=f"an array of shape {array.shape}")
    if array.size == 0:
        return array.astype(np.int64)
    if array.dtype.kind not in "iu" or (array.dtype.kind == "u" and array.max() > np.iinfo(np.int64).max):
        raise LoDError(f"level {number}", expected="integers that fit 64 bits", got=f"data type {array.dtype}")
    return array.astype(np.int64)


def check_offsets(level: Offsets, number: int) -> np.ndarray:
    """Return the offsets of a level as a read-only int64 array, or raise: they start at 0 and never fall."""
    offsets = _as_integers(level, number, "[[0, 2, 5]], the offsets of lengths 2 and 3")
    if len(offsets) == 0:
        raise LoDError(f"level {number}", expected="at least the offset 0", got="no offset")
    if offsets[0] != 0:
        hint = "did you pass lengths? use create_lod_tensor or set_recursive_sequence_lengths"
        raise LoDError(f"level {number}, entry 0", expected="offset 0", got=int(offsets[0]), hint=hint)
    falls = np.flatnonzero(offsets[1:] < offsets[:-1])
    if len(falls):
        entry = int(falls[0]) + 1
        raise LoDError(
            f"level {number}, entry {entry}",
            expected=f"an offset of at least {offsets[entry - 1]}, the one before it",
            got=int(offsets[entry]),
            hint="offsets never fall; did you pass lengths?",
        )
    return read_only(offsets)


def offsets_of(level: Offsets, number: int) -> np.ndarray:
    """Return the offsets of a level given by its lengths, or raise: none is negative."""
    lengths = _as_integers(level, number, "[[2, 5]], the lengths")
    negative = np.flatnonzero(lengths < 0)
    if len(negative):
        entry = int(negative[0])
        raise LoDError(f"level {number}, entry {entry}", expected="a length of at least 0", got=int(lengths[entry]))
    if len(lengths) and float(lengths.sum(dtype=np.float64)) > 2.0**62:
        raise LoDError(
            f"level {number}", expected="lengths that sum to less than 2**62", got=f"{lengths.max()} and more"
        )
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def as_rows(data: Rows) -> np.ndarray:
    """Return `data` as an array of numbers in native byte order, or raise; no copy where NumPy needs none.

    It is plain, and an object of its own: it keeps its number of rows when the caller's array gets another shape.
    """
    if type(data) is not np.ndarray:
        check_unmasked(data, "data")
    try:
        array = np.asarray(data)
    except (ValueError, TypeError) as error:
        hint = "use LoDTensor.from_sequences for lists of unequal length"
        raise ShapeError("data", expected="rows of one shape", got=type(data).__name__, hint=hint) from error
    if array.dtype.kind not in "fiub":
        raise DTypeError("data", expected="numbers", got=f"data type {array.dtype}")
    if not array.dtype.isnative:
        return array.astype(array.dtype.newbyteorder("="))
    return array.view()


def check_unmasked(data: object, name: str) -> None:
    """Raise if entries of a masked array are masked: as a plain array, it would show what stands behind the mask."""
    if isinstance(data, np.ndarray) and np.ma.is_masked(data):
        raise DTypeError(name, expected="an array without masked entries", got="masked entries", hint="use filled()")


def read_only(array: np.ndarray) -> np.ndarray:
    """Return the array, which nobody can write to any more."""
    array.flags.writeable = False
    return array


def depth_of(item: object) -> int | None:
    """Return how many levels of lists stand above the sequences; None where an empty list leaves it open."""
    if not isinstance(item, (list, tuple)):
        return 0
    if not item:
        return None
    nested = [isinstance(child, (list, tuple)) or (isinstance(child, np.ndarray) and child.ndim) for child in item]
    if not any(nested):
        return 0
    depths = {depth for depth in map(depth_of, item) if depth is not None}
    if not all(nested) or len(depths) > 1:
        got = "numbers beside sequences" if not all(nested) else f"depths {sorted(depths)}"
        raise LoDError("sequences", expected="lists nested equally deep", got=got)
    return 1 + (depths.pop() if depths else 0)


def children_of(item: object, number: int) -> list | tuple:
    """Return the list that stands for a sequence of an upper level, or raise."""
    if not isinstance(item, (list, tuple)):
        raise LoDError(f"level {number}", expected="a list of sequences", got=type(item).__name__)
    return item


def as_sequence(item: Any, number: int, dtype: DTypeLike | None) -> np.ndarray:
    """Return the rows of one sequence, or raise."""
    try:
        rows = as_rows(np.asarray(item, dtype))
    except (ValueError, TypeError) as error:
        raise ShapeError(f"sequence {number}", expected="rows of one shape", got=repr(item)[:80]) from error
    if rows.ndim == 0:
        raise ShapeError(f"sequence {number}", expected="a list or array of rows", got=repr(item)[:80])
    return rows


def join_sequences(leaves: list[np.ndarray], dtype: DTypeLike | None) -> np.ndarray:
    """Concatenate sequences; one without rows and without an element shape takes that of the others."""
    shapes = [leaf.shape[1:] for leaf in leaves if leaf.size or leaf.ndim > 1]
    element = shapes[0] if shapes else ()
    for number, leaf in enumerate(leaves):
        if leaf.shape[1:] != element and (leaf.size or leaf.ndim > 1):
            raise ShapeError(f"sequence {number}", expected=f"rows of shape {element}", got=f"{leaf.shape[1:]}")
    filled = [leaf for leaf in leaves if len(leaf)]
    if not filled:
        typed = leaves[0].dtype if leaves else np.dtype(dtype or np.float64)
        return np.empty((0, *element), typed)
    return np.concatenate(filled)


def check_cover(lod: Any, data: np.ndarray) -> None:
    """Raise unless the last level of `lod`, if there is one, covers the rows of `data`."""
    if len(lod) == 0:
        return
    if data.ndim == 0:
        raise LoDError("data", expected="rows, for it has a LoD", got="a single number")
    if lod.num_rows != len(data):
        raise LoDError(
            f"level {len(lod) - 1}",
            expected=f"to cover {count(len(data), 'row')}, the first dimension of the data",
            got=count(lod.num_rows, "row"),
            hint="the last level counts rows; did you mix up lengths and offsets?",
        )
