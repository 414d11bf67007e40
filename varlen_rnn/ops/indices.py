"""Integers that name rows: checked before a kernel, which does not check, reads or writes there; and the rows."""

import math

import numpy as np

from varlen_rnn.errors import OutOfRangeError
from varlen_rnn.kernels.rows import first_outside, gather_rows
from varlen_rnn.runtime.device import empty
from varlen_rnn.tape.checks import FLOATS

_INT64 = np.dtype(np.int64)


def indices(what, tensor, height, noun, of="", from_end=False):
    """Return integers as a new array, int64 and flat, each of them a row of `height`; kernels use it unchecked.

    With `from_end`, negative ones count from there.
    """
    flat = tensor.data.astype(_INT64)
    flat = flat if flat.ndim == 1 else flat.reshape(-1)
    if from_end and tensor.dtype.kind == "i":  # unsigned ones that int64 does not hold have become negative, too
        flat[flat < 0] += height
    entry = first_outside(flat, height)
    if entry >= 0:
        got, lowest = int(tensor.data.flat[entry]), -height if from_end else 0
        raise OutOfRangeError(f"{what}, entry {entry}", expected=f"{lowest} <= {noun} < {height}{of}", got=got)
    return flat


def rows_at(table, flat):
    """Return the rows of an array that checked indices name."""
    if table.dtype not in FLOATS or not table.flags.carray:
        return table[flat]  # the kernel would be compiled again, and a copy of the whole table is too much
    out, width = empty((len(flat), *table.shape[1:]), table), math.prod(table.shape[1:])
    gather_rows(table.reshape(len(table), width), flat, out.reshape(len(flat), width))
    return out
