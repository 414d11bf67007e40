"""Rows that an operator takes by an index from offsets, and the gradient of what they were taken from."""

import numpy as np

from varlen_rnn.device import empty
from varlen_rnn.kernels.rows import gather_rows, scatter_add_rows
from varlen_rnn.ops.sequence.movement import flat


def rows_taken(data, index):
    """Return `data[index]`, rows of any element shape; zeros where the index is -1.

    Examples
    --------
    >>> rows_taken(np.array([1.0, 2.0]), np.array([1, -1, 1]))
    array([2., 0., 2.])
    """
    rows = flat(data)
    out = empty((len(index), rows.shape[1]), rows)
    gather_rows(rows, index, out)
    return out.reshape(len(index), *data.shape[1:])


def rows_taken_grad(d_out, index, height):
    """Return the gradient of what `rows_taken` took from, of so many rows.

    Examples
    --------
    >>> rows_taken_grad(np.array([1.0, 2.0, 3.0]), np.array([1, -1, 1]), 2)
    array([0., 4.])
    """
    d_rows, taken, origin = flat(d_out), np.flatnonzero(index >= 0), np.full(height, -1)
    d_data = empty((height, d_rows.shape[1]), d_rows)
    origin[index[taken]] = taken
    if np.count_nonzero(origin >= 0) == len(taken):  # no row was taken twice: each gradient is one row, or zeros
        gather_rows(d_rows, origin, d_data)
    else:
        d_data[...] = 0
        scatter_add_rows(d_rows[taken], index[taken], d_data)
    return d_data.reshape(height, *d_out.shape[1:])
