"""Random masks: each number is a function of its place, which is a sequence, a row of this sequence, and a column.

A counter-based generator has no state: it encrypts a counter with a key.  So no number depends on threads, ranks or
neighbouring sequences.  For example, columns 8 to 11 of row 5 of the sequence at position 1000 of a batch are drawn by
one counter:

    counter   (8 // 4, 5, 1000, 0)    column // 4, row, and the low and high half of the position
    result    four words of 32 bits, for the columns 8, 9, 10 and 11

Kernels check no bounds: see `varlen_rnn.kernels`.

Source: Salmon, Moraes, Dror and Shaw (2011), "Parallel random numbers: as easy as 1, 2, 3"; Philox4x32 with 10 rounds.
"""

import numpy as np

from varlen_rnn.kernels.stack import make_stack_memory
from varlen_rnn.kernels.twins import twins
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.jit import body, cpu_inlined, cpu_kernel, cuda_kernel

# Words of 32 bits are held in 64 bits, in which the product of two words is exact, so that the loop vectorises.
_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_SIGNED = np.uint64(2**63 - 1)
_ONE, _TWO, _THREE, _FOUR = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)
_BLOCK = 64  # the number of rows whose words are held at once if there are few columns
_block_on_stack = make_stack_memory(lambda size: _BLOCK)
_NARROW = 32  # if there are fewer columns, a loop over rows is faster than a loop over columns
_FEW = 16  # if there are fewer rows, a loop over columns is faster, because it needs no memory for words
_OPERATIONS = 12  # drawing one number takes as long as so many multiply-adds


@body
def philox4x32(c0, c1, c2, c3, k0, k1):
    """Encrypt a counter of four words with a key of two; return four words.  All words are uint64 below 2**32."""
    for _ in range(10):
        low, high = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (high >> _HALF) ^ c1 ^ k0, high & _LOW, (low >> _HALF) ^ c3 ^ k1, low & _LOW
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
    return c0, c1, c2, c3


@body
def words_of(quad, position, row, key):
    """Return the four words of columns `4 quad` to `4 quad + 3` of a row, from arguments that are uint64."""
    return philox4x32(quad & _LOW, row & _LOW, position & _LOW, position >> _HALF, key & _LOW, key >> _HALF)


@body
def place_of(positions, rows, i):
    """Return two numbers for row i of a mask: the position of its sequence, and its row in the sequence."""
    position = np.uint64(positions[i]) if positions.shape[0] else np.uint64(i)
    return position, np.uint64(rows[i]) if rows.shape[0] else np.uint64(0)


@cpu_kernel
def key_of(seed, step, call):
    """Return the key of a random operation: the counter (step, call), encrypted with the seed, cut to 63 bits.

    Parameters
    ----------
    seed, step, call : int64, at least 0

    Examples
    --------
    >>> key_of(0, 0, 0) == key_of(0, 0, 0), key_of(0, 0, 0) == key_of(0, 0, 1)
    (True, False)
    """
    seed, step, call = np.uint64(seed), np.uint64(step), np.uint64(call)
    low, high, _, _ = philox4x32(call & _LOW, call >> _HALF, step & _LOW, step >> _HALF, seed & _LOW, seed >> _HALF)
    return np.int64((high << _HALF | low) & _SIGNED)


@cpu_inlined
def _draw_by_columns(first, end, positions, rows, key, threshold, below, others, mask):
    """Draw rows `first` to `end`, four neighbouring columns at once."""
    width = np.uint64(mask.shape[1])
    quads = width // _FOUR
    for i in range(first, end):
        position, row = place_of(positions, rows, i)
        for quad in range(quads):
            w0, w1, w2, w3 = words_of(np.uint64(quad), position, row, key)
            column = np.uint64(quad) * _FOUR
            mask[i, column] = below if w0 < threshold else others
            mask[i, column + _ONE] = below if w1 < threshold else others
            mask[i, column + _TWO] = below if w2 < threshold else others
            mask[i, column + _THREE] = below if w3 < threshold else others
        if quads * _FOUR < width:
            w0, w1, w2, _ = words_of(quads, position, row, key)
            for column in range(quads * _FOUR, width):
                mask[i, column] = below if w0 < threshold else others
                w0, w1 = w1, w2


