"""Check positions of rows, because kernels read and write rows unchecked; take and overwrite rows at positions."""

import math

import numpy as np

from varlen_rnn.errors import OutOfRangeError
from varlen_rnn.kernels.plans import place_evenly
from varlen_rnn.kernels.rows import check_classes, check_indices, gather_rows
from varlen_rnn.kernels.segment import init_memories_grad
from varlen_rnn.runtime.device import as_operand, empty, host_numbers, on_device
from varlen_rnn.runtime.placeholder import first_of
from varlen_rnn.tape.checks import FLOATS

INT64 = np.dtype(np.int64)
_MOST = 2**63


def indices(what, tensor, height, noun, of="", from_end=False, ignored=None):
    """Return integers as a flat int64 array; raise unless each is the position of one of `height` rows.

    If `from_end`, negative integers count from the end.  An integer that is `ignored` becomes -1.  The array is new,
    except for int64 on a device: then it can be the device array's read-only copy on the host, whose bytes are hashed
    only once (`device.beside`).
    """
    numbers = host_numbers(tensor.data)
    flat = numbers if numbers.dtype == INT64 and numbers.flags.carray else numbers.astype(INT64)
    # An unsigned number of 2**63 or more becomes negative, which is an error: it neither counts from the end nor equals
    # a negative number.
    is_signed, ignores = tensor.dtype.kind == "i", ignored is not None and -_MOST <= ignored < _MOST
    ignores = ignores and (is_signed or ignored >= 0)
    positions, found = empty((flat.size,), flat), empty((1,), flat)
    check_indices(
        flat.reshape(-1), height, from_end and is_signed, ignored if ignores else 0, ignores, positions, found
    )
    entry = first_of(found, -1)
    if entry >= 0:
        got, lowest = int(numbers.flat[entry]), -height if from_end else 0
        raise OutOfRangeError(f"{what}, entry {entry}", expected=f"{lowest} <= {noun} < {height}{of}", got=got)
    is_kept = on_device(tensor.data) and not from_end and ignored is None and numbers.dtype == INT64
    return numbers.reshape(-1) if is_kept else positions


def labels_of(what, tensor, classes, noun, excluded=-1):
    """Return labels as a new flat int64 array; raise unless all are classes, and none is the excluded one."""
    labels = host_numbers(tensor.data).reshape(-1).astype(INT64)
    found = empty((1,), labels)
    check_classes(labels, 0, classes, excluded, found)
    if first_of(found, -1) >= 0:
        expected = f"{noun} 0 to {classes - 1}" + (f", except the blank, {excluded}" if excluded >= 0 else "")
        raise OutOfRangeError(what, expected=expected, got=f"{labels.min()} to {labels.max()}")
    return labels


def evenly(count, like, step=1):
    """Return `count` int64, 0, `step`, 2 `step` and so on, on the host; in a dry run they are a kernel's result."""
    found = empty((count,), like if isinstance(like, np.ndarray) else np.empty(0), INT64)
    place_evenly(step, found)
    return found


def rows_at(table, flat):
    """Return rows at positions that were already checked; -1 gives a row of zeros, in arrays of floats only."""
    if not on_device(table) and (table.dtype not in FLOATS or not table.flags.carray):
        # The kernel would be compiled again for another data type, or would need a contiguous copy of the table.
        return table[flat]
    table = as_operand(table)
    out, width = empty((len(flat), *table.shape[1:]), table), math.prod(table.shape[1:])
    gather_rows(table.reshape(len(table), width), flat, out.reshape(len(flat), width))
    return out


def put_rows(table, flat, rows):
    """Overwrite the rows of an array at positions without repetition; on a device, the array must be contiguous."""
    if not on_device(table):
        table[flat] = rows
    elif rows.size:
        width = math.prod(table.shape[1:])
        init_memories_grad(as_operand(rows).reshape(len(flat), width), flat, table.reshape(len(table), width))
