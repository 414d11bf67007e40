"""Prefix beam search for CTC with the scores of a language model and of hot words.

A prefix has a fixed score, which its extensions keep: of the language model, of words, and of hot words in it.  Its
rank adds a score for the beginning of a hot word, which its extensions may lose.  With the hot word "a b" of weight 4:

    text     ""   a    a b  a b c    a c
    fixed    0    0    4    4        0
    rank     0    2    4    4        0
"""

import numpy as np

from varlen_rnn.errors import OutOfRangeError, ShapeError
from varlen_rnn.kernels.prefixes import BLANK, COUNT, DEPTH, LABEL, LAST, NODE, PARENT, TOTAL, step_prefixes
from varlen_rnn.rows.checks import as_rows
from varlen_rnn.runtime.device import to_host
from varlen_rnn.tape.variable import Variable

_WHERE = "CTCDecoder, scorer"


class Prefix:
    """A text with its scores.

    labels : tuple of int
    words : tuple of tuples of int, the words that have ended; empty if there is no boundary
    word : tuple of int, the labels after the last boundary
    fixed : float, the score that extensions keep
    active : tuple of HotWord, the hot words of which the last labels are a beginning
    """

    __slots__ = ("active", "fixed", "labels", "word", "words")

    def __init__(self, labels, words, word, fixed, active):
        self.labels, self.words, self.word, self.fixed, self.active = labels, words, word, fixed, active


class HotWord(dict):
    """A node of the tree of hot words: the node after each next label.

    ends : bool, whether a hot word ends here
    share : float, the largest part of a hot word's labels that were read, 0 to 1
    """

    ends, share = False, 0.0


def hot_words(words, boundary):
    """Return the root of the tree of hot words; without a boundary, the last label of a word has no share."""
    root = HotWord()
    for word in words:
        node = root
        for k, label in enumerate(word, 1):
            node = node.setdefault(label, HotWord())
            if k < len(word) or boundary is not None:
                node.share = max(node.share, k / len(word))
        node.ends = True
    return root


class Fusion:
    """The scores of prefixes.

    scorer : callable or None, as `CTCDecoder` takes it
    lm_weight, word_score, hotword_weight : float
    boundary : int or None, the label between words
    hot : HotWord, the root of the tree
    """

    def __init__(self, scorer, boundary, hotwords, *, lm_weight, word_score, hotword_weight):
        self.scorer, self.lm_weight, self.word_score, self.boundary = scorer, lm_weight, word_score, boundary
        self.hot, self.hotword_weight = hot_words(hotwords, boundary), hotword_weight

    def first(self):
        """Return the empty prefix."""
        return Prefix((), (), (), 0.0, ())

    def table(self, prefix, blank, classes):
        """Return the fixed scores and ranks of a prefix extended by each class; for the blank, of the prefix itself."""
        fixed = np.full(classes, prefix.fixed)
        if self.boundary is None:
            fixed += self.word_score + (self._symbols(prefix, classes) if self.scorer else 0.0)
        elif prefix.word:
            fixed[self.boundary] += self._word(prefix)
        fixed[blank] = prefix.fixed
        ranks = fixed.copy()
        for label, active in self._following(prefix).items():
            ended = prefix.active if label == self.boundary else active if self.boundary is None else ()
            fixed[label] += self.hotword_weight * sum(node.ends for node in ended)
            ranks[label] = fixed[label] + self._partial(active)
        ranks[blank] += self._partial(prefix.active)
        return fixed, ranks

    def follow(self, prefix, label, fixed):
        """Return a prefix extended by a label, with the fixed score of its table."""
        labels, active = (*prefix.labels, label), tuple(self._following(prefix).get(label, ()))
        if self.boundary is None:
            return Prefix(labels, (), (), fixed, active)
        if label != self.boundary:
            return Prefix(labels, prefix.words, (*prefix.word, label), fixed, active)
        words = (*prefix.words, prefix.word) if prefix.word else prefix.words
        return Prefix(labels, words, (), fixed, active)

    def end(self, prefix, blank, classes):
        """Return the score of a text that ends here."""
        total = prefix.fixed
        if self.boundary is None:
            return total + (float(self._symbols(prefix, classes)[blank]) if self.scorer else 0.0)
        total += self.hotword_weight * sum(node.ends for node in prefix.active)
        words = prefix.words
        if prefix.word:
            total, words = total + self._word(prefix), (*words, prefix.word)
        return total + (self.lm_weight * _checked(self.scorer(words, None), ()) if self.scorer else 0.0)

    def _symbols(self, prefix, classes):
        return self.lm_weight * _checked(self.scorer(prefix.labels), (classes,))

    def _word(self, prefix):
        score = self.lm_weight * _checked(self.scorer(prefix.words, prefix.word), ()) if self.scorer else 0.0
        return self.word_score + score

    def _following(self, prefix):
        """Return, for each label that begins, continues or ends a hot word, the nodes that are active after it."""
        found: dict[int, list[HotWord]] = {}
        if self.boundary is not None and prefix.active:
            found[self.boundary] = []
        begins = self.boundary is None or not prefix.word
        for node in (*prefix.active, self.hot) if begins else prefix.active:
            for label, after in node.items():
                found.setdefault(label, []).append(after)
        return found

    def _partial(self, active):
        return self.hotword_weight * max((node.share for node in active), default=0.0)


