"""Values as users hold them: plain arrays where there is no LoD, and memory that nobody else changes."""

import numpy as np

from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.rows.selected_rows import SelectedRows


def plain(value):
    """Return a value as users hold it: an array, or a LoDTensor where there is a LoD, or SelectedRows."""
    return value.data if isinstance(value, LoDTensor) and not value.num_levels else value


def memory_of(value):
    """Return the array that owns the memory of a value, or None if nobody can change it."""
    if not isinstance(value, (LoDTensor, SelectedRows)):
        return None
    array = value.value if isinstance(value, SelectedRows) else value.data
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def own(value, owned):
    """Return a value that its holder may change in place: a copy if another has its memory, as gradients of `x + y`.

    `owned` holds the memory of all that was given out, by identity.
    """
    array = memory_of(value)
    if array is None:
        return value
    if id(array) in owned:
        return value.copy()
    owned[id(array)] = array
    return value
