"""Divide lengths into batches in the same way as `data.batches`, and compute the cost of padding them."""

from typing import NamedTuple

import numpy as np

from varlen_rnn.data import batches
from varlen_rnn.rows.lod import LoD, LoDTensor

NUMBERS_OF_GROUPS = (2, 4, 8, 16)  # of a batch; the fastest of them is compared


class Cost(NamedTuple):
    """The number of rows in some batches, and the number of rows in the same batches after padding."""

    rows: int
    padded_rows: int


def cut(lengths, batch_size, *, shuffle, bucket, seed=0):
    """Return the lengths of each batch: a list of int64 arrays.

    Examples
    --------
    >>> cut(np.array([5, 1, 4, 2]), 2, shuffle=False, bucket=True)
    [array([1, 2]), array([4, 5])]
    """
    lod = LoD.from_lengths([lengths])
    sequences = LoDTensor.wrap(np.empty((lod.num_rows, 0), np.float32), lod)  # rows without features use no memory
    found = batches(sequences, batch_size=batch_size, shuffle=shuffle, bucket=bucket, seed=seed)
    return [lengths[found.indices(number)] for number in range(len(found))]


def divide(batch, number):
    """Return a batch in groups of neighbouring lengths, of as many sequences each, about; none without rows."""
    return [group for group in np.array_split(np.sort(batch), number) if group.any()]


def cost(batches):
    """Return the cost of padding each of these batches to its longest sequence."""
    padded = (len(batch) * int(batch.max()) for batch in batches)
    return Cost(sum(int(batch.sum()) for batch in batches), sum(padded))
