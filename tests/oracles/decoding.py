"""What decoders find, by definition or by enumeration; imports nothing of ours."""

from functools import cache


def edit_distance(ids, labels):
    """Return how many insertions, deletions and changes make labels of ids."""

    @cache
    def distance(i, j):
        if i == 0 or j == 0:
            return i + j
        change = distance(i - 1, j - 1) + (ids[i - 1] != labels[j - 1])
        return min(change, distance(i - 1, j) + 1, distance(i, j - 1) + 1)

    return distance(len(ids), len(labels))
