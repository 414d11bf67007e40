"""The transducer loss of one sequence, by enumeration and by a recursion in float64; imports nothing of ours."""

import itertools

import numpy as np


def log_softmax(logits):
    """Return the log-softmax over the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def by_enumeration(logits, labels, blank):
    """Return minus the log-probability of labels: a sum over every order of T blanks and the labels, blank last."""
    frames, rows = logits.shape[:2]
    if frames == 0:
        return 0.0 if rows == 1 else np.inf
    log_probs, total = log_softmax(logits), -np.inf
    for places in itertools.combinations(range(frames - 1 + len(labels)), len(labels)):
        t, u, score = 0, 0, 0.0
        for place in range(frames + len(labels)):
            if place in places:
                score, u = score + log_probs[t, u, labels[u]], u + 1
            else:
                score, t = score + log_probs[t, u, blank], t + 1
        total = np.logaddexp(total, score)
    return -total


def texts(log_probs_of, frames, blank, most):
    """Return the log-probability of every text, over all alignments with at most `most` labels per frame.

    `log_probs_of(t, text)` returns those of the classes at frame t after a text.
    """
    found = {}

    def go_on(t, text, emitted, total):
        if t == frames:
            found[text] = np.logaddexp(found.get(text, -np.inf), total)
            return
        log_probs = log_probs_of(t, text)
        go_on(t + 1, text, 0, total + log_probs[blank])
        for label in range(len(log_probs)) if emitted < most else ():
            if label != blank:
                go_on(t, (*text, label), emitted + 1, total + log_probs[label])

    go_on(0, (), 0, 0.0)
    return found


def greedy(log_probs_of, frames, blank, most):
    """Return the text of the best class at each turn; after `most` labels of a frame comes the next frame."""
    text, t, emitted = (), 0, 0
    while t < frames:
        best = int(log_probs_of(t, text).argmax())
        if best == blank or emitted == most:
            t, emitted = t + 1, 0
        else:
            text, emitted = (*text, best), emitted + 1
    return text


def by_recursion(logits, labels, blank):
    """Return the loss of logits `(T, U + 1, classes)`, T at least 1, and its gradient."""
    logits = logits.astype(np.float64)
    log_probs, (frames, rows, _) = log_softmax(logits), logits.shape
    stay = log_probs[:, :, blank]
    move = log_probs[:, np.arange(rows - 1), labels]
    forward, backward = np.full((frames, rows), -np.inf), np.full((frames + 1, rows + 1), -np.inf)
    forward[0, 0], backward[frames, rows - 1] = 0.0, 0.0
    for t, u in itertools.product(range(frames), range(rows)):
        if t:
            forward[t, u] = forward[t - 1, u] + stay[t - 1, u]
        if u:
            forward[t, u] = np.logaddexp(forward[t, u], forward[t, u - 1] + move[t, u - 1])
    for t, u in itertools.product(reversed(range(frames)), reversed(range(rows))):
        backward[t, u] = backward[t + 1, u] + stay[t, u]
        if u < rows - 1:
            backward[t, u] = np.logaddexp(backward[t, u], backward[t, u + 1] + move[t, u])
    total = backward[0, 0]
    of_stay = np.exp(forward + stay + backward[1:, :-1] - total)
    of_move = np.exp(forward[:, :-1] + move + backward[:-1, 1:-1] - total)
    d = np.exp(log_probs) * np.exp(forward + backward[:-1, :-1] - total)[:, :, None]
    d[:, :, blank] -= of_stay
    np.subtract.at(d, (slice(None), np.arange(rows - 1), labels), of_move)
    return -total, d
