"""Replace tokens that occur once in the training, and unknown tokens, by forms of their spelling."""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Sequence

from varlen_rnn.data.vocabulary import UNKNOWN, build_vocabulary

_RUNS = (re.compile("[A-Z]+"), "X"), (re.compile("[a-z]+"), "x"), (re.compile("[0-9]+"), "0")


def forms(token: str) -> tuple[str, str, str]:
    """Return three forms of a token: itself, the beginning of its shape with its last two letters, and its short shape.

    In a shape, X is a run of capitals, x a run of small letters, and 0 a run of digits.  The beginning is two
    characters, and a short shape is the beginning and the last character.

    Examples
    --------
    >>> forms("parse_42")
    ('parse_42', '<unk:x_~42>', '<unk:x_0>')
    """
    shape = token
    for runs, letter in _RUNS:
        shape = runs.sub(letter, shape)
    name = UNKNOWN[:-1]
    return token, f"{name}:{shape[:2]}~{token[-2:]}>", f"{name}:{shape[:2]}{shape[2:][-1:]}>"


def vocabulary_of_forms(
    sequences: Sequence[Iterable[str]], min_count: int, max_vocabulary: int | None = None
) -> list[str]:
    """Return a vocabulary: the tokens that occur at least twice, and forms of all other tokens.

    Examples
    --------
    >>> vocabulary_of_forms([["to", "be", "or", "3"], ["to", "see", "bee"]], 1)
    ['<unk>', '<unk:x>', '<unk:x~ee>', 'to', '<unk:0>']
    """
    least, counts = max(2, min_count), collections.Counter(token for tokens in sequences for token in tokens)
    kept = {token for token, count in counts.items() if count >= least}
    for level in (1, 2):
        rare: collections.Counter[str] = collections.Counter()
        for token, count in counts.items():
            if not kept.intersection(forms(token)[:level]):
                rare[forms(token)[level]] += count
        kept |= {form for form, count in rare.items() if count >= (least if level == 1 else min_count)}
    return build_vocabulary(spelled(sequences, kept), min_count, max_vocabulary)


def spelled(sequences: Iterable[Iterable[str]], vocabulary: Iterable[str]) -> list[list[str]]:
    """Return sequences with each token replaced by its first form in the vocabulary, or else by its third form."""
    known = set(vocabulary)
    found: dict[str, str] = {}

    def form_of(token: str) -> str:
        if token not in found:
            of_token = forms(token)
            found[token] = next((form for form in of_token if form in known), of_token[-1])
        return found[token]

    return [[form_of(token) for token in tokens] for tokens in sequences]
