"""Philox4x32 with 10 rounds (Salmon et al., 2011), in Python's integers, and the masks drawn with it, number by number.

Imports nothing of ours.
"""

import numpy as np

LOW = 2**32 - 1


def philox4x32(counter, key):
    """Return four words, given a counter of four words and a key of two."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        first, second = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = second >> 32 ^ c1 ^ k0, second & LOW, first >> 32 ^ c3 ^ k1, first & LOW
        k0, k1 = k0 + 0x9E3779B9 & LOW, k1 + 0xBB67AE85 & LOW
    return c0, c1, c2, c3


def halves(number):
    """Return the low and the high word of a number of 64 bits."""
    return number & LOW, number >> 32 & LOW


def key_of(seed, step, call):
    """Return the key of a random operation."""
    low, high, _, _ = philox4x32((*halves(call), *halves(step)), halves(seed))
    return (high << 32 | low) & 2**63 - 1


def word(position, row, column, key):
    """Return the word of a place."""
    return philox4x32((column // 4, row, *halves(position)), halves(key))[column % 4]


def draw_mask(positions, rows, key, threshold, below, others, mask):
    """Write a mask: `below` where the word of the place is less than the threshold."""
    for i, j in np.ndindex(mask.shape):
        place = positions[i] if len(positions) else i, rows[i] if len(rows) else 0
        mask[i, j] = below if word(*map(int, place), j, int(key)) < threshold else others