@cpu_inlined
def _draw_by_rows(first, end, positions, rows, key, threshold, below, others, mask):
    """Draw rows `first` to `end`, a block of rows at once, because few columns do not fill a vector register."""
    width, one = np.uint64(mask.shape[1]), np.uint32(1)
    words = _block_on_stack(one), _block_on_stack(one), _block_on_stack(one), _block_on_stack(one)
    position, row = _block_on_stack(_ONE), _block_on_stack(_ONE)
    for begin in range(first, end, _BLOCK):
        start, size = np.uint64(begin), np.uint64(min(_BLOCK, end - begin))
        for b in range(size):
            position[b], row[b] = place_of(positions, rows, start + np.uint64(b))
        for column in range(np.uint64(0), width, _FOUR):
            for b in range(size):
                words[0][b], words[1][b], words[2][b], words[3][b] = words_of(
                    np.uint64(column) // _FOUR, position[b], row[b], key
                )
            for lane in range(min(_FOUR, width - np.uint64(column))):
                of_lane = words[lane]
                for b in range(size):
                    number = below if of_lane[b] < threshold else others
                    mask[start + np.uint64(b), np.uint64(column) + np.uint64(lane)] = number


@cpu_kernel
def draw_mask_cpu(shard, num_shards, positions, rows, key, threshold, below, others, mask):
    """Draw the rows of the mask that belong to a shard."""
    key, threshold = np.uint64(key), np.uint64(threshold)
    below, others = mask.dtype.type(below), mask.dtype.type(others)
    first, end = shard * mask.shape[0] // num_shards, (shard + 1) * mask.shape[0] // num_shards
    if mask.shape[1] < _NARROW and end - first >= _FEW:
        _draw_by_rows(first, end, positions, rows, key, threshold, below, others, mask)
    else:
        _draw_by_columns(first, end, positions, rows, key, threshold, below, others, mask)


@cuda_kernel
def draw_mask_cuda(positions, rows, key, threshold, below, others, mask):
    """Twin of `draw_mask_cpu`; one thread for four neighbouring columns of a row."""
    thread, width = cuda.grid(1), mask.shape[1]
    quads = (width + 3) // 4
    if thread < mask.shape[0] * quads:
        i, quad = thread // quads, thread % quads
        position, row = place_of(positions, rows, i)
        w0, w1, w2, w3 = words_of(np.uint64(quad), position, row, np.uint64(key))
        end = 4 * quad + 4
        for column in range(4 * quad, end if end < width else width):
            mask[i, column] = below if w0 < np.uint64(threshold) else others
            w0, w1, w2 = w1, w2, w3


@cpu_kernel
def draw_noted_mask(draw, number, positions, rows, threshold, below, others, mask):
    """Draw a mask as `draw_mask` does on one thread, with the key of a random operation that memory identifies.

    draw: (3,) int64, the arguments of `key_of` for the first of several random operations
    number: the number of this operation among them
    """
    key = key_of(draw[0], draw[1], draw[2] + number)
    draw_mask_cpu(0, 1, positions, rows, key, threshold, below, others, mask)


@cpu_kernel
def places_of_rows(offsets, positions, out):
    """Compute the position of each row's sequence, and the number of the row in its sequence.

    Parameters
    ----------
    offsets : (num_sequences + 1,) int64
    positions : (num_sequences,) int64, or (0,) if sequence i has position i
    out : (2, rows) int64; written

    Examples
    --------
    >>> out = np.empty((2, 3), np.int64); places_of_rows(np.array([0, 2, 3]), np.array([7, 4]), out); out
    array([[7, 7, 4],
           [0, 1, 0]])
    """
    for i in range(offsets.shape[0] - 1):
        position = positions[i] if positions.shape[0] else i
        for row in range(offsets[i], offsets[i + 1]):
            out[0, row], out[1, row] = position, row - offsets[i]


def _quads(*arguments):
    mask = arguments[-1]
    return mask.shape[0] * ((mask.shape[1] + 3) // 4)


@twins(draw_mask_cpu, draw_mask_cuda, _quads, work=lambda *arguments: _OPERATIONS * arguments[-1].size)
def draw_mask(positions, rows, key, threshold, below, others, mask):
    """Draw a mask: each element is `below` with the probability `threshold / 2**32`, otherwise `others`.

    Element (i, j) is a function of `positions[i]`, `rows[i]`, j and the key.

    Parameters
    ----------
    positions : (n,) or (0,) int64
        The position of each row's sequence, at least 0; if empty, row i has position i.
    rows : (n,) or (0,) int64
        The place of each row in its sequence, below 2**32; if empty, all are 0.
    key : int64, at least 0
        As `key_of` returns it.
    threshold : int64
        0 to 2**32.
    below, others : float
    mask : (n, columns) C-contiguous, any data type; written

    Examples
    --------
    >>> none, mask = np.empty(0, np.int64), np.empty((2, 3))
    >>> draw_mask(none, none, key_of(0, 0, 0), 2**31, 0.0, 2.0, mask); mask
    array([[0., 2., 2.],
           [0., 0., 2.]])
    """
