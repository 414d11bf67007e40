"""Random masks of rows, for zoneout and for dropout with one mask per sequence.  Each run draws new masks.

The random numbers of a row, or of a sequence, depend only on its place in the batch; see `varlen_rnn.random`.
"""

import numpy as np

from varlen_rnn.errors import OutOfRangeError, ShapeError
from varlen_rnn.kernels.copies import full
from varlen_rnn.ops.dropout import mask_of_rows, mask_of_sequences
from varlen_rnn.ops.examples import rows
from varlen_rnn.ops.indices import rows_at
from varlen_rnn.rows.lod import levels_of
from varlen_rnn.tape.checks import check_float, check_lod_level
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import TensorSpec

_MOST_UNITS = 2**20  # without a limit, a program of a few bytes could request any amount of memory


@operator(inference={"training": False}, rows="batch")
def row_mask(x, p: float, units: int, per_sequence: bool, training: bool):
    """Return a mask of shape `(rows, units)` for the rows of `x`.

    By default, the mask is for zoneout: in training, each number is 1 with probability `p`, otherwise 0; outside of
    training, each number is `p`.  If `per_sequence`, the mask is for dropout, and all rows of a sequence have the same
    numbers: in training, each is 0 with probability `p`, otherwise 1 / (1 - p); outside of training, each is 1.
    """
    if not training:
        return x.like(full((x.shape[0], units), 1 if per_sequence else p, x.data))
    if not per_sequence:
        return x.like(mask_of_rows(x, units, p, 1.0, 0.0))
    mask = mask_of_sequences(x, units, p, 0.0, 1 / (1 - p) if p < 1 else 0.0)
    return x.like(rows_at(mask, np.repeat(np.arange(len(mask)), np.diff(levels_of(x.structure)[-1]))))


@row_mask.infer
def _infer(x, p, units, per_sequence, training):
    check_float("row_mask", x=x)
    check_lod_level("row_mask", "x", x)
    if not 0 <= p <= 1:
        raise OutOfRangeError("row_mask, p", expected="0 <= p <= 1", got=p)
    if not 1 <= units <= _MOST_UNITS:
        raise ShapeError("row_mask, units", expected=f"1 to {_MOST_UNITS}", got=units)
    return TensorSpec((x.shape[0], units), x.dtype, x.lod_level)


@row_mask.examples
def _examples(rng):
    yield [rows(rng, 3)], {"p": 0.4, "units": 2, "per_sequence": False, "training": True}
    yield [rows(rng, 3)], {"p": 0.4, "units": 2, "per_sequence": True, "training": False}
