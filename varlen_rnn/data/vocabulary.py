"""Divide texts into tokens, build a vocabulary of the frequent tokens, and encode tokens as ids."""

from __future__ import annotations

import collections
import itertools
import re
from collections.abc import Iterable, Sequence

import numpy as np

from varlen_rnn.errors import DTypeError, InputError, check_int, check_list, shown

TOKENS = ("characters", "words", "list")

# The token with id 0: it replaces tokens that the vocabulary lacks, and is padding in baselines.
UNKNOWN = "<unk>"

# Texts of fewer words are mostly names, codes or formulas, where characters are better tokens than words.
_MANY_WORDS = 10

_WORD = re.compile(r"\w+(?:['\u2019]\w+)*")


def split_text(text: str, tokens: str) -> Sequence[str]:
    """Return the tokens of a text: its characters, or its words in lower case without punctuation."""
    return _WORD.findall(text.lower()) if tokens == "words" else text


def natural_tokens(texts: Sequence[str]) -> str:
    """Return "words" if the median text has at least ten words, otherwise "characters"."""
    numbers = [len(text.split()) for text in texts]
    return "words" if numbers and np.median(numbers) >= _MANY_WORDS else "characters"


def build_vocabulary(
    sequences: Iterable[Iterable[str]], min_count: int = 1, max_vocabulary: int | None = None
) -> list[str]:
    """Return the vocabulary of sequences: "<unk>", then their tokens, the most frequent first.

    Tokens of equal frequency are sorted alphabetically.  Tokens that occur fewer than `min_count` times are left out,
    and the vocabulary has at most `max_vocabulary` entries.
    """
    min_count = check_int(min_count, "min_count", 1)
    counts = collections.Counter(itertools.chain.from_iterable(sequences))
    counts.pop(UNKNOWN, None)
    ranked = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    found = [UNKNOWN, *(token for token, count in ranked if count >= min_count)]
    return found if max_vocabulary is None else found[: check_int(max_vocabulary, "max_vocabulary", 1)]


def check_vocabulary(vocabulary: Iterable[str]) -> list[str]:
    """Return a vocabulary as a list, or raise if it is invalid."""
    vocabulary = check_list(vocabulary, "vocabulary")
    for number, token in enumerate(vocabulary):
        if not isinstance(token, str):
            raise DTypeError(f"vocabulary, entry {number}", expected="a string", got=type(token).__name__)
    if not vocabulary or vocabulary[0] != UNKNOWN:
        got = shown(vocabulary[0]) if vocabulary else "an empty vocabulary"
        hint = "id 0 is the id of unknown tokens"
        raise InputError("vocabulary, entry 0", expected=repr(UNKNOWN), got=got, hint=hint)
    twice = [token for token, count in collections.Counter(vocabulary).items() if count > 1]
    if twice:
        raise InputError("vocabulary", expected="different tokens", got=f"{twice[0]!r} more than once")
    return vocabulary


def encode_all(sequences: Sequence[Sequence[str]], vocabulary: Iterable[str]) -> list[np.ndarray]:
    """Return the int64 ids of each sequence of tokens, as views of one array."""
    ids = {token: number for number, token in enumerate(vocabulary)}
    bounds = [0, *itertools.accumulate(map(len, sequences))]
    known = map(ids.get, itertools.chain.from_iterable(sequences), itertools.repeat(0))
    flat = np.fromiter(known, np.int64, bounds[-1])
    return [flat[a:b] for a, b in itertools.pairwise(bounds)]
