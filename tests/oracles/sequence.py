"""Operators over sequences in plain Python; imports nothing of ours.  Sequences are lists of lists of rows."""

import itertools


def sequences(rows, offsets):
    return [rows[begin:end] for begin, end in itertools.pairwise(offsets)]


def expand(rows, offsets, times):
    """Return the rows, and the lengths, of each sequence so many times."""
    found = [part for part, n in zip(sequences(rows, offsets), times, strict=True) for _ in range(n)]
    return [row for part in found for row in part], [len(part) for part in found]


def expand_as(rows, times):
    return [row for row, n in zip(rows, times, strict=True) for _ in range(n)]


def reverse(rows, offsets):
    return [row for part in sequences(rows, offsets) for row in reversed(part)]


def cut(rows, offsets, begins, lengths):
    return [
        row for part, b, n in zip(sequences(rows, offsets), begins, lengths, strict=True) for row in part[b : b + n]
    ]


def join(inputs):
    """`inputs`: pairs of rows and offsets."""
    parts = zip(*(sequences(*one) for one in inputs), strict=True)
    return [row for one in parts for part in one for row in part]


def erase(ids, offsets, tokens):
    """Return the ids that stay, and the lengths."""
    parts = [[one for one in part if one not in tokens] for part in sequences(ids, offsets)]
    return [one for part in parts for one in part], [len(part) for part in parts]


def enumerate_windows(ids, offsets, size, pad):
    padded = [[*part, *[pad] * size] for part in sequences(ids, offsets)]
    return [part[k : k + size] for part in padded for k in range(len(part) - size)]


def reshape(rows, offsets, width):
    """Return the rows of another width, and the lengths."""
    parts = [[number for row in part for number in row] for part in sequences(rows, offsets)]
    parts = [[part[k : k + width] for k in range(0, len(part), width)] for part in parts]
    return [row for part in parts for row in part], [len(part) for part in parts]


def scatter(rows, ids, updates, offsets):
    out = [list(row) for row in rows]
    for row, places, added in zip(out, sequences(ids, offsets), sequences(updates, offsets), strict=True):
        for place, one in zip(places, added, strict=True):
            row[place] += one
    return out


def masked(items, mask, level, side):
    """Return the entries of a level of nested lists whose mask, an iterator, is `side`."""
    if level:
        return [masked(item, mask, level - 1, side) for item in items]
    return [item for item in items if next(mask) == side]


def topk_averages(numbers, offsets, heights, widths, topks, channels):
    out = []
    for part, height, width in zip(sequences(numbers, offsets), heights, widths, strict=True):
        matrices = [[part[(c * height + r) * width :][:width] for r in range(height)] for c in range(channels)]
        for r in range(height):
            out.append([sum(sorted(matrix[r])[::-1][:k]) / k for matrix in matrices for k in topks])
    return out
