"""`CTCDecoder`, a beam search for CTC with a language model and hot words."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import numpy as np

from varlen_rnn.errors import FINITE, OutOfRangeError, check_callable, check_int, check_list, check_number
from varlen_rnn.nn.module import Module
from varlen_rnn.ops.sequence.ctc import check_decoder
from varlen_rnn.ops.sequence.fused_search import Fusion, fused_search
from varlen_rnn.rows.lod import LoD, LoDTensor, levels_of
from varlen_rnn.runtime.device import to_host
from varlen_rnn.tape.spec import describe
from varlen_rnn.tape.variable import Variable, required
from varlen_rnn.typing import Rows


class CTCDecoder(Module):
    """A beam search for the texts of CTC's outputs, in which a language model and hot words may decide, too.

    The score of a text is the logarithm of its probability, plus `lm_weight` times the language model's log
    probability of its words, plus `word_score` for each word, plus `hotword_weight` for each hot word in it.  Without
    `boundary`, each label is a word.

    Parameters
    ----------
    beam_size : int
        The largest number of prefixes to keep, and of texts to return, per sequence.
    blank : int
    scorer : callable, optional
        The language model, in natural logarithms; minus infinity forbids a word.  Without `boundary`,
        `scorer(labels)` returns an array `(classes,)` of the scores of each next label, given a tuple of labels; in the
        place of the blank, the score that the text ends.  With `boundary`, `scorer(words, word)` returns the score of a
        word after a tuple of words, each a tuple of labels; `word` is None for the end of the text.  `KenLM` is a
        scorer of either kind.
    lm_weight, word_score : float
    boundary : int, optional
        The label between words, such as a space.
    hotwords : iterable of iterables of int
        The labels of each hot word.  With `boundary`, a hot word is one or several whole words, with a boundary between
        them; without, any part of a text.  Overlapping occurrences count each.
    hotword_weight : float
        While the search is inside a hot word, a prefix has the part of this weight that its labels are of the word's
        labels, and loses it if the word does not go on.

    Raises
    ------
    DTypeError, ShapeError, LoDError, OutOfRangeError

    Notes
    -----
    The scores are exact if the beam has room for all prefixes; otherwise they are lower bounds for texts whose prefixes
    left the beam.  The scorer is called for one sequence after another, so a text does not depend on other sequences,
    if the scorer's result depends on its arguments alone.  A decoder calls it often with equal beginnings; a scorer
    that is slow keeps its states by `labels` or `words`.  The search runs on the host, and there is no gradient.

    Examples
    --------
    >>> log_probs = LoDTensor(np.log([[0.4, 0.35, 0.25], [0.4, 0.35, 0.25]]), [[0, 2]])
    >>> ids, scores = CTCDecoder(beam_size=9)(log_probs)
    >>> ids.value.to_sequences()[0][0]
    array([1])
    >>> ids, scores = CTCDecoder(beam_size=9, hotwords=[[2, 1]], hotword_weight=3.0)(log_probs)
    >>> ids.value.to_sequences()[0][0], np.exp(np.asarray(scores)[:1] - 3).round(4)
    (array([2, 1]), array([0.0875]))

    Source: the search of `ctc_beam_search_decoder`; `lm_weight` and `word_score` of `torchaudio.models.decoder`;
    `hotwords` and `hotword_weight` of pyctcdecode, where `lm_weight` is alpha and `word_score` is beta.
    """

    def __init__(
        self,
        beam_size: int = 10,
        blank: int = 0,
        scorer: Callable | None = None,
        *,
        lm_weight: float = 1.0,
        word_score: float = 0.0,
        boundary: int | None = None,
        hotwords: Iterable[Iterable[int]] = (),
        hotword_weight: float = 10.0,
    ) -> None:
        self.beam_size, self.blank = check_int(beam_size, "beam_size", 1), check_int(blank, "blank", 0)
        self.scorer = None if scorer is None else check_callable(scorer, "scorer")
        weights = {"lm_weight": lm_weight, "word_score": word_score, "hotword_weight": hotword_weight}
        self.weights = {name: check_number(w, name, *FINITE) for name, w in weights.items()}
        self.boundary = None if boundary is None else check_int(boundary, "boundary", 0)
        self.hotwords = tuple(_hotword(word, self.blank, self.boundary) for word in check_list(hotwords, "hotwords"))

    def forward(self, log_probs: Rows) -> tuple[Variable, Variable]:
        """Return the ids of the best texts of each sequence, best first, and the score of each text.

        Parameters
        ----------
        log_probs : Variable, shape `(rows, classes)`
            As `ctc_beam_search_decoder` takes it.

        Returns
        -------
        ids : Variable, int64, shape `(ids,)`
            Its LoD has the levels above the last, the texts of each sequence, and the ids of each text.
        scores : Variable, shape `(texts,)`, of the data type of `log_probs`
        """
        given = required(log_probs, "CTCDecoder, log_probs")
        check_decoder("CTCDecoder", describe(given.value), self.beam_size, self.blank)
        labels = [n for word in self.hotwords for n in word] + ([] if self.boundary is None else [self.boundary])
        if labels and max(labels) >= given.shape[1]:
            expected = f"classes 0 to {given.shape[1] - 1} as boundary and in hotwords"
            raise OutOfRangeError("CTCDecoder, labels", expected=expected, got=max(labels))
        *above, offsets = levels_of(given.value.structure)
        rows = np.ascontiguousarray(to_host(given.value.data))
        fusion = Fusion(self.scorer, self.boundary, self.hotwords, **self.weights)
        found = [
            fused_search(rows[begin:end], self.blank, self.beam_size, fusion)
            for begin, end in itertools.pairwise(offsets)
        ]
        texts = [text for sequence in found for text, _ in sequence]
        counts = np.cumsum([0, *map(len, found)]), np.cumsum([0, *map(len, texts)])
        ids = np.array([label for text in texts for label in text], np.int64)
        scores = np.array([score for sequence in found for _, score in sequence], rows.dtype)
        levels = [*above, counts[0]]
        return Variable(LoDTensor(ids, LoD([*levels, counts[1]]))), Variable(LoDTensor(scores, LoD(levels)))

    def extra_repr(self) -> str:
        """Return the options as text for `repr`."""
        weights = ", ".join(f"{name}={weight}" for name, weight in self.weights.items())
        return f"beam_size={self.beam_size}, blank={self.blank}, boundary={self.boundary}, {weights}"


def _hotword(word: Iterable[int], blank: int, boundary: int | None) -> tuple[int, ...]:
    labels = tuple(check_int(label, "hotwords", 0) for label in check_list(word, "hotwords", "a list of labels"))
    if not labels or blank in labels or boundary in (labels[0], labels[-1]):
        expected = "labels except the blank, neither the first nor the last of which is the boundary"
        raise OutOfRangeError("CTCDecoder, hotwords", expected=expected, got=f"{list(labels)}")
    return labels
