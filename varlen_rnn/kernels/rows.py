"""Rows by index, as in an embedding: gather rows, copy runs, fill rows, and add to rows, which can repeat.

Kernels trust their indices, and check no bounds (see `varlen_rnn.kernels`).  Callers check once, when they get the
indices, that they are rows of the table.
"""

import functools

import numpy as np

from varlen_rnn.kernels.sums import BLOCK, add_block, end_of_block, settled
from varlen_rnn.kernels.twins import launch_beside, twins
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.device import bytes_of, empty, host_numbers
from varlen_rnn.runtime.jit import cpu_kernel, cuda_kernel

_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio: a factor that gives neighbouring ids distant hashes
_HALF = np.uint64(32)


@cpu_kernel
def first_outside(ids, height):
    """Return the position of the first of `ids` (n,), on the host, that is not in `0 <= id < height`; -1 if all are.

    Examples
    --------
    >>> first_outside(np.array([1, 0, 2, -1]), 2), first_outside(np.array([1, 0]), 2)
    (2, -1)
    """
    outside = False
    for k in range(ids.shape[0]):  # without an early exit, the loop vectorises
        outside |= (ids[k] < 0) | (ids[k] >= height)
    if outside:
        for k in range(ids.shape[0]):
            if ids[k] < 0 or ids[k] >= height:
                return k
    return -1


@cpu_kernel
def first_not_finite(x, found):
    """Find the first element of `x` (n,), on the host, that is infinite or NaN.

    Parameters
    ----------
    x : (n,) float
    found : (1,) int64; written
        The place of that element; -1 if there is none.

    Examples
    --------
    >>> found = np.empty(1, np.int64)
    >>> first_not_finite(np.array([1.0, np.nan, np.inf]), found); found
    array([1])
    """
    found[0] = -1
    for k in range(x.shape[0]):
        if not np.isfinite(x[k]):
            found[0] = k
            return


@cpu_kernel
def check_indices(ids, height, from_end, ignored, ignores, out, found):
    """Compute the positions of rows that integers on the host mean, and find the first that means none.

    Parameters
    ----------
    ids : (n,) int64, C-contiguous
    height : int
        The number of rows, `0 <= position < height`.
    from_end : bool
        Whether negative integers count from the end.
    ignored, ignores : int, bool
        The integer whose position is -1, if `ignores` is true.
    out : (n,) int64; written
    found : (1,) int64; written
        The place of the first integer that is neither a position nor ignored; -1 if there is none.

    Examples
    --------
    >>> out, found = np.empty(3, np.int64), np.empty(1, np.int64)
    >>> check_indices(np.array([1, -1, 2]), 2, True, 0, False, out, found); out, found
    (array([1, 1, 2]), array([2]))
    """
    outside, shift = False, height if from_end else 0
    for k in range(out.shape[0]):  # without an early exit, the loop vectorises
        place = ids[k] + (shift if ids[k] < 0 else 0)
        skips = ignores & (ids[k] == ignored)
        outside |= ((place < 0) | (place >= height)) & (not skips)
        out[k] = -1 if skips else place
    found[0] = -1
    if outside:
        for k in range(out.shape[0] - 1, -1, -1):
            if (out[k] < 0 or out[k] >= height) and not (ignores and ids[k] == ignored):
                found[0] = k


@cpu_kernel
def check_classes(labels, first, end, excluded, found):
    """Find the first label that is no class, or is the excluded class.

    Parameters
    ----------
    labels : (n,) int64
    first, end : int
        The classes are `first <= label < end`.
    excluded : int
        A class, or any other number if none is excluded.
    found : (1,) int64; written
        The place of the first wrong label; -1 if there is none.

    Examples
    --------
    >>> found = np.empty(1, np.int64); check_classes(np.array([1, 0, 3]), 0, 3, 0, found); found
    array([1])
    """
    outside = False
    for k in range(labels.shape[0]):  # without an early exit, the loop vectorises
        outside |= (labels[k] < first) | (labels[k] >= end) | (labels[k] == excluded)
    found[0] = -1
    if outside:
        for k in range(labels.shape[0] - 1, -1, -1):
            if labels[k] < first or labels[k] >= end or labels[k] == excluded:
                found[0] = k


