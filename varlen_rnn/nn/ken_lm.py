"""`KenLM`, a language model of n-grams as the scorer of `CTCDecoder`."""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from varlen_rnn.errors import DTypeError, InputError, OutOfRangeError, check_list

_END = "</s>"
_MOST = 100_000  # states of beginnings that are kept


class KenLM:
    """A scorer of `CTCDecoder`: a language model of n-grams, from a file in ARPA's or kenlm's format.

    It needs kenlm: `pip install "varlen-rnn[kenlm]"`, or `pip install kenlm`.

    Parameters
    ----------
    path : str or path
    labels : iterable of str
        The text of each class.  With the decoder's `boundary`, the texts of a word's labels, joined, are a word of the
        model.  Without, the text of each label is one.  The blank has the empty text.

    Raises
    ------
    DTypeError, OutOfRangeError
    InputError
        If kenlm is not installed, or cannot read the file.

    Notes
    -----
    Scores are natural logarithms.  A word that the model does not know has its score for unknown words.  The states of
    beginnings are kept, so a word costs one look-up.  A copy, or a pickle that is loaded, reads the file again.

    Examples
    --------
    ::

        scorer = KenLM("words.arpa", ["", "a", "b", " "])
        decoder = CTCDecoder(beam_size=64, scorer=scorer, lm_weight=0.5, word_score=1.0, boundary=3)

    Source: Heafield (2011), "KenLM: faster and smaller language model queries".
    """

    def __init__(self, path: str | os.PathLike[str], labels: Iterable[str]) -> None:
        self.labels = [_text(label) for label in check_list(labels, "KenLM, labels", "a list of texts")]
        self._kenlm, self._path = _kenlm(), path
        try:
            self._model = self._kenlm.Model(os.fspath(path))
        except TypeError as error:
            raise DTypeError("KenLM, path", expected="a path", got=type(path).__name__) from error
        except (OSError, RuntimeError, ValueError) as error:
            expected = "a language model in ARPA's or kenlm's format"
            raise InputError("KenLM, path", expected=expected, got=f"{os.fspath(path)!r}: {error}") from error
        self._states: dict[tuple[str, ...], Any] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Let a copy, in another process too, read the file again, because a model of kenlm cannot be copied."""
        return type(self), (self._path, self.labels)

    def __call__(self, before: Sequence[Any], *word: Any) -> Any:
        """Return the score of a word, or of the end if it is None, after words; without it, of each label after labels.

        Parameters
        ----------
        before : tuple
            Words, each a tuple of labels; or labels, if no word is given.
        *word : tuple of int or None
            At most one.

        Returns
        -------
        float, or array of shape `(classes,)`
        """
        if not word:
            texts, state = self.labels, self._state(tuple(map(self._of_label, before)))
            return np.array([self._score(state, text or _END) for text in texts])
        state = self._state(tuple(map(self._of_word, before)))
        return self._score(state, _END if word[0] is None else self._of_word(word[0]))

    def _of_label(self, label: int) -> str:
        if not 0 <= label < len(self.labels):
            raise OutOfRangeError("KenLM, labels", expected=f"a text for each class, {label} too", got=len(self.labels))
        return self.labels[label]

    def _of_word(self, word: Sequence[int]) -> str:
        return "".join(map(self._of_label, word))

    def _score(self, state: Any, text: str) -> float:
        return self._model.BaseScore(state, text, self._kenlm.State()) * math.log(10)

    def _state(self, texts: tuple[str, ...]) -> Any:
        """Return the state after a beginning of a text, from the longest beginning whose state is kept."""
        if len(self._states) > _MOST:
            self._states = {}
        kept, known = self._states, len(texts)  # `kept`, because another thread may replace the dict
        while known and texts[:known] not in kept:
            known -= 1
        state = kept.get(texts[:known])
        if state is None:
            state = self._kenlm.State()
            self._model.BeginSentenceWrite(state)
        for count in range(known, len(texts)):
            after = self._kenlm.State()
            self._model.BaseScore(state, texts[count], after)
            kept[texts[: count + 1]] = state = after
        return state


def _text(label: Any) -> str:
    if not isinstance(label, str):
        raise DTypeError("KenLM, labels", expected="texts", got=type(label).__name__)
    return label


def _kenlm() -> Any:
    try:
        return importlib.import_module("kenlm")
    except ImportError as error:
        raise InputError("KenLM", expected="the package kenlm", got=error, hint="pip install kenlm") from error
