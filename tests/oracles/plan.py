"""The plan in plain Python."""

import itertools


def plan(offsets):
    """Return (order, starts, lengths, batch sizes), longest first, ties in the caller's order."""
    lengths = [b - a for a, b in itertools.pairwise(offsets)]
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    steps = max(lengths, default=0)
    sizes = [sum(length > t for length in lengths) for t in range(steps)]
    return order, [offsets[i] for i in order], [lengths[i] for i in order], sizes


def previous_rows(offsets, reverse):
    """Return the row before each row in the order of its sequence, -1 - i at the first of sequence i."""
    rows = []
    for i, (a, b) in enumerate(itertools.pairwise(offsets)):
        for row in range(a, b):
            if reverse:
                rows.append(row + 1 if row + 1 < b else -1 - i)
            else:
                rows.append(row - 1 if row > a else -1 - i)
    return rows


def padded_rows(lengths, bucket):
    """Return the rows when each bucket of neighbours in sorted order is padded to its longest."""
    lengths = sorted(lengths, reverse=True)
    buckets = [lengths[k : k + bucket] for k in range(0, len(lengths), bucket)]
    return sum(len(part) * max(part) for part in buckets)