@cpu_kernel
def gather_rows_cpu(table, ids, out):
    """`out[k] = table[ids[k]]`, 0 where the id is -1."""
    for k in range(out.shape[0]):
        row = ids[k]
        if row >= 0:
            for j in range(out.shape[1]):
                out[k, j] = table[row, j]
        else:
            for j in range(out.shape[1]):
                out[k, j] = 0


@cuda_kernel
def gather_rows_cuda(table, ids, out):
    """Twin of `gather_rows_cpu`."""
    i = cuda.grid(1)
    if i < out.size:
        k, j = i // out.shape[1], i % out.shape[1]
        row = ids[k]
        out[k, j] = table[row, j] if row >= 0 else out.dtype.type(0)


@twins(gather_rows_cpu, gather_rows_cuda)
def gather_rows(table, ids, out):
    """Compute `out[k] = table[ids[k]]`, and 0 where the id is -1.

    The gradient of `table` is `scatter_add_rows` with the ids that are not -1.

    Parameters
    ----------
    table : (height, features) C-contiguous, any data type
    ids : (n,) int64, `-1 <= ids < height`; may repeat
    out : (n, features) C-contiguous, the data type of `table`; written

    Examples
    --------
    >>> out = np.empty((3, 2)); gather_rows(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1, -1, 1]), out); out
    array([[3., 4.],
           [0., 0.],
           [3., 4.]])
    """


@cpu_kernel
def copy_runs_cpu(table, starts, places, lengths, out):
    """`out[places[i] + r] = table[starts[i] + r]` for each r below `lengths[i]`."""
    for i in range(lengths.shape[0]):
        row, place = starts[i], places[i]
        if row >= 0 and place >= 0:  # always true: LLVM then drops the check for negative indices
            for r in range(lengths[i]):
                for j in range(out.shape[1]):
                    out[place + r, j] = table[row + r, j]


@cuda_kernel
def copy_runs_cuda(table, starts, places, lengths, out):
    """Twin of `copy_runs_cpu`; one thread per column of a run."""
    thread, width = cuda.grid(1), out.shape[1]
    if thread < lengths.shape[0] * width:
        i, j = thread // width, thread % width
        for r in range(lengths[i]):
            out[places[i] + r, j] = table[starts[i] + r, j]


@twins(copy_runs_cpu, copy_runs_cuda, lambda table, starts, places, lengths, out: len(lengths) * out.shape[1])
def copy_runs(table, starts, places, lengths, out):
    """Compute `out[places[i] + r] = table[starts[i] + r]` for each r below `lengths[i]`, for runs of neighbouring rows.

    Parameters
    ----------
    table, out : (rows, features) C-contiguous, of one data type; only rows of runs are written
    starts, places, lengths : (runs,) int64; runs do not overlap in `out`
        `places` may be offsets, whose last entry is not read.

    Examples
    --------
    >>> out = np.zeros((3, 1))
    >>> copy_runs(np.array([[1.0], [2.0], [3.0]]), np.array([1, 0]), np.array([0, 2]), np.array([2, 1]), out)
    >>> out.ravel()
    array([2., 3., 1.])
    """


@cpu_kernel
def place_slices(offsets, begins, lengths, starts, new_offsets):
    """Compute the first row of each slice `begins[i]` to `begins[i] + lengths[i]` of sequence i, and the new offsets.

    Return the number of the first sequence that is too short for its slice, or -1 if none is too short.

    Parameters
    ----------
    offsets : (num_sequences + 1,) int64
    begins, lengths : (num_sequences,) int64, any numbers
    starts : (num_sequences,) int64, written
        The first row of each slice.
    new_offsets : (num_sequences + 1,) int64, written
        The offsets of the slices, one after another.

    Examples
    --------
    >>> starts, new = np.empty(2, np.int64), np.empty(3, np.int64)
    >>> place_slices(np.array([0, 2, 5]), np.array([1, 0]), np.array([1, 3]), starts, new), starts, new
    (-1, array([1, 2]), array([0, 1, 4]))
    >>> place_slices(np.array([0, 2, 5]), np.array([1, 0]), np.array([1, 4]), starts, new)
    1
    """
    new_offsets[0] = 0
    for i in range(begins.shape[0]):
        available = offsets[i + 1] - offsets[i]
        if begins[i] < 0 or lengths[i] < 0 or begins[i] > available or lengths[i] > available - begins[i]:
            return i
        starts[i], new_offsets[i + 1] = offsets[i] + begins[i], new_offsets[i] + lengths[i]
    return -1


