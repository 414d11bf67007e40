"""Random masks of rows, for zoneout and for dropout with one mask per sequence.  Each run draws new masks.

The numbers come from a counter-based generator (Salmon et al., 2011, "Parallel random numbers: as easy as 1, 2, 3"),
whose key the context's generator draws.  The numbers of a row or sequence depend neither on threads nor on later rows.
"""

import numpy as np

from varlen_rnn.errors import OutOfRangeError, ShapeError
from varlen_rnn.ops.examples import rows
from varlen_rnn.random import generator
from varlen_rnn.tape.checks import check_float, check_lod_level
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import TensorSpec

_SEEDS = 2**63
_MOST_UNITS = 2**20  # without a limit, a program of a few bytes could request any amount of memory


def _numbers(count, units):
    """Return random numbers, uniform in [0, 1), of shape `(count, units)`."""
    philox = np.random.Philox(key=int(generator().integers(_SEEDS)))
    return np.random.Generator(philox).random((count, units), np.float32)


@operator(inference={"training": False})
def row_mask(x, p: float, units: int, per_sequence: bool, training: bool):
    """Return a mask of shape `(rows, units)` for the rows of `x`.

    For zoneout: in training, each number is 1 with probability `p`, otherwise 0.  Outside of training, each is `p`.

    For dropout, with `per_sequence`: all rows of a sequence have the same numbers.  In training, each number is 0 with
    probability `p`, otherwise 1 / (1 - p).  Outside of training, each is 1.
    """
    dtype, count = x.dtype.type, x.shape[0]
    if not per_sequence:
        return x.like((_numbers(count, units) < p).astype(dtype) if training else np.full((count, units), dtype(p)))
    if not training:
        return x.like(np.ones((count, units), dtype))
    offsets = x.structure.levels[-1]
    keep = _numbers(len(offsets) - 1, units) >= p
    mask = keep * (dtype(1 / (1 - p)) if p < 1 else dtype(0))
    return x.like(np.repeat(mask, np.diff(offsets), axis=0))


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
