"""Take rows by an index, or in runs (neighbouring rows), and compute the gradient of the array they come from."""

import numpy as np

from varlen_rnn.kernels.rows import copy_runs, fill_between_runs, gather_rows, scatter_add_rows
from varlen_rnn.ops.indices import rows_at
from varlen_rnn.ops.sequence.movement import flat, unflat
from varlen_rnn.runtime.device import as_operand, empty, zeros


def rows_taken(data, index):
    """Return `data[index]`; an index of -1 gives a row of zeros.  Rows may have any shape."""
    rows = flat(data)
    out = empty((len(index), rows.shape[1]), rows)
    gather_rows(rows, index, out)
    return unflat(out, data)


def rows_taken_grad(d_out, index, height):
    """Return the gradient of `data` in `rows_taken`, which has `height` rows."""
    d_rows, taken, origin = flat(d_out), np.flatnonzero(index >= 0), np.full(height, -1)
    origin[index[taken]] = taken
    if np.count_nonzero(origin >= 0) == len(taken):  # no row was taken twice: each gradient is one row, or zeros
        d_data = empty((height, d_rows.shape[1]), d_rows)
        gather_rows(d_rows, origin, d_data)
    else:
        d_data = zeros((height, d_rows.shape[1]), d_rows)
        if len(taken) < len(index):
            d_rows, index = rows_at(d_rows, taken), index[taken]
        scatter_add_rows(d_rows, index, d_data)
    return unflat(d_data, d_out)


def runs_taken(data, starts, offsets, count):
    """Return `count` rows: run i, the rows of `data` from row `starts[i]` on, takes the place of sequence i."""
    rows, offsets = flat(data), as_operand(offsets)
    out = empty((count, rows.shape[1]), rows)
    copy_runs(rows, as_operand(starts), offsets, offsets[1:] - offsets[:-1], out)
    return unflat(out, data)


def runs_placed(data, places, offsets, height, elsewhere=0):
    """Return `height` rows: the sequences of `data` at ascending `places`, and `elsewhere` in other rows."""
    rows, offsets = flat(data), as_operand(offsets)
    out = empty((height, rows.shape[1]), rows)
    places, lengths = as_operand(places), offsets[1:] - offsets[:-1]
    if height > len(rows):
        fill_between_runs(places, lengths, np.array(elsewhere).astype(out.dtype)[()], out)
    copy_runs(rows, offsets[:-1], places, lengths, out)
    return unflat(out, data)