@cpu_kernel
def fill_between_runs_cpu(places, lengths, value, out):
    """Set the rows of `out` that are outside of all runs to a value."""
    row = 0
    for i in range(places.shape[0] + 1):
        end = places[i] if i < places.shape[0] else out.shape[0]
        for r in range(row, end):
            for j in range(out.shape[1]):
                out[r, j] = value
        if i < places.shape[0]:
            row = end + lengths[i]


@cuda_kernel
def fill_between_runs_cuda(places, lengths, value, out):
    """Twin of `fill_between_runs_cpu`; one thread per column of the rows before a run, or after the last."""
    thread, width = cuda.grid(1), out.shape[1]
    if thread < (places.shape[0] + 1) * width:
        i, j = thread // width, thread % width
        first = places[i - 1] + lengths[i - 1] if i else 0
        for row in range(first, places[i] if i < places.shape[0] else out.shape[0]):
            out[row, j] = value


@twins(
    fill_between_runs_cpu, fill_between_runs_cuda, lambda places, lengths, value, out: (len(places) + 1) * out.shape[1]
)
def fill_between_runs(places, lengths, value, out):
    """Set the rows of `out` that are in no run to a value; run i is the rows `places[i]` to `places[i] + lengths[i]`.

    Parameters
    ----------
    places, lengths : (runs,) int64, ascending, without overlaps
    value : number of the data type of `out`
    out : (rows, features) C-contiguous; written between runs

    Examples
    --------
    >>> out = np.ones((4, 1)); fill_between_runs(np.array([0, 2]), np.array([1, 1]), 0.0, out); out.ravel()
    array([1., 0., 1., 0.])
    """


def _fill_rows_by_numpy(rows, value, out):
    out[rows] = value