def _checked(scores, shape):
    """Return scores as float64; raise unless they are numbers of the shape, and none is NaN or plus infinity."""
    scores = to_host(as_rows(scores.detach() if isinstance(scores, Variable) else scores, _WHERE)).astype(np.float64)
    if scores.shape != shape:
        raise ShapeError(_WHERE, expected=f"scores of shape {shape}", got=f"shape {scores.shape}")
    if not (scores < np.inf).all():
        raise OutOfRangeError(_WHERE, expected="log probabilities, numbers below infinity", got=f"{scores.max()}")
    return scores if shape else float(scores)


def fused_search(log_probs, blank, beam_size, fusion):
    """Return the best texts of one sequence as pairs of labels and score, best first.

    Parameters
    ----------
    log_probs : (steps, classes) C-contiguous
    blank, beam_size : int
    fusion : Fusion
    """
    steps, classes = log_probs.shape
    nodes, kept = np.empty((steps * beam_size + 1, 6), np.int64), np.zeros((beam_size, 4), np.int64)
    chances, extra = np.zeros((beam_size, 5), log_probs.dtype), np.zeros((beam_size, classes), log_probs.dtype)
    nodes[0], nodes[0, DEPTH] = -1, 0
    chances[0, BLANK], chances[0, LAST] = 0, -np.inf
    numbers, prefixes = np.array([1, 1]), {0: fusion.first()}
    tables: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    for row in range(steps):
        present = kept[: numbers[COUNT], NODE].tolist()
        tables = {k: tables.get(k) or fusion.table(prefixes[k], blank, classes) for k in present}
        for slot, node in enumerate(present):
            extra[slot] = tables[node][1]
        step_prefixes(log_probs, row, blank, nodes, kept, chances, numbers, extra)
        for node in kept[: numbers[COUNT], NODE].tolist():
            if node not in prefixes:
                parent, label = nodes[node, [PARENT, LABEL]].tolist()
                prefixes[node] = fusion.follow(prefixes[parent], label, float(tables[parent][0][label]))
    found = [prefixes[node] for node in kept[: numbers[COUNT], NODE].tolist()]
    totals = chances[: len(found), TOTAL].tolist()
    scored = [(p.labels, total + fusion.end(p, blank, classes)) for p, total in zip(found, totals, strict=True)]
    return sorted([pair for pair in scored if pair[1] > -np.inf], key=lambda pair: -pair[1])
