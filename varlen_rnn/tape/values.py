"""Values as users get them: plain arrays if there is no LoD, in memory that nothing else changes."""

from typing import Any

import numpy as np

from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.rows.selected_rows import SelectedRows
from varlen_rnn.runtime.device import moved, on_device, zeros


def plain(value):
    """Return a value as users get it: an array, a LoDTensor if it has a LoD, or SelectedRows."""
    return value.data if isinstance(value, LoDTensor) and not value.num_levels else value


def bits_of(array):
    """Return the bytes of an array of numbers, in which all NaN have the same bits.

    IEEE 754 leaves open which NaN a sum of two is, so that operands in another order can give another.
    """
    array = np.asarray(array)
    if array.dtype.kind in "fc" and np.isnan(array).any():
        array = np.where(np.isnan(array), array.dtype.type(np.nan), array)
    return array.tobytes()


def bits_of_value(value):
    """Return an object that is equal for values of the same kind, structure and bits."""
    if value is None:
        return None
    if isinstance(value, SelectedRows):
        return value.height, value.rows.tobytes(), *bits_of_value(value.value)
    levels = value.lod() if isinstance(value, LoDTensor) else []
    array = np.asarray(value.data if isinstance(value, LoDTensor) else value)
    return levels, array.shape, array.dtype, bits_of(array)


def moved_value(value, place):
    """Return a value, as users get it, at a place; None stays None."""
    return value if value is None else moved(value, place) if not hasattr(value, "to") else value.to(place)


def zeros_like(value):
    """Return a gradient of zeros in new memory, as users get it: SelectedRows without rows; None stays None."""
    if value is None:
        return None
    if isinstance(value, SelectedRows):
        return SelectedRows.wrap(value.rows[:0], value.value[:0], value.height)
    if isinstance(value, LoDTensor):
        return value.like(zeros(value.shape, value.data))
    return zeros(value.shape, value)


def memory_of(value):
    """Return the owner of a value's memory, an array or a Memory; None if the memory cannot be changed."""
    if not isinstance(value, (LoDTensor, SelectedRows)):
        return None
    array: Any = value.data if isinstance(value, LoDTensor) else value.value
    if type(array) is not np.ndarray and on_device(array):
        return array.memory
    return memory_of_array(array)


def memory_of_array(array):
    """Return the array that owns the memory of an array of NumPy."""
    while isinstance(base := array.base, np.ndarray):
        array = base
    return array


def is_remembered(memory):
    """Return whether memory is a copy on a device that `device.beside` may hand out again."""
    return getattr(memory, "is_upload", False)


def own(value, owned):
    """Return a value that the caller may change in place: a copy if `owned`, {id: array}, already has its memory.

    For example, both gradients of `x + y` are one array.
    """
    array = memory_of(value)
    if array is None:
        return value
    if id(array) in owned or is_remembered(array):
        return value.copy()
    owned[id(array)] = array
    return value
