"""Stores: collections of sequences from which batches are gathered, without a Python loop over rows.

A store has `lengths`, the number of rows of each sequence, and `gather(indices)`, which returns the LoDTensor of the
chosen sequences.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import TypeAlias

import numpy as np

from varlen_rnn.errors import DTypeError, LoDError, ShapeError, shown
from varlen_rnn.rows.checks import check_no_gradient, check_unmasked
from varlen_rnn.rows.lod import LoD, LoDTensor, take_sequences
from varlen_rnn.tape.variable import Variable
from varlen_rnn.typing import Rows

_LISTS = (list, tuple, np.ndarray)


class TensorStore:
    """A store of the sequences of a LoDTensor's level 0, together with their lower levels."""

    def __init__(self, tensor: LoDTensor, name: str = "sequences") -> None:
        if tensor.num_levels == 0:
            raise LoDError(name, expected="a LoDTensor with levels", got=f"one without levels, of shape {tensor.shape}")
        self.tensor = LoDTensor(tensor.data, tensor.structure)  # a new object, because the caller can set another LoD
        self.lengths = np.diff(tensor.structure.rows_of_level(0))

    def gather(self, indices: np.ndarray) -> LoDTensor:
        """Return a LoDTensor of the sequences with these indices, in this order; rows are copied."""
        lod, rows = take_sequences(self.tensor.structure, indices)
        return LoDTensor(self.tensor.data.take(rows, axis=0), lod)


class ListStore:
    """A store of sequences in separate arrays, which can be memory maps.

    All rows must have the same shape and data type.  An array without rows gets the row shape and data type of the
    other arrays.
    """

    def __init__(self, sequences: Iterable[Rows], name: str = "sequences") -> None:
        arrays = [_as_rows(item, f"{name}, sequence {number}") for number, item in enumerate(sequences)]
        self.lengths = np.fromiter(map(len, arrays), np.int64, len(arrays))
        filled = np.flatnonzero(self.lengths)
        if len(filled):
            first = arrays[filled[0]]
            for number in filled:
                rows, where = arrays[number], f"{name}, sequence {number}"
                if rows.shape[1:] != first.shape[1:]:
                    expected = f"rows of shape {first.shape[1:]}, as in sequence {filled[0]}"
                    raise ShapeError(where, expected=expected, got=f"rows of shape {rows.shape[1:]}")
                if rows.dtype != first.dtype:
                    expected, hint = f"data type {first.dtype}, as in sequence {filled[0]}", "convert it with astype"
                    raise DTypeError(where, expected=expected, got=f"data type {rows.dtype}", hint=hint)
            arrays = [array if len(array) else first[:0] for array in arrays]
        self.arrays = arrays

    def gather(self, indices: np.ndarray) -> LoDTensor:
        """Return a LoDTensor of the sequences with these indices, in this order; rows are copied."""
        chosen = [self.arrays[index] for index in indices] or [array[:0] for array in self.arrays[:1]]
        rows = np.concatenate(chosen)
        return LoDTensor(rows, LoD.from_lengths([self.lengths[indices]]))


Store: TypeAlias = TensorStore | ListStore


def store_of(sequences: Iterable[Rows], name: str = "sequences") -> Store:
    """Return a store of the sequences of a LoDTensor or Variable, or of a list of arrays of rows.

    In a list, entries that are lists of sequences of unequal length make a second level.
    """
    check_no_gradient(sequences, name)
    if isinstance(sequences, Variable) and isinstance(sequences.value, LoDTensor):
        sequences = sequences.value
    if isinstance(sequences, LoDTensor):
        return TensorStore(sequences, name)
    if _is_nested(sequences):
        return TensorStore(LoDTensor.from_sequences(list(sequences)), name)
    if isinstance(sequences, (str, bytes, dict)) or not np.iterable(sequences):
        hint = "pass dataset.sequences and dataset.labels" if hasattr(sequences, "sequences") else None
        raise DTypeError(
            name, expected="a list of arrays, or a LoDTensor", got=f"type {type(sequences).__name__}", hint=hint
        )
    return ListStore(sequences, name)


def _is_nested(sequences: object) -> bool:
    """Return whether sequences are lists of sequences of unequal length; lists of equal length are rows."""
    if not isinstance(sequences, (list, tuple)) or not all(isinstance(item, (list, tuple)) for item in sequences):
        return False
    if not any(item and isinstance(item[0], _LISTS) for item in sequences):
        return False
    children = list(itertools.chain.from_iterable(sequences))
    return all(isinstance(child, _LISTS) and getattr(child, "ndim", 1) for child in children) and (
        len(set(map(len, children))) > 1
    )


def _as_rows(item: Rows, where: str) -> np.ndarray:
    """Return a sequence's rows as a view that shares memory; the caller cannot change the shape of the view."""
    if isinstance(item, Variable):
        check_no_gradient(item, where)
    check_unmasked(item, where)
    try:
        rows = item.data if isinstance(item, LoDTensor) else np.asarray(item)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        hint = "for sequences of sequences, pass LoDTensor.from_sequences(sequences)"
        raise ShapeError(where, expected="rows of one shape", got=shown(item), hint=hint) from error
    if rows.ndim == 0:
        raise ShapeError(where, expected="an array of rows", got=shown(item))
    if rows.dtype.kind not in "fiub":
        raise DTypeError(where, expected="numbers", got=f"data type {rows.dtype}")
    return rows.view()
