"""Integers that name rows: checked before a kernel, which does not check, reads or writes there."""

import numpy as np

from varlen_rnn.errors import OutOfRangeError
from varlen_rnn.kernels.rows import first_outside

_INT64 = np.dtype(np.int64)


def indices(what, tensor, height, noun, of=""):
    """Return integers as a new array, int64 and flat, each of them a row of `height`; kernels use it unchecked."""
    flat = tensor.data.astype(_INT64)
    flat = flat if flat.ndim == 1 else flat.reshape(-1)
    entry = first_outside(flat, height)
    if entry >= 0:
        got = int(tensor.data.flat[entry])
        raise OutOfRangeError(f"{what}, entry {entry}", expected=f"0 <= {noun} < {height}{of}", got=got)
    return flat
