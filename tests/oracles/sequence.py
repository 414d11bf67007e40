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
