"""What is known of a variable without its values: kind, shape, data type, levels of detail."""

from typing import NamedTuple

import numpy as np

from varlen_rnn.lod import LoDTensor
from varlen_rnn.plan import SortedSeqs
from varlen_rnn.selected_rows import SelectedRows

LOD_TENSOR = "LOD_TENSOR"
SELECTED_ROWS = "SELECTED_ROWS"
LOD_RANK_TABLE = "LOD_RANK_TABLE"  # a plan: sorted_seqs


class TensorDesc(NamedTuple):
    """The description of a variable; -1 in `shape` is a size that only the values tell."""

    shape: tuple[int, ...]
    dtype: np.dtype | None
    lod_level: int = 0
    kind: str = LOD_TENSOR


PLAN = TensorDesc((), None, 0, LOD_RANK_TABLE)


def describe(value):
    """Return the description of a value.

    Examples
    --------
    >>> describe(LoDTensor(np.zeros((3, 2)), [[0, 1, 3]])).lod_level
    1
    """
    if isinstance(value, LoDTensor):
        return TensorDesc(value.data.shape, value.data.dtype, len(value.structure))
    if isinstance(value, SelectedRows):
        return TensorDesc(value.shape, value.dtype, 0, SELECTED_ROWS)
    if isinstance(value, SortedSeqs):
        return PLAN
    raise TypeError(f"no description for {type(value).__name__}")
