"""Check user input and convert it to LoD levels and rows.

Errors name the level and the entry, the expected and the actual value, and a likely remedy.
"""

from __future__ import annotations

import itertools
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from varlen_rnn.errors import DTypeError, LoDError, OutOfRangeError, PlaceError, ProgramError, ShapeError, count, shown
from varlen_rnn.runtime.device_array import DeviceArray, shared
from varlen_rnn.runtime.placeholder import Placeholder
from varlen_rnn.typing import Offsets

_MOST_DEPTH = 64  # NumPy's limit on nested lists
KEEPS_GRADIENT = "functional.concat(variables, axis=0).with_lod(offsets) keeps the gradient"


def as_levels(levels: Any) -> list:
    """Return `levels` as a list, or raise if it is not iterable or is a string or a dict."""
    if isinstance(levels, (str, bytes, dict)) or not np.iterable(levels):
        raise LoDError("LoD", expected="a list of levels, such as [[0, 2, 5]]", got=shown(levels))
    return list(levels)


def _as_integers(level: Any, number: int, example: str) -> np.ndarray:
    if isinstance(level, np.ndarray):
        check_unmasked(level, f"level {number}")
    if isinstance(level, (str, bytes, dict)) or not np.iterable(level):
        hint = f"put each level into a list of its own: {example}"
        raise LoDError(f"level {number}", expected="a list of integers", got=shown(level), hint=hint)
    try:
        array = np.asarray(level if isinstance(level, np.ndarray) else list(level))
    except (ValueError, TypeError, OverflowError) as error:
        raise LoDError(f"level {number}", expected="a flat list of integers", got=shown(level)) from error
    if array.ndim != 1:
        raise LoDError(f"level {number}", expected="a flat list of integers", got=f"an array of shape {array.shape}")
    if array.size == 0:
        return array.astype(np.int64)
    if array.dtype.kind not in "iu" or (array.dtype.kind == "u" and array.max() > np.iinfo(np.int64).max):
        raise LoDError(f"level {number}", expected="integers that fit int64", got=f"data type {array.dtype}")
    return array.astype(np.int64, copy=False)


def check_offsets(level: Offsets, number: int) -> np.ndarray:
    """Return a level's offsets as a read-only int64 array; raise unless they start at 0 and never fall."""
    # Offsets are copied before they are checked, because the caller may change its array after the checks.
    offsets = read_only(_as_integers(level, number, "[[0, 2, 5]], the offsets of sequences of 2 and 3 rows"))
    if len(offsets) == 0:
        raise LoDError(f"level {number}", expected="at least the offset 0", got="no offset")
    if offsets[0] != 0:
        first, last = int(offsets[0]), int(offsets[-1])
        hint = "did you pass lengths? use create_lod_tensor or set_recursive_sequence_lengths"
        if first > 0 and not (offsets[1:] < offsets[:-1]).any():
            hint += f"; if this is a slice of offsets, subtract {first} from all, and pass rows {first} to {last}"
        raise LoDError(f"level {number}, entry 0", expected="offset 0", got=first, hint=hint)
    falls = np.flatnonzero(offsets[1:] < offsets[:-1])
    if len(falls):
        entry = int(falls[0]) + 1
        expected = f"an offset of at least {offsets[entry - 1]}, the offset before it"
        got, hint = int(offsets[entry]), "offsets never fall; did you pass lengths?"
        raise LoDError(f"level {number}, entry {entry}", expected=expected, got=got, hint=hint)
    return offsets


def offsets_of(level: Offsets, number: int) -> np.ndarray:
    """Return the offsets of a level, given the lengths of its sequences; raise if a length is negative."""
    lengths = _as_integers(level, number, "[[2, 3]], the lengths of sequences of 2 and 3 rows")
    negative = np.flatnonzero(lengths < 0)
    if len(negative):
        entry = int(negative[0])
        raise LoDError(f"level {number}, entry {entry}", expected="a length of at least 0", got=int(lengths[entry]))
    if len(lengths) and float(lengths.sum(dtype=np.float64)) > 2.0**62:
        got = f"lengths of up to {lengths.max()}"
        raise LoDError(f"level {number}", expected="lengths with a sum of at most 2**62", got=got)
    return ends_of(lengths)


