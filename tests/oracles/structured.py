"""Losses over all alignments, by enumeration; imports nothing of ours."""

import itertools

import numpy as np


def ctc(log_probs, target, blank):
    """Return minus the logarithm of the probability of a target: the sum over every path that reads as it."""
    steps, classes = log_probs.shape
    total = -np.inf
    for path in itertools.product(range(classes), repeat=steps):
        merged = [c for n, c in enumerate(path) if n == 0 or c != path[n - 1]]
        if [c for c in merged if c != blank] == list(target):
            total = np.logaddexp(total, sum(log_probs[t, c] for t, c in enumerate(path)))
    return -total


def crf(emission, label, transition):
    """Return the cost of labels, and the most probable ones: over every labelling."""
    steps, tags = emission.shape
    if steps == 0:
        return 0.0, ()

    def score(path):
        begin, end, total = transition[0, path[0]], transition[1, path[-1]], 0.0
        total += sum(emission[t, tag] for t, tag in enumerate(path))
        return begin + end + total + sum(transition[2 + a, b] for a, b in itertools.pairwise(path))

    paths = list(itertools.product(range(tags), repeat=steps))
    scores = np.array([score(path) for path in paths])
    return np.logaddexp.reduce(scores) - score(tuple(label)), paths[int(scores.argmax())]
