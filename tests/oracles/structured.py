"""Losses over all alignments, by enumeration; of long sequences, row by row in float64; imports nothing of ours."""

import itertools

import numpy as np

from tests.oracles.products import matmul


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


def crf_labellings(emission, transition):
    """Return all labellings of a probability above 0 with its logarithm, best first; equal ones by their last tags."""
    steps, tags = emission.shape
    if steps == 0:
        return [((), 0.0)]
    found = []
    for path in itertools.product(range(tags), repeat=steps):
        total = sum(emission[t, tag] for t, tag in enumerate(path)) + transition[0, path[0]] + transition[1, path[-1]]
        found.append((path, total + sum(transition[2 + a, b] for a, b in itertools.pairwise(path))))
    whole = np.logaddexp.reduce([score for _, score in found])
    found = [(path, score - whole) for path, score in found if score > -np.inf]
    return sorted(found, key=lambda pair: (-pair[1], pair[0][::-1]))


def crf_marginals(emission, transition):
    """Return the share of each tag of each row: over every labelling, in proportion to e to its score."""
    shares, total = np.zeros(emission.shape), 0.0
    for path in itertools.product(range(emission.shape[1]), repeat=len(emission)):
        share = np.exp(crf_score(emission, path, transition))
        shares[range(len(path)), path] += share
        total += share
    return shares / total


def crf_score(emission, path, transition):
    """Return the score of a labelling."""
    ends = transition[0, path[0]] + transition[1, path[-1]] if path else 0.0
    return (
        ends + emission[range(len(path)), path].sum() + sum(transition[2 + a, b] for a, b in itertools.pairwise(path))
    )


def crf_of_many_rows(emission, label, transition):
    """Return the cost of labels, and its gradients: sums of each row are divided by their own sum."""
    last, follow, weights = len(emission) - 1, np.exp(transition[2:]), np.exp(emission)
    forward, backward = np.empty(emission.shape), np.empty(emission.shape)
    cost = -transition[0, label[0]] - emission[range(last + 1), label].sum() - transition[1, label[-1]]
    for row in range(last + 1):
        forward[row] = weights[row] * (matmul(forward[row - 1], follow) if row else np.exp(transition[0]))
        cost += np.log(forward[row].sum())
        forward[row] /= forward[row].sum()
    cost += np.log(matmul(forward[-1], np.exp(transition[1])))
    backward[last] = np.exp(transition[1])
    for row in reversed(range(last)):
        backward[row] = matmul(follow, weights[row + 1] * backward[row + 1])
        backward[row] /= backward[row].sum()
    d_emission = forward * backward / (forward * backward).sum(axis=1, keepdims=True)
    d_emission[range(last + 1), label] -= 1
    pairs = forward[:-1, :, None] * follow * (weights * backward)[1:, None]
    d_transition = np.concatenate([d_emission[[0, -1]], (pairs / pairs.sum(axis=(1, 2), keepdims=True)).sum(axis=0)])
    np.add.at(d_transition, (2 + label[:-1], label[1:]), -1)
    return cost - transition[2 + label[:-1], label[1:]].sum(), d_emission, d_transition


def ctc_of_many_steps(log_probs, target, blank):
    """Return the loss of a target, and its gradient: the share of each class at each step, times -1."""
    path = np.full(2 * len(target) + 1, blank)
    path[1::2] = target
    skips = np.where((path[2:] != blank) & (path[2:] != path[:-2]), 0.0, -np.inf)
    scores, variables = log_probs[:, path], []
    for steps, over in ((scores, skips), (scores[::-1, ::-1], skips[::-1])):
        now = np.full((len(steps), len(path) + 2), -np.inf)
        now[0, 2:4] = steps[0, :2]
        for t in range(1, len(steps)):
            now[t, 2:] = np.logaddexp(now[t - 1, 2:], now[t - 1, 1:-1])
            now[t, 4:] = np.logaddexp(now[t, 4:], now[t - 1, 2:-2] + over)
            now[t, 2:] += steps[t]
        variables.append(now[:, 2:])
    shares = variables[0] + variables[1][::-1, ::-1] - scores
    loss = -np.logaddexp.reduce(variables[0][-1, -2:])
    d = np.zeros(log_probs.shape)
    np.subtract.at(d, (slice(None), path), np.exp(shares + loss))
    return loss, d
