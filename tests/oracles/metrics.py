"""Metrics by counting one row, or one pair of rows, after another."""

import numpy as np


def confusions(predicted, labels, weights, classes):
    found = np.zeros((classes, classes))
    for p, label, w in zip(predicted, labels, weights, strict=True):
        found[label, p] += w
    return found


def f1(matrix):
    """Return F1 of each class, NaN where it is neither predicted nor there."""
    each = []
    for c in range(len(matrix)):
        right, predicted, there = matrix[c, c], matrix[:, c].sum(), matrix[c].sum()
        precision, recall = right / predicted if predicted else 0.0, right / there if there else 0.0
        nothing = 0.0 if predicted or there else np.nan
        each.append(2 * precision * recall / (precision + recall) if precision + recall else nothing)
    return np.array(each)


def auc(scores, labels, weights):
    higher = pairs = 0.0
    for a in np.flatnonzero(labels == 1):
        for b in np.flatnonzero(labels == 0):
            pairs += weights[a] * weights[b]
            higher += weights[a] * weights[b] * (1.0 if scores[a] > scores[b] else 0.5 * (scores[a] == scores[b]))
    return higher / pairs


def mean_of_sequences(rows, counted, lengths, weights):
    """Return the mean over sequences with rows that count of the mean over those rows."""
    total = whole = 0.0
    for end, length, weight in zip(np.cumsum(lengths), lengths, weights, strict=True):
        inside = np.arange(end - length, end)
        inside = inside[counted[inside]]
        if len(inside):
            total, whole = total + weight * rows[inside].mean(), whole + weight
    return total / whole
