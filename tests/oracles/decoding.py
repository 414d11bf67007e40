"""What decoders find, by definition or by enumeration; imports nothing of ours."""

import itertools
from functools import cache

import numpy as np


def edit_distance(ids, labels):
    """Return how many insertions, deletions and changes make labels of ids."""

    @cache
    def distance(i, j):
        if i == 0 or j == 0:
            return i + j
        change = distance(i - 1, j - 1) + (ids[i - 1] != labels[j - 1])
        return min(change, distance(i - 1, j) + 1, distance(i, j - 1) + 1)

    return distance(len(ids), len(labels))


def best_path(scores, blank):
    """Return what the best class of each step reads as."""
    path = [max(range(len(row)), key=lambda c: row[c]) for row in scores]
    return [c for n, c in enumerate(path) if c != blank and (n == 0 or c != path[n - 1])]


def ctc_texts(log_probs, blank):
    """Return every text that the steps may read as, with the logarithm of its probability: over all paths."""
    steps, classes = log_probs.shape
    found = {}
    for path in itertools.product(range(classes), repeat=steps):
        text = tuple(c for n, c in enumerate(path) if c != blank and (n == 0 or c != path[n - 1]))
        score = sum(log_probs[t, c] for t, c in enumerate(path))
        found[text] = np.logaddexp(found.get(text, -np.inf), score)
    return found


def aligned(log_probs, text, blank):
    """Return the first row of each label in the best alignment of a text, and the row after its last; None if none is.

    It tries all paths.  Of equally probable paths, it takes the path whose last row reads as far as possible, then the
    row before it, and so on; a blank after a label is further than the label.
    """
    best = None
    for path in itertools.product(range(log_probs.shape[1]), repeat=len(log_probs)):
        begins, ends, far = [], [], []
        for n, c in enumerate(path):
            if c != blank and (n == 0 or c != path[n - 1]):
                begins.append(n)
                ends.append(n)
            if c != blank:
                ends[-1] = n + 1
            far.append(2 * len(begins) - (c != blank))
        score = sum(log_probs[n, c] for n, c in enumerate(path))
        if tuple(path[n] for n in begins) == tuple(text) and score > -np.inf:
            best = max(best, (score, far[::-1], begins, ends)) if best else (score, far[::-1], begins, ends)
    return best[2:] if best else None


def fused_texts(log_probs, blank, scorer=None, lm_weight=1.0, word_score=0.0, boundary=None, hotwords=(), weight=0.0):
    """Return every text with its log probability plus the scores of a language model, of words and of hot words."""
    found = {}
    for text, score in ctc_texts(log_probs, blank).items():
        if boundary is None:
            words, model = text, sum(scorer(text[:n])[c] for n, c in enumerate((*text, blank))) if scorer else 0
            hot = sum(text[n : n + len(w)] == tuple(w) for w in hotwords for n in range(len(text)))
        else:
            parts = [tuple(part) for ends, part in itertools.groupby(text, lambda c: c == boundary) if not ends]
            words, model = parts, 0
            if scorer:
                model = sum(scorer(tuple(words[:n]), word) for n, word in enumerate([*words, None]))
            whole = (boundary, *text, boundary)
            hot = sum(
                whole[n : n + len(w) + 2] == (boundary, *w, boundary) for w in hotwords for n in range(len(whole))
            )
        found[text] = score + lm_weight * model + word_score * len(words) + weight * hot
    return {text: score for text, score in found.items() if score > -np.inf}


def prefix_beam_search(log_probs, beam_size, blank):
    """Return the texts that a beam keeps, best first, with their probabilities: dictionaries of prefixes."""
    beam = {(): (1.0, 0.0)}  # probabilities of alignments that end with a blank, and with the last label
    for p in np.exp(log_probs):
        after = {}
        for prefix, (with_blank, with_last) in beam.items():
            add(after, prefix, (with_blank + with_last) * p[blank], with_last * p[prefix[-1]] if prefix else 0.0)
            for c in range(len(p)):
                if c != blank:
                    repeats = prefix[-1:] == (c,)
                    add(after, (*prefix, c), 0.0, (with_blank if repeats else with_blank + with_last) * p[c])
        best = sorted(after.items(), key=lambda item: -sum(item[1]))[:beam_size]
        beam = dict(best)
    return [(prefix, sum(both)) for prefix, both in beam.items()]


def add(found, prefix, with_blank, with_last):
    one, other = found.get(prefix, (0.0, 0.0))
    found[prefix] = one + with_blank, other + with_last
