"""Notice in a fraction of a microsecond that arrays have their shapes, and that lists have the same objects.

Python takes 0.2 us to read the shape, the strides, the data type and the flags of an array, and a training step has
dozens of parameters and states.  So compiled code reads them where NumPy keeps them, in the words of the array object
(`PyArrayObject` of NumPy's C interface, which extensions are compiled for).  A float32 array of shape (2, 3) has

    word    content
    0, 1    the header of each Python object
    2       the address of the numbers
    3       2, the number of axes, in the lower half
    4       the address of its shape: 2, 3
    5       the address of its strides: 12, 4
    6       the address of the array that it is a view of
    7       the address of its data type
    8       its flags, in the lower half

A list object has the number and the address of its items behind the header.  The first use checks these places; Python
reads arrays and lists if they are elsewhere.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterable
from operator import attrgetter, is_
from typing import Any

import numpy as np

from varlen_rnn.runtime.jit import quick_kernel
from varlen_rnn.runtime.memory import address_of
from varlen_rnn.runtime.records import words_at

HEADER = object.__basicsize__ // 8  # words
PLAIN = 0x101  # NPY_ARRAY_C_CONTIGUOUS and NPY_ARRAY_ALIGNED, flags of arrays
_form_of = attrgetter("__array_interface__", "dtype", "flags.num")  # the first has the address, the shape, the strides


@quick_kernel
def _read(arrays, header, known, out):
    """Write the form of the array object at each address to a row of `out`; return whether it differs from `known`.

    A row has the address of the numbers, the number of axes, the data type, the flags, the shape and the strides.
    """
    changed, half = False, (1 << 32) - 1
    for k in range(arrays.shape[0]):
        words: Any = words_at(arrays[k])  # type: ignore[call-arg]  # Numba passes the context
        axes = words[header + 1] & half
        for j in range(min(4 + 2 * axes, out.shape[1])):
            if j == 0:
                number = words[header]
            elif j == 1:
                number = axes
            elif j == 2:
                number = words[header + 5]
            elif j == 3:
                number = words[header + 6] & half
            elif j < 4 + axes:
                number = words_at(words[header + 2])[j - 4]
            else:
                number = words_at(words[header + 3])[j - 4 - axes]
            changed |= known[k, j] != number
            out[k, j] = number
    return changed


@functools.cache
def is_readable() -> bool:
    """Return whether this NumPy keeps the form of an array where `_read` reads it."""
    array = np.empty((3, 5, 7), np.int16)[:, :2]
    found = np.zeros((1, 10), np.int64)
    _read(np.array([id(array)], np.int64), HEADER, found, found)
    about = address_of(array), 3, id(array.dtype), array.flags.num
    return found[0].tolist() == [*about, *array.shape, *array.strides]


@quick_kernel
def _differ(one, other, header):
    """Return whether the list objects at two addresses, which have equally many items, have other items."""
    some: Any = words_at(one)  # type: ignore[call-arg]  # Numba passes the context
    others: Any = words_at(other)
    items, more = words_at(some[header + 1]), words_at(others[header + 1])
    for k in range(some[header]):
        if items[k] != more[k]:
            return True
    return False


@functools.cache
def _has_items() -> bool:
    """Return whether this Python keeps the number and the addresses of a list's items where `_differ` reads them."""
    items: list[Any] = [object() for _ in range(3)]
    words: Any = (ctypes.c_int64 * (HEADER + 2)).from_address(id(items))
    if words[HEADER] != len(items):
        return False
    found = (ctypes.c_int64 * len(items)).from_address(words[HEADER + 1])
    return list(found) == list(map(id, items))


def same_objects(one: list[Any], other: list[Any]) -> bool:
    """Return whether two lists have the same objects as items.

    Examples
    --------
    >>> same_objects([None, "a"], [None, "a"]), same_objects([1], [True]), same_objects([1], [1, 2])
    (True, False, False)
    """
    if len(one) != len(other):
        return False
    if not _has_items():
        return all(map(is_, one, other))
    return not _differ(id(one), id(other), HEADER)


@functools.cache
def header_of_arrays() -> int:
    """Return which word of an array object is the address of its numbers; -1 if this NumPy keeps it elsewhere."""
    return HEADER if is_readable() else -1


class Forms:
    """The addresses, shapes, strides, data types and flags of arrays, as they are now.

    Examples
    --------
    >>> x = np.zeros(6)
    >>> forms = Forms([x])
    >>> before = forms.hold()
    >>> x.flags.writeable = False
    >>> before, forms.hold()
    (True, False)
    """

    def __init__(self, arrays: Iterable[Any]) -> None:
        self._arrays = list(arrays)
        self._forms = list(map(_form_of, self._arrays))
        self._addresses = np.array(list(map(id, self._arrays)), np.int64)
        most = max([array.ndim for array in self._arrays], default=0)
        self._known, self._found = (np.zeros((len(self._arrays), 4 + 2 * most), np.int64) for _ in range(2))
        self._is_fast = is_readable()
        if self._is_fast:
            _read(self._addresses, HEADER, self._known, self._known)

    def hold(self) -> bool:
        """Return whether nobody changed them."""
        if self._is_fast:
            return not _read(self._addresses, HEADER, self._known, self._found)
        return list(map(_form_of, self._arrays)) == self._forms
