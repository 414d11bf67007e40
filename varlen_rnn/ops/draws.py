"""Masks that are drawn by the places of rows: the position of a sequence in the batch, and the row in the sequence."""

import numpy as np

from varlen_rnn.kernels.philox import draw_mask, key_of
from varlen_rnn.random import next_draw
from varlen_rnn.rows.checks import read_only
from varlen_rnn.rows.lod import LoD, levels_of, remember
from varlen_rnn.runtime.device import empty

_NONE = read_only(np.empty(0, np.int64))


def mask_of_rows(x, units, p, below, others):
    """Return `below` with probability `p`, otherwise `others`, for each of `units` columns of each row of `x`.

    Parameters
    ----------
    x : LoDTensor
        A row without a LoD is a sequence of one row, at the position that its LoD without levels has, or at its index.
    units : int
    p : float
    below, others : float

    Returns
    -------
    array, shape `(rows, units)`, the data type of `x`
    """
    return _drawn(x, x.shape[0] if x.shape else 1, units, p, below, others, *_places_of_rows(x))


def mask_of_sequences(x, units, p, below, others):
    """Return such a mask with a row for each sequence of the last level, shape `(sequences, units)`."""
    above = levels_of(x.structure)[:-1]
    if above:
        places = remember(x.structure, "places of sequences", _places, LoD.trusted(above).at_positions_of(x.structure))
    else:
        places = _positions(x.structure), _NONE
    return _drawn(x, len(levels_of(x.structure)[-1]) - 1, units, p, below, others, *places)


def _drawn(x, count, units, p, below, others, positions, rows):
    mask = empty((count, units), x.data)
    draw_mask(positions, rows, key_of(*next_draw()), round(p * 2**32), below, others, mask)
    return mask


def _places_of_rows(x):
    lod = x.structure
    if lod.num_levels:
        return remember(lod, "places", _places, lod)
    # Where an operator joined entries, positions are not of these rows.
    is_of_rows = lod.positions is not None and lod.axis == 0 and len(lod.positions) == len(x.data)
    return _positions(lod) if is_of_rows else _NONE, _NONE


def _places(lod):
    """Return the position of each row's sequence of level 0, and the number of the row in this sequence."""
    offsets = lod.rows_of_level(0)
    lengths = np.diff(offsets)
    positions = np.arange(len(lengths)) if lod.positions is None else lod.positions
    rows = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    return read_only(np.repeat(positions, lengths)), read_only(rows)


def _positions(lod):
    return _NONE if lod.positions is None else lod.positions