def ends_of(counts: np.ndarray) -> np.ndarray:
    """Return 0, followed by the cumulative sums of the counts, int64."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])


def as_positions(positions: ArrayLike) -> np.ndarray:
    """Return the positions of sequences in a batch as a read-only int64 array, or raise."""
    check_unmasked(positions, "positions")
    expected = "a flat list of integers of at least 0"
    try:
        array = np.asarray(positions)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise LoDError("positions", expected=expected, got=shown(positions)) from error
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise LoDError("positions", expected=expected, got=f"{array.dtype} of shape {array.shape}")
    found = read_only(array.astype(np.int64))
    if len(found) and found.min() < 0:  # unsigned numbers of 2**63 or more became negative, too
        raise LoDError("positions", expected=expected, got=shown(positions))
    return found


def as_rows(data: Any, name: str = "data", hint: str | None = None) -> np.ndarray:
    """Return `data` as an array of numbers in native byte order, without a copy if possible, or raise.

    The result is a new view, so that its shape does not change if the caller changes the shape of `data` in place.
    Memory on a CUDA device, such as PyTorch's tensors have, becomes a DeviceArray.  If `data` is a Variable that
    requires a gradient, the error has `hint`, which names code that keeps the gradient.
    """
    if type(data) is not np.ndarray:
        check_no_gradient(data, name, hint)
        check_unmasked(data, name)
        found: Any = device_rows(data)
        if found is not None:
            return found
    try:
        array = np.asarray(data)
        if array.dtype.kind == "O" and hasattr(data, "__dlpack__"):  # `np.asarray` could not read the object
            array = np.from_dlpack(data)
    # A PyTorch tensor that requires a gradient raises a RuntimeError, a tensor on a GPU a BufferError.
    except (ValueError, TypeError, OverflowError, RecursionError, RuntimeError, BufferError) as error:
        lists = isinstance(data, (list, tuple))
        hint = "use LoDTensor.from_sequences for lists of unequal length" if lists else f"NumPy says: {error}"
        raise ShapeError(name, expected="rows of one shape", got=type(data).__name__, hint=hint) from error
    if isinstance(data, (list, tuple)):
        array = whole_numbers(array, data, name)
    if array.dtype.kind not in "fiub":
        raise DTypeError(name, expected="numbers", got=f"data type {array.dtype}")
    if not array.dtype.isnative:
        return array.astype(array.dtype.newbyteorder("="))
    return array.view()


def whole_numbers(array: np.ndarray, numbers: list | tuple, name: str) -> np.ndarray:
    """Return the array that NumPy made of a list, or a uint64 array if integers of 2**63 or more made that one float64.

    Examples
    --------
    >>> np.asarray([2**63 + 1, 5]), whole_numbers(np.asarray([2**63 + 1, 5]), [2**63 + 1, 5], "ids")
    (array([9.22337204e+18, 5.00000000e+00]), array([9223372036854775809,                   5], dtype=uint64))
    """
    if array.dtype != np.float64 or not (array >= 2.0**63).any():
        return array
    given = np.array(numbers, object)
    if not all(isinstance(number, Integral) for number in given.flat):
        return array
    return _unsigned([given], name)[0]


def _unsigned(arrays: list[np.ndarray], name: str) -> list[np.ndarray]:
    """Return integers as uint64; raise if an integer is negative, because no type holds both this integer and 2**63."""
    for array in arrays:
        if (array < 0).any():
            hint = "write floats if they are measurements; ids are 0 or more"
            got = f"{int(array.min())} together with integers of 2**63 or more"
            raise DTypeError(name, expected="integers that fit one data type", got=got, hint=hint)
    return [array.astype(np.uint64) for array in arrays]


def check_no_gradient(data: object, name: str, hint: str | None = None) -> None:
    """Raise if `data` is or contains a Variable that requires a gradient, because an array would lose the gradient."""
    if loses_gradient(data):
        remedy = "x.detach() returns the numbers without a gradient"
        got = "a Variable that requires a gradient" if not isinstance(data, (list, tuple)) else "a list with Variables"
        expected = "numbers without a gradient, because it would be lost"
        raise ProgramError(name, expected=expected, got=got, hint=f"{hint}; {remedy}" if hint else remedy)


def loses_gradient(data: Any) -> bool:
    """Return whether converting `data`, a Variable or nested lists with Variables, to an array would lose a gradient.

    A Variable is recognised by its attribute `_loses_gradient`, because this file cannot import the class.
    """
    if not isinstance(data, (list, tuple)):
        return hasattr(type(data), "_loses_gradient") and data._loses_gradient
    seen, lists = set[int](), [data]
    while lists:  # one pass per depth: a call for each of many short lists would take several times as long
        kinds = set(map(type, itertools.chain.from_iterable(lists)))
        if variables := {kind for kind in kinds if hasattr(kind, "_loses_gradient")}:
            inside = itertools.chain.from_iterable(lists)
            if any(item._loses_gradient for item in inside if type(item) in variables):
                return True
        if not any(issubclass(kind, (list, tuple)) for kind in kinds):
            return False
        seen.update(map(id, lists))  # a list may contain itself
        inside = itertools.chain.from_iterable(lists)
        inner = {id(item): item for item in inside if isinstance(item, (list, tuple))}
        lists = [item for key, item in inner.items() if key not in seen]
    return False


def device_rows(data: Any) -> DeviceArray | None:
    """Return a DeviceArray over the memory of an object that is on a CUDA device, or None if it is not."""
    if isinstance(data, (list, tuple, int, float, np.ndarray, np.generic)):
        return None
    try:
        inner = getattr(data, "value", data)  # of a Variable
        inner = getattr(inner, "data", inner)  # of a LoDTensor
        return shared(inner if isinstance(inner, DeviceArray) else data)
    except PlaceError:
        raise
    except Exception:  # the object's code may raise anything; NumPy then reads it, or raises
        return None


def check_unmasked(data: object, name: str, depth: int = _MOST_DEPTH) -> None:
    """Raise if `data`, or an array in at most `depth` nested lists, has masked entries, whose values would be used."""
    if isinstance(data, np.ma.MaskedArray):
        if np.ma.is_masked(data):
            expected, hint = "an array without masked entries", "array.filled(value) replaces them"
            raise DTypeError(name, expected=expected, got="masked entries", hint=hint)
    elif isinstance(data, (list, tuple)) and data and depth and isinstance(data[0], (list, tuple, np.ndarray)):
        for item in data:
            check_unmasked(item, name, depth - 1)


def as_indices(indices: ArrayLike, count: int, what: str) -> np.ndarray:
    """Return indices of sequences, or a mask, as a new int64 array of indices of at least 0, or raise.

    Negative indices count from the end; bools are a mask of all `count` sequences.

    Examples
    --------
    >>> as_indices([2, -1], 3, "take, indices"), as_indices([True, False, True], 3, "take, indices")
    (array([2, 2]), array([0, 2]))
    """
    check_unmasked(indices, what)
    expected = f"a flat list of integers, or of {count} bools"
    try:
        array = np.asarray(indices)
    except (ValueError, TypeError, OverflowError) as error:
        raise ShapeError(what, expected=expected, got=shown(indices)) from error
    if array.ndim != 1 or (array.dtype.kind == "b" and len(array) != count):
        raise ShapeError(what, expected=expected, got=f"shape {array.shape} {array.dtype}")
    if array.dtype.kind == "b":
        return np.flatnonzero(array)
    if array.dtype.kind not in "iu" and array.size:
        raise DTypeError(what, expected=expected, got=f"data type {array.dtype}")
    outside = np.flatnonzero((array < -count) | (array >= count))
    if len(outside):
        entry, expected = int(outside[0]), f"less than {count}, the number of sequences"
        raise OutOfRangeError(f"{what}, entry {entry}", expected=expected, got=int(array[entry]))
    array = array.astype(np.int64)
    return np.where(array < 0, array + count, array)


def read_only(array: np.ndarray) -> np.ndarray:
    """Return a copy of a flat array whose memory is a `bytes` object, so that nobody can write to it or resize it.

    Kernels use such arrays without checks.  Callers only get views of them, because anyone who holds an array itself
    can change its shape and data type in place.
    """
    if type(array) is Placeholder:
        array.flags.writeable = False
        return array
    return np.frombuffer(array.tobytes(), array.dtype)


def depth_of(item: object) -> int | None:
    """Return how many levels of lists contain the sequences of `item`; None (unknown) if `item` is empty."""
    if not isinstance(item, (list, tuple)):
        return 0
    if not item:
        return None
    nested = [isinstance(child, (list, tuple)) or (hasattr(child, "__array__") and child.ndim) for child in item]
    if not any(nested):
        return 0
    depths = {depth for depth in map(depth_of, item) if depth is not None}
    if not all(nested) or len(depths) > 1:
        got = "numbers beside sequences" if not all(nested) else f"depths {sorted(depths)}"
        raise LoDError("sequences", expected="lists that are all nested to the same depth", got=got)
    return 1 + (depths.pop() if depths else 0)


def children_of(item: object, number: int) -> list | tuple:
    """Return `item`, a sequence of an upper level, or raise unless it is a list."""
    if not isinstance(item, (list, tuple)):
        raise LoDError(f"level {number}", expected="a list of sequences", got=type(item).__name__)
    return item


def as_sequence(item: Any, number: int, dtype: DTypeLike | None) -> np.ndarray:
    """Return the rows of one sequence as an array; raise if they do not form an array."""
    check_unmasked(item, f"sequence {number}")
    try:
        rows = as_rows(np.asarray(item, dtype))
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ShapeError(f"sequence {number}", expected="rows of one shape", got=shown(item)) from error
    if dtype is None and isinstance(item, (list, tuple)):
        rows = whole_numbers(rows, item, f"sequence {number}")
    if rows.ndim == 0:
        raise ShapeError(f"sequence {number}", expected="a list or array of rows", got=shown(item))
    return rows


def join_sequences(leaves: list[np.ndarray], dtype: DTypeLike | None) -> np.ndarray:
    """Concatenate sequences; an empty one-dimensional sequence gets the element shape of the others."""
    shapes = [leaf.shape[1:] for leaf in leaves if leaf.size or leaf.ndim > 1]
    element = shapes[0] if shapes else ()
    for number, leaf in enumerate(leaves):
        if leaf.shape[1:] != element and (leaf.size or leaf.ndim > 1):
            raise ShapeError(f"sequence {number}", expected=f"rows of shape {element}", got=f"{leaf.shape[1:]}")
    filled = [leaf for leaf in leaves if len(leaf)]
    if not filled:
        typed = leaves[0].dtype if leaves else np.dtype(dtype or np.float64)
        return np.empty((0, *element), typed)
    joined = np.concatenate(filled)
    if joined.dtype.kind == "f" and all(leaf.dtype.kind in "iu" for leaf in filled):  # as NumPy joins uint64 and int64
        return np.concatenate(_unsigned(filled, "sequences"))
    return joined


def check_cover(lod: Any, data: np.ndarray) -> None:
    """Raise unless the last level of `lod` covers exactly the rows of `data`; a LoD without levels always fits."""
    if len(lod) == 0:
        return
    if data.ndim == 0:
        raise LoDError("data", expected="rows, because it has a LoD", got="a single number")
    if lod.num_rows != len(data):
        expected = f"a level of {count(len(data), 'row')}, as the data has"
        got, hint = count(lod.num_rows, "row"), "the last level counts rows; did you mix up lengths and offsets?"
        raise LoDError(f"level {len(lod) - 1}", expected=expected, got=got, hint=hint)
