"""Dropout, and its random masks, which are drawn anew at each run; see `varlen_rnn.random`.

The random numbers of a row depend on its place: the position of its sequence in the batch, and its number in the
sequence.
"""

import math

import numpy as np

from varlen_rnn.errors import OutOfRangeError
from varlen_rnn.kernels.arithmetic import multiply
from varlen_rnn.kernels.philox import draw_mask, draw_noted_mask, key_of, places_of_rows
from varlen_rnn.ops.examples import rows
from varlen_rnn.random import next_draw
from varlen_rnn.rows.checks import read_only
from varlen_rnn.rows.lod import LoD, LoDTensor, levels_of, remember
from varlen_rnn.runtime.device import beside, empty
from varlen_rnn.runtime.placeholder import Placeholder
from varlen_rnn.tape.checks import check_float, check_like
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import TensorSpec
from varlen_rnn.tape.variable import apply

_NONE = read_only(np.empty(0, np.int64))


def mask_of_rows(x, units, p, below, others):
    """Draw a mask of shape `(rows, units)`: each number is `below` with probability `p`, otherwise `others`.

    Without a LoD, each row is a sequence of one row.  The position of this sequence is the row's index, unless
    `x.structure.positions` gives another position.
    """
    return _drawn(x, x.shape[0] if x.shape else 1, units, p, below, others, *_places_of_rows(x))


def mask_of_sequences(x, units, p, below, others):
    """Draw a mask as `mask_of_rows` does, but with one row per sequence of the last level, `(sequences, units)`."""
    above = levels_of(x.structure)[:-1]
    if above:
        places = remember(x.structure, "places of sequences", _places, LoD.trusted(above).at_positions_of(x.structure))
    else:
        places = _positions(x.structure), _NONE
    return _drawn(x, len(levels_of(x.structure)[-1]) - 1, units, p, below, others, *places)


def _drawn(x, count, units, p, below, others, positions, rows):
    mask, draw = empty((count, units), x.data), next_draw()
    if type(mask) is Placeholder:
        at = [beside(places, mask) for places in (positions, rows)]
        draw_noted_mask(mask.dry_run.draw(), draw[2], *at, round(p * 2**32), below, others, mask)
    else:
        draw_mask(positions, rows, key_of(*draw), round(p * 2**32), below, others, mask)
    return mask


def _places_of_rows(x):
    lod = x.structure
    if lod.num_levels:
        return remember(lod, "places", _places, lod)
    # If an operator has joined rows, the positions still describe the rows that it joined.
    is_of_rows = lod.positions is not None and lod.axis == 0 and len(lod.positions) == len(x.data)
    return _positions(lod) if is_of_rows else _NONE, _NONE


def _places(lod):
    """Return the position of each row's sequence of level 0, and the number of the row in this sequence."""
    offsets = lod.rows_of_level(0)
    out = empty((2, lod.num_rows), offsets)
    places_of_rows(offsets, _positions(lod), out)
    return read_only(out[0]), read_only(out[1])


def _positions(lod):
    return _NONE if lod.positions is None else lod.positions


def _rows(specs, axes, p, training):
    return "batch" if training else "each"  # in training, a row's random numbers depend on its place in the batch


@operator(outputs=("out", "mask"), intermediate=("mask",), inference={"training": False}, rows=_rows, shares=True)
def dropout(x, p: float, training: bool):
    """In training, zero each element with probability `p` and divide the others by 1 - p; otherwise return `x`."""
    if not training:
        return x
    mask = mask_of_rows(x, math.prod(x.shape[1:]), p, 0.0, 1 / (1 - p) if p < 1 else 0.0).reshape(x.shape)
    return x.like(multiply(x.data, mask)), LoDTensor.wrap(mask)


@dropout.infer
def _infer(x, p, training):
    check_float("dropout", x=x)
    if not 0 <= p <= 1:
        raise OutOfRangeError("dropout, p", expected="0 <= p <= 1", got=p)
    return (x, TensorSpec(x.shape, x.dtype)) if training else x


@dropout.grad
def _grad(inputs, outputs, d_outputs, p, training):
    return [apply("dropout_grad", d_outputs[0], outputs[1]) if training else d_outputs[0]]


@operator(rows="each")
def dropout_grad(d_out, mask):
    """Return the gradient of `dropout`."""
    return d_out.like(multiply(d_out.data, mask.data))


@dropout_grad.infer
def _infer_grad(d_out, mask):
    check_float("dropout_grad", d_out=d_out)
    check_like("dropout_grad", "mask", mask, d_out)
    return d_out


@dropout.examples
def _examples(rng):
    for training in (True, False):
        yield [rows(rng, 3)], {"p": 0.4, "training": training}