@cuda_kernel
def fill_rows_cuda(rows, value, out):
    """`out[rows[k]] = value`; one thread per column of a listed row."""
    thread, width = cuda.grid(1), out.shape[1]
    if thread < rows.shape[0] * width:
        out[rows[thread // width], thread % width] = value


@twins(_fill_rows_by_numpy, fill_rows_cuda, lambda rows, value, out: len(rows) * out.shape[1])
def fill_rows(rows, value, out):
    """Set the listed rows to a value.

    Parameters
    ----------
    rows : (n,) int64
    value : number of the data type of `out`
    out : (height, features) C-contiguous; written at the listed rows

    Examples
    --------
    >>> out = np.zeros((3, 1)); fill_rows(np.array([2, 0]), 5.0, out); out.ravel()
    array([5., 0., 5.])
    """


@cpu_kernel
def mark_cpu(ids, out):
    """Set each row of `out` to 0, and to 1 at the row's id."""
    for k in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[k, j] = 0
        out[k, ids[k]] = 1


@cuda_kernel
def mark_cuda(ids, out):
    """Twin of `mark_cpu`."""
    i = cuda.grid(1)
    if i < out.size:
        out[i // out.shape[1], i % out.shape[1]] = 1 if ids[i // out.shape[1]] == i % out.shape[1] else 0


@twins(mark_cpu, mark_cuda)
def mark(ids, out):
    """Compute one-hot rows: 1 at the id of each row, 0 elsewhere.

    Parameters
    ----------
    ids : (n,) int64, `0 <= id < classes`
    out : (n, classes) C-contiguous; written

    Examples
    --------
    >>> out = np.empty((2, 2), int); mark(np.array([1, 0]), out); out
    array([[0, 1],
           [1, 0]])
    """


@cpu_kernel
def scatter_add_rows_cpu(values, ids, memory, out):
    """`out[ids[k]] += values[k]`, in the order of k; the value in a row of `out` is the first summand of its sum.

    A value whose id is -1 is added nowhere.

    A row of `out` holds the sum of a block of 48 summands.  If a row has more summands, it also has a total, which a
    hash table finds.  The table has room for twice the number of totals, at most one per 48 rows of `values`.
    `memory` (bytes,) uint8 is for the table, two rows of sums at each of its places, and a byte for each row of `out`:
    `(n + 2) * (8 + bytes in a row of out) + height` bytes are enough for n values.
    """
    count, width, room = values.shape[0], values.shape[1], 1
    while room <= count // (BLOCK // 2):
        room *= 2
    size, begin = room * width * out.itemsize, room * 8
    owners, added = memory[:begin].view(np.int64), memory[begin + 2 * size :]
    totals = memory[begin : begin + size].view(out.dtype).reshape(room, width)
    lost = memory[begin + size : begin + 2 * size].view(out.dtype).reshape(room, width)
    for row in range(out.shape[0]):
        added[row] = 0
    for place in range(room):
        owners[place] = -1
    for k in range(count):
        if ids[k] < 0:
            continue
        row = np.uint64(ids[k])  # unsigned, so that elements need no check for negative indices
        if added[row] == BLOCK:
            place = (row * _SPREAD >> _HALF) & np.uint64(room - 1)
            while owners[place] != ids[k] and owners[place] >= 0:
                place = (place + np.uint64(1)) & np.uint64(room - 1)
            if owners[place] < 0:
                owners[place] = ids[k]
                for j in range(width):
                    totals[place, j] = lost[place, j] = 0
            for j in range(width):
                totals[place, j], lost[place, j] = add_block(totals[place, j], lost[place, j], out[row, j])
                out[row, j] = 0
            added[row] = 0
        for j in range(width):
            out[row, j] += values[k, j]
        added[row] += np.uint8(1)
    for place in range(room):
        row = owners[place]
        for j in range(width if row >= 0 else 0):
            total, rest = add_block(totals[place, j], lost[place, j], out[row, j])
            out[row, j] = settled(total, rest)


@cuda_kernel
def scatter_add_rows_cuda(values, rows, starts, order, out):
    """Twin of `scatter_add_rows_cpu`: `out[rows[i]] += values[order[k]]`, k from `starts[i]` to `starts[i + 1]`.

    One thread per column of a listed row, so that sums need no atomics and keep their order.
    """
    thread = cuda.grid(1)
    if thread < rows.size * out.shape[1]:
        i, j = thread // out.shape[1], thread % out.shape[1]
        total = lost = out.dtype.type(0)
        part = out[rows[i], j]
        for start in range(starts[i], starts[i + 1], BLOCK):
            for k in range(start, end_of_block(start, starts[i + 1])):
                part += values[order[k], j]
            total, lost = add_block(total, lost, part)
            part = out.dtype.type(0)
        out[rows[i], j] = settled(total, lost)


def _scatter_on_device(values, ids, out):
    """Launch `scatter_add_rows_cuda` on the listed rows, each once, after sorting the ids."""
    listed, starts, order = _grouped(bytes_of(host_numbers(ids)))
    launch_beside(scatter_add_rows_cuda, len(listed) * out.shape[1], values, listed, starts, order, out)


@functools.lru_cache(maxsize=32)  # the ids of a batch are sorted once for all the tables that they index
def _grouped(ids):
    """Return the different rows in `ids`, ascending; the offsets of their entries in sorted order; and this order."""
    ids = np.frombuffer(ids, np.int64)
    order = np.argsort(ids, kind="stable")
    ascending = ids[order]
    starts = np.flatnonzero(np.diff(ascending, prepend=-1))
    found = ascending[starts], np.append(starts, len(ids)), order
    return [np.frombuffer(array.tobytes(), np.int64) for array in found]  # read-only, so their bytes are hashed once


def _scatter_on_host(values, ids, out):
    count, size = len(values), values.shape[1] * values.itemsize
    # It is more than the kernel needs, at most one place per 12 values, but affine in the numbers of rows.
    memory = empty((count * -(-(4 + size) // 6) + 8 + 2 * size + len(out),), out, np.uint8)
    scatter_add_rows_cpu(values, ids, memory, out)


@twins(_scatter_on_host, _scatter_on_device, size=None)
def scatter_add_rows(values, ids, out):
    """Compute `out[ids[k]] += values[k]` in the order of k: the gradient of `gather_rows`.

    Order and precision of the sums are as in `kernels.sums`; the values in `out` are the first summands.

    Parameters
    ----------
    values : (n, features) C-contiguous, any data type
    ids : (n,) int64, `0 <= ids < height`; may repeat
        On the host, also -1, for values that are added nowhere.
    out : (height, features) C-contiguous, the data type of `values`; added to

    Examples
    --------
    >>> out = np.zeros((2, 1)); scatter_add_rows(np.array([[1.0], [2.0], [4.0]]), np.array([1, 0, 1]), out); out
    array([[2.],
           [5.]])
    """
